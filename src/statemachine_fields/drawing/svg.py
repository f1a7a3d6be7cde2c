"""Drawings of a graph as SVG: on the server, without a script. What they show beyond the graph is in `Marks`."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from statemachine_fields.drawing.captions import shorten, width_of, wrap
from statemachine_fields.drawing.labels import label_of_move, labels_of, one_line
from statemachine_fields.drawing.layout import PAGE, Box, Layout, Size, arrange
from statemachine_fields.drawing.ranks import Move
from statemachine_fields.drawing.routes import Point, Route
from statemachine_fields.drawing.shapes import arrow, line, number, quote, rectangle
from statemachine_fields.drawing.styles import INK, standalone_css
from statemachine_fields.drawing.tones import LIGHT, tones_of

if TYPE_CHECKING:
    from statemachine_fields.machine.graph import StateGraph

NAME, NOTE, LABEL = 13, 12, 11  # sizes of text
BOLD = 1.08
LINE, NOTE_LINE = 17, 16  # heights of lines
WIDEST, NARROWEST = 168, 78  # of a box's text and of a box
WIDEST_LABEL = 150
PADDING = Size(15, 11)
MARGIN = 14
PAGE_WIDTH = PAGE + 2 * MARGIN
HEADING = 30
THIN, TAKEN, WIDER = 1.4, 2.6, 4.2  # widths of lines: of any, of those of a path, and how much more the widest has


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What to show on a graph beyond the graph. What is of states that are not declared is left out."""

    #: The state that the row is in: drawn strongly.
    current: str | None = None
    #: Moves that were made: drawn strongly, while others recede. A forced one, which is not declared, is dashed.
    path: Collection[Move] = ()
    #: A second line in a state's box, such as "1,204" or "10,000+".
    notes: Mapping[str, str] = field(default_factory=dict)
    #: The address that a state's box leads to.
    links: Mapping[str, str] = field(default_factory=dict)
    #: How often each move was made: the width of its line, and the number beside it.
    weights: Mapping[Move, int] = field(default_factory=dict)
    #: Further lines in a state's box, and words beside a move after its own label.
    lines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    says: Mapping[Move, str] = field(default_factory=dict)
    #: Moves that are drawn dashed, as forced ones are.
    dashed: Collection[Move] = ()
    #: Tones of states, as for `tones_of()`.
    tones: Mapping[str, str] = field(default_factory=dict)


NO_MARKS = Marks()


def draw_svg(
    graph: StateGraph, marks: Marks = NO_MARKS, *, title: str = "", embedded: bool = False, page: float = PAGE_WIDTH
) -> str:
    """Return the graph as SVG, labels in the active language.

    :param title: the name of the drawing; written above it unless `embedded`.
    :param embedded: give an element for a page that has the style of `graph.css`, in the colours of Django's admin.
        Otherwise it is a file of its own, with its style inside.
    :param page: how wide the page is, in pixels: a graph that needs more from left to right runs from top to bottom.

    No value, label, note or address, whatever is in it, changes the structure of the drawing. The same input gives the
    same text.
    """
    return _Drawing(graph, marks, one_line(title), embedded, page).text()


