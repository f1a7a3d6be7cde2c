"""Progress is made row by row: what stands in the way of one row, table or process is in the way of nothing else."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from django.db import transaction
from django.db.models import Sum

from lab.models import Chore, HeardStunt, Run
from statemachine_fields.worker.models import RunStatistics
from tests.faults.harness import (
    DONE,
    EXTENDED,
    MARKED,
    NEVER,
    check_invariants,
    create_acts,
    create_chores,
    eventually_in,
    execute,
    locking,
    runs,
    tally,
    wait_for_beats,
    wait_for_run,
    wait_until_all,
)
from tests.faults.injections import injected
from tests.patience import eventually

TRIGGER = """
    CREATE FUNCTION hinder() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {what}; RETURN NEW; END $$;
    CREATE TRIGGER hinder BEFORE UPDATE ON {table} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION hinder()"""

#: What a line in the log says when a part of the worker works again.
BACK = "its database again"


def hinder(what, when, table="lab_chore"):
    """Let the database do something at each update of a row."""
    execute(TRIGGER.format(what=what, when=when, table=table))


def options(**settings):
    """Return the environment of a worker whose sessions have settings of the server's."""
    text = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return injected(database={"OPTIONS": {"options": text}})


# What the database refuses, or is too slow for.


@pytest.mark.parametrize(("number", "when"), [(60, "NEW.status <> OLD.status"), (20, "true")])
def test_rows_that_cannot_be_written_together_are_written_all_the_same(start_worker, number, when):
    """A slow trigger, and a limit for statements that a few rows together keep within and many do not."""
    hinder("PERFORM pg_sleep(0.05)", when)
    create_chores(number, status="DOING", script=lambda _: MARKED)
    worker = start_worker(environment=options(statement_timeout=500))
    wait_until_all(DONE)
    assert worker.terminate() == 0
    assert not Chore.objects.filter(status_failures__gt=0).exists()
    check_invariants(moves=number, terminal=True, released=True)


def test_rows_that_are_slow_to_write_are_left_to_others(start_worker):
    """Handlers that do nothing, and moves that are written one by one and take their time: a worker takes no more rows than it
    can soon write, and another has the rest."""
    hinder("PERFORM pg_sleep(0.05)", "NEW.status = 'DONE'", table="lab_heardstunt")
    create_acts(HeardStunt, *[""] * 400)
    workers = [start_worker(labels=["lab.HeardStunt"], settings={"STOP_SECONDS": NEVER})]
    eventually(lambda: tally(HeardStunt).get(DONE, 0) > 2, "it writes")
    workers.append(start_worker(labels=["lab.HeardStunt"], settings={"STOP_SECONDS": NEVER}))
    eventually(lambda: Run.objects.values("pid").distinct().count() == 2, "both have rows")
    assert Run.objects.count() < 200, "whose handlers have run"
    assert [worker.terminate() for worker in workers] == [0, 0]
    assert not HeardStunt.objects.filter(status_lease_expires_at__isnull=False).exists()


def test_a_row_that_waits_for_a_lock_does_not_hold_up_its_neighbours(start_worker):
    """A trigger that wants what somebody else has locked, and a limit for waiting: the others are written, then it."""
    stuck, *others = create_chores(10, status="DOING", script=lambda _: MARKED)
    hinder("PERFORM pg_advisory_xact_lock(1)", f"OLD.id = {stuck} AND NEW.status <> OLD.status")
    with locking("SELECT pg_advisory_xact_lock(1)"):
        worker = start_worker(environment=options(lock_timeout=150))
        eventually_in(DONE, Chore, others)
        assert Chore.objects.get(pk=stuck).status == "DOING"
    wait_until_all(DONE)
    assert worker.terminate() == 0
    assert [len(runs(chore)) for chore in others] == [1] * 9
    check_invariants(moves=10, terminal=True, released=True)


