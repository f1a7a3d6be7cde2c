"""What is claimed is run, and what came of it handed on: by the run loop, which knows no database."""

from __future__ import annotations

import threading

import pytest

from lab.models import Chore
from statemachine_fields.worker import running as module
from statemachine_fields.worker.inflight import Buffer, InFlight
from statemachine_fields.worker.lease import now
from statemachine_fields.worker.outcomes import Conflicted, Released, Transitioned
from statemachine_fields.worker.running import RunLoop
from tests.worker.rows import lease_on


class NothingToDo(Exception):
    """Ends a thread that would wait for more."""


def stop():
    raise NothingToDo


def until_idle(run):
    with pytest.raises(NothingToDo):
        run()


class Coroutines:
    """An event loop that runs nothing, and remembers what it was to run."""

    def __init__(self, room):
        self.room = room
        self.started = []
        self.on_full = lambda: None

    def has_room(self, timeout):
        if not self.room:
            self.on_full()
            return False
        self.room -= 1
        return True

    def give_up_room(self):
        self.room += 1

    def start(self, lease, finish):
        self.started.append((lease, finish))


@pytest.fixture
def loop(chores, payments, pings, executor, events):
    """A run loop whose threads end when they find nothing more to do."""
    inflight, posted = InFlight(Buffer([chores, payments, pings], {"chores": 1})), []
    loop = RunLoop(executor, events, inflight, Coroutines(room=1), threading.Event(), posted.append)
    loop.posted, loop.ran, loop.written = posted, [], []
    loop.on_ran, loop.on_written = loop.ran.append, loop.written.append
    inflight.buffer.on_idle = [stop]
    return loop


@pytest.fixture
def claimed(loop):
    """Put rows in hand, as a claim does."""

    def put(*leases):
        loop.inflight.took(leases)
        for lease in leases:
            loop.inflight.buffer.put(lease.lane, [lease])
        return leases

    return put


@pytest.fixture
def atomic(monkeypatch):
    """Say what an atomic try comes to, which is tested elsewhere."""
    return lambda outcome: monkeypatch.setattr(module, "run_atomic", lambda executor, events, lease: outcome)


def posted(loop):
    return [(type(outcome), outcome.lease) for outcome in loop.posted]


def test_runs_rows_and_hands_on_what_came_of_them(loop, chores, claimed, monkeypatch):
    seen = []

    def start(chore, ctx):
        seen.append(len(loop.inflight.running))
        return "DOING"

    monkeypatch.setattr(Chore, "start", start)
    leases = claimed(lease_on(chores, 1), lease_on(chores, 2))
    until_idle(loop.run)
    assert posted(loop) == [(Transitioned, lease) for lease in leases]
    assert (loop.ran, seen) == (list(leases), [1, 1]), "one at a time, as the queue's limit is, and each had its turn"
    assert (loop.inflight.running, loop.inflight.held) == (set(), set(leases)), "held until they are written"


@pytest.mark.parametrize("why", ["too late", "stopping"])
def test_gives_back_what_must_not_begin_any_more(why, loop, chores, claimed, monkeypatch):
    monkeypatch.setattr(Chore, "start", lambda chore, ctx: pytest.fail("It was run."))
    (lease,) = claimed(lease_on(chores, trusted_until=now() - 1 if why == "too late" else now() + 60))
    if why == "stopping":
        loop.stopping.set()
    until_idle(loop.run)
    assert (posted(loop), loop.ran, loop.inflight.running) == ([(Released, lease)], [], set())


def test_lets_go_of_what_another_has_by_now(loop, chores, claimed):
    claimed(lease_on(chores, is_lost=True))
    until_idle(loop.run)
    assert (loop.posted, loop.inflight.held) == ([], set())


def test_does_not_hear_a_handler_whose_time_was_up(loop, chores, claimed, monkeypatch):
    (lease,) = claimed(lease_on(chores))
    monkeypatch.setattr(Chore, "start", lambda chore, ctx: lease.stop())
    until_idle(loop.run)
    assert (loop.posted, loop.inflight.running, loop.inflight.held) == ([], set(), {lease})


def test_has_nothing_to_hand_on_of_what_is_written_with_its_handler(loop, payments, claimed, atomic):
    atomic(None)
    (lease,) = claimed(lease_on(payments))
    until_idle(loop.run)
    assert (loop.posted, loop.written, loop.inflight.held) == ([], [lease], set())


@pytest.mark.parametrize("is_stopping", [False, True])
def test_runs_again_what_met_somebody_else_unless_the_process_stops(is_stopping, loop, payments, claimed, atomic):
    (lease,) = claimed(lease_on(payments))
    atomic(Conflicted(lease))
    loop.on_ran = lambda lease: loop.stopping.set() if is_stopping else None
    until_idle(loop.run)
    assert posted(loop) == ([(Released, lease)] if is_stopping else [])
    assert loop.inflight.close() == ([] if is_stopping else [lease])


class TestDispatch:
    def test_hands_rows_to_the_event_loop_and_on_what_came_of_them(self, loop, pings, claimed):
        (lease,) = claimed(lease_on(pings))
        until_idle(loop.dispatch)
        ((started, finish),) = loop.loop.started
        assert (started, loop.inflight.running, loop.posted) == (lease, {lease}, [])
        finish(lease, Released(lease))
        assert (posted(loop), loop.inflight.running, loop.ran) == ([(Released, lease)], set(), [lease])

    def test_gives_back_what_there_is_no_room_for_when_the_process_stops(self, loop, pings, claimed):
        leases = claimed(lease_on(pings, 1), lease_on(pings, 2))
        loop.loop.on_full = loop.stopping.set
        until_idle(loop.dispatch)
        assert [lease for lease, _finish in loop.loop.started] == [leases[0]]
        assert posted(loop) == [(Released, leases[1])]

    def test_leaves_the_room_to_others_if_a_row_is_not_ours_any_more(self, loop, pings, claimed):
        (lease,) = claimed(lease_on(pings, trusted_until=now() - 1))
        until_idle(loop.dispatch)
        assert (loop.loop.room, loop.loop.started, posted(loop)) == (1, [], [(Released, lease)])

    def test_hears_no_more_of_a_coroutine_that_was_stopped(self, loop, pings, claimed):
        (lease,) = claimed(lease_on(pings))
        until_idle(loop.dispatch)
        ((_lease, finish),) = loop.loop.started
        lease.stop()
        finish(lease, None)
        assert (loop.posted, loop.written, loop.inflight.running) == ([], [], set())
