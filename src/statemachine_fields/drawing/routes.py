"""Routes of moves over the layers: smooth curves in the gaps between layers, straight lines through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from statemachine_fields.drawing.layers import End, Layers, Node
from statemachine_fields.drawing.ranks import Move

Point: TypeAlias = tuple[float, float]
_Gap: TypeAlias = tuple[Node, Node, bool]  # what a line joins, and whether it runs backward

PORT, NARROW_PORT = 9, 6  # between two moves at one side of a box, usually and at least
CORNER = 6.5  # of a box's side, where no move ends
TURN = 8  # between two lines that turn in the same gap
LOOP = 22  # how far a move from a state to itself goes out
LABEL_OFF = 4  # from a line to its label


@dataclass(frozen=True, slots=True)
class Route:
    """The way of a move: where it starts, then three points for each cubic Bézier curve, to the border of a box.

    `label` is the middle of the place kept for its label.
    """

    points: tuple[Point, ...]
    label: Point | None = None


def find_routes(layers: Layers, bands: Sequence[Point], half: Mapping[str, float], outward: int) -> dict[Move, Route]:
    """Return the route of each move between two states, as (along, across).

    :param bands: where each layer starts and ends.
    :param half: half of what each box covers across.
    :param outward: on which side of a line its label is, -1 or 1.
    """
    lines = _lines(layers, bands, _ports(layers, half))
    return {move: _route(layers, move, bands, lines, outward) for move in layers.paths}


def _ports(layers: Layers, half: Mapping[str, float]) -> dict[tuple[Node, End], float]:
    """Say how far off the middle of a box's side each line ends: in the order of where they go, straight ones in the middle."""
    ports = {}
    for state, sides in layers.ends().items():
        box = layers.boxes[state]
        for side in sides:
            ends = sorted(side, key=lambda end: (end[0].line, end[1]))
            straight = [place for place, (other, _) in enumerate(ends) if abs(other.line - box.line) < 1]
            last = len(ends) - 1
            middle = (straight[0] + straight[-1]) / 2 if straight else last / 2
            # What is straight gives way where the others would have too little room on one side of it.
            most = (half[state] - CORNER) / NARROW_PORT
            middle = min(max(middle, last - most), most) if most > last / 2 else last / 2
            farthest = max(middle, last - middle)
            step = min(PORT, (half[state] - CORNER) / farthest) if farthest else 0
            for place, end in enumerate(ends):
                ports[box, end] = (place - middle) * step
    return ports


@dataclass(frozen=True, slots=True)
class _Crossing:
    """A line over the gap between two layers, and where in it it turns."""

    start: Point
    end: Point
    turn: float


def _lines(layers: Layers, bands: Sequence[Point], ports: Mapping[tuple[Node, End], float]) -> dict[_Gap, _Crossing]:
    """Draw the lines of each gap. Of those that go the same way across, the foremost turns first: they keep apart."""
    ends: dict[_Gap, tuple[Point, Point]] = {}
    for move, path in layers.paths.items():
        back = move in layers.backward
        for one, other in pairwise(path):
            leaves = one.line + ports.get((one, (other, back)), 0)
            enters = other.line + ports.get((other, (one, back)), 0)
            ends[one, other, back] = ((bands[one.layer][1], leaves), (bands[other.layer][0], enters))
    lines = {}
    together: dict[tuple[int, int], list[_Gap]] = {}
    for gap, ((_, leaves), (_, enters)) in ends.items():
        together.setdefault((gap[0].layer, (enters > leaves) - (enters < leaves)), []).append(gap)
    for (_, way), gaps in together.items():
        gaps.sort(key=lambda gap: (-way * ends[gap][0][1], -way * ends[gap][1][1]))
        for number, gap in enumerate(gaps):
            start, end = ends[gap]
            room = end[0] - start[0]
            step = min(TURN, 0.4 * room / len(gaps))
            lines[gap] = _Crossing(start, end, start[0] + room / 2 + (number - (len(gaps) - 1) / 2) * step)
    return lines


def _route(layers: Layers, move: Move, bands: Sequence[Point], lines: Mapping[_Gap, _Crossing], outward: int) -> Route:
    back = move in layers.backward
    points: list[Point] = []
    label = None
    for one, other in pairwise(layers.paths[move]):
        line = lines[one, other, back]
        if points:  # through the layer
            start, end = points[-1], line.start
            points += [_between(start, end, 1 / 3), _between(start, end, 2 / 3), end]
        else:
            points.append(line.start)
        points += [(line.turn, line.start[1]), (line.turn, line.end[1]), line.end]
        if other.label:
            off = max(other.before, other.after) / 2 + LABEL_OFF / 2
            label = (sum(bands[other.layer]) / 2, other.line + outward * off)
    return Route(tuple(reversed(points) if back else points), label)


def _between(start: Point, end: Point, part: float) -> Point:
    return (start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part)


def loop(box: tuple[Point, Point], label: Point | None, outward: int) -> Route:
    """Leave the outer side of a box and come back to it."""
    (start, low), (end, high) = box
    side = high if outward > 0 else low
    middle = (start + end) / 2
    out = side + outward * LOOP * 4 / 3  # a curve goes three quarters of the way to its control points
    points = ((middle - 9, side), (middle - 18, out), (middle + 18, out), (middle + 9, side))
    return Route(points, (middle, side + outward * (LOOP + LABEL_OFF + label[1] / 2)) if label else None)
