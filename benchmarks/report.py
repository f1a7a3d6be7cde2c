"""From the cells of a benchmark to a table in Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median

PACKAGES = ("Django", "psycopg", "django-fsm-2", "django-fsm-log", "django-pghistory")

#: The sections of the results, in their order.
ORDER = ("transition", "bulk", "load", "growth")


@dataclass(frozen=True)
class Cell:
    """What one contender did in one repetition."""

    units: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.units / self.seconds

    @property
    def cpu_microseconds(self) -> float:
        return self.cpu_seconds / self.units * 1_000_000


@dataclass(frozen=True)
class Goal:
    """What the ratio of our rate to a contender's is to be at least."""

    ratio: float
    #: Show the ratio the other way round, as in "loading takes at most 1.25 times as long".
    as_time: bool = False

    def is_met(self, ratios: list[float]) -> bool:
        return median(ratios) >= self.ratio


@dataclass
class Line:
    """One contender in all repetitions."""

    name: str
    goal: Goal | None = None
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
            cpu = median(cell.cpu_microseconds for cell in line.cells)
            cpu_text = f"{cpu:,.0f}" if cpu >= 50 else f"{cpu:.1f}"
            text = f"| {line.name} | {spread(rates, ',.0f')} | {cpu_text} |"
            if line is ours:
                rows.append(f"{text} | | |")
                continue
            ratios = [mine.rate / other.rate for mine, other in zip(ours.cells, line.cells, strict=True)]
            rows.append(text + _verdict(ratios, line.goal))
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
            cpu = median(cell.cpu_microseconds for cell in line.cells)
            verdict = " | | |"
            if line is not first:
                ratios = [mine.rate / other.rate for mine, other in zip(first.cells, line.cells, strict=True)]
                verdict = _verdict(ratios, line.goal)
            rows.append(f"| {line.name} |{verdict} {rates} | {cpu:,.0f} |")
        return "\n".join(rows)


def _verdict(ratios: list[float], goal: Goal | None) -> str:
    if goal is None:
        return f" {spread(ratios, '.2f')} × its rate | | |"
    met = "met" if goal.is_met(ratios) else "**missed**"
    if goal.as_time:
        times = [1 / ratio for ratio in ratios]
        return f" **{spread(times, '.2f', '**')} × its time | ≤ {1 / goal.ratio:.2f} | {met} |"
    return f" **{spread(ratios, '.2f', '**')} × its rate | ≥ {goal.ratio:.2f} | {met} |"


def spread(values: list[float], form: str, after_median: str = "") -> str:
    """Return the median and, in brackets, the least and the greatest."""
    low, middle, high = (format(value, form) for value in (min(values), median(values), max(values)))
    return f"{middle}{after_median} [{low}–{high}]"


def environment(postgresql: str, packages: Sequence[str] = PACKAGES) -> str:
    """Say what was measured, and on what."""
    parts = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)]
    return f"{', '.join(parts)}, PostgreSQL {postgresql.split(maxsplit=1)[0]}, {platform.system()}, {os.cpu_count()} cores."


def load_average() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def write(path: Path, sections: dict[str, str], order: Sequence[str] = ORDER, command: str = "run.py") -> None:
    """Put the sections into the file, in place of older ones of the same name."""
    kept: dict[str, str] = {}
    if path.exists():
        for part in path.read_text().split("\n## ")[1:]:
            name, _, body = part.partition("\n")
            kept[name] = body.strip()
    kept |= sections
    text = f"# Results\n\nWritten by `python benchmarks/{command}`; how to read them is in the [README](README.md).\n"
    for name in sorted(kept, key=list(order).index):
        text += f"\n## {name}\n\n{kept[name]}\n"
    path.write_text(text)
