"""The watch of a process: stops handlers whose time is up, and tells the supervisor that the process lives.

It runs in the main thread and never talks to a database, so nothing but code that holds on to the interpreter can keep it
from running; and of that the supervisor takes care.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from statemachine_fields.worker.lease import Lease
from statemachine_fields.worker.runner import Runner

logger = logging.getLogger("statemachine_fields.worker")

TELL_EVERY = 0.5
#: How long a coroutine that was cancelled may take to end before its process is replaced.
GRACE = 1.0


class Watch:
    """Looks after one runner, at each `tick()`."""

    def __init__(self, runner: Runner, tell: Callable[[], bool]) -> None:
        self.runner = runner
        self.tell = tell
        self._told_at = 0.0
        self._cancelled: dict[Lease, float] = {}

    def tick(self) -> None:
        self._stop_the_overdue()
        now = time.monotonic()
        if now - self._told_at >= TELL_EVERY:
            self._told_at = now
            if not self.tell() and not self.runner.stopping.is_set():
                logger.error("The supervisor of worker process %d is gone. The process stops.", os.getpid())
                self.runner.stopping.set()

    def _stop_the_overdue(self) -> None:
        now = time.monotonic()
        for lease in list(self.runner.running):
            if lease.deadline is not None and now >= lease.deadline and not lease.is_stopped:
                self._stop(lease, now)
        for lease, until in list(self._cancelled.items()):
            if lease not in self.runner.running:
                del self._cancelled[lease]
            elif now > until:
                del self._cancelled[lease]
                self.runner.recycle(f"the coroutine of {lease.label} in state {lease.status!r} cannot be cancelled")

    def _stop(self, lease: Lease, now: float) -> None:
        lease.stop()
        self.runner.outbox.add(self.runner.attempts.time_is_up(lease))
        self.runner.outbox.flush()
        task = self.runner.tasks.get(lease)
        if task is not None:
            self.runner.cancel(task)
            self._cancelled[lease] = now + GRACE
        else:  # a thread cannot be stopped, but its process can be ended
            self.runner.recycle(f"{lease.label} ran longer than its time limit in state {lease.status!r}")
