"""Writes in SQL that SQLite, MariaDB and MySQL understand, row by row. Whoever writes one row opens the transaction.

SQLite has one lock for the whole database. Taking it first makes everything that follows true until the commit, so that
even a second worker, which would gain nothing, would harm nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from statemachine_fields.db.claims import (
    DIED,
    HOW_OFTEN,
    RECOVERED,
    Claimed,
    Left,
    Level,
    NextDue,
    Recovered,
    SurveyedLevel,
    Wanted,
)
from statemachine_fields.db.clock import clock_sql, local_now, make_ready, stores_utc
from statemachine_fields.db.columns import Table
from statemachine_fields.db.dialect import Dialect, FieldValues, LockedRow, RowWriteKind, SelectedWritten, Written
from statemachine_fields.db.durations import Stay, Window, ask_ranks
from statemachine_fields.db.effects import CLAIM, COMPARES_INBOX, RECOVER, UNCLAIM, Becomes, Effect, Terms
from statemachine_fields.db.portable_events import PortableEvents
from statemachine_fields.db.riders import Rider
from statemachine_fields.db.tries import keep_crashes, keep_try

SQLITE_CONFLICTS = ("SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_LOCKED")

#: deadlock found, lock wait timeout exceeded
MYSQL_CONFLICTS = ((1213,), (1205,))


class Portable(PortableEvents, Dialect):
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
        with _locked(connection, table) as (cursor, names):
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
        with _locked(connection, table) as (cursor, names):
            read = self._reader(connection, cursor, names, table, fields)
            keys = [*self._written(connection, cursor, names, kind, rows, updates, values, riders)]
            now = self._now(cursor, connection)
            return {key: read(_key(table, key, connection), now) for key in keys}

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
                    rider.write_one(cursor, names, place + 1, _key(table, key, connection), written[0])
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
                cursor.execute(text, (_key(table, key, connection), seen[key]))
                if cursor.fetchone():
                    yield key

    def _reader(
        self, connection: Any, cursor: Any, names: Mapping[str, str], table: Table, fields: tuple[Any, ...]
    ) -> Callable[[Any, Any], Claimed]:
        """Return what reads a row by its key, as the database has it, at a time by its clock."""
        columns = ", ".join([names["changed_at"], *[connection.ops.quote_name(each.column) for each in fields]])
        text = f"SELECT {columns} FROM {names['name']} WHERE {names['key']} = %s"

        def read(key: Any, now: Any) -> Claimed:
            cursor.execute(text, (key,))
            changed_at, *values = cursor.fetchone()
            return Claimed(self._age(changed_at, now, table, connection), tuple(values))

        return read

    def _earlier(
        self, cursor: Any, table: Table, names: Mapping[str, str], row: Mapping[str, Any], connection: Any
    ) -> float | None:
        """Return in how many seconds the row is due: after the delay, or when its time in the state is up."""
        delay: float | None = row["next_at"]
        if row["horizon"] is None:
            return delay
        key = _key(table, row["key"], connection)
        cursor.execute("SELECT {changed_at} FROM {name} WHERE {key} = %s".format(**names), (key,))
        if (found := cursor.fetchone()) is None:
            return delay
        left: float = max(row["horizon"] - self._age(found[0], self._now(cursor, connection), table, connection), 0.0)
        return left if delay is None else min(delay, left)

    def write_selected(self, *args: Any, **kwargs: Any) -> SelectedWritten:
        raise NotImplementedError("A batch is more than one statement here.")

    def lock(self, connection: Any, table: Table, key: Any) -> LockedRow | None:
        names = table.quoted(connection)
        params = (_key(table, key, connection),)
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
        with _locked(connection, table) as (cursor, names):
            text = "SELECT 1 FROM {name} WHERE {key} = %s AND {lease_token} = %s".format(**names)
            for key, token in zip(keys, tokens, strict=True):
                cursor.execute(text, (_key(table, key, connection), token))
                if cursor.fetchone():
                    done.add(key)
        return done

    def claim(self, connection: Any, table: Table, wanted: Wanted) -> list[Claimed]:
        with _locked(connection, table) as (cursor, names):
            now = self._now(cursor, connection)
            read = self._reader(connection, cursor, names, table, wanted.fields)
            update = f"UPDATE {{name}} SET {CLAIM.as_sql(names, terms(connection))} WHERE {{key}} = %s".format(**names)
            claimed = []
            for key in self._due(cursor, table, wanted, now):
                given = (wanted.owner, wanted.seconds)
                cursor.execute(update, (*_parameters(connection, CLAIM, table, given), key))
                if not cursor.rowcount:
                    continue
                claimed.append(read(key, now))
        return claimed

    def candidates(self, connection: Any, table: Table, wanted: Wanted) -> list[Any]:
        with _locked(connection, table) as (cursor, _names):
            return self._due(cursor, table, wanted, self._now(cursor, connection))

    def _due(self, cursor: Any, table: Table, wanted: Wanted, now: Any) -> list[Any]:
        """Return the keys of the rows that a claim is about, the most urgent first."""
        names = {**table.quoted(cursor.db), **table.quoted_own(cursor.db)}
        whose, served = _served(wanted.members)
        urgency = "{priority} DESC, " if table.priority else ""
        keys, sign = (wanted.aside, "NOT IN") if wanted.keys is None else (wanted.keys, "IN")
        which = f" AND {{key}} {sign} ({_places(keys)})" if keys or wanted.keys is not None else ""
        found: list[Any] = []
        for states in [[*wanted.states]] if wanted.crashes or table.priority else _by_urgency(wanted):
            cursor.execute(
                (
                    f"SELECT {{key}} FROM {{name}} WHERE {{status}} IN ({_places(states)}) AND {{next_at}} <= %s "
                    f"AND {{lease_expires_at}} IS NULL AND {{crashes}} {HOW_OFTEN[wanted.crashes]}{which}{whose} "
                    f"ORDER BY {{crashes}}, {urgency}{{next_at}} LIMIT %s"
                ).format(**names),
                (*states, now, *keys, *served, wanted.limit - len(found)),
            )
            found += [key for (key,) in cursor.fetchall()]
        return found

    def next_due(self, connection: Any, table: Table, states: Sequence[str], member: Level | None = None) -> NextDue:
        names = {**table.quoted(connection), **table.quoted_own(connection)}
        whose, served = _served(None if member is None else [member])
        first = (
            f"SELECT {{next_at}} FROM {{name}} WHERE {{status}} = %s AND {{next_at}} {{when}} %s{whose} "
            "ORDER BY {next_at} LIMIT 1"
        )
        with connection.cursor() as cursor:
            make_ready(connection)  # the text may have been made for another
            now = self._now(cursor, connection)
            found: dict[str, list[Any]] = {"<=": [], ">": []}
            for when, times in found.items():
                for state in states:  # each a step into the index
                    cursor.execute(first.format(**names, when=when), (state, now, *served))
                    times += [time for (time,) in cursor.fetchall()]
        later = [-self._age(time, now, table, connection) for time in found[">"]]
        return NextDue(bool(found["<="]), min(later, default=None))

    def recover(self, connection: Any, table: Table, states: Sequence[str], left: Left) -> Recovered:
        effect = RECOVER if left.is_crash else UNCLAIM
        words = (RECOVERED if left.owner is None else DIED) if left.is_crash else ()
        which = "{lease_expires_at} <= %s" if left.owner is None else "{lease_owner} = %s"
        whose, served = _served(left.levels)
        with _locked(connection, table) as (cursor, names):
            held = [_key(table, key, connection) for key in left.held]
            owner = self._now(cursor, connection) if left.owner is None else left.owner
            where = (
                f"{{status}} IN ({_places(states)}) AND {which} "
                f"AND {{lease_expires_at}} IS NOT NULL AND {{key}} NOT IN ({_places(held)}){whose}"
            ).format(**names, **table.quoted_own(connection))
            if table.tries is not None and left.is_crash:
                keep_crashes(connection, cursor, table, words, where, (*states, owner, *held, *served))
            cursor.execute(
                "UPDATE {name} SET ".format(**names) + f"{effect.as_sql(names, terms(connection))} WHERE {where}",
                (*_parameters(connection, effect, table, words), *states, owner, *held, *served),
            )
            return Recovered(int(cursor.rowcount), True)

    def survey(self, connection: Any, table: Table, members: Sequence[Level]) -> list[SurveyedLevel]:
        """Return the members themselves: their rows are found and sorted whatever the priorities are."""
        return [SurveyedLevel(each, *self.next_due(connection, table, [each.state], each)) for each in members]

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

    def _now(self, cursor: Any, connection: Any) -> Any:
        sql, params = clock_sql(connection)
        cursor.execute(f"SELECT {sql}", params)
        return cursor.fetchone()[0]

    def _age(self, changed_at: Any, now: Any, table: Table, connection: Any) -> float:
        entered, moment = read_time(changed_at, table, connection), read_time(now, table, connection)
        return float((moment - entered).total_seconds())


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
        key = _key(table, key, connection)
        with connection.cursor() as cursor:
            make_ready(connection)  # the text may have been made for another
            cursor.execute(update, (*_parameters(connection, self.effect, table, given), key, *compared))
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
        names["places"] = _places(columns)
        names["columns"] = ", ".join(map(quote, [*columns, "instance_id", "sequence", "transitioned_at"]))
        insert = "INSERT INTO {audit} ({columns}) SELECT {places}, {key}, {sequence}, {changed_at} FROM {name} WHERE {key} = %s"
        if connection.features.can_return_columns_from_insert:
            insert += f" RETURNING {quote('sequence')}, {quote('transitioned_at')}"
        return (
            "UPDATE {name} SET {changes} WHERE {where}".format(**names),
            insert.format(**names),
            "SELECT {sequence}, {changed_at}{schedule} FROM {name} WHERE {key} = %s".format(**names),
        )


@contextmanager
def _locked(connection: Any, table: Table) -> Iterator[tuple[Any, dict[str, str]]]:
    """Open a transaction that has the write lock from its first statement on."""
    names = table.quoted(connection)
    with transaction.atomic(using=connection.alias, savepoint=False), connection.cursor() as cursor:
        cursor.execute("UPDATE {name} SET {lease_token} = {lease_token} WHERE {key} IS NULL".format(**names))
        yield cursor, names


def _parameters(connection: Any, effect: Effect, table: Table, given: Sequence[Any]) -> Iterator[Any]:
    """Yield the parameters of what an effect sets, and then what else is given."""
    values = iter(given)
    for becomes in effect.on(table.columns).values():
        if becomes is Becomes.GIVEN:
            yield next(values)
        elif becomes is Becomes.BLAME:
            yield from (next(values), next(values))
        elif becomes in COMPARES_INBOX and table.has_inbox:
            yield from (next(values), later(connection, 0), later(connection, next(values)))
        elif becomes in (Becomes.LATER, *COMPARES_INBOX):
            yield later(connection, next(values))
        elif becomes is Becomes.NOW and not stores_utc(connection):
            yield local_now(connection)
    yield from values


def terms(connection: Any) -> Terms:
    """Return how this database tells the time. What is earlier of two is computed before."""
    is_later = clock_sql(connection, plus=0)[0].replace("%s", "{seconds}")
    unseen = "CASE WHEN {inbox} > %s THEN %s ELSE %s END"
    return Terms(now=clock_sql(connection)[0], later=is_later, no_later=is_later, unseen=unseen)


def later(connection: Any, delay: float | None) -> Any:
    """Return the parameter that makes the clock's text that much later, or NULL."""
    return None if delay is None else clock_sql(connection, plus=delay)[1][0]


