"""How a worker is to run: what the command line and the settings come to. Plain values, so that it can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from statemachine_fields.conf import settings

if TYPE_CHECKING:
    from statemachine_fields.worker.lease import Lane


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """One worker's orders."""

    #: The machines to serve, by label: `app.Model.accessor`.
    machines: tuple[str, ...]
    processes: int = 1
    threads: int = 4
    #: How many coroutines each process runs at once, for handlers that are async.
    coroutines: int = 100
    #: In how many threads, each with a connection of its own, those use the ORM.
    coroutine_connections: int = 8
    #: The queues to serve, and how many rows of each may run at once in a process; all queues if empty.
    queues: Mapping[str, int | None] = field(default_factory=dict)
    #: Stop as soon as nothing is due.
    once: bool = False
    #: Stop after so many seconds; 0 for never.
    run_for: float = 0.0
    #: Replace a process after it has taken so many rows; 0 for never.
    max_rows: int = 0
    liveness_file: str | None = None
    database: str | None = None

    lease_seconds: float = field(default_factory=lambda: settings().LEASE_SECONDS)
    poll_seconds: float = field(default_factory=lambda: settings().POLL_SECONDS)
    batch_size: int = field(default_factory=lambda: settings().BATCH_SIZE)
    time_limit: float | None = field(default_factory=lambda: settings().TIME_LIMIT_SECONDS)
    max_crashes: int = field(default_factory=lambda: settings().MAX_CRASHES)
    stop_seconds: float = field(default_factory=lambda: settings().STOP_SECONDS)

    def most(self, lane: Lane) -> int:
        """Return how many rows of the kind that a lane has a process can run at the same time."""
        return self.coroutines if lane.is_async else self.threads

    def at_once(self, lane: Lane) -> int:
        """Return how many rows of a lane that can be."""
        return min(self.most(lane), self.queues.get(lane.queue) or self.most(lane))
