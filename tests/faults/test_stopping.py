"""Workers that are told to stop: they hold nothing when they are gone. I8."""

from __future__ import annotations

import signal

from lab.models import Chore
from tests.faults.harness import check_invariants, create_chores, eventually, runs, wait_for_run
from tests.faults.injections import injected

#: Long enough to be running when the signal comes, and short enough to be waited for.
SLOW = {"DOING": {"sleep": 0.6}, "marks": True}


def test_a_stop_under_load_finishes_what_runs_and_gives_back_the_rest(start_worker):
    """#24, SIGTERM. I2, I8: what had begun is done, what had not is due at once, and nobody has to wait for a lease."""
    worker = start_worker("--threads", "3", settings={"LEASE_SECONDS": 60})
    create_chores(100, status="DOING", script=lambda _: SLOW)
    eventually(lambda: Chore.objects.filter(status="DONE").exists(), "work is under way")
    assert worker.terminate(within=5) == 0
    check_invariants(released=True)
    begun = {run.chore for run in runs_of_all()}
    assert set(Chore.objects.filter(status="DONE").values_list("pk", flat=True)) == begun
    left = Chore.objects.filter(status="DOING")
    assert left.count() == Chore.states.due().count() == 100 - len(begun)
    assert not left.exclude(status_crashes=0, status_failures=0, status_error="").exists()
    claimed = left.filter(status_lease_token__gt=0).count()
    assert claimed > 0, "some had been taken and given back"


def runs_of_all():
    return [run for pk in Chore.objects.values_list("pk", flat=True) for run in runs(pk)]


def test_ctrl_c_stops_in_good_order(start_worker):
    """#24, SIGINT to the whole group, as a terminal sends it. I2, I8."""
    worker = start_worker("--processes", "2", "--threads", "2")
    create_chores(60, status="DOING", script=lambda _: SLOW)
    eventually(lambda: Chore.objects.filter(status="DONE").exists(), "work is under way")
    worker.kill_all(signal.SIGINT)
    assert worker.wait(within=5) == 0
    assert "Traceback" not in worker.log()
    assert "died" not in worker.log()
    check_invariants(released=True)
    assert {run.chore for run in runs_of_all()} == set(Chore.objects.filter(status="DONE").values_list("pk", flat=True))


def test_a_second_ctrl_c_ends_it_now(start_worker):
    """#24, SIGINT twice. I1, I2: leases are left, and no handler is waited for."""
    worker = start_worker(settings={"STOP_SECONDS": 60, "LEASE_SECONDS": 60})
    (chore,) = create_chores(1, status="DOING", script=lambda _: {"DOING": "sleep", "marks": True})
    wait_for_run(chore)
    worker.kill_all(signal.SIGINT)
    worker.wait_for_log("The worker stops")
    assert worker.process.poll() is None
    worker.kill_all(signal.SIGINT)
    assert worker.wait(within=5) == 1
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
    eventually(lambda: not worker.members(), "its process has ended", within=10)
    check_invariants(released=True)
    assert not Chore.objects.filter(status_crashes__gt=0).exists()
    assert Chore.states.due().filter(pk=endless).exists()
    assert others


def test_a_supervisor_that_does_not_listen_does_not_hold_up_its_processes(start_worker):
    """SIGSTOP of the supervisor alone, until its pipe is full. I1, I3, I5: leases and time limits go on."""
    worker = start_worker(
        settings={"LEASE_SECONDS": 1.0}, constants={"watch.TELL_EVERY": 0.05}, environment=injected(pipe=4096)
    )
    slow, endless = create_chores(
        2, script=lambda place: {"NEW": {"sleep": 1.8} if place == 0 else "sleep", "marks": True}
    )
    wait_for_run(endless)
    worker.kill(number=signal.SIGSTOP)
    eventually(lambda: Chore.objects.filter(pk=endless, status_failures=1).exists(), "it is stopped", within=10)
    assert Chore.objects.filter(pk=slow, status_crashes=0, status_failures=0).exclude(status="NEW").exists()
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
    assert worker.terminate(within=5) == 0
    assert "died" not in worker.log()
    check_invariants(released=True)
