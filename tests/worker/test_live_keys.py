"""What becomes of a worker's move that would give a row a key which another live row has."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from lab.models import AtomicPetition, Carriage, Effort, Quote, Shipment
from statemachine_fields.testing import assert_state, drain
from statemachine_fields.worker import Spawn

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor == "mysql", reason="it has no unique constraints for some of the rows"),
]


def test_it_is_refused_as_a_failed_try_and_says_which_row_has_the_key():
    holder = Carriage.objects.create(number="A-17", status="SENT")
    others = [Carriage.objects.create(number=f"B-{number}") for number in range(3)]
    row = Carriage.objects.create(number="A-18", wanted="A-17")

    tally = drain(Carriage)

    row.refresh_from_db()
    assert (row.status, row.number, row.status_failures) == ("NEW", "A-18", 2)
    assert "DuplicateLiveRow" in row.status_error
    assert f"cannot be live with number='A-17': pk={holder.pk} has it, which is live in 'SENT'" in row.status_error
    for other in others:
        assert_state(other, "SENT")
    assert tally


def spawning(monkeypatch: pytest.MonkeyPatch, *numbers: str | None, model: Any = Shipment) -> Any:
    """Return a row whose handler makes children with these numbers, having run it."""
    monkeypatch.setattr(
        Carriage,
        "send",
        lambda self: Spawn("SENT", [model(number=number) for number in numbers], update={"wanted": "x"}),
    )
    row = Carriage.objects.create(number="A-18")
    drain(Carriage)
    row.refresh_from_db()
    return row


class TestChildren:
    """Those of a `Spawn` that would have a key which a live row has."""

    @pytest.mark.parametrize("model", [Shipment, Quote], ids=["made together", "saved one by one"])
    def test_fail_the_try_which_says_which_row_has_the_key(self, monkeypatch, model):
        model.objects.create(number="A-17").states.force_transition_to("LOST", reason="another has it now")
        holder = model.objects.create(number="A-17")
        row = spawning(monkeypatch, "B-1", "A-17", "B-2", model=model)

        assert (row.status, row.wanted, row.status_failures) == ("NEW", "", 2)
        assert "The move to 'SENT' with 3 children could not be written. DuplicateLiveRow: lab." in row.status_error
        assert f"cannot be live with number='A-17': pk={holder.pk} has it, which is live in 'NEW'" in row.status_error
        assert model.objects.count() == 2

    def test_may_not_have_the_same_key_either(self, monkeypatch):
        row = spawning(monkeypatch, None, None, "B-1", "B-2", "B-1")
        assert "lab.Shipment pk=None cannot be live with number='B-1': another live row has it" in row.status_error
        assert not Shipment.objects.exists()

    def test_that_meet_another_constraint_say_what_the_database_says(self, monkeypatch):
        Shipment.objects.create(number="B-1", code="x")
        monkeypatch.setattr(Carriage, "send", lambda self: Spawn("SENT", [Shipment(number="A-1", code="x")]))
        row = Carriage.objects.create(number="A-18")
        drain(Carriage)
        row.refresh_from_db()
        assert "DuplicateLiveRow" not in row.status_error
        assert "IntegrityError" in row.status_error

    def test_may_be_of_the_model_of_their_parent(self, monkeypatch):
        row = spawning(monkeypatch, "A-18", model=Carriage)
        assert f"number='A-18': pk={row.pk} has it, which is live in 'NEW'" in row.status_error

    def test_many_are_asked_for_in_few_statements(self, monkeypatch):
        holder = Shipment.objects.create(number="1100")
        monkeypatch.setattr(
            Carriage, "send", lambda self: Spawn("SENT", [Shipment(number=str(n)) for n in range(1200)])
        )
        row = Carriage.objects.create(number="A-18")
        with CaptureQueriesContext(connection) as queries:
            drain(Carriage)
        row.refresh_from_db()
        assert f"pk={holder.pk} has it" in row.status_error
        assert len(queries) < 100

    @pytest.mark.parametrize("numbers", [["A-17"], ["B-1", "A-17"]])
    def test_of_an_atomic_handler_as_of_any_other(self, monkeypatch, numbers):
        holder = Shipment.objects.create(number="A-17")
        monkeypatch.setattr(
            AtomicPetition, "play", lambda self, ctx: Spawn("HEARD", [Shipment(number=each) for each in numbers])
        )
        row = AtomicPetition.objects.create()
        row.states.transition_to("OPEN")
        row.states.deliver("letter")
        drain(AtomicPetition)
        row.refresh_from_db()
        assert row.status_error.startswith("DuplicateLiveRow: lab.Shipment pk=None cannot be live with number='A-17'")
        assert f"pk={holder.pk} has it" in row.status_error
        assert [event.taken_by for event in row.states.events] == [None]


def test_a_try_that_is_kept_says_where_the_error_was(monkeypatch):
    Shipment.objects.create(number="A-17")
    monkeypatch.setattr(Effort, "go_on", lambda self, ctx: Spawn("NEXT", [Shipment(number="A-17")]))
    row = Effort.objects.create()
    drain(Effort)
    first = row.states.attempts.last()
    assert "DuplicateLiveRow" in first.error
    assert "make_children" in first.traceback


def test_it_goes_through_where_the_key_is_free():
    Carriage.objects.create(number="A-17", status="DONE")
    row = Carriage.objects.create(number="A-18", wanted="A-17")

    drain(Carriage)

    assert_state(row, "SENT")
    row.refresh_from_db()
    assert row.number == "A-17"
