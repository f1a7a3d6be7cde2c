"""What is to be done with a row, and what its handler's answer comes to: decisions, made without a database."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import psycopg
import pytest
from django.db import DatabaseError, InterfaceError, OperationalError

from lab.models import Chore, Lot, Noted, Ping
from statemachine_fields.db.dialect import is_connection_error
from statemachine_fields.schedule.policy import Policy, Schedule
from statemachine_fields.schedule.waiting import Until
from statemachine_fields.worker import HandlerContext, Move, Retry, TryAgainLater
from statemachine_fields.worker.awaited import Awaited
from statemachine_fields.worker.connections import Trouble
from statemachine_fields.worker.errors import LONGEST_ERROR, described, shortened
from statemachine_fields.worker.executor import MOST_CONFLICTS, HandlerExecutor
from statemachine_fields.worker.lease import Lease, now
from statemachine_fields.worker.outcomes import (
    Conflicted,
    Deleted,
    Failed,
    Parked,
    Transitioned,
    TransitionedItself,
    Waited,
)
from statemachine_fields.worker.verdicts import AWAY_SECONDS, MOST_CUTS
from statemachine_fields.worker.waits import Unknown
from tests.worker.rows import lane_of

DAY = 24 * 60 * 60.0


def lease_of(model=Chore, status="NEW", policy=None, values=None, *, handler=True, **facts):
    """Return a lease of a row that nobody has saved, in a state with another policy than it has."""
    lane = lane_of(model)
    if policy is not None:
        schedule = Schedule.of(
            status, Policy(**policy), model.states._meta.schedules[status].handler if handler else None, "default"
        )
        lane = replace(lane, schedules={**lane.schedules, status: schedule})
    known = {"sequence": 0, "failures": 0, "crashes": 0, "age": 0.0, "error": "", "load_error": None}
    known["instance"] = model(pk=1, status=status, **(values or {}))
    known |= {"trusted_until": now() + 60, "claimed_at": time.monotonic()}
    return Lease(lane=lane, schedule=lane.schedules[status], key=1, token=7, status=status, **{**known, **facts})


def answering(monkeypatch, answer, model=Chore, method="start"):
    """Let the handler give an answer, or raise it."""

    def handle(self, *context):
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(model, method, handle)


@pytest.fixture
def executor():
    return HandlerExecutor(max_crashes=5, time_limit=None)


def facts_of(outcome):
    return type(outcome), target_of(outcome), outcome.delay, outcome.failures, outcome.error, metadata_of(outcome)


def target_of(outcome):
    return outcome.to_status if isinstance(outcome, Transitioned) else ""


def metadata_of(outcome):
    return outcome.metadata if isinstance(outcome, Transitioned) else None


SITUATIONS = {
    "in between": {"policy": {"retry_after": 60}, "failures": 1},
    "at its last try": {"policy": {"retry_after": 60, "max_attempts": 3, "error_to": "FAILED"}, "failures": 2},
    "at its last try, with nowhere to go": {"policy": {"retry_after": 60, "max_attempts": 3}, "failures": 2},
    "timed out": {
        "policy": {
            "retry_after": 60,
            "max_attempts": 3,
            "error_to": "FAILED",
            "timeout_after": 100,
            "timeout_to": "HELD",
        },
        "failures": 2,
        "age": 100.0,
    },
}

MOVES = {
    "a state": ("DOING", 0),
    "a Move": (Move("DOING"), 0),
    "a Move with a delay": (Move("DOING", after=30), 30),
    "a Move whose delay is longer than the time-out": (Move("DOING", after=9 * DAY), 3 * DAY),
    "a Move to where only deletion is due": (Move("DONE"), 365 * DAY),
    "a Move to where nothing is due": (Move("HELD", after=30), None),
}

NOT_YET = {
    "None": (None, 60),
    "TryAgainLater": (TryAgainLater(), 60),
    "TryAgainLater with a delay": (TryAgainLater(after=5), 5),
    "TryAgainLater at once": (TryAgainLater(after=0), 0),
}

FAILURES = {
    "Retry": (Retry(), 60, "The handler asked for a retry."),
    "Retry with a delay and an error": (Retry(after=5, error="the line is busy"), 5, "the line is busy"),
    "an exception": (ValueError("no luck"), 60, "ValueError: no luck"),
    "an exception without words": (KeyError(), 60, "KeyError"),
    "what is no answer": (42, 60, "TypeError: The handler returned 42. It must return a state, None for not yet, a "),
    "a state that nobody declares": ("NOWHERE", 60, "UnknownState: lab.Chore pk=1 has no state 'NOWHERE'."),
    "an edge that nobody declares": ("NEW", 60, "InvalidStateTransition: lab.Chore pk=1 cannot move from 'NEW' to "),
    "fields that are not there": (
        Move("DOING", update={"colour": 1}),
        60,
        "TypeError: update= names 'colour', which is no field of lab.Chore ",
    ),
    "the machine's own columns": (Move("DOING", update={"status": "DONE"}), 60, "TypeError: update= names 'status', "),
    "metadata that cannot be stored": (Move("DOING", metadata={"row": object()}), 60, "TypeError: "),
    "an OperationalError of its own": (OperationalError("some other server"), 60, "OperationalError: some other "),
}


@pytest.mark.parametrize("situation", SITUATIONS)
class TestAnswers:
    @pytest.mark.parametrize("answer", MOVES)
    def test_a_move_is_a_move_in_any_situation(self, answer, situation, executor, monkeypatch):
        given, delay = MOVES[answer]
        answering(monkeypatch, given)
        outcome = executor.run(lease_of(**SITUATIONS[situation]))
        state = given if isinstance(given, str) else given.state
        assert facts_of(outcome) == (Transitioned, state, delay, 0, "", None)

    @pytest.mark.parametrize("answer", NOT_YET)
    def test_not_yet_is_no_failure(self, answer, situation, executor, monkeypatch):
        given, delay = NOT_YET[answer]
        answering(monkeypatch, given)
        outcome = executor.run(lease_of(**SITUATIONS[situation]))
        failures = SITUATIONS[situation]["failures"]
        assert facts_of(outcome) == (
            (Transitioned, "HELD", None, failures, "", {"timeout_after": 100.0})
            if situation == "timed out"
            else (Waited, "", delay, failures, "", None)
        )

    @pytest.mark.parametrize("answer", FAILURES)
    def test_a_failure_is_retried_until_there_is_no_more_to_try(self, answer, situation, executor, monkeypatch):
        given, delay, error = FAILURES[answer]
        answering(monkeypatch, given)
        outcome = executor.run(lease_of(**SITUATIONS[situation]))
        assert outcome.error.startswith(error)
        error = outcome.error
        assert error
        assert (
            facts_of(outcome)
            == {
                "in between": (Failed, "", delay, 2, error, None),
                "at its last try": (Transitioned, "FAILED", None, 3, error, {"error": error, "attempts": 3}),
                "at its last try, with nowhere to go": (Parked, "", None, 3, error, None),
                "timed out": (Transitioned, "HELD", None, 2, error, {"timeout_after": 100.0, "error": error}),
            }[situation]
        )

    def test_a_handler_that_was_stopped_has_failed(self, situation, executor):
        lease = lease_of(**SITUATIONS[situation])
        lease.started_at, lease.deadline = 100.0, 102.5
        outcome = executor.time_is_up(lease)
        assert outcome.error == "Stopped: the handler ran longer than its time limit of 2.5 s."
        assert type(outcome) is {"in between": Failed, "at its last try, with nowhere to go": Parked}.get(
            situation, Transitioned
        )
        assert outcome.exception is None

    def test_a_database_that_is_away_is_not_the_row_s_fault(self, situation, executor, monkeypatch):
        executor.diagnose = lambda using: Trouble.AWAY
        error = OperationalError("server closed the connection unexpectedly")
        error.__cause__ = psycopg.OperationalError("server closed the connection unexpectedly")
        answering(monkeypatch, error)
        outcome = executor.run(lease_of(**SITUATIONS[situation]))
        if situation == "timed out":
            assert (type(outcome), outcome.to_status) == (Transitioned, "HELD")
        else:
            assert (type(outcome), outcome.exception) == (Waited, error)
            assert (outcome.failures, outcome.delay) == (outcome.lease.failures, AWAY_SECONDS)

    def test_a_connection_that_broke_though_there_are_others_to_be_had_is_a_failure(
        self, situation, executor, monkeypatch
    ):
        asked = []
        executor.diagnose = asked.append
        error = InterfaceError("the cursor is closed")
        error.__cause__ = psycopg.InterfaceError("the cursor is closed")
        answering(monkeypatch, error)
        outcome = executor.run(lease_of(**SITUATIONS[situation]))
        assert type(outcome) is {"in between": Failed, "at its last try, with nowhere to go": Parked}.get(
            situation, Transitioned
        )
        assert (outcome.error, asked) == ("InterfaceError: the cursor is closed", ["default"])

    @pytest.mark.parametrize("end", [None, ValueError("afterwards"), TryAgainLater()])
    def test_a_row_that_its_handler_moved_is_left_alone(self, end, situation, executor, monkeypatch):
        def move_itself(self, ctx):
            vars(self)["status_sequence"] += 1
            if end is not None:
                raise end

        monkeypatch.setattr(Chore, "start", move_itself)
        outcome = executor.run(lease_of(**SITUATIONS[situation]))
        assert (type(outcome), outcome.exception) == (TransitionedItself, end)


class TestConflicts:
    def test_are_no_failures_a_few_times_and_then_one(self, executor):
        lease = lease_of()
        outcomes = [executor.judge_conflict(lease, OperationalError("deadlock")) for _ in range(MOST_CONFLICTS + 1)]
        assert [type(outcome) for outcome in outcomes] == [Conflicted] * MOST_CONFLICTS + [Failed]

    def test_are_met_less_often_each_time(self, executor):
        lease = lease_of()
        delays = [executor.judge_conflict(lease, OperationalError("deadlock")).delay for _ in range(MOST_CONFLICTS)]
        assert delays == sorted(delays)


class TestCuts:
    def test_of_a_connection_are_no_failures_a_few_times_and_then_are(self, executor):
        executor.diagnose = lambda using: Trouble.CUT
        error = OperationalError("server closed the connection")
        error.__cause__ = psycopg.OperationalError("server closed the connection")
        lease = lease_of()
        kinds = [type(executor.judge_error(lease, error)) for _ in range(MOST_CUTS + 1)]
        assert kinds == [Waited] * MOST_CUTS + [Failed]


class TestWithoutHandler:
    """What is decided before a handler is called, or where there is none."""

    LEFT = "Recovered from dead:1, which died."

    @pytest.mark.parametrize(
        ("facts", "expected"),
        [
            ({}, None),
            ({"crashes": 4}, None),
            ({"policy": {"timeout_after": 100, "timeout_to": "HELD"}, "age": 1000.0}, None),
            ({"policy": {"delete_after": 100}, "age": 99.0}, None),
            ({"policy": {"delete_after": 100}, "age": 100.0}, (Deleted, "", None)),
            ({"policy": {}, "crashes": 5}, (Parked, "", None)),
            (
                {"policy": {"error_to": "FAILED"}, "crashes": 5},
                (Transitioned, "FAILED", {"error": f"Given up: 5 workers died while they ran this row, or vanished. {LEFT}", "crashes": 5}),
            ),
            ({"policy": {"delete_after": 100}, "age": 100.0, "crashes": 5}, (Parked, "", None)),
            ({"instance": None, "load_error": ValueError("bad JSON")}, (Parked, "", None)),
            ({"handler": False, "policy": {}}, (Waited, "", None)),
            ({"handler": False, "policy": {"timeout_after": 100, "timeout_to": "HELD"}, "age": 99.0}, (Waited, "", None)),
            (
                {"handler": False, "policy": {"timeout_after": 100, "timeout_to": "HELD"}, "age": 100.0},
                (Transitioned, "HELD", {"timeout_after": 100.0}),
            ),
            (
                {"handler": False, "policy": {"timeout_after": 100, "timeout_to": "HELD", "delete_after": 100}, "age": 100.0},
                (Deleted, "", None),
            ),
        ],
    )  # fmt: skip
    def test_is_decided_by_policy(self, facts, expected, executor):
        outcome = executor.without_handler(lease_of(**{"error": self.LEFT, **facts}))
        assert (None if outcome is None else (type(outcome), target_of(outcome), metadata_of(outcome))) == expected

    def test_waiting_leaves_the_time_to_the_horizon(self, executor):
        outcome = executor.without_handler(lease_of(handler=False, policy={"delete_after": 9}, failures=2))
        assert (outcome.delay, outcome.failures) == (None, 2)

    def test_parking_says_why(self, executor):
        crashed = executor.without_handler(lease_of(policy={}, crashes=5, error=self.LEFT, failures=2))
        assert (crashed.failures, crashed.error.startswith("Given up: 5 workers")) == (2, True)
        assert crashed.error.endswith(self.LEFT)
        broken = executor.without_handler(lease_of(instance=None, load_error=ValueError("bad JSON")))
        assert broken.error == "The row could not be loaded: ValueError: bad JSON"

    def test_tests_may_let_time_pass(self):
        executor = HandlerExecutor(max_crashes=5, fires_timeouts=True, fires_deletions=True)
        timed = {"timeout_after": 100, "timeout_to": "HELD"}
        assert executor.without_handler(lease_of(handler=False, policy=timed)).to_status == "HELD"
        assert type(executor.without_handler(lease_of(policy={"delete_after": 100}))) is Deleted
        assert executor.without_handler(lease_of(policy={})) is None


class TestGuards:
    def test_stop_a_handler_s_move_like_any_other(self, executor):
        outcome = executor.run(lease_of(Noted, values={"locked": True}))
        assert type(outcome) is Failed
        assert outcome.error.startswith("TransitionBlocked: lab.Noted pk=1 cannot move from 'NEW' to 'DONE' now: ")

    @pytest.mark.parametrize(
        ("facts", "why"),
        [
            ({"policy": {"max_attempts": 1, "error_to": "DONE"}}, "TransitionBlocked: "),
            ({"policy": {"timeout_after": 1, "timeout_to": "DONE"}, "age": 1.0}, "TransitionBlocked: "),
        ],
    )
    def test_stop_a_move_by_policy_and_park_the_row(self, facts, why, executor):
        outcome = executor.run(lease_of(Noted, values={"locked": True}, **facts))
        assert type(outcome) is Parked
        assert outcome.error.startswith(why)
        assert "\nThe row could not be moved to 'DONE'. TransitionBlocked: " in outcome.error

    def test_stop_a_time_out_after_a_quiet_try(self, executor, monkeypatch):
        answering(monkeypatch, None, Noted, "note")
        policy = {"timeout_after": 1, "timeout_to": "DONE"}
        outcome = executor.run(lease_of(Noted, values={"locked": True}, policy=policy, age=1.0))
        assert outcome.error.startswith(
            "The row was in 'NEW' for longer than it may be.\nThe row could not be moved to "
        )

    def test_are_not_the_only_ones_to_stop_it(self, executor, monkeypatch):
        answering(monkeypatch, ValueError("no"), Lot, "sell")
        outcome = executor.run(lease_of(Lot, "BID", {"max_attempts": 1, "error_to": "VOID"}))
        assert (type(outcome), outcome.failures) == (Parked, 1)
        assert outcome.error.startswith(
            "ValueError: no\nThe row could not be moved to 'VOID'. InvalidStateTransition: "
        )


class TestRefusal:
    """What becomes of a row whose outcome the database would not have."""

    POLICY = {"max_attempts": 2, "error_to": "FAILED"}

    @pytest.fixture
    def refuse(self, executor, monkeypatch):
        def refuse(answer, **facts):
            answering(monkeypatch, answer)
            return executor.refuse(executor.run(lease_of(**facts)), ValueError("the constraint"))

        return refuse

    def test_of_a_move_is_a_failure(self, refuse):
        outcome = refuse("DOING", policy=self.POLICY)
        assert (type(outcome), outcome.failures) == (Failed, 1)
        assert outcome.error == "The move to 'DOING' could not be written. ValueError: the constraint"

    def test_of_a_move_to_the_state_for_failures_is_a_failure_too(self, refuse):
        assert type(refuse("FAILED", policy=self.POLICY)) is Failed

    def test_of_the_last_try_s_move_gives_up(self, refuse):
        outcome = refuse("DOING", policy=self.POLICY, failures=1)
        assert (type(outcome), outcome.to_status, outcome.failures) == (Transitioned, "FAILED", 2)

    def test_of_giving_up_parks(self, refuse):
        outcome = refuse(ValueError("no"), policy=self.POLICY, failures=1)
        assert (type(outcome), outcome.failures) == (Parked, 2)
        assert outcome.error == (
            "ValueError: no\nThe move to 'FAILED' could not be written. ValueError: the constraint"
        )

    def test_of_a_time_out_parks(self, refuse):
        outcome = refuse(None, policy={"timeout_after": 1, "timeout_to": "FAILED"}, age=1.0)
        assert type(outcome) is Parked

    @pytest.mark.parametrize("answer", [None, ValueError("no")])
    def test_of_anything_else_parks(self, answer, refuse):
        assert type(refuse(answer, policy={})) is Parked


class TestUndone:
    """What becomes of a row whose handler moved it in a transaction that was undone."""

    @pytest.mark.parametrize(("end", "kind"), [(None, Waited), (TryAgainLater(), Waited), (ValueError("no"), Failed)])
    def test_is_what_the_handler_said_without_the_move(self, end, kind, executor, monkeypatch):
        def move_itself(self, ctx):
            vars(self)["status_sequence"] += 1
            if end is not None:
                raise end

        monkeypatch.setattr(Chore, "start", move_itself)
        outcome = executor.not_moved(executor.run(lease_of(policy={})))
        assert type(outcome) is kind


class TestTime:
    def test_between_failures_grows_and_is_spread(self, executor, monkeypatch):
        answering(monkeypatch, ValueError("no"))
        policy = {"retry_after": 60, "backoff": 2}
        for failures, least in [(0, 60), (1, 120), (4, 960), (60, DAY)]:
            delays = [executor.run(lease_of(policy=policy, failures=failures)).delay for _ in range(20)]
            assert all(least <= delay <= min(least * 1.1, DAY) for delay in delays)
            assert least == DAY or len(set(delays)) > 1

    @pytest.mark.parametrize(("state", "general", "left"), [(5, 100, 5), (None, 100, 100), (None, None, None)])
    def test_limits_of_the_state_come_before_the_general_one(self, state, general, left):
        lease = lease_of(policy={} if state is None else {"time_limit": state})
        _method, (context,) = HandlerExecutor(max_crashes=5, time_limit=general).begin(lease)
        assert context.time_left == (None if left is None else pytest.approx(left, abs=1))

    def test_in_the_handler_is_measured(self, executor, monkeypatch):
        lease, now = lease_of(), iter([10.0, 12.5, 12.5])
        monkeypatch.setattr(time, "monotonic", lambda: next(now))
        executor.run(lease)
        assert lease.seconds == 2.5


class TestContext:
    def test_says_what_try_it_is(self, executor):
        lease = lease_of(failures=2)
        method, (context,) = executor.begin(lease)
        assert (method.__name__, context.attempt, context.token, context.stopping) == ("start", 3, 7, False)
        assert context.entered_at is lease.instance.status_changed_at

    def test_is_given_to_those_who_take_it(self, executor):
        assert executor.begin(lease_of(Lot, "OPEN"))[1] == ()

    @pytest.mark.parametrize("end", ["stop", "lost", "untrusted"])
    def test_says_when_to_come_to_an_end(self, end, executor):
        lease = lease_of()
        _method, (context,) = executor.begin(lease)
        if end == "stop":
            executor.stop.set()
        elif end == "lost":
            lease.is_lost = True
        else:
            lease.trusted_until = now() - 1
        assert context.stopping

    def test_has_no_time_left_once_it_is_up(self):
        lease = lease_of()
        lease.deadline = time.monotonic() - 5
        assert HandlerContext(lease).time_left == 0.0


class TestAsync:
    @pytest.mark.parametrize(
        ("answer", "kind"),
        [("ANSWERED", Transitioned), (None, Waited), (42, Failed), (KeyError(), Failed)],
    )
    def test_handlers_are_judged_alike(self, answer, kind, executor, monkeypatch):
        async def handle(self, ctx):
            await asyncio.sleep(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(Ping, "await_answer", handle)
        assert type(asyncio.run(executor.arun(lease_of(Ping, "SENT")))) is kind

    def test_handlers_are_not_called_where_the_row_needs_none(self, executor):
        assert type(asyncio.run(executor.arun(lease_of(Ping, "SENT", crashes=5)))) is Parked


class TestErrors:
    def test_are_kept_as_a_column_can_hold_them(self):
        assert shortened("a\x00b \ud800") == "a\N{REPLACEMENT CHARACTER}b ?"
        assert shortened("x" * 5000) == "x" * (LONGEST_ERROR - 1) + "…"
        assert shortened("x" * LONGEST_ERROR) == "x" * LONGEST_ERROR

    def test_have_a_name_and_words(self):
        assert (described(ValueError("no")), described(ValueError())) == ("ValueError: no", "ValueError")

    @pytest.mark.parametrize(
        ("error", "cause", "lost"),
        [
            (OperationalError, psycopg.OperationalError("the connection is closed"), True),
            (OperationalError, psycopg.errors.AdminShutdown(), True),
            (OperationalError, psycopg.errors.ConnectionFailure(), True),
            (InterfaceError, psycopg.InterfaceError("the connection is closed"), True),
            (OperationalError, psycopg.errors.DeadlockDetected(), False),
            (OperationalError, psycopg.errors.QueryCanceled(), False),
            (OperationalError, SimpleNamespace(), False),
        ],
    )
    def test_tell_a_database_that_is_away_from_one_that_says_no(self, error, cause, lost):
        raised = error("some words")
        if isinstance(cause, BaseException):
            raised.__cause__ = cause
        assert is_connection_error(raised) is lost


class Bell(Until):
    """For tests: rings or does not."""

    def __init__(self, *targets):
        self.leads_to = targets

    @property
    def targets(self):
        return self.leads_to

    def __str__(self):
        return "the bell"


class Rung(Awaited):
    def __init__(self, has_rung):
        self.has_rung = has_rung

    @property
    def has_happened(self):
        return self.has_rung

    @property
    def version(self):
        return self.has_rung

    def move(self):
        return Move("DONE", metadata={"rang": True})


class TestRowsThatWait:
    def lease(self, has_rung, *, handler=True, **facts):
        policy = {"until": Bell() if handler else Bell("DONE"), "retry_after": 60, **facts.pop("policy", {})}
        return lease_of(policy=policy, handler=handler, awaited=Rung(has_rung), **facts)

    TIME_OUT: ClassVar = {"timeout_after": 3 * DAY, "timeout_to": "FAILED"}

    def test_sleep_on_if_it_has_not_happened(self, executor):
        for handler in (True, False):
            outcome = executor.run(self.lease(False, handler=handler, failures=2))
            assert facts_of(outcome) == (Waited, "", None, 2, "", None)

    def test_are_run_when_it_has_happened(self, executor, monkeypatch):
        answering(monkeypatch, "DONE")

        assert target_of(executor.run(self.lease(True))) == "DONE"

    def test_are_moved_when_it_has_happened_if_it_says_where_to(self, executor):
        outcome = executor.run(self.lease(True, handler=False))

        assert (target_of(outcome), metadata_of(outcome)) == ("DONE", {"rang": True})

    def test_sleep_until_it_happens_again_if_the_handler_says_not_yet(self, executor, monkeypatch):
        answering(monkeypatch, None)

        assert facts_of(executor.run(self.lease(True))) == (Waited, "", None, 0, "", None)

    def test_are_asked_again_when_the_handler_says_so(self, executor, monkeypatch):
        answering(monkeypatch, TryAgainLater(after=5))

        assert facts_of(executor.run(self.lease(True))) == (Waited, "", 5.0, 0, "", None)

    def test_are_tried_again_by_policy_if_they_fail(self, executor, monkeypatch):
        answering(monkeypatch, ValueError("no luck"))

        assert facts_of(executor.run(self.lease(True)))[:4] == (Failed, "", 60.0, 1)

    def test_are_tried_again_by_policy_if_they_cannot_be_moved(self, executor, monkeypatch):
        monkeypatch.setattr(Rung, "move", lambda self: Move("NOWHERE"))

        assert facts_of(executor.run(self.lease(True, handler=False)))[:4] == (Failed, "", 60.0, 1)

    def test_are_moved_when_their_time_is_up_without_another_try(self, executor, monkeypatch):
        monkeypatch.setattr(Chore, "start", lambda self, ctx: pytest.fail("nothing has happened"))

        outcome = executor.run(self.lease(False, policy=self.TIME_OUT, age=3 * DAY))
        assert (target_of(outcome), metadata_of(outcome)) == ("FAILED", {"timeout_after": 3 * DAY})

    def test_are_run_if_it_happens_when_their_time_is_up(self, executor, monkeypatch):
        answering(monkeypatch, "DONE")

        assert target_of(executor.run(self.lease(True, policy=self.TIME_OUT, age=3 * DAY))) == "DONE"

    def test_fail_if_nobody_can_say_what_has_happened(self, executor):
        lease = self.lease(False)
        lease.awaited = Unknown(DatabaseError("no such table"))

        outcome = executor.run(lease)
        assert (type(outcome), outcome.error) == (Failed, "DatabaseError: no such table")
