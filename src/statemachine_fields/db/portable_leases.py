"""Leases in SQL that SQLite understands, row by row in one transaction: for one worker process.

SQLite has one lock for the whole database. Taking it first makes everything that follows true until the commit, so that
even a second worker, which would gain nothing, would harm nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from statemachine_fields.db.clock import clock_sql
from statemachine_fields.db.dialect import Move, Shape, Table, dialect_for
from statemachine_fields.db.leases import DIED, RECOVERED, Claimed, Moving, Settled, Tally, Wanted
from statemachine_fields.db.portable import later, read_time
from statemachine_fields.db.tallies import add_up_sql

# Whatever ends a lease raises the token, so that nothing its holder says later is heard.
END = "{lease_owner} = '', {lease_expires_at} = NULL, {lease_token} = {lease_token} + 1"


class PortableLeases:
    """One process at a time."""

    is_shared = False

    def __init__(self) -> None:
        self._shapes: dict[tuple[Table, tuple[str, ...]], Shape] = {}

    def claim(self, connection: Any, table: Table, wanted: Wanted) -> list[Claimed]:
        with _locked(connection, table) as (cursor, names):
            now = self._now(cursor, connection)
            found: list[tuple[Any, ...]] = []
            for states in _by_urgency(wanted):
                cursor.execute(
                    "SELECT {key} FROM {name} WHERE {status} IN ({places}) AND {next_at} <= %s "
                    "AND ({lease_expires_at} IS NULL OR {lease_expires_at} <= %s) "
                    "AND ({lease_expires_at} IS NULL AND {crashes} = 0) <> %s ORDER BY {next_at} LIMIT %s".format(
                        **names, places=_places(states)
                    ),
                    (*states, now, now, wanted.suspects, wanted.limit - len(found)),
                )
                found += cursor.fetchall()
            columns = ", ".join(
                [names["changed_at"], *[connection.ops.quote_name(each.column) for each in wanted.fields]]
            )
            claimed = []
            for (key,) in found:
                cursor.execute(
                    "UPDATE {name} SET {lease_token} = {lease_token} + 1, "
                    "{crashes} = {crashes} + CASE WHEN {lease_expires_at} IS NULL THEN 0 ELSE 1 END, "
                    "{next_at} = CASE WHEN {lease_expires_at} IS NULL THEN {next_at} ELSE %s END, "
                    "{error} = CASE WHEN {lease_expires_at} IS NULL THEN {error} ELSE %s || {lease_owner} || %s END, "
                    "{lease_owner} = %s, {lease_expires_at} = {later} WHERE {key} = %s".format(**names),
                    (now, *RECOVERED, wanted.owner, later(connection, wanted.seconds), key),
                )
                cursor.execute(f"SELECT {columns} FROM {names['name']} WHERE {names['key']} = %s", (key,))
                changed_at, *values = cursor.fetchone()
                claimed.append(Claimed(self._age(changed_at, now, table, connection), tuple(values)))
        return claimed

    def beat(
        self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int], seconds: float
    ) -> set[Any]:
        change = "{lease_expires_at} = {later}"
        return self._change(connection, table, keys, tokens, change, [later(connection, seconds)])

    def held(self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        return self._change(connection, table, keys, tokens, "{lease_token} = {lease_token}", [])

    def release(self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        return self._change(connection, table, keys, tokens, END, [])

    def _change(
        self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int], change: str, params: list[Any]
    ) -> set[Any]:
        done = set()
        with _locked(connection, table) as (cursor, names):
            text = (f"UPDATE {{name}} SET {change} WHERE {{key}} = %s AND {{lease_token}} = %s").format(**names)
            for key, token in zip(keys, tokens, strict=True):
                cursor.execute(text, (*params, _key(table, key, connection), token))
                if cursor.rowcount:
                    done.add(key)
        return done

    def settle(self, connection: Any, table: Table, settled: Sequence[Settled]) -> set[Any]:
        done = set()
        with _locked(connection, table) as (cursor, names):
            text = (
                f"UPDATE {{name}} SET {END}, {{crashes}} = 0, {{failures}} = %s, "
                "{error} = %s, {next_at} = {later} WHERE {key} = %s AND {lease_token} = %s AND {status} = %s"
            ).format(**names)
            for each in settled:
                key = _key(table, each.key, connection)
                due = later(connection, self._earlier(cursor, table, names, key, each, connection))
                cursor.execute(text, (each.failures, each.error, due, key, each.token, each.status))
                if cursor.rowcount:
                    done.add(each.key)
        return done

    def _earlier(
        self, cursor: Any, table: Table, names: dict[str, str], key: Any, settled: Settled, connection: Any
    ) -> float | None:
        """Return in how many seconds the row is due: after the delay, or when its time in the state is up."""
        if settled.horizon is None:
            return settled.delay
        cursor.execute("SELECT {changed_at} FROM {name} WHERE {key} = %s".format(**names), (key,))
        if (row := cursor.fetchone()) is None:
            return settled.delay
        left = max(settled.horizon - self._age(row[0], self._now(cursor, connection), table, connection), 0.0)
        return left if settled.delay is None else min(settled.delay, left)

    def move(
        self, connection: Any, table: Table, moving: Sequence[Moving], updates: Sequence[tuple[str, Any]]
    ) -> set[Any]:
        done = set()
        assert table.clock is not None  # noqa: S101 - only timed machines come here
        columns = tuple(column for column, _value in updates)
        shape = self._shapes.get((table, columns))
        if shape is None:
            shape = Shape(table, compares=(table.clock.lease_token,), updates=columns)
            self._shapes[table, columns] = shape
        with transaction.atomic(using=connection.alias, savepoint=False):
            for each in moving:
                move = Move(
                    each.key,
                    each.status,
                    each.to_status,
                    each.record_id,
                    each.metadata,
                    compared=(each.token,),
                    updates=tuple(value for _column, value in updates),
                    delay=each.delay,
                )
                if dialect_for(connection).move(connection, shape, move) is not None:
                    done.add(each.key)
        return done

    def lock(self, connection: Any, table: Table, key: Any, token: int) -> bool:
        return bool(self.held(connection, table, [key], [token]))

    def recover(self, connection: Any, table: Table, states: Sequence[str], owner: str) -> int:
        with _locked(connection, table) as (cursor, names):
            cursor.execute(
                f"UPDATE {{name}} SET {{error}} = %s || {{lease_owner}} || %s, {END}, {{crashes}} = {{crashes}} + 1, "
                "{next_at} = %s WHERE {status} IN ({places}) AND {lease_owner} = %s AND {lease_expires_at} IS NOT NULL".format(
                    **names, places=_places(states)
                ),
                (*DIED, self._now(cursor, connection), *states, owner),
            )
            return int(cursor.rowcount)

    def is_statement_lost(self, error: Exception) -> bool:
        return False

    def hang_up(self, connection: Any) -> None:
        """A database in a file ends its transaction when the process ends."""

    def introduce(self, connection: Any, name: str) -> None:
        """Nobody would see it."""

    def add_up(self, connection: Any, table: str, period: Any, tallies: Collection[Tally]) -> None:
        with transaction.atomic(using=connection.alias, savepoint=False), connection.cursor() as cursor:
            for text, params in add_up_sql(connection, table, period, tallies):
                cursor.execute(text, params)

    def _now(self, cursor: Any, connection: Any) -> Any:
        sql, params = clock_sql(connection)
        cursor.execute(f"SELECT {sql}", params)
        return cursor.fetchone()[0]

    def _age(self, changed_at: Any, now: Any, table: Table, connection: Any) -> float:
        entered, moment = read_time(changed_at, table, connection), read_time(now, table, connection)
        return float((moment - entered).total_seconds())


@contextmanager
def _locked(connection: Any, table: Table) -> Iterator[tuple[Any, dict[str, str]]]:
    """Open a transaction that has the write lock from its first statement on."""
    clock = table.clock
    assert clock is not None  # noqa: S101 - only timed machines come here
    quote = connection.ops.quote_name
    names = {name: quote(getattr(table, name)) for name in ("name", "key", "status", "changed_at")}
    for name in ("next_at", "lease_owner", "lease_expires_at", "lease_token", "failures", "crashes", "error"):
        names[name] = quote(getattr(clock, name))
    # Both are formatted once more, with the parameters.
    names["later"] = clock_sql(connection, plus=0)[0]
    with transaction.atomic(using=connection.alias, savepoint=False), connection.cursor() as cursor:
        cursor.execute("UPDATE {name} SET {lease_token} = {lease_token} WHERE {key} IS NULL".format(**names))
        yield cursor, names


def _by_urgency(wanted: Wanted) -> list[list[str]]:
    """Return the wanted states, those of one priority together, the highest first."""
    together: dict[int, list[str]] = {}
    for state, priority in zip(wanted.states, wanted.priorities, strict=True):
        together.setdefault(priority, []).append(state)
    return [together[priority] for priority in sorted(together, reverse=True)]


def _places(values: Sequence[Any]) -> str:
    return ", ".join(["%s"] * len(values))


def _key(table: Table, key: Any, connection: Any) -> Any:
    return table.key_field.get_db_prep_value(key, connection)
