"""What happens to a row next, by the policy of its state: what a worker will do when the row is due, foreseen.

Pure Python. The answer is a value, so that every page says the same of one row.
"""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statemachine_fields.schedule.policy import Schedule

#: A row may be due this much before its deadline and meet it: two readings of the clock in one statement differ.
SLACK = datetime.timedelta(seconds=1)


class UpcomingKind(enum.StrEnum):
    """What is next."""

    RUN = "run"
    RETRY = "retry"
    TIME_OUT = "time_out"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Upcoming:
    """One thing that happens to a row at an instant, unless somebody moves it before."""

    kind: UpcomingKind
    at: datetime.datetime
    #: Where a time-out leads, or the last try if it fails; None for one that then parks the row.
    to_state: str | None = None
    #: Which try it is, if one has failed, or if there is a last one and this is it; and of how many.
    attempt: int | None = None
    of: int | None = None
    #: Whether the state's handler is run then, which may move the row elsewhere.
    runs: bool = False

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt is not None and self.of is not None and self.attempt >= self.of


def foresee(
    schedule: Schedule,
    *,
    entered_at: datetime.datetime,
    next_at: datetime.datetime | None,
    failures: int,
    now: datetime.datetime,
) -> Upcoming | None:
    """Return what comes next for a row that no worker holds; None if nothing ever does.

    :param now: a row that is overdue is judged by its age when a worker takes it, which is not before now.
    """
    deadline = deadline_of(schedule, entered_at)
    if next_at is None or not schedule.runs:
        return None
    if not schedule.acts and deadline is not None:  # a worker puts back what it takes before that
        next_at = max(next_at, deadline.at)
    age = (max(next_at, now) - entered_at + SLACK).total_seconds()
    if schedule.is_to_be_deleted(age):
        return Upcoming(UpcomingKind.DELETE, next_at)
    if schedule.is_timed_out(age):
        return Upcoming(UpcomingKind.TIME_OUT, next_at, to_state=schedule.timeout_to, runs=_tries_once_more(schedule))
    is_last = schedule.is_last_attempt(failures + 1)
    return Upcoming(
        kind=UpcomingKind.RETRY if failures else UpcomingKind.RUN,
        at=next_at,
        to_state=schedule.error_to if is_last else None,
        attempt=failures + 1 if failures or is_last else None,
        of=schedule.max_attempts if failures or is_last else None,
        runs=True,
    )


def deadline_of(schedule: Schedule, entered_at: datetime.datetime) -> Upcoming | None:
    """Return what happens to a row whatever its handler does, if anything."""
    if schedule.horizon is None:
        return None
    at = entered_at + datetime.timedelta(seconds=schedule.horizon)
    if schedule.is_to_be_deleted(schedule.horizon):
        return Upcoming(UpcomingKind.DELETE, at)
    return Upcoming(UpcomingKind.TIME_OUT, at, to_state=schedule.timeout_to, runs=_tries_once_more(schedule))


def _tries_once_more(schedule: Schedule) -> bool:
    """Say whether the handler has a last try when the time is up: not if it is run only when something has happened."""
    return schedule.handler is not None and schedule.until is None
