"""Leases on PostgreSQL: each a single statement, prepared, over any number of rows.

Rows are locked in key order, so that two statements cannot deadlock, and those that somebody else has locked are
skipped. Whatever ends a lease raises the token, so that nothing its holder sends later is heard, not even a heartbeat
that was on its way. `= ANY(ARRAY(...))` keeps the UPDATE on the primary key, where a join would read the whole of a small table.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from statemachine_fields.db import prepared
from statemachine_fields.db.dialect import Table
from statemachine_fields.db.leases import DIED, RECOVERED, Claimed, Moving, Settled, Tally, Wanted
from statemachine_fields.db.postgresql import as_django_reads, run
from statemachine_fields.db.tallies import add_up_sql

#: Types whose text is the same in an array.
PLAIN = (int, float, uuid.UUID)

# One LATERAL scan for each state keeps each walk on the (status, next_at) index: with next_at alone, a state that queues
# behind 200,000 rows of another would take as long as it takes to pass those. NO KEY lets foreign-key checks pass beside
# us. A lease that is still open when the row is claimed was left by a worker that said nothing: that is a crash, and puts
# the row behind the others that were left, which may have died of it.
CLAIM = """
    WITH due AS MATERIALIZED (
        SELECT found.key FROM unnest(%s::text[], %s::int[]) AS wanted (state, priority)
         CROSS JOIN LATERAL (
            SELECT {key} AS key, {next_at} AS next_at FROM {name}
             WHERE {status} = wanted.state AND {next_at} <= statement_timestamp()
               AND ({lease_expires_at} IS NULL OR {lease_expires_at} <= statement_timestamp())
               AND ({lease_expires_at} IS NULL AND {crashes} = 0) <> %s
             ORDER BY {next_at} LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found
         ORDER BY wanted.priority DESC, found.next_at LIMIT %s)
    UPDATE {name} SET {lease_token} = {lease_token} + 1, {lease_owner} = %s,
           {lease_expires_at} = clock_timestamp() + make_interval(secs => %s),
           {crashes} = {crashes} + CASE WHEN {lease_expires_at} IS NULL THEN 0 ELSE 1 END,
           {next_at} = CASE WHEN {lease_expires_at} IS NULL THEN {next_at} ELSE statement_timestamp() END,
           {error} = CASE WHEN {lease_expires_at} IS NULL THEN {error} ELSE %s || {lease_owner} || %s END
     WHERE {key} = ANY(ARRAY(SELECT key FROM due))
    RETURNING extract(epoch FROM statement_timestamp() - {changed_at})::float8{columns}"""

LOCKED = """
    said AS MATERIALIZED (SELECT * FROM unnest({arrays}) AS said ({said})),
    locked AS MATERIALIZED (
        SELECT {key} AS key FROM {name} WHERE {key} = ANY(%s::{type}[]) ORDER BY {key} FOR NO KEY UPDATE SKIP LOCKED)"""

HOLDS = "t.{key} = ANY(ARRAY(SELECT key FROM locked)) AND said.key = t.{key} AND t.{lease_token} = said.token"

BEAT = """
    WITH {locked}
    UPDATE {name} AS t SET {lease_expires_at} = clock_timestamp() + make_interval(secs => %s)
      FROM said WHERE {holds}
    RETURNING t.{key}"""

HELD = """
    SELECT t.{key} FROM {name} AS t, unnest({arrays}) AS said ({said})
     WHERE t.{key} = ANY(%s::{type}[]) AND said.key = t.{key} AND t.{lease_token} = said.token"""

RELEASE = """
    WITH {locked}
    UPDATE {name} AS t SET {lease_owner} = '', {lease_expires_at} = NULL, {lease_token} = t.{lease_token} + 1
      FROM said WHERE {holds}
    RETURNING t.{key}"""

# LEAST() leaves out what is NULL, so a row with neither a delay nor a horizon is parked.
SETTLE = """
    WITH {locked}
    UPDATE {name} AS t SET {lease_owner} = '', {lease_expires_at} = NULL, {crashes} = 0,
           {lease_token} = t.{lease_token} + 1, {failures} = said.failures, {error} = said.error,
           {next_at} = LEAST(clock_timestamp() + make_interval(secs => said.delay),
                             t.{changed_at} + make_interval(secs => said.horizon))
      FROM said WHERE {holds} AND t.{status} = said.was
    RETURNING t.{key}"""

MOVE = """
    WITH {locked},
    moved AS (
        UPDATE {name} AS t SET {status} = said.goes, {sequence} = t.{sequence} + 1, {changed_at} = clock_timestamp(),
               {next_at} = clock_timestamp() + make_interval(secs => said.delay), {lease_owner} = '',
               {lease_expires_at} = NULL, {lease_token} = t.{lease_token} + 1, {failures} = 0, {crashes} = 0, {error} = ''{updates}
          FROM said WHERE {holds} AND t.{status} = said.was
        RETURNING t.{key} AS key, t.{sequence} AS sequence, t.{changed_at} AS changed_at,
                  said.record, said.was, said.goes, said.metadata),
    recorded AS (
        INSERT INTO {audit} (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
        SELECT record, was, goes, metadata::jsonb, key, sequence, changed_at FROM moved)
    SELECT key FROM moved"""

LOCK = """
    SELECT 1 FROM {name} WHERE {key} = %s AND {lease_token} = %s FOR NO KEY UPDATE SKIP LOCKED"""

RECOVER = """
    WITH left_open AS MATERIALIZED (
        SELECT {key} AS key FROM {name}
         WHERE {status} = ANY(%s) AND {next_at} <= statement_timestamp() AND {lease_owner} = %s
           AND {lease_expires_at} IS NOT NULL ORDER BY {key} FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE {name} SET {error} = %s || {lease_owner} || %s, {lease_owner} = '', {lease_expires_at} = NULL,
           {lease_token} = {lease_token} + 1, {crashes} = {crashes} + 1, {next_at} = statement_timestamp()
     WHERE {key} = ANY(ARRAY(SELECT key FROM left_open))
    RETURNING 1"""


class PostgreSQLLeases:
    """Any number of processes, side by side."""

    is_shared = True

    def claim(self, connection: Any, table: Table, wanted: Wanted) -> list[Claimed]:
        times, text = _claim_text(table, wanted.fields, connection)
        rows = run(
            connection,
            text,
            (
                [*wanted.states],
                [*wanted.priorities],
                wanted.suspects,
                wanted.limit,
                wanted.limit,
                wanted.owner,
                wanted.seconds,
                *RECOVERED,
            ),
            _read_rows,
        )
        read = as_django_reads
        claimed = []
        for row in rows:
            unread = isinstance(row, Unread)
            age, *values = _read_texts(table, wanted.fields, times, row.texts) if unread else row
            for place in times:
                if (time := values[place]) is not None:
                    values[place] = read(time, connection)
            claimed.append(Claimed(age, tuple(values), row.error if unread else None))
        return claimed

    def beat(
        self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int], seconds: float
    ) -> set[Any]:
        text = _text(table, BEAT, ("token bigint",), connection)
        prepared_keys = _keys(table, keys, connection)
        return _keys_read(table, run(connection, text, (prepared_keys, _array(tokens), prepared_keys, seconds)))

    def held(self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        text = _text(table, HELD, ("token bigint",), connection)
        prepared_keys = _keys(table, keys, connection)
        return _keys_read(table, run(connection, text, (prepared_keys, _array(tokens), prepared_keys)))

    def release(self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        text = _text(table, RELEASE, ("token bigint",), connection)
        prepared_keys = _keys(table, keys, connection)
        return _keys_read(table, run(connection, text, (prepared_keys, _array(tokens), prepared_keys)))

    def settle(self, connection: Any, table: Table, settled: Sequence[Settled]) -> set[Any]:
        said = ("token bigint", "was text", "delay float8", "horizon float8", "failures int", "error text")
        text = _text(table, SETTLE, said, connection)
        keys = _keys(table, [each.key for each in settled], connection)
        arrays = (
            _array([each.token for each in settled]),
            _array([each.status for each in settled]),
            _array([each.delay for each in settled]),
            _array([each.horizon for each in settled]),
            _array([each.failures for each in settled]),
            _array([each.error for each in settled]),
        )
        return _keys_read(table, run(connection, text, (keys, *arrays, keys)))

    def move(
        self, connection: Any, table: Table, moving: Sequence[Moving], updates: Sequence[tuple[str, Any]]
    ) -> set[Any]:
        said = ("token bigint", "was text", "goes text", "delay float8", "record uuid", "metadata text")
        text = _text(table, MOVE, said, connection, tuple(column for column, _value in updates))
        keys = _keys(table, [each.key for each in moving], connection)
        arrays = (
            _array([each.token for each in moving]),
            _array([each.status for each in moving]),
            _array([each.to_status for each in moving]),
            _array([each.delay for each in moving]),
            _array([each.record_id for each in moving]),
            _array([each.metadata for each in moving]),
        )
        values = [value for _column, value in updates]
        return _keys_read(table, run(connection, text, (keys, *arrays, keys, *values)))

    def lock(self, connection: Any, table: Table, key: Any, token: int) -> bool:
        text = _text(table, LOCK, (), connection)
        key = prepared.key(table.key_field.get_db_prep_value(key, connection))
        return bool(run(connection, text, (key, token)))

    def recover(self, connection: Any, table: Table, states: Sequence[str], owner: str) -> int:
        return len(run(connection, _text(table, RECOVER, (), connection), ([*states], owner, *DIED)))

    def is_statement_lost(self, error: Exception) -> bool:
        return prepared.is_lost(error)

    def hang_up(self, connection: Any) -> None:
        # In a thread of its own, because to cancel takes a connection, and the database may be away.
        threading.Thread(target=_hang_up, args=(connection.connection,), daemon=True).start()

    def introduce(self, connection: Any, name: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('application_name', %s, false)", (name,))

    def add_up(self, connection: Any, table: str, period: Any, tallies: Collection[Tally]) -> None:
        for text, params in add_up_sql(connection, table, period, tallies):
            with connection.cursor() as cursor:
                cursor.execute(text, params)


class Unread(NamedTuple):
    """A row that the driver cannot read, such as one with a time after the year 9999, and what the server sent."""

    error: Exception
    texts: list[bytes | None]


def _read_rows(cursor: Any) -> list[Any]:
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


def _hang_up(driver: Any) -> None:
    """Cancel what the server does for a connection of another thread, which it would not leave before it is done, and
    end the connection."""
    with suppress(Exception):
        driver.cancel()
    with suppress(Exception), socket.socket(fileno=os.dup(driver.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


_claims: dict[tuple[Any, ...], tuple[tuple[int, ...], str]] = {}
_texts: dict[tuple[Any, ...], str] = {}


def _claim_text(table: Table, fields: tuple[Any, ...], connection: Any) -> tuple[tuple[int, ...], str]:
    """Return the claim of a machine, and which of its columns are times, read as numbers: Django's loader is slow."""
    found = _claims.get((table, fields))
    if found is not None:
        return found
    assert table.clock is not None  # noqa: S101 - only timed machines are claimed
    quote = connection.ops.quote_name
    slow = (table.changed_at, table.clock.next_at, table.clock.lease_expires_at)
    columns = [
        f"(extract(epoch FROM {quote(field.column)}) * 1000000)::bigint"
        if field.column in slow
        else quote(field.column)
        for field in fields
    ]
    times = tuple(place for place, field in enumerate(fields) if field.column in slow)
    text = CLAIM.format(**_names(table, connection), columns="".join(f", {column}" for column in columns))
    _claims[table, fields] = times, text
    return times, text


def _text(table: Table, template: str, said: tuple[str, ...], connection: Any, updates: tuple[str, ...] = ()) -> str:
    found = _texts.get((table, template, updates))
    if found is None:
        names = _names(table, connection)
        columns = [("key", names["type"]), *[column.split() for column in said]]
        names["said"] = ", ".join(name for name, _type in columns)
        names["arrays"] = ", ".join(f"%s::{kind}[]" for _name, kind in columns)
        names["updates"] = "".join(f", {connection.ops.quote_name(column)} = %s" for column in updates)
        names["locked"] = LOCKED.format(**names)
        names["holds"] = HOLDS.format(**names)
        found = _texts[table, template, updates] = template.format(**names)
    return found


def _names(table: Table, connection: Any) -> dict[str, str]:
    quote = connection.ops.quote_name
    names = {name: quote(getattr(table, name)) for name in ("name", "key", "status", "sequence", "changed_at", "audit")}
    assert table.clock is not None  # noqa: S101 - only timed machines come here
    names.update({name: quote(column) for name, column in dataclasses.asdict(table.clock).items()})
    # Without its length, to which a cast would cut in silence.
    names["type"] = str(table.key_field.rel_db_type(connection)).split("(", maxsplit=1)[0]
    return names


def _keys(table: Table, keys: Sequence[Any], connection: Any) -> Any:
    prepare = table.key_field.get_db_prep_value
    return _array([prepare(key, connection) for key in keys])


def _array(values: Sequence[Any]) -> Any:
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


def _keys_read(table: Table, rows: Sequence[Sequence[Any]]) -> set[Any]:
    read = table.key_field.to_python
    return {read(row[0]) for row in rows}
