"""Waiting for a row to reach a state, with real connections and real commits."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest.mock import patch

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import OperationalError, ProgrammingError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.template import Context, Template
from django.test.utils import CaptureQueriesContext

from lab.models import Barrel, Car, Invoice, Kept, Locker, Logged, Parcel, RacingCar, Stamped, Ticket, Vehicle
from statemachine_fields import RowMissing, StateMachineError, UnknownState, WaitTimeout
from statemachine_fields.db.own import Limits
from statemachine_fields.machine import arrivals, transitioner, waiting, watcher
from statemachine_fields.machine import transition as straight
from statemachine_fields.machine.watcher import watchers
from tests.patience import PATIENCE
from tests.sessions import sessions

POSTGRESQL = connection.vendor == "postgresql"
only_postgresql = pytest.mark.skipif(not POSTGRESQL, reason="written in PostgreSQL's terms")
committed = pytest.mark.django_db(transaction=True)

#: Longer than any test takes: what is answered nevertheless was not found by looking now and then.
NEVER = 600.0
#: Who waits for longer than this has not been answered.
ENOUGH = PATIENCE


@pytest.fixture(autouse=True)
def _no_watcher_is_left():
    yield
    end_watchers()


def end_watchers():
    for each in list(watchers.values()):
        with watcher._lock:
            each.due = 0.0
        each.wake.set()
        each.thread.join(ENOUGH)
        assert not each.thread.is_alive()


@pytest.fixture
def registered(monkeypatch):
    """A semaphore that is released whenever somebody begins to wait for the watcher's answer."""
    released, add = threading.Semaphore(0), watcher.Watcher.add

    def adding(*args):
        add(*args)
        released.release()

    monkeypatch.setattr(watcher.Watcher, "add", adding)
    return released


@pytest.fixture
def wait(registered):
    """A function that waits in a thread, and returns when the watcher looks after it; what came of it is in the future."""
    with ThreadPoolExecutor(8) as threads:

        def wait(row, *states, timeout=ENOUGH, machine="states"):
            def program():
                try:
                    return getattr(row, machine).wait_for(*states, timeout=timeout)
                finally:
                    connections.close_all()

            future = threads.submit(program)
            assert registered.acquire(timeout=ENOUGH), future
            return future

        yield wait


@pytest.fixture
def slow(monkeypatch):
    """Let the watcher look once, and then only when it is told."""
    monkeypatch.setattr(watcher, "TICK", NEVER)
    monkeypatch.setattr(watcher, "LONGEST_TICK", NEVER)


@pytest.fixture
def looks(monkeypatch):
    """A list of how many rows were looked at, each time that the watcher has looked."""
    counts, look = [], watcher.look

    def looking(bound, waiters, using):
        look(bound, waiters, using)
        counts.append(len(waiters))

    monkeypatch.setattr(watcher, "look", looking)
    return counts


def until(condition):
    ends = time.monotonic() + ENOUGH
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.005)


async def auntil(condition):
    """The same on an event loop, whose one thread for queries others need meanwhile."""
    ends = time.monotonic() + ENOUGH
    while not condition():
        assert time.monotonic() < ends
        await asyncio.sleep(0.005)


def move(row, *states, using="default"):
    """Move a row as somebody else would, and tell nobody: not even the watcher of this process."""
    with patch.object(straight, "watchers", {}), patch.object(transitioner, "watchers", {}):
        fresh = type(row)._base_manager.using(using).get(pk=row.pk)
        for state in states:
            fresh.states.transition_to(state)
    return fresh