def read_time(value: Any, table: Table, connection: Any) -> Any:
    """Return a time as Django reads it from the database."""
    column = table.time_field.get_col(table.audit)
    converters = [*connection.ops.get_db_converters(column), *table.time_field.get_db_converters(connection)]
    for convert in converters:
        value = convert(value, None, connection)
    return value


def _by_urgency(wanted: Wanted) -> list[list[str]]:
    """Return the wanted states, those of one priority together, the highest first."""
    together: dict[int, list[str]] = {}
    for state, priority in zip(wanted.states, wanted.priorities, strict=True):
        together.setdefault(priority, []).append(state)
    return [together[priority] for priority in sorted(together, reverse=True)]


def _served(levels: Sequence[Level] | None) -> tuple[str, list[str]]:
    """Return what is true of rows of some queues, as text, and its parameters; nothing if they are of any."""
    if not levels or levels[0].queue is None:
        return "", []
    pairs = dict.fromkeys((level.state, level.queue or "") for level in levels)
    text = " OR ".join(["({status} = %s AND {queue} = %s)"] * len(pairs))
    return f" AND ({text})", [value for pair in pairs for value in pair]


def _places(values: Sequence[Any]) -> str:
    return ", ".join(["%s"] * len(values))


def _key(table: Table, key: Any, connection: Any) -> Any:
    return table.key_field.get_db_prep_value(key, connection)
