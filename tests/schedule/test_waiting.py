"""What rows may wait for, as it is declared: pure values, and what a machine makes of them."""

from __future__ import annotations

import enum
import pickle
from datetime import timedelta

import pytest

from statemachine_fields import Event, State, StateMachine, handler
from statemachine_fields.drawing.details import details_of
from statemachine_fields.schedule.policy import Policy, Schedule
from statemachine_fields.schedule.waiting import NAME_LENGTH
from statemachine_fields.worker.checks import check_timed
from tests.declared import lab_model

STATES = [("PAID", "Paid"), ("CANCELLED", "Cancelled")]


def machine(state, **options):
    return StateMachine([state, *STATES], "PENDING", {"PENDING": ["PAID", "CANCELLED"]}, **options)


def waiting(until, **policy):
    return machine(State("PENDING", until=until, **policy))


class TestEvent:
    def test_names_what_rows_wait_for(self):
        event = Event("paid", "refused")

        assert (event.names, event.targets, event.needs_handler) == (("paid", "refused"), (), True)

    def test_says_where_each_name_leads(self):
        event = Event(paid="PAID", refused="CANCELLED", withdrawn="CANCELLED")

        assert (event.names, event.targets) == (("paid", "refused", "withdrawn"), ("PAID", "CANCELLED"))
        assert not event.needs_handler

    def test_takes_a_mapping_for_names_that_are_no_identifiers(self):
        assert Event({"order.paid": "PAID"}, refused="CANCELLED").moves == {
            "order.paid": "PAID",
            "refused": "CANCELLED",
        }

    def test_reads_enums(self):
        class Name(enum.StrEnum):
            PAID = "paid"

        event = Event({Name.PAID: Name.PAID})
        assert [type(name) for name in (*event.names, *event.targets)] == [str, str]

    def test_is_a_value(self):
        event = Event(paid="PAID")

        assert event == Event({"paid": "PAID"}) != Event("paid")
        assert len({event, Event({"paid": "PAID"}), Event("paid")}) == 2
        assert pickle.loads(pickle.dumps(event)) == event  # noqa: S301
        with pytest.raises(TypeError):
            event.moves["paid"] = "CANCELLED"

    @pytest.mark.parametrize(
        ("given", "moves", "why"),
        [
            ((), {}, "needs the names"),
            (("",), {}, "1 to 100 characters"),
            ((5,), {}, "1 to 100 characters"),
            (("a\x00b",), {}, "no NUL"),
            (("x" * (NAME_LENGTH + 1),), {}, "1 to 100 characters"),
            (("paid", "paid"), {}, "named twice"),
            (({"paid": "PAID"},), {"paid": "PAID"}, "named twice"),
            (("refused",), {"paid": "PAID"}, "does not for 'refused'"),
            ((), {"paid": 5}, "to a state, got 5"),
        ],
    )
    def test_refuses_what_makes_no_sense(self, given, moves, why):
        with pytest.raises(ValueError, match=why):
            Event(*given, **moves)

    def test_speaks(self):
        event = Event(paid="PAID", refused="CANCELLED", withdrawn="CANCELLED")

        assert str(event) == "the event 'paid', 'refused' or 'withdrawn'"
        assert event.words_for("CANCELLED") == "on refused or withdrawn"
        assert repr(Event("paid")) == "Event('paid')"
        assert repr(Event(paid="PAID")) == "Event({'paid': 'PAID'})"


class TestState:
    @pytest.mark.parametrize("option", [{"external": True}, {"start_after": 5}, {"delete_after": 5}])
    def test_that_waits_cannot_say_what_contradicts_it(self, option):
        with pytest.raises(ValueError, match=f"cannot have {next(iter(option))}"):
            State("PENDING", until=Event("paid"), **option)

    def test_waits_for_what_can_happen(self):
        with pytest.raises(ValueError, match="until must be"):
            State("PENDING", until="paid")

    def test_may_have_a_time_out_and_a_policy_for_failures(self):
        state = State("PENDING", until=Event("paid"), retry_after=5, timeout_after=9, timeout_to="X", max_attempts=3)

        assert state.is_timed


class TestMachine:
    def test_moves_rows_only_along_its_edges(self):
        with pytest.raises(ValueError, match="there is no such transition"):
            StateMachine([State("PENDING", until=Event(paid="PAID")), *STATES], "PENDING", {"PENDING": ["CANCELLED"]})

    def test_moves_rows_only_to_its_states(self):
        with pytest.raises(ValueError, match="'PAYED', not in states"):
            waiting(Event(paid="PAYED"))

    def test_does_not_move_rows_to_a_retired_state(self):
        with pytest.raises(ValueError, match="is retired"):
            StateMachine(
                [State("NEW", until=Event(go="OLD")), State("OLD", retired=True), ("END", "End")],
                "NEW",
                {"NEW": ["END"], "OLD": ["END"]},
            )

    def test_refuses_a_handler_beside_a_mapping(self, isolated):
        with pytest.raises(ValueError, match=r"decide\(\) handles the state as well"):
            lab_model(
                states=waiting(Event(paid="PAID")),
                decide=handler("PENDING")(plain_method("decide")),
            )

    def test_refuses_a_state_that_nothing_moves(self, isolated):
        with pytest.raises(ValueError, match="nothing says where its rows go"):
            lab_model(states=waiting(Event("paid")))

    def test_is_told_by_its_diagram(self, isolated):
        order = lab_model(states=waiting(Event(paid="PAID", refused="CANCELLED")))
        details = details_of(order.states._meta)

        assert details.states["PENDING"] == ("waits for the event 'paid' or 'refused'",)
        assert details.moves["PENDING", "PAID"] == ("on paid",)

    def test_has_no_need_to_say_how_often_a_handler_is_asked(self, isolated):
        order = lab_model(states=waiting(Event("paid")), decide=handler("PENDING")(plain_method("decide")))

        assert [each.id for each in check_timed(order.states._meta)] == []

    def test_is_told_of_a_time_limit_that_nothing_heeds(self, isolated):
        order = lab_model(states=waiting(Event(paid="PAID"), retry_after=5, max_attempts=3, time_limit=5))

        (found,) = check_timed(order.states._meta)
        assert (found.id, "time_limit means nothing" in found.msg) == ("statemachine_fields.W103", True)


def plain_method(name):
    def method(self, ctx):
        raise NotImplementedError

    method.__name__ = name
    return method


class TestSchedule:
    def schedule(self, **policy):
        return Schedule.of("PENDING", Policy(until=Event(paid="PAID"), **policy), None, "default")

    def test_has_rows_sleep_until_something_happens(self):
        schedule = self.schedule()

        assert (schedule.runs, schedule.acts, schedule.entry_delay(), schedule.wait_delay) == (True, True, None, None)
        assert schedule.may_sleep

    def test_wakes_rows_whose_time_is_up(self):
        schedule = self.schedule(timeout_after=timedelta(days=3), timeout_to="CANCELLED")

        assert (schedule.entry_delay(), schedule.wait_delay) == (3 * 86400, None)
        assert not schedule.may_sleep

    def test_tries_again_what_failed(self):
        assert self.schedule(retry_after=7).retry_delay(1) == 7
