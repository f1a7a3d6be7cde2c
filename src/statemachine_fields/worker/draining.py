"""What `testing.drain()` runs: a worker's work, in the calling thread and in its transaction."""

from __future__ import annotations

import copy
import datetime
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from asgiref.sync import async_to_sync
from django.db import DatabaseError, models
from django.db.models import Q

from statemachine_fields.db.claims import Left
from statemachine_fields.db.clock import DatabaseClock, StatementClock
from statemachine_fields.db.rows import all_rows
from statemachine_fields.exceptions import StateMachineError
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.registry import machines_of
from statemachine_fields.worker.atomic import run_atomic
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.lease import Lane, Lease
from statemachine_fields.worker.outcome_events import Events
from statemachine_fields.worker.outcomes import Conflicted, Released, RowOutcome, Waited
from statemachine_fields.worker.savepoints import TrySavepoint
from statemachine_fields.worker.timeline import NextTry, Timeline, timelines_of

#: Long enough for a debugger.
LEASE_SECONDS = 3600.0
BATCH = 100
MICROSECOND = datetime.timedelta(microseconds=1)
#: How often `max_tries` the tries of all instants may be, where they are counted for each.
MOST_INSTANTS = 100


@dataclass(slots=True)
class DrainTally:
    """What a `drain()` did: how many tries came to what, which moves were made, and what went wrong."""

    moved: int = 0
    waited: int = 0
    failed: int = 0
    parked: int = 0
    deleted: int = 0
    dropped: int = 0
    #: How often each move was made, by source and target.
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: What was written on rows that failed or were parked, in order.
    errors: list[str] = field(default_factory=list)

    @property
    def tries(self) -> int:
        return sum(getattr(self, kind) for kind in COUNTED)


#: The kinds of outcomes that a tally counts, each under its name.
COUNTED = ("moved", "waited", "failed", "parked", "deleted", "dropped")


@dataclass(eq=False)
class Drain:
    """One run over some lanes, in the calling thread."""

    lanes: list[Lane]
    executor: HandlerExecutor
    collapse_time: bool
    reraise: bool
    max_tries: int

    def __post_init__(self) -> None:
        self.events = Events()
        self.claimer = Claimer("drain()", LEASE_SECONDS)
        self.committer = Committer(self.executor, self.events)
        self.tally = DrainTally()
        #: Rows that had their turn in the state they are in, by machine, key and sequence: what had happened by then of what
        #: they wait for.
        self.asked: dict[Binding[Any], dict[tuple[Any, int], Hashable]] = {lane.bound: {} for lane in self.lanes}
        #: What is claimed, and not written yet.
        self.claimed: set[Lease] = set()

    def run(self) -> DrainTally:
        try:
            self._run_all()
        except BaseException:
            with suppress(DatabaseError):  # of a transaction that is broken, and will be undone
                self._give_back()
            raise
        return self.tally

    def _run_all(self) -> None:
        while any([self._pass(lane) for lane in self.lanes]):  # noqa: C419 - every lane has its turn in every round
            pass

    def _give_back(self) -> None:
        """Give back what is claimed, so that the test can go on with it. What its handler has moved is nobody's any more."""
        for lease in self.claimed:
            if lease.lane.held([lease.key], [lease.token]):
                self.committer.commit([Released(lease)])

    def _pass(self, lane: Lane) -> bool:
        """Run a batch of a lane's due rows, and say whether there were any, or may be others by now."""
        if self.collapse_time:
            self._make_due(lane)
        if lane.levels is not None:  # what a handler did a moment ago counts
            lane.levels.learn(lane.connection)
        has_moved_others = any([wait.look(lane) for wait in dict.fromkeys(lane.waits.values())])  # noqa: C419 - all look
        leases = self.claimer.claim(lane, BATCH) + self.claimer.claim(lane, BATCH, suspects=True)
        again = [lease for lease in leases if self._was_asked(lease)]
        self.committer.commit(Released(lease) for lease in again)
        leases = [lease for lease in leases if lease not in again]
        self.claimed.update(leases)
        for lease in leases:
            self._run(lease)
        return bool(leases) or has_moved_others

    def _was_asked(self, lease: Lease) -> bool:
        """Say whether a row had its turn where it is, and nothing has happened since of what it waits for."""
        asked, turn = self.asked[lease.lane.bound], (lease.key, lease.sequence)
        return turn in asked and asked[turn] == (None if lease.awaited is None else lease.awaited.version)

    def _make_due(self, lane: Lane) -> None:
        names = lane.bound.names
        states = [state for state, schedule in lane.schedules.items() if self._has_something_to_do(schedule)]
        waiting = Q(**{f"{names.status}__in": states})
        if lane.waits:  # a row that waits for something else than time is not helped by time, but after a failure
            waiting |= Q(**{f"{names.status}__in": list(lane.waits), f"{names.failures}__gt": 0})
        rows = all_rows(lane.bound.model, lane.using).filter(waiting, **{f"{names.next_at}__gt": StatementClock()})
        asked = [key for key, _sequence in self.asked[lane.bound]]
        rows.filter(lane.bound.free_condition()).exclude(pk__in=asked).update(**{names.next_at: DatabaseClock()})
        # Those that were asked may have moved on since.
        for key, sequence in self.asked[lane.bound]:
            moved_on = rows.filter(**{"pk": key, f"{names.sequence}__gt": sequence})
            moved_on.update(**{names.next_at: DatabaseClock()})

    def _has_something_to_do(self, schedule: Any) -> bool:
        return (
            (schedule.handler is not None and schedule.until is None)
            or (self.executor.fires_timeouts and schedule.timeout_to is not None)
            or (self.executor.fires_deletions and schedule.delete_after is not None)
        )

    def _refuse_to_go_on(self, lease: Lease) -> None:
        """Raise if there were so many tries that there may be no end of them."""
        if self.tally.tries >= self.max_tries:
            raise AssertionError(
                f"drain() has made {self.max_tries} tries and rows are still due, {lease.label} in {lease.status!r} "
                "among them. If states hand rows to and fro, end the test earlier; else raise max_tries."
            )

    def _run(self, lease: Lease) -> None:
        self._refuse_to_go_on(lease)
        before = self.events.total.copy()
        outcome = self._attempt(lease)
        if outcome is not None:
            if self.reraise and outcome.exception is not None:
                raise outcome.exception
            self.committer.commit([outcome])
        self.claimed.discard(lease)
        self._count(lease, outcome, self.events.total - before)

    def _attempt(self, lease: Lease) -> RowOutcome | None:
        with TrySavepoint():
            return self._try(lease)

    def _try(self, lease: Lease) -> RowOutcome | None:
        handler = lease.schedule.handler
        if handler is not None and handler.atomic:
            outcome = run_atomic(self.executor, self.events, lease)
            while isinstance(outcome, Conflicted):
                outcome = run_atomic(self.executor, self.events, lease)
            return outcome
        if handler is not None and handler.is_async:
            return async_to_sync(self.executor.arun)(lease)
        return self.executor.run(lease)

    def _count(self, lease: Lease, outcome: RowOutcome | None, counted: Counter[str]) -> None:
        for kind in COUNTED:
            setattr(self.tally, kind, getattr(self.tally, kind) + counted[kind])
        row = all_rows(lease.lane.bound.model, lease.lane.using).filter(pk=lease.key)
        names = lease.lane.bound.names
        found = row.values_list(names.status, names.sequence, names.error, names.failures).first()
        if found is None:
            return
        status, sequence, error, failures = found
        if sequence > lease.sequence:
            self.tally.moves[lease.status, status] += 1
        error = error or ("" if outcome is None else outcome.error)
        if error:
            self.tally.errors.append(error)
        endless = lease.schedule.max_attempts is None
        if sequence == lease.sequence and (counted[Waited.kind] or endless or failures == lease.failures):
            found = lease.awaited
            self.asked[lease.lane.bound][lease.key, sequence] = None if found is None else found.version


