"""Rows that should have left their state and have not."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Q

from statemachine_fields.db.counting import count_each, first_of_each
from statemachine_fields.machine.binding import Binding

if TYPE_CHECKING:
    from statemachine_fields.machine.questions import Duration
    from statemachine_fields.schedule.policy import Schedule

#: How many rows of each state are shown.
SHOWN = 5
#: Nothing is stuck before this, however fast others are: a worker that is busy or restarted takes a while.
LEAST = dt.timedelta(minutes=5)


class Rule(enum.StrEnum):
    """What makes a row of a state stuck."""

    #: It is there for longer than 95 of 100 were.
    SLOW = "slow"
    #: It is there for longer than the window, as nothing is known of how long others were.
    OLD = "old"
    #: Its time-out is over, and no worker has moved it.
    TIMED_OUT = "timed_out"
    #: It is parked, or due and nobody runs it: of a state that rows may well stay in.
    JAMMED = "jammed"


class Spared(enum.StrEnum):
    """Why no row of a state is called stuck."""

    #: Others move its rows, and no time-out says by when.
    EXTERNAL = "external"
    #: Fewer than half of the rows leave it.
    STAYS = "stays"


@dataclass(frozen=True, slots=True)
class Stuck:
    """Stuck rows of one state, the oldest first."""

    state: str
    rule: Rule
    #: How long is too long, as people are told: of a time-out, its own time.
    limit: dt.timedelta
    entered_before: dt.datetime
    rows: tuple[Any, ...]
    #: How many there are besides those shown, counted up to a limit.
    more: int


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found, and the states that were not looked at."""

    stuck: list[Stuck]
    spared: dict[str, Spared]


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """How the rows of one state are looked at."""

    rule: Rule
    limit: dt.timedelta
    #: Whether it depends on how many rows leave the state at all: not if a time-out takes all of them.
    is_conditional: bool
    #: How much of the limit is only there to wait for a worker.
    grace: dt.timedelta = dt.timedelta(0)


def find_stuck(
    bound: Binding[Any],
    rows: models.QuerySet[Any],
    stays: Mapping[str, Duration],
    moves: Mapping[tuple[str, str], int],
    *,
    window: dt.timedelta,
    now: dt.datetime,
    count_limit: int,
) -> Findings:
    """Find rows that should have left their state. Three queries at most, and one if there are none.

    :param rows: those that the user may see.
    :param stays: how long rows stayed in each state that they left within the window.
    :param moves: how often each move was made within the window.

    Terminal states have none. The instants are given, not the database's clock, so that a link can lead to the same rows.
    """
    search = _Search(bound, rows, window, now)
    suspicions = {
        state: suspicion for state in bound.graph.states if (suspicion := search.suspicion(state, stays.get(state)))
    }
    counts = count_each(
        {
            **{f"late {state}": search.late(state, its.limit) for state, its in suspicions.items()},
            **{f"jammed {state}": search.jammed(state) for state in suspicions if search.has_handler(state)},
            **{f"stayed {state}": search.stayed(state, its.limit) for state, its in suspicions.items()},
        },
        count_limit,
    )
    spared = {state: Spared.EXTERNAL for state in bound.graph.states if search.is_external(state)}
    found: dict[str, tuple[_Suspicion, models.QuerySet[Any], int]] = {}
    for state, its in suspicions.items():
        left = sum(count for (source, _target), count in moves.items() if source == state)
        stayed = counts[f"stayed {state}"]
        if not its.is_conditional or (stayed <= left and stayed <= count_limit and left):
            found[state] = its, search.late(state, its.limit), counts[f"late {state}"]
        elif search.has_handler(state):
            found[state] = _Suspicion(Rule.JAMMED, LEAST, False), search.jammed(state), counts[f"jammed {state}"]
        elif stayed or counts[f"late {state}"]:  # of a state that nobody stays in, nothing is known
            spared[state] = Spared.STAYS
    found = {state: each for state, each in found.items() if each[2]}
    return Findings(_load(bound, rows, found, now), spared)


