"""Claims on PostgreSQL: which rows are due, in SQL, and how they are read, whatever is wrong with one of them."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from statemachine_fields.db import prepared
from statemachine_fields.db.dialect import Table
from statemachine_fields.db.leases import Claimed, Wanted
from statemachine_fields.db.postgresql import as_django_reads

#: Types whose text is the same in an array.
PLAIN = (int, float, uuid.UUID)

# One LATERAL scan for each state keeps each walk on the (status, next_at) index: with next_at alone, a state that queues
# behind 200,000 rows of another would take as long as it takes to pass those. NO KEY lets foreign-key checks pass beside
# us. What a worker left behind, or may have died of, is passed by: see SUSPECTS. CASE mostly keeps the planner from guessing that
# such rows are few, as it does of a table that was not analyzed, and from reading all that are due in order to sort them.
DUE = """
        SELECT found.key FROM unnest(%s::text[], %s::int[]) AS wanted (state, priority)
         CROSS JOIN LATERAL (
            SELECT {key} AS key, {next_at} AS next_at FROM {name}
             WHERE {status} = wanted.state AND {next_at} <= statement_timestamp()
               AND CASE WHEN {lease_expires_at} IS NULL THEN {crashes} = 0 ELSE false END{which}
             ORDER BY {next_at} LIMIT %s{lock}) AS found
         ORDER BY wanted.priority DESC, found.next_at LIMIT %s"""

# Those that fewer workers died of come first. An index has rows with crashes alone, so that to find none costs nothing,
# however many rows are due.
SUSPECTS = """
        SELECT {key} AS key FROM {name}
         WHERE {status} = ANY(%s) AND {next_at} <= statement_timestamp()
           AND {lease_expires_at} IS NULL AND {crashes} {how_often}{which}
         ORDER BY {crashes}, {next_at} LIMIT %s{lock}"""

CLAIM = """
    WITH due AS MATERIALIZED ({due})
    UPDATE {name} SET {lease_token} = {lease_token} + 1, {lease_owner} = %s,
           {lease_expires_at} = clock_timestamp() + make_interval(secs => %s)
     WHERE {key} = ANY(ARRAY(SELECT key FROM due))
    RETURNING (extract(epoch FROM statement_timestamp()) - extract(epoch FROM {changed_at}))::float8{columns}"""

LOCKS = " FOR NO KEY UPDATE SKIP LOCKED"

#: Rows by how often a worker died of them, or vanished: never, once, more often.
HOW_OFTEN = {1: "= 1", 2: "> 1"}

_claims: dict[tuple[Any, ...], tuple[tuple[int, ...], str]] = {}


def claim_text(table: Table, wanted: Wanted, connection: Any) -> tuple[tuple[int, ...], str]:
    """Return the claim of a machine, and which of its columns are times, read as numbers: Django's loader is slow, and
    knows neither the infinite nor years before Christ."""
    kind = (table, wanted.fields, wanted.crashes, wanted.keys is None, not wanted.aside)
    found = _claims.get(kind)
    if found is not None:
        return found
    assert table.clock is not None  # noqa: S101 - only timed machines are claimed
    quote = connection.ops.quote_name
    slow = (table.changed_at, table.clock.next_at, table.clock.lease_expires_at)
    columns = [
        "CASE WHEN isfinite({0}) THEN (extract(epoch FROM {0}) * 1000000)::bigint END".format(quote(field.column))
        if field.column in slow
        else quote(field.column)
        for field in wanted.fields
    ]
    times = tuple(place for place, field in enumerate(wanted.fields) if field.column in slow)
    text = CLAIM.format(
        **names_of(table, connection),
        due=due_text(table, wanted, connection, LOCKS),
        columns="".join(f", {column}" for column in columns),
    )
    _claims[kind] = times, text
    return times, text


def due_text(table: Table, wanted: Wanted, connection: Any, lock: str) -> str:
    """Return the rows that a claim is about, as SQL."""
    names = names_of(table, connection)
    which = ""
    if wanted.keys is not None:
        which = " AND {key} = ANY(%s::{type}[])".format(**names)
    elif wanted.aside:
        which = " AND {key} <> ALL(%s::{type}[])".format(**names)
    text, how_often = (SUSPECTS, HOW_OFTEN[wanted.crashes]) if wanted.crashes else (DUE, "")
    return text.format(**names, which=which, lock=lock, how_often=how_often)


def due_values(table: Table, wanted: Wanted, connection: Any) -> tuple[Any, ...]:
    keys = wanted.aside if wanted.keys is None else wanted.keys
    which = (array_of([*keys]),) if keys or wanted.keys is not None else ()
    if wanted.crashes:
        return ([*wanted.states], *which, wanted.limit)
    return ([*wanted.states], [*wanted.priorities], *which, wanted.limit, wanted.limit)


def read_claimed(table: Table, fields: tuple[Any, ...], times: tuple[int, ...], row: Any, connection: Any) -> Claimed:
    """Return a row that is leased by now, whatever is wrong with it."""
    error: Exception | None = None
    if isinstance(row, Unread):
        error, row = row.error, _read_texts(table, fields, times, row.texts)
    age, *values = row
    for place in times:
        time = values[place]
        if time is None:  # none of these is empty in a row that was claimed
            error = error or ValueError(f"{fields[place].column} is infinite.")
            continue
        try:
            values[place] = as_django_reads(time, connection)
        except (OverflowError, ValueError) as problem:  # of a year that Python does not know
            values[place], error = None, problem
    return Claimed(age, tuple(values), error)


class Unread(NamedTuple):
    """A row that the driver cannot read, such as one with a time after the year 9999, and what the server sent."""

    error: Exception
    texts: list[bytes | None]


def read_rows(cursor: Any) -> list[Any]:
    """Return all rows. They are leased by now, so that one that cannot be read must not take the others along."""
    try:
        return prepared.all_rows(cursor)
    except Exception:
        result = getattr(cursor, "pgresult", None)
        if result is None:  # psycopg 2, which does not show it
            raise
        return [_read_row(cursor, result, place) for place in range(result.ntuples)]


def _read_row(cursor: Any, result: Any, place: int) -> Any:
    cursor.scroll(place, mode="absolute")
    try:
        return cursor.fetchone()
    except Exception as error:  # noqa: BLE001 - of whatever kind
        return Unread(error, [result.get_value(place, column) for column in range(result.nfields)])


def _read_texts(table: Table, fields: tuple[Any, ...], times: tuple[int, ...], texts: list[bytes | None]) -> list[Any]:
    """Return the key and the machine's columns of an unread row, and nothing for the others."""
    assert table.clock is not None  # noqa: S101 - only timed machines are claimed
    clock = dataclasses.asdict(table.clock).values()
    ours = {table.key, table.status, table.sequence, table.changed_at, *clock}
    age, *values = [None if text is None else text.decode() for text in texts]
    row: list[Any] = [float(age or 0)]
    for place, (field, text) in enumerate(zip(fields, values, strict=True)):
        if text is None or field.column not in ours:
            row.append(None)
        else:
            row.append(int(text) if place in times else field.to_python(text))
    return row


def names_of(table: Table, connection: Any) -> dict[str, str]:
    quote = connection.ops.quote_name
    names = {name: quote(getattr(table, name)) for name in ("name", "key", "status", "sequence", "changed_at", "audit")}
    assert table.clock is not None  # noqa: S101 - only timed machines come here
    names.update({name: quote(column) for name, column in dataclasses.asdict(table.clock).items()})
    # Without its length, to which a cast would cut in silence.
    names["type"] = str(table.key_field.rel_db_type(connection)).split("(", maxsplit=1)[0]
    return names


def array_of(values: Sequence[Any]) -> Any:
    """Return values as an array, written out: psycopg's way costs ten times as much Python, which the handlers need."""
    texts: dict[Any, str] = {}
    for value in set(values):
        if value is None:
            texts[value] = "NULL"
        elif isinstance(value, str):
            texts[value] = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        elif isinstance(value, PLAIN):
            texts[value] = str(value)
        else:  # a key of a type we know nothing of
            return [*values]
    return "{" + ",".join([texts[value] for value in values]) + "}"
