"""A chart of how long rows stay: a bar for each state, drawn on the server as SVG. Pure Python."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext

from statemachine_fields.drawing.captions import shorten, width_of
from statemachine_fields.drawing.labels import one_line
from statemachine_fields.drawing.shapes import number, quote

WIDTH = 500
NAME, VALUE, TICK = 13, 12, 11  # sizes of text
WIDEST_NAME = 130
ROW, STRONG, LIGHT = 32, 10, 18  # heights of a row and of its two bars
HEAD, FOOT = 26, 24
GAP = 10
#: A bar that has no length is still seen.
SHORTEST = 2.0
#: From which ratio of the longest time to the shortest on a linear scale would show only the longest.
DECADES = 100
#: How far two marks of the scale are apart, at least.
APART = 48

MS, SECOND, MINUTE, HOUR, DAY, YEAR = 0.001, 1, 60, 3600, 86400, 365 * 86400

#: Units, the largest first.
UNITS = (
    (YEAR, gettext_lazy("%(number)s y")),
    (DAY, gettext_lazy("%(number)s d")),
    (HOUR, gettext_lazy("%(number)s h")),
    (MINUTE, gettext_lazy("%(number)s min")),
    (SECOND, gettext_lazy("%(number)s s")),
    (MS, gettext_lazy("%(number)s ms")),
)

#: What a step of a linear scale may be.
STEPS = (
    *(MS * times for times in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(unit * times for unit in (SECOND, MINUTE) for times in (1, 2, 5, 10, 15, 30)),
    *(HOUR * times for times in (1, 2, 3, 6, 12)),
    *(DAY * times for times in (1, 2, 5, 10, 30, 60, 100)),
    *(YEAR * times for times in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)

#: Where a logarithmic scale may have marks.
MARKS = (
    *(MS * times for times in (0.1, 1, 10, 100)),
    *(unit * times for unit in (SECOND, MINUTE) for times in (1, 10)),
    *(HOUR * times for times in (1, 6)),
    *(DAY * times for times in (1, 7, 30)),
    *(YEAR * times for times in (1, 10, 100, 1000, 10_000)),
)


#: Those that people count in, which are kept where there is no room for all.
ROUND = (MS, SECOND, MINUTE, HOUR, DAY, 30 * DAY, YEAR)


@dataclass(frozen=True, slots=True)
class Bar:
    """How long rows stayed in one state, in seconds."""

    label: str
    #: The class of its colours, such as `smf-tone-blue`.
    tone: str
    median: float
    p95: float


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a number of seconds lies, from 0 to 1, and which numbers to mark. Longer is never less far."""

    low: float
    high: float
    is_logarithmic: bool
    marks: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Scale:
        """Return a scale for the values: logarithmic where they span more than two decades, from a millisecond on."""
        above = [value for value in values if value >= MS]
        if not above:
            return cls(0, SECOND, False, (0, SECOND))
        if max(above) > DECADES * min(above):
            return cls._logarithmic(min(above), max(above))
        return cls._linear(max(above))

    @classmethod
    def _linear(cls, most: float) -> Scale:
        step = next((step for step in STEPS if most / step <= 6), STEPS[-1] * math.ceil(most / STEPS[-1] / 6))
        return cls(0, most, False, tuple(step * times for times in range(int(most / step) + 1)))

    @classmethod
    def _logarithmic(cls, least: float, most: float) -> Scale:
        low = max(mark for mark in MARKS if mark < least)  # not the least itself: its bar would have no length
        return cls(low, most, True, tuple(mark for mark in MARKS if low <= mark <= most))

    def place(self, value: float) -> float:
        if not self.is_logarithmic:
            return min(max(value / self.high, 0.0), 1.0)
        if value <= self.low:
            return 0.0
        return min(math.log(value / self.low) / math.log(self.high / self.low), 1.0)


def short(seconds: float) -> str:
    """Return a duration in a few characters, in its two largest units: `3 d 4 h`, `12 s`, `250 ms`."""
    seconds = _rounded(max(seconds, 0.0))
    for place, (unit, text) in enumerate(UNITS):
        if seconds < unit and unit != MS:
            continue
        whole = int(seconds / unit + 1e-9)
        parts = [text % {"number": number_format(whole)}]
        if unit > SECOND:
            smaller, its_text = UNITS[place + 1]
            rest = int((seconds - whole * unit) / smaller + 1e-9)
            if rest:
                parts.append(its_text % {"number": number_format(rest)})
        elif unit == SECOND and whole < 10 and seconds > whole:
            parts = [text % {"number": number_format(seconds, 1)}]
        return "\N{NO-BREAK SPACE}".join(parts)
    raise AssertionError("the last unit takes all that is left")


def _rounded(seconds: float) -> float:
    """Round to what is shown, so that 59.99 seconds are a minute and not 59."""
    if seconds < SECOND:
        return round(seconds, 3)
    return round(seconds, 1) if seconds < 10 else float(round(seconds))


