"""Each outcome is written by the thread it belongs to, and tried again until it is."""

from __future__ import annotations

import time

import pytest
from django.db import connections

from lab.models import Lot, Ticking
from statemachine_fields.worker import commit as module
from statemachine_fields.worker.commit import CommitLoop, CommitRouter
from statemachine_fields.worker.connections import OwnConnections, Reconnect
from statemachine_fields.worker.lease import Lane
from statemachine_fields.worker.outcomes import (
    Deleted,
    Failed,
    Parked,
    Released,
    Transitioned,
    TransitionedItself,
    Waited,
)
from statemachine_fields.worker.prefetch import WritePace
from statemachine_fields.worker.writing import ConnectionLost
from tests.patience import PATIENCE
from tests.worker.rows import claim_one, columns_of, elsewhere, lane_of, lease_on, locked, not_mariadb, only_postgresql

pytestmark = [pytest.mark.django_db(transaction=True), not_mariadb]


class Enough(Exception):
    """Ends a loop that has no end."""


@pytest.fixture
def make(committer, inflight):
    return lambda role="committer": CommitLoop(role, committer, inflight, OwnConnections(60), ["default"], 100)


@pytest.fixture
def loop(make):
    return make()


def run_until(loop, is_enough):
    """Run a loop in a thread of its own until nothing more is to be done."""
    until = time.monotonic() + PATIENCE

    def stop():
        if is_enough() or time.monotonic() > until:
            raise Enough

    def program():
        connections["default"].close()
        with pytest.raises(Enough):
            loop.run()

    loop.on_idle = stop
    elsewhere(program)


class TestCommitRouter:
    @pytest.fixture
    def commits(self, make, lots):
        return CommitRouter(make, lanes=[lots, lane_of(Ticking)])

    @pytest.mark.parametrize(
        ("kind", "facts", "role"),
        [
            (Transitioned, {"to_status": "SOLD"}, "committer"),
            (Transitioned, {"to_status": "SOLD", "update": {"amount": 7}}, "writer"),
            (Waited, {}, "committer"),
            (Failed, {}, "committer"),
            (Parked, {}, "committer"),
            (Released, {}, "committer"),
            (TransitionedItself, {}, "committer"),
            (Deleted, {}, "housekeeper"),
        ],
    )
    def test_parts_what_is_quick_from_what_may_take_long(self, kind, facts, role, commits, lots):
        commits.post(kind(lease_on(lots), **facts))
        assert [loop.role for loop in commits.loops.values() if len(loop)] == [role]

    def test_keeps_moves_that_run_code_of_the_project_apart(self, make):
        ticking = lane_of(Ticking)
        commits = CommitRouter(make, lanes=[ticking])
        commits.post(Transitioned(lease_on(ticking), to_status="STALE"))
        commits.post(Waited(lease_on(ticking)))
        assert (len(commits.loops["writer"]), len(commits.loops["committer"])) == (1, 1)

    def test_asks_again_which_those_are(self, commits, lots, monkeypatch):
        monkeypatch.setattr(Lane, "is_watched", True)
        commits.tick()
        commits.post(Transitioned(lease_on(lots), to_status="SOLD"))
        assert len(commits.loops["writer"]) == 0
        commits._asked_at -= module.ASK_AGAIN_AFTER + 1
        commits.tick()
        commits.post(Transitioned(lease_on(lots), to_status="SOLD"))
        assert len(commits.loops["writer"]) == 1


