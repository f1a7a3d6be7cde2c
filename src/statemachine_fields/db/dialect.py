"""What the write path asks of a database, and who answers. The one place that reads `connection.vendor`."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

from django.db import InterfaceError, OperationalError, models

from statemachine_fields.db.durations import Stay, Window


@dataclass(frozen=True, slots=True)
class ClockNames:
    """The names, in the database, of the columns that a timed machine has."""

    next_at: str
    lease_owner: str
    lease_expires_at: str
    lease_token: str
    failures: str
    crashes: str
    error: str


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The names, in the database, of a machine's columns and of its audit table's."""

    name: str
    key: str
    status: str
    sequence: str
    changed_at: str
    audit: str
    key_field: models.Field[Any, Any]
    id_field: models.Field[Any, Any]
    time_field: models.Field[Any, Any]
    clock: ClockNames | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Which statement a move is. A machine keeps the few it has, so each is itself, and its text is made once."""

    table: Table
    #: Whether the statement sets the status. If not, a `save()` will.
    moves: bool = True
    #: Whether it inserts the audit row. If not, the audit model's own `save()` will.
    records: bool = True
    #: Other columns that are compared as well as the status.
    compares: tuple[str, ...] = ()
    #: Other columns of the row that it sets, and other columns of the audit table that it fills.
    updates: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()


@dataclass(slots=True)
class Move:
    """The values of one move, ready for the database."""

    key: Any
    from_status: str
    to_status: str
    record_id: uuid.UUID
    metadata: str
    compared: tuple[Any, ...] = ()
    updates: tuple[Any, ...] = ()
    extras: tuple[Any, ...] = ()
    #: On a timed machine: in how many seconds the row is due; None for never.
    delay: float | None = None


@dataclass(slots=True)
class BulkMove:
    """The values of the moves of one batch to one state."""

    to_status: str
    #: The states from which there is such a move.
    sources: list[str]
    #: The first 96 bits of this are those of each record's id; the rest counts up.
    first_id: uuid.UUID
    metadata: str
    updates: tuple[Any, ...] = ()
    delay: float | None = None


class BulkMoved(NamedTuple):
    """What became of a batch: rows seen, rows moved, the last key, and key and status of those refused.

    Keys are as the driver reads them: the converters of their field have not seen them yet.
    """

    seen: int
    moved: int
    last: Any
    refused: list[tuple[Any, str]]


class Moved(NamedTuple):
    """What a move that happened was given by the database."""

    sequence: int
    changed_at: datetime.datetime
    #: Of a timed machine.
    next_at: datetime.datetime | None = None
    lease_token: int | None = None


class Row(NamedTuple):
    """Where a locked row stands."""

    status: str
    sequence: int
    #: Of a timed machine.
    lease_token: int | None = None


class Dialect(Protocol):
    """One database's way to write a move."""

    #: Whether `move()` is a single statement, which needs no transaction around it.
    is_one_statement: bool
    #: Whether the default that Django gives a time column is UTC. On MariaDB it is the session's local time.
    default_is_utc: bool

    def move(self, connection: Any, shape: Shape, move: Move) -> Moved | None:
        """Compare and set the row, raise its counter and insert the audit row; None if the comparison missed."""
        ...

    def bulk_move(self, connection: Any, shape: Shape, move: BulkMove, select: str, params: Sequence[Any]) -> BulkMoved:
        """Move the rows that a SELECT of key and status finds, in one statement. Asked only where that is possible."""
        ...

    def lock(self, connection: Any, table: Table, key: Any) -> Row | None:
        """Lock the row until the transaction ends and say where it stands; None if it is gone."""
        ...

    def is_conflict(self, error: Exception) -> bool:
        """Say whether the database gave up because of another transaction: deadlock, serialisation, lock time-out."""
        ...

    def durations(self, connection: Any, table: Table, window: Window) -> list[Stay]:
        """Say how long rows stayed, for each state and each edge that they left by within the window."""
        ...


def dialect_for(connection: Any) -> Dialect:
    """Return what speaks to this database."""
    return _dialect(connection.vendor)


@cache  # one for each vendor, so each keeps texts of its own
def _dialect(vendor: str) -> Dialect:
    if vendor == "postgresql":
        from statemachine_fields.db.postgresql import PostgreSQL

        return PostgreSQL()
    from statemachine_fields.db.portable import Portable

    return Portable()


def sqlstate(error: BaseException) -> str | None:
    """Return the code behind an error of Django's; psycopg 3 and 2 call it differently."""
    cause = error.__cause__
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)


def is_connection_error(error: BaseException) -> bool:
    """Say whether an error may be the end of a connection, or of what a server can do at the moment.

    PostgreSQL gives other errors a code. Class 08 is a broken connection, 57P a server that shuts down, 53 one that is out
    of resources, 25006 one that has become read-only. Errors without a code come from the driver: a connection that
    broke, but also a cursor that the program has closed.
    """
    cause = error.__cause__
    if not isinstance(error, OperationalError | InterfaceError) and not is_scarcity(error):
        return False
    if not type(cause).__module__.startswith("psycopg"):
        return False
    code = sqlstate(error) or ""
    return not code or code.startswith(("57P", "08", "53", "25006"))


def is_scarcity(error: BaseException) -> bool:
    """Say whether the server is there and cannot work: out of disk, memory or connections, or read-only."""
    return (sqlstate(error) or "").startswith(("53", "25006"))
