"""Measure what it gives that rows run ahead: rows of five steps that do nothing, with `run_ahead` and without.

    python benchmarks/steps.py [groups|alone|all] [--before DIR] [--repetitions 9] [--quick]

What is measured, and how to read the result, is in README.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for the server helpers of the tests

import database as databases  # noqa: E402
from processes import end, start, tell, witnessed  # noqa: E402
from report import CPU, SERVER_CPU, Cell, Goal, Line, Ratios, spread  # noqa: E402
from session import Session, rotated  # noqa: E402

from tests import postgres  # noqa: E402

#: How many times as fast rows are to be, many at once and one at a time.
IN_GROUPS, ALONE = 1.3, 2.0
STEPS = 5
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


AHEAD, WITHOUT = Contender("with run_ahead", "Ahead"), Contender("without", "ByClaims")
#: Whether or not the earlier commit has `run_ahead`.
BEFORE = Contender("before, without", "ByClaims", is_before=True)
CONTENDERS = (AHEAD, WITHOUT, BEFORE)


#: By the name of a contender.
GOALS = {
    WITHOUT.name: [Goal(IN_GROUPS), Goal(None, CPU), Goal(None, SERVER_CPU)],
    BEFORE.name: [Goal(), Goal(None, CPU), Goal(None, SERVER_CPU)],
}
GOALS_ALONE = {WITHOUT.name: Goal(ALONE), BEFORE.name: Goal(None)}


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
        self.rows, self.singles = (500, 10) if options.quick else (5000, 100)
        self.contenders = self.compared(CONTENDERS)

    def groups(self) -> str:
        """Rows that are all due, and one worker process, with batches as they are by default and smaller ones."""
        tables = {
            batch: [Line(each.name, GOALS.get(each.name, [Goal()])) for each in self.contenders] for batch in BATCHES
        }

        def cells(repetition: int) -> None:
            for batch, lines in tables.items():
                for position in rotated(self.contenders, repetition):
                    lines[position].cells.append(self._drain(self.contenders[position], batch))

        self.repeat(cells)
        title = f"{self.rows:,} rows of five steps, 1 process, BATCH_SIZE"
        return "\n\n".join(Ratios(f"{title} {batch}", "rows", lines).markdown() for batch, lines in tables.items())

    def alone(self) -> str:
        """One row at a time, and a worker that has nothing else to do."""
        times: dict[Contender, list[float]] = {each: [] for each in self.contenders}

        def cells(repetition: int) -> None:
            for position in rotated(self.contenders, repetition):
                contender = self.contenders[position]
                times[contender].append(median(self._one_by_one(contender)) * 1000)

        self.repeat(cells)
        lines = [
            f"### One row of five steps at a time, median of {self.singles}",
            "",
            "| | with run_ahead, in proportion | goal | | ms from the start of the first handler to the last commit |",
            "|-|-|-|-|-|",
        ]
        for contender, theirs in times.items():
            ratios = [other / ours for ours, other in zip(times[AHEAD], theirs, strict=True)]
            verdict = " | | |" if contender is AHEAD else GOALS_ALONE[contender.name].judge(ratios)
            lines.append(f"| {contender.name} |{verdict} {spread(theirs, '.2f')} |")
        return "\n".join(lines)

    def _drain(self, contender: Contender, batch: int) -> Cell:
        database = self.place(contender)
        database.prepare(contender, self.rows)
        before = database.cpu_seconds()
        with witnessed(self.rows * STEPS) as (notes, variables):
            variables["BENCHMARK_BATCH"] = str(batch)
            told = tell(database, "steps_cell.py", "drain", contender.model, variables=variables)
            began = min(map(float, notes.read_text().split()))
        spent = database.cpu_seconds() - before
        database.check(contender)
        _number, ended = database.ended(contender)
        return Cell(self.rows, ended - began, told["cpu"], spent)

    def _one_by_one(self, contender: Contender) -> list[float]:
        """Return how long each row took from the start of its first handler to the commit of its last move."""
        database = self.place(contender)
        database.prepare(contender, 0)
        seconds = []
        with witnessed(0, every=True) as (notes, variables):
            process = start(database, "steps_cell.py", "serve", contender.model, variables=variables)
            try:
                for number in range(1, self.singles + 4):
                    database.run(FILL.format(table=contender.table), 1)
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
            found, ended = self.place(contender).ended(contender)
            if found == number:
                return ended
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"A worker of {contender.name!r} does not serve a row. Its error is above.")
            time.sleep(0.02)  # so that asking takes nothing from what is measured


def main() -> None:
    options = Run.parser("Measure what run_ahead gives.").parse_args()
    postgres.OPTIONS.update(databases.OPTIONS | OPTIONS)
    database = Database(postgres.boot())
    database.migrate()
    Run(database, options).run()


if __name__ == "__main__":
    main()
