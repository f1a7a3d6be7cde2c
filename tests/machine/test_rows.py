"""Every row is a row, whatever the managers of its model leave out: a base manager may filter, as for soft deletion."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import models
from django.db.models import F
from django.utils import timezone

import statemachine_fields
from lab.models import Audited, Chore, Hooked, Invoice, Reasoned, Tanker, Ticket
from statemachine_fields.db.expressions import MachineValue
from statemachine_fields.machine.bulk import BulkResult
from statemachine_fields.machine.verify import Verifier
from statemachine_fields.schedule.reschedule import Rescheduler, mismatches
from statemachine_fields.testing import assert_state, drain

pytestmark = pytest.mark.django_db


class NobodyManager(models.Manager[Any]):
    """Leaves out every row, since those who wrote it meant well."""

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().filter(pk__isnull=True)


@pytest.fixture
def hide(monkeypatch) -> Callable[[type[models.Model]], None]:
    """Return what gives a model, and its audit model, base managers that leave out every row."""

    def hide(model: Any) -> None:
        for each in (model, model.states.transition_model):
            manager = NobodyManager()
            manager.model, manager.name, manager.auto_created = each, "_base_manager", True
            monkeypatch.setitem(vars(each._meta), "base_manager", manager)
        assert not model._base_manager.exists()

    return hide


@pytest.fixture
def ticket(hide) -> Ticket:
    ticket = Ticket.objects.create()
    hide(Ticket)
    return ticket


def status_of(row: models.Model) -> Any:
    return models.QuerySet(type(row)).values_list("status", flat=True).get(pk=row.pk)


class TestMoves:
    def test_one_row(self, ticket):
        ticket.states.transition_to("closed")
        assert status_of(ticket) == "closed"
        assert [each.to_status for each in ticket.states.history] == ["closed"]

    def test_one_row_by_the_second_look(self, ticket):
        stale = Ticket.objects.get()
        ticket.states.transition_to("monday")
        stale.states.transition_to("closed")
        assert status_of(ticket) == "closed"

    def test_with_an_expression_to_update(self, hide):
        row = Invoice.objects.create(number="7")
        hide(Invoice)
        row.states.transition_to("SENT", update={"number": F("status")})
        assert row.number == models.QuerySet(Invoice).values_list("number", flat=True).get() == "SENT"

    def test_many_rows(self, ticket):
        for queryset in (Ticket.objects.all(), Ticket.objects.order_by("pk")[:1], Ticket.objects.distinct()):
            result = Ticket.states.bulk_transition(queryset, "monday")
            assert (result, status_of(ticket)) == (BulkResult(moved=1), "monday")
            Ticket.states.bulk_transition(Ticket.objects.all(), "open")
        assert Ticket.objects.get().states.history.count() == 6

    def test_many_rows_one_by_one(self, hide):
        row = Reasoned.objects.create()
        hide(Reasoned)
        for queryset in (Reasoned.objects.all(), Reasoned.objects.distinct(), Reasoned.objects.order_by("pk")[:1]):
            assert Reasoned.states.bulk_transition(queryset, "DONE").moved == 1
            row.states.transition_to("NEW")

    def test_first_records(self, ticket):
        assert Ticket.states.record_initial(Ticket.objects.all()) == 1
        assert [each.to_status for each in ticket.states.history] == ["open"]

    def test_a_save_that_django_itself_cannot_make_is_no_move(self, hide):
        """Django saves through the base manager too, and says that there was no row."""
        row = Hooked.objects.create()
        hide(Hooked)
        with pytest.raises(Exception, match="did not affect any rows"):
            row.states.transition_to("DONE")
        assert (status_of(row), row.status, row.states.history.count()) == ("NEW", "NEW", 0)


class TestQuestions:
    def test_where_a_row_was(self, ticket):
        ticket.states.transition_to("closed")
        assert ticket.states.status_at(timezone.now()) == "closed"
        assert Ticket.states.as_of(timezone.now()).get().status_as_of == "closed"
        assert_state(ticket, "closed")

    def test_verify_finds_rows_and_records(self, ticket):
        ticket.states.transition_to("closed")
        verifier = Verifier(Ticket.states._meta)
        assert (list(verifier.findings()), verifier.rows, verifier.records) == ([], 1, 1)

    def test_a_record_that_is_unchanged_may_be_saved(self, ticket):
        ticket.states.transition_to("closed").save()

    def test_an_instance_made_by_hand_meets_its_row(self, hide):
        row = Audited.objects.create()
        row.states.transition_to("DONE")
        hide(Audited)
        twin = Audited(pk=row.pk)
        Audited.states._meta.sync_with_row(twin, "default")
        assert twin.status == "DONE"


class TestClocks:
    @pytest.mark.parametrize("model", [Chore, Tanker])
    def test_workers_find_what_they_claimed(self, hide, model):
        row = model.objects.create()
        hide(model)
        drained = drain(model)
        assert (drained.errors, drained.moved > 0) == ([], True)
        assert status_of(row) != row.status

    def test_rows_are_put_on_the_clock_again(self, hide):
        row = Chore.objects.create()
        hide(Chore)
        models.QuerySet(Chore).update(status_next_at=MachineValue(timezone.now() + timedelta(days=1)))
        assert Rescheduler(Chore.states._meta, using="default").run()[row.status].changed == 1
        models.QuerySet(Chore).update(status_next_at=MachineValue(None))
        assert mismatches(Chore.states._meta, "default") == (False, True)


def test_nothing_relies_on_a_base_manager():
    """One asks it for instances, as it may make them of another class, and asks the table for what it left out."""
    package = Path(statemachine_fields.__file__).parent
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if "_base_manager" in path.read_text()}
    assert found == {"worker/claim.py"}
