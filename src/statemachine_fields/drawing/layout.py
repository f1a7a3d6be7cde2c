"""Layout of a graph in layers: a place for each box and a curve for each move. Pure Python: knows nothing of drawing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from statemachine_fields.drawing.layers import Layers, Node, build_layers, sort_layers
from statemachine_fields.drawing.places import place_across
from statemachine_fields.drawing.ranks import Move, backward_moves, connected_parts, ranks_of, spine_of
from statemachine_fields.drawing.routes import CORNER, LABEL_OFF, LOOP, NARROW_PORT, Point, Route, find_routes, loop

#: How wide a page is, if nobody says, and how much of it each rank of a layout from left to right has at least.
PAGE = 1150
RANK = 140

GAP = 46  # between two layers, at least
STEEP = 0.1  # of the longest way across a gap is added to it, so that curves are not too steep
WIDEST_GAP = 84
BESIDE_LABELS = 24  # between a layer of labels and the next, at least
START = 32  # from the start dot to the initial state
BETWEEN_PARTS = 40


@dataclass(frozen=True, slots=True)
class Size:
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle by its upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is, from (0, 0) to (width, height)."""

    width: float
    height: float
    boxes: dict[str, Box]
    routes: dict[Move, Route]
    #: From the middle of the start dot to the border of the initial state.
    start: tuple[Point, Point]
    #: Whether it runs from top to bottom; else from left to right.
    downwards: bool


def arrange(
    boxes: Mapping[str, Size], moves: Mapping[Move, Size | None], initial: str, *, page: float = PAGE
) -> Layout:
    """Lay out states by the size of their boxes, and the moves between them by the size of their labels.

    It runs from left to right if a page of that width has room for it, else from top to bottom.

    A box may be given more room than it asked for. No two boxes overlap, and no move passes through a box that it
    neither leaves nor enters: between layers there are curves and no boxes, and within a layer a move keeps to a lane
    beside the boxes. The same input gives the same layout.
    """
    parts = []
    for states in connected_parts(boxes, moves, initial):
        inside = set(states)
        own_moves = {move: size for move, size in moves.items() if move[0] in inside}
        parts.append(_Part(states, own_moves, initial if initial in inside else states[0]))
    downwards = any(part.is_long(boxes, page) for part in parts)
    for part in parts:
        part.lay_out(boxes, downwards)
    return _pack(parts, downwards, page)


@dataclass(slots=True)
class _Part:
    """States that moves join, laid out along an axis, whichever that is: its points are (along, across)."""

    states: list[str]
    moves: dict[Move, Size | None]
    first: str
    boxes: dict[str, tuple[Point, Point]] = field(default_factory=dict)
    routes: dict[Move, Route] = field(default_factory=dict)
    length: float = 0
    breadth: float = 0
    backward: set[Move] = field(init=False)
    rank: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.backward = backward_moves(self.states, self._between, self.first)
        turned = [(move[1], move[0]) if move in self.backward else move for move in self._between]
        self.rank = ranks_of(self.states, turned, self.first)

    @property
    def _between(self) -> list[Move]:
        return [move for move in self.moves if move[0] != move[1]]

    def is_long(self, boxes: Mapping[str, Size], page: float) -> bool:
        """Say whether a page is too narrow for it from left to right."""
        widest = [0.0] * (max(self.rank.values()) + 1)
        labels = [0.0] * len(widest)
        for state, rank in self.rank.items():
            widest[rank] = max(widest[rank], boxes[state].width)
        for move in self._between:
            if size := self.moves[move]:
                gap = self.rank[move[0]] - (move in self.backward)
                labels[gap] = max(labels[gap], size.width)
        room = sum(label + 2 * BESIDE_LABELS if label else GAP for label in labels[:-1])
        return len(widest) > page / RANK or sum(widest) + room > page

    def lay_out(self, boxes: Mapping[str, Size], downwards: bool) -> None:
        forward = [move for move in self._between if move not in self.backward]
        layers = build_layers(
            self.states,
            {move: self.moves[move] is not None for move in self._between},
            backward=self.backward,
            rank=self.rank,
            spine=spine_of(self.states, forward, self.first, self.rank),
        )
        # Loops and labels are above a line from left to right, and to the right of one from top to bottom.
        outward = 1 if downwards else -1
        sizes = {state: _turned(size, downwards) for state, size in boxes.items()}
        labels = {move: _turned(size, downwards) for move, size in self.moves.items() if size}
        half = _measure(layers, sizes, labels, {move[0] for move in self.moves if move[0] == move[1]}, outward)
        sort_layers(layers)
        place_across(layers)
        bands = _bands(layers)
        self.length = bands[-1][1]
        self.breadth = max(node.line + node.after for row in layers.rows for node in row)
        for state, node in layers.boxes.items():
            start, end = bands[node.layer]
            self.boxes[state] = ((start, node.line - half[state]), (end, node.line + half[state]))
        self.routes = find_routes(layers, bands, half, outward)
        for move in self.moves:
            if move[0] == move[1]:
                self.routes[move] = loop(self.boxes[move[0]], labels.get(move), outward)


