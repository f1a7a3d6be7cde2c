"""Counts that several writers add to, in SQL that PostgreSQL and SQLite share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from statemachine_fields.db.leases import Tally

# What other workers have counted is added to, never read first: nothing is lost however many write at once.
ADD_UP = """
    INSERT INTO {table} (machine, state, period, {columns}) VALUES (%s, %s, %s, {places})
    ON CONFLICT (machine, state, period) DO UPDATE SET {sums}"""


def add_up_sql(
    connection: Any, table: str, period: Any, tallies: Collection[Tally]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield a statement for each tally, in one order for all workers so that two cannot deadlock."""
    quote = connection.ops.quote_name
    for tally in sorted(tallies, key=lambda tally: (tally.machine, tally.state)):
        columns = [quote(column) for column in tally.counts]
        text = ADD_UP.format(
            table=quote(table),
            columns=", ".join(columns),
            places=", ".join(["%s"] * len(columns)),
            sums=", ".join(f"{column} = {quote(table)}.{column} + EXCLUDED.{column}" for column in columns),
        )
        when = connection.ops.adapt_datetimefield_value(period)
        yield text, (tally.machine, tally.state, when, *tally.counts.values())