@committed
class TestTheAnswer:
    def test_is_the_record_of_the_move_that_led_there(self, row, wait):
        answer = wait(row, "DONE", "FAILED")
        move(row, "DONE")
        record = answer.result(ENOUGH)
        assert (record.from_status, record.to_status, record.sequence) == ("NEW", "DONE", 1)
        assert record == row.states.history.get()
        assert vars(record).keys() == vars(row.states.history.get()).keys()
        assert record._state.adding is False

    def test_is_where_the_row_is_though_its_record_is_gone(self, row):
        move(row, "FAILED")
        Stamped.states.transition_model.objects.all().delete()
        record = row.states.wait_for("FAILED", timeout=ENOUGH)
        assert (record.to_status, record._state.adding) == ("FAILED", True)

    def test_is_there_at_once_if_the_row_has_moved_since_it_was_loaded(self, row):
        move(row, "DONE")
        assert row.states.wait_for("DONE", timeout=ENOUGH).sequence == 1
        assert watchers == {}

    @pytest.mark.parametrize("is_early", [True, False], ids=["before", "while waiting"])
    def test_may_be_of_a_state_that_the_row_has_only_passed_through(self, row, wait, is_early):
        if is_early:
            move(row, "DONE", "NEW")
            assert row.states.wait_for("DONE", timeout=ENOUGH).sequence == 1
        else:
            answer = wait(row, "DONE")
            move(row, "DONE", "NEW", "FAILED")
            assert answer.result(ENOUGH).sequence == 1

    def test_is_the_first_of_several(self, row):
        move(row, "DONE", "NEW", "DONE", "NEW")
        assert row.states.wait_for("DONE", timeout=ENOUGH).sequence == 1
        assert row.states.wait_for("NEW", "DONE", timeout=ENOUGH).sequence == 1
        assert row.states.wait_for("NEW", timeout=ENOUGH).sequence == 2

    def test_is_none_of_those_that_the_instance_knows_of(self, row, wait):
        fresh = move(row, "DONE", "NEW")
        with pytest.raises(WaitTimeout):
            fresh.states.wait_for("DONE", timeout=0)
        answer = wait(fresh, "DONE")
        move(row, "DONE")
        assert answer.result(ENOUGH).sequence == 3

    def test_is_the_newest_record_if_the_row_is_there_already(self, row):
        fresh = move(row, "DONE", "NEW", "DONE")
        assert fresh.states.wait_for("DONE", "FAILED", timeout=ENOUGH).sequence == 3

    def test_is_the_first_record_of_a_row_that_was_recorded_when_it_was_made(self):
        record = Logged.objects.create().states.wait_for("NEW", timeout=ENOUGH)
        assert (record.from_status, record.sequence, record._state.adding) == ("", 1, False)

    def test_is_made_up_for_a_row_that_was_created_there(self, row):
        record = row.states.wait_for("NEW", timeout=ENOUGH)
        row.refresh_from_db()
        assert (record.from_status, record.to_status, record.sequence) == ("", "NEW", 0)
        assert (record.transitioned_at, record.metadata) == (row.status_changed_at, {})
        assert record._state.adding is True
        assert record.instance is row
        assert row.states.history.count() == 0

    def test_leaves_the_instance_as_it_is_which_the_record_leads_back_to(self, row):
        move(row, "DONE")
        before = vars(row).copy()
        record = row.states.wait_for("DONE", timeout=ENOUGH)
        assert vars(row) == before
        assert record.instance is row

    def test_comes_from_the_database_that_is_written_to(self, row, settings):
        """A router that reads elsewhere, as from a replica that is behind."""
        settings.DATABASE_ROUTERS = [ReadsElsewhere()]
        move(row, "DONE")
        assert row.states.wait_for("DONE", timeout=ENOUGH).sequence == 1

    def test_counts_from_where_the_row_is_if_what_the_instance_knows_of_was_rolled_back(self, row, wait):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            row.states.transition_to("DONE")
            raise ZeroDivisionError
        assert row.status_sequence == 1
        answer = wait(row, "DONE")
        move(row, "DONE")
        assert answer.result(ENOUGH).sequence == 1

    def test_counts_from_where_the_row_is_if_the_instance_does_not_say(self, row, wait):
        move(row, "DONE", "NEW")
        answer = wait(Stamped.objects.only("name").get(), "DONE")
        move(row, "DONE")
        assert answer.result(ENOUGH).sequence == 3

    def test_is_another_object_for_each_who_waits(self, row, wait):
        answers = [wait(each, "DONE") for each in (row, Stamped.objects.get())]
        move(row, "DONE")
        first, second = [answer.result(ENOUGH) for answer in answers]
        assert first == second
        assert first.instance is not second.instance
        assert first.metadata is not second.metadata

    def test_is_never_a_record_of_another_row_that_had_the_same_key(self, wait):
        Kept.objects.create(pk=5)
        former = Kept.objects.get()
        former.states.transition_to("DONE")
        Kept.objects.all().delete()
        Kept.objects.bulk_create([Kept(pk=5)])
        row = Kept.objects.get()
        with pytest.raises(WaitTimeout):
            row.states.wait_for("DONE", timeout=0)
        answer = wait(row, "DONE")
        move(row, "DONE")
        assert answer.result(ENOUGH).sequence == 3

    def test_comes_however_many_records_there_are(self, row, monkeypatch):
        monkeypatch.setattr(arrivals, "MOST_RECORDS", 1)
        other = Stamped.objects.create()
        move(row, "DONE", "NEW", "DONE", "NEW")
        move(other, "DONE", "NEW", "FAILED")
        bound = Stamped.states._meta
        waiters = [
            arrivals.Waiter(bound, pk, "", [state], seen, "default")
            for pk, state, seen in [
                (row.pk, "DONE", 0),
                (row.pk, "DONE", 1),
                (other.pk, "FAILED", 0),
                (other.pk, "DONE", 1),
            ]
        ]
        arrivals.look(bound, waiters, "default")
        assert [each.future.result(0).values["sequence"] for each in waiters[:3]] == [1, 3, 3]
        assert "has ended in 'FAILED'" in str(waiters[3].future.exception(0))


