"""Measure what a claim costs the server where rows say their queue and priority themselves, beside the claim of a plain machine.

    python benchmarks/queues.py [--repetitions 9] [--rows 1000000] [--queues 20] [--levels 50] [--claims 15] [--held 4000]

What is measured, and how to read the result, is in README.md. Writes `results-queues.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "testproject")]
os.environ.update(DJANGO_SETTINGS_MODULE="tests.settings", SMF_DB="postgresql")

import database as databases  # noqa: E402
import dbos_peer  # noqa: E402
import procrastinate  # noqa: E402
from report import environment, load_average, spread, write  # noqa: E402
from session import rotated, say  # noqa: E402

from tests import database_url, postgres  # noqa: E402

# Vacuum would meet somebody's cell.
postgres.OPTIONS.update(databases.OPTIONS | {"autovacuum": "off"})

import django  # noqa: E402

django.setup()

from django.db import connection, transaction  # noqa: E402
from django.test.utils import setup_databases, teardown_databases  # noqa: E402

from lab.models import ByOtherWorker, ByWorker, Dispatch  # noqa: E402
from statemachine_fields.db.postgresql_claims import claim_text, claim_values  # noqa: E402
from statemachine_fields.worker.claim import Claimer  # noqa: E402
from statemachine_fields.worker.lease import Lane, lanes_of  # noqa: E402

MODELS = (ByWorker, ByOtherWorker, Dispatch)

#: At most so many times the server CPU of the plain claim.
GOAL = 2.0
#: Of tables with room for a second version of each row.
FILLFACTOR = 45
#: Claims that are not counted: they have the statement prepared, planned, and planned for good.
WARM_UP = 8
#: A cell is ended after so many seconds of the server's CPU.
LONGEST_CELL = 0.5

FILL = """
    INSERT INTO {table} ({columns})
    SELECT {values} FROM generate_series(1, {rows}) AS n"""
# What is not due is not until tomorrow, or some of it would be before the run is over.
DUE_AT = "now() - make_interval(secs => 10 + {place} / 10.0) + CASE WHEN {due} THEN 0 ELSE 3 END * interval '1 day'"
END = "UPDATE {table} SET status = 'GONE', status_next_at = NULL, status_lease_expires_at = NULL WHERE id = ANY(%s)"
FETCH = "SELECT id FROM procrastinate_fetch_job_v2(%s::varchar[], %s)"


def run(text: str, values: Sequence[Any] | None = None) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(text, values)
        return cursor.fetchall() if cursor.description else []


def server_seconds(backend: int | None = None) -> float:
    """Return the processor time of a backend, by default Django's. Other load on the machine changes it little."""
    pid = backend or connection.connection.info.backend_pid
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1_000_000_000


def fill(table: str, rows: int, values: dict[str, str]) -> None:
    """Have so many rows in a table, and indexes without holes."""
    indexes = run(
        "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index LEFT JOIN pg_constraint ON conindid = indexrelid"
        f" WHERE indrelid = '{table}'::regclass AND pg_constraint.oid IS NULL"
    )
    run(f"TRUNCATE {table} CASCADE")
    for name, _definition in indexes:
        run(f"DROP INDEX {name}")
    run("SET session_replication_role = replica")
    run(FILL.format(table=table, columns=", ".join(values), values=", ".join(values.values()), rows=rows))
    run("SET session_replication_role = origin")
    for _name, definition in indexes:
        run(definition)
    run(f"VACUUM ANALYZE {table}")


def fill_model(model: Any, rows: int, due: str, place: str = "n", **own: str) -> None:
    values = {"status": f"'{model.states._meta.graph.initial}'", "status_next_at": DUE_AT.format(due=due, place=place)}
    for each in model._meta.concrete_fields:  # what has no default in the database
        if not each.primary_key and not each.null and not each.has_db_default() and each.column != "status":
            values.setdefault(each.column, {"JSONField": "'[]'", "CharField": "''"}.get(each.get_internal_type(), "0"))
    fill(model._meta.db_table, rows, values | own)


def settle() -> None:
    """Leave nothing behind for the next scene to pass by."""
    for model in MODELS:
        run(f"VACUUM ANALYZE {model._meta.db_table}")


def end_held() -> None:
    for model in MODELS:
        table = model._meta.db_table
        keys = [key for (key,) in run(f"SELECT id FROM {table} WHERE status_lease_expires_at IS NOT NULL")]
        run(END.format(table=table), (keys,))
    settle()


