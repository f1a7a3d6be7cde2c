"""What is delivered into the inboxes of rows, and what became of it."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class DeliveredEvent(NamedTuple):
    """One event for one row."""

    id: uuid.UUID
    key: Any
    name: str
    #: As JSON.
    payload: str
    #: By which it is known if it comes again; None if it never does.
    dedup_key: str | None


@dataclass(frozen=True, slots=True)
class Receivers:
    """Which rows of a machine get events: all but those in a state that nothing leads out of; and which wait for what."""

    terminal: Collection[str]
    #: The names of events that rows wait for, by state.
    awaited: Mapping[str, Collection[str]]

    def waiting_for(self, name: str) -> list[str]:
        """Return the states that wait for an event."""
        return [state for state, names in self.awaited.items() if name in names]


class Receipt(NamedTuple):
    """What became of an event."""

    #: Where the row is; None if there is none.
    status: str | None
    #: Which of the row's events it is; None if it was not written: it came before, or the row gets none any more.
    number: int | None
    #: Whether the row waits for it, and is due now.
    is_woken: bool
