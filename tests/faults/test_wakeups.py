"""Idle workers are woken, whatever becomes of who wakes them; and what they are not told of they find by themselves."""

from __future__ import annotations

import datetime
import signal

import pytest
from django.db import connection, transaction
from django.utils import timezone

from lab.models import Chore, Ping
from statemachine_fields.schedule import wakeups
from tests.faults.harness import (
    MARKED,
    NEVER,
    backends,
    check_invariants,
    create_chores,
    eventually_in,
    execute,
    is_gate_held,
    wait_for_run,
    wait_until_all,
)
from tests.faults.injections import injected
from tests.patience import eventually

#: Whoever sees a row was told of it.
NO_POLL = {"POLL_SECONDS": NEVER, "LEASE_SECONDS": NEVER}

WOKEN, POLLING = "woken by NOTIFY", "polling every"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Nobody was told before that nobody waits."""
    monkeypatch.setattr(wakeups, "_quiet_until", {})


@pytest.fixture
def start_idle(start_worker):
    """A function that starts a worker, and waits until it waits."""

    def start(*arguments, **options):
        settings = {**NO_POLL, **options.pop("settings", {})}
        constants = {"supervisor.STATUS_EVERY": 0.2, **options.pop("constants", {})}
        worker = start_worker(*arguments, settings=settings, constants=constants, **options)
        eventually(is_gate_held, f"it waits:\n{worker.log()}")
        return worker

    return start


def is_run_at_once():
    """Create a row, and wait until it is done."""
    wakeups._quiet_until.clear()
    eventually_in("DONE", Chore, create_chores(1))
    return True


def test_a_new_row_is_run_at_once(start_idle):
    worker = start_idle()
    assert is_run_at_once()
    eventually(lambda: WOKEN in worker.log().splitlines()[-1], "the status line says so")
    assert worker.terminate() == 0
    check_invariants(moves=2, terminal=True, released=True)


def test_where_processes_are_not_forked_it_is_the_same(start_idle):
    worker = start_idle("--processes", "2", environment=injected(spawn=True))
    assert is_run_at_once()
    assert worker.terminate() == 0
    check_invariants(moves=2, terminal=True, released=True)


def test_a_row_is_run_at_the_time_it_was_given(start_idle):
    start_idle()
    chore = Chore.objects.create(status="HELD", script=MARKED)
    when = timezone.now() + datetime.timedelta(seconds=1.0)
    with transaction.atomic():
        chore.states.transition_to("NEW")
        chore.states.run_at(when)
    assert wait_for_run(chore.pk).at >= when, "neither before nor at the next poll"


def test_the_next_coroutine_begins_when_one_has_ended(start_idle):
    """Slow ones, so that no row is claimed ahead of them."""
    worker = start_idle("--coroutines", "2", labels=["lab.Ping"])
    Ping.objects.bulk_create([Ping(wait=0.3) for _ in range(6)])
    eventually(lambda: Ping.objects.filter(status="ANSWERED").count() == 6, f"all have run:\n{worker.log()}")


def test_a_row_in_a_queue_that_others_serve_is_run_by_them_at_once(start_idle):
    """What a worker's own move makes due: lab.Chore in one process, whose threads are all busy, and an idle one beside it."""
    start_idle("--threads", "1")
    (busy,) = create_chores(1, status="DOING", script=lambda _: {"DOING": "sleep", "marks": True})
    wait_for_run(busy)
    eventually(lambda: not is_gate_held(), "it has no thread left, and leaves the gate")
    start_idle("--threads", "1")
    assert is_run_at_once()


