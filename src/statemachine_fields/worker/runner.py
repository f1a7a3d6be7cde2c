"""One worker process: claims, runs and writes, each in threads of its own, until it is told to stop.

The claimer keeps a little work ahead. Threads, and coroutines on an event loop, run handlers. Committers write what came of
them, many at once. Beside them heartbeats extend leases, and the watch stops handlers whose time is up. What they share is
what is in flight.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

from django.db import router

from statemachine_fields.machine.joins import LOOKER
from statemachine_fields.schedule.columns import OWNER_LENGTH
from statemachine_fields.worker.ahead import RunAhead
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.claiming import ClaimLoop
from statemachine_fields.worker.commit import CommitLoop, CommitRouter, Committer
from statemachine_fields.worker.connections import OwnConnections, close_connections
from statemachine_fields.worker.coroutines import EventLoop
from statemachine_fields.worker.ear import Ear
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.heartbeat import Heartbeat
from statemachine_fields.worker.inflight import Buffer, InFlight
from statemachine_fields.worker.lease import Lane
from statemachine_fields.worker.looking import Looker
from statemachine_fields.worker.models import RunStatistics
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.outcome_events import Events
from statemachine_fields.worker.outcomes import RowOutcome
from statemachine_fields.worker.prefetch import GROUPS_UNWRITTEN, UNWRITTEN_EACH, WritePace
from statemachine_fields.worker.running import RunLoop
from statemachine_fields.worker.statistics import StatisticsWriter
from statemachine_fields.worker.wires import Wires
from statemachine_fields.worker.writing import ADVANCERS, ONE_BY_ONE

logger = logging.getLogger("statemachine_fields.worker")

#: How long a stopping process tries to write what it still has to say, though its time is up.
LAST_WRITES = 5.0
#: How long it tries after that to give back what could not be written in time.
LAST_RELEASES = 2.0


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
        self.executor = HandlerExecutor(options.max_crashes, options.time_limit, self.stopping)
        self.inflight = InFlight(Buffer(lanes, options.queues))
        self.own = OwnConnections(options.lease_seconds)
        self.aliases = list(dict.fromkeys(lane.using for lane in lanes))
        digest = self.events.digest
        claimer = Claimer(self.owner, options.lease_seconds, digest, self.stopping)
        self.ahead = RunAhead(lanes, claimer, self.inflight, self.events, self.stopping)
        self.commits = CommitRouter(self._commit_loop, lanes)
        self.statistics = StatisticsWriter(self.events)
        self.commits.loops["housekeeper"].on_idle = self.statistics.tick
        self.claiming = ClaimLoop(
            lanes, options, claimer, self.inflight, self.own, self.events, self.stopping, predecessor
        )
        self.claiming.on_full = lambda: self.recycle(f"it has taken {self.claiming.taken_rows} rows")
        self.loop = EventLoop(self.executor, options.coroutines, options.coroutine_connections)
        self.running = RunLoop(
            self.executor,
            self.events,
            self.inflight,
            self.loop,
            self.stopping,
            self.commits.post,
            on_ran=self.claiming.on_ran,
            on_written=lambda lease: self.claiming.look_again(lease.lane),
        )
        for loop in self.commits.loops.values():
            loop.on_written, loop.paces = self.claiming.on_written, {lane: self._pace(loop, lane) for lane in lanes}
        self.claiming.room_to_write = self.commits.room
        self.claiming.on_late = self.ahead.on_late = self.running.give_back
        self.ahead.room, self.ahead.on_taken = self.claiming.room_ahead, self.claiming.on_ahead
        self.heartbeats = [
            Heartbeat(alias, self.inflight, self.own, options.lease_seconds, digest) for alias in self.aliases
        ]
        self.looker: Looker | None = None
        if Looker.is_needed(lanes):
            self.looker = Looker(lanes, self.own, digest, poll_seconds=options.poll_seconds, at_once=options.once)
            self.looker.on_woken = self.claiming.look_again
            self.own.marks[LOOKER] = self.looker.add
            self.claiming.is_settled = lambda: self._has_looked
            for loop in self.commits.loops.values():
                loop.on_written = self._written
        quick = [self.commits.loops[role].outbox for role in ("committer", ADVANCERS[0]) if role in self.commits.loops]
        self.inflight.buffer.on_idle = [*(outbox.flush for outbox in quick), self.claiming.on_idle]
        self.inflight.buffer.on_low = self.claiming.on_low

    def listen(self, wires: Wires, slot: int) -> None:
        """Hear from the listener of rows that become due."""
        ear = Ear(wires, slot, self.claiming, self.stopping)
        self.claiming.on_rest, self.claiming.wait = ear.tell, ear.wait

    def _commit_loop(self, role: str) -> CommitLoop:
        aliases = {*self.aliases, *([router.db_for_write(RunStatistics)] if role == "housekeeper" else [])}
        committer, options = Committer(self.executor, self.events, self.ahead), self.options
        return CommitLoop(
            role, committer, self.inflight, self.own, aliases, options.batch_size, longest_wait=options.lease_seconds
        )

    def _pace(self, loop: CommitLoop, lane: Lane) -> WritePace:
        least, most = UNWRITTEN_EACH * self.options.threads, GROUPS_UNWRITTEN * self.options.batch_size
        return WritePace(least, most, one_by_one=loop.role in ONE_BY_ONE)

    @property
    def is_drained(self) -> bool:
        """Whether nothing is due, and the process is to stop then."""
        return self.claiming.is_drained.is_set()

    def _written(self, outcomes: list[RowOutcome]) -> None:
        if self.looker is not None:
            if any("cancels" in each.lease.lane.bound.features for each in outcomes):
                self.looker.left()
            if not self.inflight.held:
                self.looker.hurry()
        self.claiming.on_written(outcomes)

    @property
    def _has_looked(self) -> bool:
        """Whether no row of which it knows waits for a look to become due."""
        return self.looker is None or self.looker.is_settled

    def start(self) -> None:
        if any(lane.is_async for lane in self.lanes):
            self._start("loop", self.loop.run)
            self._start("dispatcher", self.running.dispatch)
        for number in range(self.options.threads):
            self._start(f"handler {number + 1}", self.running.run)
        for loop in self.commits.loops.values():
            self._start(loop.role, loop.run)
        for heartbeat in self.heartbeats:
            self._start("heartbeat", heartbeat.run)
        if self.looker is not None:
            self._start("looker", self.looker.run)
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

    def tick(self) -> None:
        """Do what is to be done now and then: run rows again whose atomic handler met somebody else, for one."""
        self.running.give_back(self.inflight.run_those_due_again())
        if waiting := self.inflight.take_back_the_waiting():
            self.claiming.on_stalled({lease.lane for lease in waiting})
            self.running.give_back(waiting)
            self.commits.flush()
        self.commits.tick()

    def recycle(self, reason: str) -> None:
        """End this process in good order, for the supervisor to start another."""
        if not self.is_recycling:
            self.is_recycling = True
            logger.info("Worker process %d is being replaced: %s.", os.getpid(), reason)
            self.stopping.set()

    def stop(self, meanwhile: Callable[[], None] = lambda: None, is_hurried: Callable[[], bool] = lambda: True) -> None:
        """Claim no more, give back what has not started, wait for what has, and write it all.

        What still runs after `stop_seconds` is given back too: its outcome will not be heard, and no crash is counted. A
        process that is only being replaced has no such limit: its handlers have their own. So are rows that are written one by
        one and for which there is no time left.

        :param meanwhile: what to do again and again while waiting.
        :param is_hurried: says whether there is a limit.
        """
        self.stopping.set()
        self.inflight.wake.set()
        self.running.give_back(self.inflight.close())
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
                self.running.give_back([lease], "The worker stopped before the handler was done.")
        self.commits.hurry()
        begun = hurried_at if hurried_at is not None else time.monotonic()
        until = max(begun + self.options.stop_seconds, time.monotonic() + LAST_WRITES)
        self._wait_for_writes(until, meanwhile)
        if not self._is_done:
            self.commits.hurry(is_over=True)
            self._wait_for_writes(time.monotonic() + LAST_RELEASES, meanwhile)

    def _wait_for_writes(self, until: float, meanwhile: Callable[[], None]) -> None:
        while not (self._is_done and self._has_looked) and time.monotonic() < until:
            meanwhile()
            time.sleep(0.01)

    @property
    def _is_done(self) -> bool:
        return not self.inflight.held and self.claiming.ended.is_set()

    def left_behind(self) -> str:
        """Say which leases could not be given back; nothing if there are none."""
        counts = Counter(str(lease.lane) for lease in list(self.inflight.held))
        parts = [f"{number} of {machine}" for machine, number in counts.items()]
        parts += [f"perhaps some of {lane}" for lane in self.claiming.unheard]
        if not parts and not self.claiming.ended.is_set():
            parts = ["perhaps some, of a claim that was not answered"]
        return ", ".join(parts)


def new_owner() -> str:
    """Return a name for this process that no other has, also where every container is process 1 of the same host."""
    return f"{socket.gethostname()[: OWNER_LENGTH - 20]}:{os.getpid()}:{secrets.token_hex(3)}"
