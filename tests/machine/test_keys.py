"""Keys of every kind: what a row is found by, told by and batched by is what Django reads from the column."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, models
from django.test.utils import isolate_apps

from statemachine_fields import StateMachine
from statemachine_fields.machine.bulk import Refusal
from statemachine_fields.machine.verify import Verifier

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass(frozen=True, order=True)
class Reference:
    """A key that is an object in Python and a number in the database."""

    number: int


class ReferenceField(models.Field):
    def get_internal_type(self) -> str:
        return "IntegerField"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Reference | None:
        return None if value is None else Reference(value)

    def to_python(self, value: Any) -> Any:
        if value is None or isinstance(value, Reference):
            return value
        return Reference(int(value.removeprefix("R-")))  # what people type

    def get_prep_value(self, value: Any) -> Any:
        return value.number if isinstance(value, Reference) else value


KINDS: dict[str, tuple[models.Field[Any, Any], list[Any]]] = {
    "object": (ReferenceField(primary_key=True), [Reference(7), Reference(8), Reference(19)]),
    "inet": (models.GenericIPAddressField(primary_key=True), ["10.0.0.1", "10.0.0.12", "10.0.0.13"]),
    "binary": (models.BinaryField(primary_key=True, max_length=9), [b"\x00a", b"\x01\xff", b"\xfe"]),
    "decimal": (
        models.DecimalField(primary_key=True, max_digits=9, decimal_places=2),
        [Decimal("1.50"), Decimal("2.00"), Decimal("10.25")],
    ),
    "date": (models.DateField(primary_key=True), [datetime.date(2026, 1, day) for day in (1, 2, 13)]),
    "time": (
        models.DateTimeField(primary_key=True),
        [datetime.datetime(2026, 1, day, 12, 30, 15, 250_000, tzinfo=datetime.UTC) for day in (1, 2, 13)],
    ),
    "duration": (models.DurationField(primary_key=True), [datetime.timedelta(hours=hours) for hours in (1, 2, 13)]),
    "uuid": (models.UUIDField(primary_key=True), [uuid.UUID(int=number) for number in (1, 2, 13)]),
    "text": (models.CharField(primary_key=True, max_length=9), ["a'b", 'a"b', "{a,b}"]),
    "boolean": (models.BooleanField(primary_key=True), [False, True]),
}


@pytest.fixture(params=list(KINDS))
def keyed(request) -> Iterator[tuple[type[models.Model], list[Any]]]:
    """Give a model with a key of each kind, and keys for it."""
    field, keys = KINDS[request.param]
    with isolate_apps("lab"):
        body = {
            "__module__": __name__,
            "key": field.clone(),
            "states": StateMachine(
                [("NEW", "New"), ("DONE", "Done"), ("SHUT", "Shut")], "NEW", {"NEW": ["DONE"], "DONE": ["NEW"]}
            ),
            "Meta": type("Meta", (), {"app_label": "lab", "db_table": "lab_keyed"}),
        }
        model: Any = type("Keyed", (models.Model,), body)
        models_made = [model, model.states.transition_model]
        with connection.schema_editor() as editor:
            for made in models_made:
                editor.create_model(made)
        try:
            yield model, keys
        finally:
            with connection.schema_editor() as editor:
                for made in reversed(models_made):
                    editor.delete_model(made)


def plain(key: Any) -> Any:
    return bytes(key) if isinstance(key, memoryview) else key


def test_many_rows_are_moved_batch_after_batch(keyed):
    model, keys = keyed
    for key in keys:
        model.objects.create(pk=key)
    for size in (1, 2, 9):
        result = model.states.bulk_transition(model.objects.all(), "DONE", batch_size=size)
        assert (result.moved, result.refusals) == (len(keys), [])
        assert model.states.bulk_transition(model.objects.all(), "NEW", batch_size=size).moved == len(keys)
    assert {plain(row.pk): row.states.history.count() for row in model.objects.all()} == dict.fromkeys(keys, 6)


@pytest.mark.parametrize("size", [1, 9])
def test_those_that_may_not_move_are_named_by_their_keys(keyed, size):
    model, keys = keyed
    for key in keys[:-1]:
        model.objects.create(pk=key, status="SHUT")
    model.objects.create(pk=keys[-1])
    result = model.states.bulk_transition(model.objects.all(), "DONE", batch_size=size)
    assert result.moved == 1
    told = sorted((plain(each.pk), each.status) for each in result.refusals)
    assert told == [(key, "SHUT") for key in sorted(keys[:-1])]
    assert all(isinstance(each, Refusal) for each in result.refusals)


def test_one_row_is_moved_by_either_look(keyed):
    model, keys = keyed
    row = model.objects.create(pk=keys[0])
    stale = model.objects.get()
    row.states.transition_to("DONE")
    stale.states.transition_to("NEW")
    assert [record.sequence for record in row.states.history] == [2, 1]
    assert list(Verifier(model.states._meta).findings()) == []
