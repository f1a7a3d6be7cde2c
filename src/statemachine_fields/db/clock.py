"""The database's clock: the only one that all writers of a row share."""

from __future__ import annotations

import datetime
import zoneinfo
from typing import Any

from django.db import models
from django.db.backends.signals import connection_created
from django.db.models.functions import Now
from django.db.models.sql.compiler import SQLCompiler
from django.db.models.sql.query import Query
from django.utils import timezone

Compiled = tuple[str, list[Any]]

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)

# SYSDATE() is read when the value is written, the other two when the statement began.
MYSQL = "(UTC_TIMESTAMP(6) + INTERVAL TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) MICROSECOND)"

# SQLite's own clock has milliseconds, so that two moves within one would tie, and neither order nor length be known. It runs
# in our process, where a function of ours reads the same clock to the microsecond.
SQLITE = "statemachine_fields_now"
# What the function is given: the time by SQLite's own clock, which code that stops or sets the clock of a process, as tests do,
# does not reach. It has no percent sign, which would be doubled or not by where it stands.
SQLITE_DAY = "julianday('now')"
#: Midnight of 1 January 1970, as SQLite counts days.
EPOCH_DAY = 2440587.5
#: How many seconds the clock of the process may be from SQLite's, which is read when a statement begins.
MOST_APART = 1.0

#: Where the driver's connection is remembered, on Django's, that has the function.
READY = "statemachine_fields_clock"


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
        if connection.connection is not None:
            make_ready(connection)
        return (f"{SQLITE}({SQLITE_DAY})", []) if self.plus is None else (f"{SQLITE}({SQLITE_DAY}, %s)", [self.plus])


class StatementClock(Now):
    """The database's clock for comparisons: one time for the whole statement, so that an index is searched by it."""

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # Django's is the session's local time, and the columns are in UTC.
        return DatabaseClock().as_mysql(compiler, connection, **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # Django's is UTC, and the columns may be in local time.
        return DatabaseClock().as_sqlite(compiler, connection, **context)


class ComputedTime(models.ExpressionWrapper):  # type: ignore[type-arg]  # it takes none at run time
    """A time that the machine lets the database compute from others: when a row is due."""

    def __init__(self, expression: models.Expression) -> None:
        super().__init__(expression, output_field=models.DateTimeField())


def due_time(inbox: str, seen: int, plus: float | None) -> ComputedTime:
    """Return a time some seconds later, or never; but now if there is something in the inbox that was not seen."""
    later = models.Value(None, output_field=models.DateTimeField()) if plus is None else DatabaseClock(plus)
    is_unseen = models.When(**{f"{inbox}__gt": seen}, then=DatabaseClock())
    return ComputedTime(models.Case(is_unseen, default=later, output_field=models.DateTimeField()))


def clock_sql(connection: Any, plus: float | None = None) -> Compiled:
    """Return the clock as SQL and its parameters. With `plus` there is one; NULL in its place makes the time NULL."""
    compiler = connection.ops.compiler("SQLCompiler")(Query(None), connection, None)
    sql, params = compiler.compile(DatabaseClock(plus))
    return sql, list(params)


def make_ready(connection: Any) -> None:
    """Give an open connection what our statements call, if its driver can take it: SQLite's can. Repeating it costs nothing."""
    driver = connection.connection
    if getattr(connection, READY, None) is driver:
        return
    if hasattr(driver, "create_function"):
        driver.create_function(SQLITE, -1, _as_stored)
    setattr(connection, READY, driver)


def _as_stored(day: float, *plus: float | None) -> str | None:
    """Return the time, or one some seconds later, as Django stores it in SQLite; None if it is not known how much later.

    :param day: the time by SQLite's own clock. Ours is finer, and holds if it agrees.
    """
    now = datetime.datetime.now(datetime.UTC)
    own = (day - EPOCH_DAY) * 86400
    if abs(now.timestamp() - own) > MOST_APART:
        now = datetime.datetime.fromtimestamp(round(own, 3), datetime.UTC)
    for seconds in plus:
        if seconds is None:
            return None
        now += datetime.timedelta(seconds=seconds)
    return now.replace(tzinfo=None).isoformat(" ", "microseconds")


def _on_connection(connection: Any, **kwargs: Any) -> None:
    make_ready(connection)


# A query may be compiled before there is a connection. Those that were there before us are made ready when they are used.
connection_created.connect(_on_connection, dispatch_uid=SQLITE)


def stores_utc(connection: Any) -> bool:
    """Say whether Django keeps times of this database in UTC: not without USE_TZ, nor with a TIME_ZONE of its own."""
    return connection.timezone is not None and connection.timezone_name == "UTC"


def local_now(connection: Any, plus: float | None = None) -> Any:
    """Return the time as Django would store it, by our own clock: these databases know no time zones by name."""
    return connection.ops.adapt_datetimefield_value(timezone.now() + datetime.timedelta(seconds=plus or 0))


def read_instant(when: datetime.datetime, name: str) -> datetime.datetime:
    """Return a datetime if it is aware where the project's are, and naive where they are, or raise ValueError."""
    if not isinstance(when, datetime.datetime):
        raise TypeError(f"{name} must be a datetime, got {when!r}.")
    aware = timezone.is_aware(timezone.now())
    if timezone.is_aware(when) == aware:
        return when
    if aware:
        raise ValueError(
            f"{name} must be an aware datetime, because USE_TZ is True, got {when!r}. "
            "Use django.utils.timezone.make_aware(), which takes it for a time in the current time zone."
        )
    raise ValueError(
        f"{name} must be a naive datetime, because USE_TZ is False, got {when!r}. "
        "Use django.utils.timezone.make_naive()."
    )


def as_utc(when: datetime.datetime, connection: Any) -> datetime.datetime:
    """Return a time that Django gives to PostgreSQL as PostgreSQL takes it, which is in the time zone of the session.

    Of an hour that comes twice it takes the second, and it reads an hour that is left out as if it were not.
    """
    if timezone.is_aware(when):
        return when
    zone = zoneinfo.ZoneInfo(connection.timezone_name)
    return max(when.replace(tzinfo=zone, fold=fold).astimezone(datetime.UTC) for fold in (0, 1))


def at_or_before(column: str, when: datetime.datetime) -> dict[str, datetime.datetime]:
    """Return what filters for times of the database's clock that are not after an instant."""
    # SQLite compares texts. Its clock writes '12:00:00.000000', Django writes a whole second as '12:00:00', which is less.
    if when.microsecond == 0:
        return {f"{column}__lt": when + MICROSECOND}
    return {f"{column}__lte": when}
