"""Layers of a graph: a row of boxes for each rank, lanes for moves that pass rows by, and an order with few crossings."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from statemachine_fields.drawing.ranks import Move

#: The end of a line at a box: the node at its other end, and whether the line is of moves that run backward.
End: TypeAlias = "tuple[Node, bool]"

SWEEPS = 12


@dataclass(eq=False, slots=True)
class Node:
    """What has a place in a layer: the box of a state, the label of a move, or a lane where moves pass others by.

    `before` and `after` say how far it reaches across, on the two sides of the line that its moves come in on.
    """

    layer: int
    state: str | None = None
    label: bool = False
    along: float = 0
    before: float = 0
    after: float = 0
    index: int = 0
    line: float = 0
    ups: list[Node] = field(default_factory=list)
    downs: list[Node] = field(default_factory=list)

    @property
    def is_lane(self) -> bool:
        return self.state is None and not self.label


@dataclass(frozen=True, slots=True)
class Layers:
    """Nodes by layer, in order, and the nodes that each move visits, from the first layer to the last."""

    rows: list[list[Node]]
    boxes: dict[str, Node]
    paths: dict[Move, list[Node]]
    #: Moves that run against the layers.
    backward: Collection[Move]
    #: What the longest chain from the initial state passes, which is to be straight.
    spine: list[Node]

    def ends(self) -> dict[str, tuple[list[End], list[End]]]:
        """Return the lines that meet each box, from the layer before and from the layer after it.

        Moves that come by the same lane are one line. A move and its opposite are two.
        """
        found: dict[str, tuple[dict[End, None], dict[End, None]]] = {state: ({}, {}) for state in self.boxes}
        for (source, target), path in self.paths.items():
            back = (source, target) in self.backward
            first, last = (target, source) if back else (source, target)
            found[first][1][path[1], back] = None
            found[last][0][path[-2], back] = None
        return {state: (list(before), list(after)) for state, (before, after) in found.items()}


def build_layers(
    states: Sequence[str],
    labelled: Mapping[Move, bool],
    *,
    backward: Collection[Move],
    rank: Mapping[str, int],
    spine: Sequence[str],
) -> Layers:
    """Give a layer to each rank, and one between two ranks to the labels of moves that leave there.

    Moves to the same state that pass a layer by share one lane in it, so that twelve ways to be cancelled are one line.
    A label stands next to where its move starts, before that joins the others.
    """
    between = {_gap_of_label(move, backward, rank) for move, has_label in labelled.items() if has_label}
    layer_of_rank = [place + sum(gap < place for gap in between) for place in range(max(rank.values()) + 1)]
    rows: list[list[Node]] = [[] for _ in range(layer_of_rank[-1] + 1)]
    boxes: dict[str, Node] = {}
    lanes: dict[tuple[str, bool, int], Node] = {}
    paths: dict[Move, list[Node]] = {}

    def add(node: Node) -> Node:
        node.index = len(rows[node.layer])
        rows[node.layer].append(node)
        return node

    for state in states:
        boxes[state] = add(Node(layer_of_rank[rank[state]], state))
    for move, has_label in labelled.items():
        source, target = move
        back = move in backward
        first, last = (boxes[target], boxes[source]) if back else (boxes[source], boxes[target])
        path = [first]
        for layer in range(first.layer + 1, last.layer):
            if has_label and layer == (last.layer - 1 if back else first.layer + 1):
                path.append(add(Node(layer, label=True)))
                continue
            if (target, back, layer) not in lanes:
                lanes[target, back, layer] = add(Node(layer))
            path.append(lanes[target, back, layer])
        paths[move] = [*path, last]
    joined = {pair: None for path in paths.values() for pair in pairwise(path)}
    for up, down in joined:
        up.downs.append(down)
        down.ups.append(up)
    straight = [boxes[spine[0]], *(node for move in pairwise(spine) for node in paths[move][1:])]
    return Layers(rows, boxes, paths, backward, straight)


def _gap_of_label(move: Move, backward: Collection[Move], rank: Mapping[str, int]) -> int:
    """Return the rank after which the label stands."""
    return rank[move[0]] - 1 if move in backward else rank[move[0]]


def sort_layers(layers: Layers) -> None:
    """Put the nodes of each layer in an order with few crossings: by the mean of their neighbours, back and forth."""
    rows = layers.rows
    _start_in_order_of_a_walk(layers)
    best, fewest, found = [list(row) for row in rows], _crossings(rows), 0
    for sweep in range(SWEEPS):
        if not fewest or sweep > found + 4:
            break
        for row in rows[1:] if sweep % 2 == 0 else rows[-2::-1]:
            row.sort(key=lambda node: _mean(node, node.ups if sweep % 2 == 0 else node.downs))
            _number(row)
        _swap_neighbours(rows)
        count = _crossings(rows)
        if count < fewest:
            best, fewest, found = [list(row) for row in rows], count, sweep
    for row, kept in zip(rows, best, strict=True):
        row[:] = kept
        _number(row)


def _start_in_order_of_a_walk(layers: Layers) -> None:
    seen: dict[Node, None] = {}
    for start in (*layers.spine, *(node for row in layers.rows for node in row)):
        waiting = [start]
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen[node] = None
                waiting.extend(reversed(node.downs))
    for row in layers.rows:
        row.clear()
    for node in seen:
        layers.rows[node.layer].append(node)
    for row in layers.rows:
        _number(row)


def _number(row: list[Node]) -> None:
    for index, node in enumerate(row):
        node.index = index


def _mean(node: Node, others: list[Node]) -> float:
    return sum(other.index for other in others) / len(others) if others else node.index


def _swap_neighbours(rows: list[list[Node]]) -> None:
    for _ in range(4):
        swapped = False
        for row in rows:
            for index in range(len(row) - 1):
                one, other = row[index], row[index + 1]
                if _crossings_of(one, other) > _crossings_of(other, one):
                    row[index], row[index + 1] = other, one
                    one.index, other.index = index + 1, index
                    swapped = True
        if not swapped:
            return


def _crossings_of(left: Node, right: Node) -> int:
    """Return how often the lines of two neighbours cross if they stand in this order."""
    return sum(
        mine.index > theirs.index
        for ours, others in ((left.ups, right.ups), (left.downs, right.downs))
        for mine in ours
        for theirs in others
    )


def _crossings(rows: list[list[Node]]) -> int:
    count = 0
    for row in rows[:-1]:
        passed: list[int] = []
        for end in (end for node in row for end in sorted(down.index for down in node.downs)):
            count += len(passed) - bisect_right(passed, end)
            insort(passed, end)
    return count
