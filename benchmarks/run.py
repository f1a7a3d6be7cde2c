"""Measure the library against its peers, in one run, on a PostgreSQL of its own.

    python benchmarks/run.py [transition|bulk|create|keys|load|growth|imports|all] [--before DIR] [--repetitions 9] [--quick]

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for the server helpers of the tests

import contenders  # noqa: E402
import database as databases  # noqa: E402
import imports  # noqa: E402
from contenders import Contender  # noqa: E402
from database import Database  # noqa: E402
from report import CPU, TIME, Cell, Goal, Line, Table  # noqa: E402
from session import CELL_SECONDS, Session, rotated  # noqa: E402

#: By the name of a contender, for one transition at a time.
GOALS = {
    "before": [Goal(), Goal(0.8, CPU)],
    "django-fsm-2 + django-fsm-log": [Goal(3.2)],
    "django-pghistory": [Goal(1.55)],
    "same statement by hand": [Goal(0.85)],
    "same statement, driver alone": [Goal(0.87)],
}
GOALS_BY_FOUR = GOALS | {"django-fsm-2 + django-fsm-log": [Goal(3)]}
GOALS_IN_BULK = {
    "before": [Goal(), Goal(None, CPU)],
    "django-pghistory": [Goal(1.5)],
    "one statement by hand": [Goal(0.6)],
}
GOALS_OF_CREATING = {"before": [Goal(0.45, TIME), Goal(None, CPU)], "plain model": [Goal(None, TIME)]}
GOALS_OF_KEYS = {"plain model": [Goal(0.6)]}
GOALS_OF_LOADING = {"before": [Goal(1.05, TIME)], "plain CharField": [Goal(1.25, TIME)]}
GOAL_OF_IMPORTS = Goal(0.6, TIME)

WARM_UP = 50


class Size:
    """How much work a cell is."""

    def __init__(self, quick: bool) -> None:
        self.transitions = {1: 300, 4: 600} if quick else {1: 1000, 4: 2000}
        self.bulk = 1000 if quick else 10_000
        self.loaded, self.loads = (2000, 2) if quick else (10_000, 5)
        self.orders, self.history = (10_000, 20_000) if quick else (100_000, 1_000_000)
        self.grown = 300 if quick else 1000
        self.imports = 1 if quick else 5
        self.enqueued = 30 if quick else 200


class Run(Session[Database]):
    """One call of the command."""

    order = ("transition", "bulk", "create", "keys", "load", "growth", "imports")
    packages = contenders.PACKAGES
    command, results = "run.py", "results.md"

    def __init__(self, database: Database, options: argparse.Namespace) -> None:
        super().__init__(database, options)
        self.size = Size(options.quick)

    def transition(self) -> str:
        """One transition for each row, by one process and by four."""
        compared = self.compared(contenders.TRANSITION)
        tables = {
            1: Table("One transition at a time, 1 process", "transitions", lines(compared, GOALS)),
            4: Table("One transition at a time, 4 processes", "transitions", lines(compared, GOALS_BY_FOUR)),
        }

        def cells(repetition: int) -> None:
            for processes, table in tables.items():
                for position in rotated(compared, repetition):
                    table.lines[position].cells.append(self._transition_cell(compared[position], processes))

        self.repeat(cells)
        return "\n\n".join(table.markdown() for table in tables.values())

    def _transition_cell(self, contender: Contender, processes: int) -> Cell:
        database, measured = self.place(contender), self.size.transitions[processes]
        total = measured + WARM_UP * processes
        database.fill(contender, total)
        keys = range(1, total + 1)
        jobs = [shard(keys, process, processes) for process in range(processes)]
        cell = run_cell(database, "transition", contender, jobs, units=measured)
        database.verify(contender, total, total)
        return cell

    def bulk(self) -> str:
        """Many rows by one call."""
        compared = self.compared(contenders.BULK)
        table = Table(f"{self.size.bulk:,} rows in one call", "rows", lines(compared, GOALS_IN_BULK))

        def cells(repetition: int) -> None:
            for position in rotated(compared, repetition):
                contender, total = compared[position], self.size.bulk + WARM_UP
                database = self.place(contender)
                database.fill(contender, total)
                job = {"warm_up": [self.size.bulk], "items": [0]}  # everything above this key
                table.lines[position].cells.append(run_cell(database, "bulk", contender, [job], units=self.size.bulk))
                database.verify(contender, total, total)

        self.repeat(cells)
        return table.markdown()

    def create(self) -> str:
        """Many new rows of a timed machine by one `bulk_create()`. The instances are made before."""
        compared = self.compared(contenders.CREATE)
        title = f"`bulk_create()` of {self.size.bulk:,} rows of a timed machine"
        table = Table(title, "rows", lines(compared, GOALS_OF_CREATING))

        def cells(repetition: int) -> None:
            for position in rotated(compared, repetition):
                contender, job = compared[position], {"warm_up": [WARM_UP], "items": [self.size.bulk]}
                database = self.place(contender)
                database.empty(contender)
                table.lines[position].cells.append(run_cell(database, "create", contender, [job], units=self.size.bulk))
                database.verify_due(contender, self.size.bulk + WARM_UP)

        self.repeat(cells)
        return table.markdown()

    def keys(self) -> str:
        """New rows one by one, with a key that is unique while they are live and without."""
        compared, together = self.compared(contenders.KEYS), contenders.TOGETHER
        title = f"`create()`, {together} rows in a transaction"
        table = Table(title, "rows", lines(compared, GOALS_OF_KEYS))

        def cells(repetition: int) -> None:
            for position in rotated(compared, repetition):
                contender, count = compared[position], self.size.enqueued + WARM_UP
                database = self.place(contender)
                database.empty(contender)
                units = self.size.enqueued * together
                cell = run_cell(database, "keys", contender, [shard(range(count), 0, 1)], units=units)
                table.lines[position].cells.append(cell)
                database.verify_new(contender, count * together)

        self.repeat(cells)
        return table.markdown()

    def load(self) -> str:
        """Load rows and read the status of each."""
        compared = self.compared(contenders.LOAD)
        title = f"Loading {self.size.loaded:,} rows and reading the status of each"
        table = Table(title, "rows", lines(compared, GOALS_OF_LOADING))
        for contender in compared:
            self.place(contender).fill(contender, self.size.loaded)

        def cells(repetition: int) -> None:
            for position in rotated(compared, repetition):
                contender, job = compared[position], {"warm_up": [1], "items": [self.size.loads]}
                database, units = self.place(contender), self.size.loaded * self.size.loads
                table.lines[position].cells.append(run_cell(database, "load", contender, [job], units=units))
                database.verify(contender, 0, 0)

        self.repeat(cells)
        return table.markdown()

    def growth(self) -> str:
        """A transition beside a long history, and beside none. Both databases have the same orders."""
        contender, each = contenders.GROWTH[0], self.size.history // self.size.orders
        self.database.fill(contender, self.size.orders, sequence=each)
        grown = self.database.copy("grown")
        grown.fill_history(contender, self.size.orders, each)
        found = [
            Line(f"{self.size.history:,} audit rows"),
            Line("empty audit table", [Goal(1.3, TIME)]),
        ]
        keys = random.Random(1).sample(range(1, self.size.orders + 1), self.size.orders)
        count = self.size.grown + WARM_UP
        if self.options.repetitions * count > len(keys):
            raise SystemExit(f"growth moves each order once: at most {len(keys) // count} repetitions.")

        def cells(repetition: int) -> None:
            moved = (repetition + 1) * count
            job = shard(keys[moved - count : moved], 0, 1)
            for position in rotated(found, repetition):
                database, records = (grown, self.size.history + moved) if position == 0 else (self.database, count)
                if position == 1:
                    self.database.run(f"TRUNCATE {contender.audit_table}")
                database.settle(contender)
                found[position].cells.append(run_cell(database, "growth", contender, [job], units=self.size.grown))
                database.verify(contender, moved, records)

        self.repeat(cells)
        return Table("One transition at a time beside a history, 1 process", "transitions", found).markdown()

    def imports(self) -> str:
        """Load the library, in new processes, and add up the time spent in its modules."""
        programs = {
            "import statemachine_fields": (imports.PACKAGE, GOAL_OF_IMPORTS),
            "Set up the app and declare a machine": (imports.DECLARED, Goal(None, TIME)),
        }
        places = {"ours": self.database} | ({"before": self.earlier} if self.earlier is not None else {})
        tables = {title: [imports.Imports(*place) for place in places.items()] for title in programs}
        with imports.compiled() as cache:
            for program, _ in programs.values():
                for database in places.values():
                    imports.load(program, database, cache, 1)  # which compiles

            def cells(repetition: int) -> None:
                for title, (program, _) in programs.items():
                    for position in rotated(tables[title], repetition):
                        line = tables[title][position]
                        line.cells.append(imports.load(program, line.database, cache, self.size.imports))

            self.repeat(cells)
        return "\n\n".join(imports.table(title, tables[title], goal) for title, (_, goal) in programs.items())


def lines(compared: Sequence[Contender], goals: dict[str, list[Goal]]) -> list[Line]:
    return [Line(each.name, goals.get(each.name, [Goal()])) for each in compared]


def run_cell(
    database: Database, benchmark: str, contender: Contender, jobs: Sequence[dict[str, Any]], units: int
) -> Cell:
    """Run one contender in fresh processes that start together, and time from the first start to the last end."""
    command = [sys.executable, str(HERE / "cell.py"), benchmark, contender.name]
    variables = {**os.environ, **database.environment}
    variables |= {"BENCHMARK_PREPARE": contender.prepare, "BENCHMARK_OPTIONS": contender.options}
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


def main() -> None:
    options = Run.parser("Measure the library against its peers.").parse_args()
    Run(databases.start(), options).run()


if __name__ == "__main__":
    main()