class RememberedEvents(Events):
    """Remembers what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[RowOutcome] = []

    def committed(self, outcomes: Sequence[RowOutcome]) -> None:
        self.outcomes += outcomes
        super().committed(outcomes)


@dataclass(eq=False)
class DrainUntil(Drain):
    """A run until an instant: one row after the other, each as of when it is due."""

    at: datetime.timedelta | datetime.datetime

    def __post_init__(self) -> None:
        super().__post_init__()
        self.events = self.remembered = RememberedEvents()
        self.committer = Committer(self.executor, self.events)
        self.timelines = {timeline: timeline.read(self.at) for timeline in timelines_of(self.lanes)}
        #: How many tries were made before time passed the last time, and as of when.
        self.tries_before = 0
        self.as_of = min(timeline.now for timeline in self.timelines)

    def run(self) -> DrainTally:
        try:
            super().run()
        except BaseException:
            with suppress(DatabaseError):
                self._end({timeline: timeline.now for timeline in self.timelines})
            raise
        self._end(self.timelines)
        return self.tally

    def _run_all(self) -> None:
        while (found := self._next()) is not None:
            self._run_as_of(*found)

    def _next(self, besides: Lease | None = None) -> tuple[Timeline, NextTry] | None:
        waits = [(lane, wait) for lane in self.lanes for wait in dict.fromkeys(lane.waits.values())]
        while any([wait.look(lane) for lane, wait in waits]):  # noqa: C419 - all look, as long as one moves what others wait for
            pass
        tries = [(timeline, timeline.next_try(until, besides)) for timeline, until in self.timelines.items()]
        found = [(timeline, each) for timeline, each in tries if each is not None]
        return min(found, key=lambda each: each[1].at, default=None)

    def _run_as_of(self, timeline: Timeline, found: NextTry) -> None:
        self._go_on(found.at)
        self._advance()
        lane, due = found.lane, found.due
        wanted = replace(self.claimer.wanted(lane, 1, crashes=min(due.crashes, 2)), keys=[due.key])
        if due.is_held and lane.recover(Left()).rows:
            return  # and found again
        if due.is_held or not (leases := self.claimer.take(lane, wanted)):
            raise StateMachineError(
                f"{lane.bound.model._meta.label} pk={due.key!r} is due and cannot be claimed: another connection has it "
                "locked, or has just changed it. End what uses the row before drain(at=...)."
            )
        (lease,) = leases
        self.claimed.add(lease)
        lease.age = (found.as_of - due.entered_at).total_seconds()
        self.remembered.outcomes.clear()
        with ExitStack() as stack:
            for each in self.timelines:  # a handler may write to all databases
                stack.enter_context(each.watch())
            self._run(lease)
        entered_at = timeline.stopped_at - datetime.timedelta(seconds=lease.age)
        for outcome in self.remembered.outcomes:
            timeline.committed(outcome, entered_at)

    def _attempt(self, lease: Lease) -> RowOutcome | None:
        """Try a row, and as long as nothing but time would change by writing the answer, again when it is due again.

        A handler that is asked every minute for days says "not yet" thousands of times. Nobody needs that in the database
        who does not look: if a handler looks, time has passed there before it is answered.
        """
        fresh = _copy(lease.instance)
        with TrySavepoint() as watch:
            outcome = self._try(lease)
        is_kept = lease.lane.bound.records_attempts  # each of its tries
        if watch.has_happened or fresh is None or not _is_quiet(outcome) or is_kept:
            return outcome
        began_at, until, tries, counted = self.as_of, self._quiet_until(lease), 0, 0
        timeline = next(each for each in self.timelines if each.using == lease.lane.using)

        def catch_up() -> None:
            nonlocal counted
            self._advance()
            if tries > counted:
                timeline.count_tries(lease, tries - counted)
            counted = tries

        while not watch.has_happened and _is_quiet(outcome):
            if (delay := outcome.delay) is None:  # it waits for something else than time
                break
            at = self.as_of + datetime.timedelta(seconds=delay)
            if at >= until:
                break
            self.tally.waited += 1
            self._go_on(at)
            self._refuse_to_go_on(lease)
            lease.age += delay
            tries += 1
            lease.instance = _grown_older(copy.deepcopy(fresh), at - began_at)
            vars(lease.instance)[lease.lane.bound.names.attempts] += tries
            with TrySavepoint(catch_up) as watch:
                outcome = self._try(lease)
        catch_up()
        return outcome

    def _quiet_until(self, lease: Lease) -> datetime.datetime:
        """Return when something else happens than that this row is asked."""
        horizon = lease.schedule.horizon
        ends = [until + MICROSECOND for until in self.timelines.values()]
        if horizon is not None:
            ends.append(self.as_of + datetime.timedelta(seconds=horizon - lease.age))
        if (other := self._next(lease)) is not None:
            ends.append(other[1].at)
        return min(ends)

    def _go_on(self, at: datetime.datetime) -> None:
        if at != self.as_of:
            self.tries_before, self.as_of = self.tally.tries, at

    def _advance(self) -> None:
        for timeline in self.timelines:
            timeline.advance(self.as_of)

    def _refuse_to_go_on(self, lease: Lease) -> None:
        tries = self.tally.tries - self.tries_before
        if tries >= self.max_tries:
            raise AssertionError(
                f"drain(at=...) has made {tries} tries and no time has passed, {lease.label} in {lease.status!r} is still "
                "due. Give what it waits for a delay, or raise max_tries if there are that many rows."
            )
        if self.tally.tries >= MOST_INSTANTS * self.max_tries:
            raise AssertionError(
                f"drain(at=...) has made {self.tally.tries} tries, {lease.label} in {lease.status!r} is due among others at "
                f"{self.as_of}. Let less time pass, or raise max_tries."
            )

    def _count(self, lease: Lease, outcome: RowOutcome | None, counted: Counter[str]) -> None:
        if [(type(each), each.error) for each in self.remembered.outcomes] == [(Waited, "")]:  # most tries, and no news
            self.tally.waited += 1
        else:
            super()._count(lease, outcome, counted)

    def _end(self, until: Mapping[Timeline, datetime.datetime]) -> None:
        for timeline, at in until.items():
            timeline.settle()
            timeline.advance(at)
            timeline.remember(at)


def _is_quiet(outcome: RowOutcome | None) -> TypeGuard[Waited]:
    """Say whether a handler has only said "not yet"."""
    return isinstance(outcome, Waited) and not outcome.error


def _copy(instance: models.Model | None) -> models.Model | None:
    """Return a copy, or None if it has something that cannot be copied, such as a lock."""
    try:
        return copy.deepcopy(instance)
    except Exception:  # noqa: BLE001 - code of the user's
        return None


def _grown_older(instance: models.Model, by: datetime.timedelta) -> models.Model:
    """Return an instance as it would be loaded after that time."""
    values = vars(instance)
    for bound in machines_of(type(instance)).values():
        for name in (bound.names.changed_at, bound.names.next_at, bound.names.lease_expires_at):
            if values.get(name) is not None:
                values[name] -= by
    return instance
