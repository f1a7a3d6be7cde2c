"""Legal moves, without a database: what a declaration means, and every kind of wrong one with the error it gives."""

from __future__ import annotations

import enum
import re

import pytest
from django.db import models
from django.utils.translation import gettext_lazy as _
from hypothesis import given
from hypothesis import strategies as st

from statemachine_fields import State, StateMachine, Transition
from statemachine_fields.machine.graph import StateGraph, build_graph
from tests.declared import lab_model

PAIRS = [("A", "Aa"), ("B", "Bb")]


class Choices(models.TextChoices):
    A = "A", _("Aa")
    B = "B", "Bb"


def graph(edges: dict[str, list[str]], initial: str = "A") -> StateGraph:
    states = dict.fromkeys([initial, *edges, *(target for targets in edges.values() for target in targets)])
    return build_graph([(state, state) for state in states], initial, edges, 50)


@pytest.mark.parametrize(
    "states", [PAIRS, Choices, [State("A", "Aa"), ("B", "Bb")], iter(PAIRS), [["A", "Aa"], ["B", "Bb"]]]
)
def test_states_are_pairs_or_state_objects_or_text_choices(states):
    read = build_graph(states, "A", {"A": ["B"]}, 50)
    assert [(state.value, str(state.label)) for state in read.states.values()] == PAIRS


def test_enum_members_stand_for_their_values():
    read = build_graph(Choices, Choices.A, {Choices.A: [Choices.B]}, 50)
    assert type(read.initial) is str
    assert [type(state) for state in (*read.edges, *read.edges["A"])] == [str, str]


def test_a_label_left_out_is_made_from_the_value():
    assert State("IN_TRANSIT").label == "In transit"


def test_a_lazy_label_is_not_evaluated_by_the_declaration():
    class Unready:
        def __bool__(self):
            raise AssertionError("evaluated")

        __str__ = __bool__

    assert State("A", Unready()).value == "A"


WRONG = {
    "Initial state 'X' not found in states": (PAIRS, "X", {}),
    "Initial state None not found in states": (PAIRS, None, {}),
    "Transition source 'X' not in states": (PAIRS, "A", {"X": ["A"]}),
    "Transition target 'X' not in states": (PAIRS, "A", {"A": ["X"]}),
    "states is empty. A machine needs at least its initial state.": ([], "A", {}),
    "State 'A' is declared twice. Remove one of the two.": ([*PAIRS, ("A", "Again")], "A", {}),
    "The transition from 'A' to 'B' is declared twice. Remove one of the two.": (PAIRS, "A", {"A": ["B", "B"]}),
    "Each state must be a (value, label) pair or a State, got 'A'.": (["A", "B"], "A", {}),
    "Each state must be a (value, label) pair or a State, got ('A',).": ([("A",)], "A", {}),
    "A state's value must be a non-empty string, got 1.": ([(1, "One")], 1, {}),
    "A state's value must be a non-empty string, got ''.": ([("", "Nothing")], "", {}),
    "Transitions from 'A' must be a list of states, got 'B'. Write ['B'] for a single one.": (PAIRS, "A", {"A": "B"}),
    "Transitions from 'A' must be a list of states, got None. Write [None] for a single one.": (
        PAIRS,
        "A",
        {"A": None},
    ),
    "transitions must map a state to the list of states it may move to, got list.": (PAIRS, "A", [("A", ["B"])]),
    "states must be a list of (value, label) pairs or State objects, or a TextChoices class, got str.": ("AB", "A", {}),
    "states must be a list of (value, label) pairs or State objects, or a TextChoices class, got dict.": (
        {"A": "Aa"},
        "A",
        {},
    ),
    "State 'AAAAAA' has 6 characters, the column takes 5. Shorten the value or raise max_length.": (
        [("AAAAAA", "Long")],
        "AAAAAA",
        {},
    ),
}


@pytest.mark.parametrize(("message", "declaration"), WRONG.items(), ids=list(WRONG))
def test_a_wrong_graph_is_refused_where_it_is_written(message, declaration):
    with pytest.raises(ValueError, match=".") as caught:
        StateMachine(*declaration, max_length=5)
    assert str(caught.value) == message


