"""When a row is due, without a database: what a policy comes to, and every kind of wrong one with the error it gives."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from datetime import timedelta

import pytest
from django.utils.translation import gettext_lazy as _
from hypothesis import given
from hypothesis import strategies as st

from statemachine_fields import Event, State, StateMachine
from statemachine_fields.schedule.handlers import Handler
from statemachine_fields.schedule.policy import (
    DURATIONS,
    FOR_HANDLERS,
    LONGEST_BACKOFF,
    RETRY_AFTER,
    Policy,
    Schedule,
    is_queue_name,
    seconds_of,
)

seconds = st.floats(min_value=0, max_value=1e9)
maybe_seconds = st.none() | seconds


def clock(handled: bool = True, **options) -> Schedule:
    return Schedule.of("A", Policy(**options), Handler("run") if handled else None, "default")


class TestDurations:
    @pytest.mark.parametrize("given_", [90, 90.0, timedelta(seconds=90), timedelta(minutes=1.5)])
    def test_are_seconds_or_timedelta(self, given_):
        assert clock(retry_after=given_).retry_after == 90.0

    @pytest.mark.parametrize("name", DURATIONS)
    @pytest.mark.parametrize("wrong", ["60", True, object(), [60]])
    def test_of_another_type_are_refused(self, name, wrong):
        with pytest.raises(ValueError, match=rf"^{name} must be seconds or a timedelta, got "):
            Policy(**{name: wrong})

    @pytest.mark.parametrize("name", DURATIONS)
    @pytest.mark.parametrize(
        "wrong", [-1, -0.001, timedelta(days=-1), float("inf"), float("-inf"), float("nan"), 1e300, timedelta.max]
    )
    def test_that_cannot_be_waited_for_are_refused(self, name, wrong):
        with pytest.raises(ValueError, match=f"^{name} must not be negative, nor longer than 100 years, got "):
            Policy(**{name: wrong})

    def test_of_nothing_are_at_once(self):
        assert seconds_of(timedelta(0), "start_after") == seconds_of(0, "start_after") == 0.0
        assert seconds_of(None, "start_after") is None


class TestWrongOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"time_limit": 0}, "time_limit must be more than 0."),
            ({"time_limit": timedelta(0)}, "time_limit must be more than 0."),
            ({"backoff": 0.5}, "backoff must be a factor of at least 1, got 0.5."),
            ({"backoff": "2"}, "backoff must be a factor of at least 1, got '2'."),
            ({"backoff": True}, "backoff must be a factor of at least 1, got True."),
            ({"backoff": float("nan")}, "backoff must be a factor of at least 1, got nan."),
            ({"backoff": float("inf")}, "backoff must be a factor of at least 1, got inf."),
            ({"max_attempts": 0}, "max_attempts must be a whole number of at least 1, got 0."),
            ({"max_attempts": 2.0}, "max_attempts must be a whole number of at least 1, got 2.0."),
            ({"max_attempts": True}, "max_attempts must be a whole number of at least 1, got True."),
            ({"priority": 1.5}, "priority must be a whole number of at most 32 bits, got 1.5."),
            ({"priority": None}, "priority must be a whole number of at most 32 bits, got None."),
            ({"priority": 2**31}, "priority must be a whole number of at most 32 bits, got 2147483648."),
            ({"queue": "a b"}, "queue must be a name without spaces or '=', got 'a b'."),
            ({"queue": "a=1"}, "queue must be a name without spaces or '=', got 'a=1'."),
            ({"queue": ""}, "queue must be a name without spaces or '=', got ''."),
            ({"external": 1}, "external must be True or False, got 1."),
            (
                {"timeout_after": 60},
                "timeout_after and timeout_to go together: say how long, and where to then.",
            ),
            ({"timeout_to": "B"}, "timeout_after and timeout_to go together: say how long, and where to then."),
        ],
    )
    def test_are_refused_where_they_are_written(self, options, message):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            State("A", **options)

    @pytest.mark.parametrize("option", FOR_HANDLERS)
    def test_external_states_have_no_handler(self, option):
        with pytest.raises(ValueError, match=f"so {option} would mean nothing. Remove one of them.$"):
            State("A", external=True, **{option: 2})

    def test_external_states_may_time_out_and_be_deleted(self):
        assert State("A", external=True, timeout_after=60, timeout_to="B", delete_after=90).is_timed

    def test_options_are_given_by_name(self):
        with pytest.raises(TypeError):
            State("A", "Label", 60)


class TestWrongTargets:
    def machine(self, **options):
        return StateMachine([State("A", **options), State("B"), State("C")], "A", {"A": ["B"]})

    @pytest.mark.parametrize("option", ["error_to", "timeout_to"])
    def test_that_are_not_declared(self, option):
        extra = {"timeout_after": 60} if option == "timeout_to" else {}
        with pytest.raises(ValueError, match=f"^{option} of 'A' names 'D', not in states") as caught:
            self.machine(**{option: "D"}, **extra)
        assert "Declared states: A, B, C." in caught.value.__notes__[0]

    @pytest.mark.parametrize("option", ["error_to", "timeout_to"])
    def test_that_no_move_leads_to(self, option):
        extra = {"timeout_after": 60} if option == "timeout_to" else {}
        with pytest.raises(ValueError, match=f"^{option} of 'A' is 'C', and there is no such transition. Add 'C' to"):
            self.machine(**{option: "C"}, **extra)

    @pytest.mark.parametrize("queue", ["", "a b", "a=b", None, 5])
    def test_queue_of_the_machine(self, queue):
        with pytest.raises(ValueError, match="^queue must be a name without spaces or '='"):
            StateMachine([("A", "")], "A", {}, queue=queue)
        assert not is_queue_name(queue)


class TestState:
    def test_is_a_value(self):
        one, same, other = (State("A", retry_after=seconds) for seconds in (60, 60, 61))
        assert one == same
        assert one != other
        assert len({one, same, other}) == 2
        assert one != State("A")

    def test_cannot_be_changed(self):
        state = State("A", retry_after=60)
        with pytest.raises(dataclasses.FrozenInstanceError):
            state.retry_after = 5
        # CPython raises TypeError for a name that a slotted dataclass with a base does not have.
        with pytest.raises((AttributeError, TypeError)):
            state.anything = 5

    @pytest.mark.parametrize("remake", [copy.copy, copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])  # noqa: S301
    def test_can_be_copied(self, remake):
        state = State("A", "Label", timeout_after=timedelta(days=1), timeout_to="B", queue="q", priority=2)
        assert remake(state) == state

    def test_takes_value_and_label_by_place(self):
        state = State("A", _("Lazy"), retry_after=60)
        assert (state.value, str(state.label), state.retry_after) == ("A", "Lazy", 60)

    def test_without_policy_is_not_timed(self):
        assert not State("A").is_timed
        assert not State("A", external=True, queue="q", priority=5).is_timed

    @pytest.mark.parametrize(
        "option",
        sorted({each.name for each in dataclasses.fields(Policy)} - {"external", "queue", "priority", "timeout_to"}),
    )
    def test_with_policy_is_timed(self, option):
        value = {"error_to": "B", "until": Event("paid")}.get(option, 2)
        extra = {"timeout_to": "B"} if option == "timeout_after" else {}
        assert State("A", **{option: value}, **extra).is_timed

    def test_knows_what_is_for_handlers(self):
        state = State("A", retry_after=5, max_attempts=1, error_to="B", delete_after=60)
        assert state.for_handlers() == ["retry_after", "max_attempts"]


class TestClock:
    def test_has_defaults(self):
        made = clock()
        assert (made.start_after, made.retry_after, made.backoff, made.priority) == (0.0, RETRY_AFTER, 1.0, 0)

    def test_queue_of_the_state_goes_before_that_of_the_machine(self):
        assert Schedule.of("A", Policy(queue="own"), None, "machine").queue == "own"
        assert Schedule.of("A", Policy(), None, "machine").queue == "machine"

    def test_retry_after_may_be_nothing(self):
        assert clock(retry_after=0).retry_after == 0.0

    def test_state_without_handler_and_horizon_never_runs(self):
        for options in ({}, {"retry_after": 5}, {"error_to": "B"}):
            made = clock(handled=False, **options)
            assert not made.runs
            assert made.entry_delay() is None
            assert made.entry_delay(5) is None

    def test_horizon_is_what_comes_first(self):
        assert clock(timeout_after=60, timeout_to="B", delete_after=30).horizon == 30
        assert clock(timeout_after=20, timeout_to="B", delete_after=30).horizon == 20
        assert clock().horizon is None

    def test_move_may_say_when_the_next_handler_starts(self):
        assert clock(start_after=60).entry_delay(5) == 5
        assert clock(start_after=60).entry_delay(0) == 0
        assert clock(start_after=60, delete_after=30).entry_delay(90) == 30

    @given(maybe_seconds, maybe_seconds, maybe_seconds, st.booleans())
    def test_entry_is_the_earliest_of_all_that_can_happen(self, start, timeout, delete, handled):
        timed_out = {} if timeout is None else {"timeout_after": timeout, "timeout_to": "B"}
        made = clock(handled, start_after=start, delete_after=delete, **timed_out)
        happens = [timeout, delete, *([start or 0.0] if handled else [])]
        assert made.entry_delay() == min([each for each in happens if each is not None], default=None)
        assert made.runs == (made.entry_delay() is not None)

    @given(seconds, st.floats(min_value=1, max_value=1e6), st.integers(0, 2000), st.floats(0, 1))
    def test_waits_grow_and_are_capped(self, retry_after, backoff, failures, jitter):
        made = clock(retry_after=retry_after, backoff=backoff)
        most = max(LONGEST_BACKOFF, retry_after)
        assert retry_after <= made.retry_delay(failures) <= made.retry_delay(failures + 1) <= most
        assert made.retry_delay(failures) <= made.retry_delay(failures, jitter) <= most

    def test_waits_grow_by_the_factor(self):
        made = clock(retry_after=60, backoff=2)
        assert [made.retry_delay(failures) for failures in range(5)] == [60, 60, 120, 240, 480]

    def test_waits_without_a_factor_do_not_grow(self):
        made = clock(retry_after=60)
        assert {made.retry_delay(failures, 0.1) for failures in range(100)} == {60.0}

    @given(seconds, seconds)
    def test_time_is_up_when_it_is(self, limit, age):
        made = clock(timeout_after=limit, timeout_to="B", delete_after=limit)
        assert made.is_timed_out(age) == made.is_to_be_deleted(age) == (age >= limit)
        assert not clock().is_timed_out(age)
        assert not clock().is_to_be_deleted(age)

    @given(st.integers(1, 1000), st.integers(0, 2000))
    def test_tries_are_used_up_when_they_are(self, most, failures):
        assert clock(max_attempts=most).is_last_attempt(failures) == (failures >= most)
        assert not clock().is_last_attempt(failures)
