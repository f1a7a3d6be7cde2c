"""Rows that sleep beside an event that they wait for and that nobody has looked at: which there must never be.

They come about if an event was kept and the state declared afterwards that it waits for it, or if somebody wrote past the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import BooleanField, Count, Exists, ExpressionWrapper, F, OuterRef, Q

from statemachine_fields.db.clock import StatementClock
from statemachine_fields.db.rows import all_rows
from statemachine_fields.schedule.waiting import Event

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.schedule.policy import Schedule

#: How many sleeping rows of each state that have had events `are_some_stranded()` looks at.
LOOKED_AT = 100_000
#: What it calls the answer in queries: no field of the model is.
UNSEEN = "statemachine_unseen"


def is_asleep(bound: Binding[Any]) -> Q:
    """Return the condition for rows that nothing wakes before their time is up, and that nothing is wrong with."""
    names = bound.names
    sleeps = Q(**{f"{names.next_at}__isnull": True}) | Q(**{f"{names.next_at}__gt": StatementClock()})
    is_free = Q(**{f"{names.lease_expires_at}__isnull": True, names.error: "", names.next_at_pinned: False})
    return sleeps & is_free


def has_unseen_event(bound: Binding[Any], schedule: Schedule) -> Q:
    """Return the condition for rows of a state that have an event which the state waits for and nobody has looked at.

    Where the state moves its rows by itself that is every one that was not taken. A handler may have seen it and said "not
    yet": so it is one that came after the row was last claimed, or before it entered the state if it was not claimed there.
    """
    until, names = schedule.until, bound.names
    assert isinstance(until, Event)  # noqa: S101 - asked of such states alone
    of_row = all_rows(bound.require_events()).filter(instance_id=OuterRef("pk"), taken_by=None, name__in=until.names)
    if schedule.handler is None:
        return Q(Exists(of_row))
    is_unclaimed = Q(**{f"{names.claimed_at}__isnull": True}) | Q(**{f"{names.claimed_at}__lt": F(names.changed_at)})
    later = of_row.filter(delivered_at__gt=OuterRef(names.claimed_at))
    return (is_unclaimed & Q(Exists(of_row))) | Q(Exists(later))


def is_stranded(bound: Binding[Any]) -> Q:
    """Return the condition for rows that sleep beside an event that they wait for and that nobody has looked at."""
    found = Q(pk__in=[])
    for schedule in bound.schedules.values():
        if isinstance(schedule.until, Event):
            found |= Q(**{bound.names.status: schedule.state}) & has_unseen_event(bound, schedule)
    return is_asleep(bound) & found


def are_some_stranded(bound: Binding[Any], using: str) -> bool:
    """Say whether a row sleeps beside an event that it waits for and that nobody has looked at.

    For a worker that starts: cheap, and therefore a look at some rows of each state only, however large the table. Those that no
    event ever came to are not counted among them.
    """
    rows, names = all_rows(bound.model, using), bound.names
    for schedule in bound.schedules.values():
        if isinstance(schedule.until, Event):
            asleep = rows.filter(is_asleep(bound), **{names.status: schedule.state, f"{names.inbox}__gt": 0})
            unseen = ExpressionWrapper(has_unseen_event(bound, schedule), output_field=BooleanField())
            # Cut off first: what is asked of each row is a look into the table of events.
            some = asleep.annotate(**{UNSEEN: unseen})[:LOOKED_AT]
            if some.aggregate(found=Count("pk", filter=Q(**{UNSEEN: True})))["found"]:
                return True
    return False
