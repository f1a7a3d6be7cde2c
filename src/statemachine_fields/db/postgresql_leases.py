"""Leases on PostgreSQL: each a single statement, prepared, over any number of rows.

Rows are locked in key order, so that two statements cannot deadlock, and those that somebody else has locked are
skipped. Whatever ends a lease raises the token, so that nothing its holder sends later is heard, not even a heartbeat
that was on its way. `= ANY(ARRAY(...))` keeps the UPDATE on the primary key, where a join would read the whole of a small table.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.db.backends.postgresql.psycopg_any import is_psycopg3

from statemachine_fields.db import prepared
from statemachine_fields.db.dialect import Table
from statemachine_fields.db.leases import DIED, RECOVERED, Claimed, Left, Moving, Recovered, Settled, Tally, Wanted
from statemachine_fields.db.own import own_class
from statemachine_fields.db.postgresql import run
from statemachine_fields.db.postgresql_claims import (
    array_of,
    claim_text,
    due_text,
    due_values,
    names_of,
    read_claimed,
    read_rows,
)
from statemachine_fields.db.tallies import add_up_sql

if TYPE_CHECKING or is_psycopg3:
    import psycopg

#: How a driver calls a connection with no transaction open.
IDLE = 0

#: How long to wait for a server that is asked to cancel a statement.
CANCEL_SECONDS = 0.2

# What is said of each row has a place, and the answer names the places: a key would have to be read from what the
# server sends, as only its field can.
LOCKED = """
    said AS MATERIALIZED (SELECT * FROM unnest({arrays}) WITH ORDINALITY AS said ({said}, place)),
    locked AS MATERIALIZED (
        SELECT {key} AS key FROM {name} WHERE {key} = ANY(%s::{type}[]) ORDER BY {key} FOR NO KEY UPDATE SKIP LOCKED)"""

HOLDS = "t.{key} = ANY(ARRAY(SELECT key FROM locked)) AND said.key = t.{key} AND t.{lease_token} = said.token"

BEAT = """
    WITH {locked}
    UPDATE {name} AS t SET {lease_expires_at} = clock_timestamp() + make_interval(secs => %s)
      FROM said WHERE {holds}
    RETURNING said.place"""

HELD = """
    SELECT said.place FROM {name} AS t, unnest({arrays}) WITH ORDINALITY AS said ({said}, place)
     WHERE t.{key} = ANY(%s::{type}[]) AND said.key = t.{key} AND t.{lease_token} = said.token"""

RELEASE = """
    WITH {locked}
    UPDATE {name} AS t SET {lease_owner} = '', {lease_expires_at} = NULL, {lease_token} = t.{lease_token} + 1
      FROM said WHERE {holds}
    RETURNING said.place"""

# LEAST() leaves out what is NULL, so a row with neither a delay nor a horizon is parked.
SETTLE = """
    WITH {locked}
    UPDATE {name} AS t SET {lease_owner} = '', {lease_expires_at} = NULL, {crashes} = 0,
           {lease_token} = t.{lease_token} + 1, {failures} = said.failures, {error} = said.error,
           {next_at} = LEAST(clock_timestamp() + make_interval(secs => said.delay),
                             t.{changed_at} + make_interval(secs => said.horizon))
      FROM said WHERE {holds} AND t.{status} = said.was
    RETURNING said.place"""

MOVE = """
    WITH {locked},
    moved AS (
        UPDATE {name} AS t SET {status} = said.goes, {sequence} = t.{sequence} + 1, {changed_at} = clock_timestamp(),
               {next_at} = clock_timestamp() + make_interval(secs => said.delay), {lease_owner} = '',
               {lease_expires_at} = NULL, {lease_token} = t.{lease_token} + 1, {failures} = 0, {crashes} = 0, {error} = ''{updates}
          FROM said WHERE {holds} AND t.{status} = said.was
        RETURNING t.{key} AS key, t.{sequence} AS sequence, t.{changed_at} AS changed_at,
                  said.place, said.record, said.was, said.goes, said.metadata),
    recorded AS (
        INSERT INTO {audit} (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
        SELECT record, was, goes, metadata::jsonb, key, sequence, changed_at FROM moved)
    SELECT place FROM moved"""

LOCK = """
    SELECT 1 FROM {name} WHERE {key} = %s AND {lease_token} = %s FOR NO KEY UPDATE SKIP LOCKED"""

# Rows are claimed in the order in which they became due, so those that are held come before those that nobody has
# claimed yet, and a walk along the same index need not go further than where the held ones end: see recover().
RECOVER = """
    WITH walked AS MATERIALIZED (
        SELECT found.* FROM unnest(%s::text[]) AS wanted (state)
         CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place FROM (
                SELECT {key} AS key, {lease_expires_at} IS NOT NULL OR {crashes} > 0 AS is_taken, ({which}) AS is_wanted
                  FROM {name} WHERE {status} = wanted.state AND {next_at} <= statement_timestamp()
                 ORDER BY {next_at} LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT {key} AS key FROM {name}
         WHERE {key} = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND {lease_expires_at} IS NOT NULL AND ({which})
         ORDER BY {key} FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE {name} SET {lease_owner} = '', {lease_expires_at} = NULL, {lease_token} = {lease_token} + 1{blame}
         WHERE {key} = ANY(ARRAY(SELECT key FROM left_open)) RETURNING 1)
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked)"""

BLAME = ", {crashes} = {crashes} + 1, {error} = %s || {lease_owner} || %s"

#: How many rows of a state to look at first, and how many times as many if there are held ones among the last of them.
FIRST_WALK, LONGER_WALK, LONGEST_WALK = 16, 8, 1_000_000


# A pooler names a process to its clients that the server does not know, and hands what is set to others.
INTRODUCE = "SELECT CASE WHEN pg_backend_pid() = %s THEN set_config('application_name', %s, false) END"


class PostgreSQLLeases:
    """Any number of processes, side by side."""

    is_shared = True

    def claim(self, connection: Any, table: Table, wanted: Wanted) -> list[Claimed]:
        times, text = claim_text(table, wanted, connection)
        values = (*due_values(table, wanted, connection), wanted.owner, wanted.seconds)
        rows = run(connection, text, values, read_rows)
        return [read_claimed(table, wanted.fields, times, row, connection) for row in rows]

    def candidates(self, connection: Any, table: Table, wanted: Wanted) -> list[Any]:
        text = due_text(table, wanted, connection, lock="")
        # As the server has them: they go back as they came.
        return [row[0] for row in run(connection, text, due_values(table, wanted, connection))]

    def beat(
        self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int], seconds: float
    ) -> set[Any]:
        text = _text(table, BEAT, ("token bigint",), connection)
        prepared_keys = _keys(table, keys, connection)
        return _named(keys, run(connection, text, (prepared_keys, array_of(tokens), prepared_keys, seconds)))

    def held(self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        text = _text(table, HELD, ("token bigint",), connection)
        prepared_keys = _keys(table, keys, connection)
        return _named(keys, run(connection, text, (prepared_keys, array_of(tokens), prepared_keys)))

    def release(self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        text = _text(table, RELEASE, ("token bigint",), connection)
        prepared_keys = _keys(table, keys, connection)
        return _named(keys, run(connection, text, (prepared_keys, array_of(tokens), prepared_keys)))

    def settle(self, connection: Any, table: Table, settled: Sequence[Settled]) -> set[Any]:
        said = ("token bigint", "was text", "delay float8", "horizon float8", "failures int", "error text")
        text = _text(table, SETTLE, said, connection)
        keys = [each.key for each in settled]
        prepared_keys = _keys(table, keys, connection)
        arrays = (
            array_of([each.token for each in settled]),
            array_of([each.status for each in settled]),
            array_of([each.delay for each in settled]),
            array_of([each.horizon for each in settled]),
            array_of([each.failures for each in settled]),
            array_of([each.error for each in settled]),
        )
        return _named(keys, run(connection, text, (prepared_keys, *arrays, prepared_keys)))

    def move(
        self, connection: Any, table: Table, moving: Sequence[Moving], updates: Sequence[tuple[str, Any]]
    ) -> set[Any]:
        said = ("token bigint", "was text", "goes text", "delay float8", "record uuid", "metadata text")
        text = _text(table, MOVE, said, connection, tuple(column for column, _value in updates))
        keys = [each.key for each in moving]
        prepared_keys = _keys(table, keys, connection)
        arrays = (
            array_of([each.token for each in moving]),
            array_of([each.status for each in moving]),
            array_of([each.to_status for each in moving]),
            array_of([each.delay for each in moving]),
            array_of([each.record_id for each in moving]),
            array_of([each.metadata for each in moving]),
        )
        values = [value for _column, value in updates]
        return _named(keys, run(connection, text, (prepared_keys, *arrays, prepared_keys, *values)))

    def lock(self, connection: Any, table: Table, key: Any, token: int) -> bool:
        text = _text(table, LOCK, (), connection)
        key = prepared.key(table.key_field.get_db_prep_value(key, connection))
        return bool(run(connection, text, (key, token)))

    def recover(self, connection: Any, table: Table, states: Sequence[str], left: Left) -> Recovered:
        names = names_of(table, connection)
        which = "{lease_expires_at} <= statement_timestamp()"
        params: tuple[Any, ...] = ()
        if left.owner is not None:
            which, params = "{lease_owner} = %s", (left.owner,)
        if left.held:
            which, params = which + " AND {key} <> ALL(%s::{type}[])", (*params, _keys(table, left.held, connection))
        names["which"] = which.format(**names)
        names["blame"] = BLAME.format(**names) if left.is_crash else ""
        text, words = RECOVER.format(**names), RECOVERED if left.owner is None else DIED
        blame = words if left.is_crash else ()
        freed, walk = 0, FIRST_WALK
        while True:
            ((found, last),) = run(connection, text, ([*states], *params, walk, *params, *blame))
            freed += found
            if last <= walk // 2 or walk >= LONGEST_WALK:
                return Recovered(freed, last > 0)
            walk *= LONGER_WALK

    def is_statement_lost(self, error: BaseException) -> bool:
        return prepared.is_lost(error)

    def hang_up(self, connection: Any) -> None:
        if (driver := connection.connection) is not None:
            with suppress(Exception):  # it may be closed by now, or at this moment
                line = socket.socket(fileno=os.dup(driver.fileno()))
                threading.Thread(target=_hang_up, args=(driver, line), daemon=True).start()

    def is_clean(self, connection: Any) -> bool:
        driver = connection.connection
        return not driver.closed and driver.info.transaction_status == IDLE

    def introduce(self, connection: Any, name: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(INTRODUCE, (connection.connection.info.backend_pid, name))

    def is_broken(self, connection: Any) -> bool:
        driver = connection.connection
        return bool(getattr(driver, "broken", driver.closed == 2))  # psycopg 2 has a number for it

    def own_class(self, base: type[Any]) -> type[Any]:
        found: type[Any] = own_class(base)  # type: ignore[arg-type]  # a class is hashable
        return found

    def transaction_number(self, connection: Any) -> int | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT txid_current()")
            return int(cursor.fetchone()[0])

    def was_committed(self, connection: Any, number: int) -> bool | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT txid_status(%s)", (number,))
            status = cursor.fetchone()[0]  # NULL if it was too long ago
        return None if status == "in progress" else status != "aborted"

    def add_up(self, connection: Any, table: str, period: Any, tallies: Collection[Tally]) -> None:
        for text, params in add_up_sql(connection, table, period, tallies):
            with connection.cursor() as cursor:
                cursor.execute(text, params)


def _hang_up(driver: Any, line: socket.socket) -> None:
    """Cancel what the server does for a connection of another thread, which it would not leave before it is done, and
    end the connection. To cancel takes a connection of its own, and the server may be as silent on that."""
    cancelling = threading.Thread(target=_cancel, args=(driver,), daemon=True)
    cancelling.start()
    cancelling.join(CANCEL_SECONDS)
    with suppress(OSError), line:
        line.shutdown(socket.SHUT_RDWR)


def _cancel(driver: Any) -> None:
    with suppress(Exception):
        if not is_psycopg3:
            driver.cancel()
        elif psycopg.capabilities.has_cancel_safe():
            driver.cancel_safe(timeout=CANCEL_SECONDS)
        elif psycopg.pq.__impl__ == "python":
            driver.cancel()
        # Else it would keep the interpreter until the server answers, and nothing in the process could run.


_texts: dict[tuple[Any, ...], str] = {}


def _text(table: Table, template: str, said: tuple[str, ...], connection: Any, updates: tuple[str, ...] = ()) -> str:
    found = _texts.get((table, template, updates))
    if found is None:
        names = names_of(table, connection)
        columns = [("key", names["type"]), *[column.split() for column in said]]
        names["said"] = ", ".join(name for name, _type in columns)
        names["arrays"] = ", ".join(f"%s::{kind}[]" for _name, kind in columns)
        names["updates"] = "".join(f", {connection.ops.quote_name(column)} = %s" for column in updates)
        names["locked"] = LOCKED.format(**names)
        names["holds"] = HOLDS.format(**names)
        found = _texts[table, template, updates] = template.format(**names)
    return found


def _keys(table: Table, keys: Sequence[Any], connection: Any) -> Any:
    prepare = table.key_field.get_db_prep_value
    return array_of([prepare(key, connection) for key in keys])


def _named(keys: Sequence[Any], rows: Sequence[Sequence[Any]]) -> set[Any]:
    """Return the keys whose places an answer names."""
    return {keys[place - 1] for (place,) in rows}
