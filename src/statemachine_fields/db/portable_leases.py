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
from statemachine_fields.db.leases import DIED, RECOVERED, Claimed, Left, Moving, Recovered, Settled, Tally, Wanted
from statemachine_fields.db.portable import later, read_time
from statemachine_fields.db.tallies import add_up_sql

# Whatever ends a lease raises the token, so that nothing its holder says later is heard.
END = "{lease_owner} = '', {lease_expires_at} = NULL, {lease_token} = {lease_token} + 1"

#: Rows by how often a worker died of them, or vanished: never, once, more often.
HOW_OFTEN = {0: "= 0", 1: "= 1", 2: "> 1"}


class PortableLeases:
    """One process at a time."""

    is_shared = False

    def __init__(self) -> None:
        self._shapes: dict[tuple[Table, tuple[str, ...]], Shape] = {}

    def claim(self, connection: Any, table: Table, wanted: Wanted) -> list[Claimed]:
        with _locked(connection, table) as (cursor, names):
            now = self._now(cursor, connection)
            columns = ", ".join(
                [names["changed_at"], *[connection.ops.quote_name(each.column) for each in wanted.fields]]
            )
            claimed = []
            for key in self._due(cursor, names, wanted, now):
                cursor.execute(
                    "UPDATE {name} SET {lease_token} = {lease_token} + 1, {lease_owner} = %s, "
                    "{lease_expires_at} = {later} WHERE {key} = %s".format(**names),
                    (wanted.owner, later(connection, wanted.seconds), key),
                )
                if not cursor.rowcount:
                    continue
                cursor.execute(f"SELECT {columns} FROM {names['name']} WHERE {names['key']} = %s", (key,))
                changed_at, *values = cursor.fetchone()
                claimed.append(Claimed(self._age(changed_at, now, table, connection), tuple(values)))
        return claimed

    def candidates(self, connection: Any, table: Table, wanted: Wanted) -> list[Any]:
        with _locked(connection, table) as (cursor, names):
            return self._due(cursor, names, wanted, self._now(cursor, connection))

    def _due(self, cursor: Any, names: dict[str, str], wanted: Wanted, now: Any) -> list[Any]:
        """Return the keys of the rows that a claim is about, the most urgent first."""
        keys, sign = (wanted.aside, "NOT IN") if wanted.keys is None else (wanted.keys, "IN")
        which = f" AND {{key}} {sign} ({_places(keys)})" if keys or wanted.keys is not None else ""
        found: list[Any] = []
        for states in [[*wanted.states]] if wanted.crashes else _by_urgency(wanted):
            cursor.execute(
                (
                    f"SELECT {{key}} FROM {{name}} WHERE {{status}} IN ({_places(states)}) AND {{next_at}} <= %s "
                    f"AND {{lease_expires_at}} IS NULL AND {{crashes}} {HOW_OFTEN[wanted.crashes]}{which} "
                    "ORDER BY {crashes}, {next_at} LIMIT %s"
                ).format(**names),
                (*states, now, *keys, wanted.limit - len(found)),
            )
            found += [key for (key,) in cursor.fetchall()]
        return found

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

    def recover(self, connection: Any, table: Table, states: Sequence[str], left: Left) -> Recovered:
        blame = "{error} = %s || {lease_owner} || %s, {crashes} = {crashes} + 1, " if left.is_crash else ""
        words = (RECOVERED if left.owner is None else DIED) if left.is_crash else ()
        which = "{lease_expires_at} <= %s" if left.owner is None else "{lease_owner} = %s"
        with _locked(connection, table) as (cursor, names):
            held = [_key(table, key, connection) for key in left.held]
            owner = self._now(cursor, connection) if left.owner is None else left.owner
            cursor.execute(
                (
                    f"UPDATE {{name}} SET {blame}{END} WHERE {{status}} IN ({_places(states)}) AND {which} "
                    f"AND {{lease_expires_at}} IS NOT NULL AND {{key}} NOT IN ({_places(held)})"
                ).format(**names),
                (*words, *states, owner, *held),
            )
            return Recovered(int(cursor.rowcount), True)

    def is_statement_lost(self, error: BaseException) -> bool:
        return False

    def hang_up(self, connection: Any) -> None:
        """A database in a file ends its transaction when the process ends."""

    def is_clean(self, connection: Any) -> bool:
        return not getattr(connection.connection, "in_transaction", False)

    def introduce(self, connection: Any, name: str) -> None:
        """Nobody would see it."""

    def is_broken(self, connection: Any) -> bool:
        return False

    def own_class(self, base: type[Any]) -> type[Any]:
        """A database in a file is never silent, and has a `timeout` for its lock."""
        return base

    def transaction_number(self, connection: Any) -> int | None:
        return None

    def was_committed(self, connection: Any, number: int) -> bool | None:
        return None

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
