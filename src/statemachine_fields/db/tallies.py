"""Counts that several writers add to, in SQL that PostgreSQL and SQLite share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

# What other workers have counted is added to, never read first: nothing is lost however many write at once.
ADD_UP = """
    INSERT INTO {table} (period, machine, state, kind, count, seconds) VALUES {rows}
    ON CONFLICT (period, machine, state, kind) DO UPDATE
       SET count = {table}.count + EXCLUDED.count, seconds = {table}.seconds + EXCLUDED.seconds"""

#: How many rows a statement takes. SQLite may allow no more than 999 parameters.
AT_ONCE = 150


class Tally(NamedTuple):
    """How often something happened and how long it took, to be added to what other workers have counted."""

    machine: str
    state: str
    kind: str
    number: int
    seconds: float = 0.0


def add_up(connection: Any, table: str, period: Any, tallies: Collection[Tally]) -> None:
    """Add tallies to those of the same period, each machine, state and kind once. One statement if they are not very many.

    Rows are in one order for all workers, so that two cannot deadlock.
    """
    when = connection.ops.adapt_datetimefield_value(period)
    rows = [(when, *tally) for tally in sorted(tallies)]
    for first in range(0, len(rows), AT_ONCE):
        some = rows[first : first + AT_ONCE]
        text = ADD_UP.format(
            table=connection.ops.quote_name(table), rows=", ".join(["(%s, %s, %s, %s, %s, %s)"] * len(some))
        )
        with connection.cursor() as cursor:
            cursor.execute(text, tuple(value for row in some for value in row))