class _Drawing:
    def __init__(self, graph: StateGraph, marks: Marks, title: str, embedded: bool, page: float) -> None:
        self.graph, self.marks, self.title, self.embedded = graph, marks, title, embedded
        self.names = labels_of(graph)
        self.tones = tones_of(graph, marks.tones)
        self.notes = {state: notes for state in graph.states if (notes := self._notes_of(state))}
        self.path = {move for move in marks.path if move[0] in graph and move[1] in graph}
        self.current = marks.current if marks.current in graph else None
        self.visited = {self.current, *(state for move in self.path for state in move)}
        declared = [(source, target) for source in graph.states for target in graph.targets(source)]
        made = sorted(move for move in {*self.path, *marks.weights} if move[0] in graph and move[1] in graph)
        self.moves = list(dict.fromkeys([*declared, *made]))
        self.labels = {move: label for move in self.moves if (label := self._label(move))}
        self.shown = {move: shorten(label, LABEL, WIDEST_LABEL) for move, label in self.labels.items()}
        self.lines = {state: wrap(name, NAME * BOLD, WIDEST, lines=3) for state, name in self.names.items()}
        self.layout = self._lay_out(page - 2 * MARGIN)
        self.drawn: set[tuple[tuple[str, float], Sequence[Point]]] = set()

    def _notes_of(self, state: str) -> list[str]:
        given = [self.marks.notes.get(state, ""), *self.marks.lines.get(state, ())]
        return [note for each in given if (note := one_line(str(each)))]

    def _label(self, move: Move) -> str:
        count = self.marks.weights.get(move)
        said = one_line(self.marks.says.get(move, ""))
        parts = [
            label_of_move(self.graph, *move),
            said,
            "" if count is None else number_format(count, force_grouping=True),
        ]
        return " · ".join(filter(None, parts))

    def _lay_out(self, page: float) -> Layout:
        boxes = {}
        for state, lines in self.lines.items():
            widths = [width_of(words, NAME * BOLD) for words in lines]
            height = LINE * len(lines)
            for note in self._shown_notes(state):
                widths.append(width_of(note, NOTE))
                height += NOTE_LINE
            boxes[state] = Size(max(NARROWEST, max(widths) + 2 * PADDING.width), height + 2 * PADDING.height)
        moves = {
            move: Size(width_of(self.shown[move], LABEL), LABEL + 3) if move in self.shown else None
            for move in self.moves
        }
        return arrange(boxes, moves, self.graph.initial, page=page)

    def _shown_notes(self, state: str) -> list[str]:
        return [shorten(note, NOTE, WIDEST) for note in self.notes.get(state, ())]

    def text(self) -> str:
        top = MARGIN + (HEADING if self.title and not self.embedded else 0)
        width, height = math.ceil(self.layout.width + 2 * MARGIN), math.ceil(self.layout.height + top + MARGIN)
        if top > MARGIN:
            width = max(width, math.ceil(min(width_of(self.title, NAME * BOLD), 420) + 2 * MARGIN))
        body = "\n".join(self._body(width, height, top))
        # Several drawings may be on one page. The same one twice says the same under the same name.
        own = "smf-" + blake2b(f"{self.title}\n{body}".encode(errors="replace"), digest_size=5).hexdigest()
        # An image has no parts for a screen reader, and a link is one.
        role = "group" if self._links() else "img"
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="smf-graph" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="{role}" aria-labelledby="{own}-title" '
            f'aria-describedby="{own}-desc">',
            f'<title id="{own}-title">{quote(self.title or _("States and moves"))}</title>',
            f'<desc id="{own}-desc">{quote(self._description())}</desc>',
            body,
            "</svg>",
        ]
        if self.embedded:
            return "\n".join(lines)
        lines.insert(3, f"<style>\n{standalone_css()}</style>")
        return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', *lines, ""])

    def _description(self) -> str:
        """Say in words what the drawing shows."""
        ends = [self.names[state] for state in self.graph.terminal_states]
        says = [_("Initial state: %(state)s.") % {"state": self.names[self.graph.initial]}]
        if ends:
            says.append(_("Terminal states: %(states)s.") % {"states": ", ".join(ends)})
        if self.marks.current is not None:
            current = self.names.get(self.marks.current, self.marks.current)
            says.append(_("Current state: %(state)s.") % {"state": current})
        if self.path:
            made = ", ".join(self._name(move) for move in dict.fromkeys(self.marks.path) if move in self.path)
            says.append(_("Moves made: %(moves)s.") % {"moves": made})
        return " ".join(says)

    def _name(self, move: Move) -> str:
        return f"{self.names[move[0]]} → {self.names[move[1]]}"

    def _links(self) -> list[str]:
        return [state for state in self.graph.states if state in self.marks.links]

    def _body(self, width: float, height: float, top: float) -> Iterator[str]:
        if not self.embedded:
            yield f'<rect class="smf-canvas" width="{width}" height="{height}" rx="8"{self._paint(fill="canvas")}/>'
            if self.title:
                shown = shorten(self.title, NAME * BOLD, width - 2 * MARGIN)
                yield f'<text class="smf-title" x="{MARGIN}" y="{MARGIN + NAME}">{quote(shown)}</text>'
        yield f'<g transform="translate({MARGIN} {top})">'
        hidden = ' aria-hidden="true"' if self._links() else ""
        if self.current is not None:
            yield self._halo(self.current)
        yield f'<g class="smf-edges"{hidden}>'
        yield from self._start()
        for move in sorted(self.moves, key=self._strength):
            yield from self._edge(move, self.layout.routes[move])
        yield '</g>\n<g class="smf-states">'
        for state in self.graph.states:
            yield from self._state(state, self.layout.boxes[state])
        yield "</g>\n</g>"

    def _halo(self, state: str) -> str:
        tone = self.tones[state]
        ring = rectangle("smf-halo", self.layout.boxes[state], 5, self._paint(tone, fill="line"))
        return f'<g class="smf-tone-{tone}">{ring}</g>'

    def _start(self) -> Iterator[str]:
        (x, y), end = self.layout.start
        yield f'<circle class="smf-dot" cx="{number(x)}" cy="{number(y)}" r="5"{self._paint(fill="edge")}/>'
        yield self._line(((x, y), (x, y), end, end), THIN, "edge")

    def _strength(self, move: Move) -> int:
        """Say what to draw on top of what."""
        return 0 if self._recedes(move) else 2 if move in self.path else 1

    def _recedes(self, move: Move) -> bool:
        if self.path:
            return move not in self.path
        return bool(self.marks.weights) and not self.marks.weights.get(move)

    def _edge(self, move: Move, route: Route) -> Iterator[str]:
        classes, colour = ["smf-edge"], "edge"
        if self._recedes(move):
            classes, colour = ["smf-edge", "smf-faded"], "faint"
        elif move in self.path:
            classes, colour = ["smf-edge", "smf-taken"], "strong"
        if not self.graph.allows(*move) or move in self.marks.dashed:
            classes.append("smf-forced")
        says = ": ".join(filter(None, (self._name(move), self.labels.get(move))))
        ends = f'data-from="{quote(move[0])}" data-to="{quote(move[1])}"'
        yield f'<g class="{" ".join(classes)}" {ends}><title>{quote(says)}</title>'
        yield self._line(route.points, self._width(move), colour, " ".join(classes))
        if route.label:
            place = f'x="{number(route.label[0])}" y="{number(route.label[1] + LABEL * 0.36)}"'
            yield f'<text class="smf-label" {place}{self._paint(fill="ink")}>{quote(self.shown[move])}</text>'
        yield "</g>"

    def _width(self, move: Move) -> float:
        """Return the width of a line. Of moves that were counted, it grows with the digits of the number."""
        count = self.marks.weights.get(move, 0)
        if count > 0:
            return THIN + WIDER * (math.log1p(count) / math.log1p(max(self.marks.weights.values()))) ** 2
        return TAKEN if move in self.path else THIN

    def _line(self, points: Sequence[Point], width: float, colour: str, look: str = "") -> str:
        # The width is an attribute: a page may forbid styles in elements.
        stroke = f'stroke-width="{number(width)}"{self._paint(stroke=colour, fill="none")}'
        own = self._not_yet_drawn(points, (look, width))
        if len(own) < len(points):
            return f'<path class="smf-line" d="{line(own)}" {stroke}/>'
        path, head = arrow(points, width)
        return (
            f'<path class="smf-line" d="{path}" {stroke}/><path class="smf-head" d="{head}"{self._paint(fill=colour)}/>'
        )

    def _not_yet_drawn(self, points: Sequence[Point], look: tuple[str, float]) -> Sequence[Point]:
        """Return a line up to where it joins another that looks the same: twice the same line is a thicker one."""
        end = len(points)
        while end > 4 and (look, points[end - 4 : end]) in self.drawn:
            end -= 3
        self.drawn.update((look, points[place : place + 4]) for place in range(0, end - 1, 3))
        return points[:end]

    def _state(self, state: str, box: Box) -> Iterator[str]:
        classes = ["smf-state", f"smf-tone-{self.tones[state]}"]
        if state == self.current:
            classes.append("smf-current")
        elif self.path and state not in self.visited:
            classes.append("smf-faded")
        if self.graph.is_terminal(state):
            classes.append("smf-terminal")
        says = quote(self.names[state] + (f": {', '.join(self.notes[state])}" if state in self.notes else ""))
        shapes = "".join(self._box(state, box))
        group = f'<g class="{" ".join(classes)}" data-state="{quote(state)}"><title>{says}</title>{shapes}</g>'
        link = self.marks.links.get(state)
        yield group if link is None else f'<a href="{quote(link)}" aria-label="{says}">{group}</a>'

    def _box(self, state: str, box: Box) -> Iterator[str]:
        tone = self.tones[state]
        fill, text = "fill", "text"
        if state == self.current:
            fill, text = "text", "fill"
        dashes = ' stroke-dasharray="5 4"' if self.graph.states[state].retired else ""
        yield rectangle("smf-box", box, 0, self._paint(tone, fill=fill, stroke="line") + dashes)
        if self.graph.is_terminal(state):
            yield rectangle("smf-inner", box, -3.5, self._paint(tone, fill="none", stroke="line"))
        lines = [("smf-name", LINE, NAME, words) for words in self.lines[state]]
        lines += [("smf-note", NOTE_LINE, NOTE, note) for note in self._shown_notes(state)]
        x, y = box.x + box.width / 2, box.y + (box.height - sum(height for _kind, height, _size, _words in lines)) / 2
        for kind, height, size, words in lines:
            place = f'x="{number(x)}" y="{number(y + (height + size * 0.72) / 2)}"'
            yield f'<text class="{kind}" {place}{self._paint(tone, fill=text)}>{quote(words)}</text>'
            y += height

    def _paint(self, tone: str = "", **colours: str) -> str:
        """Return colours as attributes, for programs that do not read variables in CSS. In others the style wins."""
        if self.embedded:
            return ""
        known = {name: both[0] for name, both in INK.items()} | {"none": "none"}
        if tone:
            known |= {"fill": LIGHT[tone].fill, "text": LIGHT[tone].text, "line": LIGHT[tone].line}
        return "".join(f' {attribute}="{known[colour]}"' for attribute, colour in colours.items())
