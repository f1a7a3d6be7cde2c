"""Races for one row, or for all of them: whoever wins, there is one winner, and the loser is told."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from django.db import connections, transaction

from lab.models import Chore
from statemachine_fields import ConcurrentTransition, InvalidStateTransition
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.lease import lanes_of
from statemachine_fields.worker.outcome_events import Events
from tests.faults.harness import check_invariants, create_chores
from tests.patience import PATIENCE

ROUNDS = 20


class Racer:
    """A worker's committer, with a lease on the row of each round."""

    def __init__(self):
        (self.lane,) = lanes_of([Chore.states._meta])
        self.executor, self.events = HandlerExecutor(max_crashes=5), Events()
        self.committer = Committer(self.executor, self.events)

    def claim(self, limit=1):
        return Claimer("me", 60).claim(self.lane, limit)

    def commit(self, lease, answer="DONE"):
        """Write an outcome, as often as it takes, and say what became of it."""
        outcomes = [self.executor.judge(lease, answer)]
        while outcomes:
            outcomes = self.committer.commit(outcomes)

    def count(self, what):
        return self.events.total[what]


@pytest.fixture
def racer(database):
    return Racer()


def transition_to(pk):
    try:
        Chore.objects.get(pk=pk).states.transition_to("FAILED")
    except (InvalidStateTransition, ConcurrentTransition):
        return False
    return True


def bulk_transition(pk):
    return Chore.states.bulk_transition(Chore.objects.filter(pk=pk), "FAILED").moved == 1


def save(pk):
    row = Chore.objects.get(pk=pk)
    row.note = "saved"
    row.save()
    return False  # it moves nothing, whoever wins


def together(*programs):
    """Run programs at the same time, each with a connection of its own, and return what they return."""
    barrier = threading.Barrier(len(programs))

    def run(program):
        try:
            connections["default"].ensure_connection()
            barrier.wait(PATIENCE)
            return program()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(programs)) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(run, program) for program in programs]]


@pytest.mark.parametrize("foreground", [transition_to, bulk_transition, save])
def test_a_foreground_write_and_a_commit_at_the_same_time_have_one_winner(racer, foreground):
    """#20. I1, I2, I6: either the row went where the worker said, or the worker's outcome was dropped."""
    keys = create_chores(ROUNDS, status="DOING")
    leases = {lease.key: lease for lease in racer.claim(ROUNDS)}
    won = 0
    for pk in keys:
        _, by_hand = together(lambda pk=pk: racer.commit(leases[pk]), lambda pk=pk: foreground(pk))
        won += by_hand
        assert Chore.objects.get(pk=pk).status == ("FAILED" if by_hand else "DONE")
    assert (racer.count("moved"), racer.count("dropped")) == (ROUNDS - won, won)
    if foreground is save:
        assert not Chore.objects.exclude(note="saved").exists()
    check_invariants(moves=ROUNDS, terminal=True, released=True)


@pytest.mark.parametrize("foreground", [transition_to, bulk_transition, save])
@pytest.mark.parametrize("order", ["foreground first", "commit first"])
def test_a_foreground_write_before_or_after_a_commit_is_judged_by_the_row(racer, foreground, order):
    """#20, both orders. I1, I2, I4, I6."""
    (pk,) = create_chores(1, status="DOING")
    (lease,) = racer.claim()
    stale = Chore.objects.get(pk=pk)
    if order == "foreground first":
        moved = foreground(pk)
        racer.commit(lease)
    else:
        racer.commit(lease)
        moved = foreground(pk)
        assert not moved
    assert Chore.objects.get().status == ("FAILED" if moved else "DONE")
    assert racer.count("dropped") == moved
    stale.save()  # with all its columns, from before
    check_invariants(moves=1, terminal=True, released=True)


@pytest.mark.parametrize("foreground", [transition_to, bulk_transition, save])
@pytest.mark.parametrize("end", ["commits", "rolls back"])
def test_a_commit_does_not_wait_for_an_open_transaction(racer, foreground, end):
    """#20, in the middle of a transaction. I1, I2, I6: the outcome is written or dropped when that has ended."""
    (pk,) = create_chores(1, status="DOING")
    (lease,) = racer.claim()
    outcome = racer.executor.judge(lease, "DONE")
    with transaction.atomic():
        moved = foreground(pk)

        def elsewhere():
            return racer.committer.commit([outcome])

        (again,) = together(elsewhere)
        assert again == [outcome], "to be tried again, and nothing was written"
        if end == "rolls back":
            transaction.set_rollback(True)
            moved = False
    assert racer.committer.commit([outcome]) == []
    assert Chore.objects.get().status == ("FAILED" if moved else "DONE")
    assert (racer.count("moved"), racer.count("dropped")) == (not moved, moved)
    check_invariants(moves=1, terminal=True, released=True)


def test_a_row_moved_away_and_back_is_not_the_row_that_was_claimed(racer):
    """#20, ABA in the foreground: the same state again, and another stay in it. I1, I2: the outcome is dropped."""
    (pk,) = create_chores(1)
    (lease,) = racer.claim()
    row = Chore.objects.get(pk=pk)
    for status in ("HELD", "NEW"):
        row.states.transition_to(status)
    racer.commit(lease, "DONE")
    assert Chore.objects.get().status == "NEW"
    assert racer.count("dropped") == 1
    check_invariants(moves=2, released=True)


def test_many_claimers_share_the_rows_and_no_row_is_claimed_twice(database):
    """#21: 8 sessions, 20,000 rows. I1, I3: the claims are disjoint, and together they are all there is."""
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "INSERT INTO lab_chore (name, script, note, status, status_next_at) "
            "SELECT n, '{}', '', 'NEW', now() FROM generate_series(1, 20000) n"
        )
    (lane,) = lanes_of([Chore.states._meta])

    def claim_all(owner):
        claimer, taken, misses = Claimer(owner, 60), [], 0
        while misses < 3:  # one may be all that others have locked
            leases = claimer.claim(lane, 500)
            taken += [lease.key for lease in leases]
            misses = 0 if leases else misses + 1
        return taken

    taken = together(*[lambda owner=f"w{number}": claim_all(owner) for number in range(8)])
    counts = Counter(key for keys in taken for key in keys)
    assert len(counts) == 20_000
    assert set(counts.values()) == {1}
    assert sum(bool(keys) for keys in taken) > 1, "they did share"
    assert set(Chore.objects.values_list("status_lease_token", "status_crashes").distinct()) == {(1, 0)}


def test_nobody_claims_what_is_held(database):
    """#21: a lease that has not run out is a lease. I1."""
    create_chores(10)
    (lane,) = lanes_of([Chore.states._meta])
    tokens = []
    for one, other in pairwise("abc"):
        taken = Claimer(one, 60).claim(lane, 10)
        assert Claimer(other, 60).claim(lane, 10) == []
        assert Claimer(other, 60).claim(lane, 10, suspects=True) == []
        tokens += [{lease.token for lease in taken}]
    assert tokens[1] == set()
