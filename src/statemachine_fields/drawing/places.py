"""Places across the layers: the nodes of a layer keep their order and their distance, and chains stay straight."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from statemachine_fields.drawing.layers import Layers, Node

SWEEPS = 12

# How much room is between two neighbours in a layer. A lane has no width of its own.
BETWEEN_BOXES = 26
BETWEEN_LANES = 14
BESIDE_A_BOX = 16
BESIDE_A_LABEL = 10


@dataclass(eq=False, slots=True)
class StraightRun:
    """Nodes of consecutive layers on one straight line."""

    line: float = 0
    #: Which blocks come next on either side, and how far off at least.
    left: dict[StraightRun, float] = field(default_factory=dict)
    right: dict[StraightRun, float] = field(default_factory=dict)
    #: The lines of others that it would like to be on, and how much.
    pulls: list[tuple[StraightRun, float]] = field(default_factory=list)


def place_across(layers: Layers) -> None:
    """Set the line of every node, the least of what they cover being 0."""
    spine = set(pairwise(layers.spine))
    block_of = _blocks(layers, spine)
    for row in layers.rows:
        for one, other in pairwise(row):
            near, far = block_of[one], block_of[other]
            distance = max(near.right.get(far, 0), one.after + _room(one, other) + other.before)
            near.right[far] = far.left[near] = distance
    for up, upper in block_of.items():  # row by row
        for down in up.downs:
            lower, weight = block_of[down], _weight(up, down, spine)
            if upper is not lower:
                upper.pulls.append((lower, weight))
                lower.pulls.append((upper, weight))
    _settle(list(dict.fromkeys(block_of.values())))
    for node, block in block_of.items():
        node.line = block.line
    least = min(node.line - node.before for node in block_of)
    for node in block_of:
        node.line -= least


def _room(one: Node, other: Node) -> float:
    if one.label or other.label:
        return BESIDE_A_LABEL
    lanes = one.is_lane + other.is_lane
    return (BETWEEN_BOXES, BESIDE_A_BOX, BETWEEN_LANES)[lanes]


def _weight(up: Node, down: Node, spine: set[tuple[Node, Node]]) -> float:
    """Return how much it matters that a line is straight: the spine, then lanes, which are long, then the rest."""
    if (up, down) in spine:
        return 8
    if up.is_lane and down.is_lane:
        return 6
    return 2 if up.state is None or down.state is None else 1


def _blocks(layers: Layers, spine: set[tuple[Node, Node]]) -> dict[Node, StraightRun]:
    """Join nodes that are to be on one line: one at most from the layer before, and no two such lines cross.

    As they do not cross, no block is on both sides of another.
    """
    before: dict[Node, Node] = {}
    for row in layers.rows:
        kept: list[tuple[int, int]] = []
        taken: set[Node] = set()
        wanted = [(up, down) for up in row for down in up.downs]
        wanted.sort(key=lambda pair: (-_weight(pair[0], pair[1], spine), _off_middle(*pair)))
        for up, down in wanted:
            here = (up.index, down.index)
            crosses = any((here[0] - other[0]) * (here[1] - other[1]) < 0 for other in kept)
            if up not in taken and down not in before and not crosses:
                taken.add(up)
                before[down] = up
                kept.append(here)
    block_of: dict[Node, StraightRun] = {}
    for row in layers.rows:
        for node in row:
            block_of[node] = block_of[before[node]] if node in before else StraightRun()
    return block_of


def _off_middle(up: Node, down: Node) -> float:
    """Return how far each of two is from being the middle one of the other's neighbours."""
    downs = sorted(node.index for node in up.downs)
    ups = sorted(node.index for node in down.ups)
    return abs(downs.index(down.index) - (len(downs) - 1) / 2) + abs(ups.index(up.index) - (len(ups) - 1) / 2)


def _settle(blocks: list[StraightRun]) -> None:
    """Move blocks to where they are pulled, as far as their neighbours let them."""
    order = _from_left_to_right(blocks)
    for block in order:
        block.line = max((other.line + distance for other, distance in block.left.items()), default=0)
    for _ in range(SWEEPS):
        for block in (*reversed(order), *order):
            if block.pulls:
                least = max((other.line + distance for other, distance in block.left.items()), default=float("-inf"))
                most = min((other.line - distance for other, distance in block.right.items()), default=float("inf"))
                block.line = min(max(_middle(block.pulls), least), most)


def _from_left_to_right(blocks: list[StraightRun]) -> list[StraightRun]:
    missing = {block: len(block.left) for block in blocks}
    order = [block for block in blocks if not missing[block]]
    for block in order:
        for other in block.right:
            missing[other] -= 1
            if not missing[other]:
                order.append(other)
    return order


def _middle(pulls: list[tuple[StraightRun, float]]) -> float:
    """Return the weighted median of the lines; between two that are equally strong, their mean."""
    lines = sorted((block.line, weight) for block, weight in pulls)
    half = sum(weight for _, weight in lines) / 2
    passed = 0.0
    for place, (line, weight) in enumerate(lines):
        passed += weight
        if passed > half:
            return line
        if passed == half:
            return (line + lines[place + 1][0]) / 2
    return lines[-1][0]
