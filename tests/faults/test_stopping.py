"""Workers that are told to stop: they hold nothing when they are gone. I8."""

from __future__ import annotations

import re
import shutil
import signal
import time
from itertools import pairwise

import pytest

from lab.models import Chore, HeardStunt, Run, Stint
from statemachine_fields.machine.verify import Verifier
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
    locked_table,
    runs,
    wait_for_beats,
    wait_for_run,
    wait_until_all,
)
from tests.faults.injections import injected
from tests.faults.proxy import Proxy
from tests.patience import eventually
from tests.sessions import waiting_for_locks

#: Long enough to be running when the signal comes, and short enough to be waited for.
SLOW = {"DOING": {"sleep": 0.6}, "marks": True}
#: Short enough that rows are claimed ahead of those that run.
QUICK = {"DOING": {"sleep": 0.04}, "marks": True}

SLOW_TO_WRITE = """
    CREATE FUNCTION hinder() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END $$;
    CREATE TRIGGER hinder BEFORE UPDATE ON lab_heardstunt FOR EACH ROW WHEN (NEW.status = 'DONE') EXECUTE FUNCTION hinder()"""


def test_a_stop_under_load_finishes_what_runs_and_gives_back_the_rest(start_worker):
    """#24, SIGTERM. I2, I8: what had begun is done, what had not is due at once, and nobody has to wait for a lease."""
    worker = start_worker("--threads", "3", settings={"LEASE_SECONDS": 60})
    create_chores(1000, status="DOING", script=lambda _: QUICK)
    eventually(lambda: Chore.objects.filter(status="DONE").exists(), "work is under way")
    assert worker.terminate() == 0
    check_invariants(released=True)
    begun = {run.chore for run in runs_of_all()}
    assert set(Chore.objects.filter(status="DONE").values_list("pk", flat=True)) == begun
    left = Chore.objects.filter(status="DOING")
    assert left.count() == Chore.states.due().count() == 1000 - len(begun)
    assert not left.exclude(status_crashes=0, status_failures=0, status_error="").exists()
    claimed = left.filter(status_lease_token__gt=0).count()
    assert claimed > 0, "some had been taken and given back"


def test_a_stop_gives_back_what_there_is_no_time_to_write(start_worker):
    """I8: handlers whose answers are written one by one and take their time. Those rows are run again, and no crash is counted."""
    execute(SLOW_TO_WRITE)
    create_acts(HeardStunt, *[""] * 40)
    worker = start_worker(
        "--threads",
        "16",
        labels=["lab.HeardStunt"],
        settings={"STOP_SECONDS": 0.5},
        constants={"runner.LAST_WRITES": 0.5},
    )
    eventually(lambda: HeardStunt.objects.filter(status=DONE).exists(), "it writes")
    assert worker.terminate() == 0
    assert not HeardStunt.objects.filter(status_lease_expires_at__isnull=False).exists()
    given_back = HeardStunt.objects.filter(status="NEW", status_attempts=1)
    assert given_back.exists()
    assert not given_back.exclude(status_crashes=0, status_failures=0).exists()
    assert HeardStunt.states.due().count() == HeardStunt.objects.filter(status="NEW").count()
    assert "before what came of it was written" in worker.log()


def runs_of_all():
    return list(Run.objects.all())


def test_ctrl_c_stops_in_good_order(start_worker):
    """#24, SIGINT to the whole group, as a terminal sends it. I2, I8."""
    worker = start_worker("--processes", "2", "--threads", "2")
    create_chores(60, status="DOING", script=lambda _: SLOW)
    eventually(lambda: Chore.objects.filter(status="DONE").exists(), "work is under way")
    worker.kill_all(signal.SIGINT)
    assert worker.wait() == 0
    assert "Traceback" not in worker.log()
    assert "died" not in worker.log()
    check_invariants(released=True)
    assert {run.chore for run in runs_of_all()} == set(Chore.objects.filter(status="DONE").values_list("pk", flat=True))