@only_postgresql
class TestLoop:
    @pytest.fixture
    def outcome(self, lots, inflight):
        Lot.objects.create()
        lease = claim_one(lots)
        inflight.took([lease])
        return Transitioned(lease, to_status="SOLD")

    def test_writes_and_lets_go(self, loop, outcome, inflight):
        written = []
        loop.on_written = written.extend
        loop.outbox.add(outcome)
        run_until(loop, lambda: not inflight.held)
        assert (columns_of(outcome.lease.instance).status, written) == ("SOLD", [outcome])

    def test_counts_what_waits_for_its_write_also_while_it_writes(self, loop, outcome, lots, committer, monkeypatch):
        other = lane_of(Ticking)
        loop.paces = {lane: WritePace(least=1, most=4) for lane in (lots, other)}
        loop.outbox.add(outcome)
        assert (loop.room(lots), loop.room(other)) == (3, 3)
        for key in (91, 92):
            loop.outbox.add(Transitioned(lease_on(lots, key), to_status="SOLD"))
        assert (loop.room(lots), loop.room(other)) == (0, 4), "those of other lanes are others' affair"
        seen = []
        monkeypatch.setattr(committer, "write_group", lambda *args: seen.append(loop.room(lots)) or [])
        run_until(loop, lambda: seen)
        assert (seen, loop.room(lots)) == ([0], 4)

    def test_gives_back_what_there_is_no_time_for(self, loop, outcome, inflight, lots):
        Lot.objects.create()
        sent = Transitioned(claim_one(lots), to_status="SOLD", is_repeated=True)
        inflight.took([sent.lease])
        for each in (outcome, sent):
            loop.outbox.add(each)
        loop.is_over, written = True, []
        loop.on_written = written.extend
        run_until(loop, lambda: not inflight.held)
        assert columns_of(outcome.lease.instance).status == "OPEN"
        assert columns_of(outcome.lease.instance).lease_expires_at is None
        assert columns_of(sent.lease.instance).status == "SOLD", (
            "which may have been written before, so that it is sent again"
        )
        assert sorted(each.kind for each in written) == ["moved", "released"]

    def test_tries_again_what_is_locked_and_keeps_it_in_hand_until_then(self, loop, outcome, inflight):
        lock = locked(outcome.lease.instance)
        lock.__enter__()
        held = []

        def is_enough():
            if outcome.tries == 1 and not held:
                held.append(set(inflight.held))
                lock.__exit__(None, None, None)
            return not inflight.held

        loop.outbox.add(outcome)
        run_until(loop, is_enough)
        assert held == [{outcome.lease}]
        assert (columns_of(outcome.lease.instance).status, len(loop)) == ("SOLD", 0)

    def test_sends_again_what_was_not_answered(self, loop, outcome, inflight, committer, monkeypatch, caplog):
        real, calls = committer.write_group, []

        def break_once(*args):
            calls.append(args)
            if len(calls) == 1:
                raise ConnectionLost("server closed the connection unexpectedly")
            return real(*args)

        monkeypatch.setattr(committer, "write_group", break_once)
        loop.outbox.add(outcome)
        with caplog.at_level("INFO"):
            run_until(loop, lambda: not inflight.held)
        assert columns_of(outcome.lease.instance).status == "SOLD"
        assert "The committer has no database and tries again (default)" in caplog.text
        assert "The committer has its database again (default)." in caplog.text

    def test_does_not_ask_a_database_that_is_away_for_every_row(self, loop, outcome, committer, monkeypatch):
        calls = []

        def away(*args):
            calls.append(args)
            raise ConnectionLost("away")

        monkeypatch.setattr(committer, "write_group", away)
        loop.outbox.add(outcome)
        ends = time.monotonic() + 0.5
        run_until(loop, lambda: time.monotonic() > ends)
        assert 1 < len(calls) < 8
        assert len(loop) == 1

    def test_waits_but_a_moment_when_the_process_ends(self, loop, outcome):
        outcome.again_at = time.monotonic() + 60
        loop._later = [outcome]
        assert loop._due_again() == []
        loop.is_ending = True
        assert loop._due_again() == [outcome]


class TestReconnect:
    def test_says_once_that_the_database_is_away_and_once_that_it_is_back(self, events, caplog):
        reconnect = Reconnect("claimer", "default", events.digest)
        with caplog.at_level("INFO"):
            reconnect.found()
            for _ in range(3):
                reconnect.lost(ConnectionLost("away"))
            assert not reconnect.is_over
            reconnect.found()
            reconnect.found()
        assert [message[:30] for message in caplog.messages] == [
            "The claimer has no database an",
            "The claimer has its database a",
        ]
