"""Measure what it gives that rows run ahead: rows of five steps that do nothing, with `run_ahead` and without.

    python benchmarks/steps.py [groups|alone|all] [--repetitions 9] [--quick]

What is measured, and how to read the result, is in README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for the server helpers of the tests

import database as databases  # noqa: E402
from processes import end, witnessed  # noqa: E402
from report import CPU, Cell, Goal, Line, Measure, Ratios, spread  # noqa: E402
from session import CELL_SECONDS, Session, rotated  # noqa: E402

from tests import postgres  # noqa: E402

#: How many times as fast rows are to be, many at once and one at a time.
IN_GROUPS, ALONE = 1.3, 2.0
STEPS = 5
SERVER_CPU = Measure("server CPU", lambda cell: cell.cpu_seconds)
#: How many rows are claimed and written at once, at most: as by default, and fewer.
BATCHES = (1000, 100)

#: Commits carry their time, which is how the end of a row is known.
OPTIONS = {"track_commit_timestamp": "on"}

FILL = """
    INSERT INTO {table} (payload, status, status_sequence, status_changed_at, status_next_at)
    SELECT NULL, 'ONE', 0, statement_timestamp(), statement_timestamp() + key * interval '1 us'
      FROM generate_series(1, %s::bigint) AS key"""

ENDED = """
    SELECT count(*), extract(epoch FROM max(pg_xact_commit_timestamp(xmin)))::float8 FROM {table} WHERE status = 'END'"""

#: Rows that were not moved once from each state to the next, or are held.
WRONG = """
    SELECT count(*) FROM {table} AS t
     WHERE status <> 'END' OR status_sequence <> 5 OR status_lease_expires_at IS NOT NULL
        OR (SELECT count(*) FROM {table}statetransition WHERE instance_id = t.id) <> 5"""


@dataclass(frozen=True)
class Contender:
    """A model whose rows are stepped through."""

    name: str
    model: str
    is_before: bool = False

    @property
    def table(self) -> str:
        return f"relays_{self.model.lower()}"


CONTENDERS = (Contender("with run_ahead", "Ahead"), Contender("without", "ByClaims"))


def _stat(pid: int) -> list[str]:
    """Return what Linux tells of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class Database(databases.Database):
    """A database with the tables of both."""

    settings = "steps_settings"

    def migrate(self) -> None:
        self.manage("migrate", "--run-syncdb")

    def prepare(self, contender: Contender, rows: int) -> None:
        self.run(f"TRUNCATE {contender.table} CASCADE")
        self.run(FILL.format(table=contender.table), rows)
        self.run(f"VACUUM ANALYZE {contender.table}, {contender.table}statetransition")
        self.run("CHECKPOINT")

    def cpu_seconds(self) -> float:
        """Return the processor time of the server with all its processes, those that have ended among them. On Linux."""
        backend = self.ask("SELECT pg_backend_pid()")
        server = int(_stat(backend)[1])
        ticks = sum(map(int, _stat(server)[11:15]))
        for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):
                ticks += sum(map(int, _stat(int(child))[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def ended(self, contender: Contender) -> tuple[int, float]:
        """Return how many rows have ended, and when the last of them was committed."""
        row: Any = self._connection.execute(ENDED.format(table=contender.table)).fetchone()
        return row[0], row[1]

    def check(self, contender: Contender) -> None:
        if wrong := self.ask(WRONG.format(table=contender.table)):
            raise AssertionError(f"{contender.name}: {wrong} rows are not where they should be.")


class Run(Session[Database]):
    """One call of the command."""

    order = ("groups", "alone")
    packages = ("Django", "psycopg")
    command, results = "steps.py", "results-steps.md"

    def __init__(self, database: Database, options: argparse.Namespace) -> None:
        super().__init__(database, options)
        #: The processor time of the server, by cell.
        self.server_cpu: dict[int, float] = {}
        self.rows, self.singles = (500, 10) if options.quick else (5000, 100)

    def groups(self) -> str:
        """Rows that are all due, and one worker process, with batches as they are by default and smaller ones."""
        goals: list[list[Goal]] = [[], [Goal(IN_GROUPS), Goal(None, CPU)]]
        tables = {
            batch: [Line(each.name, goal) for each, goal in zip(CONTENDERS, goals, strict=True)] for batch in BATCHES
        }

        def cells(repetition: int) -> None:
            for batch, lines in tables.items():
                for position in rotated(CONTENDERS, repetition):
                    lines[position].cells.append(self._drain(CONTENDERS[position], batch))

        self.repeat(cells)
        title = f"{self.rows:,} rows of five steps, 1 process, BATCH_SIZE"
        parts = []
        for batch, lines in tables.items():
            ours, theirs = ([self.server_cpu[id(cell)] for cell in line.cells] for line in lines)
            ratio = Goal(None, SERVER_CPU).judge([mine / other for mine, other in zip(ours, theirs, strict=True)])
            parts.append(f"{Ratios(f'{title} {batch}', 'rows', lines).markdown()}\n| |{ratio} | |")
        return "\n\n".join(parts)

    def alone(self) -> str:
        """One row at a time, and a worker that has nothing else to do."""
        times: dict[str, list[float]] = {each.name: [] for each in CONTENDERS}

        def cells(repetition: int) -> None:
            for position in rotated(CONTENDERS, repetition):
                contender = CONTENDERS[position]
                times[contender.name].append(median(self._one_by_one(contender)) * 1000)

        self.repeat(cells)
        ahead, without = (times[each.name] for each in CONTENDERS)
        verdict = Goal(ALONE).judge([theirs / ours for ours, theirs in zip(ahead, without, strict=True)])
        return "\n".join(
            [
                f"### One row of five steps at a time, median of {self.singles}",
                "",
                "| | with run_ahead, in proportion | goal | | ms from the start of the first handler to the last commit |",
                "|-|-|-|-|-|",
                f"| with run_ahead | | | | {spread(ahead, '.2f')} |",
                f"| without |{verdict} {spread(without, '.2f')} |",
            ]
        )

    def _drain(self, contender: Contender, batch: int) -> Cell:
        self.database.prepare(contender, self.rows)
        before = self.database.cpu_seconds()
        with witnessed(self.rows * STEPS) as (notes, variables):
            process = self._start("drain", contender, {**variables, "BENCHMARK_BATCH": str(batch)})
            try:
                told, _ = process.communicate(timeout=CELL_SECONDS)
            finally:
                end(process)
            if process.returncode:
                raise SystemExit(f"A worker of {contender.name!r} failed. Its error is above.")
            began = min(map(float, notes.read_text().split()))
        spent = self.database.cpu_seconds() - before
        self.database.check(contender)
        _number, ended = self.database.ended(contender)
        cell = Cell(self.rows, ended - began, json.loads(told.splitlines()[-1])["cpu"])
        self.server_cpu[id(cell)] = spent
        return cell

    def _one_by_one(self, contender: Contender) -> list[float]:
        """Return how long each row took from the start of its first handler to the commit of its last move."""
        self.database.prepare(contender, 0)
        seconds = []
        with witnessed(0, every=True) as (notes, variables):
            process = self._start("serve", contender, variables)
            try:
                for number in range(1, self.singles + 4):
                    self.database.run(FILL.format(table=contender.table), 1)
                    ended = self._wait(contender, process, number)
                    began = float(notes.read_text().splitlines()[(number - 1) * STEPS])
                    seconds.append(ended - began)
            finally:
                end(process)
        return seconds[3:]  # the first ones prepare statements

    def _wait(self, contender: Contender, process: subprocess.Popen[str], number: int) -> float:
        """Wait until so many rows have ended, and return when the last one had."""
        deadline = time.monotonic() + 30
        while True:
            found, ended = self.database.ended(contender)
            if found == number:
                return ended
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"A worker of {contender.name!r} does not serve a row. Its error is above.")
            time.sleep(0.02)  # so that asking takes nothing from what is measured

    def _start(self, what: str, contender: Contender, variables: dict[str, str]) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / "steps_cell.py"), what, contender.model]
        surroundings = {**os.environ, **self.database.environment, **variables}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=surroundings, start_new_session=True)


def main() -> None:
    options = Run.parser("Measure what run_ahead gives.").parse_args()
    postgres.OPTIONS.update(databases.OPTIONS | OPTIONS)
    database = Database(postgres.boot())
    database.migrate()
    Run(database, options).run()


if __name__ == "__main__":
    main()