def test_a_second_ctrl_c_ends_it_now(start_worker):
    """#24, SIGINT twice. I1, I2: leases are left, and no handler is waited for."""
    worker = start_worker(settings={"STOP_SECONDS": NEVER, "LEASE_SECONDS": NEVER})
    (chore,) = create_chores(1, status="DOING", script=lambda _: {"DOING": "sleep", "marks": True})
    wait_for_run(chore)
    worker.kill_all(signal.SIGINT)
    worker.wait_for_log("The worker stops")
    assert worker.process.poll() is None
    worker.kill_all(signal.SIGINT)
    assert worker.wait() == 1
    assert Chore.states.leased().count() == 1
    check_invariants(moves=0)


def test_a_process_without_a_supervisor_gives_back_what_it_cannot_finish(start_worker):
    """#24, kill -9 of the supervisor alone. I8: its process notices, and stops as if it had been told."""
    worker = start_worker("--threads", "2", settings={"STOP_SECONDS": 0.5, "LEASE_SECONDS": 60})
    endless, *others = create_chores(
        10,
        status="DOING",
        script=lambda place: {"DOING": {"sleep": 0.4}} if place else {"DOING": "sleep", "marks": True},
    )
    wait_for_run(endless)
    worker.kill()
    eventually(lambda: not worker.members(), "its process has ended")
    check_invariants(released=True)
    assert not Chore.objects.filter(status_crashes__gt=0).exists()
    assert Chore.states.due().filter(pk=endless).exists()
    assert others


def test_a_supervisor_that_does_not_listen_does_not_hold_up_its_processes(start_worker):
    """SIGSTOP of the supervisor alone, until its pipe is full. I1, I3, I5: leases and time limits go on."""
    worker = start_worker(settings=EXTENDED, constants={"watch.REPORT_EVERY": 0.05}, environment=injected(pipe=4096))
    (slow,) = create_chores(1, status="DOING", script=lambda _: {"DOING": "wait", "marks": True})
    wait_for_run(slow)
    worker.kill(number=signal.SIGSTOP)
    wait_for_beats(Chore, slow)
    (endless,) = create_chores(1, script=lambda _: {"NEW": "sleep"})
    eventually(lambda: Chore.objects.filter(pk=endless, status_failures=1).exists(), "it is stopped")
    Chore.objects.filter(pk=slow).update(script={})
    eventually_in(DONE, Chore, [slow])
    assert len(runs(slow)) == 1
    worker.kill(number=signal.SIGCONT)
    late = create_chores(5, status="DOING")
    eventually(lambda: not Chore.objects.filter(pk__in=late).exclude(status="DONE").exists(), "it works on")
    assert worker.terminate() == 0
    check_invariants(released=True)


def test_once_does_not_end_before_it_has_looked_again_at_what_was_written_meanwhile(start_worker):
    """A claim finds nothing because the row is held; the row moves on, and is due again before the worker asks itself
    whether it is done."""
    create_chores(1)
    worker = start_worker("--once", pause={"handler.before": 1, "claim.empty": 1})
    worker.paused_at("handler.before")
    worker.paused_at("claim.empty")
    worker.go("handler.before")
    eventually(lambda: Chore.states.due().filter(status="DOING").exists(), "the row moved on")
    worker.go("claim.empty")
    assert worker.wait() == 0
    assert Chore.objects.get().status == "DONE"
    check_invariants(moves=2, terminal=True, released=True)


def test_a_process_that_has_not_begun_ends_without_a_word(start_worker):
    """The signal comes while a process starts: it has taken nothing, so nobody has to wait for a lease, or is told to."""
    worker = start_worker(pause={"setup.before": 1})
    create_chores(1)
    worker.paused_at("setup.before")
    assert worker.terminate() == 0
    assert "died" not in worker.log()
    check_invariants(released=True)


@pytest.mark.parametrize("point", ["process.before", "setup.before"])
def test_a_signal_that_comes_while_a_process_starts_is_not_lost(start_worker, point):
    """The process was forked, and does not yet hear: it is told again, and ends as if it had."""
    worker = start_worker(pause={point: 1})
    create_chores(1)
    worker.paused_at(point)
    worker.kill(number=signal.SIGTERM)
    worker.wait_for_log("stops")
    worker.go(point)
    assert worker.wait() == 0
    assert "died" not in worker.log()
    check_invariants(released=True)


