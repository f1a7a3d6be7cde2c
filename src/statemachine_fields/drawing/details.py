"""What a machine does by itself, in words for a drawing: time-outs, retries, handlers, guards, deletion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from statemachine_fields.drawing.ranks import Move

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"))


@dataclass(frozen=True, slots=True)
class Details:
    """What to say of states and of moves, beyond their labels."""

    states: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    moves: Mapping[Move, tuple[str, ...]] = field(default_factory=dict)
    #: Moves of rows that have failed.
    errors: frozenset[Move] = frozenset()


NO_DETAILS = Details()


def details_of(bound: Binding[Any]) -> Details:
    """Return what is declared of a machine besides its states and moves."""
    graph = bound.graph
    states = {state: said for state in graph.states if (said := tuple(_of_state(bound, state)))}
    declared = [(source, target) for source in graph.states for target in graph.targets(source)]
    moves = {move: said for move in declared if (said := tuple(_of_move(bound, *move)))}
    return Details(states, moves, frozenset(move for move in declared if graph.states[move[0]].error_to == move[1]))


def _of_state(bound: Binding[Any], state: str) -> list[str]:
    schedule, declared = bound.schedules.get(state), bound.graph.states[state]
    said = [f"waits for {declared.until}"] if declared.until is not None else []
    if schedule is not None and schedule.handler is not None:
        wait = f" after {spoken(schedule.start_after)}" if schedule.start_after else ""
        said.append(f"{schedule.handler.name}(){wait}")
    if declared.external:
        said.append("moved by others")
    if schedule is not None and schedule.max_attempts is not None and schedule.error_to is None:
        said.append(f"parked after {_tries(schedule.max_attempts)}")
    if schedule is not None and schedule.delete_after is not None:
        said.append(f"deleted after {spoken(schedule.delete_after)}")
    return said


def _of_move(bound: Binding[Any], source: str, target: str) -> list[str]:
    schedule, until = bound.schedules.get(source), bound.graph.states[source].until
    said = [until.words_for(target)] if until is not None and target in until.targets else []
    if schedule is not None and schedule.timeout_to == target and schedule.timeout_after is not None:
        said.append(f"after {spoken(schedule.timeout_after)}")
    if schedule is not None and schedule.error_to == target:
        said.append(
            "if its worker dies again and again"
            if schedule.max_attempts is None
            else f"after {_tries(schedule.max_attempts)}"
        )
    guards = [f"{name}()" for name, to in bound.guards.items() if to is None or target in to]
    if guards:
        said.append(f"if {' and '.join(guards)}")
    return said


def _tries(number: int) -> str:
    return "1 try" if number == 1 else f"{number} tries"


def spoken(seconds: float) -> str:
    """Return a duration as people say it, and whole: `14 days`, `1 hour 30 minutes`, `90 seconds`, `0.5 seconds`."""
    if seconds < 120 and seconds % 60:
        return f"{seconds:g} second{'' if seconds == 1 else 's'}"
    parts, rest = [], seconds
    for size, name in UNITS:
        whole, rest = divmod(rest, size)
        if whole:
            parts.append(f"{whole:.0f} {name}{'' if whole == 1 else 's'}")
    if rest or not parts:
        parts.append(f"{round(rest, 6):g} second{'' if rest == 1 else 's'}")
    return " ".join(parts)
