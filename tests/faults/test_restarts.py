"""A database that goes away: workers wait for it, lose nothing that was committed, and blame no row."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from django.db import connection, connections

from lab.models import Chore
from tests.faults.harness import (
    EXTENDED,
    MARKED,
    backends,
    check_invariants,
    create_chores,
    execute,
    is_long,
    let_leases_run_out,
    runs,
    wait_for_run,
    wait_until_all,
)
from tests.patience import eventually

MODES = ["fast", "immediate"]
#: Where it matters less how the server goes.
ONE_MODE = MODES if is_long() else ["immediate"]

#: Makes a statement wait in the middle of its work for as long as somebody has the lock.
WAIT_FOR_LOCK = """
    CREATE FUNCTION wait_for_lock() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$;
    CREATE TRIGGER wait BEFORE UPDATE ON lab_chore FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION wait_for_lock()"""


def is_held_up():
    return execute("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'")


@contextmanager
def held_up(when):
    """Hold up every statement that changes a row so, from its middle on, while the connection lives."""
    with connection.cursor() as cursor:
        cursor.execute(WAIT_FOR_LOCK.format(when=when))
    holder = connections.create_connection("default")
    with holder.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(1)")
    yield
    holder.close()


def assert_nobody_is_to_blame():
    """Neither a failure nor a crash is counted for what the database did, and no row ended elsewhere."""
    assert not Chore.objects.filter(status_failures__gt=0).exists()
    assert not Chore.objects.filter(status="FAILED").exists()


@pytest.mark.parametrize("mode", MODES)
def test_a_restart_under_load(server, start_worker, chance, mode):
    """#8: PostgreSQL is restarted, twice, under two workers. I1, I2, I3: they come back unaided, and lose nothing."""
    workers = [start_worker(settings=EXTENDED) for _ in range(2)]
    create_chores(400, script=lambda _: {"NEW": {"sleep": chance.uniform(0, 0.02)}, "DOING": {"sleep": 0.01}, **MARKED})
    records = Chore.states.transition_model.objects
    for least in (100, 300):
        eventually(lambda least=least: records.count() >= least, "work is under way")
        before = set(records.values_list("pk", flat=True))
        server.restart(mode)
        assert before <= set(records.values_list("pk", flat=True))
    wait_until_all("DONE")
    assert_nobody_is_to_blame()
    for worker in workers:
        assert worker.terminate() == 0
        assert "has no database and tries again" in worker.log()
        assert " died of " not in worker.log()
    check_invariants(moves=800, terminal=True, released=True)


@pytest.mark.parametrize("mode", ONE_MODE)
def test_a_restart_in_the_middle_of_a_commit(server, start_worker, mode):
    """#9: the statement that moves the rows is at work when the server goes. I1, I2: it is sent again, once."""
    with held_up("NEW.status <> OLD.status"):
        worker = start_worker("--threads", "2", settings=EXTENDED)
        chores = create_chores(20, script=lambda _: MARKED)
        eventually(is_held_up, "a commit is under way")
        server.restart(mode)
    wait_until_all("DONE")
    assert_nobody_is_to_blame()
    assert all(len(runs(chore, "NEW")) <= 2 for chore in chores)
    assert worker.terminate() == 0
    assert "came too late" not in worker.log()
    check_invariants(moves=40, terminal=True, released=True)


@pytest.mark.parametrize("mode", ONE_MODE)
def test_a_restart_in_the_middle_of_a_claim(server, start_worker, mode):
    """#9: the statement that claims rows is at work when the server goes. I1, I2, I3: none is leased to nobody."""
    with held_up("NEW.status_lease_token > OLD.status_lease_token AND NEW.status_lease_expires_at IS NOT NULL"):
        worker = start_worker(settings=EXTENDED)
        create_chores(20, script=lambda _: MARKED)
        eventually(is_held_up, "a claim is under way")
        server.restart(mode)
    wait_until_all("DONE")
    assert_nobody_is_to_blame()
    assert worker.terminate() == 0
    check_invariants(moves=40, terminal=True, released=True)


