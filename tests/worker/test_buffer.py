"""Claimed rows are handed out in turns, within limits, each once."""

from __future__ import annotations

import threading
from collections import deque

from lab.models import Chore
from statemachine_fields.worker import inflight
from statemachine_fields.worker.inflight import Buffer, Outbox
from statemachine_fields.worker.outcomes import Waited
from tests.patience import PATIENCE
from tests.worker.rows import lane_of, lease_on


class Taker:
    """A thread that takes one row."""

    def __init__(self, buffer, *, is_async=False):
        self.buffer = buffer
        self.is_idle = threading.Event()
        buffer.on_idle = [self.is_idle.set]
        self.taken = []
        self.thread = threading.Thread(target=lambda: self.taken.append(buffer.take(is_async=is_async)), daemon=True)
        self.thread.start()

    def waits(self):
        """Say whether it found nothing that it may have."""
        return self.is_idle.wait(PATIENCE) and not self.taken

    def result(self):
        self.thread.join(PATIENCE)
        (result,) = self.taken
        return result


def test_lanes_take_turns(chores, lots):
    buffer = Buffer([chores, lots], {})
    buffer.put(chores, [lease_on(chores, key) for key in (1, 2, 3)])
    buffer.put(lots, [lease_on(lots, key) for key in (4, 5)])
    assert [buffer.take().key for _ in range(5)] == [1, 4, 2, 5, 3]


def test_a_thread_that_finds_nothing_waits_for_the_next_row(chores):
    buffer = Buffer([chores], {})
    taker, lease = Taker(buffer), lease_on(chores)
    assert taker.waits()
    buffer.put(chores, [lease])
    assert taker.result() is lease


def test_it_is_told_when_few_are_left(chores):
    buffer, told = Buffer([chores], {}), []
    buffer.on_low = lambda lane, left: told.append((lane, left))
    buffer.put(chores, [lease_on(chores, key) for key in (1, 2)])
    for _ in range(2):
        buffer.take()
    assert told == [(chores, 1), (chores, 0)]


def test_it_knows_how_many_wait(chores, pings):
    buffer = Buffer([chores, pings], {})
    buffer.put(chores, [lease_on(chores, key) for key in (1, 2)])
    buffer.put(pings, [lease_on(pings)])
    assert (buffer.waiting(chores), buffer.waiting(pings), buffer.is_empty()) == (2, 1, False)


class TestLimits:
    def test_no_more_of_a_queue_run_than_it_may_have(self, chores, lots):
        buffer = Buffer([chores, lots], {"chores": 1})
        first, second = lease_on(chores, 1), lease_on(chores, 2)
        buffer.put(chores, [first, second])
        assert buffer.take() is first
        taker = Taker(buffer)
        assert taker.waits()
        buffer.finished(first)
        assert taker.result() is second

    def test_a_queue_that_is_full_does_not_hold_up_another(self, chores, lots):
        buffer = Buffer([chores, lots], {"chores": 1})
        buffer.put(chores, [lease_on(chores, key) for key in (1, 2)])
        buffer.put(lots, [lease_on(lots, key) for key in (3, 4)])
        assert [buffer.take().key for _ in range(3)] == [1, 3, 4]

    def test_what_runs_in_a_process_that_is_being_replaced_counts(self, chores):
        buffer = Buffer([chores], {"chores": 2})
        buffer.count_elsewhere({"chores": 2})
        lease = lease_on(chores)
        buffer.put(chores, [lease])
        taker = Taker(buffer)
        assert taker.waits()
        buffer.count_elsewhere({"chores": 1})
        assert taker.result() is lease

    def test_they_are_shared_by_threads_and_the_event_loop(self, chores, pings):
        buffer = Buffer([pings], {"network": 1})
        buffer.put(pings, [lease_on(pings, 1), lease_on(pings, 2)])
        assert buffer.take(is_async=True).key == 1
        assert Taker(buffer, is_async=True).waits()


class TestKinds:
    def test_rows_for_threads_and_for_the_event_loop_wait_apart(self, chores, pings):
        buffer = Buffer([pings, chores], {})
        ping, chore = lease_on(pings), lease_on(chores)
        buffer.put(pings, [ping])
        buffer.put(chores, [chore])
        assert (buffer.take(), buffer.take(is_async=True)) == (chore, ping)

    def test_a_row_wakes_who_may_have_it(self, chores, pings):
        buffer = Buffer([pings, chores], {})
        threads = Taker(buffer)
        assert threads.waits()
        loop = Taker(buffer, is_async=True)
        assert loop.waits()
        buffer.put(chores, [chore := lease_on(chores)])
        assert threads.result() is chore
        assert not loop.taken
        buffer.put(pings, [ping := lease_on(pings)])
        assert loop.result() is ping

    def test_a_state_of_the_same_lane_without_a_coroutine_is_for_threads(self, pings):
        buffer = Buffer([pings], {})
        plain = lease_on(pings)
        plain.schedule = lease_on(lane_of(Chore)).schedule
        buffer.put(pings, [plain, ping := lease_on(pings, 2)])
        assert (buffer.take(), buffer.take(is_async=True)) == (plain, ping)


