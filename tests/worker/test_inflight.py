"""What a process has in hand, from the claim of a row to the write of its outcome."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from lab.models import Chore, Lot, Ping
from statemachine_fields.worker import inflight as module
from statemachine_fields.worker.inflight import Buffer, InFlight, Wake
from tests.patience import PATIENCE
from tests.worker.rows import Clock, lane_of, lease_on


@pytest.fixture
def inflight(chores):
    return InFlight(Buffer([chores], {}))


def test_a_process_is_done_when_nothing_waits_runs_or_is_to_be_written(inflight, chores):
    lease = lease_on(chores)
    assert inflight.is_empty()
    inflight.buffer.put(chores, [lease])
    assert not inflight.is_empty()
    inflight.took([lease])
    assert inflight.buffer.take() is lease
    assert not inflight.is_empty()
    inflight.let_go([lease])
    assert inflight.is_empty()


def test_the_claimer_looks_for_more_suspects_when_one_is_done_with(inflight, chores):
    suspect, other = lease_on(chores), lease_on(chores, 2)
    inflight.took([suspect, other])
    inflight.suspects.add(suspect)
    inflight.let_go([other])
    assert not inflight.wake.is_set()
    inflight.let_go([suspect])
    assert (inflight.wake.is_set(), inflight.suspects, inflight.held) == (True, set(), set())


def test_a_row_is_run_again_after_a_while(inflight, chores, monkeypatch):
    clock = Clock(monkeypatch, module)
    lease = lease_on(chores)
    inflight.run_again(lease, 1.0)
    assert (inflight.run_those_due_again(), inflight.buffer.is_empty()) == ([], True)
    clock.pass_by(1.0)
    assert inflight.run_those_due_again() == []
    assert inflight.buffer.take() is lease
    assert (inflight.run_those_due_again(), inflight.buffer.is_empty()) == ([], True)


def test_a_row_that_is_to_be_run_again_too_late_is_returned(inflight, chores):
    lease = lease_on(chores)
    inflight.buffer.close()
    inflight.run_again(lease, 0.0)
    assert inflight.run_those_due_again() == [lease]


def test_what_has_not_started_is_returned_at_the_end(inflight, chores):
    waiting, again = lease_on(chores), lease_on(chores, 2)
    inflight.buffer.put(chores, [waiting])
    inflight.run_again(again, 60.0)
    assert inflight.close() == [waiting, again]
    assert inflight.close() == []


def test_handlers_whose_time_was_up_are_not_counted_against_a_queue(inflight, chores):
    pings = lane_of(Ping)
    stopped = lease_on(chores)
    stopped.stop()
    inflight.running.update([stopped, lease_on(chores, 2), lease_on(chores, 3), lease_on(pings)])
    assert inflight.running_by_queue() == {"chores": 2, "network": 1}


def test_rows_of_one_machine_are_told_from_those_of_another(inflight, chores):
    ours, theirs = lease_on(chores), lease_on(lane_of(Lot))
    inflight.took([ours, theirs])
    assert inflight.of_machine(lane_of(Chore)) == [ours]


class TestRowsThatWaitTooLong:
    """What is claimed ahead of handlers that do not end is for who has time."""

    @pytest.fixture
    def clock(self, monkeypatch):
        return Clock(monkeypatch, module)

    def wait_behind(self, inflight, lane, clock, *began):
        """Let a row of a lane wait, while handlers run that began so many seconds ago."""
        row = lease_on(lane, 100, claimed_at=clock.now - 1)
        inflight.buffer.put(lane, [row])
        for key, (runs, ago) in enumerate(began):
            inflight.running.add(lease_on(runs, key, started_at=clock.now - ago))
        return row

    def test_are_taken_back(self, inflight, chores, clock):
        row = self.wait_behind(inflight, chores, clock, (chores, 1.0))
        assert inflight.take_back_the_waiting() == [row]
        assert inflight.buffer.waiting(chores) == 0

    def test_are_left_while_handlers_begin(self, inflight, chores, clock):
        self.wait_behind(inflight, chores, clock, (chores, 1.0), (chores, 0.01))
        assert inflight.take_back_the_waiting() == []

    def test_are_left_while_nothing_runs(self, inflight, chores, clock):
        self.wait_behind(inflight, chores, clock)
        assert inflight.take_back_the_waiting() == []

    def test_are_taken_back_that_came_a_while_ago_and_no_others(self, inflight, chores, clock):
        row = self.wait_behind(inflight, chores, clock, (chores, 1.0))
        young = lease_on(chores, 101, claimed_at=clock.now)
        inflight.buffer.put(chores, [young])
        assert inflight.take_back_the_waiting() == [row]
        assert inflight.buffer.take() is young

    def test_in_a_queue_with_a_limit_are_taken_back_whatever_other_queues_do(self, chores, lots, clock):
        inflight = InFlight(Buffer([chores, lots], {"chores": 1}))
        row = self.wait_behind(inflight, chores, clock, (chores, 1.0), (lots, 0.01))
        other = lease_on(lots, 102, claimed_at=clock.now - 1)
        inflight.buffer.put(lots, [other])
        assert inflight.take_back_the_waiting() == [row]


class TestWake:
    def test_is_waited_for_until_it_is_set(self):
        wake = Wake()
        waiting = threading.Thread(target=wake.wait, args=(10 * PATIENCE,))
        waiting.start()
        wake.set()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()

    def test_is_over_at_once_while_it_is_set(self):
        wake = Wake()
        wake.set()
        wake.set()
        assert wake.wait(PATIENCE) == [wake]
        assert wake.wait(PATIENCE) == [wake]

    def test_is_waited_for_again_once_it_is_cleared(self):
        wake = Wake()
        wake.set()
        wake.clear()
        assert (wake.is_set(), wake.wait(0.01)) == (False, [])
        wake.set()
        assert wake.wait(PATIENCE) == [wake]

    def test_tells_which_pipe_can_be_read(self):
        wake, (reader, writer) = Wake(), multiprocessing.Pipe(duplex=False)
        writer.send_bytes(b"!")
        assert wake.wait(PATIENCE, reader) == [reader]
        wake.set()
        assert {*wake.wait(PATIENCE, reader)} == {wake, reader}

    def test_is_not_missed_by_who_clears_it_at_the_same_moment(self):
        """Either it is set after that, or whoever cleared it looks at what was there."""
        wake, wanted, seen = Wake(), 2000, 0
        asked = iter(range(wanted))
        done = []

        def ask():
            for number in asked:
                done.append(number)
                wake.set()

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for each in asking:
            each.start()
        while seen < wanted:
            assert wake.wait(PATIENCE) or wake.is_set()
            wake.clear()
            seen = len(done)
        for each in asking:
            each.join(PATIENCE)
        assert seen == wanted
