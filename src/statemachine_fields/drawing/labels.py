"""Labels of states and moves as a drawing shows them: one line, in the active language, never empty."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statemachine_fields.machine.graph import State, StateGraph


# What XML, and so SVG, cannot hold in any way.
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def labels_of(graph: StateGraph) -> dict[str, str]:
    """Return the label of each state, with the value where two states have the same one."""
    labels = {value: label_of(state) for value, state in graph.states.items()}
    count = Counter(labels.values())
    return {value: label if count[label] == 1 else f"{label} ({visible(value)})" for value, label in labels.items()}


def label_of(state: State) -> str:
    label = one_line(str(state.label))
    return label if any(map(str.isprintable, label.replace(" ", ""))) else visible(state.value)


def label_of_move(graph: StateGraph, source: str, target: str) -> str:
    return one_line(str(graph.transition(source, target).label))


def visible(value: str) -> str:
    """Return a value as it is, or as Python writes it if that would not show."""
    return value if value.isprintable() and value == one_line(value) else repr(value)


def one_line(text: str) -> str:
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.split()))
