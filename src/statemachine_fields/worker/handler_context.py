"""What a handler may want to know of the try it is: the `ctx` that it is called with."""

from __future__ import annotations

import datetime
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from statemachine_fields.worker.inbox import Inbox
from statemachine_fields.worker.lease import Lease
from statemachine_fields.worker.waits import children_of

if TYPE_CHECKING:
    from statemachine_fields.machine.events import StateEvent
    from statemachine_fields.schedule.children import ChildCounts


@dataclass(slots=True, eq=False)
class HandlerContext:
    """What a handler may want to know of the try it is."""

    lease: Lease
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def attempt(self) -> int:
        """Which try this is in this state, from 1. Those that said "not yet" do not count."""
        return self.lease.failures + 1

    @property
    def entered_at(self) -> datetime.datetime:
        """When the row entered its state."""
        entered: datetime.datetime = getattr(self.lease.instance, self.lease.lane.bound.names.changed_at)
        return entered

    @property
    def token(self) -> int:
        """The number of this claim of this row. It grows with every one, so that others can refuse what an older try sends.
        It is no key for idempotency, which must be the same when the handler is run again: use the row's key and
        `status_sequence` for that."""
        return self.lease.token

    @property
    def time_left(self) -> float | None:
        """Seconds until the time limit stops the handler; None if it has none."""
        deadline = self.lease.deadline
        return None if deadline is None else max(deadline - time.monotonic(), 0.0)

    @property
    def events(self) -> tuple[StateEvent[Any], ...]:
        """The events that the state waits for and no move has taken, in order: never none, where it waits for some."""
        awaited = self.lease.awaited
        return awaited.events if isinstance(awaited, Inbox) else ()

    @property
    def children(self) -> ChildCounts:
        """How many children the row has in each state, if it waits for them: as of when it was claimed."""
        return children_of(self.lease)

    @property
    def stopping(self) -> bool:
        """Whether the worker is about to stop, or has lost the row: a long handler should come to an end."""
        return self._stop.is_set() or not self.lease.is_trusted
