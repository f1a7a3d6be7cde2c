"""What a process has in hand: every row from its claim to the write of its outcome."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable

from statemachine_fields.worker.buffer import Buffer
from statemachine_fields.worker.lanes import Lane
from statemachine_fields.worker.lease import Lease


class InFlight:
    """The rows that are held, and where each is: waiting in the buffer, running, or done and not yet written."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.held: set[Lease] = set()
        #: Those whose handlers run.
        self.running: set[Lease] = set()
        #: Those that a worker may have died of.
        self.suspects: set[Lease] = set()
        #: Set when the claimer should look again.
        self.wake = threading.Event()
        #: Rows to be run again, and when.
        self._again: list[tuple[float, Lease]] = []
        self._lock = threading.Lock()

    def is_empty(self) -> bool:
        return not self.held and not self.running and self.buffer.is_empty()

    def took(self, leases: Iterable[Lease]) -> None:
        self.held.update(leases)

    def let_go(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self.held.discard(lease)
            if lease in self.suspects:
                self.suspects.discard(lease)
                self.wake.set()

    def run_again(self, lease: Lease, delay: float) -> None:
        """Run a row again after a while, under the same lease."""
        with self._lock:
            self._again.append((time.monotonic() + delay, lease))

    def run_those_due_again(self) -> list[Lease]:
        """Put rows back whose while is over, and return those for which it is too late."""
        if not self._again:
            return []
        now = time.monotonic()
        with self._lock:
            due = [lease for at, lease in self._again if at <= now]
            self._again = [entry for entry in self._again if entry[0] > now]
        return [late for lease in due for late in self.buffer.put(lease.lane, [lease])]

    def close(self) -> list[Lease]:
        """Start no more, and return the rows that have not."""
        with self._lock:
            again, self._again = self._again, []
        return [*self.buffer.close(), *(lease for _at, lease in again)]

    def running_by_queue(self) -> dict[str, int]:
        """Return how many handlers run, by queue. One whose time was up runs on, but nobody waits for it."""
        return dict(Counter(lease.lane.queue for lease in list(self.running) if not lease.is_stopped))

    def of_machine(self, lane: Lane) -> list[Lease]:
        return [lease for lease in list(self.held) if lease.lane.bound is lane.bound and lease.lane.using == lane.using]
