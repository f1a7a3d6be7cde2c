"""Measure how fast and how steadily a worker serves rows, against its peers, on a PostgreSQL of its own.

    python benchmarks/drain.py [drain|claim|tenths|all] [--before DIR] [--repetitions 9] [--quick]

What is measured, and how to read the result, is in README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for the server helpers of the tests

import drain_contenders  # noqa: E402
import processes  # noqa: E402
from drain_contenders import Contender  # noqa: E402
from jobs_database import JobsDatabase  # noqa: E402
from report import CPU, SERVER_CPU, Cell, Goal, Line, Ratios, spread  # noqa: E402
from session import CELL_SECONDS, Session, rotated  # noqa: E402

#: By the name of a contender.
GOALS = {
    "before": [Goal(0.95), Goal(None, CPU), Goal(None, SERVER_CPU)],
    "by hand, claiming ahead": [Goal(0.8), Goal(None, CPU), Goal(None, SERVER_CPU)],
    "pgqueuer": [Goal(1.8)],
    "procrastinate": [Goal(25)],
    "django-tasks-db": [Goal(25)],
}
#: Of ours on a table with room in its pages.
GOALS_WITH_ROOM = {
    drain_contenders.with_room(drain_contenders.CLAIMING_AHEAD).name: [Goal(0.85), Goal(None, SERVER_CPU)],
    "pgqueuer": [Goal(2)],
}

#: Commits carry their time, which is how the end of a cell is known.
OPTIONS = {"track_commit_timestamp": "on"}

COMMITS = """
    SELECT count(*), count(*) FILTER (WHERE at <= %(end)s), max(at)
      FROM (SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 AS at FROM {done}) AS committed"""

HOT = """
    SELECT coalesce(n_tup_hot_upd::float8 / nullif(n_tup_upd, 0), 0) FROM pg_stat_all_tables WHERE relid = %s::regclass"""

WRITTEN = "SELECT (pg_current_wal_insert_lsn() - %s::pg_lsn)::float8"

TENTHS = """
    SELECT count(*), max(at)
      FROM (SELECT at, ntile(10) OVER (ORDER BY at) AS tenth
              FROM (SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 AS at FROM {done}) AS committed)
           AS cut
     GROUP BY tenth ORDER BY tenth"""

# Of a hundred rows one is due; of the others every second one waits and every second one is done.
FILL_MIXED = """
    INSERT INTO {table} (id, payload, status, status_sequence, status_changed_at, status_next_at)
    SELECT key, NULL,
           CASE WHEN key %% 100 = 0 OR key %% 2 = 1 THEN 'PENDING' ELSE 'DONE' END,
           CASE WHEN key %% 100 = 0 OR key %% 2 = 1 THEN 0 ELSE 1 END,
           statement_timestamp(),
           CASE WHEN key %% 100 = 0 THEN statement_timestamp() - interval '1 minute' + key * interval '1 us'
                WHEN key %% 2 = 1 THEN statement_timestamp() + interval '1 day' + key * interval '1 us' END
      FROM generate_series(1, %(rows)s::bigint) AS key"""

# Due before all others, and in a state that the claim does not ask for.
FILL_CROWD = """
    INSERT INTO {table} (id, payload, status, status_sequence, status_changed_at, status_next_at)
    SELECT %(above)s::bigint + key, NULL, 'CROWD', 0, statement_timestamp(),
           statement_timestamp() - interval '1 hour' + key * interval '1 us'
      FROM generate_series(1, %(rows)s::bigint) AS key"""


class Size:
    """How much work a cell is."""

    def __init__(self, quick: bool) -> None:
        self.jobs, self.window = (2000, 2.0) if quick else (20_000, 6.0)
        self.few, self.many, self.crowd = (10_000, 50_000, 20_000) if quick else (10_000, 1_000_000, 200_000)
        self.claims = 20 if quick else 50
        self.long = 10_000 if quick else 100_000


class Database(JobsDatabase):
    """A database with the jobs of one contender at a time."""

    def fill_with(self, sql: str, **params: Any) -> None:
        self._connection.execute(sql, params)

    def add(self, contender: Contender, first: int, last: int) -> None:
        self.fill_with(contender.fill, first=first, last=last)

    def prepare(self, contender: Contender, jobs: int) -> None:
        """Start again: so many jobs, and nothing done."""
        self.truncate(contender.tables)
        self.run(f"ALTER TABLE {contender.tables[0]} SET (fillfactor = {contender.fillfactor})")
        self.add(contender, 1, jobs)
        self.rest(contender.tables[:2])

    def size_of(self, table: str) -> float:
        """Return how large a table is, without its indexes, in MB."""
        return int(self.ask("SELECT pg_table_size(%s::regclass)", table)) / 1_000_000


@dataclass(frozen=True)
class Wear:
    """What a drain did to the table of its jobs: updates that left the indexes alone, and how the table has grown."""

    hot: float
    megabytes_before: float
    megabytes_after: float
    #: Of the whole server, for each job.
    wal_bytes: float

    @staticmethod
    def table(worn: dict[str, list[Wear]]) -> str:
        rows = [
            "### What it does to the table",
            "",
            "| | HOT updates | WAL, bytes a job | table, MB |",
            "|-|-|-|-|",
        ]
        for name, each in worn.items():
            hot, wal = median(wear.hot for wear in each), median(wear.wal_bytes for wear in each)
            before, after = (
                median(wear.megabytes_before for wear in each),
                median(wear.megabytes_after for wear in each),
            )
            rows.append(f"| {name} | {hot:.0%} | {wal:,.0f} | {before:.1f} → {after:.1f} |")
        return "\n".join(rows)


@dataclass(frozen=True)
class Drained:
    """What a cell left behind: when its first handler ran, and what was committed by when."""

    began: float
    completed: int
    in_window: int
    ended: float
    cpu_seconds: float
    server_seconds: float
    table: Wear

    def cell(self, window: float, jobs: int) -> Cell:
        """Return the cell, over the window if that was over before the last job was done."""
        if self.in_window == jobs:
            return Cell(jobs, self.ended - self.began, self.cpu_seconds, self.server_seconds)
        part = self.in_window / self.completed
        return Cell(self.in_window, window, self.cpu_seconds * part, self.server_seconds * part)


class Run(Session[Database]):
    """One call of the command."""

    order = ("drain", "claim", "tenths")
    packages = drain_contenders.PACKAGES
    command, results = "drain.py", "results-drain.md"

    def __init__(self, database: Database, options: argparse.Namespace) -> None:
        super().__init__(database, options)
        self.size = Size(options.quick)
        self.contenders = self.compared(tuple(drain_contenders.ALL.values()))

    def drain(self) -> str:
        """Jobs that are all due, and one worker process."""
        lines = [Line(each.name) for each in self.contenders]
        worn: dict[str, list[Wear]] = {each.name: [] for each in self.contenders if each.updates}

        def cells(repetition: int) -> None:
            for position in rotated(self.contenders, repetition):
                contender = self.contenders[position]
                window = self.size.window if contender.windowed else CELL_SECONDS
                drained = self._drain(contender, self.size.jobs, window)
                lines[position].cells.append(drained.cell(window, self.size.jobs))
                if contender.updates:
                    worn[contender.name].append(drained.table)

        self.repeat(cells)
        for line, contender in zip(lines, self.contenders, strict=True):
            if contender.windowed and any(cell.units < self.size.jobs for cell in line.cells):
                line.name += f", over {self.size.window:g} s"
        title, room = f"Draining {self.size.jobs:,} jobs, 1 process", drain_contenders.FILLFACTOR
        drained = list(zip(self.contenders, lines, strict=True))
        full = [pair for pair in drained if pair[0].fillfactor > room]
        tables = [Ratios(title, "jobs", with_goals(GOALS, full))]
        if len(full) < len(drained):
            roomy = [pair for pair in drained if pair[0].fillfactor == room]
            beside = [pair for pair in full if pair[0].name in ("ours", "pgqueuer")]
            tables.append(Ratios(f"The same, fillfactor {room}", "jobs", with_goals(GOALS_WITH_ROOM, roomy + beside)))
        return "\n\n".join([*(table.markdown() for table in tables), Wear.table(worn)])

    def claim(self) -> str:
        """One claim, beside few rows, beside many, and behind due rows of another state."""
        contender = self.contenders[0]
        few, many = f"{self.size.few:,} rows", f"{self.size.many:,} rows"
        behind = f"{few}, behind {self.size.crowd:,} due rows of another state"
        places = {few: self.database, many: self.database.copy("many"), behind: self.database.copy("behind")}
        for name, database in places.items():
            rows = self.size.many if name == many else self.size.few
            database.run(f"TRUNCATE {contender.crowded} CASCADE")
            database.fill_with(FILL_MIXED.format(table=contender.crowded), rows=rows)
            if name == behind:
                crowd = {"above": rows, "rows": self.size.crowd}
                database.fill_with(FILL_CROWD.format(table=contender.crowded), **crowd)
        times: dict[int, dict[str, list[float]]] = {batch: {name: [] for name in places} for batch in (1, 100)}

        def cells(repetition: int) -> None:
            for batch, medians in times.items():
                for position in rotated(list(places), repetition):
                    name = list(places)[position]
                    places[name].rest([contender.crowded])
                    told = self._tell(places[name], "claim", contender, batch, self.size.claims)
                    medians[name].append(median(told["seconds"]) * 1000)

        self.repeat(cells)
        rows = [
            f"### One claim, median of {self.size.claims}: {contender.name}",
            "",
            f"| claimed from | rows claimed | time, in proportion to {few} | ms |",
            "|-|-|-|-|",
        ]
        for batch, medians in times.items():
            for name, each in medians.items():
                ratios = [mine / base for mine, base in zip(each, medians[few], strict=True)]
                shown = "" if name == few else spread(ratios, ".2f")
                rows.append(f"| {name} | {batch} | {shown} | {spread(each, '.2f')} |")
        return "\n".join(rows)

    def tenths(self) -> str:
        """Many jobs: does the rate fall as the dead rows pile up?"""
        contender = self.contenders[0]
        rates: list[list[float]] = []

        def cells(_repetition: int) -> None:
            began = self._drain(contender, self.size.long, CELL_SECONDS).began
            cuts = self.database.query(TENTHS.format(done=contender.done))
            starts = [began, *(end for _, end in cuts)]
            rates.append([jobs / (end - start) for (jobs, end), start in zip(cuts, starts, strict=False)])

        self.repeat(cells)
        rows = [
            f"### Draining {self.size.long:,} jobs, 1 process: {contender.name}",
            "",
            "| tenth | its rate, in proportion to that of the first | jobs/s |",
            "|-|-|-|",
        ]
        for tenth in range(10):
            ratios = [each[tenth] / each[0] for each in rates]
            shown = spread(ratios, ".2f") if tenth else ""
            rows.append(f"| {tenth + 1} | {shown} | {spread([each[tenth] for each in rates], ',.0f')} |")
        return "\n".join(rows)

    def _drain(self, contender: Contender, jobs: int, window: float) -> Drained:
        """Run one contender in a process of its own. Raise unless it did all that it was to do, and nothing else."""
        database = self.place(contender)
        database.prepare(contender, jobs)
        table = contender.tables[0]
        size, wal = database.size_of(table), database.ask("SELECT pg_current_wal_insert_lsn()")
        database.run("SELECT pg_stat_reset_single_table_counters(%s::regclass)", table)
        spent = database.cpu_seconds()
        with processes.witnessed(jobs) as (notes, variables):
            told = self._tell(database, "drain", contender, window, variables=variables)
            began = min(map(float, notes.read_text().split()))
        spent = database.cpu_seconds() - spent
        completed, in_window, ended = database.query(COMMITS.format(done=contender.done), end=began + window)[0]
        wrong, left = database.ask(contender.wrong), database.ask(contender.left)
        if wrong or completed + left != jobs or (left and not contender.windowed):
            raise AssertionError(f"{contender.name}: {completed} of {jobs} jobs done, {left} left, {wrong} wrong.")
        wear = Wear(
            database.ask(HOT, table), size, database.size_of(table), database.ask(WRITTEN, wal) / max(completed, 1)
        )
        return Drained(began, completed, in_window, ended, told["cpu"], spent, wear)

    def _tell(self, database: Database, what: str, contender: Contender, *arguments: object, **more: Any) -> Any:
        """Run a cell, and return what it tells."""
        return processes.tell(database, "drain_cell.py", what, contender.name, *arguments, **more)


def with_goals(goals: dict[str, list[Goal]], drained: Sequence[tuple[Contender, Line]]) -> list[Line]:
    return [Line(line.name, goals.get(contender.name, [Goal()]), line.cells) for contender, line in drained]


def main() -> None:
    options = Run.parser("Measure the worker against its peers.").parse_args()
    Run(Database.start(OPTIONS), options).run()


if __name__ == "__main__":
    main()
