"""Measure what it costs that a row waits for its children: ten thousand of them, made by `Spawn`, beside as many plain rows.

    python benchmarks/joins.py [join|all] [--repetitions 9] [--quick]

What is measured, and how to read the result, is in README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for the server helpers of the tests

import database as databases  # noqa: E402
from processes import end, witnessed  # noqa: E402
from report import CPU, Cell, Goal, Line, Ratios, spread  # noqa: E402
from session import CELL_SECONDS, Session, rotated  # noqa: E402

from tests import postgres  # noqa: E402

#: The rate of the join, from the commit of Spawn to that of the parent's move, in proportion to that of plain rows.
RATE = 0.8

#: Commits carry their time, which is how the end of a row is known.
OPTIONS = {"track_commit_timestamp": "on"}

TABLES = ("families_child", "families_childstatetransition", "families_family", "families_familystatetransition")
PLAIN_TABLES = ("families_plain", "families_plainstatetransition")

FILL = """
    INSERT INTO families_plain (family, status, status_sequence, status_changed_at, status_next_at)
    SELECT 1, 'PENDING', 0, statement_timestamp(), statement_timestamp() + key * interval '1 us'
      FROM generate_series(1, %s::bigint) AS key"""

ENDED = "SELECT extract(epoch FROM max(pg_xact_commit_timestamp(xmin)))::float8 FROM {} WHERE status = 'DONE'"
SPAWNED = """
    SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM families_familystatetransition
     WHERE to_status = 'WAITING'"""
WRITES = "SELECT pg_stat_get_tuples_updated('families_family'::regclass)"


@dataclass(frozen=True)
class Contender:
    """What is drained."""

    name: str
    models: tuple[str, ...]
    is_before: bool = False


CONTENDERS = (
    Contender("the join", ("families.Family", "families.Child")),
    Contender("plain rows", ("families.Plain",)),
)


class Database(databases.Database):
    """A database with the tables of both."""

    settings = "joins_settings"

    def migrate(self) -> None:
        self.manage("migrate", "--run-syncdb")

    def prepare(self, rows: int) -> None:
        self.run(f"TRUNCATE {', '.join((*TABLES, *PLAIN_TABLES))} CASCADE")
        self.run(FILL, rows)
        self.run(
            "INSERT INTO families_family (status, status_sequence, status_changed_at, status_next_at) "
            "VALUES ('NEW', 0, statement_timestamp(), statement_timestamp())"
        )
        self.run(f"VACUUM ANALYZE {', '.join((*TABLES, *PLAIN_TABLES))}")
        self.run("CHECKPOINT")

    def check(self, table: str, rows: int) -> None:
        done = self.ask(f"SELECT count(*) FROM {table} WHERE status = 'DONE' AND status_lease_expires_at IS NULL")
        if done != rows:
            raise AssertionError(f"{done} rows of {table} are done, of {rows}.")


class Run(Session[Database]):
    """One call of the command."""

    order = ("join",)
    packages = ("Django", "psycopg")
    command, results = "joins.py", "results-joins.md"

    def __init__(self, database: Database, options: argparse.Namespace) -> None:
        super().__init__(database, options)
        self.rows = 1000 if options.quick else 10_000
        #: How often the parent was written, by repetition.
        self.writes: list[float] = []

    def join(self) -> str:
        """One row that makes children and waits for them, and as many rows that nobody waits for; one worker process."""
        goals: list[list[Goal]] = [[], [Goal(RATE), Goal(None, CPU)]]
        lines = [Line(each.name, goal) for each, goal in zip(CONTENDERS, goals, strict=True)]

        def cells(repetition: int) -> None:
            self.database.prepare(self.rows)
            for position in rotated(CONTENDERS, repetition):
                lines[position].cells.append(self._drain(CONTENDERS[position]))

        self.repeat(cells)
        title = f"{self.rows:,} children, from Spawn's commit to the parent's move, 1 process"
        table = Ratios(title, "rows", lines).markdown()
        return (
            f"{table}\n\nThe parent was written {spread(self.writes, '.0f')} times in all: 7 are three claims, the move with its "
            "children, to sleep, to be woken, and the move to the end."
        )

    def _drain(self, contender: Contender) -> Cell:
        before = self.database.ask(WRITES)
        with witnessed(self.rows) as (notes, variables):
            process = self._start(contender, variables)
            try:
                told, _ = process.communicate(timeout=CELL_SECONDS)
            finally:
                end(process)
            if process.returncode:
                raise SystemExit(f"A worker of {contender.name!r} failed. Its error is above.")
            began = min(map(float, notes.read_text().split()))
        cpu: float = json.loads(told.splitlines()[-1])["cpu"]
        if contender.models[0].endswith("Plain"):
            self.database.check("families_plain", self.rows)
            ended: Any = self.database.ask(ENDED.format("families_plain"))
        else:
            self.database.check("families_child", self.rows)
            self.database.check("families_family", 1)
            began, ended = self.database.ask(SPAWNED), self.database.ask(ENDED.format("families_family"))
            self.writes.append(self.database.ask(WRITES) - before)
        return Cell(self.rows, ended - began, cpu)

    def _start(self, contender: Contender, variables: dict[str, str]) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / "joins_cell.py"), *contender.models]
        surroundings = {**os.environ, **self.database.environment, **variables, "BENCHMARK_CHILDREN": str(self.rows)}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=surroundings, start_new_session=True)


def main() -> None:
    options = Run.parser("Measure what it costs to wait for children.").parse_args()
    postgres.OPTIONS.update(databases.OPTIONS | OPTIONS)
    database = Database(postgres.boot())
    database.migrate()
    Run(database, options).run()


if __name__ == "__main__":
    main()
