"""How a process comes to its end, and what it hears of its supervisor."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from lab.models import Chore
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.process import Orders, Pipes, SupervisorLink
from statemachine_fields.worker.runner import Runner
from tests.worker.rows import lane_of, lease_on


@pytest.fixture
def runner():
    options = WorkerOptions(machines=(), stop_seconds=0.05, queues={"chores": 2}, lease_seconds=60.0)
    runner = Runner([lane_of(Chore)], options, owner="me:1")
    runner.claiming.ended.set()
    yield runner
    runner.loop._loop.close()


@pytest.fixture
def running(runner):
    """A row whose handler runs."""
    lease = lease_on(runner.lanes[0])
    runner.inflight.running.add(lease)
    return lease


class TestStop:
    def test_waits_for_handlers_as_long_as_it_may_and_gives_back_the_rest(self, runner, running):
        runner.stop()
        assert running.is_stopped
        (outcome,) = runner.commits.loops["committer"].outbox.take(0.0)
        assert (outcome.lease, outcome.kind) == (running, "released")

    def test_of_a_process_that_is_being_replaced_waits_for_as_long_as_they_take(self, runner, running):
        ends = time.monotonic() + 0.3

        def meanwhile():
            if time.monotonic() > ends:
                runner.inflight.running.discard(running)

        runner.stop(meanwhile, is_hurried=lambda: False)
        assert not running.is_stopped
        assert time.monotonic() >= ends

    def test_may_become_hurried(self, runner, running):
        hurry = time.monotonic() + 0.1
        runner.stop(is_hurried=lambda: time.monotonic() > hurry)
        assert running.is_stopped

    def test_gives_back_what_has_not_started(self, runner):
        lane = runner.lanes[0]
        leases = [lease_on(lane, key) for key in (1, 2)]
        runner.inflight.buffer.put(lane, leases)
        leases[1].is_lost = True
        runner.stop()
        assert [outcome.lease for outcome in runner.commits.loops["committer"].outbox.take(0.0)] == leases[:1]

    def test_waits_for_the_claimer_which_may_have_a_claim_under_way(self, runner):
        runner.claiming.ended.clear()
        ends = time.monotonic() + 0.2

        def meanwhile():
            if time.monotonic() > ends:
                runner.claiming.ended.set()

        runner.stop(meanwhile)
        assert runner.claiming.ended.is_set()
        assert runner.left_behind() == ""

    def test_tells_what_could_not_be_given_back(self, runner):
        runner.inflight.took([lease_on(runner.lanes[0])])
        assert runner.left_behind() == "1 of lab.Chore.states"

    def test_tells_of_a_claim_that_was_not_answered(self, runner):
        runner.claiming.ended.clear()
        assert runner.left_behind() == "perhaps some, of a claim that was not answered"


class TestLine:
    @pytest.fixture
    def line(self, runner):
        ours, theirs = multiprocessing.Pipe(duplex=False)
        theirs_to_hear, ours_to_tell = multiprocessing.Pipe(duplex=False)

        def make(supervisor, orders=None):
            return SupervisorLink(Pipes(theirs, theirs_to_hear), supervisor, runner, orders or Orders())

        make.heard, make.tell = ours, ours_to_tell
        yield make
        for pipe in (ours, theirs, theirs_to_hear, ours_to_tell):
            pipe.close()

    def test_a_process_knows_its_supervisor_by_what_it_was_told_before_the_fork(self, line):
        """One whose supervisor died while it started has another parent from the first moment."""
        assert line(os.getppid()).report()
        assert not line(os.getppid() + 100_000).report()

    @pytest.mark.parametrize("when", ["at the start", "later"])
    def test_what_runs_in_the_process_before_it_counts_against_queues(self, when, line, runner):
        orders = Orders({"chores": 2})
        mouth = line(os.getppid(), orders if when == "at the start" else None)
        if when == "later":
            line.tell.send(orders)
            mouth.report()
        assert runner.inflight.buffer._is_full("chores")

    def test_an_order_to_hurry_is_heard(self, line):
        mouth = line(os.getppid())
        line.tell.send(Orders(hurry=True))
        mouth.report()
        assert mouth.orders.hurry

    def test_the_last_report_says_that_it_is_the_last(self, line):
        line(os.getppid()).report_last("2 of lab.Chore.states")
        report = line.heard.recv()
        assert (report.owner, report.ended, report.left) == ("me:1", True, "2 of lab.Chore.states")

    def test_a_supervisor_that_does_not_listen_holds_nobody_up(self, line, runner):
        runner.events.total["moved"] = 1
        mouth = line(os.getppid())
        for _ in range(2000):
            assert mouth.report()
