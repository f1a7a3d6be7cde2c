"""Measure how soon an idle worker runs a new job, against its peers, and what that costs those who write rows.

    python benchmarks/latency.py [idle|writers|all] [--before DIR] [--repetitions 7] [--quick]

What is measured, and how to read the result, is in README.md.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for the server helpers of the tests

import drain_contenders  # noqa: E402
import latency_contenders  # noqa: E402
import processes  # noqa: E402
from jobs_database import JobsDatabase  # noqa: E402
from latency_contenders import Contender  # noqa: E402
from report import Cell, Goal, Line, Measure, Ratios, spread  # noqa: E402
from session import Session, rotated, say  # noqa: E402

SCRIPT = "latency_cell.py"

P50 = Measure("p50", lambda cell: cell.seconds)
P99 = Measure("p99", lambda cell: cell.seconds)
#: By the name of a contender: what the time that jobs wait for ours is to be in proportion to those of others.
GOALS = {"pgqueuer": (Goal(1.0, P50), Goal(2.0, P99))}
#: How many statements a minute a worker of ours may send that has nothing to do.
MOST_STATEMENTS = 72

#: The log takes statements where a cell asks for it, each with the database that it is for.
OPTIONS = {
    "logging_collector": "on",
    "log_filename": "statements.log",
    "log_line_prefix": "%d ",
    "log_rotation_age": "0",
    "log_rotation_size": "0",
}

# A line of the log for each statement that a client sent, whichever protocol it used. A statement's own further lines
# begin with a tab.
STATEMENT = re.compile(r"^(\S+) LOG:  (?:statement|execute [^:]*): ", re.MULTILINE)

#: How long a job may take to be seen, in seconds.
SEEN_WITHIN = 30
#: How long a worker is left alone after its first job, until it has nothing to do any more.
SETTLE = 2.0
#: Jobs of a cell that are not counted.
WARM_UP = 5


class Size:
    """How much work a cell is."""

    def __init__(self, quick: bool) -> None:
        self.jobs, self.quiet = (10, 5.0) if quick else (60, 60.0)
        self.seconds, self.writers = (1.0, 8) if quick else (5.0, 48)


class Database(JobsDatabase):
    """A database whose statements can be counted."""

    settings = "latency_settings"

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Have the server log every statement of everybody."""
        self.run("ALTER SYSTEM SET log_statement = 'all'")
        self.run("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            self.run("ALTER SYSTEM RESET log_statement")
            self.run("SELECT pg_reload_conf()")

    def statements(self) -> list[str]:
        """Return the database of each statement in the log."""
        return STATEMENT.findall(self.ask("SELECT pg_read_file(pg_current_logfile())"))


@dataclass
class Waits:
    """How long jobs of one contender waited, in seconds, by repetition."""

    name: str
    cells: list[list[float]] = field(default_factory=list)

    @property
    def p50s(self) -> list[float]:
        return [median(cell) for cell in self.cells]

    @property
    def p99(self) -> float:
        """Of all jobs, since a cell has too few to tell."""
        return quantiles([wait for cell in self.cells for wait in cell], n=100)[-1]

    def rows(self, ours: Waits) -> list[str]:
        """Return the lines of the table."""
        jobs = sum(map(len, self.cells))
        waits = f"{spread([p50 * 1000 for p50 in self.p50s], ',.2f')} | {self.p99 * 1000:,.2f} | {jobs} |"
        if self is ours:
            return [f"| {self.name} | | | | {waits}"]
        p50, p99 = GOALS.get(self.name, (Goal(None, P50), Goal(None, P99)))
        ratios = [mine / its for mine, its in zip(ours.p50s, self.p50s, strict=True)]
        return [f"| {self.name} |{p50.judge(ratios)} {waits}", f"| |{p99.judge([ours.p99 / self.p99])} | | |"]


@dataclass(frozen=True)
class Situation:
    """What one worker does while others write rows that it could serve."""

    name: str
    model: str
    goal: float
    #: How many handlers are to run before anybody writes: all that there are threads for.
    running: int = 0

    @property
    def table(self) -> str:
        return self.model.lower().replace(".", "_")


BUSY = Situation("all threads of the worker are taken", "jobs.LongJob", goal=0.95, running=4)
KEEPING_UP = Situation("the worker serves these very rows, and is idle in between", "jobs.Job", goal=0.85)


class Run(Session[Database]):
    """One call of the command."""

    order = ("idle", "writers")
    packages = drain_contenders.PACKAGES
    command, results = "latency.py", "results-latency.md"

    def __init__(self, database: Database, options: argparse.Namespace) -> None:
        super().__init__(database, options)
        self.size = Size(options.quick)
        self.contenders = self.compared(tuple(latency_contenders.ALL.values()))

    def idle(self) -> str:
        """A worker with nothing to do: what it asks the database, and how soon it runs a new job."""
        statements = self._statements()
        waits = [Waits(contender.name) for contender in self.contenders]

        def cells(repetition: int) -> None:
            for position in rotated(self.contenders, repetition):
                contender = self.contenders[position]
                with self._serving(contender, self.place(contender)) as served:
                    waits[position].cells.append(served.waits(self.size.jobs))

        self.repeat(cells)
        rows = [
            "### A new job for a worker with nothing to do",
            "",
            "| | ours, in proportion | goal | | p50, ms | p99 of all, ms | jobs |",
            "|-|-|-|-|-|-|-|",
            *(row for each in waits for row in each.rows(waits[0])),
            "",
            f"### What it asks the database, over {self.size.quiet:g} s",
            "",
            "| | statements a minute | goal | |",
            "|-|-|-|-|",
        ]
        for name, number in statements.items():
            met = "met" if number <= MOST_STATEMENTS else "**missed**"
            verdict = f"≤ {MOST_STATEMENTS} | {met} |" if name == self.contenders[0].name else "| |"
            rows.append(f"| {name} | {number:,.0f} | {verdict}")
        return "\n".join(rows)

    def writers(self) -> str:
        """Many who write rows for a worker that is busy, or that keeps up."""
        tables = []
        for situation in (BUSY, KEEPING_UP):
            say(f"  {situation.name}")
            lines = {"yes": Line("wake-ups on"), "no": Line("wake-ups off", [Goal(situation.goal)])}

            def cells(repetition: int, situation: Situation = situation, lines: dict[str, Line] = lines) -> None:
                for position in rotated([*lines], repetition):
                    wake_ups, line = list(lines.items())[position]
                    line.cells.append(self._write(situation, wake_ups))

            self.repeat(cells)
            title = f"{self.size.writers} who write, {situation.name}"
            tables.append(Ratios(title, "rows", list(lines.values())).markdown())
        return "\n\n".join(tables)

    def _statements(self) -> dict[str, float]:
        """Return how many statements a minute each worker sends: all at the same time, each in a database of its own."""
        places = [self.place(each).copy(f"quiet_{place}") for place, each in enumerate(self.contenders)]
        with ExitStack() as stack:
            for contender, database in zip(self.contenders, places, strict=True):
                stack.enter_context(self._serving(contender, database))
            time.sleep(SETTLE)
            with self.database.logging():
                before, began = self.database.statements(), time.monotonic()
                time.sleep(self.size.quiet)
                after, minutes = self.database.statements()[len(before) :], (time.monotonic() - began) / 60
        return {
            contender.name: after.count(f"quiet_{place}") / minutes for place, contender in enumerate(self.contenders)
        }

    @contextmanager
    def _serving(self, contender: Contender, database: Database) -> Iterator[Served]:
        """Have a contender serve, with a client beside it, and yield them once a first job has been run."""
        database.truncate(contender.tables)
        database.rest(contender.tables)
        with ExitStack() as stack:
            notes, variables = stack.enter_context(processes.witnessed(every=True))
            started = []
            for what in ("serve", "enqueue"):
                process = processes.start(database, SCRIPT, what, contender.name, variables=variables)
                stack.callback(processes.end, process)
                started.append(process)
            served = Served(contender.name, *started, notes)
            served.enqueue([0.0])
            time.sleep(SETTLE)
            yield served

    def _write(self, situation: Situation, wake_ups: str) -> Cell:
        """Let rows be written while a worker serves. Raise unless all of them are there."""
        database, table = self.database, situation.table
        database.truncate([table])
        for _ in range(situation.running):
            database.run(ONE_JOB.format(table=table))
        database.rest([table])
        with processes.witnessed(every=situation.running > 0) as (notes, variables):
            variables["BENCHMARK_WAKE_UPS"] = wake_ups
            worker = processes.start(database, SCRIPT, "work", situation.model, variables=variables)
            try:
                wait_for(notes, situation.running, worker, situation.model)
                time.sleep(SETTLE)
                arguments = "write", situation.model, self.size.writers, self.size.seconds
                told = processes.tell(database, SCRIPT, *arguments, variables=variables)
                if situation.running == 0:
                    wait_for(notes, 1, worker, situation.model)
            finally:
                processes.end(worker)
        expected = told["rows"] + told["warm_up"] + situation.running
        if (found := database.ask(f"SELECT count(*) FROM {table}")) != expected:
            raise AssertionError(f"{situation.model}: {found} rows are there, not {expected}.")
        return Cell(told["rows"], told["seconds"], told["cpu"])


ONE_JOB = """
    INSERT INTO {table} (status, status_sequence, status_changed_at, status_next_at)
    VALUES ('PENDING', 0, statement_timestamp(), statement_timestamp())"""


@dataclass(frozen=True)
class Served:
    """A worker that serves, and its client."""

    name: str
    worker: subprocess.Popen[str]
    client: subprocess.Popen[str]
    notes: Path

    def waits(self, jobs: int) -> list[float]:
        """Return how long each of some jobs waited, which come without a rhythm: who looks at times is not to meet them at the
        same moment each time."""
        pauses = [random.uniform(0.1, 0.5) for _ in range(jobs + WARM_UP)]
        return self.enqueue(pauses)[WARM_UP:]

    def enqueue(self, pauses: Sequence[float]) -> list[float]:
        """Add a job after each pause, and return how long each took to its handler. The first that is added is run first."""
        before = len(self._seen())
        assert self.client.stdin is not None and self.client.stdout is not None  # noqa: S101, PT018
        self.client.stdin.write(json.dumps(pauses) + "\n")
        self.client.stdin.flush()
        told = self.client.stdout.readline()
        if not told:
            raise SystemExit(f"The client of {self.name!r} failed. Its error is above.")
        began = json.loads(told)
        wait_for(self.notes, before + len(began), self.worker, self.name)
        return [seen - at for seen, at in zip(sorted(self._seen())[before:], began, strict=True)]

    def _seen(self) -> list[float]:
        return [float(note) for note in self.notes.read_text().splitlines()]


def wait_for(notes: Path, number: int, worker: subprocess.Popen[str], name: str) -> None:
    """Wait until so many handlers have been called."""
    deadline = time.monotonic() + SEEN_WITHIN
    while len(notes.read_text().splitlines()) < number:
        if worker.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"A worker of {name!r} does not see a new job. Its error is above.")
        time.sleep(0.05)


def main() -> None:
    parser = Run.parser("Measure how soon jobs are run, and what that costs who writes them.")
    parser.set_defaults(repetitions=7, minutes=15)
    Run(Database.start(OPTIONS), parser.parse_args()).run()


if __name__ == "__main__":
    main()