@pytest.mark.parametrize("mode", ONE_MODE)
def test_a_restart_in_the_middle_of_a_recovery(server, start_worker, mode):
    """#9: a process has died, and the server goes while another takes back its rows. I1, I2, I3: nothing is stranded."""
    worker = start_worker("--threads", "2", settings=EXTENDED)
    chores = create_chores(4, status="DOING", script=lambda _: {"DOING": "sleep", **MARKED})
    run = wait_for_run(chores[0])
    Chore.objects.update(script=MARKED)
    with held_up("NEW.status_crashes > OLD.status_crashes"):
        worker.kill(run.pid)
        eventually(is_held_up, "a recovery is under way")
        server.restart(mode)
    wait_until_all("DONE")
    assert worker.terminate() == 0
    check_invariants(moves=4, terminal=True, released=True)


def test_a_worker_that_starts_while_the_database_is_away_waits_for_it(server, start_worker):
    """#8 at the start: I3, and no process dies of it."""
    create_chores(3)
    server.stop("fast")
    worker = start_worker()
    worker.wait_for_log("The claimer has no database")
    server.start()
    wait_until_all("DONE")
    assert worker.terminate() == 0
    assert " died of " not in worker.log()
    check_invariants(moves=6, terminal=True, released=True)


def test_a_worker_can_be_stopped_while_the_database_is_away(server, start_worker):
    """#8 at the end: SIGTERM is heard, the worker gives up after a while, and the rows are run by the next. I3."""
    worker = start_worker(settings={"STOP_SECONDS": 0.5}, constants={"runner.LAST_WRITES": 0.5})
    (chore,) = create_chores(1, status="DOING", script=lambda _: {"DOING": "sleep", **MARKED})
    wait_for_run(chore)
    Chore.objects.update(script=MARKED)
    server.stop("immediate")
    assert worker.terminate() == 1
    assert "leases could not be given back: 1 of lab.Chore.states" in worker.log()
    server.start()
    let_leases_run_out()
    other = start_worker()
    wait_until_all("DONE")
    other.terminate()
    check_invariants(moves=1, terminal=True, released=True)


@pytest.mark.parametrize("role", ["claimer", "committer", "heartbeat"])
def test_a_connection_that_is_cut(start_worker, role):
    """#10: pg_terminate_backend on one role, three times. I1, I2, I3: it comes back, the others do not notice."""
    roles = {"claimer", "committer", "heartbeat"}
    start_worker(settings=EXTENDED if role == "heartbeat" else None)
    chores = create_chores(2, status="DOING", script=lambda _: {"DOING": "sleep", **MARKED})
    wait_for_run(chores[0])
    wait_for_run(chores[1])
    create_chores(1)
    others = {other: eventually(lambda other=other: backends(other), other) for other in roles - {role}}
    (pid,) = eventually(lambda: backends(role), role)
    for _ in range(3):
        execute("SELECT pg_terminate_backend(%s, 1000)", pid)
        create_chores(100, script=lambda _: {"NEW": {"sleep": 0.005}, **MARKED})  # for which all have to be there
        (pid,) = eventually(lambda: [found for found in backends(role) if found != pid], f"{role} is there again")  # noqa: B023
    eventually(lambda: Chore.objects.filter(status="DONE").count() == 301, "the others are done")
    assert {other: backends(other) for other in others} == others
    assert_nobody_is_to_blame()
    assert Chore.states.leased().count() == 2, "the long ones are still held, by the same claim"
    assert [len(runs(chore)) for chore in chores] == [1, 1]
    check_invariants(moves=602)


def test_the_connection_of_a_handler_that_is_cut(start_worker):
    """#10: the connections that handlers use. I1, I2: the rows are run again, with no failure counted."""
    worker = start_worker("--threads", "2")
    create_chores(100, script=lambda _: {"NEW": {"sleep": 0.005}, **MARKED})
    cut = 0
    while Chore.objects.filter(status="DONE").count() < 50:
        cut += len(
            execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name = 'statemachine_worker handler'",
            )
        )
    assert cut
    wait_until_all("DONE")
    assert_nobody_is_to_blame()
    assert worker.terminate() == 0
    check_invariants(moves=200, terminal=True, released=True)
