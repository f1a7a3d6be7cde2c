"""Arrays as they are sent to PostgreSQL."""

from __future__ import annotations

import enum
import uuid

import pytest
from django.db import connection

if connection.vendor != "postgresql":
    pytest.skip("only PostgreSQL has arrays", allow_module_level=True)

from lab.models import Coupon, Lot
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
        ([ID, ID], "uuid", [ID, ID]),
        ([ID, None], "uuid", [ID, None]),
        (["a", "NULL", "", ",{}", "\\", '"', " b "], "text", ["a", "NULL", "", ",{}", "\\", '"', " b "]),
        ([True, False], "bool", [True, False]),
    ],
)
def test_an_array_is_read_as_it_was_given(values, kind, read):
    assert prepared.run(connection, f"SELECT %s::{kind}[]", (prepared.array_of(values),)) == [(read,)]


def test_keys_go_through_their_field_unless_they_are_plain_numbers():
    lots, coupons = Lot.states._meta.table, Coupon.states._meta.table
    assert prepared.prepared_keys(lots, [1, 2], connection) == "{1,2}"
    assert prepared.prepared_keys(lots, ["1", 2], connection) == "{1,2}"
    assert prepared.prepared_keys(lots, [Size.SMALL], connection) == "{1}"
    assert prepared.prepared_keys(coupons, [1, "b"], connection) == '{"1","b"}'