class ReadsElsewhere:
    def db_for_read(self, model, **hints):
        return "other"

    def db_for_write(self, model, **hints):
        return "default"


@committed
class TestRowsOfAllKinds:
    @pytest.mark.parametrize(
        ("model", "keys", "states"),
        [
            (Parcel, {}, ["SCANNED"]),
            (Barrel, {}, ["DOING"]),
            (Locker, {"code": 5}, ["DONE"]),
            (Car, {}, ["MOVING"]),
            (RacingCar, {}, ["MOVING"]),
        ],
        ids=["uuid", "timed", "a key that is written otherwise", "multi-table child", "proxy"],
    )
    def test_can_be_waited_for(self, wait, model, keys, states):
        row = model.objects.create(**keys)
        answer = wait(row, *states)
        move(row, *states)
        assert answer.result(ENOUGH).sequence == 1
        assert answer.result().instance is row
        assert row.states.wait_for(*states, timeout=ENOUGH).to_status == states[-1]

    def test_may_be_moved_as_rows_of_their_parent(self, wait):
        car = Car.objects.create()
        answer = wait(car, "MOVING")
        move(Vehicle.objects.get(), "MOVING")
        assert answer.result(ENOUGH).instance is car

    def test_may_have_several_machines(self, wait, slow):
        invoice = Invoice.objects.create()
        answer = wait(invoice, "PAID", machine="payment")
        invoice.states.transition_to("SENT")
        assert not answer.done()
        invoice.payment.transition_to("PAID")
        assert answer.result(ENOUGH).to_status == "PAID"

    def test_may_have_a_machine_of_the_childs_own(self, wait, slow):
        car = Car.objects.create()
        answer = wait(car, "EMPTY", machine="fuel")
        car.fuel.transition_to("EMPTY")
        assert answer.result(ENOUGH).to_status == "EMPTY"

    @pytest.mark.django_db(transaction=True, databases=["default", "other"])
    def test_may_be_in_another_database(self, wait):
        here, there = (Stamped.objects.using(alias).create(pk=4711) for alias in ("default", "other"))
        answer = wait(there, "DONE", "FAILED")
        move(here, "FAILED")
        move(there, "DONE", using="other")
        assert answer.result(ENOUGH).to_status == "DONE"
        assert answer.result()._state.db == "other"
        assert [*watchers] == ["other"]


