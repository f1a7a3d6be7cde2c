"""What a piece of work costs the server, and a table of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from report import spread


@dataclass
class Cost:
    """What some work cost the server that was done in steps of so many rows."""

    units: list[int]
    seconds: float
    client_seconds: float
    cpu_seconds: list[float]
    wal_bytes: int
    updates: int
    hot: int

    @property
    def rows(self) -> int:
        return sum(self.units)

    @property
    def cpu(self) -> float:
        """Microseconds a row, of the median step: some steps meet whatever else the machine has to do."""
        return median(used / units for used, units in zip(self.cpu_seconds, self.units, strict=True)) * 1_000_000

    @property
    def client_cpu(self) -> float:
        return self.client_seconds / self.rows * 1_000_000

    @property
    def wal(self) -> float:
        return self.wal_bytes / self.rows

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


class Meter:
    """Reads what one backend and the whole server have used, as nothing else is asked of them in the meantime."""

    def __init__(self, using: str, table: str, backend: int | None = None) -> None:
        """Read what the backend of Django's connection uses, or another one of the same server."""
        from django.db import connections

        self.connection = connections[using]
        self.connection.ensure_connection()
        self.table = table
        self._scheduled = Path(f"/proc/{backend or self.connection.connection.info.backend_pid}/schedstat")

    def measure(self, steps: Iterable[int]) -> Cost:
        """Take steps, each of which says how many rows it was."""
        units, used = [], []
        before, began, client, cpu = self._counters(), time.perf_counter(), time.process_time(), self._cpu()
        for step in steps:
            now = self._cpu()
            units.append(step)
            used.append(now - cpu)
            cpu = now
        seconds, client = time.perf_counter() - began, time.process_time() - client
        wal, updates, hot = (now - then for now, then in zip(self._counters(), before, strict=True))
        return Cost(units, seconds, client, used, wal, updates, hot)

    def _cpu(self) -> float:
        """Return the processor time of the backend, which other load on the machine does not change."""
        return int(self._scheduled.read_text().split()[0]) / 1_000_000_000

    def _counters(self) -> tuple[int, int, int]:
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            cursor.execute(
                "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, n_tup_upd, n_tup_hot_upd "
                "FROM pg_stat_user_tables WHERE relname = %s",
                [self.table],
            )
            found: tuple[int, int, int] = cursor.fetchone()
            return found


@dataclass
class Plan:
    """What the server did for a statement."""

    pages: int
    nodes: set[str]
    indexes: set[str]


def explain(connection: Any, work: Callable[[], Any], *, undo: bool = False) -> Plan:
    """Return how the last statement of some work is executed. It is executed once more for that.

    :param undo: undo the work before, as a transaction is open.
    """
    from django.db import transaction
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as captured:
        mark = transaction.savepoint(connection.alias) if undo else None
        work()
        if mark:
            transaction.savepoint_rollback(mark, connection.alias)
    statements = [each["sql"] for each in captured if "SAVEPOINT" not in each["sql"]]
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + statements[-1].replace("%", "%%"), ())
        (found,) = cursor.fetchone()
    root = (found if isinstance(found, list) else json.loads(found))[0]["Plan"]
    plan = Plan(root["Shared Hit Blocks"] + root["Shared Read Blocks"], set(), set())
    waiting = [root]
    while waiting:
        node = waiting.pop()
        plan.nodes.add(node["Node Type"])
        plan.indexes |= {node["Index Name"]} if "Index Name" in node else set()
        waiting += node.get("Plans", [])
    return plan


def proportions(
    title: str,
    names: dict[str, str],
    lines: dict[str, dict[str, list[float]]],
    form: str,
    pages: dict[str, dict[str, int]] | None = None,
) -> str:
    """Return a table of the first contender's medians, and of the others in proportion to it, repetition by repetition."""
    first, *others = names
    rows = [heading(title, names[first], *(f"{names[other]}, in proportion" for other in others))]
    for name, values in lines.items():
        cells = [format(median(values[first]), form)]
        for other in others:
            ratios = [mine / base for mine, base in zip(values[other], values[first], strict=True)]
            cells.append(spread(ratios, ".2f"))
        if pages is not None:
            cells = [f"{cell}; {pages[name][contender]:,}" for cell, contender in zip(cells, names, strict=True)]
        rows.append(line(name, *cells))
    return "\n".join(rows)


def heading(*cells: str) -> str:
    return f"{line(*cells)}\n{'|-' * len(cells)}|"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