@dataclass
class Contender:
    """Somebody who claims rows, again and again."""

    title: str
    batch: int = 100
    #: Whether it is to keep to the goal.
    has_goal: bool = True
    #: Milliseconds of the server for a claim, in each repetition.
    cells: list[float] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    is_warm: bool = False
    #: The process of the server that serves it, if it is not that of Django's connection.
    backend: int | None = None

    def cell(self, claims: int, other: Any) -> None:
        """Claim, and end what was claimed on another connection, which is not counted."""
        used: list[float] = []
        for number in range(claims if self.is_warm else WARM_UP + claims):
            began = server_seconds(self.backend)
            keys = self.claim()
            spent = server_seconds(self.backend) - began
            self.end(keys, other)
            self.taken.add(len(keys))
            if self.is_warm or number >= WARM_UP or spent > LONGEST_CELL / 4:
                used.append(spent)
            if sum(used) > LONGEST_CELL:
                break
        self.is_warm = True
        self.cells.append(sum(used) / len(used) * 1000)

    def claim(self) -> list[Any]:
        raise NotImplementedError

    def end(self, keys: list[Any], other: Any) -> None:
        raise NotImplementedError

    def pages(self) -> str:
        return ""


class Ours(Contender):
    def __init__(self, title: str, model: Any, queues: list[str] | None = None, **options: Any) -> None:
        super().__init__(title, **options)
        self.lane: Lane = lanes_of([model.states._meta], queues)[0]
        self.claimer = Claimer("benchmark", 600)

    def claim(self) -> list[Any]:
        return [lease.key for lease in self.claimer.claim(self.lane, self.batch)]

    def end(self, keys: list[Any], other: Any) -> None:
        with other.cursor() as cursor:
            cursor.execute(END.format(table=self.lane.bound.table.name), (keys,))

    def hold(self, rows: int) -> None:
        """Have others hold the rows that come first."""
        for _ in range(rows // 100):
            Claimer("others", 600).claim(self.lane, 100)

    def pages(self) -> str:
        """Return how many pages one claim touches, which is undone."""
        table, wanted = self.lane.bound.table, self.claimer.wanted(self.lane, self.batch)
        if (levels := self.lane.levels) is not None:
            levels.learn(connection)
            if not levels.ranks:
                return ""
            wanted = replace(wanted, ranks=levels.ranks, members=levels._named)
        values = claim_values(table, wanted, connection)
        with transaction.atomic():
            text = claim_text(table, wanted, connection)[1]
            ((found,),) = run(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", values)
            transaction.set_rollback(True)
        plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
        return f"{plan['Shared Hit Blocks'] + plan['Shared Read Blocks']:,}"


class Procrastinate(Contender):
    """Its statement to fetch a job, of which it takes one at a time."""

    def __init__(self, title: str, queues: list[str] | None = None) -> None:
        super().__init__(title, batch=1, has_goal=False)
        self.queues = queues

    @staticmethod
    def install() -> None:
        # Percent signs in its text are no parameters.
        run((Path(procrastinate.__file__).parent / "sql" / "schema.sql").read_text())
        run("INSERT INTO procrastinate_workers DEFAULT VALUES")

    @staticmethod
    def fill(rows: int, due: str, queue: str, priority: str) -> None:
        at = DUE_AT.format(due=due, place="n")
        values = {"queue_name": queue, "task_name": "'task'", "priority": priority, "status": "'todo'"}
        fill("procrastinate_jobs", rows, values | {"scheduled_at": at, "args": "'{}'"})

    def claim(self) -> list[Any]:
        return [key for (key,) in run(FETCH, (self.queues, 1)) if key is not None]

    def end(self, keys: list[Any], other: Any) -> None:
        with other.cursor() as cursor:
            cursor.execute("UPDATE procrastinate_jobs SET status = 'succeeded' WHERE id = ANY(%s)", (keys,))


class Dbos(Contender):
    """What its worker calls to take workflows of one queue. A lower number is more urgent, and what is not due yet has a status of its own."""

    client: Any = None

    def __init__(self, title: str, queue: str) -> None:
        super().__init__(title, has_goal=False, backend=dbos_peer.backend())
        self.queue = self.client.register_queue(queue, worker_concurrency=self.batch, on_conflict="always_update")

    @classmethod
    def install(cls) -> None:
        os.environ["BENCHMARK_DATABASE"] = database_url.build(connection.settings_dict)
        dbos_peer.install()
        cls.client = dbos_peer.client()

    @staticmethod
    def fill(rows: int, due: str, queue: str, priority: str) -> None:
        values = {
            "workflow_uuid": "gen_random_uuid()::text",
            "status": f"CASE WHEN {due} THEN 'ENQUEUED' ELSE 'DELAYED' END",
            "delay_until_epoch_ms": f"CASE WHEN {due} THEN NULL ELSE extract(epoch FROM now() + interval '3 days') * 1000 END",
            "name": "'order'",
            "queue_name": queue,
            "priority": f"1000 - {priority}",
            "created_at": "extract(epoch FROM now()) * 1000 - n * 100",
            "application_name": f"'{dbos_peer.APPLICATION}'",
            "serialization": "'py_pickle'",
            "creator_xid": "gen_random_uuid()::text",
        }
        fill(dbos_peer.TABLES[0], rows, values)

    def claim(self) -> list[Any]:
        found: list[Any] = self.client._sys_db.start_queued_workflows(self.queue, "benchmark", dbos_peer.VERSION, None)[
            0
        ]
        return found

    def end(self, keys: list[Any], other: Any) -> None:
        with other.cursor() as cursor:
            cursor.execute("UPDATE dbos.workflow_status SET status = 'SUCCESS' WHERE workflow_uuid = ANY(%s)", (keys,))


class Run:
    """All scenes, one after the other; in each all contenders in turn, again and again."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.own = {"queue": f"'q' || n % {options.queues}", "priority": f"n / {options.queues} % {options.levels}"}
        self.names = [f"q{number}" for number in range(options.queues)]

    def scenes(self) -> Iterator[tuple[str, list[Contender]]]:
        """Yield what is due, by a title, and those who claim; when the next is asked for, the last is over."""
        rows, own, names = self.options.rows, self.own, self.names
        third, held = "n / 1000 % 3 = 0", f"{self.options.held:,} of them held"
        lowest, none = f"{own['priority']} = 0", "false"
        # The same rows, in an order of time that is not that of the table: 7919 is prime.
        fill_model(ByOtherWorker, rows, third, place=f"(n::bigint * 7919 % {rows})")
        fill_model(ByWorker, rows, third)
        fill_model(Dispatch, rows, third, **own)
        Procrastinate.fill(rows, third, **own)
        Dbos.fill(rows, third, **own)
        plain = lambda: [Ours("plain", ByWorker), Ours("plain, spread over the table", ByOtherWorker, has_goal=False)]  # noqa: E731
        three = names[1:4]
        yield (
            "one of three is due",
            [
                *plain(),
                Ours("all queues", Dispatch),
                Ours("one queue", Dispatch, names[:1]),
                Ours("three queues", Dispatch, three),
                Ours("plain, one row a claim", ByWorker, batch=1, has_goal=False),
                Ours("all queues, one row a claim", Dispatch, batch=1, has_goal=False),
                Procrastinate("procrastinate, all queues, one row a claim"),
                Procrastinate("procrastinate, three queues, one row a claim", three),
                Dbos("DBOS, one queue", names[0]),
            ],
        )
        settle()
        found = [*plain(), Ours("three queues", Dispatch, three)]
        for each in found:
            each.hold(self.options.held)
        yield f"one of three is due, {held}", found
        end_held()
        found = [*plain(), Ours("all queues", Dispatch)]
        for each in found:
            each.hold(self.options.held)
        yield f"one of three is due, {held}; all queues", found
        fill_model(Dispatch, rows, lowest, **own)
        Procrastinate.fill(rows, lowest, **own)
        end_held()
        yield (
            "the lowest priority alone is due; of the plain one, one of three",
            [
                Ours("plain", ByWorker),
                Ours("all queues", Dispatch),
                Procrastinate("procrastinate, all queues, one row a claim"),
            ],
        )
        for model in (ByWorker, Dispatch):
            run(f"ALTER TABLE {model._meta.db_table} SET (fillfactor = {FILLFACTOR})")
        fill_model(ByWorker, rows, third)
        fill_model(Dispatch, rows, lowest, **own)
        yield (
            f"the same, and pages are filled to {FILLFACTOR} %",
            [Ours("plain", ByWorker), Ours("all queues", Dispatch)],
        )
        for model in (ByWorker, Dispatch):
            run(f"ALTER TABLE {model._meta.db_table} RESET (fillfactor)")
        fill_model(ByWorker, rows, none)
        run("UPDATE lab_dispatch SET status = 'GONE', status_next_at = NULL WHERE status_next_at <= now()")
        run("UPDATE procrastinate_jobs SET status = 'succeeded' WHERE scheduled_at <= now()")
        run("UPDATE dbos.workflow_status SET status = 'SUCCESS' WHERE status = 'ENQUEUED'")
        run("VACUUM ANALYZE lab_dispatch, procrastinate_jobs, dbos.workflow_status")
        yield (
            "nothing is due",
            [
                Ours("plain", ByWorker, has_goal=False),
                Ours("all queues", Dispatch, has_goal=False),
                Ours("three queues", Dispatch, three, has_goal=False),
                Procrastinate("procrastinate, all queues"),
                Dbos("DBOS, one queue", names[0]),
            ],
        )

    def claims(self) -> str:
        parts = []
        for title, contenders in self.scenes():
            with closing(connection.copy()) as other:
                for repetition in range(self.options.repetitions):
                    for position in rotated(contenders, repetition):
                        contenders[position].cell(self.options.claims, other)
            say(f"  {title}: done, load average {load_average()}")
            parts.append(self.table(title, contenders))
        return "\n\n".join(parts)

    def table(self, title: str, contenders: list[Contender]) -> str:
        plain = contenders[0].cells
        lines = [
            f"### {title[0].upper()}{title[1:]}",
            "",
            "| | rows taken | server CPU of a claim, ms | × plain | goal | | pages |",
            "|-|-|-|-|-|-|-|",
        ]
        for each in contenders:
            ratios = [mine / base for mine, base in zip(each.cells, plain, strict=True)]
            ratio, goal, verdict = ("" if each is contenders[0] else spread(ratios, ".2f")), "", ""
            if each.has_goal and each is not contenders[0]:
                goal, verdict = f"≤ {GOAL:g}", "met" if median(ratios) <= GOAL else "**missed**"
            line = (
                each.title,
                ", ".join(map(str, sorted(each.taken))),
                spread(each.cells, ".3f"),
                ratio,
                goal,
                verdict,
                each.pages(),
            )
            lines.append(f"| {' | '.join(line)} |")
        return "\n".join(lines)

    def writes(self, rows: int = 20_000) -> str:
        """Return what the two indexes cost who inserts and moves rows."""
        lines = [
            "| indexes | INSERT, µs of server CPU a row | move, µs |",
            "|-|-|-|",
        ]
        for title, prepare in (("with both", lambda: None), ("without them", lambda: without_indexes(Dispatch))):
            prepare()
            inserted, moved = [], []
            for _ in range(self.options.repetitions):
                run("TRUNCATE lab_dispatch CASCADE")
                values = {"status": "'NEW'", "status_next_at": "now()", "steps": "'[]'", **self.own}
                names, terms = ", ".join(values), ", ".join(values.values())
                text = FILL.format(table="lab_dispatch", columns=names, values=terms, rows=rows)
                inserted.append(cost(lambda text=text: run(text)) / rows * 1e6)
                run("VACUUM ANALYZE lab_dispatch")
                every = Dispatch.objects.all()
                moved.append(
                    cost(lambda every=every: Dispatch.states.bulk_transition(every, "PACKED", batch_size=1000))
                    / rows
                    * 1e6
                )
            lines.append(f"| {title} | {spread(inserted, '.1f')} | {spread(moved, '.1f')} |")
        return "\n".join(lines)


def cost(work: Callable[[], Any]) -> float:
    began = server_seconds()
    work()
    return server_seconds() - began


def without_indexes(model: Any) -> None:
    """Drop the indexes that the fields of the rows have added."""
    table = model.states._meta.table
    for index in model._meta.indexes:
        if {table.queue.name, table.priority.name} & {name.lstrip("-") for name in index.fields}:
            run(f"DROP INDEX {index.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    defaults = {"repetitions": 9, "rows": 1_000_000, "queues": 20, "levels": 50, "claims": 15, "held": 4000}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    began, before = time.monotonic(), load_average()
    made = setup_databases(verbosity=0, interactive=False, aliases=["default"])
    try:
        Procrastinate.install()
        Dbos.install()
        ((version,),) = run("SHOW server_version")
        measured = Run(options)
        text = (
            f"{environment(version, ('Django', 'psycopg', 'procrastinate', 'dbos'))} {options.rows:,} rows, {options.queues} queues, "
            f"{options.levels} priorities; {options.repetitions} repetitions of {options.claims} claims. "
        )
        sections = {"claims": measured.claims(), "writes": measured.writes()}
        took = f"Load average {before} before and {load_average()} after; {time.monotonic() - began:.0f} seconds."
        sections["claims"] = f"{text}{took}\n\n{sections['claims']}"
        write(HERE / "results-queues.md", sections, ("claims", "writes"), "queues.py")
        say("\n\n".join(sections.values()))
    finally:
        if Dbos.client is not None:
            Dbos.client.destroy()
        connection.close()
        teardown_databases(made, verbosity=0)


if __name__ == "__main__":
    main()
