"""Rows on their way through a process: claimed and waiting for a thread, and done and waiting to be written.

Threads take rows one by one and sleep only when there are none; no row has a future or a lock of its own, which would
cost more than everything else that is done with it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

from statemachine_fields.worker.lanes import Lane
from statemachine_fields.worker.lease import Lease
from statemachine_fields.worker.outcomes import Verdict

#: How long an outcome waits for others to be written with, while there are more to come.
LINGER = 0.005


class Buffer:
    """Claimed rows, handed out in turns between lanes, no more of a queue at once than its limit."""

    def __init__(self, lanes: Iterable[Lane], limits: Mapping[str, int | None]) -> None:
        self._free = threading.Condition()
        self._rows: dict[Lane, deque[Lease]] = {lane: deque() for lane in lanes}
        self._turns = deque(self._rows)
        self._limits = {queue: limit for queue, limit in limits.items() if limit is not None}
        self._running: Counter[str] = Counter()
        self._sleepers = 0
        self._closed = False
        #: Called by a thread that finds nothing to do.
        self.on_idle: Callable[[], None] = lambda: None
        #: Called when a lane has but few rows left: its name, and how many.
        self.on_low: Callable[[Lane, int], None] = lambda lane, left: None

    def waiting(self, lane: Lane) -> int:
        return len(self._rows[lane])

    def is_empty(self) -> bool:
        return not any(self._rows.values())

    def put(self, lane: Lane, leases: Iterable[Lease]) -> None:
        """Add rows, behind those that wait."""
        with self._free:
            rows = self._rows[lane]
            before = len(rows)
            rows.extend(leases)
            added = len(rows) - before
            if self._sleepers:
                self._free.notify(min(added, self._sleepers))

    def take(self) -> Lease | None:
        """Return the next row, waiting for one; None once the buffer is closed."""
        if not self._limits and (lease := self._next()) is not None:  # deques need no lock, and threads fight for one
            return lease
        with self._free:
            while not self._closed:
                if (lease := self._next()) is not None:
                    return lease
                self.on_idle()
                self._sleepers += 1
                self._free.wait()
                self._sleepers -= 1
            return None

    def _next(self) -> Lease | None:
        for _ in range(len(self._turns)):
            lane = self._turns[0]
            self._turns.rotate(-1)
            rows = self._rows[lane]
            if not rows or (self._limits and self._is_full(lane.queue)):
                continue
            try:
                lease = rows.popleft()
            except IndexError:  # another thread was quicker
                continue
            if self._limits:
                self._running[lane.queue] += 1
            self.on_low(lane, len(rows))
            return lease
        return None

    def _is_full(self, queue: str) -> bool:
        limit = self._limits.get(queue)
        return limit is not None and self._running[queue] >= limit

    def finished(self, lease: Lease) -> None:
        """Let the next of the same queue run."""
        if not self._limits:
            return
        with self._free:
            self._running[lease.lane.queue] -= 1
            if self._sleepers:
                self._free.notify()

    def close(self) -> list[Lease]:
        """Hand out no more, wake every thread, and return the rows that nobody took."""
        with self._free:
            self._closed = True
            left = [lease for rows in self._rows.values() for lease in rows]
            for rows in self._rows.values():
                rows.clear()
            self._free.notify_all()
        return left


class Outbox:
    """Verdicts waiting to be written. Whoever writes them takes all there are, so that the busier, the larger a group."""

    def __init__(self, batch_size: int) -> None:
        self._verdicts: deque[Verdict] = deque()
        self._batch_size = batch_size
        self._any = threading.Event()
        self._now = threading.Event()

    def __len__(self) -> int:
        return len(self._verdicts)

    def add(self, verdict: Verdict) -> None:
        self._verdicts.append(verdict)
        if not self._any.is_set():
            self._any.set()
        if len(self._verdicts) >= self._batch_size and not self._now.is_set():
            self._now.set()

    def flush(self) -> None:
        """Do not wait for more."""
        if self._verdicts:
            self._now.set()

    def take(self, timeout: float) -> list[Verdict]:
        """Return what there is, after a short wait for more to be written with it; nothing after the time-out."""
        if not self._any.wait(timeout):
            return []
        if len(self._verdicts) < self._batch_size:
            self._now.wait(LINGER)
        self._any.clear()
        self._now.clear()
        taken: list[Verdict] = []
        while self._verdicts and len(taken) < self._batch_size:
            taken.append(self._verdicts.popleft())
        if self._verdicts:
            self._any.set()
        return taken