def mark_text(seconds: float, step: float) -> str:
    """Return the text at a mark: one number of the largest unit that is no more than the step."""
    if not seconds:
        return number_format(0)
    unit, text = next(((unit, text) for unit, text in UNITS if unit <= step * (1 + 1e-9)), UNITS[-1])
    value = round(seconds / unit, 6)
    return text % {"number": number_format(int(value) if value == int(value) else value)}


def draw_bars(bars: Sequence[Bar], *, title: str, description: str) -> str:
    """Return the chart as an SVG element for a page that has our style, or nothing if there are no bars.

    The median is the strong bar, the 95th percentile the light one behind it. No label, whatever is in it, changes the
    structure of the drawing.
    """
    return _Chart(bars, title, description).text() if bars else ""


class _Chart:
    def __init__(self, bars: Sequence[Bar], title: str, description: str) -> None:
        self.bars, self.title, self.description = bars, title, description
        self.scale = Scale.of([value for bar in bars for value in (bar.median, bar.p95)])
        self.names = [shorten(one_line(bar.label), NAME, WIDEST_NAME) for bar in bars]
        self.values = [f"{short(bar.median)} – {short(bar.p95)}" for bar in bars]
        self.left = max(width_of(name, NAME) for name in self.names) + GAP
        self.right = WIDTH - max(width_of(value, VALUE) for value in self.values) - GAP
        self.bottom = HEAD + ROW * len(bars)

    def x(self, seconds: float) -> float:
        return self.left + self.scale.place(seconds) * (self.right - self.left)

    def text(self) -> str:
        height = self.bottom + FOOT
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="smf-chart" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="smf-chart-title" '
            'aria-describedby="smf-chart-desc">',
            f'<title id="smf-chart-title">{quote(self.title)}</title>',
            f'<desc id="smf-chart-desc">{quote(self.description)}</desc>',
            *self._legend(),
            *self._marks(),
            *(line for place in range(len(self.bars)) for line in self._bar(place)),
            "</svg>",
        ]
        return "\n".join(lines)

    def _legend(self) -> Iterator[str]:
        y = HEAD / 2 - 3
        x = self.left
        for kind, height, text in (
            ("smf-strong", STRONG, pgettext("state machine", "median")),
            ("smf-light", LIGHT - 4, _("95 of 100")),
        ):
            yield _box(kind, x, y - height / 2, 22, height)
            yield _text("smf-value", x + 22 + 6, y, VALUE, text)
            x += 22 + 6 + width_of(text, VALUE) + 18

    def _marks(self) -> Iterator[str]:
        step = self.scale.marks[-1] - self.scale.marks[-2] if len(self.scale.marks) > 1 else self.scale.high
        if step < SECOND <= self.scale.high:
            step = SECOND  # half seconds, not 500 ms and 1000 ms
        for seconds in self._marks_that_fit():
            x = number(self.x(seconds))
            words = mark_text(seconds, seconds if self.scale.is_logarithmic else step)
            yield f'<path class="smf-grid" d="M{x},{HEAD} V{self.bottom}"/>'
            yield _text("smf-tick", self.x(seconds), self.bottom + FOOT / 2, TICK, words)

    def _marks_that_fit(self) -> list[float]:
        fitting: list[float] = []
        for seconds in sorted(self.scale.marks, key=lambda mark: (mark not in ROUND, mark)):
            if all(abs(self.x(seconds) - self.x(other)) >= APART for other in fitting):
                fitting.append(seconds)
        return sorted(fitting)

    def _bar(self, place: int) -> Iterator[str]:
        bar = self.bars[place]
        middle = HEAD + ROW * (place + 0.5)
        names = {"state": one_line(bar.label), "median": short(bar.median), "p95": short(bar.p95)}
        says = _("%(state)s: half leave within %(median)s, 95 of 100 within %(p95)s") % names
        yield f'<g class="smf-bar {quote(bar.tone)}"><title>{quote(says)}</title>'
        # What is behind it is wide enough to be pointed at.
        yield _box("smf-hit", 0, middle - ROW / 2, WIDTH, ROW)
        yield _text("smf-name", self.left - GAP, middle, NAME, self.names[place])
        end = self.left
        for kind, height, seconds in (("smf-light", LIGHT, bar.p95), ("smf-strong", STRONG, bar.median)):
            length = max(self.x(seconds) - self.left, SHORTEST)
            end = max(end, self.left + length)
            yield _box(kind, self.left, middle - height / 2, length, height)
        yield _text("smf-value", end + GAP, middle, VALUE, self.values[place])
        yield "</g>"


def _box(kind: str, x: float, y: float, width: float, height: float) -> str:
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    return f'<rect class="{kind}" {place}/>'


def _text(kind: str, x: float, middle: float, size: float, words: str) -> str:
    return f'<text class="{kind}" x="{number(x)}" y="{number(middle + size * 0.36)}">{quote(words)}</text>'
