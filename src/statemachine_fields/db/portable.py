"""Writes in SQL that SQLite, MariaDB and MySQL understand, row by row. Whoever writes one row opens the transaction.

SQLite has one lock for the whole database. Taking it first makes everything that follows true until the commit, so that
even a second worker, which would gain nothing, would harm nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from statemachine_fields.db.claims import Claimed
from statemachine_fields.db.clock import make_ready, stores_utc
from statemachine_fields.db.columns import Table
from statemachine_fields.db.dialect import Dialect, FieldValues, LockedRow, RowWriteKind, SelectedWritten, Written
from statemachine_fields.db.durations import Stay, Window, ask_ranks
from statemachine_fields.db.effects import Effect
from statemachine_fields.db.portable_claims import PortableClaims, row_reader
from statemachine_fields.db.portable_events import PortableEvents
from statemachine_fields.db.portable_text import age_of, key_of, locked, parameters, places, read_now, read_time, terms
from statemachine_fields.db.riders import Rider
from statemachine_fields.db.tries import keep_try

SQLITE_CONFLICTS = ("SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_LOCKED")

#: deadlock found, lock wait timeout exceeded
MYSQL_CONFLICTS = ((1213,), (1205,))


class Portable(PortableClaims, PortableEvents, Dialect):
    """An UPDATE that compares and sets, then an INSERT that copies what it wrote into the audit table. One process."""

    is_one_statement = False
    is_shared = False
    default_is_utc = False

    def __init__(self) -> None:
        self._writes: dict[RowWriteKind, PortableRowWrite] = {}

    def row_write(self, connection: Any, kind: RowWriteKind) -> PortableRowWrite:
        return PortableRowWrite(kind)

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
        columns = (*(column for column, _value in updates), *(field.column for field, _values in values))
        kind = RowWriteKind(table, effect, compares, records, columns)
        with locked(connection, table) as (cursor, names):
            keys = [*self._written(connection, cursor, names, kind, rows, updates, values, riders)]
            return Written(keys, self._unseen(cursor, names, table, rows, keys, connection) if "seen" in rows else ())

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
        columns = (*(column for column, _value in updates), *(field.column for field, _values in values))
        kind = RowWriteKind(table, effect, compares, records, columns)
        with locked(connection, table) as (cursor, names):
            read = row_reader(connection, cursor, names, table, fields)
            keys = [*self._written(connection, cursor, names, kind, rows, updates, values, riders)]
            now = read_now(cursor, connection)
            return {key: read(key_of(table, key, connection), now) for key in keys}

    def _written(
        self,
        connection: Any,
        cursor: Any,
        names: Mapping[str, str],
        kind: RowWriteKind,
        rows: Mapping[str, Sequence[Any]],
        updates: Sequence[tuple[str, Any]],
        own: FieldValues,
        riders: Sequence[Rider],
    ) -> Iterator[Any]:
        """Write one row after the other, and yield the keys of those that were as they had to be."""
        if (write := self._writes.get(kind)) is None:
            write = self._writes[kind] = PortableRowWrite(kind)
        table = kind.table
        wants, values = kind.effect.wants(table.columns), tuple(value for _column, value in updates)
        for place, key in enumerate(rows["key"]):
            row = {column: given[place] for column, given in rows.items()}
            if "outcome" in row:
                keep_try(connection, table, key, row["was_lease_token"], row)
            if "horizon" in row:
                row["next_at"] = self._earlier(cursor, table, names, row, connection)
            given = (*[row[column] for column in wants], *values, *[each[place] for _field, each in own])
            compared = tuple([row[f"was_{column}"] for column in kind.compares])
            record = (row["record"], row["was_status"], row["status"], row["metadata"]) if kind.records else ()
            written = write(connection, key, given, compared, record)
            if written is not None:
                for rider in riders:
                    rider.write_one(cursor, names, place + 1, key_of(table, key, connection), written[0])
                yield key

    def _unseen(
        self,
        cursor: Any,
        names: Mapping[str, str],
        table: Table,
        rows: Mapping[str, Sequence[Any]],
        keys: Sequence[Any],
        connection: Any,
    ) -> Iterator[Any]:
        """Yield the keys of rows that have more in their inbox than was seen."""
        seen = dict(zip(rows["key"], rows["seen"], strict=True))
        text = "SELECT 1 FROM {name} WHERE {key} = %s AND {inbox} > %s".format(**names)
        for key in keys:
            if seen[key] is not None:
                cursor.execute(text, (key_of(table, key, connection), seen[key]))
                if cursor.fetchone():
                    yield key

    def _earlier(
        self, cursor: Any, table: Table, names: Mapping[str, str], row: Mapping[str, Any], connection: Any
    ) -> float | None:
        """Return in how many seconds the row is due: after the delay, or when its time in the state is up."""
        delay: float | None = row["next_at"]
        if row["horizon"] is None:
            return delay
        key = key_of(table, row["key"], connection)
        cursor.execute("SELECT {changed_at} FROM {name} WHERE {key} = %s".format(**names), (key,))
        if (found := cursor.fetchone()) is None:
            return delay
        left: float = max(row["horizon"] - age_of(found[0], read_now(cursor, connection), table, connection), 0.0)
        return left if delay is None else min(delay, left)

    def write_selected(self, *args: Any, **kwargs: Any) -> SelectedWritten:
        raise NotImplementedError("A batch is more than one statement here.")

    def lock(self, connection: Any, table: Table, key: Any) -> LockedRow | None:
        names = table.quoted(connection)
        params = (key_of(table, key, connection),)
        names["token"] = ", {lease_token}".format(**names) if table.is_timed else ""
        select = "SELECT {status}, {sequence}{token} FROM {name} WHERE {key} = %s"
        with connection.cursor() as cursor:
            if connection.features.has_select_for_update:
                select += " FOR UPDATE"
            else:  # a write is the only lock there is, and it must come before the read
                cursor.execute("UPDATE {name} SET {sequence} = {sequence} WHERE {key} = %s".format(**names), params)
            cursor.execute(select.format(**names), params)
            found = cursor.fetchone()
        return None if found is None else LockedRow(*found)

    def lock_held(self, connection: Any, table: Table, key: Any, token: int) -> bool:
        return bool(self.held(connection, table, [key], [token]))

    def held(self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        done = set()
        with locked(connection, table) as (cursor, names):
            text = "SELECT 1 FROM {name} WHERE {key} = %s AND {lease_token} = %s".format(**names)
            for key, token in zip(keys, tokens, strict=True):
                cursor.execute(text, (key_of(table, key, connection), token))
                if cursor.fetchone():
                    done.add(key)
        return done

    def is_conflict(self, error: BaseException) -> bool:
        cause = error.__cause__
        return (
            getattr(cause, "sqlite_errorname", "") in SQLITE_CONFLICTS
            or getattr(cause, "args", ())[:1] in MYSQL_CONFLICTS
        )

    def durations(self, connection: Any, table: Table, window: Window) -> list[Stay]:
        return ask_ranks(connection, table, window)

    def is_clean(self, connection: Any) -> bool:
        return not getattr(connection.connection, "in_transaction", False)


class PortableRowWrite:
    """The statements that write one row, and what an effect wants of the caller as their parameters."""

    def __init__(self, kind: RowWriteKind) -> None:
        self.table, self.effect, self.compares, self.records, self.updates, self.extras = kind
        self._is_recorded = "sequence" in self.effect.changes
        #: By whether times are stored in UTC, which depends on the connection.
        self._texts: dict[bool, tuple[str, str, str]] = {}

    def __call__(
        self, connection: Any, key: Any, given: tuple[Any, ...], compared: tuple[Any, ...], record: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        in_utc = stores_utc(connection)
        if in_utc not in self._texts:
            self._texts[in_utc] = self._make_texts(connection)
        update, insert, select = self._texts[in_utc]
        table = self.table
        key = key_of(table, key, connection)
        with connection.cursor() as cursor:
            make_ready(connection)  # the text may have been made for another
            cursor.execute(update, (*parameters(connection, self.effect, table, given), key, *compared))
            if not cursor.rowcount:
                return None
            if not self._is_recorded:
                return ()
            if self.records:
                record_id, *rest = record
                cursor.execute(insert, (table.id_field.get_db_prep_value(record_id, connection), *rest, key))
            if table.is_timed or not self.records or not connection.features.can_return_columns_from_insert:
                cursor.execute(select, (key,))
            sequence, changed_at, *schedule = cursor.fetchone()
        changed_at = read_time(changed_at, table, connection)
        if not schedule:
            return sequence, changed_at
        return sequence, changed_at, read_time(schedule[0], table, connection), schedule[1]

    def _make_texts(self, connection: Any) -> tuple[str, str, str]:
        quote = connection.ops.quote_name
        names = self.table.quoted(connection)
        names["changes"] = self.effect.as_sql(names, terms(connection), also=map(quote, self.updates))
        names["where"] = " AND ".join([f"{names[column]} = %s" for column in ("key", *self.compares)])
        names["schedule"] = ", {next_at}, {lease_token}".format(**names) if self.table.is_timed else ""
        columns = ["id", "from_status", "to_status", "metadata", *self.extras]
        names["places"] = places(columns)
        names["columns"] = ", ".join(map(quote, [*columns, "instance_id", "sequence", "transitioned_at"]))
        insert = "INSERT INTO {audit} ({columns}) SELECT {places}, {key}, {sequence}, {changed_at} FROM {name} WHERE {key} = %s"
        if connection.features.can_return_columns_from_insert:
            insert += f" RETURNING {quote('sequence')}, {quote('transitioned_at')}"
        return (
            "UPDATE {name} SET {changes} WHERE {where}".format(**names),
            insert.format(**names),
            "SELECT {sequence}, {changed_at}{schedule} FROM {name} WHERE {key} = %s".format(**names),
        )