class _Search:
    """The questions about the rows of each state."""

    def __init__(self, bound: Binding[Any], rows: models.QuerySet[Any], window: dt.timedelta, now: dt.datetime) -> None:
        self.bound, self.rows, self.window, self.now = bound, rows, window, now
        self.names = bound.names
        self.policies: Mapping[str, Schedule] = bound.schedules

    def is_external(self, state: str) -> bool:
        policy = self.bound.graph.states[state]
        return policy.external and policy.timeout_after is None and not self.bound.graph.is_terminal(state)

    def has_handler(self, state: str) -> bool:
        policy = self.policies.get(state)
        return policy is not None and policy.handler is not None

    def suspicion(self, state: str, stay: Duration | None) -> _Suspicion | None:
        """Return what makes a row of the state stuck, if anything does."""
        if self.bound.graph.is_terminal(state) or self.is_external(state):
            return None
        policy = self.policies.get(state)
        its = _Suspicion(Rule.OLD, self.window, True)
        if stay is not None:
            its = _Suspicion(Rule.SLOW, max(stay.p95, LEAST), True)
        if policy is None:
            return its
        if policy.handler is not None:  # it may wait for its first try, and for one more
            least = dt.timedelta(seconds=policy.start_after + policy.retry_after)
            its = _Suspicion(its.rule, max(its.limit, least), True)
        if policy.timeout_after is not None:
            by_then = dt.timedelta(seconds=policy.timeout_after) + LEAST
            if policy.handler is None or by_then < its.limit:
                return _Suspicion(Rule.TIMED_OUT, by_then, False, LEAST)
        return its

    def late(self, state: str, limit: dt.timedelta) -> models.QuerySet[Any]:
        """Return the rows that entered the state longer ago than the limit."""
        return self._in(state).filter(**{f"{self.names.changed_at}__lt": self.now - limit})

    def stayed(self, state: str, limit: dt.timedelta) -> models.QuerySet[Any]:
        """Return rows that are still there of those that entered it within a time as long as the window, to compare with how many left it
        within the window. All of them, as moves are counted of all rows, whoever may see them."""
        everybody: models.QuerySet[Any] = self.bound.model._default_manager.using(self.rows.db).order_by()
        since, until = self.now - limit - self.window, self.now - limit
        entered = {f"{self.names.changed_at}__gte": since, f"{self.names.changed_at}__lt": until}
        return everybody.filter(**{self.names.status: state, **entered})

    def jammed(self, state: str) -> models.QuerySet[Any]:
        """Return the rows that are parked, or due for so long that a worker should have taken them, or taken them over."""
        lease, by_then = self.names.lease_expires_at, self.now - LEAST
        is_free = Q(**{f"{lease}__isnull": True}) | Q(**{f"{lease}__lt": by_then})
        overdue = Q(**{f"{self.names.next_at}__lt": by_then}) & is_free
        return self._in(state).filter(self.bound.parked_condition() | overdue)

    def _in(self, state: str) -> models.QuerySet[Any]:
        return self.rows.filter(**{self.names.status: state}).order_by()


def _load(
    bound: Binding[Any],
    rows: models.QuerySet[Any],
    found: Mapping[str, tuple[_Suspicion, models.QuerySet[Any], int]],
    now: dt.datetime,
) -> list[Stuck]:
    """Return the oldest rows of each state. Two queries, or none."""
    changed_at = bound.names.changed_at
    oldest = {state: late.order_by(changed_at, "pk") for state, (_its, late, _count) in found.items()}
    keys = first_of_each(oldest, SHOWN) if oldest else {}
    by_key = rows.in_bulk([key for its in keys.values() for key in its]) if keys else {}
    stuck = []
    for state, (its, _late, count) in found.items():
        still = [by_key[key] for key in keys[state] if key in by_key]
        still = [row for row in still if getattr(row, bound.names.status) == state]
        still.sort(key=lambda row: getattr(row, changed_at))
        more = max(count - len(keys[state]), 0)
        stuck.append(Stuck(state, its.rule, its.limit - its.grace, now - its.limit, tuple(still), more))
    return stuck
