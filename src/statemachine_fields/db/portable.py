"""Moves in SQL that SQLite, MariaDB and MySQL understand. The caller opens the transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statemachine_fields.db.clock import clock_sql, local_now, make_ready, stores_utc
from statemachine_fields.db.dialect import BulkMove, BulkMoved, Move, Moved, Row, Shape, Table
from statemachine_fields.db.durations import Stay, Window, ask_ranks

SQLITE_CONFLICTS = ("SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_LOCKED")

#: deadlock found, lock wait timeout exceeded
MYSQL_CONFLICTS = ((1213,), (1205,))


class Portable:
    """An UPDATE that compares and sets, then an INSERT that copies what it wrote into the audit table."""

    is_one_statement = False
    default_is_utc = False

    def __init__(self) -> None:
        self._texts: dict[tuple[Shape, bool], _Texts] = {}

    def move(self, connection: Any, shape: Shape, move: Move) -> Moved | None:
        in_utc = stores_utc(connection)
        text = self._texts.get((shape, in_utc))
        if text is None:
            text = self._texts[shape, in_utc] = _Texts(shape, connection)
        key = _prepared(shape.table.key_field, move.key, connection)
        status = (move.to_status,) if shape.moves else ()
        compared = (key, move.from_status, *move.compared)
        with connection.cursor() as cursor:
            make_ready(connection)  # the text may have been made for another
            clock = () if in_utc else (local_now(connection),)
            delay = (later(connection, move.delay),) if shape.table.clock else ()
            cursor.execute(text.update, (*status, *move.updates, *clock, *delay, *compared))
            if not cursor.rowcount:
                return None
            if shape.records:
                record_id = _prepared(shape.table.id_field, move.record_id, connection)
                values = (record_id, move.from_status, move.to_status, move.metadata, *move.extras, key)
                cursor.execute(text.insert, values)
            if shape.table.clock or not shape.records or not connection.features.can_return_columns_from_insert:
                cursor.execute(text.select, (key,))
            sequence, changed_at, *clocked = cursor.fetchone()
        changed_at = read_time(changed_at, shape.table, connection)
        if not clocked:
            return Moved(sequence, changed_at)
        return Moved(sequence, changed_at, read_time(clocked[0], shape.table, connection), clocked[1])

    def bulk_move(self, connection: Any, shape: Shape, move: BulkMove, select: str, params: Sequence[Any]) -> BulkMoved:
        raise NotImplementedError("A batch is more than one statement here.")

    def lock(self, connection: Any, table: Table, key: Any) -> Row | None:
        quote = connection.ops.quote_name
        name, key_column, sequence = quote(table.name), quote(table.key), quote(table.sequence)
        params = (_prepared(table.key_field, key, connection),)
        token = f", {quote(table.clock.lease_token)}" if table.clock else ""
        select = f"SELECT {quote(table.status)}, {sequence}{token} FROM {name} WHERE {key_column} = %s"
        with connection.cursor() as cursor:
            if connection.features.has_select_for_update:
                select += " FOR UPDATE"
            else:  # a write is the only lock there is, and it must come before the read
                cursor.execute(f"UPDATE {name} SET {sequence} = {sequence} WHERE {key_column} = %s", params)
            cursor.execute(select, params)
            found = cursor.fetchone()
        return None if found is None else Row(*found)

    def is_conflict(self, error: Exception) -> bool:
        cause = error.__cause__
        return (
            getattr(cause, "sqlite_errorname", "") in SQLITE_CONFLICTS
            or getattr(cause, "args", ())[:1] in MYSQL_CONFLICTS
        )

    def durations(self, connection: Any, table: Table, window: Window) -> list[Stay]:
        return ask_ranks(connection, table, window)


class _Texts:
    """The statements of one shape."""

    def __init__(self, shape: Shape, connection: Any) -> None:
        table = shape.table
        quote = connection.ops.quote_name
        name, key, sequence, changed_at = map(quote, (table.name, table.key, table.sequence, table.changed_at))
        changes = [f"{quote(column)} = %s" for column in ([table.status] if shape.moves else []) + [*shape.updates]]
        changes += [f"{sequence} = {sequence} + 1", f"{changed_at} = {clock_sql(connection)[0]}"]
        clocked = ""
        if table.clock:
            token, next_at = quote(table.clock.lease_token), quote(table.clock.next_at)
            empty = [f"{quote(name)} = ''" for name in (table.clock.lease_owner, table.clock.error)]
            zero = [f"{quote(name)} = 0" for name in (table.clock.failures, table.clock.crashes)]
            changes += [f"{next_at} = {clock_sql(connection, plus=0)[0]}", f"{token} = {token} + 1"]
            changes += [f"{quote(table.clock.lease_expires_at)} = NULL", *empty, *zero]
            clocked = f", {next_at}, {token}"
        where = " AND ".join([f"{quote(column)} = %s" for column in (table.key, table.status, *shape.compares)])
        self.update = f"UPDATE {name} SET {', '.join(changes)} WHERE {where}"
        self.select = f"SELECT {sequence}, {changed_at}{clocked} FROM {name} WHERE {key} = %s"
        columns = ["id", "from_status", "to_status", "metadata", *shape.extras]
        columns += ["instance_id", "sequence", "transitioned_at"]
        self.insert = (
            f"INSERT INTO {quote(table.audit)} ({', '.join(map(quote, columns))}) "
            f"SELECT {', '.join(['%s'] * (4 + len(shape.extras)))}, {key}, {sequence}, {changed_at} "
            f"FROM {name} WHERE {key} = %s"
        )
        if connection.features.can_return_columns_from_insert:
            self.insert += f" RETURNING {quote('sequence')}, {quote('transitioned_at')}"


def later(connection: Any, delay: float | None) -> Any:
    """Return the parameter that makes the clock's text that much later, or NULL."""
    return None if delay is None else clock_sql(connection, plus=delay)[1][0]


def read_time(value: Any, table: Table, connection: Any) -> Any:
    """Return a time as Django reads it from the database."""
    for convert in _time_converters(table, connection):
        value = convert(value, None, connection)
    return value


def _prepared(field: Any, value: Any, connection: Any) -> Any:
    return field.get_db_prep_value(value, connection)


def _time_converters(table: Table, connection: Any) -> list[Any]:
    column = table.time_field.get_col(table.audit)
    return [*connection.ops.get_db_converters(column), *table.time_field.get_db_converters(connection)]
