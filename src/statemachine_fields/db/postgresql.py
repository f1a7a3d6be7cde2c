"""Writes on PostgreSQL: a single statement each, prepared, on Django's own connection."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from statemachine_fields.db import prepared, tries
from statemachine_fields.db.claims import Claimed
from statemachine_fields.db.clock import EPOCH
from statemachine_fields.db.columns import Table
from statemachine_fields.db.dialect import (
    FieldValues,
    LockedRow,
    RowWriteKind,
    SelectedWrite,
    SelectedWritten,
    Written,
    sqlstate,
)
from statemachine_fields.db.durations import Stay, Window, ask_percentiles
from statemachine_fields.db.effects import Effect
from statemachine_fields.db.postgresql_claims import (
    PostgreSQLClaims,
    Reading,
    read_leased,
    read_rows,
    without_place,
)
from statemachine_fields.db.postgresql_events import PostgreSQLEvents
from statemachine_fields.db.postgresql_sessions import PostgreSQLSessions
from statemachine_fields.db.postgresql_text import TERMS, TYPES, array_type, names_of
from statemachine_fields.db.postgresql_wakeups import PostgreSQLWakeups
from statemachine_fields.db.riders import Rider

#: serialization_failure, deadlock_detected, lock_not_available
CONFLICTS = ("40001", "40P01", "55P03")

# One statement moves the row, counts the move and records it, or does nothing where the comparison misses. After a wait
# for the row's lock PostgreSQL compares again with the row as it then is, which no sub-select would: hence the counter
# on the row. clock_timestamp() is read after that wait; statement_timestamp() would date the move before the one it
# waited for. The time goes back as a number, because Django's loader for timestamptz is slow Python. Every result is cast:
# a prepared statement is lost if the type of a result changes, and with it the transaction that it is in. A migration may
# alter a column while we run.
RECORDED = """
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

UNRECORDED = """
    UPDATE {name} SET {changes} WHERE {where}
    RETURNING {sequence}::bigint, (extract(epoch FROM {changed_at}) * 1000000)::bigint{returned}"""

# Many rows, each compared with what is said of it. They are locked first, in key order, so that two statements cannot
# deadlock, and those that somebody else has locked are skipped. `= ANY(ARRAY(...))` keeps the UPDATE on the primary key,
# where a join would read the whole of a small table; of keys in a parameter the planner counts how many there are, and would find a plan
# of its own for each number better than one for all. What is given for each row has a place, and the answer names the places: a key would have to be read from what the server
# sends, as only its field can.
GIVEN = """
    given AS MATERIALIZED (SELECT * FROM unnest({arrays}) WITH ORDINALITY AS given ({given}, place)),
    locked AS MATERIALIZED (
        SELECT {key} AS key{held} FROM {name} WHERE {key} = ANY(ARRAY(SELECT key FROM given)) ORDER BY {key}
           FOR NO KEY UPDATE SKIP LOCKED)"""

MANY = """
    WITH {locking}
    UPDATE {name} AS t SET {changes} FROM given WHERE {where}
    RETURNING given.place{read}"""

# With the tries that the rows had, of those that stay where they are.
MANY_TRIED = """
    WITH {locking},
    written AS (UPDATE {name} AS t SET {changes} FROM given WHERE {where} RETURNING given.place{kept}){tried}
    SELECT place{read} FROM written"""

MANY_RECORDED = """
    WITH {locking},
    moved AS (
        UPDATE {name} AS t SET {changes} FROM given WHERE {where}
        RETURNING t.{key} AS key, t.{sequence} AS sequence, t.{changed_at} AS changed_at,
                  given.place, given.record, given.was_status, given.status, given.metadata{kept}),
    recorded AS (
        INSERT INTO {audit} (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
        SELECT record, was_status, status, metadata::jsonb, key, sequence, changed_at FROM moved){tried}{riders}
    SELECT place{read} FROM moved"""

# Of a row that was to sleep and is due at once.
UNSEEN = "coalesce(t.{inbox} > given.seen, false)"

# How long the row is in its state, if it does not enter it in this statement.
AGE = "(extract(epoch FROM statement_timestamp()) - extract(epoch FROM t.{changed_at}))::float8"
NO_AGE = "0::float8"

