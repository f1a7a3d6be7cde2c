"""What a worker asks of a database: take due rows, keep them, give them back, and write what became of them.

Every answer names the rows for which it is true, and every write compares the token: what is not in the answer was not
written. A row that somebody else has locked is never waited for; `held()` tells such rows from those that are lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

from statemachine_fields.db.dialect import Table, dialect_for


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows to claim: of which states, by urgency, how many, for whom and for how long."""

    states: Sequence[str]
    priorities: Sequence[int]
    limit: int
    owner: str
    seconds: float
    #: Of how many workers' deaths the rows may be the cause: 0, 1, or 2 for more than one.
    crashes: int
    #: The fields of the row to read.
    fields: tuple[Any, ...]
    #: Only these rows, or all but those that are set aside; keys as `candidates()` returns them.
    keys: Sequence[Any] | None = None
    aside: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """Which rows to take back: those whose lease has run out, or all that somebody holds who is known to be gone."""

    owner: str | None = None
    #: Keys of rows to leave alone.
    held: Sequence[Any] = ()
    #: Whether a crash is counted on each, and written from whom it was taken.
    is_crash: bool = True


class Recovered(NamedTuple):
    """How many rows were taken back, and whether there were any that somebody holds or a worker may have died of."""

    rows: int
    seen: bool


class Claimed(NamedTuple):
    """A row that was taken: its age in its state by the database's clock, and the values of the fields asked for."""

    age: float
    values: tuple[Any, ...]
    #: What the driver could not read in it. The key and the machine's own columns are there nevertheless.
    error: Exception | None = None


@dataclass(slots=True)
class Settled:
    """What becomes of a row that stays in its state."""

    key: Any
    token: int
    status: str
    #: In how many seconds it is due, but no later than `horizon` seconds after it entered its state; None for never.
    delay: float | None
    horizon: float | None
    failures: int
    error: str


@dataclass(slots=True)
class Moving:
    """What becomes of a row that moves."""

    key: Any
    token: int
    status: str
    to_status: str
    delay: float | None
    record_id: uuid.UUID
    metadata: str


@dataclass(slots=True)
class Tally:
    """How much of what happened, to be added to what other workers have counted."""

    machine: str
    state: str
    counts: dict[str, float] = field(default_factory=dict)


class Leases(Protocol):
    """One database's way to lease rows. `keys` and `tokens` are pairs."""

    #: Whether many processes can work side by side.
    is_shared: bool

    def claim(self, connection: Any, table: Table, wanted: Wanted) -> list[Claimed]:
        """Lease due rows that nobody holds."""
        ...

    def candidates(self, connection: Any, table: Table, wanted: Wanted) -> list[Any]:
        """Return the keys of rows that such a claim would take, as the database has them, and lock none."""
        ...

    def beat(
        self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int], seconds: float
    ) -> set[Any]:
        """Extend leases and return the keys of those that were."""
        ...

    def held(self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        """Return the keys that are still leased with these tokens, locked or not."""
        ...

    def release(self, connection: Any, table: Table, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        """Give rows back as they were: due, and with no crash counted."""
        ...

    def settle(self, connection: Any, table: Table, settled: Sequence[Settled]) -> set[Any]:
        """Write what became of rows that stay in their state, and end their leases."""
        ...

    def move(
        self, connection: Any, table: Table, moving: Sequence[Moving], updates: Sequence[tuple[str, Any]]
    ) -> set[Any]:
        """Move rows, record each move, and end the leases."""
        ...

    def lock(self, connection: Any, table: Table, key: Any, token: int) -> bool:
        """Lock one row until the transaction ends if it is still leased with this token and nobody else has it locked."""
        ...

    def recover(self, connection: Any, table: Table, states: Sequence[str], left: Left) -> Recovered:
        """Take back what was left behind.

        It looks no further than where the rows end that somebody holds, so that it takes no longer the more are due.
        """
        ...

    def is_statement_lost(self, error: BaseException) -> bool:
        """Say whether nothing was run, because the server no longer has what was prepared, and the next try will not ask."""
        ...

    def hang_up(self, connection: Any) -> None:
        """Break the connection of another thread, so that the database ends its transaction now."""
        ...

    def is_clean(self, connection: Any) -> bool:
        """Say whether the connection works and has no transaction open, also none that Django does not know of."""
        ...

    def introduce(self, connection: Any, name: str) -> None:
        """Give a connection a name that operators of the database see, if it is ours alone."""
        ...

    def is_broken(self, connection: Any) -> bool:
        """Say whether the other side has ended the connection, and not the program."""
        ...

    def own_class(self, base: type[Any]) -> type[Any]:
        """Return Django's class for connections to this database, with an end to everything it waits for."""
        ...

    def transaction_number(self, connection: Any) -> int | None:
        """Return what `was_committed()` knows the open transaction by; None if an answer cannot get lost here."""
        ...

    def was_committed(self, connection: Any, number: int) -> bool | None:
        """Say whether a transaction was committed whose end nobody told us; None if it has not ended."""
        ...

    def add_up(self, connection: Any, table: str, period: Any, tallies: Collection[Tally]) -> None:
        """Add counts to those of the same machine, state and period."""
        ...


def leases_for(connection: Any) -> Leases:
    """Return what leases rows of this database."""
    return _leases(dialect_for(connection).is_one_statement)


def is_served(connection: Any) -> bool:
    """Say whether workers can run the rows of this database."""
    # What is not shared relies on a lock that holds the whole database, as SQLite's does for want of locks on rows.
    return leases_for(connection).is_shared or not connection.features.has_select_for_update


@cache
def _leases(is_one_statement: bool) -> Leases:
    if is_one_statement:
        from statemachine_fields.db.postgresql_leases import PostgreSQLLeases

        return PostgreSQLLeases()
    from statemachine_fields.db.portable_leases import PortableLeases

    return PortableLeases()


#: What is written on a row whose worker has vanished, between and after its name.
RECOVERED = ("Recovered from ", ", which stopped extending its lease.")
DIED = ("Recovered from ", ", which died.")
