"""`statemachine_fields.testing`: what a worker would do, in the test's own process and transaction."""

from __future__ import annotations

import datetime

import pytest
from django.utils import timezone

from lab.models import Booking, ByHand, ByOtherWorker, ByWorker, Chore, Payment, Ping, Ticking
from statemachine_fields import StateMachineError
from statemachine_fields.testing import assert_history, assert_state, drain

pytestmark = pytest.mark.django_db


def test_rows_are_run_through_all_their_states():
    chore = Chore.objects.create()
    tally = drain()
    assert_state(chore, "DONE")
    assert_history(chore, "NEW", "DOING", "DONE")
    assert (tally.moved, tally.moves) == (2, {("NEW", "DOING"): 1, ("DOING", "DONE"): 1})


def test_a_row_that_says_not_yet_is_asked_once():
    chore = Chore.objects.create(script={"NEW": None})
    tally = drain(Chore)
    assert (tally.waited, tally.moved) == (1, 0)
    chore.refresh_from_db()
    assert chore.status_failures == 0
    assert 50 < (chore.status_next_at - timezone.now()).total_seconds() < 61


def test_failures_are_counted_and_end_in_error_to():
    chore = Chore.objects.create(script={"NEW": "raise"}, name="this")
    tally = drain(Chore)
    assert (tally.failed, tally.moved) == (2, 1)
    assert_history(chore, "NEW", "FAILED")
    assert chore.states.history[0].metadata == {"error": "ValueError: no luck with this", "attempts": 3}


def test_a_failure_clears_when_the_row_moves_on():
    chore = Chore.objects.create(script={"NEW": ["raise", "DOING"], "DOING": None})
    drain(Chore)
    chore.refresh_from_db()
    assert (chore.status, chore.status_failures, chore.status_error) == ("DOING", 0, "")


@pytest.mark.parametrize(
    ("script", "kind", "failures", "error"),
    [({"NEW": "later"}, "waited", 0, ""), ({"DOING": "retry"}, "failed", 1, "asked for it")],
    ids=["which is no failure if it tries again later", "which has failed, without max_attempts"],
)
def test_a_row_that_does_not_move_is_tried_once(script, kind, failures, error):
    chore = Chore.objects.create(script=script)
    assert getattr(drain(Chore), kind) == 1
    chore.refresh_from_db()
    assert (chore.status_failures, chore.status_error) == (failures, error)


def test_a_handler_may_move_its_row_itself():
    chore = Chore.objects.create(script={"NEW": "itself"})
    tally = drain(Chore)
    assert (tally.moved, tally.dropped) == (2, 0)
    assert_history(chore, "NEW", "DOING", "DONE")


def test_a_move_may_update_other_fields():
    chore = Chore.objects.create(script={"NEW": "update", "DOING": None})
    drain(Chore)
    chore.refresh_from_db()
    assert (chore.status, chore.note) == ("DOING", "written")
    assert chore.states.history[0].metadata == {"attempt": 1}


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("nonsense", "TypeError: The handler returned 42."),
        ("NOWHERE", "UnknownState: "),
        ("NEW", "InvalidStateTransition: "),
    ],
)
def test_a_wrong_answer_is_a_failure(step, error):
    chore = Chore.objects.create(script={"NEW": step})
    assert drain(Chore).errors[0].startswith(error)
    assert_state(chore, "FAILED")


def test_time_outs_happen_when_asked_for():
    chore = Chore.objects.create(script={"DOING": None})
    drain(Chore)
    assert_state(chore, "DOING")
    drain(Chore, timeouts=True)
    assert_state(chore, "FAILED")
    assert chore.states.history[0].metadata == {"timeout_after": 259200.0}


def test_deletions_happen_when_asked_for():
    Chore.objects.create()
    drain(Chore)
    assert drain(Chore, deletions=True).deleted == 1
    assert not Chore.objects.exists()


def test_states_without_handlers_move_by_time_alone():
    ticking = Ticking.objects.create()
    Ticking.saved.clear()
    assert drain(Ticking).tries == 0
    drain(Ticking, timeouts=True)
    assert_history(ticking, "FRESH", "STALE", "GONE")
    assert Ticking.saved == [["status"], ["status"]]


def test_what_an_atomic_handler_writes_stands_with_the_move():
    payment = Payment.objects.create()
    drain(Payment)
    assert_state(payment, "BOOKED")
    assert Booking.objects.count() == 1


def test_what_an_atomic_handler_writes_falls_with_it():
    payment = Payment.objects.create(fails=True)
    assert drain(Payment).failed == 1
    assert_state(payment, "OPEN")
    assert not Booking.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_async_handlers_are_awaited():
    ping = Ping.objects.create()
    drain(Ping)
    assert_history(ping, "SENT", "ANSWERED")


def test_a_child_makes_the_machine_of_its_base_timed():
    assert (ByHand.states._meta.is_timed, ByWorker.states._meta.is_timed) == (False, True)
    first, other = ByWorker.objects.create(), ByOtherWorker.objects.create()
    tally = drain(ByWorker, ByOtherWorker)
    assert (tally.moved, tally.waited) == (1, 1)
    assert_state(first, "LAST")
    assert_state(other, "FIRST")


def test_a_plain_machine_cannot_be_drained():
    with pytest.raises(StateMachineError, match="no timed machine"):
        drain(ByHand)


def test_time_can_be_left_as_it_is():
    chore = Chore.objects.create(script={"NEW": None})
    drain(Chore)
    assert drain(Chore, collapse_time=False).tries == 0
    chore.states.run_at(timezone.now() - datetime.timedelta(seconds=1))
    assert drain(Chore, collapse_time=False).waited == 1


class TestFixtures:
    """What `statemachine_fields.pytest_plugin` gives a project that names it."""

    def test_drain(self, drain):
        Chore.objects.create(script={"DOING": None})
        assert drain(Chore).moves == {("NEW", "DOING"): 1}

    def test_drain_timeouts(self, drain_timeouts):
        chore = Chore.objects.create(script={"DOING": None})
        drain_timeouts(Chore)
        assert_history(chore, "NEW", "DOING", "FAILED")
