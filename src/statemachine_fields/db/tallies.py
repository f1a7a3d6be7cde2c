"""Counts that several writers add to, in SQL that PostgreSQL and SQLite share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

# What other workers have counted is added to, never read first: nothing is lost however many write at once.
ADD_UP = """
    INSERT INTO {table} (machine, state, period, {columns}) VALUES (%s, %s, %s, {places})
    ON CONFLICT (machine, state, period) DO UPDATE SET {sums}"""


@dataclass(slots=True)
class Tally:
    """How much of what happened, to be added to what other workers have counted."""

    machine: str
    state: str
    counts: dict[str, float] = field(default_factory=dict)


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
