"""One worker process: claims, runs and writes, each in threads of its own, until it is told to stop.

The claimer keeps a little work ahead. Threads, and coroutines on an event loop, run handlers. Committers write what came of
them, many at once. Beside them heartbeats extend leases, and the watch stops handlers whose time is up. What they share is
what is in flight.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable

from django.db import router

from statemachine_fields.worker.atomic import run_atomic
from statemachine_fields.worker.attempt import Attempts
from statemachine_fields.worker.buffer import Buffer
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.claiming import ClaimLoop
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.committing import CommitLoop, Ways
from statemachine_fields.worker.connections import OwnConnections, close_connections, tidy_after_handler
from statemachine_fields.worker.coroutines import EventLoop
from statemachine_fields.worker.events import Events
from statemachine_fields.worker.heartbeat import Heartbeat
from statemachine_fields.worker.inflight import InFlight
from statemachine_fields.worker.lanes import Lane
from statemachine_fields.worker.lease import Lease, new_owner
from statemachine_fields.worker.models import RunStatistics
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.outcomes import Kind, Verdict
from statemachine_fields.worker.statistics import StatisticsWriter

logger = logging.getLogger("statemachine_fields.worker")

#: Handlers that take less long, in seconds, are all the same to who decides how much is claimed ahead.
QUICK = 0.001
#: How long a stopping process tries to write what it still has to say, though its time is up.
LAST_WRITES = 5.0


class Runner:
    """The threads of one process."""

    def __init__(
        self, lanes: list[Lane], options: WorkerOptions, owner: str | None = None, predecessor: str | None = None
    ) -> None:
        self.lanes = lanes
        self.options = options
        self.owner = owner or new_owner()
        self.events = Events()
        self.stopping = threading.Event()
        self.is_recycling = False
        self.attempts = Attempts(options.max_crashes, options.time_limit, self.stopping)
        self.inflight = InFlight(Buffer(lanes, options.queues))
        self.own = OwnConnections(options.lease_seconds)
        aliases = list(dict.fromkeys(lane.using for lane in lanes))
        self.ways = Ways(
            quick=self._commit_loop("committer", aliases),
            slow=self._commit_loop("writer", aliases),
            deleting=self._commit_loop("housekeeper", {*aliases, router.db_for_write(RunStatistics)}),
            lanes=lanes,
        )
        self.statistics = StatisticsWriter(self.events)
        self.ways.deleting.on_idle = self.statistics.tick
        claimer = Claimer(self.owner, options.lease_seconds, self.events.digest)
        self.claiming = ClaimLoop(
            lanes, options, claimer, self.inflight, self.own, self.events, self.stopping, predecessor
        )
        self.claiming.on_full = lambda: self.recycle(f"it has taken {self.claiming.claimed_rows} rows")
        self.claiming.on_late = self.give_back
        digest = self.events.digest
        self.heartbeats = [
            Heartbeat(alias, self.inflight, self.own, options.lease_seconds, digest) for alias in aliases
        ]
        self.loop = EventLoop(self.attempts, options.coroutines, options.coroutine_connections)
        self.inflight.buffer.on_idle = self._on_idle
        self.inflight.buffer.on_low = self.claiming.on_low

    def _commit_loop(self, role: str, aliases: Iterable[str]) -> CommitLoop:
        committer = Committer(self.attempts, self.events)
        loop = CommitLoop(
            role,
            committer,
            self.inflight,
            self.own,
            aliases,
            self.options.batch_size,
            longest_wait=self.options.lease_seconds,
        )
        loop.on_written = self._look_for_more
        return loop

    @property
    def is_drained(self) -> bool:
        """Whether nothing is due, and the process is to stop then."""
        return self.claiming.is_drained.is_set()

    def start(self) -> None:
        if any(lane.is_async for lane in self.lanes):
            self._start("loop", self.loop.run)
            self._start("dispatcher", self._run_coroutines)
        for number in range(self.options.threads):
            self._start(f"handler {number + 1}", self._run_handlers)
        for loop in (self.ways.quick, self.ways.slow, self.ways.deleting):
            self._start(loop.role, loop.run)
        for heartbeat in self.heartbeats:
            self._start("heartbeat", heartbeat.run)
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

    def _claim(self) -> None:
        self.claiming.run()
        self.stopping.wait()
        self.claiming.end()

    # Running.

    def _run_handlers(self) -> None:
        while (lease := self.inflight.buffer.take()) is not None:
            if not self._begin(lease):
                continue
            handler = lease.schedule.handler
            if handler is not None and handler.atomic:
                verdict = run_atomic(self.attempts, self.events, lease)
            else:
                verdict = self.attempts.run(lease)
            tidy_after_handler(is_suspect=lease.is_stopped)
            self._finish(lease, verdict)

    def _run_coroutines(self) -> None:
        """Hand rows to the event loop, as many at once as it may have."""
        while (lease := self.inflight.buffer.take(is_async=True)) is not None:
            while not self.loop.has_room(timeout=0.1):
                if self.stopping.is_set():
                    self.give_back([lease])
                    break
            else:
                if self._begin(lease):
                    self.loop.start(lease, self._finish_coroutine)
                else:
                    self.loop.give_up_room()

    def _begin(self, lease: Lease) -> bool:
        """Say whether a row is still ours to run, and remember that it runs."""
        self.inflight.running.add(lease)  # before it is asked whether we stop, so that one of the two sees the other
        if lease.is_trusted and not self.stopping.is_set():
            return True
        self.inflight.running.discard(lease)
        self.inflight.buffer.finished(lease)  # it waited too long, and somebody else may have it by now; or we stop
        self.give_back([lease])
        return False

    def _finish_coroutine(self, lease: Lease, verdict: Verdict | None) -> None:
        if verdict is None:  # it was stopped
            self.inflight.running.discard(lease)
            self.inflight.buffer.finished(lease)
        else:
            self._finish(lease, verdict)

    def _on_idle(self) -> None:
        self.ways.quick.outbox.flush()
        self.claiming.on_idle()

    def _finish(self, lease: Lease, verdict: Verdict | None) -> None:
        self.inflight.running.discard(lease)
        prefetch = self.claiming.prefetches[lease.lane]
        if prefetch.mean is None or lease.seconds > QUICK or prefetch.mean > QUICK:
            prefetch.ran(lease.seconds)
        self.inflight.buffer.finished(lease)
        if lease.is_stopped:
            return  # its time was up, and that is what is written
        if verdict is None:  # written already, with what the handler did
            self.inflight.let_go([lease])
            self.claiming.look_again(lease.lane)
        elif verdict.kind is not Kind.CONFLICT:
            self.ways.post(verdict)
        elif self.stopping.is_set():
            self.give_back([lease])
        else:
            self.inflight.run_again(lease, verdict.delay or 0.0)

    def _look_for_more(self, verdicts: list[Verdict]) -> None:
        """Claim at once what became due by what was written."""
        for verdict in verdicts:
            if verdict.kind is Kind.SETTLED_ITSELF or (verdict.kind is Kind.MOVED and verdict.delay == 0):
                self.claiming.look_again(verdict.lease.lane)
                return
        if self.options.once and not self.inflight.held:
            self.inflight.wake.set()

    def tick(self) -> None:
        """Do what is to be done now and then: run rows again whose atomic handler met somebody else, for one."""
        self.give_back(self.inflight.run_those_due_again())
        self.ways.tick()

    # Stopping.

    def recycle(self, reason: str) -> None:
        """End this process in good order, for the supervisor to start another."""
        if not self.is_recycling:
            self.is_recycling = True
            logger.info("Worker process %d is being replaced: %s.", os.getpid(), reason)
            self.stopping.set()

    def give_back(self, leases: Iterable[Lease], error: str = "") -> None:
        """Release rows, but for those that another is known to have by now."""
        for lease in leases:
            if lease.is_lost:
                self.inflight.let_go([lease])
            else:
                self.ways.post(Verdict(lease, Kind.RELEASED, error=error))

    def stop(self, meanwhile: Callable[[], None] = lambda: None, is_hurried: Callable[[], bool] = lambda: True) -> None:
        """Claim no more, give back what has not started, wait for what has, and write it all.

        What still runs after `stop_seconds` is given back too: its outcome will not be heard, and no crash is counted. A
        process that is only being replaced has no such limit: its handlers have their own.

        :param meanwhile: what to do again and again while waiting.
        :param is_hurried: says whether there is a limit.
        """
        self.stopping.set()
        self.inflight.wake.set()
        self.give_back(self.inflight.close())
        hurried_at: float | None = None
        while any(not lease.is_stopped for lease in list(self.inflight.running)):
            if hurried_at is None and is_hurried():
                hurried_at = time.monotonic()
            if hurried_at is not None and time.monotonic() > hurried_at + self.options.stop_seconds:
                break
            meanwhile()
            time.sleep(0.01)
        for lease in list(self.inflight.running):
            if not lease.is_stopped:
                lease.stop()
                self.give_back([lease], "The worker stopped before the handler was done.")
        self.ways.hurry()
        begun = hurried_at if hurried_at is not None else time.monotonic()
        until = max(begun + self.options.stop_seconds, time.monotonic() + LAST_WRITES)
        while (self.inflight.held or not self.claiming.ended.is_set()) and time.monotonic() < until:
            meanwhile()
            time.sleep(0.01)

    def left_behind(self) -> str:
        """Say which leases could not be given back; nothing if there are none."""
        counts: dict[str, int] = {}
        for lease in list(self.inflight.held):
            counts[str(lease.lane)] = counts.get(str(lease.lane), 0) + 1
        parts = [f"{number} of {machine}" for machine, number in counts.items()]
        parts += [f"perhaps some of {lane}" for lane in self.claiming.unheard]
        if not parts and not self.claiming.ended.is_set():
            parts = ["perhaps some, of a claim that was not answered"]
        return ", ".join(parts)
