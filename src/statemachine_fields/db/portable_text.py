"""What the statements of SQLite, MariaDB and MySQL have in common: the lock they begin with, their parameters, and their clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from statemachine_fields.db.clock import clock_sql, local_now, stores_utc
from statemachine_fields.db.columns import Table
from statemachine_fields.db.effects import COMPARES_INBOX, Becomes, Effect, Terms


@contextmanager
def locked(connection: Any, table: Table) -> Iterator[tuple[Any, dict[str, str]]]:
    """Open a transaction that has the write lock from its first statement on."""
    names = table.quoted(connection)
    with transaction.atomic(using=connection.alias, savepoint=False), connection.cursor() as cursor:
        cursor.execute("UPDATE {name} SET {lease_token} = {lease_token} WHERE {key} IS NULL".format(**names))
        yield cursor, names


def parameters(connection: Any, effect: Effect, table: Table, given: Sequence[Any]) -> Iterator[Any]:
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


def places(values: Sequence[Any]) -> str:
    return ", ".join(["%s"] * len(values))


def key_of(table: Table, key: Any, connection: Any) -> Any:
    return table.key_field.get_db_prep_value(key, connection)


def read_now(cursor: Any, connection: Any) -> Any:
    """Return what time it is by the database's clock, as the database has it."""
    sql, params = clock_sql(connection)
    cursor.execute(f"SELECT {sql}", params)
    return cursor.fetchone()[0]


def age_of(changed_at: Any, now: Any, table: Table, connection: Any) -> float:
    """Return how many seconds a row is in its state."""
    entered, moment = read_time(changed_at, table, connection), read_time(now, table, connection)
    return float((moment - entered).total_seconds())
