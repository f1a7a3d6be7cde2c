"""What a worker finds of what a leased row waits for: the bases. Each kind of `until=` has a class of both; `waits.py` lists them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from statemachine_fields.schedule.waiting import Until
from statemachine_fields.worker.answers import Move

if TYPE_CHECKING:
    from statemachine_fields.worker.lease import Lane, Lease


class Awaited(ABC):
    """What was found of what one leased row waits for."""

    __slots__ = ()

    @property
    @abstractmethod
    def has_happened(self) -> bool:
        """Whether there is something to run the handler for, or to move the row."""

    @property
    @abstractmethod
    def version(self) -> Hashable:
        """What changes whenever more has happened."""

    @property
    def goes_by_itself(self) -> bool:
        """Whether it moves the row, once it has happened, though there is a handler."""
        return False

    @property
    def parks(self) -> str:
        """Why the row can only be parked, where there is no handler; empty if `move()` says where it goes."""
        return ""

    @abstractmethod
    def move(self) -> Move:
        """Return where the row goes by itself. Asked where there is no handler, once it has happened."""

    @property
    def seen(self) -> int | None:
        """How much of the row's inbox was looked at, which is compared when the row is let go; None if nothing was."""
        return None

    def taken(self, move: Move) -> tuple[int, ...]:
        """Return the numbers of the events that a move takes, or raise ValueError."""
        if move.take:
            raise ValueError("Move(take=...) names events, and the row's state waits for none. Leave take out.")
        return ()

    def is_left_for(self, until: Until, taken: Sequence[int]) -> bool:
        """Say whether something is left, after a move has taken some, that the state waits for which it leads to."""
        return False


class WaitKind(ABC):
    """How it is found out whether something has happened that rows wait for."""

    @abstractmethod
    def find(self, lane: Lane, leases: Sequence[Lease]) -> None:
        """Give each lease what is `awaited`, with a constant number of statements. They are claimed and not yet run."""

    def look(self, lane: Lane) -> bool:
        """Make rows of a lane due that sleep though it has happened, where nobody else may have done so.

        Says whether other rows were moved on the way, so that there may be more to look for.
        """
        return False

    def slept(self, lane: Lane, leases: Sequence[Lease]) -> None:  # noqa: B027 - most need not
        """Hear of rows that sleep on, because nothing had happened when they were claimed. By now it may have."""
