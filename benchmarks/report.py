"""From the cells of a benchmark to a table in Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Cell:
    """What one contender did in one repetition."""

    units: int
    seconds: float
    cpu_seconds: float
    #: The processor time of the database server, if it was asked for.
    server_seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.units / self.seconds

    @property
    def cpu_microseconds(self) -> float:
        return self.cpu_seconds / self.units * 1_000_000


@dataclass(frozen=True)
class Measure:
    """What of a cell is compared with that of another cell."""

    name: str
    of: Callable[[Cell], float]
    #: Whether more of it is better.
    is_gain: bool = False


RATE = Measure("rate", lambda cell: cell.rate, is_gain=True)
TIME = Measure("time", lambda cell: 1 / cell.rate)
CPU = Measure("client CPU", lambda cell: cell.cpu_microseconds)
SERVER_CPU = Measure("server CPU", lambda cell: cell.server_seconds / cell.units)


@dataclass(frozen=True)
class Goal:
    """What ours is to be in proportion to a contender's: at least so much of its rate, or at most of its time."""

    #: None if there is no goal, and the proportion is only shown.
    ratio: float | None = None
    measure: Measure = RATE

    def verdict(self, ours: Sequence[Cell], theirs: Sequence[Cell]) -> str:
        """Return three columns: the proportion, the goal, and whether it is met."""
        pairs = zip(ours, theirs, strict=True)
        return self.judge([self.measure.of(mine) / self.measure.of(other) for mine, other in pairs])

    def judge(self, ratios: list[float]) -> str:
        its = f"× its {self.measure.name}"
        if self.ratio is None:
            return f" {spread(ratios, '.2f')} {its} | | |"
        found, sign = median(ratios), "≥" if self.measure.is_gain else "≤"
        met = found >= self.ratio if self.measure.is_gain else found <= self.ratio
        shown = f" **{spread(ratios, '.2f', '**')} {its} | {sign} {self.ratio:.2f} |"
        return f"{shown} {'met' if met else '**missed**'} |"


@dataclass
class Line:
    """One contender in all repetitions, and how ours is compared with it."""

    name: str
    goals: Sequence[Goal] = (Goal(),)
    cells: list[Cell] = field(default_factory=list)


@dataclass
class Table:
    """One table of the report. The first line is ours."""

    title: str
    unit: str
    lines: list[Line]

    def markdown(self) -> str:
        ours = self.lines[0]
        rows = [
            f"### {self.title}",
            "",
            f"| | {self.unit}/s | client CPU, µs each | ours in proportion | goal | |",
            "|-|-|-|-|-|-|",
        ]
        for line in self.lines:
            rates = [cell.rate for cell in line.cells]
            text = f"| {line.name} | {spread(rates, ',.0f')} | {_cpu(line)} |"
            if line is ours:
                rows.append(f"{text} | | |")
                continue
            for goal in line.goals:
                rows.append(text + goal.verdict(ours.cells, line.cells))
                text = "| | | |"
        return "\n".join(rows)


@dataclass
class Ratios(Table):
    """A table that shows the ratios first, since they mean more than the rates."""

    def markdown(self) -> str:
        first = self.lines[0]
        rows = [
            f"### {self.title}",
            "",
            f"| | {first.name}, in proportion | goal | | {self.unit}/s | client CPU, µs each |",
            "|-|-|-|-|-|-|",
        ]
        for line in self.lines:
            rates = spread([cell.rate for cell in line.cells], ",.0f")
            verdicts = [" | | |"] if line is first else [goal.verdict(first.cells, line.cells) for goal in line.goals]
            rows.append(f"| {line.name} |{verdicts[0]} {rates} | {_cpu(line)} |")
            rows += [f"| |{verdict} | |" for verdict in verdicts[1:]]
        return "\n".join(rows)


def _cpu(line: Line) -> str:
    cpu = median(cell.cpu_microseconds for cell in line.cells)
    return f"{cpu:,.0f}" if cpu >= 50 else f"{cpu:.1f}"


def spread(values: list[float], form: str, after_median: str = "") -> str:
    """Return the median and, in brackets, the least and the greatest, if there are more than one."""
    if len(values) == 1:
        return f"{format(values[0], form)}{after_median}"
    low, middle, high = (format(value, form) for value in (min(values), median(values), max(values)))
    return f"{middle}{after_median} [{low}–{high}]"


def environment(postgresql: str, packages: Sequence[str]) -> str:
    """Say what was measured, and on what."""
    parts = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)]
    return f"{', '.join(parts)}, PostgreSQL {postgresql.split(maxsplit=1)[0]}, {platform.system()}, {os.cpu_count()} cores."


def load_average() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def write(path: Path, sections: dict[str, str], order: Sequence[str], command: str) -> None:
    """Put the sections into the file, in place of older ones of the same name, and drop those that there are no more."""
    kept: dict[str, str] = {}
    if path.exists():
        for part in path.read_text().split("\n## ")[1:]:
            name, _, body = part.partition("\n")
            kept[name] = body.strip()
    kept |= sections
    text = f"# Results\n\nWritten by `python benchmarks/{command}`; how to read them is in the [README](README.md).\n"
    for name in (name for name in order if name in kept):
        text += f"\n## {name}\n\n{kept[name]}\n"
    path.write_text(text)
