"""Rows in a second database that wait: their events, tries and children are there, and nothing of the first is read or written."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from lab.models import Effort, Expedition, Leg, Petition, Twig
from statemachine_fields import Delivery, EventRefused, RowMissing
from statemachine_fields.db.expressions import MachineValue
from statemachine_fields.testing import assert_history, assert_state, drain
from statemachine_fields.worker import Park, Retry
from tests.admin.browsing import look, page, words_of
from tests.patience import PATIENCE
from tests.worker.rows import not_mariadb

OTHER = "other"
WOKEN, KEPT, DUPLICATE = Delivery.WOKEN, Delivery.KEPT, Delivery.DUPLICATE

pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", OTHER]), not_mariadb]


@pytest.fixture
def first_is_left_alone() -> Iterator[None]:
    with CaptureQueriesContext(connections["default"]) as captured:
        yield
    assert [query["sql"] for query in captured if "lab_" in query["sql"]] == []


alone = pytest.mark.usefixtures("first_is_left_alone")


def petition(status: str = "OPEN", using: str = OTHER, pk: Any = None, **script: Any) -> Any:
    row = Petition.objects.using(using).create(pk=pk, script=script, number="A-17")
    row.states.force_transition_to(status, reason="for the test")
    return row


def plan(to: str, *legs: str, using: str = OTHER, pk: Any = None) -> Any:
    given = {"to": to, "legs": [{"outcome": leg} for leg in legs]}
    return Expedition.objects.using(using).create(pk=pk, plan=given)


def set_columns(row: Any, using: str = OTHER, **columns: Any) -> None:
    """Write columns of the machine as nobody may."""
    names = type(row).states._meta.names
    written = {getattr(names, name): MachineValue(value) for name, value in columns.items()}
    type(row)._base_manager.using(using).filter(pk=row.pk).update(**written)


def is_due(row: Any, using: str = OTHER) -> bool:
    return bool(type(row).states.due().using(using).filter(pk=row.pk).exists())


def statuses(model: Any, using: str = OTHER) -> list[str]:
    return sorted(model.objects.using(using).values_list("status", flat=True))


@alone
class TestEvents:
    def test_are_delivered_to_a_row_where_it_is(self) -> None:
        row = petition()
        assert row.states.deliver("letter", {"n": 1}, dedup_key="evt-7") is WOKEN
        assert row.states.deliver("letter", {"n": 2}, dedup_key="evt-7") is DUPLICATE
        assert row.states.deliver("denied") is KEPT
        (first, _second) = row.states.events
        assert (first._state.db, first.number, first.payload) == (OTHER, 1, {"n": 1})
        assert is_due(row)

    def test_are_handed_to_its_handler_and_taken_by_its_move(self) -> None:
        row = petition(needs=2)
        row.states.deliver("letter")
        drain(Petition, using=OTHER)
        assert_history(row, "DRAFT", "OPEN")
        row.states.deliver("call")
        drain(Petition, using=OTHER)
        assert_history(row, "DRAFT", "OPEN", "HEARD")
        assert row.states.history.first().metadata == {"read": [1, 2]}
        assert [event.taken_by for event in row.states.events] == [2, 2]

    def test_decide_where_there_is_no_handler(self) -> None:
        row = petition("HEARD")
        row.states.deliver("court.granted")
        drain(Petition, using=OTHER)
        assert_state(row, "GRANTED")
        with pytest.raises(EventRefused):
            row.states.deliver("letter")

    def test_are_delivered_by_what_a_row_is_known_by(self) -> None:
        row = petition()
        assert Petition.states.deliver("letter", where={"number": "A-17"}, using=OTHER) is WOKEN
        assert Petition.states.deliver("call", {"n": 2}, where={"pk": row.pk}, using=OTHER) is WOKEN
        assert [event.name for event in row.states.events] == ["letter", "call"]

    def test_are_delivered_to_many(self) -> None:
        rows = [petition() for _ in range(3)]
        entries = [{"key": row.pk, "name": "letter", "dedup_key": "x"} for row in rows]
        assert Petition.states.bulk_deliver([*entries, entries[0]], using=OTHER) == [WOKEN] * 3 + [DUPLICATE]
        Petition.objects.using(OTHER).filter(pk=rows[0].pk).update(number="B-1")
        assert Petition.states.bulk_deliver(
            [{"key": "B-1", "name": "denied"}, {"key": "B-2", "name": "denied"}], by="number", using=OTHER
        ) == [KEPT, Delivery.MISSING]
        drain(Petition, using=OTHER)
        assert statuses(Petition) == ["DENIED", "HEARD", "HEARD"]

    def test_are_gone_with_the_transaction_there(self) -> None:
        row = petition()
        with transaction.atomic(using=OTHER):
            row.states.deliver("letter")
            transaction.set_rollback(True, using=OTHER)
        assert (row.states.events.count(), is_due(row)) == (0, False)

    def test_wake_a_row_that_was_moved_by_hand(self) -> None:
        row = petition("DRAFT")
        assert row.states.deliver("letter") is KEPT
        row.states.transition_to("OPEN")
        assert is_due(row)

    def test_outlive_a_time_out(self) -> None:
        row = petition(needs=2)
        row.states.deliver("letter")
        drain(Petition, timeouts=True, using=OTHER)
        assert_state(row, "DENIED")
        assert [event.taken_by for event in row.states.events] == [None]


class TestSameKeyInBoth:
    def test_an_event_of_one_is_none_of_the_other(self) -> None:
        there = petition()
        here = petition(using="default", pk=there.pk)
        here.states.deliver("letter", dedup_key="x")
        assert there.states.deliver("letter", dedup_key="x") is WOKEN
        drain(Petition, using=OTHER)
        assert_state(here, "OPEN")
        assert_state(there, "HEARD")
        assert [event.taken_by for event in here.states.events] == [None]
        with pytest.raises(RowMissing):
            Petition.states.deliver("letter", where={"pk": petition().pk})

    def test_children_of_one_are_none_of_the_other(self) -> None:
        there = plan("WALKING", "", "LOST")
        here = plan("WALKING", "", using="default", pk=there.pk)
        drain(Expedition, Leg)
        drain(Expedition, Leg, using=OTHER)
        assert_state(here, "WALKING")
        assert_state(there, "FAILED")
        assert statuses(Leg, "default") == ["OPEN"]
        assert statuses(Leg) == ["CALLED_OFF", "LOST"]


@alone
def test_tries_are_kept_where_the_row_is(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Effort.objects.using(OTHER).create()
    answers = [Retry(error="busy"), Park("Call them.")]
    monkeypatch.setattr(Effort, "go_on", lambda self, ctx: answers.pop(0))
    for _ in range(2):
        drain(Effort.states, using=OTHER)
    kept = list(row.states.attempts.order_by("number"))
    assert [(each.number, each.outcome, each.error, each._state.db) for each in kept] == [
        (1, "failed", "busy", OTHER),
        (2, "parked", "Call them.", OTHER),
    ]


@alone
class TestChildren:
    def test_are_made_there_and_their_end_moves_the_parent(self) -> None:
        row = plan("WALKING", "ARRIVED", "ARRIVED")
        drain(Expedition, Leg, using=OTHER)
        assert_history(row, "PLANNED", "WALKING", "HOME")
        assert row.states.history.first().metadata == {"children": {"ARRIVED": 2}}

    @pytest.mark.parametrize(
        "end",
        [
            lambda leg: leg.states.transition_to("ARRIVED"),
            lambda leg: Leg.states.bulk_transition(Leg.objects.using(OTHER).filter(pk=leg.pk), "ARRIVED"),
            lambda leg: leg.delete(),
            lambda leg: Leg.objects.using(OTHER).filter(pk=leg.pk).delete(),
        ],
        ids=["moved", "moved with others", "deleted", "deleted with others"],
    )
    def test_wake_the_parent_however_they_end(self, end: Any) -> None:
        row = plan("WALKING", "")
        drain(Expedition, Leg, using=OTHER)
        assert not is_due(row)
        end(row.legs.get())
        assert is_due(row)
        drain(Expedition, using=OTHER)
        assert_state(row, "HOME")

    def test_are_asked_about_where_they_are(self) -> None:
        row = plan("JUDGED", "ARRIVED", "LOST")
        drain(Expedition, Leg, using=OTHER)
        assert row.states.history.first().metadata == {"total": 2, "failed": 1, "met": False}

    def test_are_cancelled_there_when_the_parent_has_left(self) -> None:
        row = plan("WALKING", "", "")
        drain(Expedition, Leg, using=OTHER)
        row.states.transition_to("LATE")
        drain(Expedition, using=OTHER)
        assert statuses(Leg) == ["CALLED_OFF"] * 2
        facts = {"cancelled_by": f"lab.Expedition pk={row.pk}", "left": "WALKING"}
        assert [leg.states.history.first().metadata for leg in row.legs.all()] == [facts] * 2
        assert not Expedition.objects.using(OTHER).filter(status_cancels__gt=0).exists()

    def test_have_the_record_of_their_beginning_there(self) -> None:
        root = Twig.objects.using(OTHER).create(depth=2)
        drain(Twig, using=OTHER)
        assert_history(root, "BUD", "GROWING", "GROWN")
        assert Twig.states.transition_model.objects.using(OTHER).filter(from_status="").count() == 7


class TestVerify:
    def found(self, label: str, using: str) -> list[tuple[Any, str]]:
        out = StringIO()
        with suppress(CommandError):  # as it ends when there are findings
            call_command("statemachine_verify", label, "--database", using, "--format", "json", stdout=out)
        return [(finding["pk"], finding["code"]) for finding in json.loads(out.getvalue())["findings"]]

    def test_finds_a_row_that_sleeps_beside_an_event(self) -> None:
        row = petition("HEARD")
        row.states.deliver("denied")
        set_columns(row, next_at=None)
        petition("HEARD", using="default").states.deliver("denied")
        assert self.found("lab.Petition", OTHER) == [(row.pk, "event-unseen")]
        assert self.found("lab.Petition", "default") == []

    def test_finds_a_parent_that_waits_in_vain_and_children_that_nobody_cancels(self) -> None:
        long_ago = timezone.now() - datetime.timedelta(hours=1)
        rows = [plan("WALKING", "ARRIVED") for _ in range(2)]
        drain(Expedition, using=OTHER)
        rows[0].legs.update(status=MachineValue("ARRIVED"), status_changed_at=MachineValue(long_ago))
        Expedition.objects.using(OTHER).get(pk=rows[1].pk).states.transition_to("LATE")
        for row in rows:
            set_columns(row, changed_at=long_ago)
            row.states.history.update(transitioned_at=long_ago)
        codes = [(rows[0].pk, "children-decided"), (rows[1].pk, "children-left")]
        assert [each for each in self.found("lab.Expedition", OTHER) if "children" in each[1]] == codes
        assert self.found("lab.Expedition", "default") == []

    def test_finds_a_try_that_does_not_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        row = Effort.objects.using(OTHER).create()
        monkeypatch.setattr(Effort, "go_on", lambda self, ctx: Park("Call them."))
        drain(Effort.states, using=OTHER)
        set_columns(row, attempts=0)
        assert self.found("lab.Effort", OTHER) == [(row.pk, "attempt-number-invalid")]
        assert self.found("lab.Effort", "default") == []


@alone
def test_a_row_is_waited_for_there() -> None:
    row = petition()
    answers: list[Any] = []

    def wait() -> None:
        answers.append(row.states.wait_for("HEARD", timeout=PATIENCE))
        connections.close_all()

    thread = threading.Thread(target=wait)
    thread.start()
    row.states.deliver("letter")
    drain(Petition, using=OTHER)
    thread.join(PATIENCE)
    (record,) = answers
    assert (record._state.db, record.sequence, record.to_status) == (OTHER, 2, "HEARD")


class LabElsewhere:
    """A router."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return OTHER if model._meta.app_label == "lab" else None

    db_for_write = db_for_read


@alone
class TestAdmin:
    """Pages of rows that a router has put there."""

    @pytest.fixture(autouse=True)
    def elsewhere(self, settings: Any) -> None:
        settings.DATABASE_ROUTERS = [LabElsewhere()]

    def test_delivers_an_event_and_shows_it(self, admin_client: Any) -> None:
        row = petition("HEARD")
        assert "Waits for the event court.granted, denied or letter" in words_of(look(admin_client, row))
        fields = {"name": "denied", "payload": '{"by": "court"}', "dedup_key": "evt-7"}
        assert admin_client.post(page(Petition, "deliver", row.pk, "states"), fields).status_code == 302
        (event,) = row.states.events
        assert (event._state.db, event.payload, is_due(row)) == (OTHER, {"by": "court"}, True)
        assert "evt-7" in words_of(look(admin_client, row))

    def test_counts_children(self, admin_client: Any) -> None:
        row = plan("WALKING", "ARRIVED", "")
        drain(Expedition, Leg)
        words = words_of(look(admin_client, row))
        assert "Waits for all of its legs" in words
        assert "2 in all, 1 done, 1 under way" in words
