"""Rows that are in their state for longer than usual."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import models

from statemachine_fields.db.kinds import count_each, first_of_each
from statemachine_fields.machine.bound import BoundMachine

if TYPE_CHECKING:
    from statemachine_fields.machine.questions import Duration

#: How many rows of each state are shown.
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Stuck:
    """Rows that entered a state before an instant, the oldest first."""

    state: str
    #: What is longer than usual, and whether other rows told: else nobody has left the state in the window.
    limit: dt.timedelta
    is_measured: bool
    entered_before: dt.datetime
    rows: tuple[Any, ...]
    #: How many there are besides those shown, counted up to a limit.
    more: int


def find_stuck(
    bound: BoundMachine[Any],
    rows: models.QuerySet[Any],
    stays: Mapping[str, Duration],
    *,
    window: dt.timedelta,
    now: dt.datetime,
    count_limit: int,
) -> list[Stuck]:
    """Find rows that stay for longer than 95 of 100 did, or than the window where nobody left. Three queries at most.

    :param rows: those that the user may see.
    :param stays: how long rows stayed in each state, within the window.

    Terminal states have none. The instants are given, not the database's clock, so that a link can lead to the same rows.
    """
    changed_at = bound.names.changed_at
    limits = {
        state: stays[state].p95 if state in stays else window
        for state in bound.graph.states
        if not bound.graph.is_terminal(state)
    }
    late = {
        state: rows.filter(**{bound.names.status: state, f"{changed_at}__lt": now - limit}).order_by(changed_at, "pk")
        for state, limit in limits.items()
    }
    keys = {state: found for state, found in first_of_each(late, SHOWN + 1).items() if found}
    by_key = rows.in_bulk([key for found in keys.values() for key in found]) if keys else {}
    crowded = {state: late[state].order_by() for state, found in keys.items() if len(found) > SHOWN}
    counts = count_each(crowded, count_limit) if crowded else {}
    stuck = []
    for state, found in keys.items():
        still = [by_key[key] for key in found if key in by_key and getattr(by_key[key], bound.names.status) == state]
        still.sort(key=lambda row: getattr(row, changed_at))
        stuck.append(
            Stuck(
                state=state,
                limit=limits[state],
                is_measured=state in stays,
                entered_before=now - limits[state],
                rows=tuple(still[:SHOWN]),
                more=max(counts.get(state, 0) - SHOWN, 0),
            )
        )
    return stuck
