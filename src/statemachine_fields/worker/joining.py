"""How workers find out what the children of rows come to that wait for them."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from statemachine_fields.machine.joins import Join
from statemachine_fields.machine.relations import resolve
from statemachine_fields.schedule.children import ChildCounts, Children, Decision
from statemachine_fields.worker.answers import Move
from statemachine_fields.worker.awaited import Awaited, WaitKind
from statemachine_fields.worker.digest import Digest

if TYPE_CHECKING:
    from statemachine_fields.worker.lease import Lane, Lease


logger = logging.getLogger("statemachine_fields.worker")


class AwaitedChildren(Awaited):
    """How many children one leased row has in each state."""

    __slots__ = ("counts", "until")

    def __init__(self, until: Children, counts: ChildCounts) -> None:
        self.until = until
        self.counts = counts

    @property
    def has_happened(self) -> bool:
        return self.counts.decision is not Decision.WAITS

    @property
    def version(self) -> Hashable:
        return frozenset(self.counts.items())

    @property
    def goes_by_itself(self) -> bool:
        return self.counts.decision is Decision.FAILED and self.until.failed_to is not None

    @property
    def parks(self) -> str:
        if self.counts.is_met or self.until.failed_to is not None:
            return ""
        counts = ", ".join(f"{number} {state}" for state, number in self.counts.items())
        return f"The row waits for {self.until}, and that can no longer be: {counts or 'there are none'}."

    def move(self) -> Move:
        target = self.until.then if self.counts.is_met else self.until.failed_to
        assert target is not None  # noqa: S101 - `parks` and the declaration have seen to it
        return Move(target, metadata={"children": dict(self.counts)})


def joins_of(lane: Lane) -> list[Join]:
    """Return the joins whose parents are rows of a lane."""
    states = [state for state, schedule in lane.schedules.items() if isinstance(schedule.until, Children)]
    return [resolve(lane.bound, state) for state in states]


class ChildrenKind(WaitKind):
    """Counts the children of all rows of a batch in one SELECT for each state."""

    def find(self, lane: Lane, leases: Sequence[Lease]) -> None:
        for state in dict.fromkeys(lease.status for lease in leases):
            part = [lease for lease in leases if lease.status == state]
            join = resolve(lane.bound, state)
            counts = join.counts([lease.key for lease in part], lane.using)
            for lease in part:
                lease.awaited = AwaitedChildren(join.until, counts[lease.key])

    def look(self, lane: Lane) -> bool:
        from statemachine_fields.worker.cancelling import cancel_left_behind  # which stands on this module

        for join in joins_of(lane):
            join.look(lane.using)
        return cancel_left_behind(lane, Digest(logger)) > 0

    def slept(self, lane: Lane, leases: Sequence[Lease]) -> None:
        for lease in leases:
            if lease.instance is not None:
                join = resolve(lane.bound, lease.status)
                join.look_at_values_after_commit(lane.connection, [join.value_of(lease.instance)])
