"""One worker process: claims, runs and writes, each in threads of its own, until it is told to stop.

The claimer keeps a little work ahead, on its own connection. Threads run handlers. The committer writes what came of
them, many at once. Beside it, the heartbeat extends leases, and the watch stops handlers whose time is up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable

from django.db import DatabaseError, InterfaceError

from statemachine_fields.worker.atomic import run_atomic
from statemachine_fields.worker.attempt import Attempts
from statemachine_fields.worker.buffer import Buffer, Outbox
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.claiming import Appetite
from statemachine_fields.worker.commit import Committer, ConnectionLost
from statemachine_fields.worker.connections import Patience, close_connections, introduce, tidy_after_handler
from statemachine_fields.worker.events import Events
from statemachine_fields.worker.lanes import Lane
from statemachine_fields.worker.lease import Lease, new_owner
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.outcomes import Kind, Verdict

logger = logging.getLogger("statemachine_fields.worker")

#: Seconds after which an outcome is tried again whose row somebody else had locked.
AGAIN_AFTER = 0.05
#: How long a stopping process tries to write what it still has to say.
LAST_WRITES = 5.0


class Runner:
    """The threads of one process, and what they share."""

    def __init__(self, lanes: list[Lane], options: WorkerOptions, owner: str | None = None) -> None:
        self.lanes = lanes
        self.options = options
        self.owner = owner or new_owner()
        self.events = Events()
        self.stopping = threading.Event()
        self.attempts = Attempts(options.max_crashes, options.time_limit, self.stopping)
        self.claimer = Claimer(self.owner, options.lease_seconds)
        self.committer = Committer(self.attempts, self.events)
        self.buffer = Buffer(lanes, options.queues)
        self.outbox = Outbox(options.batch_size)
        self.appetites = {lane: Appetite(self._at_once(lane), options.batch_size) for lane in lanes}
        #: Every row we have a lease for: waiting, running, or done and not yet written.
        self.held: set[Lease] = set()
        #: Those whose handlers run.
        self.running: set[Lease] = set()
        self.tasks: dict[Lease, asyncio.Task[Verdict]] = {}
        self.suspect: Lease | None = None
        self.claimed_rows = 0
        self.is_recycling = False
        self.is_drained = threading.Event()
        self._wake = threading.Event()
        self._written = threading.Event()
        self._coroutines = threading.BoundedSemaphore(options.coroutines)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.buffer.on_idle = self.outbox.flush
        self.buffer.on_low = self._on_low

    def _at_once(self, lane: Lane) -> int:
        """Return how many rows of a lane can run at the same time."""
        most = self.options.coroutines if lane.is_async else self.options.threads
        return min(most, self.options.queues.get(lane.queue) or most)

    def start(self) -> None:
        if any(lane.is_async for lane in self.lanes):
            self._loop = asyncio.new_event_loop()
            self._start("loop", self._loop.run_forever)
        for number in range(self.options.threads):
            self._start(f"handler {number + 1}", self._run_handlers)
        self._start("committer", self._commit)
        self._start("claimer", self._claim)

    def _start(self, role: str, target: Callable[[], None]) -> None:
        def run() -> None:
            try:
                target()
            except BaseException:
                # Without this thread the process would look alive and do nothing: let the supervisor replace it.
                logger.critical("The %s of worker process %d died. The process ends.", role, os.getpid(), exc_info=True)
                os._exit(70)
            finally:
                close_connections()

        threading.Thread(target=run, name=f"statemachine {role}", daemon=True).start()

    # Claiming.

    def _claim(self) -> None:
        patience = Patience("claimer", self.stopping)
        first = 0
        for using in {lane.using for lane in self.lanes}:
            self._introduce(using, "claimer")
        while not self.stopping.is_set():
            self._wake.clear()
            first += 1
            was_done = self._is_done()  # before we look: what is written meanwhile may be due again
            try:
                got = sum(self._claim_lane(lane) for lane in self._in_turn(first))
            except (DatabaseError, InterfaceError) as error:
                patience.after(error)
                continue
            patience.over()
            if self.options.max_rows and self.claimed_rows >= self.options.max_rows:
                self.recycle(f"it has taken {self.claimed_rows} rows")
            elif not got and self.options.once and was_done:
                self.is_drained.set()
                return
            if not any(self._is_hungry(lane) for lane in self.lanes):
                self._wake.wait(0.05 if self.options.once and not self.held else self.options.poll_seconds)
                for appetite in self.appetites.values():
                    appetite.exhausted = False

    def _in_turn(self, first: int) -> Iterable[Lane]:
        start = first % len(self.lanes)
        return (*self.lanes[start:], *self.lanes[:start])

    def _is_hungry(self, lane: Lane) -> bool:
        appetite = self.appetites[lane]
        return not appetite.exhausted and appetite.room(self.buffer.waiting(lane)) > 0

    def _claim_lane(self, lane: Lane) -> int:
        appetite = self.appetites[lane]
        got = 0
        room = appetite.room(self.buffer.waiting(lane))
        if room > 0:
            leases = self._take(lane, room, suspects=False)
            appetite.claimed(room, len(leases))
            got += self._put(lane, leases)
        if self.suspect is None and appetite.wants_suspects() and not self.stopping.is_set():
            suspects = self._take(lane, 1, suspects=True)
            appetite.claimed_suspects(len(suspects))
            if suspects:
                self.suspect = suspects[0]
                got += self._put(lane, suspects)
        return got

    def _take(self, lane: Lane, limit: int, *, suspects: bool) -> list[Lease]:
        leases = self.claimer.claim(lane, limit, suspects=suspects)
        self.held.update(leases)
        return leases

    def _put(self, lane: Lane, leases: list[Lease]) -> int:
        if not leases:
            return 0
        self.claimed_rows += len(leases)
        states: dict[str, int] = {}
        for lease in leases:
            states[lease.status] = states.get(lease.status, 0) + 1
            if lease.is_recovered:
                self.events.count(str(lane), lease.status, "recovered")
        for state, number in states.items():
            self.events.count(str(lane), state, "claimed", number)
        if self.stopping.is_set():  # between the claim and now
            for lease in leases:
                self.outbox.add(Verdict(lease, Kind.RELEASED))
        else:
            self.buffer.put(lane, leases)
        return len(leases)

    def _on_low(self, lane: Lane, left: int) -> None:
        appetite = self.appetites[lane]
        if left <= appetite.size // 2 and not appetite.exhausted and not self._wake.is_set():
            self._wake.set()

    def _is_done(self) -> bool:
        return not self.held and self.buffer.is_empty() and not self.running

    # Running.

    def _run_handlers(self) -> None:
        while (lease := self.buffer.take()) is not None:
            if not lease.is_trusted:  # it waited too long, and somebody else has it by now
                self.buffer.finished(lease)
                self._let_go([lease])
                continue
            handler = lease.clock.handler
            self.running.add(lease)
            if handler is not None and handler.is_async:
                self._run_coroutine(lease)
                continue
            if handler is not None and handler.atomic:
                verdict = run_atomic(self.attempts, self.events, lease)
            else:
                verdict = self.attempts.run(lease)
            tidy_after_handler()
            self._finish(lease, verdict)

    def _run_coroutine(self, lease: Lease) -> None:
        """Hand the row to the event loop, and go on with the next."""
        loop = self._loop
        assert loop is not None  # noqa: S101 - start() has made one
        self._coroutines.acquire()

        def begin() -> None:
            self.tasks[lease] = task = loop.create_task(self.attempts.arun(lease))
            task.add_done_callback(done)

        def done(task: asyncio.Task[Verdict]) -> None:
            self._coroutines.release()
            self.tasks.pop(lease, None)
            if not task.cancelled() and task.exception() is None:
                self._finish(lease, task.result())
            else:  # stopped because its time was up, which the watch has said
                self.running.discard(lease)
                self.buffer.finished(lease)

        loop.call_soon_threadsafe(begin)

    def cancel(self, task: asyncio.Task[Verdict]) -> None:
        """Ask a coroutine to end. It is running until it has."""
        assert self._loop is not None  # noqa: S101 - there is a task
        self._loop.call_soon_threadsafe(task.cancel)

    def _finish(self, lease: Lease, verdict: Verdict | None) -> None:
        self.running.discard(lease)
        self.buffer.finished(lease)
        if lease.is_stopped:
            return  # its time was up, and that is what is written
        if verdict is None:  # written already, with what the handler did
            self._let_go([lease])
            self._wake_for(lease.lane)
        else:
            self.outbox.add(verdict)

    # Writing.

    def _commit(self) -> None:
        patience = Patience("committer", threading.Event())
        again: list[tuple[float, Verdict]] = []
        for using in {lane.using for lane in self.lanes}:
            self._introduce(using, "committer")
        while True:
            verdicts = self.outbox.take(AGAIN_AFTER if again else 0.5)
            now = time.monotonic()
            verdicts += [verdict for at, verdict in again if at <= now]
            again = [(at, verdict) for at, verdict in again if at > now]
            if verdicts:
                try:
                    later = self.committer.commit(verdicts)
                except (ConnectionLost, DatabaseError, InterfaceError) as error:
                    later = [verdict for verdict in verdicts if verdict.lease in self.held and not verdict.is_told]
                    self._let_go(verdict.lease for verdict in verdicts if verdict.is_told)
                    patience.after(error)
                else:
                    patience.over()
                again += [(now + AGAIN_AFTER, verdict) for verdict in later]
                waiting = {id(verdict.lease) for verdict in later}
                self._let_go(verdict.lease for verdict in verdicts if id(verdict.lease) not in waiting)
                self._look_for_more(verdicts)
            if not self.held and not self.outbox:
                self._written.set()
                if self.options.once:
                    self._wake.set()

    def _let_go(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self.held.discard(lease)
            if lease is self.suspect:
                self.suspect = None
                self._wake.set()

    def _look_for_more(self, verdicts: list[Verdict]) -> None:
        """Claim at once what became due by what was written."""
        for verdict in verdicts:
            if verdict.kind is Kind.SETTLED_ITSELF or (verdict.kind is Kind.MOVED and verdict.delay == 0):
                self._wake_for(verdict.lease.lane)
                return

    def _wake_for(self, lane: Lane) -> None:
        for other in self.lanes:
            if other.bound is lane.bound:
                self.appetites[other].exhausted = False
        self._wake.set()

    def _introduce(self, using: str, role: str) -> None:
        try:
            introduce(using, role)
        except (DatabaseError, InterfaceError):
            close_connections()  # the loop that follows knows how to wait

    # Stopping.

    def recycle(self, reason: str) -> None:
        """End this process in good order, for the supervisor to start another."""
        if not self.is_recycling:
            self.is_recycling = True
            logger.info("Worker process %d is being replaced: %s.", os.getpid(), reason)
            self.stopping.set()

    def stop(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Claim no more, give back what has not started, wait for what has, and write it all.

        What still runs after `stop_seconds` is given back too: its outcome will not be heard, and no crash is counted.

        :param meanwhile: what to do again and again while waiting.
        """
        self.stopping.set()
        self._wake.set()
        for lease in self.buffer.close():
            if lease.is_trusted:
                self.outbox.add(Verdict(lease, Kind.RELEASED))
            else:
                self._let_go([lease])
        deadline = time.monotonic() + self.options.stop_seconds
        while time.monotonic() < deadline and any(not lease.is_stopped for lease in list(self.running)):
            meanwhile()
            time.sleep(0.01)
        for lease in list(self.running):
            if not lease.is_stopped:
                lease.stop()
                text = "The worker stopped before the handler was done."
                self.outbox.add(Verdict(lease, Kind.RELEASED, error=text))
        self.outbox.flush()
        deadline = max(deadline, time.monotonic() + LAST_WRITES)
        while self.held and time.monotonic() < deadline:  # or the database has been away for too long
            meanwhile()
            self._written.wait(0.02)
            self._written.clear()
