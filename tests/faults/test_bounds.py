"""Nothing waits longer than a bound far below the lease: what somebody has locked, or what never answers, is left for
later, and everything else goes on meanwhile."""

from __future__ import annotations

import importlib.util
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from lab.models import Chore, Stint
from statemachine_fields.machine.verify import Verifier
from statemachine_fields.worker.models import RunStatistics
from tests.faults.harness import (
    BRIEF,
    DONE,
    EXTENDED,
    MARKED,
    NEVER,
    check_invariants,
    create_chores,
    eventually_in,
    execute,
    is_long,
    locked_table,
    locking,
    runs,
    wait_for_beats,
    wait_for_run,
    wait_until_all,
)
from tests.faults.injections import injected
from tests.faults.proxy import Proxy
from tests.patience import eventually

needs_pool = pytest.mark.skipif(
    importlib.util.find_spec("psycopg_pool") is None, reason="Django's connection pools need psycopg_pool"
)


def create_stints(number, *, seconds=0.0, status="LONG"):
    made = Stint.objects.bulk_create([Stint(seconds=seconds, status=status) for _ in range(number)])
    return [stint.pk for stint in made]


def assert_stints_are_well():
    assert not list(Verifier(Stint.states._meta).findings())
    assert not Stint.states.leased().exists()


# Locks.


def test_a_locked_table_does_not_hold_up_the_rows_of_another(start_worker):
    """A migration has one table: rows of the other are claimed, run and written."""
    worker = start_worker(labels=["lab.Chore", "lab.Stint"], settings={"LEASE_SECONDS": 20})
    create_chores(1, status="DOING", script=lambda _: {"DOING": {"sleep": 0.5}})
    eventually(lambda: Chore.states.leased().exists(), "a row of the one table is held")
    with locked_table("lab_chore"):
        for _ in range(3):  # the first may have been claimed before the worker met the lock
            eventually_in(DONE, Stint, create_stints(20))
    wait_until_all(DONE)
    assert worker.terminate() == 0
    assert "has no database" not in worker.log()
    assert_stints_are_well()
    check_invariants(moves=1, terminal=True, released=True)


def test_a_locked_table_does_not_cost_rows_of_another_their_leases(start_worker):
    """A worker holds rows of two tables, and a migration takes one of them: nobody else gets the other rows."""
    first = start_worker(labels=["lab.Chore", "lab.Stint"], settings=EXTENDED)
    create_chores(1, status="DOING", script=lambda _: {"DOING": "wait"})
    (long,) = create_stints(1, seconds=NEVER)
    wait_for_run(long)
    eventually(lambda: Chore.states.leased().exists(), "it holds a row of both")
    with locked_table("lab_chore"):
        second = start_worker(labels=["lab.Stint"])
        wait_for_beats(Stint, long)
        Stint.objects.update(seconds=0)
        eventually_in(DONE, Stint, [long])
        assert len(runs(long)) == 1
        assert second.terminate() == 0
    Chore.objects.update(script={})
    wait_until_all(DONE)
    assert first.terminate() == 0
    assert "came too late" not in first.log()
    assert_stints_are_well()


@contextmanager
def locked_statistics(what):
    """Have the table of the statistics, or what is counted of a state in this hour and the next."""
    table = RunStatistics._meta.db_table
    if what == "table":
        with locked_table(table):
            yield
        return
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    for period in (hour, hour + timedelta(hours=1)):
        RunStatistics.objects.create(machine=str(Chore.states), state="DOING", period=period, kind="claimed")
    with locking(f"SELECT 1 FROM {table} FOR UPDATE"):
        yield


@pytest.mark.parametrize("what", ["table", *(["rows"] if is_long() else [])])
def test_locked_statistics_do_not_cost_a_row_its_lease(start_worker, what):
    """Somebody has the statistics: leases are extended, rows are done, and the worker can be stopped."""
    with locked_statistics(what):
        worker = start_worker(settings=EXTENDED, constants={"statistics.WRITE_EVERY": 0.5})
        create_chores(5, status="DOING")
        (long,) = create_chores(1, status="DOING", script=lambda _: {"DOING": "wait", **MARKED})
        wait_for_run(long)
        wait_for_beats(Chore, long, 3)
        Chore.objects.update(script=MARKED)
        wait_until_all(DONE)
        assert len(runs(long)) == 1
        assert worker.terminate() == 0
    check_invariants(moves=6, terminal=True, released=True)


