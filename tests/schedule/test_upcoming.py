"""What comes next for a row: by its state's policy, and always what a worker would then do."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shop.models import Order
from statemachine_fields.schedule.handlers import Handler
from statemachine_fields.schedule.policy import Policy, Schedule
from statemachine_fields.schedule.upcoming import Upcoming, UpcomingKind, deadline_of, foresee
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.outcomes import Deleted, Transitioned, Waited
from tests.worker.rows import lane_of, lease_on

NOW = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)


def clock(handled: bool = True, **options) -> Schedule:
    return Schedule.of("A", Policy(**options), Handler("run") if handled else None, "default")


def ago(seconds: float) -> dt.datetime:
    return NOW - dt.timedelta(seconds=seconds)


def later(seconds: float) -> dt.datetime:
    return ago(-seconds)


def see(its: Schedule, *, entered: float = 10, due: float | None = 5, failures: int = 0) -> Upcoming | None:
    """Return what comes next for a row that entered its state some seconds ago and is due in some."""
    next_at = None if due is None else later(due)
    return foresee(its, entered_at=ago(entered), next_at=next_at, failures=failures, now=NOW)


class TestKinds:
    def test_a_handler_runs(self):
        assert see(clock()) == Upcoming(UpcomingKind.RUN, later(5), runs=True)

    def test_a_handler_that_failed_is_tried_again(self):
        found = see(clock(max_attempts=5, error_to="B"), failures=1)
        assert found == Upcoming(UpcomingKind.RETRY, later(5), attempt=2, of=5, runs=True)

    def test_without_a_limit_the_tries_are_of_no_number(self):
        assert see(clock(), failures=7) == Upcoming(UpcomingKind.RETRY, later(5), attempt=8, runs=True)

    def test_the_last_try_says_where_it_leads_if_it_fails(self):
        found = see(clock(max_attempts=2, error_to="B"), failures=1)
        assert (found.attempt, found.of, found.to_state, found.is_last_attempt) == (2, 2, "B", True)

    def test_the_only_try_is_the_last_one(self):
        found = see(clock(max_attempts=1, error_to="B"))
        assert (found.kind, found.to_state, found.is_last_attempt) == (UpcomingKind.RUN, "B", True)

    def test_a_time_out_says_where_to(self):
        found = see(clock(handled=False, timeout_after=24, timeout_to="B"), due=14)
        assert found == Upcoming(UpcomingKind.TIME_OUT, later(14), to_state="B")

    def test_the_time_out_of_a_state_with_a_handler_is_tried_once_more(self):
        found = see(clock(timeout_after=24, timeout_to="B"), due=14)
        assert found == Upcoming(UpcomingKind.TIME_OUT, later(14), to_state="B", runs=True)

    def test_a_deletion(self):
        assert see(clock(handled=False, delete_after=24), due=14) == Upcoming(UpcomingKind.DELETE, later(14))

    def test_a_deletion_comes_before_a_time_out_of_the_same_instant(self):
        its = clock(handled=False, delete_after=24, timeout_after=24, timeout_to="B")
        assert see(its, due=14).kind is UpcomingKind.DELETE

    def test_nothing_is_due(self):
        assert see(clock(), due=None) is None
        assert see(clock(handled=False)) is None


class TestInstants:
    def test_a_row_that_was_made_due_waits_for_its_deadline_where_nothing_runs(self):
        found = see(clock(handled=False, delete_after=100), entered=10, due=0)
        assert found == Upcoming(UpcomingKind.DELETE, later(90))

    def test_a_row_that_was_put_off_is_put_off(self):
        found = see(clock(handled=False, timeout_after=20, timeout_to="B"), entered=10, due=500)
        assert found == Upcoming(UpcomingKind.TIME_OUT, later(500), to_state="B")

    def test_a_try_that_nobody_made_in_time_is_a_time_out_by_now(self):
        found = see(clock(timeout_after=60, timeout_to="B"), entered=100, due=-70)
        assert found == Upcoming(UpcomingKind.TIME_OUT, ago(70), to_state="B", runs=True)

    def test_two_readings_of_a_clock_are_one_instant(self):
        found = see(clock(timeout_after=24, timeout_to="B"), entered=10, due=13.999)
        assert found.kind is UpcomingKind.TIME_OUT


class TestDeadlines:
    def test_is_what_happens_whatever_the_handler_does(self):
        its = clock(timeout_after=60, timeout_to="B", delete_after=100)
        assert deadline_of(its, ago(10)) == Upcoming(UpcomingKind.TIME_OUT, later(50), to_state="B", runs=True)
        assert deadline_of(clock(delete_after=100), ago(10)) == Upcoming(UpcomingKind.DELETE, later(90))
        assert deadline_of(clock(), ago(10)) is None


def tens(least: int, most: int) -> st.SearchStrategy[int]:
    """Return instants that are the same or far apart, as what is nearly the same is taken for that."""
    return st.integers(least // 10, most // 10).map(lambda number: number * 10)


maybe = st.none() | tens(0, 200)


@pytest.mark.parametrize("handled", [True, False])
@given(timeout=maybe, deletion=maybe, entered=tens(0, 300), due=tens(-100, 300), failures=st.integers(0, 4))
@example(timeout=50, deletion=50, entered=0, due=50, failures=0)
def test_is_what_a_worker_does_at_that_instant(handled, timeout, deletion, entered, due, failures):
    options = {"timeout_after": timeout, "timeout_to": "CANCELLED"} if timeout is not None else {}
    policy = Policy(delete_after=deletion, **options)
    its = Schedule.of("PENDING", policy, Handler("look_for_payment") if handled else None, "default")
    found = see(its, entered=entered, due=due, failures=failures)
    if found is None:
        assert not its.runs
        return

    lease = lease_on(lane_of(Order), status="PENDING", failures=failures)
    lease.schedule, lease.age = its, (max(found.at, NOW) - ago(entered)).total_seconds()
    outcome = HandlerExecutor(max_crashes=5).without_handler(lease)
    last_try = HandlerExecutor(max_crashes=5).judge(lease, None) if outcome is None else outcome

    assert found.runs is (outcome is None)
    assert {
        UpcomingKind.RUN: (Waited, ""),
        UpcomingKind.RETRY: (Waited, ""),
        UpcomingKind.TIME_OUT: (Transitioned, "CANCELLED"),
        UpcomingKind.DELETE: (Deleted, ""),
    }[found.kind] == (type(last_try), getattr(last_try, "to_status", ""))
