"""Which rows a worker serves: a lane for each machine, database and queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import connections, router

from statemachine_fields.db.leases import Leases, leases_for
from statemachine_fields.machine.bound import BoundMachine
from statemachine_fields.machine.policy import Clock


@dataclass(frozen=True, eq=False)
class Lane:
    """The states of one machine that belong to one queue."""

    bound: BoundMachine[Any]
    using: str
    queue: str
    clocks: Mapping[str, Clock]

    def __str__(self) -> str:
        return str(self.bound)

    @property
    def connection(self) -> Any:
        """The connection of the calling thread."""
        return connections[self.using]

    @property
    def leases(self) -> Leases:
        return leases_for(self.connection)

    @cached_property
    def states(self) -> list[str]:
        return list(self.clocks)

    @cached_property
    def priorities(self) -> list[int]:
        return [clock.priority for clock in self.clocks.values()]

    @cached_property
    def is_async(self) -> bool:
        """Whether a handler of the lane wants an event loop."""
        return any(clock.handler is not None and clock.handler.is_async for clock in self.clocks.values())

    @cached_property
    def plain_moves(self) -> dict[str, dict[str, float | None]]:
        """The moves that are legal and that no guard is asked about: when a row is due that has made one."""
        if self.bound.guards:
            return {}
        return {
            state: {target: self.bound.entry_delay(target) for target in self.bound.graph.targets(state)}
            for state in self.clocks
        }

    @cached_property
    def fields(self) -> tuple[Any, ...]:
        """The fields that a claim reads: all of the row, if they are all in one table."""
        meta = self.bound.model._meta
        fields = tuple(meta.concrete_fields)
        if self.is_one_table:
            return fields
        return (meta.pk, *(meta.get_field(column) for column in self.bound.columns))

    @cached_property
    def is_one_table(self) -> bool:
        meta = self.bound.model._meta
        return list(meta.concrete_fields) == list(meta.local_concrete_fields)


def lanes_of(
    machines: Iterable[BoundMachine[Any]], queues: Iterable[str] | None = None, using: str | None = None
) -> list[Lane]:
    """Return the lanes of timed machines, in the order of the machines; of the queues named, or of all."""
    wanted = None if queues is None else set(queues)
    lanes = []
    for bound in machines:
        if not bound.is_timed:
            continue
        by_queue: dict[str, dict[str, Clock]] = {}
        for state, clock in bound.clocks.items():
            if clock.runs and (wanted is None or clock.queue in wanted):
                by_queue.setdefault(clock.queue, {})[state] = clock
        alias = using or router.db_for_write(bound.model)
        lanes += [Lane(bound, alias, queue, clocks) for queue, clocks in by_queue.items()]
    return lanes
