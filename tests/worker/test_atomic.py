"""Atomic handlers: what they write and what becomes of their row are one transaction."""

from __future__ import annotations

import pytest
from django.db import transaction

from lab.models import Booking, Payment
from statemachine_fields.worker import TryAgainLater
from statemachine_fields.worker.atomic import run_atomic
from statemachine_fields.worker.outcomes import Parked, Released
from tests.worker.rows import (
    about,
    claim,
    claim_one,
    columns_of,
    elsewhere,
    lane_of,
    let_lease_run_out,
    locked,
    must_not_wait,
    not_mariadb,
    only_postgresql,
    seconds_until,
    set_clock,
)

pytestmark = [pytest.mark.django_db(transaction=True), not_mariadb]


@pytest.fixture
def payment():
    return Payment.objects.create()


@pytest.fixture
def lane():
    return lane_of(Payment)


@pytest.fixture
def book(monkeypatch):
    """Let the handler do something else after its booking."""

    def install(program):
        def handle(payment):
            Booking.objects.create(payment=payment, amount=1)
            return program(payment)

        monkeypatch.setattr(Payment, "book", handle)

    return install


def fail(*args):
    raise ValueError("on second thought")


def test_what_it_writes_and_its_move_are_committed_together(lane, payment, executor, events):
    assert run_atomic(executor, events, claim_one(lane)) is None
    row = columns_of(payment)
    assert (row.status, row.lease_owner, row.lease_expires_at) == ("BOOKED", "", None)
    assert (Booking.objects.count(), payment.states.history.count()) == (1, 1)
    assert events.total["moved"] == 1


def test_not_yet_is_written_in_the_transaction_too(lane, payment, book, executor, events):
    book(lambda payment: None)
    assert run_atomic(executor, events, claim_one(lane)) is None
    row = columns_of(payment)
    assert (row.status, row.lease_expires_at, seconds_until(row.next_at)) == ("OPEN", None, about(60))
    assert (Booking.objects.count(), events.total["waited"]) == (1, 1)


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (fail, "ValueError: on second thought"),
        (lambda payment: "NOWHERE", "UnknownState: "),
        (lambda payment: 42, "TypeError: The handler returned 42."),
        (lambda payment: fail(payment.states.transition_to("BOOKED")), "ValueError: on second thought"),
        (lambda payment: payment.states.transition_to("BOOKED"), "TypeError: The handler moved the row itself and "),
    ],
    ids=["raises", "names no state", "gives no answer", "moves and raises", "moves and answers"],
)
def test_what_it_writes_is_undone_with_it(program, error, lane, payment, book, executor, events, committer):
    book(program)
    outcome = run_atomic(executor, events, claim_one(lane))
    assert not Booking.objects.exists()
    assert committer.commit([outcome]) == []
    row = columns_of(payment)
    assert (row.status, row.failures, row.lease_expires_at) == ("OPEN", 1, None)
    assert row.error.startswith(error)
    assert (payment.states.history.count(), events.total["failed"]) == (0, 1)


def test_what_it_writes_is_undone_if_it_wants_to_try_later(lane, payment, book, executor, events, committer):
    def later(payment):
        raise TryAgainLater(after=500)

    book(later)
    committer.commit([run_atomic(executor, events, claim_one(lane))])
    row = columns_of(payment)
    assert (row.status, row.failures, seconds_until(row.next_at)) == ("OPEN", 0, about(500))
    assert not Booking.objects.exists()


def test_it_may_move_its_row_itself(lane, payment, book, executor, events):
    book(lambda payment: [payment.states.transition_to("BOOKED"), None][1])
    assert run_atomic(executor, events, claim_one(lane)) is None
    assert columns_of(payment).status == "BOOKED"
    assert (Booking.objects.count(), events.total["moved"]) == (1, 1)


def test_a_move_that_it_undid_itself_is_not_yet(lane, payment, book, executor, events):
    def undo(payment):
        try:
            with transaction.atomic():
                fail(payment.states.transition_to("BOOKED"))
        except ValueError:
            return

    book(undo)
    assert run_atomic(executor, events, claim_one(lane)) is None
    row = columns_of(payment)
    assert (row.status, row.lease_expires_at, seconds_until(row.next_at)) == ("OPEN", None, about(60))
    assert (Booking.objects.count(), events.total["waited"]) == (1, 1)


def test_it_is_not_run_once_the_lease_is_lost(lane, payment, book, executor, events, committer):
    runs = []
    book(runs.append)
    lease = claim_one(lane)
    let_lease_run_out(payment)
    (other,) = claim(lane, suspects=True, owner="other:2")
    outcome = run_atomic(executor, events, lease)
    assert (type(outcome), runs) == (Released, [])
    assert committer.commit([outcome]) == []
    assert (columns_of(payment).lease_token, events.total["dropped"]) == (other.token, 1)


def test_its_outcome_is_undone_if_the_row_is_taken_from_it_meanwhile(lane, payment, book, executor, events, committer):
    """Nobody can while it has the lock; but code that it calls can."""

    def lose(payment):
        Payment.objects.get().states.release()
        return "BOOKED"

    book(lose)
    committer.commit([run_atomic(executor, events, claim_one(lane))])
    assert (columns_of(payment).status, Booking.objects.count()) == ("OPEN", 0)


def test_a_row_that_needs_no_handler_is_judged_before_it_is_locked(lane, payment, executor, events, committer):
    set_clock(payment, crashes=5)
    (lease,) = claim(lane, suspects=True)
    outcome = run_atomic(executor, events, lease)
    assert type(outcome) is Parked
    committer.commit([outcome])
    assert columns_of(payment).next_at is None


@only_postgresql
def test_it_is_not_run_while_somebody_has_the_row_locked(lane, payment, book, executor, events, committer):
    runs = []
    book(runs.append)
    lease = claim_one(lane)
    must_not_wait()
    with locked(payment):
        outcome = run_atomic(executor, events, lease)
        assert runs == []
        assert committer.commit([outcome]) == [outcome]
    assert committer.commit([outcome]) == []
    row = columns_of(payment)
    assert (row.status, row.lease_expires_at, row.failures) == ("OPEN", None, 0)


@only_postgresql
def test_nobody_takes_the_row_while_it_runs_however_long(lane, payment, book, executor, events):
    """The lease may run out: whoever looks for due rows passes by one that is locked."""
    taken = []

    def be_slow(payment):
        taken.extend(elsewhere(lambda: claim(lane, suspects=True, owner="other:2")))
        return "BOOKED"

    book(be_slow)
    lease = claim_one(lane)
    let_lease_run_out(payment)
    assert run_atomic(executor, events, lease) is None
    assert (taken, columns_of(payment).status) == ([], "BOOKED")