def test_a_row_that_refuses_every_update_is_named_and_its_neighbours_are_done(start_worker):
    """A constraint that was added without a look at old rows: one that violates it cannot even be claimed."""
    execute("ALTER SEQUENCE lab_chore_id_seq RESTART WITH 700001")  # a key that is no other number in the log
    keys = create_chores(20, status="DOING")
    stuck, others = keys[7], [*keys[:7], *keys[8:]]
    execute("UPDATE lab_chore SET note = 'old' WHERE id = %s", stuck)
    execute("ALTER TABLE lab_chore ADD CONSTRAINT no_longer_old CHECK (note <> 'old') NOT VALID")
    worker = start_worker()
    eventually_in(DONE, Chore, others)
    eventually(lambda: any("no_longer_old" in line for line in worker.lines()), "the log says why")
    looks = time.monotonic() + 2  # of the worker, many at a poll every 0.1 s
    late = create_chores(20, status="DOING")
    eventually_in(DONE, Chore, late)
    eventually(lambda: time.monotonic() > looks, "some more looks at the row")
    assert worker.terminate() == 0
    assert str(stuck) in worker.log(), "which row it is"
    assert len([line for line in worker.lines() if "no_longer_old" in line]) <= 5
    assert "has no database" not in worker.log()
    assert Chore.objects.get(pk=stuck).status == "DOING"


def test_a_machine_without_its_table_does_not_hold_up_the_others(start_worker):
    """Two machines, and the table of one is missing: a migration that was not run yet."""
    execute("DROP TABLE lab_noted CASCADE")
    create_chores(200, status="DOING")
    worker = start_worker(labels=["lab.Noted", "lab.Chore"])
    wait_until_all(DONE)
    late = create_chores(20, status="DOING")
    eventually_in(DONE, Chore, late)
    assert worker.terminate() == 0
    assert "lab_noted" in worker.log(), "what is wrong is said"
    assert len(worker.lines()) < 20
    check_invariants(moves=220, terminal=True, released=True)


def test_a_lease_that_cannot_be_extended_does_not_cost_its_neighbours_theirs(start_worker):
    """One row refuses from some moment on what a heartbeat writes. The others keep their leases, and run once."""
    worker = start_worker("--threads", "4", settings=EXTENDED)
    stuck, *others = create_chores(4, status="DOING", script=lambda _: {"DOING": "wait", **MARKED})
    for chore in (stuck, *others):
        wait_for_run(chore)
    hinder(
        "RAISE EXCEPTION 'not this one'",
        f"OLD.id = {stuck} AND NEW.status_lease_token = OLD.status_lease_token"
        " AND NEW.status_lease_expires_at <> OLD.status_lease_expires_at",
    )
    for chore in others:
        wait_for_beats(Chore, chore)
    Chore.objects.filter(pk__in=others).update(script=MARKED)
    eventually_in(DONE, Chore, others)
    assert [len(runs(chore)) for chore in others] == [1, 1, 1]
    Chore.objects.update(script=MARKED)
    execute("DROP TRIGGER hinder ON lab_chore")
    wait_until_all(DONE)
    assert worker.terminate() == 0
    check_invariants(moves=4, terminal=True, released=True)


# What a process leaves behind that is killed.


def kill_a_process_that_holds(number, worker, *, script=MARKED):
    """Let a process of the worker hold rows, and kill it. Their leases would last for long; return their keys."""
    (running,) = create_chores(1, status="DOING", script=lambda _: {"DOING": "sleep", **MARKED})
    run = wait_for_run(running)
    with transaction.atomic():
        keys = create_chores(number, status="DOING", script=lambda _: script)
        execute(
            "UPDATE lab_chore SET status_lease_token = 1, status_lease_owner = holder.owner,"
            " status_lease_expires_at = now() + interval '1 hour'"
            " FROM (SELECT status_lease_owner AS owner FROM lab_chore WHERE id = %s) AS holder WHERE id = ANY(%s)",
            running,
            keys,
        )
        execute("UPDATE lab_chore SET script = '{}' WHERE id = %s", running)
    worker.kill(run.pid)
    return keys


