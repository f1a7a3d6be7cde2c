"""What is asked of a database, and who answers. The one place that reads `connection.vendor`."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from django.db import InterfaceError, OperationalError, models

if TYPE_CHECKING:
    from statemachine_fields.db.claims import Claimed, Left, Level, NextDue, Recovered, SurveyedLevel, Wanted
    from statemachine_fields.db.columns import Table
    from statemachine_fields.db.durations import Stay, Window
    from statemachine_fields.db.effects import Effect
    from statemachine_fields.db.inbox import DeliveredEvent, Receipt, Receivers
    from statemachine_fields.db.riders import Rider


#: Fields, and of each a value for every row.
FieldValues: TypeAlias = "Sequence[tuple[Any, Sequence[Any]]]"

#: What comes before a gate in the message that a listener holds it no more.
LEFT = "left "


@dataclass(slots=True)
class SelectedWrite:
    """The values of moves to one state, of whatever rows a query finds."""

    to_status: str
    #: The states from which there is such a move.
    sources: list[str]
    #: The first 96 bits of this are those of each record's id; the rest counts up.
    first_id: uuid.UUID
    metadata: str
    #: Other columns that are set, and to what.
    updates: Sequence[tuple[str, Any]] = ()
    delay: float | None = None
    #: With how many events to compare the inbox, where the machine has one and rows wait for events in that state.
    seen: int | None = None

    @property
    def start(self) -> int:
        """What ids are counted from in their last 32 bits: low enough never to overflow them."""
        return self.first_id.int & 0x7FFFFFFF

    def ids(self, moved: int) -> tuple[uuid.UUID, uuid.UUID]:
        """Return the first and the last id of so many records."""
        base = self.first_id.int >> 32 << 32
        return uuid.UUID(int=base + self.start + 1), uuid.UUID(int=base + self.start + moved)


class Written(set[Any]):
    """The keys of rows that were written, and of those among them that were to sleep and are due at once, because more has come
    into their inbox than was seen."""

    def __init__(self, keys: Iterable[Any] = (), woken: Iterable[Any] = ()) -> None:
        super().__init__(keys)
        self.woken = frozenset(woken)


class SelectedWritten(NamedTuple):
    """What became of a batch: rows seen, rows moved, the last key, and key and status of those refused.

    Keys are as the driver reads them: the converters of their field have not seen them yet.
    """

    seen: int
    moved: int
    last: Any
    refused: list[tuple[Any, str]]


class LockedRow(NamedTuple):
    """Where a locked row stands."""

    status: str
    sequence: int
    #: Of a timed machine.
    lease_token: int | None = None


class RowWriteKind(NamedTuple):
    """What a write of one row is: an effect, what is compared besides the key, and whether it is recorded."""

    table: Table
    effect: Effect
    compares: tuple[str, ...] = ("status",)
    records: bool = True
    #: Other columns that it sets, and other columns of the audit table that it fills.
    updates: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()


class RowWriter(Protocol):
    """A write of one row, ready to be made again and again."""

    def __call__(
        self, connection: Any, key: Any, given: tuple[Any, ...], compared: tuple[Any, ...], record: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        """Compare and set the row; None if the comparison missed.

        :param given: what the effect wants, in its order, and then values for the other columns that are set.
        :param record: id, both states, metadata and other columns of the audit row, where one is written.
        :return: of a move the row's counter and time; of a timed machine also when it is due, and its token.
        """
        ...


class Dialect(Protocol):
    """One database's way to write rows, to lease them, and to be asked about them.

    Every write compares, and every answer names the rows for which it is true: what is not in the answer was not written.
    `keys` and `tokens` are pairs. What has an answer here is that of a database in a file: it is never silent, no answer of
    its own gets lost, and a transaction ends with its process.
    """

    #: Whether a move is a single statement, which needs no transaction around it.
    is_one_statement: bool
    #: Whether many worker processes can work side by side.
    is_shared: bool
    #: Whether somebody who waits for rows can be told that one is due, and whether our drivers let somebody hear it.
    can_notify: bool = False
    can_listen: bool = False
    #: Whether the default that Django gives a time column is UTC. On MariaDB it is the session's local time.
    default_is_utc: bool

    def read_clock(self, connection: Any) -> datetime.datetime | None:
        """Return the time, for rows that are inserted together; None if each is to let the database compute its own."""
        return None

    def row_write(self, connection: Any, kind: RowWriteKind) -> RowWriter:
        """Return what writes one row."""
        ...

    def carries(self, connection: Any, field: models.Field[Any, Any]) -> bool:
        """Say whether values of a field, one for each row, can be written by `write_rows()`."""
        return True

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
        """Write many rows, and return the keys of those that were as they had to be and that nobody has locked.

        :param rows: a list for each of: `key`, what is compared as `was_status` and so on, what the effect wants (and
            `horizon`, if that bounds it), and of records `record` and `metadata`.
        :param updates: other columns, and what they are set to on each row.
        :param values: other fields that `carries()` is true of, and a value for each row, as the field prepares it.
        :param riders: what else is written for those of them that move. Only where moves are recorded.
        """
        ...

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
        """Write many rows that are leased afterwards, as `write_rows()` does, and return those that were, read as a claim reads
        them, by their keys."""
        ...

    def write_selected(
        self, connection: Any, table: Table, effect: Effect, write: SelectedWrite, select: str, params: Sequence[Any]
    ) -> SelectedWritten:
        """Move the rows that a SELECT of key and status finds, in one statement. Asked only where that is possible."""
        ...

    def lock(self, connection: Any, table: Table, key: Any) -> LockedRow | None:
        """Lock the row until the transaction ends and say where it stands; None if it is gone."""
        ...

    def lock_held(self, connection: Any, table: Table, key: Any, token: int) -> bool:
        """Lock one row until the transaction ends if it is still leased with this token and nobody else has it locked."""
        ...

    def held(self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        """Return the keys that are still leased with these tokens, locked or not."""
        ...

    def deliver(self, connection: Any, table: Table, event: DeliveredEvent, receivers: Receivers) -> Receipt:
        """Put an event into the inbox of a row, and make the row due if it waits for it and nobody holds it."""
        ...

    def deliver_many(
        self, connection: Any, table: Table, events: Sequence[DeliveredEvent], receivers: Receivers
    ) -> list[Receipt]:
        """Do the same for many rows, in the order of their keys, and answer in the order of the events. In a transaction only."""
        ...

    def claim(self, connection: Any, table: Table, wanted: Wanted) -> list[Claimed]:
        """Lease due rows that nobody holds."""
        ...

    def candidates(self, connection: Any, table: Table, wanted: Wanted) -> list[Any]:
        """Return the keys of rows that such a claim would take, as the database has them, and lock none."""
        ...

    def recover(self, connection: Any, table: Table, states: Sequence[str], left: Left) -> Recovered:
        """Take back what was left behind.

        It looks no further than where the rows end that somebody holds, so that it takes no longer the more are due.
        """
        ...

    def next_due(self, connection: Any, table: Table, states: Sequence[str]) -> NextDue:
        """Say whether a row of these states is due, and when the next one is, by what an index knows."""
        ...

    def unless_taken(self, columns: Sequence[str], where: str) -> str:
        """Return what makes an INSERT leave a row out that has the same in these columns as one under the unique index that
        covers rows of which this holds; nothing where a refused INSERT does no harm to the transaction.

        :param columns: their names, quoted.
        """
        return ""

    def survey(
        self, connection: Any, table: Table, members: Sequence[Level], *, later: bool = True
    ) -> list[SurveyedLevel]:
        """Return the levels in use, of each member the most urgent first, and when rows of them are due. Where priorities need not be
        known, they are left out.

        :param members: states, or states and queues.
        :param later: whether it matters when the next row of a level is due that has due rows.
        """
        ...

    def fillfactor_sql(self, table: str, percent: int | None) -> str | None:
        """Return what lets pages of a table be filled so far, or as far as by default; None if that cannot be said here.

        :param table: its name, quoted.
        """
        return None

    def is_conflict(self, error: BaseException) -> bool:
        """Say whether the database gave up because of another transaction: deadlock, serialisation, lock time-out."""
        ...

    def is_statement_lost(self, error: BaseException) -> bool:
        """Say whether nothing was run, because the server no longer has what was prepared, and the next try will not ask."""
        return False

    def notify(self, connection: Any, gates: Collection[int]) -> set[int]:
        """Tell those who wait behind a gate that a row is due, and return behind which somebody does."""
        return set()

    # What a listener asks, where it can listen.

    def listen(self, connection: Any) -> Any:
        """Hear messages from now on: return what has them, and what can be waited for with `select()`."""
        return None

    def send(self, connection: Any, message: str) -> None:
        """Send a message to all who listen."""
        return

    def take_gates(self, connection: Any, gates: Collection[int]) -> set[int]:
        """Wait behind gates until they are left or the connection ends, and return those that nobody else waits behind."""
        return set()

    def leave_gates(self, connection: Any, gates: Collection[int]) -> None:
        """Wait behind gates no more, and tell other listeners."""
        return

    def durations(self, connection: Any, table: Table, window: Window) -> list[Stay]:
        """Say how long rows stayed, for each state and each edge that they left by within the window."""
        ...

    def hang_up(self, connection: Any) -> None:
        """Break the connection of another thread, so that the database ends its transaction now."""
        return

    def is_clean(self, connection: Any) -> bool:
        """Say whether the connection works and has no transaction open, also none that Django does not know of."""
        ...

    def is_broken(self, connection: Any) -> bool:
        """Say whether the other side has ended the connection, and not the program."""
        return False

    def set_application_name(self, connection: Any, name: str) -> None:
        """Give a connection a name that operators of the database see, if it is ours alone."""
        return

    def own_class(self, base: type[Any]) -> type[Any]:
        """Return Django's class for connections to this database, with an end to everything it waits for."""
        return base

    def transaction_number(self, connection: Any) -> int | None:
        """Return what `was_committed()` knows the open transaction by; None if an answer cannot get lost here."""
        return None

    def was_committed(self, connection: Any, number: int) -> bool | None:
        """Say whether a transaction was committed whose end nobody told us; None if it has not ended."""
        return None


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


def is_served(connection: Any) -> bool:
    """Say whether workers can run the rows of this database."""
    # What is not shared relies on a lock that holds the whole database, as SQLite's does for want of locks on rows.
    return dialect_for(connection).is_shared or not connection.features.has_select_for_update


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


def is_timeout(error: BaseException) -> bool:
    """Say whether a statement was ended because it took too long, or because somebody wanted it ended."""
    return sqlstate(error) == "57014"
