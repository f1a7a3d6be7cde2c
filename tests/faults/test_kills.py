"""Workers that are killed: what they held is run again, and what they had written is not."""

from __future__ import annotations

import signal

import pytest

from lab.models import Chore
from tests.faults.harness import (
    BRIEF,
    MARKED,
    NEVER,
    check_invariants,
    create_chores,
    let_leases_run_out,
    runs,
    wait_for_run,
    wait_until_all,
)
from tests.patience import eventually

ENDLESS = {"DOING": "sleep", "marks": True}


def test_a_process_killed_in_a_handler_is_replaced_and_its_row_run_again(start_worker):
    """#1: kill -9 in the middle of a handler. I1, I2, I3."""
    worker = start_worker()
    (chore,) = create_chores(1, status="DOING", script=lambda _: ENDLESS)
    first = wait_for_run(chore)
    worker.kill(first.pid)
    second = wait_for_run(chore, 2)
    row = Chore.objects.get()
    assert (row.status_crashes, row.status_failures) == (1, 0)
    assert row.status_error.endswith("which died.")
    assert second.token > first.token
    Chore.objects.update(script=MARKED)
    worker.kill(second.pid)
    wait_until_all("DONE")
    assert len({run.pid for run in runs(chore)}) == 3
    assert Chore.objects.get().status_crashes == 0
    assert worker.terminate() == 0
    check_invariants(moves=1, terminal=True, released=True)


def test_a_host_that_vanishes_is_replaced_by_another_after_the_lease(start_worker):
    """#1, with nobody left to notice: the lease runs out, and the row is due. I1, I2, I3, and not before."""
    lost = start_worker(settings=BRIEF)
    (chore,) = create_chores(1, status="DOING", script=lambda _: ENDLESS)
    wait_for_run(chore)
    other = start_worker()
    other.wait_for_log("Serving")
    Chore.objects.update(script={"DOING": "wait", "marks": True})
    lost.kill_all()
    ends_at = Chore.objects.get().status_lease_expires_at
    assert wait_for_run(chore, 2).at >= ends_at
    assert Chore.objects.get().status_crashes == 1
    Chore.objects.update(script=MARKED)
    wait_until_all("DONE")
    other.terminate()
    check_invariants(moves=1, terminal=True, released=True)


def test_a_process_killed_between_handler_and_commit_runs_the_handler_again(start_worker):
    """#2: kill -9 when the handler has answered and nothing is written. I1, I2: two runs, one move."""
    worker = start_worker(pause={"commit.before": 1})
    (chore,) = create_chores(1, status="DOING", script=lambda _: MARKED)
    pid = worker.paused_at("commit.before")
    assert len(runs(chore)) == 1
    assert Chore.objects.get().status == "DOING"
    worker.kill(pid)
    wait_until_all("DONE")
    assert [run.pid == pid for run in runs(chore)] == [True, False]
    worker.terminate()
    check_invariants(moves=1, terminal=True, released=True)


def test_a_process_killed_after_the_commit_does_not_run_the_handler_again(start_worker):
    """#3: kill -9 when the move is written and the worker has not heard of it. I1, I2, I4: one run for each state."""
    (chore,) = create_chores(1, script=lambda _: MARKED)
    # Nobody is to look meanwhile and take the row again.
    worker = start_worker(pause={"commit.after": 1}, settings={"WAKE_UPS": False, "POLL_SECONDS": NEVER})
    pid = worker.paused_at("commit.after")
    assert Chore.objects.get().status == "DOING"
    worker.kill(pid)
    wait_until_all("DONE")
    assert [run.state for run in runs(chore)] == ["NEW", "DOING"]
    assert "died of signal SIGKILL" in worker.log()
    worker.terminate()
    check_invariants(moves=2, terminal=True, released=True)


def test_rows_claimed_by_a_process_killed_before_it_began_are_taken_back(start_worker):
    """kill -9 right after a claim, with rows that nobody has started. I1, I2, I3, I5: it is nobody's last crash."""
    worker = start_worker(pause={"claim.after": 1})
    chores = create_chores(20, script=lambda _: MARKED)
    pid = worker.paused_at("claim.after")
    held = Chore.states.leased().count()
    assert held > 0
    worker.kill(pid)
    wait_until_all("DONE")
    assert f"Took back {held} rows" in worker.log()
    assert all(len(runs(chore)) == 2 for chore in chores)
    worker.terminate()
    check_invariants(moves=40, terminal=True, released=True)