def test_the_rows_of_a_killed_process_come_back_quickly(start_worker):
    """kill -9 of a process that held 200 rows of 0.1 s: they are run side by side, not one by one, and none is blamed."""
    worker = start_worker("--threads", "8", settings={"LEASE_SECONDS": NEVER, "POLL_SECONDS": 1})
    keys = kill_a_process_that_holds(200, worker, script={"DOING": {"sleep": 0.1}, **MARKED})
    wait_until_all(DONE)
    assert worker.terminate() == 0
    assert not Chore.objects.filter(status_failures__gt=0).exists()
    assert [len(runs(chore)) for chore in keys] == [1] * 200
    began = Run.objects.filter(chore__in=keys).order_by("at").values_list("at", flat=True)
    assert sum((after - before).total_seconds() < 0.1 for before, after in pairwise(began)) > 100
    assert RunStatistics.objects.filter(kind="recovered").aggregate(number=Sum("count"))["number"] == 201
    check_invariants(moves=201, terminal=True, released=True)


# What is said of it all.


def test_many_rows_that_come_back_make_few_lines_in_the_log(start_worker):
    worker = start_worker(settings={"LEASE_SECONDS": NEVER, "POLL_SECONDS": 0.02})
    kill_a_process_that_holds(200, worker)
    wait_until_all(DONE)
    assert worker.terminate() == 0
    assert len(worker.lines()) < 20
    assert re.search(r"\b20[01]\b", worker.log()), "how many they were"


def test_many_failures_of_one_cause_make_few_lines_in_the_log(start_worker):
    create_chores(300, script=lambda _: {"NEW": "raise"})
    Chore.objects.update(name="them")
    worker = start_worker()
    eventually(lambda: Chore.objects.filter(status_failures=1).count() == 300, "all have failed")
    assert worker.terminate() == 0
    assert "ValueError: no luck with them" in worker.log()
    assert len(worker.lines()) < 20, "with tracebacks"
    assert re.search(r"\b(299|300)\b", worker.log()), "how many they were"


def test_a_database_is_said_to_be_back_when_it_is(server, start_worker):
    server.stop("fast")
    worker = start_worker()
    eventually(lambda: "database" in worker.log(), "that it is away is said")
    tries = time.monotonic() + 2
    eventually(lambda: time.monotonic() > tries, "some more tries")
    assert BACK not in worker.log()
    server.start()
    worker.wait_for_log(BACK)
    assert worker.terminate() == 0


def test_once_gives_up_on_a_database_that_is_away(server, start_worker):
    """A cron job must not wait for ever, nor say that all is done."""
    create_chores(1)
    server.stop("fast")
    worker = start_worker("--once")
    assert worker.wait() != 0
    assert "database" in worker.log()
    server.start()
    check_invariants(moves=0, released=True)


def test_rows_that_one_worker_has_no_thread_for_are_left_to_an_idle_one(start_worker):
    """Handlers take long: what a busy process had claimed ahead would wait for them, beside one that has nothing to do."""
    busy = start_worker("--threads", "2")
    chores = create_chores(2, status="DOING", script=lambda _: {"DOING": "wait", "marks": True})
    for chore in chores:
        wait_for_run(chore)
    idle = start_worker("--threads", "2")
    more = create_chores(2, status="DOING", script=lambda _: {"DOING": {"sleep": 0}, "marks": True})
    for chore in more:
        wait_for_run(chore)
    assert {each.pid for chore in more for each in runs(chore)} <= set(idle.children())
    assert are_still(chores, "DOING"), "the busy one is still busy"
    Chore.objects.update(script=MARKED)
    wait_until_all(DONE)
    for worker in (busy, idle):
        assert worker.terminate() == 0
    check_invariants(moves=4, terminal=True, released=True)


def are_still(chores, status):
    return Chore.objects.filter(pk__in=chores, status=status).count() == len(chores)