@pytest.mark.parametrize("point", ["process.before", "setup.before"])
def test_a_process_whose_supervisor_dies_while_it_starts_is_no_orphan(start_worker, point):
    """kill -9 of the supervisor, at once: the process cannot remember who its parent was, and ends all the same."""
    worker = start_worker(pause={point: 1})
    worker.paused_at(point)
    worker.kill()
    eventually(lambda: worker.process.poll() is not None, "the supervisor is gone")
    worker.go(point)
    eventually(lambda: not worker.members(), "its process has ended, too")
    check_invariants(released=True)


# A claim on its way, and leases that cannot be given back.


def worker_backends():
    named = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s"
    return execute(named, "statemachine_worker%")


def test_a_claim_on_its_way_leases_nothing_after_the_worker_is_gone(start_worker):
    """A migration has the table, and a claim waits for it in the server, which does not notice that the client goes."""
    worker = start_worker(settings={"LEASE_SECONDS": 60, "STOP_SECONDS": 2})
    create_chores(1, status="DOING")
    wait_until_all(DONE)
    worker.kill_all(signal.SIGSTOP)  # so that rows are due and the table is locked before it looks again
    left = create_chores(20, status="DOING")
    with locked_table("lab_chore"):
        worker.kill_all(signal.SIGCONT)
        eventually(waiting_for_locks, "a claim waits for the table")
        assert worker.terminate() == 0
    eventually(lambda: not worker_backends(), "the server has no session of the worker left")
    assert not Chore.states.leased().exists()
    assert not Chore.objects.filter(pk__in=left).exclude(status="DOING", status_crashes=0).exists()
    check_invariants(moves=1, released=True)


def test_stops_far_from_the_database_leave_no_lease(server, start_worker):
    """Every message takes 150 ms: the rows are leased, and the worker is told to stop before it has learned which."""
    with Proxy(server.directory) as proxy:
        for _ in range(5):
            proxy.latency(0)
            worker = start_worker(environment=injected(database=proxy.place), settings={"LEASE_SECONDS": 60})
            eventually(worker_backends, "it has a connection")
            time.sleep(0.5)  # until it has nothing to do but to look for rows
            proxy.latency(0.15)
            create_chores(8, status="DOING")
            eventually(lambda: Chore.states.leased().exists(), "a claim is made, and the answer is on its way")
            worker.kill_all(signal.SIGTERM)  # as systemd does
            assert worker.wait() == 0
            eventually(lambda: not worker_backends(), "the server has no session of the worker left")
            check_invariants(released=True)
            Chore.objects.all().delete()


def test_leases_that_cannot_be_given_back_are_told_of(start_worker):
    """The table is locked for longer than a stopping worker waits: it says so, and that not all was well."""
    worker = start_worker(settings={"LEASE_SECONDS": 60, "STOP_SECONDS": 1})
    (chore,) = create_chores(1, status="DOING", script=lambda _: {"DOING": "sleep", **MARKED})
    wait_for_run(chore)
    with locked_table("lab_chore"):
        assert worker.terminate() == 1
    assert re.search(r"leases?\b.* could not be given back", worker.log())
    check_invariants(moves=0)


# A process that is replaced.


def stint(status, seconds):
    return Stint.objects.create(status=status, seconds=seconds).pk


def overlaps():
    """Return the calls of handlers of the long stints that began before the one before them could be over."""
    began = list(Run.objects.filter(state="LONG").order_by("at").values_list("at", "chore"))
    seconds = dict(Stint.objects.values_list("pk", "seconds"))
    return [
        (one, other) for (at, one), (next_at, other) in pairwise(began) if (next_at - at).total_seconds() < seconds[one]
    ]


