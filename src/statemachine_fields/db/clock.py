"""The database's clock: the only one that all writers of a row share."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.sql.compiler import SQLCompiler
from django.utils import timezone


class DatabaseClock(models.Func):
    """The time at which the database writes the value, in UTC.

    Django's `Now()` will not do. On PostgreSQL it is the time the statement began, so a statement that waited for a
    row's lock would record a time before that of the move it waited for. On MariaDB it is that, too, in local time.
    """

    template = "CURRENT_TIMESTAMP"

    def __init__(self) -> None:
        super().__init__(output_field=models.DateTimeField())

    def as_postgresql(self, compiler: SQLCompiler, connection: Any, **context: Any) -> tuple[str, Any]:
        return super().as_sql(compiler, connection, template="clock_timestamp()", **context)

    def as_mysql(self, compiler: SQLCompiler, connection: Any, **context: Any) -> tuple[str, Any]:
        if not stores_utc(connection):
            return "%s", [local_now(connection)]
        # SYSDATE() is read when the value is written, the other two when the statement began.
        template = "(UTC_TIMESTAMP(6) + INTERVAL TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) MICROSECOND)"
        return super().as_sql(compiler, connection, template=template, **context)

    def as_sqlite(self, compiler: SQLCompiler, connection: Any, **context: Any) -> tuple[str, Any]:
        if not stores_utc(connection):
            return "%s", [local_now(connection)]
        # The format in which Django stores a DateTimeField; '%%%%' becomes '%' after two rounds of formatting.
        template = "STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'NOW')"
        return super().as_sql(compiler, connection, template=template, **context)


def stores_utc(connection: Any) -> bool:
    """Say whether Django keeps times of this database in UTC: not without USE_TZ, nor with a TIME_ZONE of its own."""
    return connection.timezone is not None and connection.timezone_name == "UTC"


def local_now(connection: Any) -> Any:
    """Return the time as Django would store it, by our own clock: these databases know no time zones by name."""
    return connection.ops.adapt_datetimefield_value(timezone.now())
