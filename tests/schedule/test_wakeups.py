"""Whoever makes a row due tells workers that wait, after the commit, and nobody else."""

from __future__ import annotations

import time
from datetime import timedelta

import psycopg
import pytest
from django.db import DatabaseError, connection, connections, transaction
from django.test import TestCase
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from lab.models import Chore, Loan, Lot, Noted, Payment
from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.schedule import wakeups
from statemachine_fields.schedule.reschedule import Rescheduler
from statemachine_fields.schedule.wakeups import gate_of
from tests.worker.rows import Clock, claim_one, lane_of, only_postgresql, set_clock

pytestmark = [pytest.mark.django_db(transaction=True), only_postgresql]


class Idler:
    """Somebody who waits behind the gates of some models, on a connection of its own."""

    def __init__(self, *models):
        self.connection = connections.create_connection("default")
        self.connection.ensure_connection()
        self.dialect = dialect_for(self.connection)
        self.inbox = self.dialect.listen(self.connection)
        self.gates = {gate_of(lane_of(model).bound, lane_of(model).queue): model for model in models}
        assert self.dialect.take_gates(self.connection, self.gates) == set(self.gates)

    def heard(self):
        """Return of which models it was told that a row is due. What was sent before this is here by now."""
        self.dialect.send(self.connection, "the end")
        messages = []
        while "the end" not in messages:
            messages += self.inbox.take()
        return [self.gates[int(message)] for message in messages if message != "the end"]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Nobody was told before that nobody waits."""
    monkeypatch.setattr(wakeups, "_quiet_until", {})


@pytest.fixture
def idler():
    idler = Idler(Chore, Lot, Noted, Payment, Loan)
    wakeups._quiet_until.clear()  # who made the rows of a fixture was told that nobody waits
    yield idler
    idler.connection.close()


@pytest.fixture
def chore():
    """A row that was there before anybody listened."""
    return Chore.objects.create()


def parked(chore):
    set_clock(chore, next_at=None, error="no luck")
    chore.refresh_from_db()
    return chore


def leased(chore):
    claim_one(lane_of(Chore))
    chore.refresh_from_db()
    return chore


WAYS = {
    "a new row": lambda chore: Chore.objects.create(),
    "get_or_create()": lambda chore: Chore.objects.get_or_create(name="another"),
    "bulk_create()": lambda chore: Chore.objects.bulk_create([Chore(), Chore()]),
    "transition_to()": lambda chore: chore.states.transition_to("DOING"),
    "transition_to() with other fields": lambda chore: chore.states.transition_to("DOING", update={"note": "x"}),
    "transition_to() of a row that is elsewhere": lambda chore: stale(chore).states.transition_to("DOING"),
    "force_transition_to()": lambda chore: chore.states.force_transition_to("NEW", reason="again"),
    "bulk_transition()": lambda chore: Chore.states.bulk_transition(Chore.objects.all(), "DOING"),
    "run_at() now": lambda chore: chore.states.run_at(),
    "run_at() soon": lambda chore: chore.states.run_at(timezone.now() + timedelta(seconds=0.5)),
    "resume()": lambda chore: parked(chore).states.resume(),
    "release()": lambda chore: leased(chore).states.release(),
    "a time that is soon": lambda chore: Chore.objects.create(status_next_at=timezone.now()),
}


def stale(chore):
    other = Chore.objects.get(pk=chore.pk)
    other.states.transition_to("HELD")
    chore.states.transition_to("NEW")
    return other


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_make_a_row_due_tells_who_waits(way, chore, idler):
    WAYS[way](chore)
    assert set(idler.heard()) == {Chore}, way


@pytest.mark.parametrize("way", WAYS)
def test_in_a_transaction_it_is_told_once_and_after_the_commit(way, chore, idler):
    with transaction.atomic():
        WAYS[way](chore)
        assert idler.heard() == []
    assert idler.heard() == [Chore]


@pytest.mark.parametrize("way", ["a new row", "get_or_create()", "bulk_create()", "a time that is soon"])
def test_who_is_told_of_a_new_row_finds_it(way, chore, idler, monkeypatch):
    """Not every `bulk_create()` has a transaction whose end could be waited for."""
    seen, knock = [], wakeups.knock

    def knocking(*args):
        with idler.connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM lab_chore")
            seen.append(cursor.fetchone()[0])
        knock(*args)

    monkeypatch.setattr(wakeups, "knock", knocking)
    WAYS[way](chore)
    assert seen == [3 if way == "bulk_create()" else 2]
    assert connection.execute_wrappers == []


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_told_of_what_is_undone(way, chore, idler):
    with transaction.atomic():
        WAYS[way](chore)
        transaction.set_rollback(True)
    assert idler.heard() == []


def test_rows_that_get_a_time_by_rescheduling_are_told_of(chore, idler):
    set_clock(chore, next_at=None)
    Rescheduler(Chore.states._meta, using="default", dry_run=True).run()
    assert idler.heard() == []
    Rescheduler(Chore.states._meta, using="default").run()
    assert idler.heard() == [Chore]


def test_nothing_is_told_where_nothing_is_due(chore, idler):
    chore.states.transition_to("HELD")
    Chore.states.bulk_transition(Chore.objects.all(), "FAILED")
    Chore.objects.create(status="DONE")  # which is deleted in a year
    Chore.objects.create(status_next_at=timezone.now() + timedelta(days=1))
    Chore.objects.create(name="told").states.run_at(timezone.now() + timedelta(days=1))
    assert idler.heard() == [Chore], "of the last one when it was created"


def test_a_move_with_receivers_or_a_save_of_its_own_tells_too(idler):
    Noted.objects.create()
    assert idler.heard() == [Noted]


def test_what_a_savepoint_undid_does_not_keep_the_rest_from_being_told(idler):
    with transaction.atomic():
        with pytest.raises(DatabaseError), transaction.atomic():
            Chore.objects.create()
            raise DatabaseError
        Chore.objects.create()
    assert idler.heard() == [Chore]


def test_one_transaction_tells_of_each_machine_once(idler):
    with transaction.atomic():
        for _ in range(3):
            Chore.objects.create()
            Lot.objects.create()
        with transaction.atomic():
            Lot.objects.create()
        assert len(connection.run_on_commit) == 1
    assert set(idler.heard()) == {Chore, Lot}


def test_after_a_rollback_the_next_transaction_tells(idler):
    for undone in (True, False):
        with transaction.atomic():
            if not undone:
                transaction.on_commit(lambda: None)  # in the place of the message that was undone
            Chore.objects.create()
            transaction.set_rollback(undone)
    assert idler.heard() == [Chore]


def test_tests_that_count_queries_do_not_see_it(chore, idler):
    with CaptureQueriesContext(connection) as queries:
        chore.states.transition_to("DOING")
    assert len(queries) == 1
    assert idler.heard() == [Chore]


class TestNobodyWaits:
    @pytest.fixture
    def asked(self, monkeypatch):
        """How often it was asked whether somebody waits."""
        dialect = dialect_for(connection)
        calls, real = [], dialect.notify
        monkeypatch.setattr(dialect, "notify", lambda *args: calls.append(args) or real(*args))
        return calls

    def test_nothing_is_sent(self):
        idler = Idler(Lot)
        try:
            Chore.objects.create()
            assert idler.heard() == []
        finally:
            idler.connection.close()

    def test_it_is_not_asked_again_for_a_while(self, asked, monkeypatch):
        for _ in range(5):
            Chore.objects.create()
        assert len(asked) == 1
        Lot.objects.create()
        assert len(asked) == 2, "of another machine it is"
        later = time.monotonic() + wakeups.ASK_AGAIN_AFTER
        monkeypatch.setattr(wakeups.time, "monotonic", lambda: later)
        Chore.objects.create()
        assert len(asked) == 3

    def test_while_somebody_does_it_is_told_of_each(self, asked, idler):
        for _ in range(3):
            Chore.objects.create()
        assert (len(asked), idler.heard()) == (3, [Chore] * 3)

    def test_who_waits_later_is_told_after_the_while(self, asked, monkeypatch):
        Chore.objects.create()
        idler = Idler(Chore)
        try:
            later = time.monotonic() + wakeups.ASK_AGAIN_AFTER
            monkeypatch.setattr(wakeups.time, "monotonic", lambda: later)
            Chore.objects.create()
            assert idler.heard() == [Chore]
        finally:
            idler.connection.close()

    def test_those_who_ask_at_once_do_not_take_each_other_for_somebody_who_waits(self):
        gate = gate_of(Chore.states._meta, "chores")
        other = connections.create_connection("default")
        try:
            with other.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SELECT pg_try_advisory_xact_lock_shared(%s)", [gate])
                assert cursor.fetchone() == (True,)
            connection.ensure_connection()
            assert dialect_for(connection).notify(connection, [gate]) == set()
        finally:
            other.close()


def test_turned_off_nothing_is_asked_or_sent(idler, settings):
    settings.STATEMACHINE_FIELDS = {"WAKE_UPS": False}
    Chore.objects.create()
    assert idler.heard() == []


def test_what_is_committed_stands_if_nobody_can_be_told(chore, monkeypatch, idler):
    def fail(*args):
        raise psycopg.OperationalError("the server closed the connection")

    monkeypatch.setattr(dialect_for(connection), "notify", fail)
    assert chore.states.transition_to("DOING").to_status == "DOING"
    with transaction.atomic():
        Chore.objects.create()
    assert Chore.objects.count() == 2


def test_only_one_can_wait_behind_a_gate_and_says_when_it_leaves():
    first, second = Idler(Chore), Idler(Lot)
    gate = gate_of(Chore.states._meta, "chores")
    try:
        assert second.dialect.take_gates(second.connection, [gate]) == set()
        Chore.objects.create()
        second.gates[gate] = Chore
        assert second.heard() == [Chore], "it hears all the same"
        first.dialect.leave_gates(first.connection, [gate])
        second.dialect.send(second.connection, "the end")
        messages = []
        while "the end" not in messages:
            messages += second.inbox.take()
        assert messages == [f"left {gate}", "the end"]
        assert second.dialect.take_gates(second.connection, [gate]) == {gate}
    finally:
        first.connection.close()
        second.connection.close()


class TestInATestCase(TestCase):
    """Nothing is committed, so nobody is told, and nothing is counted among what waits for the commit."""

    def test_nothing_waits_for_the_commit(self):
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            Chore.objects.create().states.transition_to("DOING")
        assert callbacks == []


class TestAnInsertWithoutATransaction:
    """As that of a `bulk_create()` on Django 6: workers are told after it, and nobody's wrappers are in its way."""

    @pytest.fixture
    def insert(self):
        def insert():
            wakeups.wake_after_insert(Chore.states._meta, connection, "NEW", 0.0)
            with connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO lab_run (chore, state, attempt, token, pid, at) VALUES (1, '', 1, 1, 1, now())"
                )

        return insert

    def test_tells_once(self, insert, idler):
        insert()
        assert (idler.heard(), connection.execute_wrappers) == ([Chore], [])

    def test_that_a_wrapper_refuses_leaves_nothing_behind(self, insert, idler):
        def refuse(execute, sql, params, many, context):
            raise RuntimeError("read-only")

        with pytest.raises(RuntimeError), connection.execute_wrapper(refuse):
            insert()
        assert (idler.heard(), connection.execute_wrappers) == ([], [])

    def test_whose_wrapper_inserts_as_well_tells_once(self, insert, idler):
        nested = []

        def log(execute, sql, params, many, context):
            if not nested:
                nested.append(sql)
                with connection.cursor() as cursor:
                    cursor.execute(
                        "INSERT INTO lab_run (chore, state, attempt, token, pid, at) VALUES (2, '', 1, 1, 1, now())"
                    )
            return execute(sql, params, many, context)

        with connection.execute_wrapper(log):
            insert()
        assert (idler.heard(), connection.execute_wrappers) == ([Chore], [])


def test_who_could_not_be_told_is_told_of_the_next_row(chore, idler, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(dialect_for(connection), "notify", lambda *args: 1 / 0)
        Chore.objects.create()
    Chore.objects.create()
    assert idler.heard() == [Chore]


def test_who_asks_slowly_is_not_quiet_for_longer(monkeypatch):
    """Workers that begin to wait look again a while after that, and count on who was told before to ask by then."""
    connection.ensure_connection()
    clock = Clock(monkeypatch, wakeups)
    dialect, began = dialect_for(connection), clock.now
    monkeypatch.setattr(dialect, "notify", lambda *args: clock.pass_by(10.0) or set())
    wakeups.knock(connection, {1})
    assert wakeups._quiet_until == {("default", 1): began + wakeups.ASK_AGAIN_AFTER}
