"""How a worker is to run: what the command line and the settings come to. Plain values, so that it can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from statemachine_fields.conf import settings


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
