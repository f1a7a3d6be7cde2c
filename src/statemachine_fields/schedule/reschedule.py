"""Recompute when rows are due, where the policy of their state has changed since they entered it.

A policy becomes a time when a row enters a state, or when an outcome is written. Rows that were there before the machine
was timed have no time at all; others have one that the code would no longer give them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import models, transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Coalesce, Least

from statemachine_fields.db.batches import Batches, Done
from statemachine_fields.db.clock import ComputedTime, StatementClock
from statemachine_fields.db.rows import all_rows
from statemachine_fields.schedule.asleep import has_unseen_event, is_asleep
from statemachine_fields.schedule.waiting import Event
from statemachine_fields.schedule.wakeups import wake

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.schedule.policy import Schedule

#: How far a row's time may be from what it should be. Two readings of the clock in one statement differ, too.
SLACK = datetime.timedelta(seconds=5)
#: How many rows of each state `mismatches()` looks at.
SAMPLE = 1000
#: What the time that a row should have is called in queries: no field of the model is.
TARGET = "statemachine_target"
#: How many parameters a statement needs besides the keys.
OTHER_PARAMETERS = 500


@dataclass(slots=True)
class Changes:
    """How many rows of one state got a time, got another, or lost theirs."""

    gained: int = 0
    changed: int = 0
    lost: int = 0

    def __bool__(self) -> bool:
        return bool(self.gained or self.changed or self.lost)


class Rescheduler:
    """Give the rows of one machine the times that its policies would give them now.

    In batches by key, each one transaction and three statements, whatever the number of states. Rows that a worker holds
    are left to it, parked rows stay parked, and a time that somebody has set stays. Where a row's time is right already nothing is written, so it may be
    repeated.

    :param dry_run: only count what would change.
    :param on_batch: called after each batch, to show progress.
    """

    def __init__(
        self,
        bound: Binding[Any],
        *,
        using: str,
        batch_size: int = 2000,
        dry_run: bool = False,
        on_batch: Callable[[Any], None] | None = None,
    ) -> None:
        bound.require_schedule()
        self.bound = bound
        self.names = bound.names
        self.dry_run = dry_run
        self.on_batch = on_batch
        self.batches = Batches(bound, all_rows(bound.model, using), batch_size)
        if most := self.batches.connection.features.max_query_params:
            self.batches.batch_size = max(min(batch_size, most - OTHER_PARAMETERS), 1)
        self.rows = 0
        #: By state, in the order declared.
        self.changes = {state: Changes() for state in bound.graph.states}

    @property
    def rows_of(self) -> models.QuerySet[Any]:
        return self.batches.owners

    def run(self) -> dict[str, Changes]:
        self.batches.run(self._reschedule)
        for state, changes in self.changes.items():
            if (changes.gained or changes.changed) and not self.dry_run:
                wake(self.bound, self.batches.connection, state)  # some may be due by now
        return self.changes

    def _reschedule(self, rows: models.QuerySet[Any]) -> Done:
        seen = list(rows.values_list("pk", StatementClock()))
        if not seen:
            return Done(0, None)
        (first, _), (last, now) = seen[0], seen[-1]
        target = self._target(now)
        wrong = self._wrong(self.rows_of.filter(pk__gte=first, pk__lte=last), target, now)
        if self.dry_run:
            self._count(wrong)
        else:
            with transaction.atomic(using=self.batches.using, savepoint=False):
                if keys := self._count(self.batches.locked(wrong)):
                    self.rows_of.filter(pk__in=keys).update(**{self.names.next_at: ComputedTime(target)})
        self.rows += len(seen)
        if self.on_batch is not None:
            self.on_batch(self)
        return Done(len(seen), last)

    def _count(self, wrong: models.QuerySet[Any]) -> list[Any]:
        """Count the rows whose time is wrong by what is wrong with it, and return their keys."""
        keys = []
        gains, loses = (_is_null(name) for name in (self.names.next_at, TARGET))
        for key, status, is_gain, is_loss in wrong.values_list("pk", self.names.status, gains, loses):
            changes = self.changes[status]
            if is_gain:
                changes.gained += 1
            elif is_loss:
                changes.lost += 1
            else:
                changes.changed += 1
            keys.append(key)
        return keys

    def _wrong(
        self, rows: models.QuerySet[Any], target: models.Expression, now: datetime.datetime
    ) -> models.QuerySet[Any]:
        """Return the rows that have another time than they should, in the order of their keys."""
        next_at, expires_at = self.names.next_at, self.names.lease_expires_at
        is_free = Q(**{f"{expires_at}__isnull": True}) | Q(**{f"{expires_at}__lte": now})
        is_parked = Q(**{f"{next_at}__isnull": True}) & ~Q(**{self.names.error: ""})
        differs = (
            Q(**{f"{next_at}__isnull": True, f"{TARGET}__isnull": False})
            | Q(**{f"{next_at}__isnull": False, f"{TARGET}__isnull": True})
            | Q(**{f"{next_at}__lt": F(TARGET) - SLACK})
            | Q(**{f"{next_at}__gt": F(TARGET) + SLACK})
        )
        states = {f"{self.names.status}__in": list(self.bound.schedules), self.names.next_at_pinned: False}
        declared = rows.filter(is_free & ~is_parked, **states)
        wrong: models.QuerySet[Any] = declared.annotate(**{TARGET: target}).filter(differs).order_by("pk")
        return wrong

    def _target(self, now: datetime.datetime) -> models.Expression:
        """Return when a row should be due, by its state."""
        cases = [
            When(
                **{self.names.status: schedule.state},
                then=self._due(schedule, now) if schedule.until is None else self._due_while_waiting(schedule, now),
            )
            for schedule in self.bound.schedules.values()
            if schedule.runs
        ]
        return Case(*cases, default=_time(None), output_field=models.DateTimeField())

    def _due(self, schedule: Schedule, now: datetime.datetime) -> models.Expression:
        """Return when a row of one state should be due, from what it has and what its policy says.

        Before the time that entering the state leads to, that time. After it what the row has, or now: but no later than
        the policy makes it wait for its next try, and than its time in the state is up.
        """
        names = self.names
        entered: Any = F(names.changed_at)
        entry = _seconds(schedule.entry_delay() or 0)
        limits: list[Any] = [Coalesce(F(names.next_at), _time(now))]
        if schedule.handler is not None:
            retry, longest = (_time(now + _seconds(each)) for each in (schedule.retry_after, schedule.longest_delay))
            has_failed = When(**{f"{names.failures}__gt": 0}, then=longest)
            limits.append(Case(has_failed, default=retry, output_field=models.DateTimeField()))
        if schedule.horizon is not None:
            limits.append(_plus(entered, _seconds(schedule.horizon)))
        late = Least(*limits) if len(limits) > 1 else limits[0]
        waits = When(**{f"{names.changed_at}__gt": now - entry}, then=_plus(entered, entry))
        return Case(waits, default=late, output_field=models.DateTimeField())

    def _due_while_waiting(self, schedule: Schedule, now: datetime.datetime) -> models.Expression:
        """Return when a row should be due that waits for something: when it is, be that never, as only what happens changes
        that; after a failure no later than the policy makes it wait; never after its time in the state is up; and now, if it
        has happened and nobody has seen it."""
        names = self.names
        longest = _time(now + _seconds(schedule.longest_delay))
        has_failed = When(**{f"{names.failures}__gt": 0, f"{names.next_at}__gt": longest}, then=longest)
        woken = []
        if isinstance(schedule.until, Event):  # which may have come before the state waited for it
            woken = [When(is_asleep(self.bound) & has_unseen_event(self.bound, schedule), then=_time(now))]
        due = Case(*woken, has_failed, default=F(names.next_at), output_field=models.DateTimeField())
        if schedule.horizon is None:
            return due
        up = _plus(F(names.changed_at), _seconds(schedule.horizon))
        # No Least(), which is NULL on some databases if one of two is.
        is_earlier = When(**{f"{names.next_at}__lt": up}, then=due)
        return Case(*woken, is_earlier, default=up, output_field=models.DateTimeField())


def mismatches(bound: Binding[Any], using: str) -> tuple[bool, bool]:
    """Say whether rows have a time in states where nothing is ever due, and whether rows have none where something is.

    For a worker that starts: cheap, and therefore a look at some rows of each state only, however large the table.
    """
    names = bound.require_schedule()
    rows = all_rows(bound.model, using)
    running = bound.states_that_run()
    idle = [state for state in bound.schedules if state not in running]
    timed = {f"{names.next_at}__isnull": False, names.next_at_pinned: False}
    needless = rows.filter(**{f"{names.status}__in": idle}, **timed).exists()
    without = {f"{names.next_at}__isnull": True, f"{names.lease_expires_at}__isnull": True, names.error: ""}
    found = models.Count("pk", filter=Q(**without))
    # Cut off first: a search for a row without a time would read all that have one.
    timed_states = [state for state in running if not bound.schedules[state].may_sleep]
    missing = any(
        rows.filter(**{names.status: state})[:SAMPLE].aggregate(found=found)["found"] for state in timed_states
    )
    return needless, missing


def _is_null(name: str) -> models.Expression:
    return models.ExpressionWrapper(Q(**{f"{name}__isnull": True}), output_field=models.BooleanField())


def _seconds(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)


def _time(when: datetime.datetime | None) -> Value:
    return Value(when, output_field=models.DateTimeField())


def _plus(time: Any, delta: datetime.timedelta) -> models.Expression:
    return models.ExpressionWrapper(time + delta, output_field=models.DateTimeField())
