"""Widths of text where no font is at hand: an estimate, on the large side, and lines and shortening by it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

# In parts of the font's size. Fonts differ; these are those of a wide one.
WIDTHS = (
    dict.fromkeys("iIjl.,:;'|!", 0.34)
    | dict.fromkeys('frt()[]{}/\\-"` ', 0.42)
    | dict.fromkeys("<>=+~#", 0.84)
    | dict.fromkeys("mwMW@%&\N{HORIZONTAL ELLIPSIS}\N{EM DASH}", 0.96)
)
CAPITAL, DIGIT, OTHER, IDEOGRAPH = 0.71, 0.63, 0.61, 1.1
JOINER = "\N{ZERO WIDTH JOINER}"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def width_of(text: str, size: float) -> float:
    return size * sum(map(_width, text))


def _width(character: str) -> float:
    if character in WIDTHS:
        return WIDTHS[character]
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    if unicodedata.east_asian_width(character) in "WF":
        return IDEOGRAPH
    if character.isdigit():
        return DIGIT
    return CAPITAL if character.isupper() else OTHER


def shorten(text: str, size: float, width: float) -> str:
    """Return the text, or its beginning and an ellipsis, such that it is no wider than `width`."""
    return wrap(text, size, width, lines=1)[0]


def wrap(text: str, size: float, width: float, lines: int) -> tuple[str, ...]:
    """Break a text at spaces, or in words that are too long, into so many lines at most; the last may be shortened."""
    found: list[str] = []
    rest = text
    while len(found) < lines - 1 and width_of(rest, size) > width:
        line, rest = _break(rest, size, width)
        found.append(line)
    if width_of(rest, size) > width:
        rest = _beginning(rest, size, width - width_of(ELLIPSIS, size)).rstrip() + ELLIPSIS
    return (*found, rest)


def _break(text: str, size: float, width: float) -> tuple[str, str]:
    line = _beginning(text, size, width)
    if not text[len(line) :].startswith(" ") and " " in line.strip():
        line = line[: line.rindex(" ")]
    return line.strip(), text[len(line) :].strip()


def _beginning(text: str, size: float, width: float) -> str:
    """Return as many characters as fit, and one at least, with whatever is joined to the last one."""
    used, end = 0.0, 0
    for start, stop in _clusters(text):
        used += width_of(text[start:stop], size)
        if used > width and end:
            break
        end = stop
    return text[:end]


def _clusters(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each character starts and ends, together with the marks on it and what is joined to it."""
    start = 0
    for place in range(1, len(text)):
        if _width(text[place]) and text[place - 1] != JOINER:
            yield start, place
            start = place
    if text:
        yield start, len(text)
