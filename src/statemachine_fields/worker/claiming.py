"""The thread of a process that claims: it keeps a little work ahead, lane by lane, on a connection of its own.

What cannot be claimed is set aside, and all else goes on: a row that the database will not let be written, a machine whose
table is locked or missing, a database that is away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from django.db import DatabaseError, InterfaceError

from statemachine_fields.db.claims import Left, Wanted
from statemachine_fields.db.dialect import is_connection_error, is_scarcity
from statemachine_fields.worker.attempt import described
from statemachine_fields.worker.backoff import Backoff
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.committing import Reconnect
from statemachine_fields.worker.connections import OwnConnections, is_same
from statemachine_fields.worker.digest import cause_of
from statemachine_fields.worker.events import Events
from statemachine_fields.worker.inflight import InFlight
from statemachine_fields.worker.lanes import Lane
from statemachine_fields.worker.lease import Lease, row_fields, shown
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.prefetch import Prefetch
from statemachine_fields.worker.writing import is_in_the_way

logger = logging.getLogger("statemachine_fields.worker")

#: Seconds between two looks for rows that were left behind, while there are none.
SUSPECTS_EVERY = 5.0
#: Of so many such looks one asks for rows that a worker may have died of, though there seem to be none.
ASK_ANYWAY = 6
#: How many rows are set aside by themselves. If there are more, those that were set aside first are tried again.
MOST_ASIDE = 1000
#: How long a worker that is to stop when nothing is due waits for what it cannot claim.
ONCE_SECONDS = 10.0


class ClaimLoop:
    """Claims until it is told to stop, and leaves no claim behind whose answer it has not heard."""

    def __init__(
        self,
        lanes: list[Lane],
        options: WorkerOptions,
        claimer: Claimer,
        inflight: InFlight,
        own: OwnConnections,
        events: Events,
        stopping: threading.Event,
        predecessor: str | None = None,
    ) -> None:
        self.predecessor = predecessor
        self.lanes = lanes
        self.options = options
        self.claimer = claimer
        self.inflight = inflight
        self.own = own
        self.events = events
        self.stopping = stopping
        self.prefetches = {lane: Prefetch(self._at_once(lane), options.batch_size) for lane in lanes}
        self.claimed_rows = 0
        #: Set when nothing is due and the worker is to stop then; and whether it could look everywhere.
        self.is_drained = threading.Event()
        self.has_seen_all = True
        #: Set when no claim is under way, nor will be.
        self.ended = threading.Event()
        #: Called when the process has taken as many rows as it may, and with rows that came too late, as it stops.
        self.on_full: Callable[[], None] = lambda: None
        self.on_late: Callable[[list[Lease]], None] = lambda leases: None
        self._reconnects = {lane.using: Reconnect("claimer", lane.using, events.digest) for lane in lanes}
        self._troubles = {lane: Backoff(most=options.lease_seconds, first=0.1) for lane in lanes}
        self._aside: dict[Lane, dict[Any, Backoff]] = {lane: {} for lane in lanes}
        #: Lanes with a claim whose answer was lost, and until when the server may still be at it.
        self._unheard: dict[Lane, float] = {}
        #: Lanes in which a process that died may hold rows.
        self._bereaved = set(lanes) if predecessor is not None else set()
        self._looks = 0
        self._trouble_since: float | None = None

    def _at_once(self, lane: Lane) -> int:
        """Return how many rows of a lane can run at the same time."""
        most = self.options.coroutines if lane.is_async else self.options.threads
        return min(most, self.options.queues.get(lane.queue) or most)

    def run(self) -> None:
        self.own.use(self._reconnects, "claimer")
        turn = 0
        while not self.stopping.is_set() and not self.is_drained.is_set():
            self.inflight.wake.clear()
            turn += 1
            was_done = self.inflight.is_empty()  # before we look: what is written meanwhile may be due again
            got = sum(self._claim_lane(lane) for lane in self._in_turn(turn))
            if self.options.max_rows and self.claimed_rows >= self.options.max_rows:
                self.on_full()
            elif not got and self.options.once and was_done and self._is_looked_through():
                self.is_drained.set()
            elif not any(self._is_hungry(lane) for lane in self.lanes):
                is_idle = self.options.once and not self.inflight.held
                self.inflight.wake.wait(0.05 if is_idle else self.options.poll_seconds)
                for prefetch in self.prefetches.values():
                    prefetch.exhausted = False

    def end(self) -> None:
        """Give back what was leased by claims whose answer was lost, for as long as the server may still be at one."""
        while self._unheard:
            for lane in [lane for lane in self._unheard if self._is_open(lane)]:
                self._contained(lane, lambda lane=lane: self._give_back_unheard(lane))  # type: ignore[misc]
            time.sleep(0.05)
        self.ended.set()

    @property
    def unheard(self) -> list[Lane]:
        """The lanes in which rows may be leased to this process that it does not know of."""
        return list(self._unheard)

    def look_again(self, lane: Lane) -> None:
        """Claim at once what became due by what was written."""
        for other in self.lanes:
            if other.bound is lane.bound:
                self.prefetches[other].exhausted = False
        self.inflight.wake.set()

    def on_idle(self) -> None:
        """Claim more if a thread has nothing to do, and there may be something."""
        if not self.inflight.wake.is_set() and not all(each.exhausted for each in self.prefetches.values()):
            self.inflight.wake.set()

    def on_low(self, lane: Lane, left: int) -> None:
        """Claim more if there are but few rows of a lane left."""
        prefetch = self.prefetches[lane]
        if left <= prefetch.size // 2 and not prefetch.exhausted and not self.inflight.wake.is_set():
            self.inflight.wake.set()

    def _in_turn(self, turn: int) -> Iterable[Lane]:
        start = turn % len(self.lanes)
        return (*self.lanes[start:], *self.lanes[:start])

    def _is_hungry(self, lane: Lane) -> bool:
        return self._is_open(lane) and not self.prefetches[lane].exhausted and self._room(lane) > 0

    def _room(self, lane: Lane) -> int:
        """Return how many rows of a lane to claim."""
        running = sum(lease.is_async == lane.is_async for lease in list(self.inflight.running))
        free = max(self._at_once(lane) - running, 0)
        return self.prefetches[lane].room(self.inflight.buffer.waiting(lane), free)

    def _is_open(self, lane: Lane) -> bool:
        return self._troubles[lane].is_over and self._reconnects[lane.using].is_over

    def _is_looked_through(self) -> bool:
        """Say whether a look that found nothing was a look at everything, or has been tried for long enough."""
        if all(trouble.failures == 0 for trouble in (*self._troubles.values(), *self._reconnects.values())):
            self._trouble_since, self.has_seen_all = None, True
            return True
        now = time.monotonic()
        self._trouble_since = self._trouble_since or now
        self.has_seen_all = False
        return now - self._trouble_since > ONCE_SECONDS

    # One lane.

    def _claim_lane(self, lane: Lane) -> int:
        if self.stopping.is_set() or not self._is_open(lane):
            return 0
        before = self.claimed_rows
        self._contained(lane, lambda: self._claim_all(lane))
        return self.claimed_rows - before

    def _contained(self, lane: Lane, act: Callable[[], bool]) -> None:
        """Do something with a lane whose failure must not keep the others from their turn.

        :param act: says whether it has asked the database.
        """
        reconnect, trouble = self._reconnects[lane.using], self._troubles[lane]
        try:
            lane.connection.ensure_connection()
            driver = lane.connection.connection
        except (DatabaseError, InterfaceError) as error:
            reconnect.lost(error)
            return
        try:
            has_asked = act()
        except (DatabaseError, InterfaceError) as error:
            if is_connection_error(error):  # it may have been run, or its rows not have been loaded
                self._unheard[lane] = time.monotonic() + 2 * self.own.limits.statement
                if not is_scarcity(error) and not is_same(lane.connection, driver):
                    reconnect.lost(error)
                    return
            trouble.failed()
            self.events.digest.log(
                ("claim", str(lane), lane.queue, cause_of(error)),
                logging.WARNING,
                "Rows of %s in queue %r cannot be claimed now, which is tried again later: %s",
                lane,
                lane.queue,
                described(error).strip(),
            )
        else:
            if has_asked:
                reconnect.found()
                trouble.succeeded()

    def _claim_all(self, lane: Lane) -> bool:
        has_asked = False
        if lane in self._unheard:
            has_asked = self._give_back_unheard(lane)
        if lane in self._bereaved:
            has_asked = self._take_back_from_the_dead(lane)
        prefetch, room = self.prefetches[lane], self._room(lane)
        if room > 0:
            wanted = self.claimer.wanted(lane, room, aside=tuple(self._aside[lane]))
            prefetch.claimed(room, self._take(lane, wanted))
            self._try_those_aside(lane)
            has_asked = True
        if not self.inflight.suspects and prefetch.wants_suspects(SUSPECTS_EVERY) and not self.stopping.is_set():
            # One that shares a death with the others of its batch must still have a try left, which it has alone.
            most = prefetch.suspects if self.options.max_crashes > 2 else 1
            prefetch.claimed_suspects(self._take_suspects(lane, most))
            has_asked = True
        return has_asked

    def _take_suspects(self, lane: Lane, limit: int) -> int:
        """Take back what was left behind, and claim some of it, the rows that more than one worker died of one by one."""
        recovered = self.claimer.recover(lane, Left())
        self._looks += 1
        if not recovered.seen and self._looks % ASK_ANYWAY:
            return 0
        aside = tuple(self._aside[lane])
        for most, crashes in ((limit, 1), (1, 2)):
            if got := self._take(lane, self.claimer.wanted(lane, most, crashes=crashes, aside=aside)):
                return got
        return 0

    def _take(self, lane: Lane, wanted: Wanted) -> int:
        """Claim rows and hand them on, without those that cannot be claimed; return how many."""
        try:
            return self._put(lane, self.claimer.take(lane, wanted))
        except DatabaseError as error:
            if lane.dialect.is_statement_lost(error) or is_connection_error(error):
                raise
            return self._isolate(lane, wanted, error)

    def _isolate(self, lane: Lane, wanted: Wanted, error: BaseException) -> int:
        """Claim in smaller and smaller parts what cannot be claimed together, and set aside the rows that cannot be claimed
        alone. It ends after a while: the rest is for the next time."""
        keys = lane.candidates(wanted)
        parts = deque([keys[: len(keys) // 2], keys[len(keys) // 2 :]] if len(keys) > 1 else [keys])
        until = time.monotonic() + self.own.limits.statement
        got = 0
        bad: list[tuple[Any, BaseException]] = []
        while parts and time.monotonic() < until and not self.stopping.is_set():
            part = parts.popleft()
            if not part:
                continue
            try:
                got += self._put(lane, self.claimer.take(lane, replace(wanted, keys=part, aside=())))
            except DatabaseError as problem:
                if is_connection_error(problem):
                    raise
                if len(part) > 1:
                    parts.extendleft([part[len(part) // 2 :], part[: len(part) // 2]])
                else:
                    bad.append((part[0], problem))
        if not got and (not bad or (len(keys) > 1 and all(is_in_the_way(lane, cause) for _key, cause in bad))):
            raise error  # it is not for some rows that nothing can be claimed
        for key, cause in bad:
            self._set_aside(lane, key, cause)
        return got

    def _set_aside(self, lane: Lane, key: Any, error: BaseException) -> None:
        aside = self._aside[lane]
        backoff = aside.setdefault(key, Backoff(most=self.options.lease_seconds, first=1.0))
        backoff.failed()
        if len(aside) > MOST_ASIDE:
            del aside[next(iter(aside))]
        self.events.digest.log(
            ("aside", str(lane), cause_of(error)),
            logging.WARNING,
            "%s pk=%s cannot be claimed and is set aside, to be tried again later: %s",
            lane.bound.model._meta.label,
            shown(key),
            described(error).strip(),
            fields=row_fields(lane, key) | {"error": described(error)},
        )

    def _try_those_aside(self, lane: Lane) -> None:
        """Try rows again that were set aside, each by itself."""
        for key, backoff in list(self._aside[lane].items()):
            if self.stopping.is_set():
                return
            if not backoff.is_over:
                continue
            try:
                self._put(lane, self.claimer.take(lane, replace(self.claimer.wanted(lane, 1), keys=[key])))
            except DatabaseError as error:
                if is_connection_error(error):
                    raise
                self._set_aside(lane, key, error)
            else:
                self._aside[lane].pop(key, None)

    def _take_back_from_the_dead(self, lane: Lane) -> bool:
        """Take back at once what a process held that our supervisor knows to be dead."""
        rows = self.claimer.recover(lane, Left(owner=self.predecessor)).rows
        self._bereaved.discard(lane)
        if rows:
            logger.warning("Took back %d rows of %s from %s, which died.", rows, lane, self.predecessor)
        return True

    def _give_back_unheard(self, lane: Lane) -> bool:
        """Give back rows that are leased to us and that we do not know of: of a claim whose answer was lost."""
        held = [lease.key for lease in self.inflight.of_machine(lane)]
        given = self.claimer.recover(lane, Left(owner=self.claimer.owner, held=held, is_crash=False)).rows
        if given:
            logger.info("Gave back %d rows of %s, claimed by a statement whose answer was lost.", given, lane)
        if time.monotonic() > self._unheard[lane]:
            del self._unheard[lane]
        return True

    def _put(self, lane: Lane, leases: list[Lease]) -> int:
        """Hand on what was claimed."""
        if not leases:
            return 0
        self.inflight.took(leases)
        self.claimed_rows += len(leases)
        states: dict[str, int] = {}
        for lease in leases:
            states[lease.status] = states.get(lease.status, 0) + 1
            if lease.is_recovered:
                self.inflight.suspects.add(lease)
                self.events.count(str(lane), lease.status, "recovered")
        for state, number in states.items():
            self.events.count(str(lane), state, "claimed", number)
        self.on_late(self.inflight.buffer.put(lane, leases))
        return len(leases)