def test_a_row_that_hangs_again_and_again_does_not_keep_a_long_one_from_finishing(start_worker):
    """Its time limit ends its process each time. A neighbour that may run for longer is not ended with it."""
    worker = start_worker("--threads", "2", labels=["lab.Stint"], settings={"STOP_SECONDS": 1})
    long = stint("LONG", NEVER)
    wait_for_run(long)
    hung = stint("BRIEF", NEVER)
    eventually(lambda: Stint.objects.get(pk=hung).status_failures >= 2, "it hangs more than once meanwhile")
    Stint.objects.filter(pk=long).update(seconds=0)
    eventually(lambda: Stint.objects.get(pk=long).status == DONE, "the neighbour is done")
    assert len(runs(long)) == 1
    row = Stint.objects.get(pk=hung)
    assert "longer than its time limit" in row.status_error
    Stint.objects.filter(pk=hung).update(seconds=0)
    eventually(lambda: Stint.objects.get(pk=hung).status == DONE, "it is done when it no longer hangs")
    assert worker.terminate() == 0
    assert not list(Verifier(Stint.states._meta).findings())
    assert not Stint.states.leased().exists()


def test_the_limit_of_a_queue_holds_while_a_process_is_replaced(start_worker):
    """One at a time, says the command line: also while a process that is to end still runs one."""
    queues = ["--queue", "long=1", "--queue", "brief"]
    worker = start_worker("--threads", "3", *queues, labels=["lab.Stint"])
    longs = [stint("LONG", 1.5) for _ in range(3)]
    wait_for_run(longs[0])
    stint("BRIEF", 3600)
    eventually(lambda: not Stint.objects.filter(pk__in=longs).exclude(status=DONE).exists(), "all are done")
    eventually(lambda: "longer than its time limit" in Stint.objects.get(status="BRIEF").status_error, "it is stopped")
    assert overlaps() == []
    worker.terminate()


def test_the_limit_of_a_queue_holds_while_a_process_that_had_enough_rows_is_replaced(start_worker):
    """The same with --max-rows, which replaces processes when nothing is wrong."""
    worker = start_worker("--queue", "long=1", "--max-rows", "1", labels=["lab.Stint"])
    longs = [stint("LONG", 0.8) for _ in range(4)]
    eventually(lambda: not Stint.objects.filter(pk__in=longs).exclude(status=DONE).exists(), "all are done")
    assert overlaps() == []
    assert worker.terminate() == 0


# A supervisor in trouble.


def test_a_liveness_file_that_cannot_be_written_does_not_make_a_worker_unstoppable(start_worker, tmp_path):
    """Somebody removes the directory of the file: the worker goes on, or ends; it can be stopped, and holds nothing."""
    file = tmp_path / "run" / "alive"
    file.parent.mkdir()
    worker = start_worker("--liveness-file", str(file), settings={"LEASE_SECONDS": 60, "STOP_SECONDS": 3})
    eventually(file.exists, "the file is there")
    shutil.rmtree(file.parent)
    # Longer than from one time that the file is written to the next but one.
    (slow,) = create_chores(1, status="DOING", script=lambda _: {"DOING": {"sleep": 2.5}, **MARKED})
    wait_for_run(slow)
    wait_until_all(DONE)
    create_chores(20, status="DOING", script=lambda _: SLOW)
    eventually(lambda: Chore.states.leased().exists() or not worker.members(), "rows are held, or it has ended")
    assert worker.terminate() >= 0, "no signal was needed"
    check_invariants(released=True)


def test_an_error_in_the_supervisor_stops_the_worker_in_good_order(start_worker):
    """An error that nobody expects: what runs is finished, nothing is held, and the exit code says that it was one."""
    settings = {"LEASE_SECONDS": 60, "STOP_SECONDS": 3}
    worker = start_worker(settings=settings, pause={"say.before": 1}, fail={"say": 1})
    worker.paused_at("say.before")
    (slow,) = create_chores(1, status="DOING", script=lambda _: {"DOING": {"sleep": 1}, **MARKED})
    wait_for_run(slow)
    worker.go("say.before")
    assert worker.wait() not in (0, -signal.SIGKILL)
    assert "injected into say" in worker.log()
    assert Chore.objects.get().status == DONE
    check_invariants(moves=1, terminal=True, released=True)