WRONG_OPTIONS = {
    "max_length must be a positive number, got 0.": {"max_length": 0},
    "max_length must be a positive number, got '9'.": {"max_length": "9"},
    "field must be a name that a model field can have, got 'the status'.": {"field": "the status"},
    "field must be a name that a model field can have, got 'a__b'.": {"field": "a__b"},
    "field must be a name that a model field can have, got 'status_'.": {"field": "status_"},
    "history_on_delete must be models.CASCADE, models.PROTECT or models.DO_NOTHING, got 'SET_NULL'.": {
        "history_on_delete": models.SET_NULL
    },
    "transition_base must be an abstract model, got <enum 'Enum'>.": {"transition_base": enum.Enum},
}


@pytest.mark.parametrize(("message", "options"), WRONG_OPTIONS.items(), ids=list(WRONG_OPTIONS))
def test_a_wrong_option_is_refused_where_it_is_written(message, options):
    with pytest.raises(ValueError, match=".") as caught:
        StateMachine(PAIRS, "A", {}, **options)
    assert str(caught.value) == message


def test_a_transition_base_that_declares_what_every_record_has():
    base = lab_model(name="Base", meta={"abstract": True}, sequence=models.CharField(max_length=5))
    with pytest.raises(ValueError, match="transition_base must not declare sequence: each record has it already."):
        StateMachine(PAIRS, "A", {}, transition_base=base)


def test_a_machine_called_like_its_column():
    with pytest.raises(ValueError, match="the machine and a column of it would have the same name. Call the machine"):
        lab_model(status=StateMachine(PAIRS, "A", {}))


def test_a_label_of_none_is_made_from_the_value():
    assert State("IN_TRANSIT", None).label == "In transit"


def test_options_are_keyword_only():
    with pytest.raises(TypeError):
        StateMachine(PAIRS, "A", {}, "phase")


def test_a_misspelt_state_comes_with_what_is_declared_and_a_guess():
    with pytest.raises(ValueError, match="PENDIN") as caught:
        StateMachine([("PENDING", "Pending")], "PENDIN", {})
    assert caught.value.__notes__ == ["Declared states: PENDING. Did you mean 'PENDING'?"]


def test_a_state_that_no_path_leads_to_is_unreachable():
    assert graph({"A": ["B"], "C": ["B"]}).unreachable_states() == ("C",)
    assert graph({"A": ["B"], "B": ["C"], "C": ["A"]}).unreachable_states() == ()


def test_a_state_that_only_leads_to_itself_is_a_trap():
    assert graph({"A": ["B"], "B": ["B"]}).trap_states() == ("B",)


def test_a_cycle_that_can_no_longer_reach_a_terminal_state_is_a_trap():
    assert graph({"A": ["B", "END"], "B": ["C"], "C": ["B"]}).trap_states() == ("B", "C")


def test_a_machine_that_is_one_cycle_has_no_trap():
    assert graph({"A": ["B"], "B": ["A"]}).trap_states() == ()


NAMES = st.sampled_from("ABCDEF")


@given(st.dictionaries(NAMES, st.lists(NAMES, unique=True), min_size=1).map(lambda edges: {"A": ["B"], **edges}))
def test_every_state_is_terminal_or_has_targets_and_reachability_is_closed_under_moves(edges):
    built = graph(edges)
    assert set(built.terminal_states) == {state for state in built.states if not edges.get(state)}
    reached = built.reachable("A")
    assert reached | set(built.unreachable_states()) == set(built.states)
    assert all(target in reached for state in reached for target in built.targets(state))
    assert not set(built.trap_states()) & set(built.terminal_states)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"confirm": 1}, "confirm must be True, or the question to ask, got 1."),
        ({"confirm": None}, "confirm must be True, or the question to ask, got None."),
        ({"button": None}, "button must be True or False, got None."),
        ({"button": 0}, "button must be True or False, got 0."),
        ({"danger": "yes"}, "danger must be True or False, got 'yes'."),
        ({"form": 1}, "form must be a form class, or its dotted path, got 1."),
    ],
)
def test_wrong_questions_are_refused(options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Transition("B", **options)
