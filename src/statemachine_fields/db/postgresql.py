"""Moves on PostgreSQL: one statement, prepared, on Django's own connection."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import zoneinfo
from collections.abc import Callable, Sequence
from typing import Any

from django.db import DatabaseError

from statemachine_fields.db import prepared
from statemachine_fields.db.dialect import BulkMove, BulkMoved, Move, Moved, Row, Shape, Table, sqlstate
from statemachine_fields.db.durations import Stay, Window, ask_percentiles

logger = logging.getLogger("statemachine_fields.db")

#: serialization_failure, deadlock_detected, lock_not_available
CONFLICTS = ("40001", "40P01", "55P03")

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)

# One statement moves the row, counts the move and records it, or does nothing where the comparison misses. After a wait
# for the row's lock PostgreSQL compares again with the row as it then is, which no sub-select would: hence the counter
# on the row. clock_timestamp() is read after that wait; statement_timestamp() would date the move before the one it
# waited for. The time goes back as a number, because Django's loader for timestamptz is slow Python. Every result is cast:
# a prepared statement is lost if the type of a result changes, and with it the transaction that it is in. A migration may
# alter a column while we run.
MOVE = """
    WITH moved AS (
        UPDATE {name} SET {changes} WHERE {where}
        RETURNING {key} AS key, {sequence} AS sequence, {changed_at} AS changed_at{kept})
    INSERT INTO {audit} (id, from_status, to_status, metadata{extra_names}, instance_id, sequence, transitioned_at)
    {source}
    RETURNING sequence::bigint, (extract(epoch FROM transitioned_at) * 1000000)::bigint{returned}"""

SOURCE = "SELECT %s::uuid, %s, %s, %s::jsonb, key, sequence, changed_at FROM moved"

# Columns that a user added have types we do not know, and a cast to `varchar(5)` would cut a longer text off in silence.
# The empty first half gives the parameters of the second the types of the table.
SOURCE_WITH_EXTRAS = """SELECT id, from_status, to_status, metadata{extra_names}, instance_id, sequence, transitioned_at
      FROM {audit} WHERE false
     UNION ALL SELECT %s, %s, %s, %s{extra_values}, key, sequence, changed_at FROM moved"""

MOVE_ONLY = """
    UPDATE {name} SET {changes} WHERE {where}
    RETURNING {sequence}::bigint, (extract(epoch FROM {changed_at}) * 1000000)::bigint{returned_alone}"""

# A move ends whatever lease there was, and raises the token, so that nothing its holder still says is heard.
LEAVE_THE_LEASE = """, {next_at} = clock_timestamp() + make_interval(secs => %s), {lease_owner} = '',
    {lease_expires_at} = NULL, {lease_token} = {lease_token} + 1, {failures} = 0, {crashes} = 0, {error} = ''"""

# A batch in one statement. The rows are locked first, in key order, so that two batches cannot deadlock, and judged by
# what they hold then. ANY(ARRAY(...)) keeps the UPDATE on the primary key where a join would read the whole table. Ids
# share their first 96 bits and count up in the rest, which is a third of the cost of making each from random bits. What
# comes back are rows and not one text or array, so that keys of every type arrive as Django reads them: those that were
# refused, and the last one.
BULK_MOVE = """
    WITH found (key, was) AS MATERIALIZED ({select} FOR NO KEY UPDATE),
    moved AS (
        UPDATE {name} SET {changes} WHERE {key} = ANY(ARRAY(SELECT key FROM found WHERE was = ANY(%s)))
        RETURNING {key} AS key, {sequence} AS sequence, {changed_at} AS changed_at),
    recorded AS (
        INSERT INTO {audit} (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
        SELECT (%s || lpad(to_hex((%s + row_number() OVER (ORDER BY key))::bigint), 8, '0'))::uuid,
               was, %s, %s::jsonb, key, sequence, changed_at
          FROM moved JOIN found USING (key))
    SELECT key, was, (SELECT count(*) FROM found), (SELECT count(*) FROM moved)
      FROM found WHERE was <> ALL(%s) OR key = (SELECT key FROM found ORDER BY key DESC LIMIT 1) ORDER BY key"""

# NO KEY lets foreign-key checks of other transactions pass beside us.
LOCK = "SELECT {status}::text, {sequence}::bigint{token} FROM {name} WHERE {key} = %s FOR NO KEY UPDATE"


class PostgreSQL:
    """A single statement for each move, in or out of a transaction, with no savepoint."""

    is_one_statement = True
    default_is_utc = True

    def __init__(self) -> None:
        self._texts: dict[Shape, str] = {}

    def move(self, connection: Any, shape: Shape, move: Move) -> Moved | None:
        text = self._texts.get(shape)
        if text is None:
            text = self._texts[shape] = _move_text(shape, connection.ops.quote_name)
        status = (move.to_status,) if shape.moves else ()
        key = prepared.key(shape.table.key_field.get_db_prep_value(move.key, connection))
        delay = (move.delay,) if shape.table.clock else ()
        compared = (key, move.from_status, *move.compared)
        record = (move.record_id, move.from_status, move.to_status, move.metadata, *move.extras)
        params = (*status, *move.updates, *delay, *compared, *(record if shape.records else ()))
        row = next(iter(run(connection, text, params)), None)
        if row is None:
            return None
        sequence, changed_at, *clock = row
        if not clock:
            return Moved(sequence, as_django_reads(changed_at, connection))
        next_at = None if clock[0] is None else as_django_reads(clock[0], connection)
        return Moved(sequence, as_django_reads(changed_at, connection), next_at, clock[1])

    def bulk_move(self, connection: Any, shape: Shape, move: BulkMove, select: str, params: Sequence[Any]) -> BulkMoved:
        names = _names(shape, connection.ops.quote_name)
        text = BULK_MOVE.format(**names, select=select)
        start = move.first_id.int & 0x7FFFFFFF  # low enough never to overflow the 32 bits it counts in
        delay = (move.delay,) if shape.table.clock else ()
        values = (*params, move.to_status, *move.updates, *delay, move.sources, move.first_id.hex[:24], start)
        with connection.cursor() as cursor:
            cursor.execute(text, (*values, move.to_status, move.metadata, move.sources))
            rows = cursor.fetchall()
        if not rows:
            return BulkMoved(0, 0, None, [])
        last, _was, seen, moved = rows[-1]
        return BulkMoved(seen, moved, last, [(key, was) for key, was, *_counts in rows if was not in move.sources])

    def lock(self, connection: Any, table: Table, key: Any) -> Row | None:
        quote = connection.ops.quote_name
        names = {name: quote(getattr(table, name)) for name in ("name", "key", "status", "sequence")}
        names["token"] = f", {quote(table.clock.lease_token)}::bigint" if table.clock else ""
        key = prepared.key(table.key_field.get_db_prep_value(key, connection))
        rows = run(connection, LOCK.format(**names), (key,))
        return Row(*rows[0]) if rows else None

    def is_conflict(self, error: Exception) -> bool:
        return sqlstate(error) in CONFLICTS

    def durations(self, connection: Any, table: Table, window: Window) -> list[Stay]:
        return ask_percentiles(connection, table, window)


def run(
    connection: Any, text: str, params: tuple[Any, ...], read: Callable[[Any], list[Any]] = prepared.all_rows
) -> list[Any]:
    """Run a statement and return its rows. A prepared statement that the server has lost is sent again, plainly.

    :param read: gets the rows from the cursor.
    """
    if prepared.is_wanted(connection):
        try:
            return prepared.fetch_all(connection, text, params, read)
        except DatabaseError as error:
            if not prepared.is_lost(error):
                raise
            prepared.give_up(connection)
            logger.warning(
                "Database %r lost a prepared statement, as behind a transaction pooler or after a table was altered. "
                "Nothing ran, and this connection prepares no more. If it happens again and again, set "
                "STATEMACHINE_FIELDS['PREPARE'] to False.",
                connection.alias,
            )
            if connection.in_atomic_block:
                raise
    with connection.cursor() as cursor:
        cursor.execute(text, params)
        return read(cursor)


def as_django_reads(microseconds: int, connection: Any) -> datetime.datetime:
    """Return a time as the connection would: aware, or without USE_TZ naive and local."""
    time = EPOCH + microseconds * MICROSECOND
    if connection.timezone is not None:
        return time
    return time.astimezone(zoneinfo.ZoneInfo(connection.timezone_name)).replace(tzinfo=None)


def _names(shape: Shape, quote: Any) -> dict[str, str]:
    """Return what the texts name, and what the row's UPDATE sets."""
    table = shape.table
    names = {name: quote(getattr(table, name)) for name in ("name", "key", "status", "sequence", "changed_at", "audit")}
    changes = [f"{quote(column)} = %s" for column in ([table.status] if shape.moves else []) + [*shape.updates]]
    changes += ["{sequence} = {sequence} + 1".format(**names), "{changed_at} = clock_timestamp()".format(**names)]
    names["changes"] = ", ".join(changes)
    names["kept"] = names["returned"] = names["returned_alone"] = ""
    if table.clock:
        # Its parameter comes after the updates: everything that is set without one stands behind it.
        clock = {name: quote(column) for name, column in dataclasses.asdict(table.clock).items()}
        names["changes"] += LEAVE_THE_LEASE.format(**clock)
        due = f"(extract(epoch FROM {clock['next_at']}) * 1000000)::bigint"
        names["kept"] = f", {due} AS next_at, {clock['lease_token']}::bigint AS token"
        names["returned"] = ", (SELECT next_at FROM moved), (SELECT token FROM moved)"
        names["returned_alone"] = f", {due}, {clock['lease_token']}::bigint"
    names["extra_names"] = "".join(f", {quote(column)}" for column in shape.extras)
    names["extra_values"] = ", %s" * len(shape.extras)
    return names


def _move_text(shape: Shape, quote: Any) -> str:
    names = _names(shape, quote)
    names["where"] = "{key} = %s AND {status} = %s".format(**names)
    for column in shape.compares:
        names["where"] += f" AND {quote(column)} = %s"
    if not shape.records:
        return MOVE_ONLY.format(**names)
    source = (SOURCE_WITH_EXTRAS if shape.extras else SOURCE).format(**names)
    return MOVE.format(**names, source=source)
