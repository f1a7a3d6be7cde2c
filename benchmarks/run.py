"""Measure the library against its peers, in one run, on a PostgreSQL of its own.

    python benchmarks/run.py [transition|bulk|load|growth|all] [--repetitions 7] [--quick]

What is measured, and how to read the result, is in README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for the server helpers of the tests

import contenders  # noqa: E402
import database as databases  # noqa: E402
from contenders import Contender  # noqa: E402
from database import Database  # noqa: E402
from report import ORDER, Cell, Goal, Line, Table, environment, load_average, write  # noqa: E402

#: A cell that takes longer is stuck. It is ended, and the run with it.
CELL_SECONDS = 120

WARM_UP = 50


class Size:
    """How much work a cell is."""

    def __init__(self, quick: bool) -> None:
        self.transitions = {1: 300, 4: 600} if quick else {1: 1000, 4: 2000}
        self.bulk = 1000 if quick else 10_000
        self.loaded, self.loads = (2000, 2) if quick else (10_000, 5)
        self.orders, self.history = (10_000, 20_000) if quick else (100_000, 1_000_000)
        self.grown = 300 if quick else 1000


class Run:
    """One call of the command."""

    def __init__(self, database: Database, size: Size, repetitions: int, minutes: float) -> None:
        self.database = database
        self.size = size
        self.repetitions = repetitions
        self.minutes = minutes

    def transition(self) -> Iterable[Table]:
        """One transition for each row, by one process and by four."""
        goals = {
            1: {"django-fsm-2 + django-fsm-log": 2.7, "django-pghistory": 1.4, "same statement by hand": 0.85},
            4: {"django-fsm-2 + django-fsm-log": 3.0, "django-pghistory": 1.4, "same statement by hand": 0.85},
        }
        tables = {
            processes: Table(
                f"One transition at a time, {processes} process{'es' if processes > 1 else ''}",
                "transitions",
                [Line(each.name, _goal(goals[processes].get(each.name))) for each in contenders.TRANSITION],
            )
            for processes in goals
        }

        def cells(repetition: int) -> None:
            for processes, table in tables.items():
                for position in rotated(contenders.TRANSITION, repetition):
                    table.lines[position].cells.append(self._transition_cell(position, processes))

        self._repeat(cells)
        return tables.values()

    def _transition_cell(self, position: int, processes: int) -> Cell:
        contender = contenders.TRANSITION[position]
        measured = self.size.transitions[processes]
        total = measured + WARM_UP * processes
        self.database.fill(contender, total)
        keys = range(1, total + 1)
        jobs = [shard(keys, process, processes) for process in range(processes)]
        cell = run_cell(self.database, "transition", position, jobs, units=measured)
        self.database.verify(contender, total, total)
        return cell

    def bulk(self) -> Iterable[Table]:
        """Many rows by one call."""
        if not self._has_bulk():
            say("bulk: skipped, BoundMachine has no bulk_transition().")
            return []
        goals = {"django-pghistory": 1.4, "one statement by hand": 0.6}
        lines = [Line(each.name, _goal(goals.get(each.name))) for each in contenders.BULK]

        def cells(repetition: int) -> None:
            for position in rotated(contenders.BULK, repetition):
                contender = contenders.BULK[position]
                total = self.size.bulk + WARM_UP
                self.database.fill(contender, total)
                job = {"warm_up": [self.size.bulk], "items": [0]}  # everything above this key
                lines[position].cells.append(run_cell(self.database, "bulk", position, [job], units=self.size.bulk))
                self.database.verify(contender, total, total)

        self._repeat(cells)
        return [Table(f"{self.size.bulk:,} rows in one call", "rows", lines)]

    def _has_bulk(self) -> bool:
        from orders.models import MachineOrder

        return hasattr(MachineOrder.states, "bulk_transition")

    def load(self) -> Iterable[Table]:
        """Load rows and read the status of each."""
        lines = [Line("ours"), Line("plain CharField", Goal(1 / 1.25, as_time=True))]
        for contender in contenders.LOAD:
            self.database.fill(contender, self.size.loaded)

        def cells(repetition: int) -> None:
            for position in rotated(contenders.LOAD, repetition):
                job = {"warm_up": [1], "items": [self.size.loads]}
                units = self.size.loaded * self.size.loads
                lines[position].cells.append(run_cell(self.database, "load", position, [job], units=units))
                self.database.verify(contenders.LOAD[position], 0, 0)

        self._repeat(cells)
        return [Table(f"Loading {self.size.loaded:,} rows and reading the status of each", "rows", lines)]

    def growth(self) -> Iterable[Table]:
        """A transition beside a long history, and beside none. Both databases have the same orders."""
        contender, each = contenders.GROWTH[0], self.size.history // self.size.orders
        self.database.fill(contender, self.size.orders, sequence=each)
        grown = self.database.copy("grown")
        grown.fill_history(contender, self.size.orders, each)
        lines = [
            Line(f"{self.size.history:,} audit rows"),
            Line("empty audit table", Goal(1 / 1.3, as_time=True)),
        ]
        keys = random.Random(1).sample(range(1, self.size.orders + 1), self.size.orders)
        count = self.size.grown + WARM_UP
        if self.repetitions * count > len(keys):
            raise SystemExit(f"growth moves each order once: at most {len(keys) // count} repetitions.")

        def cells(repetition: int) -> None:
            moved = (repetition + 1) * count
            job = shard(keys[moved - count : moved], 0, 1)
            for position in rotated(lines, repetition):
                database, records = (grown, self.size.history + moved) if position == 0 else (self.database, count)
                if position == 1:
                    self.database.run(f"TRUNCATE {contender.audit_table}")
                database.settle(contender)
                lines[position].cells.append(run_cell(database, "growth", 0, [job], units=self.size.grown))
                database.verify(contender, moved, records)

        self._repeat(cells)
        return [Table("One transition at a time beside a history, 1 process", "transitions", lines)]

    def _repeat(self, cells: Callable[[int], None]) -> None:
        end = time.monotonic() + self.minutes * 60
        for repetition in range(self.repetitions):
            if time.monotonic() > end:
                say(f"  {self.minutes:g} minutes are over; no further repetition.")
                break
            cells(repetition)
            say(f"  repetition {repetition + 1} of {self.repetitions} done, load average {load_average()}")


def run_cell(database: Database, benchmark: str, position: int, jobs: Sequence[dict[str, Any]], units: int) -> Cell:
    """Run one contender in fresh processes that start together, and time from the first start to the last end."""
    contender = contenders.ALL[benchmark][position]
    command = [sys.executable, str(HERE / "cell.py"), benchmark, str(position)]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(HERE.parent)]))
    variables = {**os.environ, **database.environment, "PYTHONPATH": path, "BENCHMARK_PREPARE": contender.prepare}
    variables["BENCHMARK_OPTIONS"] = contender.options
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": variables}
    processes: list[subprocess.Popen[str]] = []
    deadline = threading.Timer(CELL_SECONDS, lambda: [process.kill() for process in processes])
    deadline.start()
    try:
        for job in jobs:
            processes.append(subprocess.Popen(command, **pipes))  # type: ignore[call-overload]
            tell(processes[-1], json.dumps(job))
        for process in processes:
            hear(process, contender)
        for process in processes:
            tell(process, "go")
        times = [hear(process, contender) for process in processes]
    finally:
        deadline.cancel()
        for process in processes:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait(CELL_SECONDS)
            process.stdout.close()  # type: ignore[union-attr]
    seconds = max(each["ended"] for each in times) - min(each["began"] for each in times)
    return Cell(units, seconds, sum(each["cpu"] for each in times))


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None  # noqa: S101
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str], contender: Contender) -> dict[str, Any]:
    assert process.stdout is not None  # noqa: S101
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"A process of {contender.name!r} ended before its time. Its error is above.")
    heard: dict[str, Any] = json.loads(line)
    return heard


def shard(keys: Sequence[int], process: int, processes: int) -> dict[str, Any]:
    """Return one process's part of the keys, the first of them to warm up with."""
    size = len(keys) // processes
    mine = list(keys[process * size : (process + 1) * size])
    return {"warm_up": mine[:WARM_UP], "items": mine[WARM_UP:]}


