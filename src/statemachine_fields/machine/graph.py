"""Legal moves. Pure Python: knows nothing of the ORM, so its tests need no database."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from django.utils.functional import Promise

from statemachine_fields.schedule.policy import Policy, plain

if TYPE_CHECKING:
    from django.db.models import TextChoices

Label: TypeAlias = "str | Promise"
States: TypeAlias = "type[TextChoices] | Iterable[State | tuple[str, Label]]"
Targets: TypeAlias = "Iterable[str | Transition]"


@dataclass(frozen=True, slots=True)
class State(Policy):
    """One declared state: its value in the database, its label for people, and its policy for workers.

    :param retired: that rows may leave the state and none may enter it any more.
    """

    value: str
    label: Label = ""
    retired: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        if not isinstance(self.value, str) or not self.value:
            raise ValueError(f"A state's value must be a non-empty string, got {self.value!r}.")
        if not isinstance(self.retired, bool):
            raise ValueError(f"retired must be True or False, got {self.retired!r}.")
        object.__setattr__(self, "value", plain(self.value))
        if self.label is None or (
            isinstance(self.label, str) and not self.label
        ):  # a lazy label must not be asked: no language is active yet
            object.__setattr__(self, "label", self.value.replace("_", " ").capitalize())


@dataclass(frozen=True, slots=True)
class Transition:
    """One declared move, where there is more to say of it than its target.

    :param label: what people press to make it, as "Ship".
    :param permission: the name of a permission of Django's, or a function of the row and the user.
    :param confirm: for the admin: True to ask whether people are sure, or the question to ask.
    :param form: for the admin: a form, or the dotted path of one, that people fill in first. What they say about fields
        of the row is written with the move; the rest is kept with its record.
    :param button: for the admin: False for a move of the system's own, which people are not offered there and cannot
        make. Programs and workers make it as any other.
    :param danger: for the admin: that the move ends badly. Its button looks it, and comes after the others.
    """

    to: str
    label: Label = ""
    permission: str | Callable[[Any, Any], bool] | None = None
    confirm: bool | Label = False
    form: type[Any] | str | None = None
    button: bool = True
    danger: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.confirm, bool | str | Promise):
            raise ValueError(f"confirm must be True, or the question to ask, got {self.confirm!r}.")
        if self.form is not None and not isinstance(self.form, str | type):
            raise ValueError(f"form must be a form class, or its dotted path, got {self.form!r}.")
        for name in ("button", "danger"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}.")


@dataclass(frozen=True, slots=True)
class StateGraph:
    """Which states exist and which moves are legal."""

    states: Mapping[str, State]
    initial: str
    edges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: What was said of a move beyond its target, by source and target.
    details: Mapping[tuple[str, str], Transition] = field(default_factory=dict)

    def __contains__(self, state: object) -> bool:
        return isinstance(state, str) and state in self.states

    def targets(self, state: str) -> tuple[str, ...]:
        """Return the states one move away, in the order declared; nothing for a state that is not declared."""
        return self.edges.get(state, ())

    def allows(self, source: str, target: str) -> bool:
        return target in self.targets(source)

    def transition(self, source: str, target: str) -> Transition:
        """Return what was declared of a legal move."""
        return self.details.get((source, target)) or Transition(target)

    def asks_permission(self, target: str) -> bool:
        """Say whether some move to the state needs a permission."""
        return any(to == target and move.permission is not None for (_source, to), move in self.details.items())

    def is_terminal(self, state: str) -> bool:
        return not self.targets(state)

    @property
    def terminal_states(self) -> tuple[str, ...]:
        return tuple(state for state in self.states if self.is_terminal(state))

    @property
    def retired_states(self) -> tuple[str, ...]:
        return tuple(value for value, state in self.states.items() if state.retired)

    def reachable(self, *sources: str) -> frozenset[str]:
        """Return the sources and every state that some path of moves leads to from them."""
        seen = set(sources)
        queue = list(sources)
        while queue:
            for target in self.targets(queue.pop()):
                if target not in seen:
                    seen.add(target)
                    queue.append(target)
        return frozenset(seen)

    def unreachable_states(self) -> tuple[str, ...]:
        """Return the states that no path leads to from the initial one, nor from those that rows are still in."""
        reached = self.reachable(self.initial, *self.retired_states)
        return tuple(state for state in self.states if state not in reached)

    def trap_states(self) -> tuple[str, ...]:
        """Return the states that have moves and yet no way out.

        Either every move leads back to the state itself, or the machine has terminal states and none of them can be
        reached any more. A machine that is one big cycle by design has no terminal state and no trap.
        """
        terminal = set(self.terminal_states)
        return tuple(
            state
            for state in self.states
            if state not in terminal
            and (set(self.targets(state)) == {state} or (terminal and not terminal & self.reachable(state)))
        )


def build_graph(states: States, initial: str, transitions: Mapping[str, Targets], max_length: int) -> StateGraph:
    """Read a declaration and raise ValueError where it is wrong, in the words of the reference page."""
    declared = _read_states(states, max_length)
    if initial not in declared:
        raise _misnamed(f"Initial state {initial!r} not found in states", initial, declared)
    if declared[initial].retired:
        raise _retired(f"Initial state {plain(initial)!r} is retired")
    if not isinstance(transitions, Mapping):
        raise ValueError(
            f"transitions must map a state to the list of states it may move to, got {type(transitions).__name__}."
        )
    edges, details = {}, {}
    for source, targets in transitions.items():
        if source not in declared:
            raise _misnamed(f"Transition source {source!r} not in states", source, declared)
        read = _read_targets(source, targets, declared)
        edges[plain(source)] = tuple(read)
        details.update({(plain(source), target): detail for target, detail in read.items() if detail is not None})
    graph = StateGraph(MappingProxyType(declared), plain(initial), MappingProxyType(edges), MappingProxyType(details))
    _check_policies(graph)
    return graph


def _check_policies(graph: StateGraph) -> None:
    """Refuse a policy that would move rows where no declared move leads."""
    for state in graph.states.values():
        named = [("timeout_to", state.timeout_to), ("error_to", state.error_to)]
        named += [(f"until={state.until!r}", target) for target in (state.until.targets if state.until else ())]
        for option, target in named:
            if target is None:
                continue
            if target not in graph:
                raise _misnamed(f"{option} of {state.value!r} names {target!r}, not in states", target, graph.states)
            if graph.states[target].retired:
                raise _retired(f"{option} of {state.value!r} is {target!r}, which is retired")
            if not graph.allows(state.value, target):
                raise ValueError(
                    f"{option} of {state.value!r} is {target!r}, and there is no such transition. Add {target!r} to the "
                    f"transitions of {state.value!r}."
                )


def _read_states(states: States, max_length: int) -> dict[str, State]:
    if isinstance(states, str | Mapping) or not isinstance(states, Iterable):
        raise ValueError(
            "states must be a list of (value, label) pairs or State objects, or a TextChoices class, "
            f"got {type(states).__name__}."
        )
    entries: Iterable[Any] = states
    if isinstance(states, type) and issubclass(states, enum.Enum) and issubclass(states, str):
        entries = getattr(states, "choices", states)  # of a TextChoices class
    declared: dict[str, State] = {}
    for entry in entries:
        state = entry if isinstance(entry, State) else _read_pair(entry)
        if state.value in declared:
            raise ValueError(f"State {state.value!r} is declared twice. Remove one of the two.")
        if len(state.value) > max_length:
            raise ValueError(
                f"State {state.value!r} has {len(state.value)} characters, the column takes {max_length}. "
                "Shorten the value or raise max_length."
            )
        declared[state.value] = state
    if not declared:
        raise ValueError("states is empty. A machine needs at least its initial state.")
    return declared


def _read_pair(entry: object) -> State:
    if isinstance(entry, enum.Enum) or not isinstance(entry, tuple | list) or len(entry) != 2:
        raise ValueError(f"Each state must be a (value, label) pair or a State, got {entry!r}.")
    return State(*entry)


def _read_targets(source: str, targets: Targets, declared: Mapping[str, State]) -> dict[str, Transition | None]:
    if isinstance(targets, str | Transition) or not isinstance(targets, Iterable):
        raise ValueError(
            f"Transitions from {source!r} must be a list of states, got {targets!r}. Write [{targets!r}] for a single "
            "one."
        )
    read: dict[str, Transition | None] = {}
    for entry in targets:
        target = entry.to if isinstance(entry, Transition) else entry
        if target not in declared:
            raise _misnamed(f"Transition target {target!r} not in states", target, declared)
        if declared[target].retired:
            raise _retired(f"Transition target {plain(target)!r} of {plain(source)!r} is retired")
        if target in read:
            raise ValueError(f"The transition from {source!r} to {target!r} is declared twice. Remove one of the two.")
        read[plain(target)] = entry if isinstance(entry, Transition) else None
    return read


def _retired(message: str) -> ValueError:
    return ValueError(f"{message}: rows may leave it and none may enter it. Name another state.")


def _misnamed(message: str, name: object, declared: Mapping[str, State]) -> ValueError:
    error = ValueError(message)
    guess = get_close_matches(str(name), declared, n=1)
    error.add_note(f"Declared states: {', '.join(declared)}." + (f" Did you mean {guess[0]!r}?" if guess else ""))
    return error