@committed
class TestTheEnd:
    @pytest.mark.parametrize("is_early", [True, False], ids=["before", "while waiting"])
    def test_in_another_state_is_told(self, row, wait, is_early):
        if is_early:
            move(row, "FAILED")
        with pytest.raises(StateMachineError, match="has ended in 'FAILED'.*will never get to 'DONE'") as caught:
            if is_early:
                row.states.wait_for("DONE", timeout=ENOUGH)
            else:
                answer = wait(row, "DONE")
                move(row, "FAILED")
                answer.result(ENOUGH)
        assert type(caught.value) is StateMachineError

    def test_in_another_state_does_not_hide_what_came_before(self, row):
        move(row, "DONE", "NEW", "FAILED")
        assert row.states.wait_for("DONE", timeout=ENOUGH).sequence == 1

    def test_of_the_row_is_told(self, row):
        Stamped.objects.all().delete()
        with pytest.raises(RowMissing, match="no longer exists"):
            row.states.wait_for("DONE", timeout=ENOUGH)

    def test_of_the_row_is_told_while_waiting(self, row, wait):
        answer = wait(row, "DONE")
        Stamped.objects.all().delete()
        with pytest.raises(RowMissing) as caught:
            answer.result(ENOUGH)
        assert caught.value.saved is True

    def test_of_the_time_is_told(self, row):
        with pytest.raises(WaitTimeout) as caught:
            row.states.wait_for("DONE", "FAILED", timeout=timedelta(milliseconds=60))
        error = caught.value
        assert isinstance(error, TimeoutError)
        assert isinstance(error, StateMachineError)
        assert (error.states, error.status, error.timeout) == (["DONE", "FAILED"], "NEW", 0.06)
        assert str(error).startswith(
            f"lab.Stamped pk={row.pk} did not get to 'DONE' or 'FAILED' within 0.06 seconds: it is in 'NEW'. "
        )
        assert (error.errno, error.filename) == (None, None)
        twin = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (str(twin), vars(twin), twin.args) == (str(error), vars(error), error.args)

    def test_of_the_time_is_not_told_of_a_row_that_is_there_by_then(self, wait, slow, monkeypatch):
        """Where many wait, the watcher looks less often than some have time for."""
        for module in (straight, transitioner):  # as of a move by another process
            monkeypatch.setattr(module, "tell_watchers", lambda *place: None)
        row = Vehicle.objects.create()
        answer = wait(row, "MOVING", timeout=1.0)
        move(row, "MOVING")
        assert answer.result(ENOUGH).to_status == "MOVING"

    def test_of_the_time_tells_where_the_row_has_got_to(self, wait, looks):
        row = Vehicle.objects.create()
        answer = wait(row, "SCRAPPED", timeout=0.5)
        move(row, "MOVING")
        with pytest.raises(WaitTimeout, match="did not get to 'SCRAPPED' within 0.5 seconds: it is in 'MOVING'"):
            answer.result(ENOUGH)


@pytest.mark.django_db
class TestWhatIsRefused:
    def test_an_instance_that_was_never_saved(self):
        with pytest.raises(RowMissing) as caught:
            Stamped(pk=1).states.wait_for("DONE")
        assert caught.value.saved is False

    @pytest.mark.parametrize(
        ("states", "error"),
        [((), ValueError), ((["DONE", "NEW"],), TypeError), (("DONE", "DOEN"), UnknownState)],
        ids=["none", "a list", "undeclared"],
    )
    def test_states_that_are_none(self, row, states, error):
        with pytest.raises(error):
            row.states.wait_for(*states)

    def test_but_not_members_of_an_enum(self):
        assert Ticket.objects.create().states.wait_for(Ticket.Status.OPEN).to_status == "open"

    @pytest.mark.parametrize("timeout", [-1, "10", True, float("nan"), float("inf"), timedelta(seconds=-1)])
    def test_times_that_are_none(self, row, timeout):
        with pytest.raises(ValueError, match="timeout must"):
            row.states.wait_for("DONE", timeout=timeout)

    def test_calls_of_templates(self, row):
        for verb in ("wait_for", "await_for"):
            assert Template("{{ row.states." + verb + " }}").render(Context({"row": row})) == ""


