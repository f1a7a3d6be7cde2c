"""What a supervisor makes of what its processes say, and of those that say nothing more."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest
from django.db import connection

from statemachine_fields.worker import supervisor as module
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.process import Orders, ProcessReport
from statemachine_fields.worker.supervisor import MOST_LINGERING, SILENCE, Child, Supervisor


class Process:
    """A process that is none."""

    pid = 12345
    sentinel = 0

    def __init__(self, exitcode=None):
        self.exitcode = exitcode
        self.is_killed = False

    def is_alive(self):
        return self.exitcode is None

    def kill(self):
        self.is_killed = True

    def close(self):
        pass

    def start(self):
        pass


class Pipe:
    """One end of a pipe, with what is to be heard, and what was said."""

    def __init__(self, *messages):
        self.messages = [*messages]
        self.said = []

    def poll(self):
        return bool(self.messages)

    def recv(self):
        return self.messages.pop(0)

    def send(self, message):
        self.said.append(message)

    def close(self):
        pass


@pytest.fixture
def supervisor(monkeypatch):
    supervisor = Supervisor(WorkerOptions(machines=(), queues={"chores": 1}))
    monkeypatch.setattr(supervisor, "_start", lambda start, **how: supervisor.starts.append(start))
    return supervisor


def child(supervisor, *reports, code=None, slot=0, age=100.0, **facts):
    now = time.monotonic()
    made = Child(Process(code), Pipe(*reports), Pipe(), slot, now - age, now, **facts)
    supervisor.children.append(made)
    return made


class TestEnd:
    @pytest.mark.parametrize("code", [0, 1, 70, -9])
    def test_that_a_process_has_not_told_of_is_a_death_whatever_its_exit_code(self, code, supervisor, caplog):
        child(supervisor, ProcessReport("host:1"), code=code)
        supervisor._reap()
        (start,) = supervisor.starts
        assert start.predecessor == "host:1"
        assert "A worker process (host:1) died of" in caplog.text

    @pytest.mark.parametrize("code", [0, 1, 70])
    def test_that_it_has_told_of_is_none_whatever_its_exit_code(self, code, supervisor, caplog):
        child(supervisor, ProcessReport("host:1", ended=True), code=code)
        supervisor._reap()
        (start,) = supervisor.starts
        assert (start.predecessor, supervisor.deaths) == (None, 0)
        assert "died" not in caplog.text

    @pytest.mark.parametrize(
        "report",
        [ProcessReport("host:1", ended=True, left="2 of lab.Chore.states"), ProcessReport("host:1")],
        ids=["with leases left", "without a word"],
    )
    def test_that_leaves_leases_while_the_worker_stops_is_told_to_who_started_it(self, report, supervisor):
        supervisor.is_stopping = True
        child(supervisor, report, code=0)
        supervisor._reap()
        assert (supervisor.exit_code, supervisor.starts) == (1, [])

    def test_before_anything_had_begun_is_no_fault(self, supervisor):
        supervisor.is_stopping = True
        child(supervisor, code=0)
        supervisor._reap()
        assert supervisor.exit_code == 0

    def test_soon_after_the_start_again_and_again_makes_it_wait(self, supervisor):
        for _ in range(4):
            child(supervisor, code=1, age=0.0)
            supervisor._reap()
        waits = [start.at - time.monotonic() for start in supervisor.starts]
        assert waits[0] <= 0
        assert waits[1:] == [pytest.approx(wait, abs=0.5) for wait in (2.0, 4.0, 8.0)]

    def test_of_what_was_counted_is_kept(self, supervisor):
        child(supervisor, ProcessReport("host:1", total={"moved": 5}, ended=True), code=0)
        supervisor._reap()
        assert supervisor.gone["moved"] == 5


class TestReplacement:
    def test_is_started_once_while_the_old_one_finishes(self, supervisor):
        old = child(supervisor, ProcessReport("host:1", recycling=True), ProcessReport("host:1", recycling=True))
        supervisor._hear(old)
        assert (len(supervisor.starts), old.is_replaced) == (1, True)
        supervisor.starts.clear()
        old.process.exitcode = 0
        old.pipe.messages.append(ProcessReport("host:1", recycling=True, ended=True))
        supervisor._reap()
        assert supervisor.starts == []

    def test_is_none_while_the_worker_stops(self, supervisor):
        supervisor.is_stopping = True
        supervisor._hear(child(supervisor, ProcessReport("host:1", recycling=True)))
        assert supervisor.starts == []

    def test_knows_what_still_runs_in_the_old_one(self, supervisor):
        for running in ({"chores": 2}, {"chores": 1, "network": 1}):
            child(supervisor, report=ProcessReport("host:1", running=running, recycling=True), is_replaced=True)
        child(supervisor, report=ProcessReport("host:9", running={"chores": 50}), is_replaced=True, slot=1)
        new = child(supervisor, report=ProcessReport("host:2", running={"chores": 7}))
        supervisor._give_orders()
        supervisor._give_orders()
        assert new.orders_pipe.said == [Orders({"chores": 3, "network": 1})]

    def test_learns_when_nothing_runs_there_any_more(self, supervisor):
        old = child(supervisor, report=ProcessReport("host:1", running={"chores": 2}), is_replaced=True)
        new = child(supervisor)
        supervisor._give_orders()
        supervisor.children.remove(old)
        supervisor._give_orders()
        assert new.orders_pipe.said == [Orders({"chores": 2}), Orders()]

    def test_of_too_many_makes_the_oldest_hurry(self, supervisor):
        lingering = [child(supervisor, is_replaced=True) for _ in range(MOST_LINGERING + 2)]
        supervisor._give_orders()
        assert [bool(each.orders_pipe.said) for each in lingering] == [True, True, *[False] * MOST_LINGERING]
        assert lingering[0].orders.hurry


class TestSilence:
    def test_of_a_process_is_ended(self, supervisor):
        silent, heard = child(supervisor), child(supervisor)
        silent.heard_at -= max(SILENCE, supervisor.options.lease_seconds) + 1
        supervisor._watch()
        assert (silent.process.is_killed, heard.process.is_killed) == (True, False)

    def test_that_was_ours_is_not_held_against_it(self, supervisor):
        silent = child(supervisor)
        silent.heard_at -= 1000
        supervisor.watched_at -= 1000
        supervisor._watch()
        assert not silent.process.is_killed


class TestStart:
    @pytest.fixture
    def started(self, monkeypatch):
        """What a process would be started with."""
        calls = []

        def start(target, args):
            calls.append(args)
            return Process()

        supervisor = Supervisor(WorkerOptions(machines=(), queues={"chores": 1}))
        supervisor.context = SimpleNamespace(Pipe=lambda duplex: (Pipe(), Pipe()), Process=start)
        monkeypatch.setattr(supervisor, "_close_connections", lambda: calls.append("closed"))
        return supervisor, calls

    def test_tells_a_process_whose_it_is_and_what_runs_elsewhere(self, started):
        supervisor, calls = started
        child(supervisor, report=ProcessReport("host:1", running={"chores": 2}), is_replaced=True)
        supervisor._start(module.Start(0.0, 0, "host:0"))
        closed, (_options, _pipes, parent, slot, predecessor, is_first, orders) = calls
        assert (closed, parent, slot, predecessor, is_first) == ("closed", os.getpid(), 0, "host:0", False)
        assert orders == supervisor.children[-1].orders == Orders({"chores": 2})

    def test_leaves_no_connection_to_be_shared(self, monkeypatch):
        closed = []
        real = connection._connections[connection._alias]
        monkeypatch.setattr(real, "close", lambda: closed.append("connection"))
        monkeypatch.setattr(real, "close_pool", lambda: closed.append("pool"), raising=False)
        Supervisor(WorkerOptions(machines=()))._close_connections()
        assert closed == ["connection", "pool"]


def test_an_error_of_its_own_stops_the_worker_in_good_order(supervisor, monkeypatch, caplog):
    told = []
    monkeypatch.setattr(supervisor, "_catch_signals", lambda: None)
    monkeypatch.setattr(supervisor, "_signal", lambda child, number: told.append(number))
    monkeypatch.setattr(supervisor, "_listen", lambda: None)
    one = child(supervisor)
    supervisor.options = WorkerOptions(machines=(), processes=0)

    def fail():
        supervisor.children.remove(one)
        raise ValueError("nobody thought of this")

    monkeypatch.setattr(supervisor, "_watch", fail)
    assert supervisor.run() == 1
    assert supervisor.is_stopping
    assert "The supervisor of the worker met an error." in caplog.text


def test_the_liveness_file_is_fresh_only_while_every_process_is_heard(supervisor, tmp_path):
    path = tmp_path / "alive"
    supervisor.options = WorkerOptions(machines=(), liveness_file=str(path))
    silent = child(supervisor)
    silent.heard_at -= SILENCE
    supervisor._liveness()
    assert not path.exists()
    silent.heard_at = time.monotonic()
    supervisor._liveness()
    assert path.exists()
    supervisor._liveness(ended=True)
    assert not path.exists()
