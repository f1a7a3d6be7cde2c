"""Arrays as they are sent to PostgreSQL."""

from __future__ import annotations

import enum
import uuid
from math import inf

import pytest
from django.db import DataError, connection, models, transaction

if connection.vendor != "postgresql":
    pytest.skip("only PostgreSQL has arrays", allow_module_level=True)

from lab.models import Coupon, Kit, Lot
from statemachine_fields.db import prepared

pytestmark = pytest.mark.django_db


class Size(enum.IntEnum):
    SMALL = 1


ID = uuid.UUID("0191d9f4-0000-7000-8000-00000000002a")


@pytest.mark.parametrize(
    ("values", "kind", "read"),
    [
        ([], "bigint", []),
        ([1, -2, 2**40, 1], "bigint", [1, -2, 2**40, 1]),
        ([1, None, 2], "bigint", [1, None, 2]),
        ([0.5, None], "float8", [0.5, None]),
        ([inf, -inf, None], "float8", [inf, -inf, None]),
        ([ID, ID], "uuid", [ID, ID]),
        ([ID, None], "uuid", [ID, None]),
        (["a", "NULL", "", ",{}", "\\", '"', " b "], "text", ["a", "NULL", "", ",{}", "\\", '"', " b "]),
        ([True, False], "bool", [True, False]),
    ],
)
def test_an_array_is_read_as_it_was_given(values, kind, read):
    assert prepared.run(connection, f"SELECT %s::{kind}[]", (prepared.array_of(values),)) == [(read,)]


def test_both_zeros_are_kept():
    ((read,),) = prepared.run(connection, "SELECT %s::float8[]", (prepared.array_of([-0.0, 0.0, None]),))
    assert str(read) == "[-0.0, 0.0, None]"


@pytest.mark.parametrize("kind", [models.SmallIntegerField, models.IntegerField, models.BigIntegerField])
def test_a_number_that_is_too_large_for_its_field_is_refused_and_not_cut(kind):
    most = kind().rel_db_type(connection)
    value = kind().get_db_prep_save(2**40 + 7 if most != "bigint" else 2**70 + 7, connection)
    with pytest.raises((DataError, OverflowError)), transaction.atomic():
        prepared.run(connection, f"SELECT %s::{most}", (value,))


@pytest.mark.parametrize("update", [{"number": 2**40 + 7}, {"number": -(2**40)}, {"small": 70_000}])
def test_a_move_writes_no_part_of_a_number_that_is_too_large(update):
    kit = Kit.objects.create()
    before = Kit.objects.values().get()
    with pytest.raises(DataError, match="out of range"), transaction.atomic():
        kit.states.transition_to("DONE", update=update)
    assert Kit.objects.values().get() == before


def test_keys_go_through_their_field_unless_they_are_plain_numbers():
    lots, coupons = Lot.states._meta.table, Coupon.states._meta.table
    assert prepared.prepared_keys(lots, [1, 2], connection) == "{1,2}"
    assert prepared.prepared_keys(lots, ["1", 2], connection) == "{1,2}"
    assert prepared.prepared_keys(lots, [Size.SMALL], connection) == "{1}"
    assert prepared.prepared_keys(coupons, [1, "b"], connection) == '{"1","b"}'