class TestTransactions:
    @committed
    def test_of_the_callers_own_are_refused(self, row):
        with transaction.atomic(), pytest.raises(TransactionManagementError, match="inside a transaction.*atomic"):
            row.states.wait_for("NEW")
        assert watchers == {}

    @committed
    def test_that_are_committed_by_hand_are_refused(self, row):
        transaction.set_autocommit(False)
        try:
            with pytest.raises(TransactionManagementError):
                row.states.wait_for("NEW")
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)

    @pytest.mark.django_db(transaction=True, databases=["default", "other"])
    def test_on_another_database_are_no_matter(self, row):
        with transaction.atomic(using="other"):
            assert row.states.wait_for("NEW")

    @pytest.mark.django_db
    def test_of_the_callers_own_are_refused_in_tests_too(self, row):
        for savepoint in (True, False):
            with transaction.atomic(savepoint=savepoint), pytest.raises(TransactionManagementError):
                row.states.wait_for("NEW")

    @pytest.mark.django_db
    def test_of_a_test_case_are_allowed(self, row, monkeypatch):
        """What is not committed nobody else sees, so the caller looks, and the watcher does not."""
        monkeypatch.setattr(waiting.time, "sleep", lambda seconds: Stamped.objects.get().states.transition_to("DONE"))
        assert row.states.wait_for("DONE", timeout=ENOUGH).sequence == 1
        assert watchers == {}

    @pytest.mark.django_db
    def test_of_a_test_case_end_in_time(self, row):
        with pytest.raises(WaitTimeout):
            row.states.wait_for("DONE", timeout=0.05)

    @pytest.mark.django_db
    def test_of_a_test_case_are_allowed_in_async_code(self, row):
        async def main():
            answer = asyncio.create_task(row.states.await_for("DONE", timeout=ENOUGH))
            await asyncio.sleep(0)
            await (await Stamped.objects.aget()).states.atransition_to("DONE")
            return await answer

        assert async_to_sync(main)().sequence == 1
        assert watchers == {}

    @committed
    def test_on_a_database_in_memory_do_not_need_the_watcher(self, row, monkeypatch):
        monkeypatch.setattr(connection, "is_in_memory_db", lambda: True, raising=False)
        monkeypatch.setattr(waiting.time, "sleep", lambda seconds: move(row, "DONE"))
        assert row.states.wait_for("DONE", timeout=ENOUGH).sequence == 1
        assert watchers == {}