def rotated(things: Sequence[Any], repetition: int) -> Iterable[int]:
    """Return the positions, each repetition beginning with another, so that none always follows the same."""
    return [(repetition + offset) % len(things) for offset in range(len(things))]


def _goal(ratio: float | None) -> Goal | None:
    return None if ratio is None else Goal(ratio)


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the library against its peers.")
    parser.add_argument("benchmark", nargs="?", default="all", choices=[*ORDER, "all"])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="try it out: small cells, two repetitions, nothing kept")
    parser.add_argument("--minutes", type=float, default=8, help="begin no repetition of a benchmark after this long")
    options = parser.parse_args()
    database = databases.start()
    run = Run(database, Size(options.quick), 2 if options.quick else options.repetitions, options.minutes)
    sections = {}
    for name in ORDER if options.benchmark == "all" else [options.benchmark]:
        say(f"{name}: {getattr(Run, name).__doc__}")
        before = load_average()
        tables = list(getattr(run, name)())
        if tables:
            facts = (
                f"{environment(database.ask('SHOW server_version'))} {len(tables[0].lines[0].cells)} repetitions. "
                f"Load average {before} before and {load_average()} after."
            )
            sections[name] = "\n\n".join([facts, *(table.markdown() for table in tables)])
            say(f"\n{sections[name]}\n")
    if sections and not options.quick:
        write(HERE / "results.md", sections)


if __name__ == "__main__":
    main()
