"""Events for rows that are known by a live key: of all that had it, the one that has it now gets them."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, models
from django.test.utils import CaptureQueriesContext

from statemachine_fields import Delivery, Event, EventRefused, LiveKey, RowMissing, State, StateMachine
from tests.declared import lab_model
from tests.worker.rows import not_mariadb

pytestmark = [pytest.mark.django_db(transaction=True), not_mariadb]

WOKEN, MISSING = Delivery.WOKEN, Delivery.MISSING


def commission_machine(*fields: str) -> StateMachine:
    """Return OPEN, which waits, → DONE, which keeps the key, or FAILED."""
    return StateMachine(
        states=[State("OPEN", until=Event(paid="DONE")), State("DONE"), State("FAILED")],
        initial="OPEN",
        transitions={"OPEN": ["DONE", "FAILED"]},
        unique_while_live=LiveKey(*fields, also=["DONE"]),
    )


@pytest.fixture
def commission(isolated):
    """A model whose rows are known by their number."""
    model = lab_model(
        name="Commission", number=models.CharField(max_length=20, null=True), states=commission_machine("number")
    )
    yield from tables(model)


def tables(model: Any, *others: Any) -> Any:
    machine = model.states
    made = [*others, model, machine.transition_model, machine.event_model]
    with connection.schema_editor() as editor:
        for each in made:
            editor.create_model(each)
    yield model
    with connection.schema_editor() as editor:
        for each in reversed(made):
            editor.delete_model(each)


def rows_of(model: Any, *states: str, **key: Any) -> list[Any]:
    made = [model(status=state, **key) for state in states]
    model.objects.bulk_create(made)
    return made


def names(row: Any) -> list[str]:
    return [event.name for event in row.states.events]


def deliver(model: Any, **where: Any) -> Delivery:
    delivery: Delivery = model.states.deliver("paid", where=where)
    return delivery


def bulk_deliver(model: Any, *numbers: Any, by: str = "number") -> list[Delivery]:
    delivered: list[Delivery] = model.states.bulk_deliver([{"key": each, "name": "paid"} for each in numbers], by=by)
    return delivered


class TestTheRowThatHasTheKey:
    def test_is_the_live_one(self, commission):
        *ended, row = rows_of(commission, "FAILED", "FAILED", "OPEN", number="A-17")
        assert deliver(commission, number="A-17") is WOKEN
        assert bulk_deliver(commission, "A-17", "A-18") == [WOKEN, MISSING]
        assert names(row) == ["paid", "paid"]
        assert [names(each) for each in ended] == [[], []]

    def test_is_one_that_has_ended_and_keeps_it(self, commission):
        _ended, row = rows_of(commission, "FAILED", "DONE", number="A-17")
        with pytest.raises(EventRefused, match=f"pk={row.pk}"):
            deliver(commission, number="A-17")
        assert bulk_deliver(commission, "A-17") == [Delivery.REFUSED]

    def test_is_no_other_than_the_one_that_there_is(self, commission):
        (row,) = rows_of(commission, "FAILED", number="A-17")
        with pytest.raises(EventRefused, match=f"pk={row.pk}"):
            deliver(commission, number="A-17")
        assert bulk_deliver(commission, "A-17") == [Delivery.REFUSED]
        with pytest.raises(RowMissing):
            deliver(commission, number="A-18")

    def test_may_not_be_there(self, commission):
        rows_of(commission, "FAILED", "FAILED", number="A-17")
        (row,) = rows_of(commission, "OPEN", number="A-18")
        with pytest.raises(commission.MultipleObjectsReturned, match="number='A-17'"):
            deliver(commission, number="A-17")
        with pytest.raises(commission.MultipleObjectsReturned, match="number='A-17'"):
            bulk_deliver(commission, "A-18", "A-17")
        assert names(row) == []

    def test_is_not_looked_for_by_anything_but_the_key(self, commission):
        ended, row = rows_of(commission, "FAILED", "OPEN", number="A-17")
        for where in ({"number__startswith": "A"}, {"number": "A-17", "pk__gt": 0}):
            with pytest.raises(commission.MultipleObjectsReturned):
                deliver(commission, **where)
        rows_of(commission, "FAILED", number="A-18")
        with pytest.raises(commission.MultipleObjectsReturned):
            bulk_deliver(commission, "FAILED", by="status")
        assert (names(ended), names(row)) == ([], [])

    def test_is_none_of_those_without_a_value(self, commission):
        rows_of(commission, "FAILED", "OPEN", number=None)
        with pytest.raises(commission.MultipleObjectsReturned):
            deliver(commission, number=None)
        assert bulk_deliver(commission, None) == [MISSING]


class TestStatements:
    """Only who meets several rows asks which of them has the key."""

    def count(self, act: Any) -> int:
        with CaptureQueriesContext(connection) as queries:
            act()
        return len(queries)

    def test_of_one_delivery(self, commission):
        rows_of(commission, "OPEN", number="A-1")
        plain = self.count(lambda: deliver(commission, number="A-1"))
        rows_of(commission, "FAILED", "FAILED", number="A-1")
        assert self.count(lambda: deliver(commission, number="A-1")) == plain + 1

    def test_of_many(self, commission):
        numbers = [f"A-{number}" for number in range(5)]
        for number in numbers:
            rows_of(commission, "OPEN", number=number)
        plain = self.count(lambda: bulk_deliver(commission, *numbers))
        for number in numbers[1:]:
            rows_of(commission, "FAILED", "FAILED", number=number)
        assert self.count(lambda: bulk_deliver(commission, *numbers)) == plain + 1


def test_a_key_of_several_fields_is_named_whole(isolated):
    model = lab_model(
        name="Commission",
        owner=models.ForeignKey("lab.Owner", models.CASCADE, related_name="+"),
        day=models.IntegerField(),
        states=commission_machine("owner", "day"),
    )
    owners = lab_model(name="Owner")
    for made in tables(model, owners):
        owner = owners.objects.create()
        _ended, row = rows_of(made, "FAILED", "OPEN", owner=owner, day=3)
        assert deliver(made, owner=owner, day=3) is WOKEN
        assert made.states.deliver("paid", where={"owner_id": owner.pk, "day": 3}) is WOKEN
        assert names(row) == ["paid", "paid"]
        with pytest.raises(made.MultipleObjectsReturned):
            deliver(made, owner=owner)
        with pytest.raises(made.MultipleObjectsReturned):
            bulk_deliver(made, owner.pk, by="owner")


def test_a_multi_table_child_is_asked_for_its_own_rows(commission):
    child = lab_model(commission, name="LongCommission", pages=models.IntegerField(default=1))
    with connection.schema_editor() as editor:
        editor.create_model(child)
    try:
        child.objects.create(number="A-17").states.transition_to("FAILED")
        row = child.objects.create(number="A-17")
        assert deliver(child, number="A-17") is WOKEN
        assert names(row) == ["paid"]
        row.states.force_transition_to("FAILED", reason="another has it then")
        commission.objects.create(number="A-17")
        with pytest.raises(child.MultipleObjectsReturned):
            deliver(child, number="A-17")
        child.objects.all().delete()
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(child)
