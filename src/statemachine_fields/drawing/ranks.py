"""Ranks of states: which come before which, where moves lead round in circles too. Pure Python: knows no coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import TypeAlias

Move: TypeAlias = tuple[str, str]


def connected_parts(states: Iterable[str], moves: Iterable[Move], initial: str) -> list[list[str]]:
    """Return the states in groups that no move joins, the one of the initial state first."""
    part = {state: [state] for state in states}
    for source, target in moves:
        if part[source] is not part[target]:
            joined = part[source] + part[target]
            part.update(dict.fromkeys(joined, joined))
    order = {state: place for place, state in enumerate(part)}
    groups = {id(group): sorted(group, key=order.__getitem__) for group in (part[initial], *part.values())}
    return list(groups.values())


def backward_moves(states: Sequence[str], moves: Iterable[Move], initial: str) -> set[Move]:
    """Return moves to turn around so that no cycle is left. Whatever leads to the initial state is among them.

    In a cycle they are those that lead to a state declared before, as people declare states in the order of a story; or
    those that lead back on a walk from the initial state, if these are fewer.
    """
    moves = list(moves)
    targets = _targets(states, moves)
    to_initial = {move for move in moves if move[1] == initial}
    walked = to_initial | _leading_back_on_a_walk(states, targets, initial)
    place = {state: number for number, state in enumerate(dict.fromkeys((initial, *states)))}
    reached = {state: _reached(targets, state) for state in states}
    declared = to_initial | {
        (source, target) for source, target in moves if place[target] < place[source] and source in reached[target]
    }
    return declared if len(declared) <= len(walked) else walked


def _reached(targets: Mapping[str, list[str]], start: str) -> set[str]:
    seen = {start}
    waiting = [start]
    while waiting:
        new = [target for target in targets[waiting.pop()] if target not in seen]
        seen.update(new)
        waiting.extend(new)
    return seen


def _leading_back_on_a_walk(states: Sequence[str], targets: Mapping[str, list[str]], initial: str) -> set[Move]:
    backward: set[Move] = set()
    done: set[str] = set()
    for start in (initial, *states):
        if start in done:
            continue
        trail = {start: iter(targets[start])}
        while trail:
            state, rest = next(reversed(trail.items()))
            target = next(rest, None)
            if target is None:
                done.add(state)
                del trail[state]
            elif target in trail:
                backward.add((state, target))
            elif target not in done:
                trail[target] = iter(targets[target])
    return backward


def ranks_of(states: Sequence[str], moves: Iterable[Move], first: str) -> dict[str, int]:
    """Return the rank of each state: one more than those it comes from, and near to where it leads.

    `moves` has no cycle, and none of them leads to the first state.
    """
    moves = list(moves)
    targets = _targets(states, moves)
    sources = _targets(states, ((target, source) for source, target in moves))
    order = list(TopologicalSorter(sources).static_order())
    rank = dict.fromkeys(states, 0)
    for state in order:
        rank[state] = max((rank[source] + 1 for source in sources[state]), default=0)
    for state in reversed(order):  # where more moves leave than come in, later is shorter
        if state != first and len(targets[state]) > len(sources[state]):
            rank[state] = min(rank[target] for target in targets[state]) - 1
    return rank


def spine_of(states: Sequence[str], moves: Iterable[Move], initial: str, rank: Mapping[str, int]) -> list[str]:
    """Return the longest chain from the initial state that skips no rank; of two equal ones that declared first.

    It ends where three or more go on in equal measure: none of them is the main one.
    """
    targets = _targets(states, (move for move in moves if rank[move[1]] == rank[move[0]] + 1))
    length = dict.fromkeys(states, 0)
    for state in sorted(states, key=lambda state: -rank[state]):
        length[state] = max((length[target] + 1 for target in targets[state]), default=0)
    spine = [initial]
    while True:
        longest = [target for target in targets[spine[-1]] if length[target] == length[spine[-1]] - 1]
        if len(longest) not in (1, 2):
            return spine
        spine.append(longest[0])


def _targets(states: Iterable[str], moves: Iterable[Move]) -> dict[str, list[str]]:
    targets: dict[str, list[str]] = {state: [] for state in states}
    for source, target in moves:
        targets[source].append(target)
    return targets