def test_an_answer_that_is_lost_is_not_taken_for_a_late_one(start_worker):
    """#3 without a kill: the move is written and the connection breaks. I1, I2: it is recognised as our own."""
    worker = start_worker(lose={"move": 2})
    (chore,) = create_chores(1, script=lambda _: MARKED)
    wait_until_all("DONE")
    worker.terminate()
    assert [run.state for run in runs(chore)] == ["NEW", "DOING"]
    assert "The committer has no database" in worker.log()
    assert "came too late" not in worker.log()
    assert "2 moved" in worker.log()
    check_invariants(moves=2, terminal=True, released=True)


def test_an_answer_to_a_wait_that_is_lost_does_not_matter(start_worker):
    """#3 for an outcome that leaves no record. I1, I2: the row waits, and nobody holds it."""
    worker = start_worker(lose={"settle": 1})
    (chore,) = create_chores(1, status="DOING", script=lambda _: {"DOING": None, "marks": True})
    wait_for_run(chore)
    eventually(lambda: not Chore.states.leased().exists(), "the lease ended")
    worker.wait_for_log("The committer has its database again")
    assert worker.terminate() == 0
    assert len(runs(chore)) == 1
    check_invariants(moves=0, released=True)


def test_processes_without_a_supervisor_stop_and_leave_nothing(start_worker):
    """kill -9 of the supervisor alone. I8: its processes notice, finish what runs and give back the rest."""
    worker = start_worker("--processes", "2", "--threads", "2")
    create_chores(60, status="DOING", script=lambda _: {"DOING": {"sleep": 0.2}, "marks": True})
    owners = Chore.states.leased().values("status_lease_owner").distinct()
    eventually(lambda: owners.count() == 2, "both hold rows")
    worker.kill()
    worker.wait()
    assert worker.log().count("is gone. The process stops.") == 2
    check_invariants(released=True)
    assert not Chore.objects.filter(status_crashes__gt=0).exists()


@pytest.mark.parametrize("to_all", [False, True], ids=["to the supervisor", "to every process"])
def test_a_graceful_stop_under_load_holds_nothing(start_worker, to_all):
    """SIGTERM under load, to the supervisor or, as systemd does, to every process of the group. I2, I8."""
    worker = start_worker("--processes", "2")
    create_chores(200, status="DOING", script=lambda _: {"DOING": {"sleep": 0.2}, "marks": True})
    eventually(lambda: Chore.objects.filter(status="DONE").count() >= 8, "work is under way")
    if to_all:
        worker.kill_all(signal.SIGTERM)
    else:
        worker.kill(number=signal.SIGTERM)
    assert worker.wait() == 0
    check_invariants(released=True)
    assert not Chore.objects.filter(status_crashes__gt=0).exists()
    assert Chore.objects.filter(status="DOING").exists()


def test_a_stop_that_comes_while_a_process_starts_is_heard(start_worker):
    """SIGTERM between the fork and the process's first line, when nobody listens yet. I8."""
    worker = start_worker(pause={"process.before": 1})
    worker.paused_at("process.before")
    worker.kill(number=signal.SIGTERM)
    worker.wait_for_log("The worker stops")
    worker.go("process.before")
    assert worker.wait() == 0


def test_a_second_signal_ends_it_now(start_worker):
    """SIGTERM twice: the end, without waiting for a handler. I3: the lease runs out, and the row is due again."""
    worker = start_worker(settings={"STOP_SECONDS": 600.0})
    (chore,) = create_chores(1, status="DOING", script=lambda _: ENDLESS)
    wait_for_run(chore)
    worker.kill(number=signal.SIGTERM)
    worker.wait_for_log("The worker stops")
    assert worker.children()
    assert worker.terminate() == 1
    assert Chore.states.leased().count() == 1
    Chore.objects.update(script=MARKED)
    let_leases_run_out()
    other = start_worker()
    wait_until_all("DONE")
    other.terminate()
    check_invariants(moves=1, terminal=True, released=True)