@committed
class TestMovesOfTheSameProcess:
    """They are answered at once: here the watcher would look too late by itself."""

    @pytest.mark.parametrize(
        "program",
        [
            lambda row: row.states.transition_to("DONE"),
            lambda row: row.states.transition_to("DONE", expected="NEW"),
            lambda row: Stamped.states.bulk_transition(Stamped.objects.all(), "DONE"),
        ],
        ids=["one", "one with options", "many"],
    )
    def test_wake_who_waits(self, row, wait, slow, program):
        answer = wait(Stamped.objects.get(), "DONE")
        program(row)
        assert answer.result(ENOUGH).sequence == 1

    def test_wake_who_waits_when_they_are_committed(self, row, wait, slow):
        answer, fresh = wait(row, "DONE"), Stamped.objects.get()
        each = watchers["default"]
        with transaction.atomic():
            fresh.states.transition_to("DONE")
            assert not each.moved
            assert not answer.done()
        assert answer.result(ENOUGH).sequence == 1

    def test_wake_nobody_when_they_are_rolled_back(self, row, wait, slow):
        answer, fresh = wait(row, "DONE", timeout=0.3), Stamped.objects.get()
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            fresh.states.transition_to("DONE")
            raise ZeroDivisionError
        assert not watchers["default"].moved
        with pytest.raises(WaitTimeout):
            answer.result(ENOUGH)

    def test_that_are_committed_by_hand_are_found_later(self, row, wait):
        answer, fresh = wait(row, "DONE"), Stamped.objects.get()
        transaction.set_autocommit(False)
        try:
            fresh.states.transition_to("DONE")
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
        assert answer.result(ENOUGH).sequence == 1

    def test_of_rows_that_nobody_waits_for_wake_nobody(self, row, wait, slow, looks):
        answer, other = wait(row, "DONE"), Stamped.objects.create()
        other.states.transition_to("DONE")
        assert not watchers["default"].moved
        row.states.transition_to("DONE")
        answer.result(ENOUGH)
        assert sum(looks) == 1

    def test_cost_no_statement(self, row, wait, slow):
        answer = wait(row, "DONE")
        with CaptureQueriesContext(connection) as watched:
            Stamped.objects.get().states.transition_to("DONE")
        answer.result(ENOUGH)
        end_watchers()
        with CaptureQueriesContext(connection) as alone:
            Stamped.objects.get().states.transition_to("NEW")
        assert len(watched) == len(alone)


