"""Measure how fast, how steadily and how quietly a worker serves rows, against its peers, on a PostgreSQL of its own.

    python benchmarks/drain.py [drain|claim|tenths|idle|all] [--before DIR] [--repetitions 9] [--quick]

What is measured, and how to read the result, is in README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for the server helpers of the tests

import database as databases  # noqa: E402
import drain_contenders  # noqa: E402
import drain_peers  # noqa: E402
from drain_contenders import Contender  # noqa: E402
from report import CPU, Cell, Goal, Line, Ratios, spread  # noqa: E402
from session import CELL_SECONDS, Session, rotated  # noqa: E402

from tests import postgres  # noqa: E402

#: By the name of a contender.
GOALS = {
    "before": [Goal(0.95), Goal(None, CPU)],
    "by hand, claiming ahead": [Goal(0.8)],
    "pgqueuer": [Goal(1.8)],
    "procrastinate": [Goal(25)],
    "django-tasks-db": [Goal(25)],
}
#: Of ours on a table with room in its pages.
GOALS_WITH_ROOM = {
    drain_contenders.with_room(drain_contenders.CLAIMING_AHEAD).name: [Goal(0.85)],
    "pgqueuer": [Goal(2)],
}

#: Commits carry their time, which is how the end of a cell is known. The log takes statements where a cell asks for it.
OPTIONS = {
    "track_commit_timestamp": "on",
    "logging_collector": "on",
    "log_filename": "statements.log",
    "log_line_prefix": "%p ",
    "log_rotation_age": "0",
    "log_rotation_size": "0",
}

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

# A line of the log for each statement that a client sent, whichever protocol it used. A statement's own further lines
# begin with a tab.
STATEMENT = re.compile(r"^(\d+) LOG:  (?:statement|execute [^:]*): ", re.MULTILINE)


class Size:
    """How much work a cell is."""

    def __init__(self, quick: bool) -> None:
        self.jobs, self.window = (2000, 2.0) if quick else (20_000, 6.0)
        self.few, self.many, self.crowd = (10_000, 50_000, 20_000) if quick else (10_000, 1_000_000, 200_000)
        self.claims = 20 if quick else 50
        self.long = 10_000 if quick else 100_000
        self.quiet, self.inserts = (5.0, 10) if quick else (30.0, 50)


class Database(databases.Database):
    """A database with the tables of all contenders."""

    settings = "drain_settings"

    def migrate(self) -> None:
        self.manage("migrate", "--run-syncdb")

    def query(self, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, params).fetchall()

    def fill_with(self, sql: str, **params: Any) -> None:
        self._connection.execute(sql, params)

    def empty(self, contender: Contender) -> None:
        self.run(f"TRUNCATE {', '.join(contender.tables)} CASCADE")

    def add(self, contender: Contender, first: int, last: int) -> None:
        self.fill_with(contender.fill, first=first, last=last)

    def prepare(self, contender: Contender, jobs: int) -> None:
        """Start again: so many jobs, and nothing done."""
        self.empty(contender)
        self.run(f"ALTER TABLE {contender.tables[0]} SET (fillfactor = {contender.fillfactor})")
        self.add(contender, 1, jobs)
        self.rest(contender.tables[:2])

    def size_of(self, table: str) -> float:
        """Return how large a table is, without its indexes, in MB."""
        return int(self.ask("SELECT pg_table_size(%s::regclass)", table)) / 1_000_000

    def rest(self, tables: Sequence[str]) -> None:
        """Leave no work behind that a cell would pay for."""
        self.run(f"VACUUM ANALYZE {', '.join(tables)}")
        self.run("CHECKPOINT")

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

    def statements(self) -> int:
        """Return how many statements of others are in the log."""
        log = self.ask("SELECT pg_read_file(pg_current_logfile())")
        mine = str(self.ask("SELECT pg_backend_pid()"))
        return sum(found.group(1) != mine for found in STATEMENT.finditer(log))


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
    table: Wear

    def cell(self, window: float, jobs: int) -> Cell:
        """Return the cell, over the window if that was over before the last job was done."""
        if self.in_window == jobs:
            return Cell(jobs, self.ended - self.began, self.cpu_seconds)
        return Cell(self.in_window, window, self.cpu_seconds * self.in_window / self.completed)


class Run(Session[Database]):
    """One call of the command."""

    order = ("drain", "claim", "tenths", "idle")
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

    def idle(self) -> str:
        """A worker with nothing to do: what it asks the database, and how soon it sees a new job."""
        rows = [
            "### A worker with nothing to do",
            "",
            "| | statements a minute | a new job runs after, ms: median [10th–90th of 100] | jobs |",
            "|-|-|-|-|",
        ]
        for contender in self.contenders:
            if contender.serve is None:
                continue
            statements, delays = self._idle(contender)
            low, *_, high = quantiles(delays, n=10)
            milliseconds = [f"{seconds * 1000:,.1f}" for seconds in (median(delays), low, high)]
            rows.append(
                f"| {contender.name} | {statements:,.0f} | {milliseconds[0]} [{milliseconds[1]}–{milliseconds[2]}] "
                f"| {len(delays)} |"
            )
        self.done = 1
        return "\n".join(rows)

    def _drain(self, contender: Contender, jobs: int, window: float) -> Drained:
        """Run one contender in a process of its own. Raise unless it did all that it was to do, and nothing else."""
        database = self.place(contender)
        database.prepare(contender, jobs)
        table = contender.tables[0]
        size, wal = database.size_of(table), database.ask("SELECT pg_current_wal_insert_lsn()")
        database.run("SELECT pg_stat_reset_single_table_counters(%s::regclass)", table)
        with witnessed(jobs) as (notes, variables):
            told = self._tell(database, "drain", contender, window, variables=variables)
            began = min(map(float, notes.read_text().split()))
        completed, in_window, ended = database.query(COMMITS.format(done=contender.done), end=began + window)[0]
        wrong, left = database.ask(contender.wrong), database.ask(contender.left)
        if wrong or completed + left != jobs or (left and not contender.windowed):
            raise AssertionError(f"{contender.name}: {completed} of {jobs} jobs done, {left} left, {wrong} wrong.")
        wear = Wear(
            database.ask(HOT, table), size, database.size_of(table), database.ask(WRITTEN, wal) / max(completed, 1)
        )
        return Drained(began, completed, in_window, ended, told["cpu"], wear)

    def _idle(self, contender: Contender) -> tuple[float, list[float]]:
        """Return the statements a minute of a worker that finds nothing, and how long each of some jobs waited."""
        self.database.prepare(contender, 0)
        with witnessed(0, every=True) as (notes, variables):
            process = self._start(self.database, "serve", contender, variables=variables)
            try:
                self._notice(contender, process, notes, 1)  # it has started
                time.sleep(3)
                with self.database.logging():
                    before, began = self.database.statements(), time.monotonic()
                    time.sleep(self.size.quiet)
                    statements = (self.database.statements() - before) / (time.monotonic() - began) * 60
                delays = []
                for number in range(2, self.size.inserts + 2):
                    # No rhythm: a worker that asks every second is not to be met at the same moment each time.
                    time.sleep(random.uniform(0.2, 0.7))
                    delays.append(self._notice(contender, process, notes, number))
            finally:
                end(process)
        return statements, delays

    def _notice(self, contender: Contender, process: subprocess.Popen[str], notes: Path, number: int) -> float:
        """Add the job with this number, and return how long it took from there to its handler."""
        began, deadline = time.time(), time.monotonic() + 30
        self.database.add(contender, number, number)
        while len(seen := notes.read_text().splitlines()) < number:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"A worker of {contender.name!r} does not see a new job. Its error is above.")
            time.sleep(0.002)
        return float(seen[number - 1]) - began

    def _tell(self, database: Database, what: str, contender: Contender, *arguments: object, **more: Any) -> Any:
        """Run a cell, and return what it tells."""
        process = self._start(database, what, contender, *arguments, **more)
        try:
            told, _ = process.communicate(timeout=CELL_SECONDS)
        finally:
            end(process)
        if process.returncode:
            raise SystemExit(f"A process of {contender.name!r} failed. Its error is above.")
        return json.loads(told.splitlines()[-1])

    def _start(
        self,
        database: Database,
        what: str,
        contender: Contender,
        *arguments: object,
        variables: dict[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / "drain_cell.py"), what, contender.name, *map(str, arguments)]
        surroundings = {**os.environ, **database.environment, **(variables or {})}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=surroundings, start_new_session=True)


def with_goals(goals: dict[str, list[Goal]], drained: Sequence[tuple[Contender, Line]]) -> list[Line]:
    return [Line(line.name, goals.get(contender.name, [Goal()]), line.cells) for contender, line in drained]


def end(process: subprocess.Popen[str]) -> None:
    """End a cell, and whatever it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@contextmanager
def witnessed(jobs: int, *, every: bool = False) -> Iterator[tuple[Path, dict[str, str]]]:
    """Give the handlers a file for their notes: yield it, and the variables that tell them of it."""
    with tempfile.TemporaryDirectory() as directory:
        notes = Path(directory) / "notes"
        notes.touch()
        variables = {"BENCHMARK_WITNESS": str(notes), "BENCHMARK_JOBS": str(jobs)}
        yield notes, {**variables, "BENCHMARK_WITNESS_EVERY": "yes" if every else "no"}


def start() -> Database:
    """Start a server that ends with this process, and create the tables."""
    postgres.OPTIONS.update(databases.OPTIONS | OPTIONS)
    database = Database(postgres.boot())
    database.migrate()
    os.environ |= {"BENCHMARK_DATABASE": database.url}
    drain_peers.install()
    return database


def main() -> None:
    options = Run.parser("Measure the worker against its peers.").parse_args()
    Run(start(), options).run()


if __name__ == "__main__":
    main()
