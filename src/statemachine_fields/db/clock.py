"""The database's clock: the only one that all writers of a row share."""

from __future__ import annotations

import datetime
from typing import Any

from django.db import models
from django.db.models.sql.compiler import SQLCompiler
from django.db.models.sql.query import Query
from django.utils import timezone

Compiled = tuple[str, list[Any]]

# SYSDATE() is read when the value is written, the other two when the statement began.
MYSQL = "(UTC_TIMESTAMP(6) + INTERVAL TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) MICROSECOND)"

# The format in which Django stores a DateTimeField.
SQLITE_FORMAT = "'%%Y-%%m-%%d %%H:%%M:%%f'"


class DatabaseClock(models.Func):
    """The time at which the database writes the value, in UTC.

    Django's `Now()` will not do. On PostgreSQL it is the time the statement began, so a statement that waited for a
    row's lock would record a time before that of the move it waited for. On MariaDB it is that, too, in local time.

    :param plus: how many seconds later.
    """

    def __init__(self, plus: float | None = None) -> None:
        super().__init__(output_field=models.DateTimeField())
        self.plus = plus

    def as_postgresql(self, compiler: SQLCompiler, connection: Any, **context: Any) -> Compiled:
        if self.plus is None:
            return "clock_timestamp()", []
        return "(clock_timestamp() + make_interval(secs => %s))", [self.plus]

    def as_mysql(self, compiler: SQLCompiler, connection: Any, **context: Any) -> Compiled:
        if not stores_utc(connection):
            return "%s", [local_now(connection, self.plus)]
        return (MYSQL, []) if self.plus is None else (f"({MYSQL} + INTERVAL %s MICROSECOND)", [int(self.plus * 1e6)])

    def as_sqlite(self, compiler: SQLCompiler, connection: Any, **context: Any) -> Any:
        if not stores_utc(connection):
            return "%s", [local_now(connection, self.plus)]
        if self.plus is None:
            return f"STRFTIME({SQLITE_FORMAT}, 'NOW')", []
        return f"STRFTIME({SQLITE_FORMAT}, 'NOW', %s)", [f"{self.plus:+f} seconds"]


class ComputedTime(models.ExpressionWrapper):  # type: ignore[type-arg]  # it takes none at run time
    """A time that the machine lets the database compute from others: when a row is due."""

    def __init__(self, expression: models.Expression) -> None:
        super().__init__(expression, output_field=models.DateTimeField())


def clock_sql(connection: Any, plus: float | None = None) -> Compiled:
    """Return the clock as SQL and its parameters. With `plus` there is one; NULL in its place makes the time NULL."""
    compiler = connection.ops.compiler("SQLCompiler")(Query(None), connection, None)
    sql, params = compiler.compile(DatabaseClock(plus))
    return sql, list(params)


def stores_utc(connection: Any) -> bool:
    """Say whether Django keeps times of this database in UTC: not without USE_TZ, nor with a TIME_ZONE of its own."""
    return connection.timezone is not None and connection.timezone_name == "UTC"


def local_now(connection: Any, plus: float | None = None) -> Any:
    """Return the time as Django would store it, by our own clock: these databases know no time zones by name."""
    return connection.ops.adapt_datetimefield_value(timezone.now() + datetime.timedelta(seconds=plus or 0))