class TestClose:
    def test_returns_what_nobody_took(self, chores, pings):
        buffer = Buffer([chores, pings], {})
        leases = [lease_on(chores, 1), lease_on(chores, 2)]
        buffer.put(chores, leases)
        buffer.put(pings, [ping := lease_on(pings)])
        assert buffer.take() is leases[0]
        assert set(buffer.close()) == {leases[1], ping}
        assert (buffer.is_empty(), buffer.take(), buffer.take(is_async=True)) == (True, None, None)

    def test_wakes_every_thread(self, chores):
        buffer = Buffer([chores], {})
        takers = [Taker(buffer, is_async=is_async) for is_async in (False, False, True)]
        buffer.close()
        assert [taker.result() for taker in takers] == [None, None, None]

    def test_lets_no_more_in(self, chores):
        buffer = Buffer([chores], {})
        buffer.close()
        lease = lease_on(chores)
        assert buffer.put(chores, [lease]) == [lease]
        assert buffer.is_empty()


class TestManyThreads:
    def test_each_row_is_handed_out_once_and_none_is_lost(self, chores, lots):
        """Taking needs no lock, also while rows are put and the buffer is closed."""
        buffer, taken, late = Buffer([chores, lots], {}), [], []
        template = {lane: lease_on(lane) for lane in (chores, lots)}

        def take():
            mine = []
            while (lease := buffer.take()) is not None:
                mine.append(lease)
            taken.extend(mine)

        def put(lane, first):
            for start in range(first, first + 4000, 50):
                leases = [lease_on(lane, key, instance=template[lane].instance) for key in range(start, start + 50)]
                late.extend(buffer.put(lane, leases))

        takers = [threading.Thread(target=take) for _ in range(4)]
        putters = [threading.Thread(target=put, args=[lane, first]) for lane, first in ((chores, 0), (lots, 10_000))]
        for thread in (*takers, *putters):
            thread.start()
        for thread in putters:
            thread.join(PATIENCE)
        left = buffer.close()
        for thread in takers:
            thread.join(PATIENCE)
        keys = [lease.key for lease in (*taken, *late, *left)]
        assert sorted(keys) == [*range(4000), *range(10_000, 14_000)]

    def test_a_row_that_another_was_quicker_to_take_is_passed_by(self, chores, lots):
        class Elusive(deque):
            def popleft(self):
                raise IndexError

        buffer = Buffer([chores, lots], {})
        buffer._rows[False][chores] = Elusive([lease_on(chores)])
        buffer.put(lots, [lot := lease_on(lots)])
        assert buffer.take() is lot


class TestOutbox:
    def test_hands_on_together_what_came_together(self, chores):
        outbox = Outbox(10)
        outcomes = [Waited(lease_on(chores, key)) for key in range(3)]
        for outcome in outcomes:
            outbox.add(outcome)
        outbox.flush()
        assert (outbox.take(0.0), len(outbox)) == (outcomes, 0)

    def test_hands_on_no_more_than_a_batch_at_once_and_then_the_rest(self, chores):
        outbox = Outbox(2)
        outcomes = [Waited(lease_on(chores, key)) for key in range(5)]
        for outcome in outcomes:
            outbox.add(outcome)
        assert [len(outbox.take(0.0)) for _ in range(4)] == [2, 2, 1, 0]

    def test_is_not_waited_for_longer_than_told(self):
        assert Outbox(2).take(0.0) == []

    def test_hands_nothing_to_a_second_thread_while_a_first_one_waits_for_more(self, chores, monkeypatch):
        monkeypatch.setattr(inflight, "LINGER", 30.0)
        outbox, taken, waits = Outbox(10), [], threading.Event()
        first = threading.Thread(target=lambda: taken.append(outbox.take(30.0)), daemon=True)

        def linger(seconds, wait=outbox._now.wait):
            assert threading.current_thread() is first, "one is enough"
            waits.set()
            wait(seconds)

        monkeypatch.setattr(outbox._now, "wait", linger)
        first.start()
        outbox.add(outcome := Waited(lease_on(chores)))
        assert waits.wait(PATIENCE)
        assert outbox.take(0.0) == []
        outbox.flush()
        first.join(PATIENCE)
        assert taken == [[outcome]]