class TestListener:
    def test_that_is_killed_is_replaced_and_the_gate_is_held_again(self, start_idle):
        worker = start_idle()
        first = worker.listener()
        worker.kill(first)
        eventually(lambda: worker.listener() not in (None, first), "another")
        eventually(is_gate_held, "it listens")
        assert is_run_at_once()
        assert "The listener died" in worker.log()
        assert worker.terminate() == 0
        check_invariants(terminal=True, released=True)

    def test_that_is_killed_keeps_no_row_from_being_found(self, start_idle):
        """The row comes while nobody listens: the new listener lets all look once more."""
        worker = start_idle()
        worker.kill(number=signal.SIGSTOP)  # so that the supervisor starts no other before the row is there
        worker.kill(worker.listener())
        eventually(lambda: not is_gate_held(), "nobody listens")
        keys = create_chores(1)
        worker.kill(number=signal.SIGCONT)
        eventually_in("DONE", Chore, keys)

    def test_whose_connection_breaks_has_another(self, start_idle):
        worker = start_idle()
        for pid in backends("listener"):
            execute("SELECT pg_terminate_backend(%s)", pid)
        assert is_run_at_once()
        worker.wait_for_log("The listener has its database again")
        assert is_run_at_once()

    def test_that_hangs_costs_no_more_than_a_poll(self, start_idle):
        worker = start_idle(settings={"POLL_SECONDS": 0.5})
        worker.kill(worker.listener(), signal.SIGSTOP)
        assert is_run_at_once()

    def test_ends_with_its_supervisor(self, start_idle):
        worker = start_idle()
        listener = worker.listener()
        worker.kill()
        eventually(lambda: listener not in worker.members(), "it has ended")

    def test_does_not_keep_a_worker_from_stopping(self, start_idle):
        worker = start_idle()
        worker.kill(worker.listener(), signal.SIGSTOP)
        assert worker.terminate() == 0


def test_a_database_that_is_restarted_wakes_again(start_idle, server):
    worker = start_idle()
    connection.close()
    server.restart("fast")
    eventually(is_gate_held, f"it listens again:\n{worker.log()}")
    assert is_run_at_once()


def test_a_message_that_is_lost_costs_a_poll(start_idle, monkeypatch):
    start_idle(settings={"POLL_SECONDS": 1.0})
    monkeypatch.setattr(wakeups, "knock", lambda connection, gates: None)
    assert is_run_at_once()


def test_who_was_told_that_nobody_waits_costs_a_moment(start_idle, monkeypatch):
    """A writer does not ask, because it did a moment ago, when nobody waited: who begins to wait looks again after that moment."""
    monkeypatch.setattr(wakeups, "knock", lambda connection, gates: None)
    start_idle(constants={"prefetch.ASK_AGAIN_AFTER": 2.0})
    eventually_in("DONE", Chore, create_chores(1, status="DOING"))


class TestTwoWorkers:
    def test_both_are_told_though_only_one_can_hold_the_gate(self, start_idle):
        workers = [start_idle("--threads", "1") for _ in range(2)]
        for worker in workers:
            eventually(lambda worker=worker: WOKEN in worker.log(), "both listen")
        keys = create_chores(2, status="DOING", script=lambda _: {"DOING": "sleep", "marks": True})
        assert len({wait_for_run(key).pid for key in keys}) == 2

    def test_the_second_takes_the_gate_that_the_first_leaves(self, start_idle):
        first = start_idle("--threads", "1")
        (busy,) = create_chores(1, status="DOING", script=lambda _: {"DOING": "sleep", "marks": True})
        wait_for_run(busy)
        start_idle("--threads", "1")
        assert is_run_at_once()
        first.kill_all()

    def test_the_second_takes_the_gate_of_one_that_died(self, start_idle):
        first, second = start_idle(), start_idle()
        eventually(lambda: WOKEN in second.log(), "it listens")
        first.kill_all()
        eventually(is_gate_held, "the second has it")
        assert is_run_at_once()


def test_turned_off_there_is_no_listener(start_worker):
    worker = start_worker(settings={"WAKE_UPS": False}, constants={"supervisor.STATUS_EVERY": 0.2})
    assert is_run_at_once()
    eventually(lambda: POLLING in worker.log(), "the status line says so")
    assert worker.listener() is None
    assert not is_gate_held()


def test_rows_that_a_busy_process_has_taken_ahead_are_left_to_an_idle_one(start_idle):
    """Handlers were quick, so rows are claimed ahead, and then two are slow: what waits behind them is given back, and told of."""
    first = start_idle("--threads", "2")
    create_chores(300)
    wait_until_all("DONE")
    second = start_idle("--threads", "2")
    eventually(lambda: WOKEN in second.log(), "it waits")
    second.kill_all(signal.SIGSTOP)
    with transaction.atomic():
        slow = create_chores(2, status="DOING", script=lambda _: {"DOING": "wait", "marks": True})
        quick = create_chores(20, status="DOING")
    for key in slow:
        wait_for_run(key)
    second.kill_all(signal.SIGCONT)
    eventually_in("DONE", Chore, quick)
    assert not Chore.objects.filter(pk__in=slow, status="DONE").exists()
    Chore.objects.filter(pk__in=slow).update(script={})
    wait_until_all("DONE")
    assert not Chore.objects.exclude(status_crashes=0).exists()
    assert first.terminate() == 0
    check_invariants(terminal=True, released=True)
