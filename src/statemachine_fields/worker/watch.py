"""The watch of a process: stops handlers whose time is up, hangs up on servers that have fallen silent, and tells the
supervisor that the process lives.

It runs in the main thread and never talks to a database, so nothing but code that holds on to the interpreter can keep it
from running; and of that the supervisor takes care.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from statemachine_fields.worker.connections import close_connections
from statemachine_fields.worker.lease import Lease
from statemachine_fields.worker.runner import Runner

logger = logging.getLogger("statemachine_fields.worker")

REPORT_EVERY = 0.5
#: How long a coroutine that was cancelled may take to end before its process is replaced.
GRACE = 1.0


class Watchdog:
    """Looks after one runner, at each `tick()`."""

    def __init__(self, runner: Runner, report: Callable[[], bool]) -> None:
        self.runner = runner
        self.report = report
        self._reported_at = 0.0
        self._cancelled: dict[Lease, float] = {}

    def tick(self) -> None:
        self._stop_the_overdue()
        for line in self.runner.own.hang_up_on_the_silent():
            text = "The %s got no answer from the database for too long, and hangs up."
            self.runner.events.digest.log(("silent", line), logging.WARNING, text, line)
        self.runner.tick()
        now = time.monotonic()
        if now - self._reported_at >= REPORT_EVERY:
            self._reported_at = now
            self.runner.events.digest.flush()
            if not self.report() and not self.runner.stopping.is_set():
                logger.error("The supervisor of worker process %d is gone. The process stops.", os.getpid())
                self.runner.stopping.set()

    def _stop_the_overdue(self) -> None:
        now = time.monotonic()
        is_blocked = self.runner.loop.is_blocked()
        for lease in list(self.runner.inflight.running):
            if lease.deadline is None or now < lease.deadline or lease.is_stopped:
                continue
            if is_blocked and lease.is_async:
                self._unblock()
                return
            self._stop(lease, now)
        for lease, until in list(self._cancelled.items()):
            if lease not in self.runner.inflight.running:
                del self._cancelled[lease]
            elif now > until:
                del self._cancelled[lease]
                self.runner.recycle(f"the coroutine of {lease.label} in state {lease.status!r} cannot be cancelled")

    def _unblock(self) -> None:
        """End a process in which no coroutine can go on because of one, and hold that against none of the others."""
        culprit = self.runner.loop.blocked_by()
        for lease in list(self.runner.inflight.running):
            if lease.is_async and not lease.is_stopped:
                lease.stop()
                if lease is culprit:
                    self._time_is_up(lease)
                else:
                    self.runner.running.give_back([lease], "Another coroutine blocked the event loop.")
        self.runner.commits.flush()
        who = "a coroutine" if culprit is None else f"the coroutine of {culprit.label} in state {culprit.status!r}"
        self.runner.recycle(f"{who} blocks the event loop")

    def _time_is_up(self, lease: Lease) -> None:
        """Have it written that a handler was stopped. Guards may be asked about that, who may ask the database."""
        if lease.lane.bound.guards:
            threading.Thread(target=self._judge, args=(lease,), name="statemachine handler watch", daemon=True).start()
        else:
            self._judge(lease)

    def _judge(self, lease: Lease) -> None:
        self.runner.commits.post(self.runner.executor.time_is_up(lease))
        self.runner.commits.flush()
        if threading.current_thread() is not threading.main_thread():
            close_connections()

    def _stop(self, lease: Lease, now: float) -> None:
        lease.stop()
        self._time_is_up(lease)
        if self.runner.loop.cancel(lease):
            self._cancelled[lease] = now + GRACE
        else:  # a thread cannot be stopped, but its process can be ended
            self.runner.recycle(f"{lease.label} ran longer than its time limit in state {lease.status!r}")
