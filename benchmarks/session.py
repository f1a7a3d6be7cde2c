"""One call of a command: whom it compares, how often, and what becomes of the tables."""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from database import HERE, Database
from report import environment, load_average, write

#: A cell that takes longer is stuck. It is ended, and the run with it.
CELL_SECONDS = 120


class Named(Protocol):
    """What a contender has, of whichever command it is."""

    @property
    def name(self) -> str: ...

    @property
    def is_before(self) -> bool: ...


C = TypeVar("C", bound=Named)
D = TypeVar("D", bound=Database)


class Session(Generic[D]):
    """One call of a command. Each of its sections is a method that returns what the report says of it."""

    #: The sections, in the order of the report.
    order: tuple[str, ...]
    #: What the report names with its version.
    packages: tuple[str, ...]
    #: The command, and the file that it keeps its sections in.
    command: str
    results: str

    def __init__(self, database: D, options: argparse.Namespace) -> None:
        self.database = database
        self.options = options
        self.earlier = database.beside("earlier", options.before) if options.before else None
        self.done = 0

    @classmethod
    def parser(cls, description: str) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("section", nargs="?", default="all", choices=[*cls.order, "all"])
        parser.add_argument(
            "--before", type=checkout, metavar="DIR", help="compare with a checkout of an earlier commit"
        )
        parser.add_argument(
            "--only",
            action="append",
            metavar="NAME",
            help="compare with those alone whose name has this in it; nothing is kept",
        )
        parser.add_argument("--repetitions", type=int, default=9)
        parser.add_argument(
            "--minutes", type=float, default=12, help="begin no repetition of a section after this long"
        )
        parser.add_argument(
            "--quick", action="store_true", help="try it out: small cells, two repetitions, nothing kept"
        )
        return parser

    def compared(self, known: Sequence[C]) -> list[C]:
        """Return ours, which is the first, and whom it is to be compared with."""
        words = self.options.only
        present = [each for each in known if self.earlier is not None or not each.is_before]
        return [each for each in present if each is known[0] or not words or any(word in each.name for word in words)]

    def place(self, contender: Named) -> D:
        """Return the database of a contender: tables of an earlier commit may differ, so it has one of its own."""
        if not contender.is_before:
            return self.database
        assert self.earlier is not None  # noqa: S101
        return self.earlier

    def repeat(self, cells: Callable[[int], None]) -> None:
        """Run the cells of every repetition, as many as there is time for."""
        repetitions = 2 if self.options.quick else self.options.repetitions
        end, self.done = time.monotonic() + self.options.minutes * 60, 0
        for repetition in range(repetitions):
            if time.monotonic() > end:
                say(f"  {self.options.minutes:g} minutes are over; no further repetition.")
                break
            cells(repetition)
            self.done += 1
            say(f"  repetition {self.done} of {repetitions} done, load average {load_average()}")

    def run(self) -> None:
        """Run the sections that were asked for, print them, and keep them if they are complete."""
        sections = {}
        for name in self.order if self.options.section == "all" else [self.options.section]:
            section = getattr(self, name)
            say(f"{name}: {section.__doc__}")
            load = load_average()
            body = section()
            facts = (
                f"{environment(self.database.ask('SHOW server_version'), self.packages)} {self.done} "
                f"repetition{'s' if self.done > 1 else ''}. Load average {load} before and {load_average()} after."
            )
            if self.earlier is not None:
                facts += f" `before` is commit {commit_of(self.earlier.checkout)}."
            sections[name] = f"{facts}\n\n{body}"
            say(f"\n{sections[name]}\n")
        if not self.options.quick and not self.options.only:
            write(HERE / self.results, sections, self.order, self.command)


def rotated(things: Sequence[object], repetition: int) -> Iterable[int]:
    """Return the positions, each repetition beginning with another and every second one going backwards.

    So nobody is always the first, and nobody always comes after the same one.
    """
    step = -1 if repetition % 2 else 1
    return [(repetition + step * offset) % len(things) for offset in range(len(things))]


def checkout(text: str) -> Path:
    """Return the directory of a checkout, or raise if there is no code of ours in it."""
    path = Path(text).resolve()
    if not (path / "src" / "statemachine_fields").is_dir():
        raise argparse.ArgumentTypeError(f"there is no src/statemachine_fields in {text}")
    return path


def commit_of(path: Path) -> str:
    command = ["git", "-C", str(path), "describe", "--always", "--dirty"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def say(text: str) -> None:
    print(text, flush=True)
