"""What `Children(...)` says, and what so many of them come to."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import models

from statemachine_fields import Children, State, StateMachine, handler
from statemachine_fields.schedule.children import ChildCounts, Decision
from tests.declared import lab_model

TERMINAL = ("DONE", "LOST", "OFF")


def counts(until: Children, **by_state: int) -> ChildCounts:
    return ChildCounts(until, TERMINAL, by_state)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"relation": "order parcels"}, "name of a relation"),
        ({"relation": 3}, "name of a relation"),
        ({"need": 0}, "whole number of at least 1"),
        ({"need": -1}, "whole number of at least 1"),
        ({"need": True}, "whole number of at least 1"),
        ({"need": "most"}, "'all', 'any'"),
        ({"need": 1.5}, "'all', 'any'"),
        ({"failed": "LOST"}, "Write \\['LOST'\\]"),
        ({"failed": [3]}, "list of states"),
        ({"then": 3}, "then must be a name"),
        ({"failed_to": ""}, "failed_to must be a name"),
        ({"cancel_to": 1}, "cancel_to must be a name"),
        ({"machine": 1}, "machine must be a name"),
    ],
)
def test_what_is_wrong_in_itself_is_refused_where_it_is_written(wrong: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Children(**{"relation": "parcels", **wrong})  # type: ignore[arg-type]


def test_states_may_be_members_of_an_enumeration() -> None:
    class Status(models.TextChoices):
        LOST = "LOST"
        SHIPPED = "SHIPPED"

    until = Children("parcels", failed=[Status.LOST], then=Status.SHIPPED)
    assert (until.failed, until.then) == (("LOST",), "SHIPPED")
    assert type(until.then) is str


def test_it_says_what_it_is() -> None:
    until = Children("parcels", need=3, failed=["LOST"], then="SHIPPED", failed_to="OFF")
    assert repr(until) == "Children('parcels', need=3, failed=('LOST',), then='SHIPPED', failed_to='OFF')"
    assert repr(Children("parcels")) == "Children('parcels')"
    assert str(until) == "3 of its parcels"
    assert until.words_for("SHIPPED") == "when 3 of its parcels are done"
    assert until.words_for("OFF") == "when there cannot be 3 of its parcels"
    assert until == Children("parcels", need=3, failed=["LOST"], then="SHIPPED", failed_to="OFF")
    assert hash(until) != hash(Children("parcels"))


@pytest.mark.parametrize("option", ["external", "start_after", "delete_after"])
def test_options_that_mean_nothing_while_waiting(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        State("PACKING", until=Children("parcels", then="SHIPPED"), **{option: True if option == "external" else 60})  # type: ignore[arg-type]


def test_targets_must_be_declared_moves() -> None:
    states = [State("PACKING", until=Children("parcels", then="GONE")), State("SHIPPED")]
    with pytest.raises(ValueError, match="'GONE'"):
        StateMachine(states, "PACKING", {"PACKING": ["SHIPPED"]})


@pytest.mark.usefixtures("isolated")
class TestHandlers:
    def declare(self, until: Children, *, handled: bool) -> None:
        states = StateMachine([State("A", until=until), State("B"), State("C")], "A", {"A": ["B", "C"]})
        body: dict[str, Any] = {"go": handler("A")(lambda self: "B")} if handled else {}
        lab_model(states=states, **body)

    def test_a_handler_and_then_is_one_too_many(self) -> None:
        with pytest.raises(ValueError, match="handles the state as well"):
            self.declare(Children("parcels", then="B"), handled=True)

    def test_neither_is_one_too_few(self) -> None:
        with pytest.raises(ValueError, match="nothing says where its rows go"):
            self.declare(Children("parcels", failed_to="C"), handled=False)

    def test_a_handler_may_leave_failures_to_the_declaration(self) -> None:
        self.declare(Children("parcels", failed_to="C"), handled=True)


@pytest.mark.parametrize(
    ("need", "by_state", "decision"),
    [
        ("all", {}, Decision.MET),
        ("all", {"DONE": 2, "OFF": 1}, Decision.MET),
        ("all", {"DONE": 2, "OPEN": 1}, Decision.WAITS),
        ("all", {"LOST": 1, "OPEN": 1}, Decision.FAILED),
        ("any", {}, Decision.FAILED),
        ("any", {"OPEN": 1}, Decision.WAITS),
        ("any", {"LOST": 5}, Decision.FAILED),
        ("any", {"LOST": 5, "DONE": 1}, Decision.MET),
        (2, {"DONE": 1, "OPEN": 1}, Decision.WAITS),
        (2, {"DONE": 2, "OPEN": 9, "LOST": 9}, Decision.MET),
        (2, {"DONE": 1, "LOST": 9}, Decision.FAILED),
    ],
)
def test_what_so_many_come_to(need: object, by_state: dict[str, int], decision: Decision) -> None:
    assert counts(Children("parcels", need=need, failed=["LOST"]), **by_state).decision is decision  # type: ignore[arg-type]


def test_counts_are_a_mapping_with_sums() -> None:
    found = counts(Children("parcels", failed=["LOST"]), DONE=3, LOST=2, OPEN=1, ODD=0)
    assert dict(found) == {"DONE": 3, "LOST": 2, "OPEN": 1}
    assert (found.total, found.finished, found.unfinished, found.failed, found.succeeded) == (6, 5, 1, 2, 3)
    assert not found.is_met
    assert found.get("ODD", 0) == 0
