"""How workers find out what has happened of what rows wait for: a class for each that `State(until=...)` takes.

A claimed row of a state that waits is not run for that alone: it may have been woken for nothing, or because its time is up. First it is
found out what has happened, with one question for all rows of a batch. Then the handler is run, or the row moved, or it sleeps on.

A new kind is a declaration in `schedule/waiting.py`, an `Awaited` and a `WaitKind`, and a line here.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError

from statemachine_fields.db.dialect import is_connection_error
from statemachine_fields.schedule.children import ChildCounts, Children
from statemachine_fields.schedule.waiting import Event, Until
from statemachine_fields.worker.awaited import Awaited, WaitKind
from statemachine_fields.worker.inbox import EventKind

if TYPE_CHECKING:
    from statemachine_fields.schedule.policy import Schedule
    from statemachine_fields.worker.lease import Lane, Lease


#: By what is declared.
WAITS: dict[type[Until], WaitKind] = {Event: EventKind()}


def waits_of(schedules: Mapping[str, Schedule]) -> dict[str, WaitKind]:
    """Return how it is found out what has happened, for those of some states that wait for something."""
    if any(isinstance(schedule.until, Children) for schedule in schedules.values()):
        from statemachine_fields.worker.joining import ChildrenKind

        WAITS.setdefault(Children, ChildrenKind())
    awaited = {state: schedule.until for state, schedule in schedules.items() if schedule.until is not None}
    return {state: WAITS[type(until)] for state, until in awaited.items()}


def find_out(lane: Lane, leases: Sequence[Lease]) -> None:
    """Find out what has happened of what claimed rows wait for.

    What the database will not say counts as a failed try of each: they are ours by now, and others may be found out.

    :raises DatabaseError: it has gone away.
    """
    parts: dict[WaitKind, list[Lease]] = {}
    for lease in leases:
        if (wait := lane.waits.get(lease.status)) is not None:
            parts.setdefault(wait, []).append(lease)
    for wait, part in parts.items():
        try:
            wait.find(lane, part)
        except DatabaseError as error:
            if is_connection_error(error):
                raise
            for lease in part:
                lease.awaited = Unknown(error)


def tell_waits(lane: Lane, leases: Sequence[Lease]) -> None:
    """Tell those who find out what has happened of rows that sleep on."""
    for state, wait in lane.waits.items():
        if part := [lease for lease in leases if lease.status == state]:
            wait.slept(lane, part)


def children_of(lease: Lease) -> ChildCounts:
    """Return how many children a leased row has in each state.

    :raises AttributeError: its state does not wait for children.
    """
    counts: ChildCounts | None = getattr(lease.awaited, "counts", None)
    if counts is None:
        raise AttributeError(
            f"ctx.children is there in states with until=Children(...), and {lease.status!r} is none of them."
        )
    return counts


class Unknown(Awaited):
    """Nothing is known: the database would not say. Whoever asks is told why."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error

    @property
    def has_happened(self) -> bool:
        raise self.error

    @property
    def version(self) -> Hashable:
        return id(self)

    def move(self) -> Any:
        raise self.error
