"""Workers that come too late: whoever holds the current token is heard, and nobody else."""

from __future__ import annotations

import signal

import pytest

from lab.models import Chore
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.lease import lanes_of
from tests.faults.harness import (
    EXTENDED,
    MARKED,
    NEVER,
    check_invariants,
    create_chores,
    eventually_in,
    execute,
    let_leases_run_out,
    runs,
    wait_for_run,
    wait_until_all,
)
from tests.patience import eventually

LATE = "came too late and was dropped"


def test_a_worker_that_hung_past_its_lease_is_not_heard(start_worker):
    """#5: SIGSTOP past the lease, another finishes, SIGCONT. I1, I2, I4: the late outcome is dropped."""
    hung = start_worker(pause={"handler.after": 1})
    (chore,) = create_chores(1, status="DOING", script=lambda _: MARKED)
    hung.paused_at("handler.after")
    hung.kill_all(signal.SIGSTOP)
    let_leases_run_out()
    other = start_worker()
    wait_until_all("DONE")
    before = Chore.objects.values().get()
    hung.go("handler.after")
    hung.kill_all(signal.SIGCONT)
    hung.wait_for_log(LATE)
    assert Chore.objects.values().get() == before
    assert len(runs(chore)) == 2
    other.terminate()
    (another,) = create_chores(1, status="DOING", script=lambda _: MARKED)
    wait_until_all("DONE")
    assert len(runs(another)) == 1, "and it goes on working"
    hung.terminate()
    check_invariants(moves=2, terminal=True, released=True)


def test_a_process_that_claims_its_own_expired_row_hears_only_the_second_try(start_worker):
    """#6, ABA: the same owner, the same state, and the old thread still runs. I1, I2: by owner alone it would pass."""
    worker = start_worker(pause={"handler.after": 2}, off=["beat"])
    (chore,) = create_chores(1, status="DOING", script=lambda _: MARKED)
    pid = worker.paused_at("handler.after", 1)
    first = Chore.objects.get()
    let_leases_run_out()
    assert worker.paused_at("handler.after", 2) == pid
    second = Chore.objects.get()
    assert second.status_lease_owner == first.status_lease_owner
    assert second.status_lease_token > first.status_lease_token
    worker.go("handler.after", 1)
    worker.wait_for_log(LATE)
    after = Chore.objects.get()
    assert (after.status, after.status_lease_token) == ("DOING", second.status_lease_token)
    assert after.status_lease_expires_at == second.status_lease_expires_at
    worker.go("handler.after", 2)
    wait_until_all("DONE")
    assert [run.token for run in runs(chore)] == [first.status_lease_token, second.status_lease_token]
    worker.terminate()
    check_invariants(moves=1, terminal=True, released=True)


def test_a_late_heartbeat_and_a_late_release_do_nothing(start_worker):
    """#7, with processes: both are on their way when another takes the row. I1, I8."""
    settings = EXTENDED | {"STOP_SECONDS": 0.5}
    late = start_worker(settings=settings, pause={"handler.after": 1, "extend.before": 1})
    create_chores(1, status="DOING", script=lambda _: MARKED)
    late.paused_at("handler.after")
    late.paused_at("extend.before")
    late.kill_all(signal.SIGSTOP)
    let_leases_run_out()
    holder = start_worker(pause={"handler.after": 1}, settings={"LEASE_SECONDS": NEVER}, off=["beat"])
    holder.paused_at("handler.after")
    before = Chore.objects.values().get()
    late.go("extend.before")
    late.kill_all(signal.SIGCONT)
    late.kill(number=signal.SIGTERM)
    assert late.wait() == 0
    assert Chore.objects.values().get() == before
    holder.go("handler.after")
    wait_until_all("DONE")
    holder.terminate()
    check_invariants(moves=1, terminal=True, released=True)


@pytest.mark.parametrize("verb", ["beat", "release", "lock", "held"])
def test_an_old_token_is_worth_nothing(database, verb):
    """#7, statement by statement: the row was claimed again. I1."""
    create_chores(1, status="DOING")
    (lane,) = lanes_of([Chore.states._meta])
    (old,) = Claimer("old", 60).claim(lane, 1)
    let_leases_run_out()
    (new,) = Claimer("new", 60).claim(lane, 1, suspects=True)
    before = Chore.objects.values().get()

    def said(token):
        if verb == "lock":
            return lane.lock(old.key, token)
        options = (60,) if verb == "beat" else ()
        return getattr(lane, verb)([old.key], [token], *options)

    assert not said(old.token)
    assert Chore.objects.values().get() == before
    assert said(new.token)


def test_a_worker_cut_off_from_its_heartbeat_does_not_start_what_it_may_have_lost(start_worker):
    """The lease runs out while rows wait for a thread. I1: the worker's own clock says so, and they are not begun."""
    settings = {"LEASE_SECONDS": 4.0}
    # It neither gives back what waits behind the row that hangs, nor takes it again when its lease has run out.
    constants = dict.fromkeys(["inflight.KEPT_WAITING", "inflight.STALLED", "claiming.SUSPECTS_EVERY"], NEVER)
    slow = start_worker(
        "--threads", "1", settings=settings, constants=constants, pause={"handler.after": 2}, off=["beat"]
    )
    create_chores(1, status="DOING")  # from which it learns that handlers are quick, so that rows may be claimed ahead
    slow.paused_at("handler.after")
    slow.go("handler.after")
    wait_until_all("DONE")
    first, *others = create_chores(2, status="DOING", script=lambda _: MARKED)
    slow.paused_at("handler.after", hit=2)
    eventually(lambda: Chore.states.leased().count() == 2, "the second row is held, too")
    ends_at = max(Chore.states.leased().values_list("status_lease_expires_at", flat=True))
    eventually(lambda: execute("SELECT 1 WHERE now() > %s", ends_at), "their leases have run out")
    slow.go("handler.after", hit=2)
    eventually_in("DONE", Chore, [first])
    other = start_worker()
    wait_until_all("DONE")
    for worker in (slow, other):
        worker.terminate()
    for chore in others:
        tokens = [run.token for run in runs(chore)]
        assert len(tokens) == 1
        assert tokens[0] > 1, "not with the token of the claim that ran out"
    check_invariants(moves=3, terminal=True, released=True)


def test_a_supervisor_that_hung_does_not_take_its_processes_for_silent(start_worker):
    """SIGSTOP of the whole worker for longer than a process may be silent. I5: nobody is killed, no crash counted."""
    worker = start_worker(settings={"LEASE_SECONDS": 10.0}, constants={"supervisor.SILENCE": 5.0})
    (chore,) = create_chores(1, status="DOING", script=lambda _: {"DOING": {"sleep": 1}, **MARKED})
    wait_for_run(chore)
    worker.kill_all(signal.SIGSTOP)
    execute("SELECT pg_sleep(5.5)")
    worker.kill_all(signal.SIGCONT)
    wait_until_all("DONE")
    assert worker.terminate() == 0
    assert "is killed" not in worker.log()
    assert len(runs(chore)) == 1
    check_invariants(moves=1, terminal=True, released=True)