def test_a_row_that_cannot_be_deleted_now_does_not_hold_up_the_others(start_worker):
    """Its time is up, and somebody has locked what hangs on it: outcomes of other rows are written meanwhile."""
    (old,) = create_chores(1, status="DOING")
    Chore.objects.get(pk=old).states.transition_to(DONE)
    execute("UPDATE lab_chore SET status_changed_at = now() - interval '2 years', status_next_at = now()")
    record = Chore.states.transition_model.objects.get()
    table = connection.ops.quote_name(record._meta.db_table)
    with locking(f"SELECT 1 FROM {table} WHERE id = %s FOR UPDATE", record.pk):
        worker = start_worker()
        for _ in range(3):  # the first may be written before the worker meets the lock
            others = create_chores(20, status="DOING")
            rows = Chore.objects.filter(pk__in=others)
            eventually(lambda rows=rows: not rows.exclude(status=DONE).exists(), "others are done")
        assert Chore.objects.filter(pk=old).exists()
    eventually(lambda: not Chore.objects.filter(pk=old).exists(), "it is deleted when the lock is gone")
    assert worker.terminate() == 0
    check_invariants(moves=60, terminal=True, released=True)


# Silence.


def test_connections_that_fall_silent_are_given_up(server, start_worker):
    """The way to the database swallows what is said on the connections there are, and new ones work, as after a failover
    or behind a firewall that forgets: a few leases later rows are done again, and the log says what was wrong."""
    with Proxy(server.directory) as proxy:
        worker = start_worker(environment=injected(database=proxy.place), settings=BRIEF)
        create_chores(5)
        wait_until_all(DONE)
        lines = len(worker.lines())
        assert proxy.silence() >= 1
        create_chores(20)
        wait_until_all(DONE)
        late = create_chores(20)
        eventually(lambda: not Chore.objects.filter(pk__in=late).exclude(status=DONE).exists(), "it works on")
        assert len(worker.lines()) > lines, "something is said"
        assert worker.terminate() == 0
    assert not Chore.objects.filter(status_failures__gt=0).exists()
    check_invariants(moves=90, terminal=True, released=True)


# Errors that nobody expects.


def test_a_heartbeat_that_fails_beats_again(start_worker):
    """An error that has nothing to do with the database, once: the lease is extended all the same."""
    worker = start_worker(fail={"extend": 1}, settings=EXTENDED)
    (long,) = create_chores(1, status="DOING", script=lambda _: {"DOING": "wait", **MARKED})
    wait_for_run(long)
    eventually((worker.directory / "extend.fail.1").exists, "the heartbeat has failed")
    wait_for_beats(Chore, long)
    Chore.objects.update(script=MARKED)
    wait_until_all(DONE)
    assert len(runs(long)) == 1
    assert worker.terminate() == 0
    assert "MemoryError" in worker.log(), "it is not passed over in silence"
    check_invariants(moves=1, terminal=True, released=True)


# Pools of connections.


def pooled(pool, **others):
    """Return the environment of a worker whose connections come from Django's pool."""
    return injected(database={"OPTIONS": {"pool": pool}}, **others)


@needs_pool
def test_processes_do_not_share_a_pool_that_was_filled_before_they_were_forked(start_worker):
    """The project asks the database something before the worker starts: each process has connections of its own."""
    create_chores(500, status="DOING", script=lambda place: MARKED if place % 5 == 0 else {})
    worker = start_worker("--processes", "2", environment=pooled({"min_size": 4, "max_size": 20}, asks=True))
    wait_until_all(DONE)
    assert worker.terminate() == 0
    assert "died" not in worker.log()
    assert "Traceback" not in worker.log()
    assert not Chore.objects.filter(status_failures__gt=0).exists()
    check_invariants(moves=500, terminal=True, released=True)


@needs_pool
def test_a_pool_of_the_usual_size_is_large_enough_for_handlers(start_worker):
    """Handlers in four threads use the ORM at once: each has a connection, whatever the worker itself uses."""
    create_chores(200, status="DOING", script=lambda _: {"DOING": {"sleep": 0.02}, **MARKED})
    worker = start_worker("--threads", "4", environment=pooled(True))
    wait_until_all(DONE)
    assert worker.terminate() == 0
    assert "PoolTimeout" not in worker.log()
    assert not Chore.objects.filter(status_failures__gt=0).exists()
    assert all(len(runs(pk)) == 1 for pk in Chore.objects.values_list("pk", flat=True))
    check_invariants(moves=200, terminal=True, released=True)
