"""Colours of states: eight tones, each for light and for dark pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import cycle
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statemachine_fields.machine.graph import StateGraph


@dataclass(frozen=True, slots=True)
class Colours:
    """Colours of a box. Its text can be read on its fill, and its fill on its text, where the two change places."""

    fill: str
    text: str
    line: str


LIGHT = {
    "gray": Colours("#eff1f4", "#3d4650", "#7d8894"),
    "blue": Colours("#e2effe", "#174a8c", "#3d82d6"),
    "purple": Colours("#f0e9fd", "#5a2c9b", "#9163d4"),
    "teal": Colours("#d8f4f0", "#0c5751", "#1b9086"),
    "amber": Colours("#fdf0cf", "#704305", "#b87409"),
    "green": Colours("#def5e3", "#165c2d", "#2d8f4e"),
    "red": Colours("#fde6e4", "#94201a", "#d64f48"),
    "pink": Colours("#fce6f2", "#8d1e5c", "#ce5097"),
}
DARK = {
    "gray": Colours("#2a2f35", "#d6dce2", "#7f8994"),
    "blue": Colours("#142f4d", "#b6d8fc", "#4b8fdc"),
    "purple": Colours("#33224f", "#dac8fb", "#9a73dd"),
    "teal": Colours("#0c3835", "#a3e6de", "#2ba397"),
    "amber": Colours("#412d08", "#f7d68f", "#c4871f"),
    "green": Colours("#123820", "#aae6bb", "#3da35f"),
    "red": Colours("#4a1d1b", "#fbc3be", "#dd655e"),
    "pink": Colours("#461a39", "#f8c1e0", "#d167a3"),
}

TONES = tuple(LIGHT)
FIRST = "gray"
BETWEEN = ("blue", "purple", "teal", "amber")
LAST = ("green", "red", "pink")


def tones_of(graph: StateGraph, chosen: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a tone for each state: what was chosen, else by its place.

    The initial state and retired ones are gray, terminal ones are green, red and pink in turn, and those between are
    blue, purple, teal and amber in turn. What is not a tone or not a state raises ValueError.
    """
    chosen = chosen or {}
    for state, tone in chosen.items():
        if state not in graph:
            raise ValueError(
                f"Tone {tone!r} is for state {state!r}, not in states. {_hint(state, tuple(graph.states))}"
            )
        if tone not in TONES:
            raise ValueError(f"State {state!r} has tone {tone!r}, which is none. {_hint(tone, TONES)}")
    last, between = cycle(LAST), cycle(BETWEEN)
    tones = {}
    for state in graph.states:
        tone = FIRST if state == graph.initial else next(last if graph.is_terminal(state) else between)
        # A retired one has had its turn, so that the others keep their tones when it retires.
        tones[state] = chosen.get(state, FIRST if graph.states[state].retired else tone)
    return tones


def _hint(name: object, known: tuple[str, ...]) -> str:
    guess = get_close_matches(str(name), known, n=1)
    return f"There are: {', '.join(known)}." + (f" Did you mean {guess[0]!r}?" if guess else "")


def tone_css() -> str:
    """Return the CSS of all tones: an element of class `smf-tone-blue` has `--smf-fill`, `--smf-text` and `--smf-line`."""
    parts = [themed(_variables(LIGHT), _variables(DARK))]
    for tone in TONES:
        names = " ".join(f"--smf-{part}: var(--smf-{tone}-{part});" for part in ("fill", "text", "line"))
        parts.append(f".smf-tone-{tone} {{ {names} }}\n")
    return "".join(parts)


def themed(light: list[str], dark: list[str]) -> str:
    """Return the CSS that sets variables in light and, where the browser wants that, in dark."""
    in_light, in_dark = "\n  ".join(light), "\n    ".join(dark)
    return f":root {{\n  {in_light}\n}}\n@media (prefers-color-scheme: dark) {{\n  :root {{\n    {in_dark}\n  }}\n}}\n"


def _variables(colours: Mapping[str, Colours]) -> list[str]:
    return [
        f"--smf-{tone}-fill: {own.fill}; --smf-{tone}-text: {own.text}; --smf-{tone}-line: {own.line};"
        for tone, own in colours.items()
    ]
