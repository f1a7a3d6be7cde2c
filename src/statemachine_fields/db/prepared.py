"""Prepared statements on a connection of Django's, which prepares none itself.

Planning is the larger part of what a move costs the server, so ours are prepared. Django turns preparing off because a
transaction pooler may hand the next statement to another server connection, which knows nothing of it.
"""

from __future__ import annotations

import datetime
import logging
import secrets
import uuid
import zoneinfo
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, models
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from statemachine_fields import conf
from statemachine_fields.db.clock import EPOCH, MICROSECOND
from statemachine_fields.db.columns import Table
from statemachine_fields.db.dialect import Written, sqlstate

if TYPE_CHECKING or is_psycopg3:
    import psycopg
    from psycopg.types.numeric import Int2, Int4, Int8, Int8Dumper

logger = logging.getLogger("statemachine_fields.db")

#: invalid_sql_statement_name and duplicate_prepared_statement: the server was not asked to run anything.
LOST = ("26000", "42P05")

#: What raises in the server when a table was altered since a statement on it was prepared.
CHANGED = "RevalidateCachedQuery"

#: Where the kept cursor is kept, on Django's connection.
SLOT = "statemachine_fields_cursor"

#: Where the connection to the server is remembered, there too, on which preparing has failed.
GIVEN_UP = "statemachine_fields_unprepared"

#: What psycopg sends as one type, whatever its size.
Number: type[int] = Int8 if is_psycopg3 else int

#: What Django makes of the values of small fields. psycopg would cut a number that is too large for one to its last bytes, and the
#: server would store that. As the largest type it says that the number is out of range, as it does when Django writes it out.
SMALL_NUMBERS: tuple[type[int], ...] = (Int2, Int4) if is_psycopg3 else ()

#: Keys that are sent as they are, if they are numbers.
NUMBERS = (models.AutoField, models.BigAutoField, models.IntegerField, models.BigIntegerField)

#: Types whose text is the same in an array.
PLAIN = (int, float, uuid.UUID)

#: What makes a cursor, if a backend has no way of its own.
DJANGOS_WAYS = {name: getattr(DatabaseWrapper, name) for name in ("cursor", "_cursor", "create_cursor")}

#: psycopg heeds `prepare=True` only where a threshold is set. This one prepares nobody else's statements.
NEVER_BY_ITSELF = 2**31


#: How many statements a worker's own connection keeps: the driver's own limit is too low for a dozen machines.
MOST_KEPT = 1000


def is_wanted(connection: Any) -> bool:
    """Say whether to prepare on this connection."""
    prepare = conf.settings().PREPARE
    if not is_psycopg3 or prepare is False:
        return False
    # Ours would be run without what a backend does before each cursor, as choosing the schema of a tenant, or what a test or
    # a tool has put in its place.
    if any(getattr(getattr(connection, name), "__func__", None) is not way for name, way in DJANGOS_WAYS.items()):
        return False
    if connection.connection is not None and getattr(connection, GIVEN_UP, None) is connection.connection:
        return False
    options = connection.settings_dict
    pooled = options.get("DISABLE_SERVER_SIDE_CURSORS") or "prepare_threshold" in options.get("OPTIONS", {})
    return prepare is True or not pooled


def is_lost(error: BaseException) -> bool:
    """Say whether the server refused because it no longer has, or no longer can use, the prepared statement."""
    diagnosis = getattr(error.__cause__, "diag", None)
    return sqlstate(error) in LOST or getattr(diagnosis, "source_function", None) == CHANGED


def give_up(connection: Any) -> None:
    """Prepare no more until there is a new connection to the server."""
    vars(connection).update({GIVEN_UP: connection.connection, SLOT: False})  # None would be who lends the cursor out


def key(value: Any) -> Any:
    """Give an integer key one type. By its size it would have one of three, and each its own prepared statement."""
    return Number(value) if isinstance(value, int) and not isinstance(value, bool) else value


def prepared_keys(table: Table, keys: Sequence[Any], connection: Any) -> Any:
    if type(table.key_field) in NUMBERS and set(map(type, keys)) == {int}:
        return array_of(keys)
    prepare = table.key_field.get_db_prep_value
    return array_of([prepare(key, connection) for key in keys])


def named_places(keys: Sequence[Any], rows: Sequence[Sequence[Any]]) -> Written:
    """Return the keys whose places an answer names."""
    return Written([keys[place - 1] for (place,) in rows])


