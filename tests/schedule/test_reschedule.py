"""When rows should be due after a policy has changed: which get a time, which lose theirs, and which are left alone."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from lab.models import ByWorker, Chore, Crate, Sensor, Stamped, Ticking
from statemachine_fields import StateMachineError
from statemachine_fields.db.expressions import MachineValue
from statemachine_fields.schedule.reschedule import SAMPLE, Changes, Rescheduler, mismatches
from tests.patience import PATIENCE
from tests.sessions import wait_until_blocked
from tests.worker.rows import in_seconds, set_clock

pytestmark = pytest.mark.django_db

DAY = 24 * 60 * 60.0
#: How far off a time may be for what a test takes.
SOON = 20


def chore(status="NEW", age=0.0, **columns):
    """Return a row that entered its state so many seconds ago."""
    row = Chore.objects.create(status=status)
    set_clock(row, changed_at=in_seconds(-age), **columns)
    return row


def due_in(row):
    """Return in how many seconds a row is due, or None."""
    next_at = type(row).objects.values_list("status_next_at", flat=True).get(pk=row.pk)
    return None if next_at is None else (next_at - timezone.now()).total_seconds()


def about(seconds):
    return None if seconds is None else pytest.approx(seconds, abs=SOON)


def reschedule(bound=Chore.states._meta, **options):
    """Return the states that have changes."""
    changes = Rescheduler(bound, using="default", **options).run()
    return {state: counts for state, counts in changes.items() if counts}


@pytest.fixture
def policy(monkeypatch):
    """Return a function that gives a state of `Chore` another policy."""

    def change(state, **options):
        clocks = {**Chore.states._meta.schedules, state: replace(Chore.states._meta.schedules[state], **options)}
        monkeypatch.setattr(Chore.states._meta, "schedules", clocks)

    return change


class TestRowsWithoutATime:
    """As they are after the columns were added to a table that had rows."""

    @pytest.mark.parametrize(
        ("status", "age", "due"),
        [
            ("NEW", 1000, 0),
            ("DOING", 1000, 0),
            ("DOING", 4 * DAY, -DAY),
            ("DONE", 5 * DAY, 360 * DAY),
            ("DONE", 400 * DAY, -35 * DAY),
            ("FAILED", 1000, None),
            ("HELD", 1000, None),
        ],
    )
    def test_get_what_their_state_gives(self, status, age, due):
        row = chore(status, age, next_at=None)
        changes = reschedule()
        assert due_in(row) == about(due)
        assert changes == ({} if due is None else {status: Changes(gained=1)})

    def test_wait_for_the_start_of_their_handler_if_that_is_ahead(self, policy):
        policy("NEW", start_after=3600.0)
        young, old = chore("NEW", 600, next_at=None), chore("NEW", 7200, next_at=None)
        assert reschedule() == {"NEW": Changes(gained=2)}
        assert (due_in(young), due_in(old)) == (about(3000), about(0))

    def test_stay_as_they_are_if_they_are_parked(self):
        row = chore("NEW", 1000, next_at=None, error="no luck", failures=3)
        assert reschedule() == {}
        assert due_in(row) is None
        assert [*Chore.states.parked()] == [row]

    def test_stay_as_they_are_in_a_state_that_is_not_declared(self):
        row = chore("NEW", 1000, next_at=None)
        set_clock(row, status="LOST")
        assert reschedule() == {}

    def test_are_due_for_a_worker_then(self):
        row = chore("NEW", 1000, next_at=None)
        assert not Chore.states.due().exists()
        reschedule()
        assert [*Chore.states.due()] == [row]


class TestRowsWithATime:
    def test_that_is_right_are_left_alone(self):
        for status in ("NEW", "DOING", "DONE", "FAILED", "HELD"):
            Chore.objects.create(status=status)
        chore("NEW", 1000, next_at=in_seconds(30))
        chore("NEW", 1000, next_at=in_seconds(-500))
        chore("DOING", 3 * DAY - 30, next_at=in_seconds(30))
        before = list(Chore.objects.order_by("pk").values())
        assert reschedule() == {}
        assert list(Chore.objects.order_by("pk").values()) == before

    @pytest.mark.parametrize(
        ("state", "age", "next_in", "options", "changes", "due"),
        [
            pytest.param("NEW", 1000, 30, {"handler": None}, Changes(lost=1), None, id="lose it where nothing is due"),
            pytest.param("NEW", 60, 0, {"start_after": DAY}, Changes(changed=1), DAY - 60, id="follow a later start"),
            pytest.param(
                "DOING", 1000, 50, {"retry_after": 10.0}, Changes(changed=1), 10, id="wait only for the next try"
            ),
            pytest.param("DOING", 1000, 50, {"retry_after": 3600.0}, None, 50, id="are not held back by a longer wait"),
            pytest.param(
                "DOING", 600, 50, {"timeout_after": 620.0}, Changes(changed=1), 20, id="wait only for the time-out"
            ),
            pytest.param("DONE", 5 * DAY, 10 * DAY, {}, Changes(changed=1), 360 * DAY, id="follow a later deletion"),
            pytest.param(
                "DONE", 5 * DAY, 360 * DAY, {"delete_after": DAY}, Changes(changed=1), -4 * DAY, id="or an earlier one"
            ),
        ],
    )
    def test_go_by_the_policy_as_it_is_now(self, state, age, next_in, options, changes, due, policy):
        row = chore(state, age, next_at=in_seconds(next_in))
        policy(state, **options)
        assert reschedule() == ({} if changes is None else {state: changes})
        assert due_in(row) == about(due)

    def test_that_have_failed_keep_a_wait_that_has_grown(self):
        row = chore("NEW", 1000, next_at=in_seconds(3600), failures=2)
        endless = chore("NEW", 1000, next_at=in_seconds(9 * DAY), failures=2)
        assert reschedule() == {"NEW": Changes(changed=1)}
        assert (due_in(row), due_in(endless)) == (about(3600), about(DAY))

    def test_in_the_hands_of_a_worker_are_left_to_it(self, policy):
        held = chore(
            "NEW", 1000, next_at=in_seconds(3600), lease_expires_at=in_seconds(60), lease_owner="w", lease_token=1
        )
        lost = chore("NEW", 1000, next_at=in_seconds(3600), lease_expires_at=in_seconds(-60), lease_owner="w")
        assert reschedule() == {"NEW": Changes(changed=1)}
        assert (due_in(held), due_in(lost)) == (about(3600), about(60))
        policy("NEW", handler=None)
        assert reschedule() == {"NEW": Changes(lost=1)}
        assert Chore.objects.get(pk=held.pk).status_lease_token == 1

    def test_that_somebody_gave_their_time_keep_it(self, policy):
        told, made, other = chore("DONE", 5 * DAY), chore("NEW"), chore("NEW")
        told.states.run_at(in_seconds(DAY))
        made.states.run_at(in_seconds(3600))
        policy("NEW", start_after=DAY)
        assert reschedule(dry_run=True) == reschedule() == {"NEW": Changes(changed=1)}
        assert (due_in(told), due_in(made), due_in(other)) == (about(DAY), about(3600), about(DAY))
        policy("NEW", handler=None, start_after=0.0)
        assert reschedule() == {"NEW": Changes(lost=1)}
        assert due_in(made) == about(3600)

    def test_keep_all_else(self, policy):
        row = chore("DOING", 1000, next_at=in_seconds(50), failures=2, crashes=1, error="no luck", lease_token=7)
        policy("DOING", retry_after=10.0)
        before = Chore.objects.values().get(pk=row.pk)
        reschedule()
        after = Chore.objects.values().get(pk=row.pk)
        assert {**after, "status_next_at": None} == {**before, "status_next_at": None}

    def test_are_right_after_one_run(self, policy):
        policy("NEW", start_after=3600.0)
        for age in (0, 1800, 7200):
            for next_at in (None, in_seconds(-100), in_seconds(5000)):
                chore("NEW", age, next_at=next_at)
                chore("DOING", age, next_at=next_at)
                chore("DONE", age, next_at=next_at)
                chore("HELD", age, next_at=next_at)
        assert reschedule()
        assert reschedule() == {}


class TestModels:
    @pytest.mark.parametrize(
        ("model", "state", "number", "due"),
        [(Ticking, "FRESH", 1, 60), (Crate, "NEW", 7, 0), (Sensor, "NEW", 3, 0), (ByWorker, "FIRST", 1, 0)],
        ids=["without handlers", "with another key", "in two tables", "whose state says nothing"],
    )
    def test_of_every_kind(self, model, state, number, due):
        rows = [model.objects.create() for _ in range(number)]
        for row in rows:
            set_clock(row, next_at=None)
        assert reschedule(model.states._meta, batch_size=2) == {state: Changes(gained=number)}
        assert [due_in(row) for row in rows] == [about(due)] * number
        assert model.states.due().count() == (0 if due else number)

    def test_that_are_not_timed_are_refused(self):
        with pytest.raises(StateMachineError, match="is not timed"):
            Rescheduler(Stamped.states._meta, using="default")
        with pytest.raises(StateMachineError, match="is not timed"):
            mismatches(Stamped.states._meta, "default")

    @pytest.mark.django_db(databases=["default", "other"])
    def test_of_another_database(self):
        for alias in ("default", "other"):
            Chore.objects.using(alias).create()
            Chore.objects.using(alias).update(status_next_at=MachineValue(None))
        Rescheduler(Chore.states._meta, using="other").run()
        assert not Chore.states.due().exists()
        assert Chore.states.due().using("other").exists()


class TestBatches:
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 2000])
    def test_cover_every_row_once(self, size):
        for _ in range(7):
            chore("NEW", 1000, next_at=None)
        seen = []
        rescheduler = Rescheduler(
            Chore.states._meta, using="default", batch_size=size, on_batch=lambda work: seen.append(work.rows)
        )
        assert rescheduler.run()["NEW"] == Changes(gained=7)
        assert (rescheduler.rows, seen[-1]) == (7, 7)
        assert rescheduler.rows_of.count() == 7

    def test_dry_run_counts_and_writes_nothing(self):
        row = chore("NEW", 1000, next_at=None)
        assert reschedule(dry_run=True) == {"NEW": Changes(gained=1)}
        assert due_in(row) is None

    def test_of_an_empty_table_are_none(self):
        assert reschedule() == {}

    @pytest.mark.parametrize("rows", [4, 40])
    def test_are_a_constant_number_of_statements(self, rows):
        for number in range(rows):
            chore(["NEW", "DOING", "DONE", "HELD"][number % 4], 1000, next_at=None)
        with CaptureQueriesContext(connection) as queries:
            reschedule()
        lock = 0 if connection.features.has_select_for_update else 1
        assert len([query for query in queries if "SAVEPOINT" not in query["sql"]]) == 3 + lock

    def test_that_are_right_write_nothing(self):
        chore("NEW", 1000, next_at=in_seconds(30))
        with CaptureQueriesContext(connection) as queries:
            reschedule()
        updates = [query["sql"] for query in queries if query["sql"].startswith("UPDATE")]
        assert [each for each in updates if "status_next_at" in each] == []

    @pytest.mark.django_db(transaction=True)
    def test_keep_what_is_done_if_a_later_one_fails(self):
        for _ in range(4):
            chore("NEW", 1000, next_at=None)

        def fail(work):
            if work.rows == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Rescheduler(Chore.states._meta, using="default", batch_size=2, on_batch=fail).run()
        assert Chore.states.due().count() == 4

    @pytest.mark.skipif(not connection.features.has_select_for_update, reason="only a database that locks rows")
    def test_lock_in_the_order_of_keys(self):
        chore("NEW", 1000, next_at=None)
        with CaptureQueriesContext(connection) as queries:
            reschedule()
        [lock] = [query["sql"] for query in queries if "FOR " in query["sql"] and "UPDATE" in query["sql"]]
        assert re.search(r"ORDER BY (1|.lab_chore.\..id.) ASC FOR ", lock)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="the others lock more than a row, or see other times")
def test_a_row_that_moves_meanwhile_is_judged_by_where_it_then_is():
    moving, other = chore("NEW", 1000, next_at=None), chore("NEW", 1000, next_at=None)
    moved, waiting = threading.Event(), threading.Event()

    def move():
        try:
            with transaction.atomic():
                Chore.objects.get(pk=moving.pk).states.transition_to("HELD")
                moved.set()
                assert waiting.wait(PATIENCE)
                wait_until_blocked()
        finally:
            connections.close_all()

    thread = threading.Thread(target=move)
    thread.start()
    assert moved.wait(PATIENCE)
    waiting.set()
    changes = reschedule()
    thread.join(PATIENCE)
    assert changes == {"NEW": Changes(gained=1)}
    assert (due_in(moving), due_in(other)) == (None, about(0))


class TestMismatches:
    def test_none(self):
        for status in ("NEW", "DOING", "DONE", "FAILED", "HELD"):
            Chore.objects.create(status=status)
        chore("NEW", 1000, next_at=None, error="parked")
        chore("NEW", 1000, next_at=None, lease_expires_at=in_seconds(60))
        assert mismatches(Chore.states._meta, "default") == (False, False)

    @pytest.mark.parametrize(
        ("state", "columns", "options", "found"),
        [("NEW", {}, {"handler": None}, (True, False)), ("DONE", {"next_at": None}, {}, (False, True))],
        ids=["rows that wait for nothing", "rows without a time"],
    )
    def test_are_gone_once_rows_are_rescheduled(self, state, columns, options, found, policy):
        chore(state, 1000, **columns)
        policy(state, **options)
        assert mismatches(Chore.states._meta, "default") == found
        reschedule()
        assert mismatches(Chore.states._meta, "default") == (False, False)

    def test_rows_that_somebody_gave_a_time_are_none(self, policy):
        chore("NEW", 1000).states.run_at()
        policy("NEW", handler=None)
        assert mismatches(Chore.states._meta, "default") == (False, False)

    def test_rows_in_states_that_are_not_declared_are_nobodys(self):
        row = chore("NEW", 1000)
        set_clock(row, status="LOST")
        assert mismatches(Chore.states._meta, "default") == (False, False)

    def test_is_a_look_at_each_state_that_runs(self, django_assert_num_queries):
        with django_assert_num_queries(1 + 3):
            mismatches(Chore.states._meta, "default")

    @pytest.mark.skipif(connection.vendor != "postgresql", reason="about the plans of PostgreSQL")
    def test_does_not_read_a_large_table(self):
        Chore.objects.bulk_create([Chore(status="DONE") for _ in range(5 * SAMPLE)])
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE lab_chore")
        with CaptureQueriesContext(connection) as queries:
            assert mismatches(Chore.states._meta, "default") == (False, False)
        for query in queries:
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query['sql'].replace('%', '%%')}", [])
                [[plan]] = cursor.fetchone()
            assert rows_read(plan["Plan"]) <= 2 * SAMPLE, plan


def rows_read(plan):
    """Return how many rows of tables and indexes a plan has gone through."""
    own = 0
    if "Relation Name" in plan or "Index Name" in plan:
        own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return own + sum(rows_read(inner) for inner in plan.get("Plans", []))
