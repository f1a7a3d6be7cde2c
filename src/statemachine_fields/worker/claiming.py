"""The thread of a process that claims: it keeps a little work ahead, lane by lane, on a connection of its own.

It claims enough that no thread waits, and no more than can soon be run: what is claimed is taken from other workers and has to be
run again if this one dies, so no row is claimed that would wait for more than a moment. Rows that a worker may have died of are
claimed few at a time, at first one: if it was theirs to blame, few share it, and if not, they are soon done. A machine that cannot
be claimed from, or a database that is away, is left alone for a while, and all else goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from django.db import DatabaseError, InterfaceError

from statemachine_fields.db.claims import Left
from statemachine_fields.db.dialect import is_connection_error, is_scarcity
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.connections import Backoff, OwnConnections, Reconnect, is_same
from statemachine_fields.worker.digest import cause_of
from statemachine_fields.worker.executor import described
from statemachine_fields.worker.inflight import InFlight
from statemachine_fields.worker.lease import Lane, Lease
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.outcomes import Events, RowOutcome

logger = logging.getLogger("statemachine_fields.worker")

#: A claim that was used up within this many seconds was too small; one that lasted longer than the other was too large.
TOO_SOON, TOO_LATE = 0.5, 2.0
#: How long a row that was claimed ahead is to wait for a handler's end, at most, by how long those before it ran.
AHEAD_SECONDS = 0.25
#: How much the last handler's time counts for how long they run.
WEIGHT = 0.3
#: How many suspects at most are claimed together.
MOST_SUSPECTS = 256
#: Handlers that take less long, in seconds, are all the same to who decides how much is claimed ahead.
QUICK = 0.001
#: Seconds between two looks for rows that were left behind, while there are none.
SUSPECTS_EVERY = 5.0
#: Of so many such looks one asks for rows that a worker may have died of, though there seem to be none.
ASK_ANYWAY = 6
#: How long a worker that is to stop when nothing is due waits for what it cannot claim.
ONCE_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class Prefetch:
    """How much to claim of one lane."""

    least: int
    most: int
    size: int = 0
    #: Whether the last claim found less than it asked for, so that the next look can wait for the poll.
    exhausted: bool = False
    claimed_at: float = 0.0
    was_full: bool = False
    was_empty: bool = False
    has_grown: bool = False
    suspects_at: float = field(default_factory=time.monotonic)
    suspects_left: bool = False
    has_looked_for_suspects: bool = False
    #: How many suspects to claim together: more each time that nobody has died of some.
    suspects: int = 1
    #: How long handlers run, of late, in seconds; None while none has ended.
    mean: float | None = None

    def __post_init__(self) -> None:
        self.least = min(self.least, self.most)
        self.size = min(self.least * 2, self.most)

    def ran(self, seconds: float) -> None:
        """Learn from a handler that has ended."""
        self.mean = seconds if self.mean is None else self.mean + (seconds - self.mean) * WEIGHT

    def room(self, waiting: int, free: int) -> int:
        """Return how many rows to claim while so many wait: none until half of them are gone.

        :param free: how many handlers could begin at once.
        """
        ahead = 0.0 if self.mean is None else self.least * AHEAD_SECONDS / max(self.mean, 1e-6)
        size = int(min(self.size, max(free, ahead)))
        return size - waiting if waiting <= size // 2 else 0

    def claimed(self, asked: int, got: int) -> None:
        """Learn from a claim."""
        now = time.monotonic()
        if self.has_grown:  # this claim fills what was added, at once: it says nothing of how soon rows are used up
            self.has_grown = False
        elif self.was_full:
            lasted = now - self.claimed_at
            if lasted < TOO_SOON:
                self.has_grown = self.size < self.most
                self.size = min(self.size * 2, self.most)
            elif lasted > TOO_LATE:
                self.size = max(self.size // 2, self.least)
        self.was_full, self.was_empty = got == asked, not got
        self.exhausted = got < asked
        self.claimed_at = now

    def wants_suspects(self, every: float) -> bool:
        """Say whether to look for rows that were left behind. A new process has others to run first: if it dies of one, as
        those before it did, it has done something until then."""
        if self.suspects_left or (self.was_empty and not self.has_looked_for_suspects):
            return True
        return time.monotonic() - self.suspects_at >= every

    def claimed_suspects(self, got: int) -> None:
        if self.suspects_left:  # those of the last time have an outcome by now
            self.suspects = min(self.suspects * 2, MOST_SUSPECTS)
        self.has_looked_for_suspects = True
        self.suspects_at = time.monotonic()
        self.suspects_left = got > 0


@dataclass(eq=False)
class ClaimLoop:
    """Claims until it is told to stop, and leaves no claim behind whose answer it has not heard."""

    lanes: list[Lane]
    options: WorkerOptions
    claimer: Claimer
    inflight: InFlight
    own: OwnConnections
    events: Events
    stopping: threading.Event
    #: The name of a process that died, which may hold rows.
    predecessor: str | None = None

    def __post_init__(self) -> None:
        lanes, options, digest = self.lanes, self.options, self.events.digest
        self.prefetches = {lane: Prefetch(self._at_once(lane), options.batch_size) for lane in lanes}
        self.claimed_rows = 0
        #: Set when nothing is due and the worker is to stop then.
        self.is_drained = threading.Event()
        #: Since when it cannot look everywhere, if it cannot.
        self.trouble_since: float | None = None
        #: Set when no claim is under way, nor will be.
        self.ended = threading.Event()
        #: Called when the process has taken as many rows as it may, and with rows that came too late, as it stops.
        self.on_full: Callable[[], None] = lambda: None
        self.on_late: Callable[[list[Lease]], None] = lambda leases: None
        self._reconnects = {lane.using: Reconnect("claimer", lane.using, digest) for lane in lanes}
        self._troubles = {lane: Backoff(most=options.lease_seconds, first=0.1) for lane in lanes}
        #: Lanes with a claim whose answer was lost, and until when the server may still be at it.
        self._unheard: dict[Lane, float] = {}
        #: Lanes in which a process that died may hold rows.
        self._bereaved = set(lanes) if self.predecessor is not None else set()
        self._looks = 0

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
            start = turn % len(self.lanes)
            got = sum(self._claim_lane(lane) for lane in (*self.lanes[start:], *self.lanes[:start]))
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
                self._contained(lane, self._give_back_unheard)
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

    def on_written(self, outcomes: list[RowOutcome]) -> None:
        """Claim at once what became due by what was written."""
        for outcome in outcomes:
            if outcome.is_due:
                self.look_again(outcome.lease.lane)
                return
        if self.options.once and not self.inflight.held:
            self.inflight.wake.set()

    def on_ran(self, lease: Lease) -> None:
        """Learn how long handlers run."""
        prefetch = self.prefetches[lease.lane]
        if prefetch.mean is None or lease.seconds > QUICK or prefetch.mean > QUICK:
            prefetch.ran(lease.seconds)

    def on_idle(self) -> None:
        """Claim more if a thread has nothing to do, and there may be something."""
        if not self.inflight.wake.is_set() and not all(each.exhausted for each in self.prefetches.values()):
            self.inflight.wake.set()

    def on_low(self, lane: Lane, left: int) -> None:
        """Claim more if there are but few rows of a lane left."""
        prefetch = self.prefetches[lane]
        if left <= prefetch.size // 2 and not prefetch.exhausted and not self.inflight.wake.is_set():
            self.inflight.wake.set()

    def _is_hungry(self, lane: Lane) -> bool:
        return self._is_open(lane) and not self.prefetches[lane].exhausted and self._room(lane) > 0

    def _room(self, lane: Lane) -> int:
        """Return how many rows of a lane to claim."""
        running = sum(lease.is_async == lane.is_async for lease in list(self.inflight.running))
        free = max(self._at_once(lane) - running, 0)
        return self.prefetches[lane].room(self.inflight.buffer.waiting(lane), free)

    def _is_open(self, lane: Lane) -> bool:
        waits = (self._troubles[lane], self._reconnects[lane.using])
        return not any(wait.failures and not wait.is_over for wait in waits)

    def _is_looked_through(self) -> bool:
        """Say whether a look that found nothing was a look at everything, or has been tried for long enough."""
        if all(trouble.failures == 0 for trouble in (*self._troubles.values(), *self._reconnects.values())):
            self.trouble_since = None
            return True
        now = time.monotonic()
        self.trouble_since = self.trouble_since or now
        return now - self.trouble_since > ONCE_SECONDS

    # One lane.

    def _claim_lane(self, lane: Lane) -> int:
        if self.stopping.is_set() or not self._is_open(lane):
            return 0
        before = self.claimed_rows
        self._contained(lane, self._claim_all)
        return self.claimed_rows - before

    def _contained(self, lane: Lane, act: Callable[[Lane], bool]) -> None:
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
            has_asked = act(lane)
        except (DatabaseError, InterfaceError) as error:
            if is_connection_error(error):  # it may have been run, or its rows not have been loaded
                self._unheard[lane] = time.monotonic() + 2 * self.own.limits.statement
                if not is_scarcity(error) and not is_same(lane.connection, driver):
                    reconnect.lost(error)
                    return
            trouble.failed()
            kind = ("claim", str(lane), lane.queue, cause_of(error))
            text = "Rows of %s in queue %r cannot be claimed now, which is tried again later: %s"
            self.events.digest.log(kind, logging.WARNING, text, lane, lane.queue, described(error).strip())
        else:
            if has_asked and (reconnect.failures or trouble.failures):
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
            prefetch.claimed(room, self._put(lane, self.claimer.take_around(lane, room)))
            self._put(lane, self.claimer.take_aside(lane))
            has_asked = True
        if not self.inflight.suspects and prefetch.wants_suspects(SUSPECTS_EVERY) and not self.stopping.is_set():
            # One that shares a death with the others of its batch must still have a try left, which it has alone.
            most = prefetch.suspects if self.options.max_crashes > 2 else 1
            prefetch.claimed_suspects(self._take_suspects(lane, most))
            has_asked = True
        return has_asked

    def _take_suspects(self, lane: Lane, limit: int) -> int:
        """Take back what was left behind, and claim some of it, the rows that more than one worker died of one by one."""
        recovered = lane.recover(Left())
        self._looks += 1
        if not recovered.seen and self._looks % ASK_ANYWAY:
            return 0
        for most, crashes in ((limit, 1), (1, 2)):
            if got := self._put(lane, self.claimer.take_around(lane, most, crashes=crashes)):
                return got
        return 0

    def _take_back_from_the_dead(self, lane: Lane) -> bool:
        """Take back at once what a process held that our supervisor knows to be dead."""
        rows = lane.recover(Left(owner=self.predecessor)).rows
        self._bereaved.discard(lane)
        if rows:
            logger.warning("Took back %d rows of %s from %s, which died.", rows, lane, self.predecessor)
        return True

    def _give_back_unheard(self, lane: Lane) -> bool:
        """Give back rows that are leased to us and that we do not know of: of a claim whose answer was lost."""
        held = [lease.key for lease in self.inflight.of_machine(lane)]
        given = lane.recover(Left(owner=self.claimer.owner, held=held, is_crash=False)).rows
        if given:
            logger.info("Gave back %d rows of %s, claimed by a statement whose answer was lost.", given, lane)
        if time.monotonic() > self._unheard[lane]:
            del self._unheard[lane]
        return True

    def _put(self, lane: Lane, parts: Iterable[list[Lease]]) -> int:
        """Hand on what is claimed, as it comes, and return how many rows that were."""
        before = self.claimed_rows
        for leases in parts:
            self.inflight.took(leases)
            self.claimed_rows += len(leases)
            for lease in leases:
                if lease.is_recovered:
                    self.inflight.suspects.add(lease)
                    self.events.count(str(lane), lease.status, "recovered")
            for state, number in Counter(lease.status for lease in leases).items():
                self.events.count(str(lane), state, "claimed", number)
            if leases:
                self.on_late(self.inflight.buffer.put(lane, leases))
        return self.claimed_rows - before