def array_of(values: Sequence[Any]) -> Any:
    """Return values as an array, written out: psycopg's way costs ten times as much Python, which the handlers need."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return "{" + ",".join(map(str, values)) + "}"
    if kinds == {uuid.UUID}:
        return "{" + ",".join([f"{value.int:032x}" for value in values]) + "}"
    if kinds <= {float, type(None)}:  # before equal ones are taken for the same: zero has two signs
        return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"
    texts: dict[Any, str] = {}
    for value in set(values):
        if value is None:
            texts[value] = "NULL"
        elif isinstance(value, str):
            texts[value] = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        elif isinstance(value, PLAIN):
            texts[value] = str(value)
        else:  # a key of a type we know nothing of
            return [*values]
    return "{" + ",".join([texts[value] for value in values]) + "}"


def run(
    connection: Any, text: str, params: tuple[Any, ...], read: Callable[[Any], list[Any]] | None = None
) -> list[Any]:
    """Run a statement and return its rows. A prepared statement that the server has lost is sent again, plainly.

    It runs under Django's own wrapper: query log, execute wrappers and error types stay. One cursor is kept for each
    connection, since making one rebuilds its adapters. It is out of its slot while in use, because an execute wrapper may
    move another row.

    :param read: gets the rows from the cursor, if not `fetchall()` does.
    """
    if connection.health_check_enabled and not connection.health_check_done:
        connection.close_if_health_check_failed()
    connection.ensure_connection()  # or be refused: in a coroutine, and in a test that may not ask
    slots = vars(connection)
    kept = None if "cursor" in slots else slots.get(SLOT)  # who has put another one there wants to see, or to refuse
    if not kept or kept.driver is not connection.connection or kept.wanted_by is not conf.current or kept.closed:
        kept = _new_cursor(connection)
    if kept is not None:
        slots[SLOT], kept.ours = None, text
        try:
            connection._prepare_cursor(kept).execute(text, params)
            # It has the rows already; Django's wrapper would build a function to fetch them with.
            rows: list[Any] = kept.fetchall() if read is None else read(kept)
            return rows
        except DatabaseError as error:
            if not is_lost(error):
                raise
            give_up(connection)
            logger.warning(
                "Database %r lost a prepared statement, as behind a transaction pooler or after a table was altered. "
                "Nothing ran, and this connection prepares no more. If it happens again and again, set "
                "STATEMACHINE_FIELDS['PREPARE'] to False.",
                connection.alias,
            )
            if connection.in_atomic_block:
                raise
        finally:
            if slots[SLOT] is None:
                slots[SLOT] = kept
    with connection.cursor() as cursor:
        cursor.execute(text, params)
        return cursor.fetchall() if read is None else read(cursor)


def _new_cursor(connection: Any) -> PreparingCursor | None:
    """Return a cursor that prepares, if that is wanted. It serves as long as the connection to the server and our settings."""
    if not is_wanted(connection):
        return None
    driver = connection.connection
    made = PreparingCursor(driver)
    made.driver, made.wanted_by = driver, conf.settings()
    for kind in SMALL_NUMBERS:
        made.adapters.register_dumper(kind, Int8Dumper)
    if driver.prepare_threshold is None:
        driver.prepare_threshold = NEVER_BY_ITSELF
    if getattr(connection, "is_direct", False):
        driver.prepared_max = MOST_KEPT
    _name_apart(driver)
    return made


def as_django_reads(microseconds: int, connection: Any) -> datetime.datetime:
    """Return a time as the connection would: aware, or without USE_TZ naive and local."""
    return in_django_time(EPOCH + microseconds * MICROSECOND, connection)


def in_django_time(time: datetime.datetime, connection: Any) -> datetime.datetime:
    """Return a time as the connection would, which is in UTC, or without USE_TZ naive and local."""
    if connection.timezone is not None:
        return time.astimezone(datetime.UTC)
    return time.astimezone(zoneinfo.ZoneInfo(connection.timezone_name)).replace(tzinfo=None)


def _name_apart(driver: Any) -> None:
    """Give the statements of this connection names that no other has. psycopg numbers them from 0 on each: behind a pooler
    that nobody told us of, the server would run what another client prepared under the name of ours."""
    names: Any = getattr(driver, "_prepared", None)
    if getattr(names, "_prepared_idx", None) == 0:
        names._prepared_idx = secrets.randbits(60)


if TYPE_CHECKING or is_psycopg3:

    class PreparingCursor(psycopg.Cursor[Any]):
        """A cursor that binds on the server and prepares what it executes."""

        #: The connection that it is of. psycopg has it too, as a property that costs more to ask.
        driver: Any = None
        #: The settings by which it was made.
        wanted_by: Any = None
        #: What it is to prepare.
        ours: str = ""
        _said: tuple[Any, Any] | None = None
        _sent: Any = None

        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            self._said = (query, params)
            if query != self.ours:  # an execute wrapper may put a statement before it, and a server prepares only one
                return super().execute(psycopg.ClientCursor(self.connection).mogrify(query, params).encode())
            return super().execute(query, params, prepare=True)

        # psycopg leaves `_query` unset when a statement was prepared before, and Django's query log reads it.
        @property
        def _query(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
            if self._said is None:
                return self._sent
            return SimpleNamespace(query=psycopg.ClientCursor(self.connection).mogrify(*self._said).encode())

        @_query.setter
        def _query(self, value: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
            self._sent = value