HELD = """
    SELECT given.place FROM {name} AS t, unnest({arrays}) WITH ORDINALITY AS given ({given}, place)
     WHERE t.{key} = ANY(%s::{type}[]) AND given.key = t.{key} AND t.{lease_token} = given.was_lease_token"""

# A batch of whatever a query finds. The rows are locked first, in key order, and judged by what they hold then. Ids share
# their first 96 bits and count up in the rest, which is a third of the cost of making each from random bits. What comes back
# are rows and not one text or array, so that keys of every type arrive as Django reads them: those that were refused, and
# the last one.
SELECTED = """
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
LOCK_HELD = "SELECT 1 FROM {name} WHERE {key} = %s AND {lease_token} = %s FOR NO KEY UPDATE SKIP LOCKED"

# As a number, and so in UTC: without USE_TZ the driver would read local time, in which an hour comes twice a year, and to
# which no seconds can be added.
CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


class PostgreSQL(PostgreSQLClaims, PostgreSQLEvents, PostgreSQLSessions, PostgreSQLWakeups):
    """A single statement for each write, in or out of a transaction, with no savepoint. Any number of processes."""

    is_one_statement = True
    is_shared = True
    default_is_utc = True

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[tuple[Any, ...], str] = {}
        #: Those that read what they have written, after how they do.
        self._reading: dict[tuple[Any, ...], tuple[Reading, str]] = {}

    def read_clock(self, connection: Any) -> datetime.datetime:
        with connection.cursor() as cursor:
            cursor.execute(CLOCK)
            (microseconds,) = cursor.fetchone()
        return EPOCH + datetime.timedelta(microseconds=microseconds)

    def row_write(self, connection: Any, kind: RowWriteKind) -> RowWrite:
        table, effect, compares, records, updates, extras = kind
        names = table.quoted(connection)
        quote = connection.ops.quote_name
        names["changes"] = effect.as_sql(names, TERMS, also=map(quote, updates))
        names["where"] = " AND ".join([f"{names[column]} = %s" for column in ("key", *compares)])
        names["kept"] = names["returned"] = ""
        if table.is_timed:
            due, token = "(extract(epoch FROM {next_at}) * 1000000)::bigint", "{lease_token}::bigint"
            kept, returned = f", {due} AS next_at, {token} AS token", f", {due}, {token}"
            names["kept"] = kept.format(**names)
            names["returned"] = returned.format(**names)
        if not records:
            return RowWrite(table, UNRECORDED.format(**names))
        if table.is_timed:
            names["returned"] = ", (SELECT next_at FROM moved), (SELECT token FROM moved)"
        names["extra_names"] = "".join(f", {quote(column)}" for column in extras)
        names["extra_values"] = ", %s" * len(extras)
        source = (SOURCE_WITH_EXTRAS if extras else SOURCE).format(**names)
        return RowWrite(table, RECORDED.format(**names, source=source))

    def carries(self, connection: Any, field: Any) -> bool:
        return array_type(field, connection) is not None

    def write_rows(
        self,
        connection: Any,
        table: Table,
        effect: Effect,
        rows: Mapping[str, Sequence[Any]],
        *,
        compares: tuple[str, ...] = ("lease_token",),
        records: bool = False,
        updates: Sequence[tuple[str, Any]] = (),
        values: FieldValues = (),
        riders: Sequence[Rider] = (),
    ) -> Written:
        columns = tuple(column for column, _value in updates)
        own = tuple(field for field, _values in values)
        kind = (table, effect, compares, records, columns, own, *rows, *[rider.name for rider in riders])
        text = self._texts.get(kind)
        if text is None:
            read = [UNSEEN.format(**table.quoted(connection))] if "seen" in rows else []
            given = [*rows][1:]
            text = _many_text(connection, table, effect, compares, records, columns, own, given, read, riders)
            self._texts[kind] = text
        keys, params = _many_values(connection, table, rows, updates, values, riders)
        found = prepared.run(connection, text, params)
        if "seen" not in rows:
            return prepared.named_places(keys, found)
        woken = [keys[place - 1] for place, is_unseen in found if is_unseen]
        return Written([keys[place - 1] for place, _is_unseen in found], woken)

    def write_and_read_rows(
        self,
        connection: Any,
        table: Table,
        effect: Effect,
        rows: Mapping[str, Sequence[Any]],
        fields: tuple[Any, ...],
        *,
        compares: tuple[str, ...] = ("lease_token",),
        records: bool = False,
        updates: Sequence[tuple[str, Any]] = (),
        values: FieldValues = (),
        riders: Sequence[Rider] = (),
    ) -> dict[Any, Claimed]:
        columns = tuple(column for column, _value in updates)
        own = tuple(field for field, _values in values)
        kind = (table, effect, compares, records, columns, own, fields, *rows, *[rider.name for rider in riders])
        if (known := self._reading.get(kind)) is None:
            reading = Reading.of(table, fields)
            age = NO_AGE if "changed_at" in effect.changes else AGE.format(**table.quoted(connection))
            read = [age, *reading.columns(connection, "t.")]
            text = _many_text(connection, table, effect, compares, records, columns, own, [*rows][1:], read, riders)
            known = self._reading[kind] = reading, text
        reading, text = known
        keys, params = _many_values(connection, table, rows, updates, values, riders)
        found = [without_place(row) for row in prepared.run(connection, text, params, read_rows)]
        claimed = read_leased(table, reading, [row for _place, row in found], connection)
        return {keys[place - 1]: row for (place, _row), row in zip(found, claimed, strict=True)}

    def write_selected(
        self, connection: Any, table: Table, effect: Effect, write: SelectedWrite, select: str, params: Sequence[Any]
    ) -> SelectedWritten:
        names = table.quoted(connection)
        columns = [connection.ops.quote_name(column) for column, _value in write.updates]
        text = SELECTED.format(**names, changes=effect.as_sql(names, TERMS, also=columns), select=select)
        delay = (write.delay,) if table.is_timed else ()
        if table.has_inbox:
            delay = (write.seen, *delay)
        updates = [value for _column, value in write.updates]
        values = (*params, write.to_status, *delay, *updates, write.sources, write.first_id.hex[:24], write.start)
        with connection.cursor() as cursor:
            cursor.execute(text, (*values, write.to_status, write.metadata, write.sources))
            rows = cursor.fetchall()
        if not rows:
            return SelectedWritten(0, 0, None, [])
        last, _was, seen, moved = rows[-1]
        return SelectedWritten(seen, moved, last, [(key, was) for key, was, *_ in rows if was not in write.sources])

    def lock(self, connection: Any, table: Table, key: Any) -> LockedRow | None:
        names = table.quoted(connection)
        token = ", {lease_token}::bigint".format(**names) if table.is_timed else ""
        key = prepared.key(table.key_field.get_db_prep_value(key, connection))
        rows = prepared.run(connection, LOCK.format(**names, token=token), (key,))
        return LockedRow(*rows[0]) if rows else None

    def lock_held(self, connection: Any, table: Table, key: Any, token: int) -> bool:
        key = prepared.key(table.key_field.get_db_prep_value(key, connection))
        return bool(prepared.run(connection, LOCK_HELD.format(**table.quoted(connection)), (key, token)))

    def held(self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        text = self._texts.get((table, HELD))
        if text is None:
            names = _names_of_arrays(connection, table, ["was_lease_token"])
            text = self._texts[table, HELD] = HELD.format(**names)
        given = prepared.prepared_keys(table, keys, connection)
        return prepared.named_places(keys, prepared.run(connection, text, (given, prepared.array_of(tokens), given)))

    def unless_taken(self, columns: Sequence[str], where: str) -> str:
        return f"ON CONFLICT ({', '.join(columns)}) WHERE {where} DO NOTHING"

    def fillfactor_sql(self, table: str, percent: int | None) -> str:
        what = "RESET (fillfactor)" if percent is None else f"SET (fillfactor = {percent:d})"
        return f"ALTER TABLE {table} {what}"

    def is_conflict(self, error: BaseException) -> bool:
        return sqlstate(error) in CONFLICTS

    def durations(self, connection: Any, table: Table, window: Window) -> list[Stay]:
        return ask_percentiles(connection, table, window)


class RowWrite:
    """A statement that writes one row, ready to be run again and again."""

    __slots__ = ("_is_number", "_key_field", "text")

    def __init__(self, table: Table, text: str) -> None:
        self.text = text
        self._key_field = table.key_field
        self._is_number = type(table.key_field) in prepared.NUMBERS

    def __call__(
        self, connection: Any, key: Any, given: tuple[Any, ...], compared: tuple[Any, ...], record: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        if self._is_number and type(key) is int:
            key = prepared.Number(key)
        else:
            key = prepared.key(self._key_field.get_db_prep_value(key, connection))
        rows = prepared.run(connection, self.text, (*given, key, *compared, *record))
        if not rows:
            return None
        row = rows[0]
        changed_at = prepared.as_django_reads(row[1], connection)
        if len(row) == 2:
            return row[0], changed_at
        sequence, _changed_at, next_at, token = row
        due = None if next_at is None else prepared.as_django_reads(next_at, connection)
        return sequence, changed_at, due, token


def _many_text(
    connection: Any,
    table: Table,
    effect: Effect,
    compares: tuple[str, ...],
    records: bool,
    updates: tuple[str, ...],
    own: tuple[Any, ...],
    given: list[str],
    read: Sequence[str] = (),
    riders: Sequence[Rider] = (),
) -> str:
    """Return a statement over many rows.

    :param own: other fields, of which each row gets a value of its own.
    :param read: what is returned of each besides its place, as expressions.
    :param riders: what else is written for rows that move.
    """
    quote = connection.ops.quote_name
    names = _names_of_arrays(connection, table, given, own)
    changes = effect.as_sql(names, TERMS, given="given.{}", row="t.", also=map(quote, updates))
    # Under names of ours: a column may be called as what else is given.
    others = [f"{quote(field.column)} = given.own_{place}" for place, field in enumerate(own)]
    names["changes"] = ", ".join([changes, *others])
    where = ["t.{key} = ANY(ARRAY(SELECT key FROM locked)) AND given.key = t.{key}".format(**names)]
    names["where"] = " AND ".join(where + [f"t.{names[column]} = given.was_{column}" for column in compares])
    is_tried = "outcome" in given
    names["held"] = tries.held(names) if is_tried else ""
    names["locking"] = GIVEN.format(**names)
    names["tried"] = tries.from_locked(names, "moved" if records else "written") if is_tried else ""
    if not records and not is_tried:
        return MANY.format(**names, read="".join(f", {each}" for each in read))
    # Under names of ours: the columns of a table may be called as what else is kept.
    names["kept"] = "".join(f", {each} AS read_{number}" for number, each in enumerate(read))
    names["riders"] = "".join(f",\n    {rider.name} AS ({rider.as_cte(names)})" for rider in riders)
    text = MANY_RECORDED if records else MANY_TRIED
    return text.format(**names, read="".join(f", read_{number}" for number in range(len(read))))


def _many_values(
    connection: Any,
    table: Table,
    rows: Mapping[str, Sequence[Any]],
    updates: Sequence[tuple[str, Any]],
    own: FieldValues,
    riders: Sequence[Rider] = (),
) -> tuple[Sequence[Any], tuple[Any, ...]]:
    """Return the keys of rows, and all parameters of a statement over them."""
    keys, *others = rows.values()
    given = prepared.prepared_keys(table, keys, connection)
    values = [value for _column, value in updates]
    values += [value for rider in riders for value in rider.parameters()]
    arrays = map(prepared.array_of, [*others, *[values for _field, values in own]] if own else others)
    return keys, (given, *arrays, *values)


def _names_of_arrays(connection: Any, table: Table, given: list[str], own: tuple[Any, ...] = ()) -> dict[str, str]:
    names = names_of(table, connection)
    names["given"] = ", ".join(["key", *given, *[f"own_{place}" for place in range(len(own))]])
    kinds: list[Any] = [names["type"], *[TYPES[name.removeprefix("was_")] for name in given]]
    kinds += [array_type(field, connection) for field in own]
    names["arrays"] = ", ".join([f"%s::{kind}[]" for kind in kinds])
    return names
