"""Measure what a claim costs the server where rows say their queue and priority themselves, beside the claim of a plain machine.

    python benchmarks/queues.py [--rows 1000000] [--queues 20] [--levels 50] [--claims 100] [--batch 100] [--held 4000]

A table of each kind has the same rows: two of three are due later, one of three is due. Server CPU is that of the backend, by the system;
pages are those that EXPLAIN (ANALYZE, BUFFERS) counts of one claim, which is undone. Writes `results-queues.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "testproject")]
os.environ.update(DJANGO_SETTINGS_MODULE="tests.settings", SMF_DB="postgresql")

import django  # noqa: E402

django.setup()

from django.db import connection, transaction  # noqa: E402
from django.test.utils import setup_databases, teardown_databases  # noqa: E402

from lab.models import ByWorker, Dispatch  # noqa: E402
from statemachine_fields.db.postgresql_claims import claim_text, due_values  # noqa: E402
from statemachine_fields.worker.claim import Claimer  # noqa: E402
from statemachine_fields.worker.lease import Lane, lanes_of  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")

FILL = """
    INSERT INTO {table} (status, status_next_at{columns})
    SELECT '{state}', now() + CASE WHEN {due} THEN -1 ELSE 1 END * make_interval(secs => 10 + n / 10.0){values}
      FROM generate_series(1, {rows}) AS n"""

END = "UPDATE {table} SET status = 'GONE', status_next_at = NULL, status_lease_expires_at = NULL WHERE id = ANY(%s)"

#: Claims that are not counted: they have the statement prepared, planned, and planned for good.
WARM_UP = 8


def run(text: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchall() if cursor.description else []


def fill(model: Any, state: str, rows: int, due: str, **values: str) -> None:
    """Have rows in a table that all are in one state."""
    table, needed = model._meta.db_table, {}
    for field in model._meta.concrete_fields:  # what has no default in the database
        if not field.primary_key and not field.null and not field.has_db_default() and field.column != "status":
            needed[field.column] = {"JSONField": "'[]'", "CharField": "''"}.get(field.get_internal_type(), "0")
    values = {**needed, **values}
    names, terms = "".join(f", {name}" for name in values), "".join(f", {term}" for term in values.values())
    run(f"TRUNCATE {table} CASCADE")
    run(FILL.format(table=table, columns=names, values=terms, state=state, due=due, rows=rows))
    run(f"VACUUM ANALYZE {table}")


def server_seconds() -> float:
    """Return the CPU that the backend of this connection has used."""
    ((pid,),) = run("SELECT pg_backend_pid()")
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def pages_of(lane: Lane, limit: int) -> int:
    """Return how many pages one claim touches."""
    claimer = Claimer("benchmark", 600)
    wanted = claimer.wanted(lane, limit)
    if lane.levels is not None:
        lane.levels.learn(connection)
        wanted = replace(wanted, ranks=lane.levels.ranks, members=lane.levels._named)
    text = claim_text(lane.bound.table, wanted, connection)[1]
    values = (*due_values(lane.bound.table, wanted, connection), "benchmark", 600.0)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", values)
        found = cursor.fetchone()[0]
        transaction.set_rollback(True)
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def measured(lane: Lane, claims: int, batch: int, held: int) -> tuple[float, int, int]:
    """Return the server's milliseconds for a claim, its pages, and how many rows it takes, while others are held."""
    claimer, got, began = Claimer("benchmark", 600), [], 0.0
    for _ in range(held // batch):
        Claimer("others", 600).claim(lane, batch)
    with closing(connection.copy()) as other:  # what ends the tries is not counted
        for number in range(WARM_UP + claims):
            if number == WARM_UP:
                began = server_seconds()
            keys = [lease.key for lease in claimer.claim(lane, batch)]
            got.append(len(keys))
            with other.cursor() as cursor:
                cursor.execute(END.format(table=lane.bound.table.name), (keys,))
    spent = server_seconds() - began
    return spent / claims * 1000, pages_of(lane, batch), int(median(got))


def written(rows: int, own: dict[str, str]) -> tuple[float, float]:
    """Return the server's microseconds for an INSERT of a row and for its move, in statements of many."""
    began = server_seconds()
    for _ in range(5):
        fill(Dispatch, "NEW", rows, "true", **own)
    inserted = server_seconds() - began
    began = server_seconds()
    Dispatch.states.bulk_transition(Dispatch.objects.all(), "PACKED", batch_size=1000)
    return inserted / rows / 5 * 1e6, (server_seconds() - began) / rows * 1e6


def without_indexes(model: Any) -> None:
    """Drop the indexes that the fields of the rows have added."""
    table = model.states._meta.table
    for index in model._meta.indexes:
        if {table.queue.name, table.priority.name} & {name.lstrip("-") for name in index.fields}:
            run(f"DROP INDEX {index.name}")


def versions() -> str:
    ((server,),) = run("SHOW server_version")
    driver = connection.Database.__version__
    return f"Python {platform.python_version()}, Django {django.__version__}, psycopg {driver}, PostgreSQL {server.split()[0]}, {os.cpu_count()} cores."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {
        "rows": 1_000_000,
        "queues": 20,
        "levels": 50,
        "claims": 100,
        "batch": 100,
        "held": 4000,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    own = {"queue": f"'q' || n % {options.queues}", "priority": f"n / {options.queues} % {options.levels}"}
    third, lowest, none = "n / 1000 % 3 = 0", f"n / {options.queues} % {options.levels} = 0", "false"
    names = [f"q{number}" for number in range(options.queues)]

    def lane(model: Any, queues: list[str] | None = None) -> Callable[[], Lane]:
        return lambda: lanes_of([model.states._meta], queues)[0]

    cells = [
        ("one of three due", "plain", ByWorker, third, lane(ByWorker), 0),
        ("one of three due", "all queues", Dispatch, third, lane(Dispatch), 0),
        ("one of three due", "one queue", Dispatch, third, lane(Dispatch, names[:1]), 0),
        ("one of three due", "three queues", Dispatch, third, lane(Dispatch, names[:3]), 0),
        ("one of three due", "all queues, due in the lowest level only", Dispatch, lowest, lane(Dispatch), 0),
        (f"one of three due, {options.held:,} held", "plain", ByWorker, third, lane(ByWorker), options.held),
        (f"one of three due, {options.held:,} held", "all queues", Dispatch, third, lane(Dispatch), options.held),
        (
            f"one of three due, {options.held:,} held",
            "three queues",
            Dispatch,
            third,
            lane(Dispatch, names[:3]),
            options.held,
        ),
        ("nothing due", "plain", ByWorker, none, lane(ByWorker), 0),
        ("nothing due", "all queues", Dispatch, none, lane(Dispatch), 0),
    ]
    databases = setup_databases(verbosity=0, interactive=False, aliases=["default"])
    lines = [
        "# Results",
        "",
        "Written by `python benchmarks/queues.py`; how to read them is in the [README](README.md).",
        "",
    ]

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    try:
        say(
            f"{versions()} {options.rows:,} rows, {options.queues} queues, {options.levels} priorities, {options.batch} rows a claim.\n"
        )
        say("## Claims\n\n| due | claim | rows taken | server CPU, ms | × plain | goal | pages |\n|-|-|-|-|-|-|-|")
        plain = 0.0
        for due, title, model, which, make, held in cells:
            fill(model, model.states._meta.graph.initial, options.rows, which, **(own if model is Dispatch else {}))
            milliseconds, pages, got = measured(make(), options.claims, options.batch, held)
            plain = milliseconds if model is ByWorker else plain
            ratio = f"{milliseconds / plain:.1f} | ≤ 2.0" if plain and model is Dispatch else " | "
            say(f"| {due} | {title} | {got} | {milliseconds:.2f} | {ratio} | {pages} |")
        say("\n## Writes\n\n| indexes | INSERT, µs of server CPU a row | move, µs |\n|-|-|-|")
        for title, prepare in (("with both", lambda: None), ("without them", lambda: without_indexes(Dispatch))):
            prepare()
            insert, move = written(20_000, own)
            say(f"| {title} | {insert:.1f} | {move:.1f} |")
        (HERE / "results-queues.md").write_text("\n".join([*lines, ""]))
    finally:
        connection.close()
        teardown_databases(databases, verbosity=0)


if __name__ == "__main__":
    main()