@committed
class TestTheWatcher:
    def test_is_one_for_all_who_wait_and_ends_when_nobody_does(self, row, wait, monkeypatch):
        monkeypatch.setattr(watcher, "LINGER", 0.05)
        answers = [wait(Stamped.objects.get(), "DONE") for _ in range(3)]
        (each,) = watchers.values()
        assert each.thread.is_alive()
        move(row, "DONE")
        for answer in answers:
            answer.result(ENOUGH)
        each.thread.join(ENOUGH)
        assert not each.thread.is_alive()
        assert watchers == {}
        assert each.connection.connection is None
        answer = wait(Stamped.objects.get(), "NEW")
        assert watchers["default"] is not each
        move(row, "NEW")
        assert answer.result(ENOUGH).sequence == 2

    def test_serves_who_comes_while_it_lingers(self, row, wait):
        for state in ("DONE", "NEW", "DONE"):
            answer = wait(Stamped.objects.get(), state)
            found = watchers["default"]
            move(row, state)
            answer.result(ENOUGH)
        assert watchers == {"default": found}

    def test_forgets_who_does_not_wait_any_more(self, row):
        with pytest.raises(WaitTimeout):
            row.states.wait_for("DONE", timeout=0.05)
        assert watchers["default"].waiters == {}

    def test_reads_no_records_of_rows_that_stay(self, row, wait, monkeypatch):
        statements = []
        spy_on_statements(monkeypatch, statements)
        wait(row, "DONE")
        until(lambda: len(statements) > 2)
        assert not any("transition" in sql for sql in statements)
        move(row, "DONE")

    def test_gives_an_error_to_those_whom_it_concerns(self, row, wait, monkeypatch):
        answer, look = wait(row, "DONE"), watcher.look
        other = Vehicle.objects.create()

        def looking(bound, waiters, using):
            if bound.model is Stamped:
                raise ProgrammingError("no such column")
            look(bound, waiters, using)

        healthy = wait(other, "MOVING")
        monkeypatch.setattr(watcher, "look", looking)
        with pytest.raises(ProgrammingError, match="no such column"):
            answer.result(ENOUGH)
        move(other, "MOVING")
        assert healthy.result(ENOUGH).sequence == 1

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_lets_nobody_wait_when_it_dies(self, row, wait, monkeypatch):
        answer = wait(row, "DONE", timeout=None)
        monkeypatch.setattr(watcher.Watcher, "_choose", None)
        with pytest.raises(TypeError):
            answer.result(ENOUGH)
        assert watchers == {}

    def test_looks_less_often_the_longer_it_takes(self, row, wait, looks, monkeypatch):
        """A clock by which each look takes a second of a core, of which it may take a twentieth."""
        ticks = iter(range(1000))
        monkeypatch.setattr(watcher.time, "thread_time", lambda: next(ticks))
        monkeypatch.setattr(watcher, "LONGEST_TICK", 30.0)
        wait(row, "DONE", timeout=0.2)
        until(lambda: looks)
        until(lambda: watchers["default"].due - time.monotonic() > 1)

    @pytest.mark.parametrize("outage", ["while connecting", "while waiting"])
    def test_goes_on_when_the_database_is_there_again(self, row, wait, monkeypatch, caplog, outage):
        caplog.set_level("INFO", logger="statemachine_fields.machine")
        is_away, tries = threading.Event(), threading.Semaphore(0)
        spy_on_connections(monkeypatch, is_away, tries)
        if outage == "while connecting":
            is_away.set()
        answer = wait(row, "DONE", timeout=None)
        is_away.set()
        for _ in range(3):
            assert tries.acquire(timeout=ENOUGH)
        move(row, "DONE", "NEW")
        assert not answer.done()
        is_away.clear()
        assert answer.result(ENOUGH).sequence == 1
        until(lambda: len(caplog.records) > 1)
        assert [entry.getMessage() for entry in caplog.records] == [
            "wait_for() has no database and tries again (default): gone fishing",
            "wait_for() has its database again (default).",
        ]

    def test_that_has_no_database_keeps_nobody_beyond_their_time(self, row, wait, monkeypatch):
        is_away, tries = threading.Event(), threading.Semaphore(0)
        is_away.set()
        spy_on_connections(monkeypatch, is_away, tries)
        with pytest.raises(WaitTimeout, match="it is in 'NEW'"):
            wait(row, "DONE", timeout=0.3).result(ENOUGH)

    @only_postgresql
    def test_has_a_connection_that_may_be_killed(self, row, wait):
        answer = wait(row, "DONE")
        killed = set()
        for _ in range(2):
            until(lambda known=frozenset(killed): watching() - known)
            killed |= watching()
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS t(pid)", [list(killed)])
        move(row, "DONE", "NEW")
        assert answer.result(ENOUGH).sequence == 1

    @only_postgresql
    def test_waits_for_no_lock_for_long(self, row, wait, monkeypatch):
        monkeypatch.setattr(watcher, "LIMITS", Limits(statement=2.0, lock=0.1))
        answer = wait(row, "DONE")
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("LOCK TABLE lab_stamped")
            until(lambda: watchers["default"].failures)
        move(row, "DONE")
        assert answer.result(ENOUGH).sequence == 1

    @only_postgresql
    def test_is_freed_from_a_server_that_has_fallen_silent(self, row, wait, monkeypatch):
        limits, look = Limits(statement=0.5, lock=0.1), watcher.look
        monkeypatch.setattr(watcher, "LIMITS", limits)
        monkeypatch.setattr(waiting, "LIMITS", limits)
        silent = threading.Event()

        def looking(bound, waiters, using):
            own = connections[using]
            if not silent.is_set():
                own.ensure_connection()
                silent.set()
                with own.answered(), own.wrap_database_errors, own.connection.cursor() as cursor:
                    cursor.execute("SET statement_timeout = 0; SELECT pg_sleep(60)")
            look(bound, waiters, using)

        monkeypatch.setattr(watcher, "look", looking)
        answer = wait(row, "DONE", timeout=None)
        assert silent.wait(ENOUGH)
        move(row, "DONE")
        assert answer.result(ENOUGH).sequence == 1

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
    def test_is_not_inherited_by_a_child_which_has_its_own(self, row, wait, registered):
        answer = wait(row, "DONE")
        connections.close_all()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # there are threads, which is the point
            pid = os.fork()
        if pid == 0:
            signal.alarm(int(ENOUGH))
            os._exit(child(row))
        assert registered.acquire(timeout=0) is False
        until(Vehicle.objects.exists)  # the child waits now
        move(row, "DONE")
        assert os.waitpid(pid, 0)[1] == 0
        assert answer.result(ENOUGH).sequence == 1


