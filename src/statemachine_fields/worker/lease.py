"""`Lease`: the right of one worker to move one row until a time; and what its handler is told."""

from __future__ import annotations

import datetime
import os
import secrets
import socket
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db import models

from statemachine_fields.schedule.columns import OWNER_LENGTH

if TYPE_CHECKING:
    from statemachine_fields.schedule.policy import Schedule
    from statemachine_fields.worker.lanes import Lane


def now() -> float:
    """Return seconds by a clock that nobody sets and that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(BOOTTIME) if BOOTTIME is not None else time.monotonic()


BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


@dataclass(slots=True, eq=False)
class Lease:
    """One claimed row. The token is the only authority; everything else is for people and for policy."""

    lane: Lane
    schedule: Schedule
    key: Any
    token: int
    status: str
    sequence: int
    failures: int
    crashes: int
    #: How long the row has been in its state, by the database's clock, when it was claimed.
    age: float
    #: What went wrong before; of a recovered row, from whom it was taken.
    error: str
    #: The row, or None if it could not be loaded, and why.
    instance: models.Model | None
    load_error: Exception | None
    #: By `now()`: until when nobody else can have the row. Extended by heartbeats.
    trusted_until: float
    is_recovered: bool = False
    is_lost: bool = False
    #: That its handler's time was up, or the process's: what it still says is not heard.
    is_stopped: bool = False
    #: When its handler began, and by when it has to be done.
    started_at: float | None = None
    deadline: float | None = None
    #: The connection of an atomic handler, which has the row locked.
    connection: Any = None
    #: How long the handler ran.
    seconds: float = 0.0
    #: How often an atomic handler was undone because somebody else was in its way.
    conflicts: int = 0

    @property
    def label(self) -> str:
        return f"{self.lane.bound.model._meta.label} pk={shown(self.key)}"

    @property
    def log_fields(self) -> dict[str, Any]:
        """What a line in the log is about, for programs."""
        return {**row_fields(self.lane, self.key), "state": self.status, "attempt": self.failures + 1}

    @property
    def is_async(self) -> bool:
        """Whether its handler wants an event loop."""
        handler = self.schedule.handler
        return handler is not None and handler.is_async

    @property
    def is_trusted(self) -> bool:
        return not self.is_lost and now() < self.trusted_until

    def stop(self) -> None:
        """Hear no more of the handler, and undo the transaction it is in, so that its row can be written."""
        self.is_stopped = True
        connection = self.connection  # its thread takes it away when it is done
        if connection is not None:
            self.lane.dialect.hang_up(connection)


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
    def stopping(self) -> bool:
        """Whether the worker is about to stop, or has lost the row: a long handler should come to an end."""
        return self._stop.is_set() or not self.lease.is_trusted


def row_fields(lane: Lane, key: Any) -> dict[str, Any]:
    """Return which row a line in the log is about."""
    bound = lane.bound
    return {
        "model": bound.model._meta.label,
        "machine": bound.accessor,
        "key": key if isinstance(key, int) else shown(key) if not isinstance(key, str | uuid.UUID) else str(key),
        "database": lane.using,
    }


def shown(key: Any) -> str:
    """Return a key for people, also one of a class whose own words fail."""
    try:
        return repr(key)
    except Exception:  # noqa: BLE001
        return f"<{type(key).__name__}>"


def new_owner() -> str:
    """Return a name for this process that no other has, also where every container is process 1 of the same host."""
    return f"{socket.gethostname()[: OWNER_LENGTH - 20]}:{os.getpid()}:{secrets.token_hex(3)}"
