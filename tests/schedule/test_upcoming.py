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

RUN, RETRY, TIME_OUT, DELETE = UpcomingKind.RUN, UpcomingKind.RETRY, UpcomingKind.TIME_OUT, UpcomingKind.DELETE
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
    @pytest.mark.parametrize(
        ("its", "row", "expected"),
        [
            pytest.param(clock(), {}, Upcoming(RUN, later(5), runs=True), id="a handler runs"),
            pytest.param(
                clock(max_attempts=5, error_to="B"),
                {"failures": 1},
                Upcoming(RETRY, later(5), attempt=2, of=5, runs=True),
                id="a handler that failed is tried again",
            ),
            pytest.param(
                clock(),
                {"failures": 7},
                Upcoming(RETRY, later(5), attempt=8, runs=True),
                id="without a limit the tries are of no number",
            ),
            pytest.param(
                clock(handled=False, timeout_after=24, timeout_to="B"),
                {"due": 14},
                Upcoming(TIME_OUT, later(14), to_state="B"),
                id="a time-out says where to",
            ),
            pytest.param(
                clock(timeout_after=24, timeout_to="B"),
                {"due": 14},
                Upcoming(TIME_OUT, later(14), to_state="B", runs=True),
                id="the time-out of a state with a handler is tried once more",
            ),
            pytest.param(
                clock(timeout_after=24, timeout_to="B"),
                {"due": 13.999},
                Upcoming(TIME_OUT, later(13.999), to_state="B", runs=True),
                id="two readings of a clock are one instant",
            ),
            pytest.param(
                clock(handled=False, delete_after=24),
                {"due": 14},
                Upcoming(DELETE, later(14)),
                id="a deletion",
            ),
            pytest.param(
                clock(handled=False, delete_after=24, timeout_after=24, timeout_to="B"),
                {"due": 14},
                Upcoming(DELETE, later(14)),
                id="a deletion comes before a time-out of the same instant",
            ),
            pytest.param(
                clock(handled=False, delete_after=100),
                {"due": 0},
                Upcoming(DELETE, later(90)),
                id="a row that was made due waits for its deadline where nothing runs",
            ),
            pytest.param(
                clock(handled=False, timeout_after=20, timeout_to="B"),
                {"due": 500},
                Upcoming(TIME_OUT, later(500), to_state="B"),
                id="a row that was put off is put off",
            ),
            pytest.param(
                clock(timeout_after=60, timeout_to="B"),
                {"entered": 100, "due": -70},
                Upcoming(TIME_OUT, ago(70), to_state="B", runs=True),
                id="a try that nobody made in time is a time-out by now",
            ),
            pytest.param(clock(), {"due": None}, None, id="nothing is due"),
            pytest.param(clock(handled=False), {}, None, id="nothing is ever due"),
        ],
    )
    def test_by_policy_and_row(self, its, row, expected):
        assert see(its, **row) == expected

    @pytest.mark.parametrize(
        ("most", "failures", "kind"), [(2, 1, RETRY), (1, 0, RUN)], ids=["the last try", "the only try"]
    )
    def test_the_last_try_says_where_it_leads_if_it_fails(self, most, failures, kind):
        found = see(clock(max_attempts=most, error_to="B"), failures=failures)
        assert (found.kind, found.attempt, found.of) == (kind, most, most)
        assert (found.to_state, found.is_last_attempt) == ("B", True)


class TestDeadlines:
    def test_is_what_happens_whatever_the_handler_does(self):
        its = clock(timeout_after=60, timeout_to="B", delete_after=100)
        assert deadline_of(its, ago(10)) == Upcoming(TIME_OUT, later(50), to_state="B", runs=True)
        assert deadline_of(clock(delete_after=100), ago(10)) == Upcoming(DELETE, later(90))
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
        RUN: (Waited, ""),
        RETRY: (Waited, ""),
        TIME_OUT: (Transitioned, "CANCELLED"),
        DELETE: (Deleted, ""),
    }[found.kind] == (type(last_try), getattr(last_try, "to_status", ""))