def child(row):
    """Wait in a process that was forked; return its exit code."""
    try:
        if watchers:
            return 2
        watched = watcher.watched

        def watching(*args):
            Vehicle.objects.create()
            return watched(*args)

        waiting.watched = watching
        return 0 if row.states.wait_for("DONE", timeout=ENOUGH).sequence == 1 else 3
    except BaseException:  # noqa: BLE001 - nothing of the child may go on in the test
        return 4


def watching():
    """Return the server's processes that serve watchers."""
    return {*sessions("statemachine_fields wait_for")}


def spy_on_statements(monkeypatch, statements):
    own_connection = watcher.own_connection

    def open_one(*args, **kwargs):
        opened = own_connection(*args, **kwargs)

        def keep(execute, sql, params, many, context):
            statements.append(sql)
            return execute(sql, params, many, context)

        opened.execute_wrappers.append(keep)
        return opened

    monkeypatch.setattr(watcher, "own_connection", open_one)


def spy_on_connections(monkeypatch, is_away, tries):
    """Let connections of watchers fail while the database is away."""
    own_connection = watcher.own_connection

    def open_one(*args, **kwargs):
        opened = own_connection(*args, **kwargs)
        cursor = opened.cursor

        def ask(*args):
            if is_away.is_set():
                tries.release()
                raise OperationalError("gone fishing")
            return cursor(*args)

        opened.cursor = ask
        return opened

    monkeypatch.setattr(watcher, "own_connection", open_one)
    monkeypatch.setattr(watcher, "LONGEST_BACKOFF", 0.1)


def run(coroutine):
    """Run on an event loop, and close the connections of the thread that its queries were made in."""

    async def and_close():
        try:
            return await coroutine
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(and_close())


@committed
class TestAsync:
    def test_answers_as_wait_for_does(self):
        async def main():
            row = await Stamped.objects.acreate()
            answer = asyncio.create_task(row.states.await_for("DONE", timeout=ENOUGH))
            await auntil(lambda: watchers)
            await sync_to_async(move)(row, "DONE", "NEW")
            record = await answer
            assert record.instance is row
            with pytest.raises(WaitTimeout):
                await (await Stamped.objects.aget()).states.await_for("DONE", timeout=0.05)
            with pytest.raises(UnknownState):
                await row.states.await_for("DOEN")
            return record.sequence

        assert run(main()) == 1

    def test_a_task_that_is_cancelled_is_forgotten(self):
        async def main():
            row = await Stamped.objects.acreate()
            task = asyncio.create_task(row.states.await_for("DONE"))
            await auntil(lambda: watchers)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return watchers["default"].waiters

        assert run(main()) == {}

    def test_a_thousand_wait_at_the_price_of_a_few_statements(self, monkeypatch, looks):
        """And without a thread each."""
        statements, most = [], 1000
        spy_on_statements(monkeypatch, statements)

        async def main():
            rows = await Stamped.objects.abulk_create(Stamped() for _ in range(most))
            rows = [row async for row in Stamped.objects.all()]
            threads = threading.active_count()
            answers = [asyncio.create_task(row.states.await_for("DONE", timeout=60)) for row in rows]
            await auntil(lambda: looks[-1:] == [most])
            assert threading.active_count() <= threads + 2
            statements.clear()
            looks.clear()
            await auntil(lambda: looks)
            few = len(statements) / len(looks)
            statements.clear()
            looks.clear()
            await Stamped.states.abulk_transition(Stamped.objects.all(), "DONE")
            records = await asyncio.gather(*answers)
            return few, len(statements) / len(looks), {record.instance_id for record in records}

        few, at_the_end, keys = run(main())
        assert few <= 4
        assert at_the_end <= 12
        assert len(keys) == most
