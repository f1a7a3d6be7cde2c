"""Deletion when the time in a state is up: never of a row that somebody else has, or that is no longer in that state."""

from __future__ import annotations

import pytest

from lab.models import Chore, Lot, Pin
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.lease import lanes_of
from statemachine_fields.worker.outcome_events import Events
from statemachine_fields.worker.outcomes import Deleted
from tests.faults.harness import check_invariants, create_chores, execute
from tests.patience import eventually

Records = Chore.states.transition_model

OLD = "UPDATE {} SET status_changed_at = now() - interval '2 years', status_next_at = now() WHERE status = %s"


def make_old(table="lab_chore", status="DONE"):
    execute(OLD.format(table), status)


def create_done(number):
    """Create rows that have moved twice, so that records hang on them, and are old enough to be deleted."""
    keys = create_chores(number)
    for status in ("DOING", "DONE"):
        assert Chore.states.bulk_transition(Chore.objects.filter(pk__in=keys), status).moved == number
    make_old()
    return keys


def test_rows_are_deleted_in_batches_with_what_hangs_on_them(start_worker):
    """#31: 250 rows and 500 records. I3, I8, with a row too young to be deleted."""
    old = create_done(250)
    (young,) = create_chores(1)
    Chore.objects.get(pk=young).states.transition_to("DONE")
    worker = start_worker("--processes", "2")
    eventually(lambda: not Chore.objects.filter(pk__in=old).exists(), "the old rows are gone")
    assert worker.terminate() == 0
    assert Chore.objects.get().pk == young
    assert Records.objects.count() == 1
    assert "250 deleted" in worker.log()
    check_invariants(moves=1, terminal=True, released=True)


def test_a_row_that_is_protected_is_parked_and_its_neighbours_deleted(start_worker):
    """#31: something hangs on one row that must not be deleted. I5."""
    lots = Lot.objects.bulk_create([Lot(status="SOLD") for _ in range(20)])
    Pin.objects.create(lot=lots[3])
    make_old("lab_lot", "SOLD")
    worker = start_worker(labels=["lab.Lot"])
    eventually(lambda: Lot.objects.count() == 1, "the others are gone")
    row = eventually(lambda: Lot.states.parked().first(), "it is parked")
    assert row.pk == lots[3].pk
    assert "ProtectedError" in row.status_error
    assert worker.terminate() == 0


@pytest.fixture
def deleting(database):
    """A committer, and what it is about to delete: one row, two records."""
    create_done(1)
    (lane,) = lanes_of([Chore.states._meta])
    executor = HandlerExecutor(max_crashes=5)
    committer = Committer(executor, Events())
    (lease,) = Claimer("me", 60).claim(lane, 1)
    outcome = executor.without_handler(lease)
    assert type(outcome) is Deleted
    return committer, outcome


def test_a_row_that_another_worker_has_taken_is_not_deleted(deleting):
    """#31: our lease ran out on the way to the database. I1."""
    committer, outcome = deleting
    execute("UPDATE lab_chore SET status_lease_expires_at = now() - interval '1 second'")
    (other,) = Claimer("other", 60).claim(outcome.lease.lane, 1, suspects=True)
    before = Chore.objects.values().get()
    assert committer.commit([outcome]) == []
    assert committer.events.total["dropped"] == 1
    assert Chore.objects.values().get() == before
    assert other.token == before["status_lease_token"]
    assert Records.objects.count() == 2


def test_a_row_that_has_moved_meanwhile_is_not_deleted(deleting):
    """#31: somebody put it back. I1, I2."""
    committer, outcome = deleting
    Chore.objects.get().states.force_transition_to("NEW", reason="once more")
    assert committer.commit([outcome]) == []
    assert committer.events.total["dropped"] == 1
    assert Chore.objects.get().status == "NEW"
    assert Records.objects.count() == 3


def test_a_row_that_another_worker_holds_is_not_claimed_for_deletion(database):
    """#31. I1."""
    create_done(1)
    execute("UPDATE lab_chore SET status_lease_owner = 'other', status_lease_expires_at = now() + interval '1 hour'")
    (lane,) = lanes_of([Chore.states._meta])
    assert Claimer("me", 60).claim(lane, 1) == Claimer("me", 60).claim(lane, 1, suspects=True) == []
