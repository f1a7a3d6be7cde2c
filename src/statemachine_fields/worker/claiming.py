"""The thread of a process that claims: it keeps a little work ahead, lane by lane, on a connection of its own.

It claims enough that no thread waits, and no more than can soon be run: what is claimed is taken from other workers and has to be
run again if this one dies, so no row is claimed that would wait for more than a moment. Rows that a worker may have died of are
claimed few at a time, at first one: if it was theirs to blame, few share it, and if not, they are soon done. A machine that cannot
be claimed from, or a database that is away, is left alone for a while, and all else goes on.

A lane in which nothing is left is looked at again when its next row is due, when somebody says that one is (see `wakeups.py`), and
after `POLL_SECONDS` at the latest.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django.db import DatabaseError, InterfaceError

from statemachine_fields.db.claims import Left
from statemachine_fields.db.dialect import is_connection_error, is_scarcity
from statemachine_fields.schedule.wakeups import wake
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.connections import Backoff, OwnConnections, Reconnect, is_same
from statemachine_fields.worker.digest import cause_of
from statemachine_fields.worker.errors import described
from statemachine_fields.worker.inflight import InFlight, step_aside
from statemachine_fields.worker.lease import Lane, Lease
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.outcome_events import Events
from statemachine_fields.worker.outcomes import RowOutcome
from statemachine_fields.worker.prefetch import LookTimer, Prefetch

logger = logging.getLogger("statemachine_fields.worker")

#: Handlers that take less long, in seconds, are all the same to who decides how much is claimed ahead.
QUICK = 0.001
#: Seconds between two looks for rows that were left behind, while there are none.
SUSPECTS_EVERY = 5.0
#: Of so many such looks one asks for rows that a worker may have died of, though there seem to be none.
ASK_ANYWAY = 6
#: How long a worker that is to stop when nothing is due waits for what it cannot claim.
ONCE_SECONDS = 10.0


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
        self.prefetches = {lane: Prefetch(options.at_once(lane), options.batch_size) for lane in lanes}
        self.timers = {lane: LookTimer(options.poll_seconds) for lane in lanes}
        self._most = {lane: options.most(lane) for lane in lanes}
        self.claimed_rows = 0
        #: How many rows went on without being claimed anew.
        self.rows_ahead = 0
        #: Set when nothing is due and the worker is to stop then.
        self.is_drained = threading.Event()
        #: Since when it cannot look everywhere, if it cannot.
        self.trouble_since: float | None = None
        #: Set when no claim is under way, nor will be.
        self.ended = threading.Event()
        #: Called when the process has taken as many rows as it may, and with rows that came too late, as it stops.
        self.on_full: Callable[[], None] = lambda: None
        self.on_late: Callable[[list[Lease]], None] = lambda leases: None
        #: The databases of which somebody tells us if a row becomes due, and what is called with the lanes that could take rows
        #: and have none, before waiting for some.
        self.listened: set[str] = set()
        #: Waits for so many seconds, or until there may be something to claim, and hears what others have to say of that.
        self.wait: Callable[[float], object] = self.inflight.wake.wait
        self.on_rest: Callable[[list[Lane]], None] = lambda lanes: None
        #: Says how many more rows of a lane may come to wait for their write, and in which lanes it were too many.
        self.room_to_write: Callable[[Lane], int] = lambda lane: sys.maxsize
        self._unwritten: set[Lane] = set()
        #: Says whether nothing is under way that may make rows due besides what is written.
        self.is_settled: Callable[[], bool] = lambda: True
        self._reconnects = {lane.using: Reconnect("claimer", lane.using, digest) for lane in lanes}
        self._troubles = {lane: Backoff(most=options.lease_seconds, first=0.1) for lane in lanes}
        #: Lanes with a claim whose answer was lost, and until when the server may still be at it.
        self._unheard: dict[Lane, float] = {}
        #: Lanes in which a process that died may hold rows.
        self._bereaved = set(lanes) if self.predecessor is not None else set()
        self._looks = 0
        self._lock = threading.Lock()

    def run(self) -> None:
        self.own.use(self._reconnects, "claimer")
        turn = 0
        while not self.stopping.is_set() and not self.is_drained.is_set():
            self.wait(0.0)
            self.inflight.wake.clear()
            turn += 1
            was_done = (
                self.is_settled() and self.inflight.is_empty()
            )  # before we look: what is written meanwhile may be due again
            start = turn % len(self.lanes)
            lanes = [lane for lane in (*self.lanes[start:], *self.lanes[:start]) if self._has_turn(lane)]
            got = sum(self._claim_lane(lane) for lane in lanes)
            if self._is_full():
                self.on_full()
            elif not got and self.options.once and was_done and self._is_looked_through():
                self.is_drained.set()
            elif not any(self._is_hungry(lane) for lane in self.lanes):
                self._rest()

    def _rest(self) -> None:
        """Wait until there may be something to claim."""
        if self.options.once:
            self.wait(self.options.poll_seconds if self.inflight.held else 0.05)
            for timer in self.timers.values():
                timer.now()
            return
        can_take = [lane for lane in self.lanes if self._is_open(lane) and self._room(lane) > 0]
        self.on_rest([lane for lane in can_take if not self.timers[lane].is_paced])
        self.wait(min([self.options.poll_seconds, *map(self._left, self.lanes)]))

    def _left(self, lane: Lane) -> float:
        """Return in how many seconds there may be something to do in a lane if nobody says so before."""
        if not self._is_open(lane):
            return max(wait.left for wait in self._waits(lane))
        left = self.timers[lane].left  # whoever makes room says so as soon as it is over, and not before
        return left if left > 0 or self._room(lane) > 0 else self.options.poll_seconds

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

    @property
    def taken_rows(self) -> int:
        """How many rows the process has taken: each that it claimed, and each that went on."""
        return self.claimed_rows + self.rows_ahead

    def _is_full(self) -> bool:
        return 0 < self.options.max_rows <= self.taken_rows

    def room_ahead(self, lane: Lane) -> int:
        """Return how many rows that the process has already may go on in a lane. They come before those that are claimed, so
        that rows are finished rather than begun; but no more than can soon be run, as others may have a free hand."""
        prefetch, waiting = self.prefetches[lane], self.inflight.buffer.waiting(lane)
        return 2 * prefetch.most_ahead(self._free(lane)) - waiting

    def on_ahead(self, leases: list[Lease]) -> None:
        """Count rows that went on without being claimed anew."""
        with self._lock:
            self.rows_ahead += len(leases)
        for lane in {lease.lane for lease in leases}:
            self.prefetches[lane].went_on()
        if self._is_full():
            self.inflight.wake.set()

    def look_again(self, lane: Lane) -> None:
        """Claim at once what became due by what was written."""
        self._become_due(lane, None, None, 1, 0.0)
        self.inflight.wake.set()

    def on_written(self, outcomes: list[RowOutcome]) -> None:
        """Claim what became due by what was written in a lane, at once or as soon as it is, or let others do it; and go on if too much
        was still to be written."""
        soon: dict[tuple[Lane, str | None, str | None], tuple[int, float]] = {}
        for outcome in outcomes:
            seconds = outcome.due_in
            if seconds is not None and seconds <= self.options.poll_seconds:
                where = outcome.lease.lane, outcome.due_state, outcome.queue
                number, least = soon.get(where, (0, seconds))
                soon[where] = number + 1, min(least, seconds)
        for (lane, state, queue), (number, seconds) in soon.items():
            self._become_due(lane, state, queue, number, seconds)
        lane = outcomes[0].lease.lane
        is_free = lane in self._unwritten and self.room_to_write(lane) > 0
        if soon or is_free or (self.options.once and not self.inflight.held):
            self.inflight.wake.set()

    def _become_due(self, lane: Lane, state: str | None, queue: str | None, number: int, seconds: float) -> None:
        """Hear of rows that are due in a state now or soon."""
        ours = [each for each in self.lanes if each.is_of(lane) and (state is None or each.serves(state, queue))]
        for each in ours:
            self.timers[each].due_in(seconds) if seconds else self.timers[each].now()
        if state is not None and (self.stopping.is_set() or number > sum(map(self._room, ours))):
            wake(lane.bound, lane.connection, state, seconds, queue)

    def on_ran(self, lease: Lease) -> None:
        """Learn how long handlers run, and claim more if a coroutine has ended and none waits: unlike a thread it asks for none."""
        prefetch = self.prefetches[lease.lane]
        if prefetch.mean is None or lease.seconds > QUICK or prefetch.mean > QUICK:
            prefetch.ran(lease.seconds)
        if lease.lane.is_async and lease.is_async and self.inflight.buffer.is_empty([True]):
            self.on_idle()

    def on_stalled(self, lanes: Iterable[Lane]) -> None:
        """Claim no more ahead of lanes whose rows had to wait, until handlers end sooner."""
        for lane in lanes:
            self.prefetches[lane].stalled()

    def on_idle(self) -> None:
        """Claim more if a thread has nothing to do, and there may be something."""
        if not self.inflight.wake.is_set() and any(timer.is_over for timer in self.timers.values()):
            self.inflight.wake.set()

    def on_low(self, lane: Lane, left: int) -> None:
        """Claim more if there are but few rows of a lane left."""
        if left <= self.prefetches[lane].size // 2 and not self.inflight.wake.is_set() and self.timers[lane].is_over:
            self.inflight.wake.set()

    def _has_turn(self, lane: Lane) -> bool:
        """Say whether to look at a lane now, or to see to what was left behind in it."""
        if self.options.once or lane in self._unheard or lane in self._bereaved or self._is_hungry(lane):
            return True
        return not self.inflight.suspects and self.prefetches[lane].wants_suspects(SUSPECTS_EVERY)

    def _is_hungry(self, lane: Lane) -> bool:
        return self._is_open(lane) and self.timers[lane].is_over and self._room(lane) > 0

    def _room(self, lane: Lane) -> int:
        """Return how many rows of a lane to claim."""
        room = self.prefetches[lane].room(self.inflight.buffer.waiting(lane), self._free(lane))
        if room > 0:
            self._unwritten.add(lane)  # before it is asked, so that one of the two sees the other
            if room := min(room, self.room_to_write(lane)):
                self._unwritten.discard(lane)
        return room

    def _free(self, lane: Lane) -> int:
        """Return how many rows of a lane could begin at once."""
        running, limit = list(self.inflight.running), self.options.queues.get(lane.queue)
        free = self._most[lane] - sum(lease.is_async == lane.is_async for lease in running)
        if limit is not None:
            free = min(free, limit - sum(lease.lane.queue == lane.queue for lease in running))
        return max(free, 0)

    def _is_open(self, lane: Lane) -> bool:
        return not any(wait.failures and not wait.is_over for wait in self._waits(lane))

    def _waits(self, lane: Lane) -> tuple[Backoff, Backoff]:
        return self._troubles[lane], self._reconnects[lane.using]

    def _is_looked_through(self) -> bool:
        """Say whether a look that found nothing was a look at everything, or has been tried for long enough."""
        if all(trouble.failures == 0 for trouble in (*self._troubles.values(), *self._reconnects.values())):
            self.trouble_since = None
            return all(lane.is_sure for lane in self.lanes)
        now = time.monotonic()
        self.trouble_since = self.trouble_since or now
        return now - self.trouble_since > ONCE_SECONDS

    # One lane.

    def _claim_lane(self, lane: Lane) -> int:
        if self.stopping.is_set() or not self._is_open(lane):
            return 0
        before = self.claimed_rows
        self._contained(lane, self._claim_all if self._knows_of_rows(lane) else self._look)
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

    def _knows_of_rows(self, lane: Lane) -> bool:
        """Say whether there may well be something to claim or to take back, so that it need not be asked first."""
        is_told = not self.timers[lane].asks_first or self.prefetches[lane].suspects_left
        return is_told or self.options.once or lane in self._unheard or lane in self._bereaved

    def _look(self, lane: Lane) -> bool:
        """Ask whether any row is due, which costs less than a claim and locks nothing, and claim if so. Rows that somebody
        holds, or has left behind, are due as well."""
        self.timers[lane].begin()
        found = lane.next_due()
        self.timers[lane].sleep(found.seconds)
        if found.is_any:
            self._claim_all(lane)
        else:
            self.prefetches[lane].suspects_at = time.monotonic()
        return True

    def _claim_all(self, lane: Lane) -> bool:
        has_asked = False
        if lane in self._unheard:
            has_asked = self._give_back_unheard(lane)
        if lane in self._bereaved:
            has_asked = self._take_back_from_the_dead(lane)
        prefetch, room = self.prefetches[lane], self._room(lane)
        if room > 0:
            self.timers[lane].begin()
            got = self._put(lane, self.claimer.take_around(lane, room))
            if got < room:
                step_aside(got)
            prefetch.claimed(room, got)
            self._put(lane, self.claimer.take_aside(lane))
            self._set_timer(lane, room, got)
            has_asked = True
        if not self.inflight.suspects and prefetch.wants_suspects(SUSPECTS_EVERY) and not self.stopping.is_set():
            # One that shares a death with the others of its batch must still have a try left, which it has alone.
            most = prefetch.suspects if self.options.max_crashes > 2 else 1
            prefetch.claimed_suspects(self._take_suspects(lane, most))
            has_asked = True
        return has_asked

    def _set_timer(self, lane: Lane, asked: int, got: int) -> None:
        """Decide when to look again after a claim."""
        timer = self.timers[lane]
        if got == asked:
            timer.go_on()
        elif lane.using in self.listened and (got if timer.is_paced else timer.looked()):
            timer.pace()
        elif timer.is_over or not lane.is_sure:  # else it was asked before the claim
            timer.sleep(None if self.options.once else lane.next_due().seconds)

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
                if lease.crashes:
                    self.inflight.suspects.add(lease)
                    self.events.count(str(lane), lease.status, "recovered")
            for state, number in Counter([lease.status for lease in leases]).items():
                self.events.count(str(lane), state, "claimed", number)
            if leases:
                self.on_late(self.inflight.buffer.put(lane, leases))
        return self.claimed_rows - before