def _turned(size: Size, downwards: bool) -> Point:
    return (size.height, size.width) if downwards else (size.width, size.height)


def _measure(
    layers: Layers, boxes: Mapping[str, Point], labels: Mapping[Move, Point], loops: Collection[str], outward: int
) -> dict[str, float]:
    """Tell each node how far it reaches. Return half of what each box covers across."""
    half = {}
    ends = layers.ends()
    for state, node in layers.boxes.items():
        node.along, across = boxes[state]
        most = max(map(len, ends[state]))
        half[state] = max(across, (most - 1) * (NARROW_PORT + 1) + 2 * CORNER) / 2
        beyond = float(LOOP) if state in loops else 0.0
        if (state, state) in labels:
            length, breadth = labels[state, state]
            node.along, beyond = max(node.along, length), LOOP + LABEL_OFF + breadth
        _reach(node, half[state], half[state] + beyond, outward)
    for move, path in layers.paths.items():
        for node in path:
            if node.label:
                node.along, breadth = labels[move]
                _reach(node, 2, LABEL_OFF + breadth, outward)
    return half


def _reach(node: Node, inward: float, beyond: float, outward: int) -> None:
    node.before, node.after = (inward, beyond) if outward > 0 else (beyond, inward)


def _bands(layers: Layers) -> list[Point]:
    """Return where each layer starts and ends."""
    bands: list[Point] = []
    start = 0.0
    for number, row in enumerate(layers.rows):
        end = start + max(node.along for node in row)
        bands.append((start, end))
        steepest = max((abs(up.line - down.line) for up in row for down in up.downs), default=0)
        beside = any(node.label for node in (*row, *layers.rows[min(number + 1, len(layers.rows) - 1)]))
        start = end + min((BESIDE_LABELS if beside else GAP) + STEEP * steepest, WIDEST_GAP)
    return bands


def _pack(parts: Sequence[_Part], downwards: bool, page: float) -> Layout:
    """Put the parts beside each other, in as many rows as a page needs."""
    boxes: dict[str, Box] = {}
    routes: dict[Move, Route] = {}
    x = y = width = height = 0.0
    for part in parts:
        begin = START if part is parts[0] else 0
        part_width, part_height = _turned(Size(part.length + begin, part.breadth), downwards)
        if x and x + part_width > page:
            x, y = 0.0, height + BETWEEN_PARTS

        def place(point: Point, x: float = x, y: float = y, begin: float = begin) -> Point:
            along, across = point
            return (x + across, y + along + begin) if downwards else (x + along + begin, y + across)

        for state, (first, last) in part.boxes.items():
            (left, top), (right, bottom) = place(first), place(last)
            boxes[state] = Box(left, top, right - left, bottom - top)
        for move, route in part.routes.items():
            routes[move] = Route(tuple(map(place, route.points)), route.label and place(route.label))
        width, height = max(width, x + part_width), max(height, y + part_height)
        x += part_width + BETWEEN_PARTS
    initial = boxes[parts[0].first]
    x, y = initial.x + initial.width / 2, initial.y + initial.height / 2
    start = ((x, 0.0), (x, initial.y)) if downwards else ((0.0, y), (initial.x, y))
    return Layout(width, height, boxes, routes, start, downwards)
