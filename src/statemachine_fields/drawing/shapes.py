"""Parts of an SVG: rectangles, lines with an arrowhead, and text that is only text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from statemachine_fields.drawing.labels import one_line
from statemachine_fields.drawing.layout import Box
from statemachine_fields.drawing.routes import Point

ROUND = 8


def quote(text: str) -> str:
    """Return text for an element or an attribute: what is markup in it is escaped, and what XML cannot hold replaced."""
    return escape(one_line(text))


def number(value: float) -> str:
    """Return a coordinate with one decimal at most."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


def rectangle(name: str, box: Box, beyond: float, paint: str) -> str:
    """Return the border of a box, or one that is so far outside it; inside if negative."""
    x, y, width, height = box.x - beyond, box.y - beyond, box.width + 2 * beyond, box.height + 2 * beyond
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    return f'<rect class="{name}" {place} rx="{number(ROUND + beyond)}"{paint}/>'


def arrow(points: Sequence[Point], width: float) -> tuple[str, str]:
    """Return the line along Bézier curves, and the arrowhead at its end, for a line of some width.

    The head is a shape and no marker: markers have ids, which drawings on one page would share.
    """
    tip = points[-1]
    from_x, from_y = next((point for point in reversed(points) if math.dist(point, tip) > 0.01), (tip[0] - 1, tip[1]))
    length = math.dist((from_x, from_y), tip)
    ahead = ((tip[0] - from_x) / length, (tip[1] - from_y) / length)
    long, wide = 6.5 + 1.4 * width, 2.1 + 0.9 * width

    def off(back: float, aside: float) -> Point:
        return (tip[0] - ahead[0] * back - ahead[1] * aside, tip[1] - ahead[1] * back + ahead[0] * aside)

    head = "M" + " L".join(map(pair, (tip, off(long, wide), off(long * 0.8, 0), off(long, -wide)))) + "Z"
    return line([*points[:-1], off(long * 0.7, 0)]), head


def line(points: Sequence[Point]) -> str:
    """Return the path along Bézier curves, with what is straight in it as few lines as there can be."""
    steps = [f"M{pair(points[0])}"]
    for place in range(1, len(points), 3):
        if not _on_a_line(*points[place - 1 : place + 3]):
            steps.append("C" + " ".join(map(pair, points[place : place + 3])))
        elif place + 5 > len(points) or not _on_a_line(*points[place - 1 : place + 6]):  # else the next goes on
            steps.append(f"L{pair(points[place + 2])}")
    return " ".join(steps)


def pair(point: Point) -> str:
    return f"{number(point[0])},{number(point[1])}"


def _on_a_line(*points: Point) -> bool:
    return any(max(along) - min(along) < 0.05 for along in zip(*points, strict=True))
