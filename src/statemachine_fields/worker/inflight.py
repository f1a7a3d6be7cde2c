"""What a process has in hand: every row from its claim to the write of its outcome. The loops that claim, run, commit, beat and
watch are peers around it.

Threads take rows one by one and sleep only when there are none; no row has a future or a lock of its own, which would
cost more than everything else that is done with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import wait
from typing import Any

from statemachine_fields.worker.lease import Lane, Lease
from statemachine_fields.worker.outcomes import RowOutcome

#: A row that was claimed ahead is given back after so many seconds, if no handler has begun for so long: another process may
#: have time for it.
KEPT_WAITING, STALLED = 0.12, 0.1
#: Of so many rows that are taken, one tells how many are left, and each of the last so many: to ask takes as long as to take.
TOLD_EVERY = 16
#: How long to step aside after so few rows, at most.
HAND_OVER, FEW = 0.00001, 100
#: How long an outcome waits for others to be written with, while there are more to come.
LINGER = 0.005


def step_aside(rows: int) -> None:
    """Let threads begin that were woken for a few rows. They cannot before the calling thread gives up the interpreter, and that has
    things to note, to ask and to send that nobody waits for."""
    if 0 < rows <= FEW:
        time.sleep(HAND_OVER)


class Wake:
    """A `threading.Event` that one thread can wait for together with pipes."""

    def __init__(self) -> None:
        self._reader, self._writer = multiprocessing.Pipe(duplex=False)
        for end in (self._reader, self._writer):
            os.set_blocking(end.fileno(), False)
        self._is_set = False

    def fileno(self) -> int:
        return self._reader.fileno()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            with contextlib.suppress(BlockingIOError):
                os.write(self._writer.fileno(), b"!")

    def clear(self) -> None:
        # In this order: who sets it meanwhile is seen by the next wait, and what is left in the pipe costs one look too many.
        self._is_set = False
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader.fileno(), 64)

    def wait(self, seconds: float, *pipes: Any) -> list[Any]:
        """Wait until it is set or a pipe can be read, and return which."""
        ends: list[Any] = [self, *pipes]
        return wait(ends, 0 if self._is_set else seconds)


class Buffer:
    """Claimed rows, handed out in turns between lanes, no more of a queue at once than its limit.

    Rows for threads and rows for the event loop wait apart, so that neither kind keeps the other from being taken.
    """

    def __init__(self, lanes: Iterable[Lane], limits: Mapping[str, int | None]) -> None:
        lock = threading.Lock()
        self._free = {is_async: threading.Condition(lock) for is_async in (False, True)}
        self._sleepers = {False: 0, True: 0}
        lanes = list(lanes)
        self._rows: dict[bool, dict[Lane, deque[Lease]]] = {
            is_async: {lane: deque() for lane in lanes} for is_async in (False, True)
        }
        self._turns = {False: deque(lanes), True: deque(lanes)}
        self._limits = {queue: limit for queue, limit in limits.items() if limit is not None}
        self._running: Counter[str] = Counter()
        #: How many rows of each queue still run in a process that this one takes the place of.
        self._elsewhere: Mapping[str, int] = {}
        self._closed = False
        #: Called by a thread that finds nothing to do.
        self.on_idle: list[Callable[[], None]] = []
        #: Called when a lane has but few rows left: its name, and how many.
        self.on_low: Callable[[Lane, int], None] = lambda lane, left: None

    def waiting(self, lane: Lane) -> int:
        return len(self._rows[False][lane]) + len(self._rows[True][lane])

    def is_empty(self, kinds: Iterable[bool] = (False, True)) -> bool:
        """Say whether no row waits for a thread (False), for the event loop (True), or for either."""
        return not any(rows for kind in kinds for rows in self._rows[kind].values())

    def put(self, lane: Lane, leases: Iterable[Lease], *, in_front: bool = False) -> list[Lease]:
        """Add rows, behind those that wait or in front of them; return those that came too late, because the buffer is
        closed."""
        leases = list(leases)
        with self._free[False]:
            if self._closed:
                return leases
            kinds = {False: leases}
            if lane.is_async:
                kinds = {kind: [lease for lease in leases if lease.is_async == kind] for kind in (False, True)}
            for is_async, rows in kinds.items():
                if in_front:
                    self._rows[is_async][lane].extendleft(reversed(rows))
                else:
                    self._rows[is_async][lane].extend(rows)
            for is_async, rows in kinds.items():
                if rows and self._sleepers[is_async]:
                    self._free[is_async].notify(min(len(rows), self._sleepers[is_async]))
        return []

    def take(self, *, is_async: bool = False) -> Lease | None:
        """Return the next row for a thread, or for the event loop, waiting for one; None once the buffer is closed."""
        # Deques need no lock, and threads fight for one.
        if not self._limits and not self._closed and (lease := self._next(is_async)) is not None:
            return lease
        with self._free[is_async]:
            while not self._closed:
                if (lease := self._next(is_async)) is not None:
                    return lease
                for tell in self.on_idle:
                    tell()
                self._sleepers[is_async] += 1
                self._free[is_async].wait()
                self._sleepers[is_async] -= 1
            return None

    def _next(self, is_async: bool) -> Lease | None:
        turns = self._turns[is_async]
        for _ in range(len(turns)):
            lane = turns[0]
            turns.rotate(-1)
            rows = self._rows[is_async][lane]
            if not rows or (self._limits and self._is_full(lane.queue)):
                continue
            try:
                lease = rows.popleft()
            except IndexError:  # another thread was quicker
                continue
            if self._limits:
                self._running[lane.queue] += 1
            left = len(rows)
            if left < TOLD_EVERY or left % TOLD_EVERY == 0:
                self.on_low(lane, left)
            return lease
        return None

    def _is_full(self, queue: str) -> bool:
        limit = self._limits.get(queue)
        return limit is not None and self._running[queue] + self._elsewhere.get(queue, 0) >= limit

    def finished(self, lease: Lease) -> None:
        """Let the next of the same queue run."""
        if not self._limits:
            return
        with self._free[False]:
            self._running[lease.lane.queue] -= 1
            self._wake_all()

    def count_elsewhere(self, running: Mapping[str, int]) -> None:
        """Count rows that run in another process against the limits of their queues."""
        with self._free[False]:
            self._elsewhere = running
            self._wake_all()

    def _wake_all(self) -> None:
        for is_async, free in self._free.items():
            if self._sleepers[is_async]:
                free.notify_all()

    def take_back(self, begun: Callable[[bool, str | None], float | None]) -> list[Lease]:
        """Take out the rows that have waited for too long for a thread, for the event loop, or for their turn in a queue.

        :param begun: when the last handler of a kind has begun, or of a queue; None if none runs.
        """
        now = time.monotonic()
        latest, stalled = now - KEPT_WAITING, now - STALLED
        left: list[Lease] = []
        for is_async, lane, rows in [
            (kind, lane, rows) for kind in self._rows for lane, rows in self._rows[kind].items()
        ]:
            last = [begun(is_async, None), begun(is_async, lane.queue) if lane.queue in self._limits else None]
            if not rows or not any(each is not None and each < stalled for each in last):
                continue
            late = {lease for lease in list(rows) if lease.claimed_at < latest}
            for _ in range(len(rows) if late else 0):
                try:
                    lease = rows.popleft()
                except IndexError:  # a thread that needs no lock was quicker
                    break
                (left if lease in late else rows).append(lease)
        return left

    def close(self) -> list[Lease]:
        """Hand out no more, wake every thread, and return the rows that nobody took."""
        with self._free[False]:
            self._closed = True
            left: list[Lease] = []
            for kind in self._rows.values():
                for rows in kind.values():
                    while rows:  # one by one: a thread that needs no lock may take one at this moment
                        try:
                            left.append(rows.popleft())
                        except IndexError:
                            break
            self._wake_all()
        return left


class Outbox:
    """Outcomes waiting to be written. Whoever writes them takes all there are, so that the busier, the larger a group. If more
    than one thread does, they take in turns."""

    def __init__(self, batch_size: int) -> None:
        self._outcomes: deque[RowOutcome] = deque()
        self._batch_size = batch_size
        self._any = threading.Event()
        self._now = threading.Event()
        self._turn = threading.Lock()

    def __len__(self) -> int:
        return len(self._outcomes)

    def number_of(self, lane: Lane) -> int:
        """Return how many there are of a lane."""
        return sum([outcome.lease.lane is lane for outcome in self._outcomes.copy()])

    def add(self, outcome: RowOutcome) -> None:
        self._outcomes.append(outcome)
        if not self._any.is_set():
            self._any.set()
        if len(self._outcomes) >= self._batch_size and not self._now.is_set():
            self._now.set()

    def flush(self) -> None:
        """Do not wait for more."""
        if self._outcomes:
            self._now.set()

    def take(self, timeout: float) -> list[RowOutcome]:
        """Return what there is, after a short wait for more to be written with it; nothing after the time-out."""
        if not self._turn.acquire(timeout=timeout):
            return []
        try:
            return self._take(timeout)
        finally:
            self._turn.release()

    def _take(self, timeout: float) -> list[RowOutcome]:
        if not self._any.wait(timeout):
            return []
        if len(self._outcomes) < self._batch_size:
            self._now.wait(LINGER)
        self._any.clear()
        self._now.clear()
        taken: list[RowOutcome] = []
        while self._outcomes and len(taken) < self._batch_size:
            taken.append(self._outcomes.popleft())
        if self._outcomes:
            self._any.set()
        return taken


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
        self.wake = Wake()
        #: Rows to be run again, and when.
        self._again: list[tuple[float, Lease]] = []
        self._lock = threading.Lock()

    def is_empty(self) -> bool:
        return not self.held and not self.running and self.buffer.is_empty()

    def took(self, leases: Iterable[Lease]) -> None:
        self.held.update(leases)

    def let_go(self, leases: Iterable[Lease]) -> None:
        leases = list(leases)
        self.held.difference_update(leases)
        if self.suspects and not self.suspects.isdisjoint(leases):
            self.suspects.difference_update(leases)
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

    def take_back_the_waiting(self) -> list[Lease]:
        """Take out rows that wait while those that run do not end, and return them."""
        running, now = list(self.running), time.monotonic()

        def begun(is_async: bool, queue: str | None) -> float | None:
            ours = (lease for lease in running if lease.is_async is is_async and queue in (None, lease.lane.queue))
            return max((lease.started_at or now for lease in ours), default=None)

        return self.buffer.take_back(begun) if running else []

    def close(self) -> list[Lease]:
        """Start no more, and return the rows that have not."""
        with self._lock:
            again, self._again = self._again, []
        return [*self.buffer.close(), *(lease for _at, lease in again)]

    def running_by_queue(self) -> dict[str, int]:
        """Return how many handlers run, by queue. One whose time was up runs on, but nobody waits for it."""
        return dict(Counter(lease.lane.queue for lease in list(self.running) if not lease.is_stopped))

    def of_machine(self, lane: Lane) -> list[Lease]:
        return [lease for lease in list(self.held) if lease.lane.is_of(lane)]
