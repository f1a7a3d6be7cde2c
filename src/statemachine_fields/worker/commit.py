"""Write what became of leased rows: many in one statement, each compared with its token, none harmed by another.

What the database does not confirm is either locked by somebody at the moment, and tried again later, or no longer ours,
and dropped. A group that cannot be written is cut in two until the row is alone that is to blame. What is reported is what was
committed. What can be written together, what runs code of the project's, and what is deleted have a thread and a connection
each, so that none waits for another.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any

from django.db import transaction

from statemachine_fields.db.dialect import is_connection_error, is_scarcity
from statemachine_fields.worker.ahead import RunAhead
from statemachine_fields.worker.atomic import TrackedTransaction
from statemachine_fields.worker.connections import FIRST_WAIT, OwnConnections, Reconnect, is_same
from statemachine_fields.worker.errors import described
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.inflight import InFlight, Outbox
from statemachine_fields.worker.lease import Lane
from statemachine_fields.worker.outcome_events import Events
from statemachine_fields.worker.outcomes import Parked, Released, RowOutcome, Transitioned, given_back, grouped
from statemachine_fields.worker.prefetch import WritePace
from statemachine_fields.worker.writing import (
    ADVANCERS,
    ENTER_ALONE,
    ONE_BY_ONE,
    ROLES,
    ConnectionLost,
    NotWritten,
    Write,
    duplicate_behind,
    is_in_the_way,
    is_lost_statement,
    lock,
    pairs,
    row_of,
)

#: So many rows at once are no longer few.
LARGE = 1000
#: After how many tries it is said that a row is locked, and asked whether it really is.
LONG_LOCKED = 4
#: How long a row waits at most whose outcome cannot be written, and while the process stops.
LONGEST_WAIT, LONGEST_WAIT_AT_THE_END = 10.0, 0.2
#: How often to ask whether the moves of a model run code of the user's: receivers may come and go.
ASK_AGAIN_AFTER = 1.0


class Committer:
    """Writes outcomes. Each thread that has one uses its own connection."""

    def __init__(self, executor: HandlerExecutor, events: Events, ahead: RunAhead | None = None) -> None:
        self.executor = executor
        self.events = events
        #: Takes the rows that go on under the claim that they have.
        self.ahead = ahead
        #: How many rows at once were not too many the last time, where it was too many once.
        self._sizes: dict[tuple[Lane, Write], int] = {}

    def commit(self, outcomes: Iterable[RowOutcome]) -> list[RowOutcome]:
        """Write outcomes and report each, and return those to be tried again a little later.

        :raises ConnectionLost: the database went away. All that is not yet reported can be committed again.
        """
        return [each for group in self.grouped(outcomes) for each in self.write_group(*group)]

    def grouped(self, outcomes: Iterable[RowOutcome]) -> Iterator[tuple[Lane, Write, list[RowOutcome]]]:
        """Sort outcomes by what can be written together, and how: moves after which rows go on apart from those after which
        their leases end."""
        for lane, write, members in grouped(outcomes):
            if not write.goes_on or self.ahead is None:
                yield lane, write, members
                continue
            going, others = self.ahead.split(lane, members)
            if going:
                yield lane, self.ahead.write, going
            if others:
                yield lane, write, others

    def write_group(self, lane: Lane, write: Write, outcomes: Sequence[RowOutcome]) -> list[RowOutcome]:
        """Write what can be written together, or as much of it as can, and return what is to be tried again."""
        again: list[RowOutcome] = []
        waiting = deque(outcomes)
        size = self._sizes.get((lane, write), len(waiting))
        while waiting:
            part = [waiting.popleft() for _ in range(min(size, len(waiting)))]
            try:
                again += self._write(lane, write, part)
            except ConnectionLost as lost:
                lost.again += again
                raise
            except BaseException as error:  # noqa: BLE001 - a constraint, a trigger, a receiver: code of the user's
                part = [outcome for outcome in part if not outcome.is_reported]
                if is_scarcity(error):  # nothing can be written now, of no row
                    return again + self._defer([*part, *waiting], error)
                if not part or is_lost_statement(lane, error):
                    again += part
                elif len(part) > 1:
                    waiting.extendleft(reversed(part))
                    size = len(part) // 2
                    if is_in_the_way(lane, error):
                        self._sizes[lane, write] = size
                else:
                    again += self._defer(part, error) if is_in_the_way(lane, error) else self._refuse(part[0], error)
            else:
                size = self._grown(lane, write, size, len(part), len(waiting))
        return again

    def _grown(self, lane: Lane, write: Write, size: int, written: int, waiting: int) -> int:
        """Return how many to write next. What took too long once is not made longer again before the next group."""
        limit = self._sizes.get((lane, write))
        if limit is None:
            return size * 2
        if not waiting and written >= limit:
            self._sizes[lane, write] = limit * 2
            if limit > LARGE:
                del self._sizes[lane, write]
        return size

    def _defer(self, outcomes: list[RowOutcome], error: BaseException) -> list[RowOutcome]:
        for outcome in outcomes:
            outcome.tries += 1
        self.events.deferred(outcomes[0], described(error), error)
        return outcomes

    def _refuse(self, outcome: RowOutcome, error: BaseException) -> list[RowOutcome]:
        """Write, in place of an outcome that the database will not have, that it would not."""
        if isinstance(outcome, Parked) and not outcome.update:  # and not even that: it is not the outcome that is wrong
            return self._defer([outcome.instead_of or outcome], error)
        return self._replace(outcome, self.executor.refuse(outcome, duplicate_behind(outcome, error) or error))

    def _replace(self, outcome: RowOutcome, other: RowOutcome) -> list[RowOutcome]:
        """Write another outcome of the same row."""
        again = self.commit([other])
        outcome.is_reported = all(each is not outcome for each in again)
        return again

    def _write(self, lane: Lane, write: Write, outcomes: list[RowOutcome]) -> list[RowOutcome]:
        for outcome in outcomes:
            outcome.following = None  # of a try that was undone
        with self._resolving(lane, outcomes), self._guarded(lane):
            written = self._call(lane, write, outcomes)
        missing = [each for each in outcomes if each.lease.key not in written] if len(written) < len(outcomes) else []
        if written:
            self._committed([each for each in outcomes if each.lease.key in written] if missing else outcomes)
        return self._find_out(lane, write, missing) if missing else []

    def _committed(self, outcomes: list[RowOutcome]) -> None:
        """Hand on the rows that go on, before anybody can take them for ended, and report."""
        if self.ahead is not None:
            leases = [outcome.following for outcome in outcomes if outcome.following is not None]
            if leases:
                self.ahead.hand_on(leases)
        self.events.committed(outcomes)

    def _find_out(self, lane: Lane, write: Write, missing: list[RowOutcome]) -> list[RowOutcome]:
        """Return what is to be tried again of rows that were not written, and report what became of the others."""
        again: list[RowOutcome] = []
        with self._resolving(lane, missing):
            ours = lane.held(*pairs(missing))
            repeated = [each for each in missing if each.is_repeated and each.lease.key not in ours]
            found = write.find(lane, repeated) if repeated else set()
            unclear = self._adopt(lane, [each for each in repeated if each.lease.key in found])
        for outcome in missing:
            if outcome in unclear:
                outcome.tries += 1
                again.append(outcome)
            elif outcome.lease.key in found:  # written before the connection broke
                self._committed([outcome])
            elif outcome.lease.key in ours:
                again += self._not_written(lane, write, outcome)
            else:
                self.events.dropped(outcome)
        return again

    def _adopt(self, lane: Lane, outcomes: list[RowOutcome]) -> list[RowOutcome]:
        """Find the leases under which rows go on whose moves were written, unheard; return those that nobody can tell now."""
        sent = [each for each in outcomes if isinstance(each, Transitioned) and each.was_sent_ahead]
        return [] if self.ahead is None or not sent else [*self.ahead.adopt(lane, sent)]

    @contextmanager
    def _resolving(self, lane: Lane, outcomes: list[RowOutcome]) -> Iterator[None]:
        """Remember of outcomes that they may have been written, if that is not known because the connection was lost."""
        driver = lane.connection.connection
        try:
            yield
        except Exception as error:
            if not is_connection_error(error) or is_scarcity(error) or is_same(lane.connection, driver):
                raise
            for outcome in outcomes:
                outcome.is_repeated = True
            raise ConnectionLost(str(error)) from error

    def _call(self, lane: Lane, write: Write, outcomes: list[RowOutcome]) -> set[Any]:
        """Write, in a transaction if it takes more than one statement, and return the keys of what was."""
        if not write.is_transaction:
            return write.run(lane, outcomes)
        tracked = TrackedTransaction(lane.using)
        written: set[Any] = set()
        try:
            with tracked:
                written = write.run(lane, outcomes)
        except BaseException as error:
            if not tracked.is_committed:
                raise
            for outcome in outcomes:
                if outcome.lease.key in written:
                    self.events.raised_after_commit(outcome, error)
        return written

    def _not_written(self, lane: Lane, write: Write, outcome: RowOutcome) -> list[RowOutcome]:
        """Return what to do with a row that is ours and was not written: it is locked, or the database would not."""
        outcome.tries += 1
        try:
            if outcome.is_hearsay:
                return self._replace(outcome, self.executor.not_moved(outcome))
            if outcome.tries < LONG_LOCKED:
                return [outcome]
            return self._write_locked(lane, write, outcome)
        except BaseException as error:  # noqa: BLE001 - code of the user's, again
            if isinstance(error, ConnectionLost) or is_connection_error(error):
                outcome.is_repeated = True
                return [outcome]  # which will find out that it is lost
            return self._defer([outcome], error) if is_in_the_way(lane, error) else self._refuse(outcome, error)

    def _write_locked(self, lane: Lane, write: Write, outcome: RowOutcome) -> list[RowOutcome]:
        """Lock the row first, and so find out why it is not written."""
        lease, status = outcome.lease, lane.bound.names.status
        tracked = TrackedTransaction(lane.using)
        is_free = is_elsewhere = is_written = False
        try:
            with tracked:
                is_free = lock(lease)
                is_elsewhere = is_free and not row_of(lease).filter(**{status: lease.status}).exists()
                is_written = is_free and not is_elsewhere and bool(write.run(lane, [outcome]))
        except BaseException as error:
            if not tracked.is_committed:
                raise
            self.events.raised_after_commit(outcome, error)
        if is_written:
            self._committed([outcome])
            return []
        if not is_free:
            self.events.deferred(outcome, "Somebody else has the row locked.")
            return [outcome]
        if is_elsewhere:  # moved past the machine, which leaves the lease as it is
            self.events.dropped(outcome)
            return self.commit([Released(lease)])
        raise NotWritten

    def _guarded(self, lane: Lane) -> AbstractContextManager[Any]:
        """Keep a transaction that is not ours usable if a statement fails, as in a test."""
        return transaction.atomic(using=lane.using) if lane.connection.in_atomic_block else nullcontext()


@dataclass(eq=False)
class CommitLoop:
    """Writes what comes into its outbox, and tries again what could not be written."""

    role: str
    committer: Committer
    inflight: InFlight
    own: OwnConnections
    aliases: InitVar[Iterable[str]]
    size: InitVar[int]
    longest_wait: float = LONGEST_WAIT
    #: How many rows of each lane may wait to be written.
    paces: Mapping[Lane, WritePace] = field(default_factory=dict)

    def __post_init__(self, aliases: Iterable[str], size: int) -> None:
        self.longest_wait = min(LONGEST_WAIT, self.longest_wait)
        self.outbox = Outbox(size)
        #: How many it has taken out of there, by lane, and has not been through with.
        self._taken: Counter[Lane] = Counter()
        self.is_ending = False
        #: Whether there is no time left to write what takes its time: the rows are given back.
        self.is_over = False
        #: Called with what was written, and again and again while there is nothing to write.
        self.on_written: Callable[[list[RowOutcome]], None] = lambda outcomes: None
        self.on_idle: Callable[[], None] = lambda: None
        self._later: list[RowOutcome] = []
        digest = self.committer.events.digest
        self._reconnects = {alias: Reconnect(self.role, alias, digest) for alias in aliases}

    def __len__(self) -> int:
        return len(self.outbox) + len(self._later)

    def run(self) -> None:
        self.own.use(self._reconnects, self.role)
        while True:
            outcomes = self.outbox.take(self._timeout()) + self._due_again()
            self._taken = Counter([outcome.lease.lane for outcome in outcomes])
            for lane, write, members in self._grouped(outcomes):
                reconnect, began = self._reconnects[lane.using], time.monotonic()
                try:
                    is_there = not reconnect.failures or reconnect.is_over
                    again = self.committer.write_group(lane, write, members) if is_there else members
                except ConnectionLost as error:
                    again = [outcome for outcome in (*members, *error.again) if not outcome.is_reported]
                    again = list({id(outcome): outcome for outcome in again}.values())
                    reconnect.lost(error)
                else:
                    if reconnect.failures and is_there:
                        reconnect.found()
                    if is_there and lane in self.paces:
                        self.paces[lane].wrote(len(members), time.monotonic() - began)
                self._taken[lane] -= len(members)
                self._finish(members, again, reconnect)
            self.on_idle()

    def room(self, lane: Lane, *, is_sure: bool = False) -> int:
        """Return how many more rows of a lane may come to wait for their write, which is to be here if that is sure."""
        room, others = partial(self.paces[lane].room, is_sure=is_sure), self._taken[lane]
        return room(len(self.outbox) + others) or room(self.outbox.number_of(lane) + others)

    def _grouped(self, outcomes: Iterable[RowOutcome]) -> Iterator[tuple[Lane, Write, list[RowOutcome]]]:
        for lane, write, members in self.committer.grouped(outcomes):
            yield from given_back(lane, write, members) if self.is_over else [(lane, write, members)]

    def _timeout(self) -> float:
        if not self._later:
            return 0.5
        return min(max(min(outcome.again_at for outcome in self._later) - time.monotonic(), 0.001), 0.5)

    def _due_again(self) -> list[RowOutcome]:
        if not self._later:
            return []
        now = time.monotonic()
        latest = now + LONGEST_WAIT_AT_THE_END if self.is_ending else float("inf")
        due: list[RowOutcome] = []
        later: list[RowOutcome] = []
        for outcome in self._later:
            (due if outcome.again_at <= now or outcome.again_at > latest else later).append(outcome)
        self._later = later
        return due

    def _finish(self, members: list[RowOutcome], again: list[RowOutcome], reconnect: Reconnect) -> None:
        longest = LONGEST_WAIT_AT_THE_END if self.is_ending else self.longest_wait
        for outcome in again:
            wait = max(min(FIRST_WAIT * 2**outcome.tries, longest), min(reconnect.left, longest))
            outcome.again_at = time.monotonic() + wait
        self._later += again
        waiting = {outcome.lease for outcome in again}
        self.inflight.let_go([outcome.lease for outcome in members if outcome.lease not in waiting])
        self.on_written(members)


class CommitRouter:
    """Which thread writes an outcome."""

    def __init__(self, make_loop: Callable[[str], CommitLoop], lanes: Iterable[Lane]) -> None:
        self._lanes = list(lanes)
        roles = [*ROLES, *ADVANCERS] if any(lane.runs_ahead for lane in self._lanes) else ROLES
        self.loops = {role: make_loop(role) for role in roles}
        for role in ADVANCERS[1:]:
            if role in self.loops:
                self.loops[role].outbox = self.loops[ADVANCERS[0]].outbox
        #: The lanes whose moves run code of the project's.
        self._watched: set[Lane] = set()
        self._asked_at = 0.0
        self.tick()

    def tick(self) -> None:
        """Ask now and then which moves run code of the project's: receivers come and go."""
        if time.monotonic() - self._asked_at > ASK_AGAIN_AFTER or not self._asked_at:
            self._watched = {lane for lane in self._lanes if lane.is_watched}
            self._asked_at = time.monotonic()

    def post(self, outcome: RowOutcome) -> None:
        """Have an outcome written."""
        self.loops[outcome.way(outcome.lease.lane in self._watched).role].outbox.add(outcome)

    def room(self, lane: Lane) -> int:
        """Return how many more rows of a lane may come to wait for their write, whichever way they are written."""
        watched = ENTER_ALONE.role if lane in self._watched else None
        return min([loop.room(lane, is_sure=role == watched) for role, loop in self.loops.items()])

    def flush(self) -> None:
        for loop in self.loops.values():
            loop.outbox.flush()

    def hurry(self, *, is_over: bool = False) -> None:
        """Wait no longer than a moment with what could not be written: the process ends.

        :param is_over: give back the rows that are written one by one: there is no time left for that.
        """
        for role, loop in self.loops.items():
            loop.is_ending, loop.is_over = True, is_over and role in ONE_BY_ONE
        self.flush()
