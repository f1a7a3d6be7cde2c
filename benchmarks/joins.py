"""Measure what it costs that a row waits for its children: ten thousand of them, made by `Spawn`, beside as many plain rows.

    python benchmarks/joins.py [join|all] [--repetitions 9] [--quick]

What is measured, and how to read the result, is in README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for the server helpers of the tests

import database as databases  # noqa: E402
import dbos_peer  # noqa: E402
from processes import tell, witnessed  # noqa: E402
from report import CPU, Cell, Goal, Line, Ratios, spread  # noqa: E402
from session import Session, rotated  # noqa: E402

from tests import postgres  # noqa: E402

#: The rate of the join, from the commit of Spawn to that of the parent's move, in proportion to that of plain rows.
RATE = 0.8

#: Commits carry their time, which is how the end of a row is known.
OPTIONS = {"track_commit_timestamp": "on"}

TABLES = ("families_child", "families_childstatetransition", "families_family", "families_familystatetransition")
PLAIN_TABLES = ("families_plain", "families_plainstatetransition")
ALL_TABLES = ", ".join((*TABLES, *PLAIN_TABLES, *dbos_peer.TABLES))

FILL = """
    INSERT INTO families_plain (family, status, status_sequence, status_changed_at, status_next_at)
    SELECT 1, 'PENDING', 0, statement_timestamp(), statement_timestamp() + key * interval '1 us'
      FROM generate_series(1, %s::bigint) AS key"""

ENDED = "SELECT extract(epoch FROM max(pg_xact_commit_timestamp(xmin)))::float8 FROM {}"
SPAWNED = """
    SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM families_familystatetransition
     WHERE to_status = 'WAITING'"""
WRITES = "SELECT pg_stat_get_tuples_updated('families_family'::regclass)"


@dataclass(frozen=True)
class Contender:
    """What is drained."""

    name: str
    #: What its process is to run.
    runs: tuple[str, ...]
    #: Tables and what is true of rows of theirs that are done, and how many those are, if not as many as there are children.
    done: dict[str, int | None]
    is_before: bool = False

    @property
    def last(self) -> str:
        """What is done last."""
        return list(self.done)[-1]


OURS = "{} WHERE status = 'DONE' AND status_lease_expires_at IS NULL"
THEIRS = "dbos.workflow_status WHERE status = 'SUCCESS' AND name = '{}'"

JOIN = Contender(
    "the join",
    ("families.Family", "families.Child"),
    {OURS.format("families_child"): None, OURS.format("families_family"): 1},
)
PLAIN = Contender("plain rows", ("families.Plain",), {OURS.format("families_plain"): None})
DBOS = Contender("DBOS", ("DBOS",), {THEIRS.format("child"): None, THEIRS.format("family"): 1})
CONTENDERS, PEERS = (JOIN, PLAIN), (JOIN, DBOS)


class Database(databases.Database):
    """A database with the tables of all."""

    settings = "joins_settings"

    def migrate(self) -> None:
        self.manage("migrate", "--run-syncdb")

    def prepare(self, rows: int) -> None:
        self.run(f"TRUNCATE {ALL_TABLES} CASCADE")
        self.run(FILL, rows)
        self.run(
            "INSERT INTO families_family (status, status_sequence, status_changed_at, status_next_at) "
            "VALUES ('NEW', 0, statement_timestamp(), statement_timestamp())"
        )
        self.run(f"VACUUM ANALYZE {ALL_TABLES}")
        self.run("CHECKPOINT")

    def check(self, contender: Contender, rows: int) -> None:
        for done, expected in contender.done.items():
            if (found := self.ask(f"SELECT count(*) FROM {done}")) != (expected or rows):
                raise AssertionError(f"{contender.name}: {found} rows of {done}, not {expected or rows}.")


class Run(Session[Database]):
    """One call of the command."""

    order = ("join",)
    packages = ("Django", "psycopg", "dbos")
    command, results = "joins.py", "results-joins.md"

    def __init__(self, database: Database, options: argparse.Namespace) -> None:
        super().__init__(database, options)
        self.rows, self.few = (1000, 100) if options.quick else (10_000, 1000)
        #: How often the parent was written, by repetition.
        self.writes: list[float] = []

    def join(self) -> str:
        """One row that makes children and waits for them, and as many rows that nobody waits for; one worker process."""
        compared = self.compared(PEERS)
        lines = [Line("the join"), Line("plain rows", [Goal(RATE), Goal(None, CPU)])]
        peers = [Line(each.name, [Goal(), Goal(None, CPU)]) for each in compared]

        def cells(repetition: int) -> None:
            self.database.prepare(self.rows)
            for position in rotated(CONTENDERS, repetition):
                lines[position].cells.append(self._drain(CONTENDERS[position]))
            for position in rotated(compared, repetition):
                self.database.prepare(self.few)
                peers[position].cells.append(self._run(compared[position], self.few))

        self.repeat(cells)
        title = f"{self.rows:,} children, from Spawn's commit to the parent's move, 1 process"
        others = f"{self.few:,} children, made by the parent while the clock runs, 1 process"
        return (
            f"{Ratios(title, 'rows', lines).markdown()}\n\nThe parent was written {spread(self.writes, '.0f')} times in all: "
            "7 are three claims, the move with its children, to sleep, to be woken, and the move to the end.\n\n"
            f"{Ratios(others, 'children', peers).markdown()}"
        )

    def _drain(self, contender: Contender) -> Cell:
        """Run one that is counted from when its rows are there."""
        before = self.database.ask(WRITES)
        cell = self._run(contender, self.rows)
        if contender is not JOIN:
            return cell
        self.writes.append(self.database.ask(WRITES) - before)
        return Cell(cell.units, self._ended(contender) - self.database.ask(SPAWNED), cell.cpu_seconds)

    def _run(self, contender: Contender, rows: int) -> Cell:
        """Run one from its first handler to its last commit. Raise unless all is done."""
        with witnessed(rows) as (notes, variables):
            told = tell(self.database, "joins_cell.py", *contender.runs, variables=variables)
            began = min(map(float, notes.read_text().split()))
        self.database.check(contender, rows)
        return Cell(rows, self._ended(contender) - began, told["cpu"])

    def _ended(self, contender: Contender) -> float:
        ended: float = self.database.ask(ENDED.format(contender.last))
        return ended


def main() -> None:
    options = Run.parser("Measure what it costs to wait for children.").parse_args()
    postgres.OPTIONS.update(databases.OPTIONS | OPTIONS)
    database = Database(postgres.boot())
    database.migrate()
    os.environ |= {"BENCHMARK_DATABASE": database.url}
    dbos_peer.install()
    Run(database, options).run()


if __name__ == "__main__":
    main()
