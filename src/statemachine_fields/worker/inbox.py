"""Rows that wait for events: what a worker finds in their inbox, and what a move takes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from statemachine_fields.db.rows import all_rows
from statemachine_fields.schedule.waiting import Event, Until
from statemachine_fields.worker.answers import Move
from statemachine_fields.worker.awaited import Awaited, WaitKind

if TYPE_CHECKING:
    from statemachine_fields.machine.events import StateEvent
    from statemachine_fields.worker.lease import Lane, Lease


class Inbox(Awaited):
    """The events of a row that no move has taken."""

    __slots__ = ("_seen", "_untaken", "_until", "events")

    def __init__(self, until: Event, untaken: Sequence[StateEvent[Any]], inbox: int) -> None:
        """:param inbox: how many events the row had got when it was claimed, taken ones included."""
        self._until = until
        self._untaken = untaken
        #: Those that the state waits for, in the order in which they came.
        self.events = tuple(event for event in untaken if event.name in until.names)
        # Numbers are in the order of commits: who sees one sees all before it.
        self._seen = max([inbox, *[event.number for event in untaken]])

    @property
    def has_happened(self) -> bool:
        return bool(self.events)

    @property
    def version(self) -> int:
        return self._seen

    @property
    def seen(self) -> int:
        return self._seen

    def move(self) -> Move:
        """Let the first that came decide. What came after it stays in the inbox."""
        first = self.events[0]
        return Move(self._until.moves[first.name], metadata={"event": first.name}, take=[first])

    def taken(self, move: Move) -> tuple[int, ...]:
        handed = [event.number for event in self.events]
        if move.take is None:
            return tuple(handed)
        taken = {getattr(event, "number", None) for event in move.take}
        if not taken <= {*handed}:
            raise ValueError("Move(take=...) names events that the handler was not handed. Take some of ctx.events.")
        return tuple(number for number in handed if number in taken)

    def is_left_for(self, until: Until, taken: Sequence[int]) -> bool:
        left = {event.name for event in self._untaken if event.number not in taken}
        return isinstance(until, Event) and not left.isdisjoint(until.names)


class EventKind(WaitKind):
    """Looks into inboxes."""

    def find(self, lane: Lane, leases: Sequence[Lease]) -> None:
        events = lane.bound.require_events()
        rows: Any = all_rows(events, lane.using)
        of_key: dict[Any, list[Any]] = {lease.key: [] for lease in leases}
        for event in rows.filter(instance_id__in=[*of_key], taken_by=None).order_by("number"):
            of_key[event.instance_id].append(event)
        for lease in leases:
            until, untaken = lease.schedule.until, of_key[lease.key]
            assert isinstance(until, Event)  # noqa: S101 - it is by that that we are asked
            for event in untaken if lease.instance is not None else ():
                event._state.fields_cache["instance"] = lease.instance
            inbox = vars(lease.instance).get(lane.bound.names.inbox, 0) if lease.instance is not None else 0
            lease.awaited = Inbox(until, untaken, inbox)
