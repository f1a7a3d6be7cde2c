"""Which rows a worker serves: a lane for each machine, database and queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import connections, router

from statemachine_fields.db.claims import Claimed, Left, Recovered, Wanted
from statemachine_fields.db.dialect import Dialect, dialect_for
from statemachine_fields.db.effects import BEAT, ENTER, RELEASE, STAY, Effect
from statemachine_fields.machine.binding import Binding
from statemachine_fields.schedule.policy import Schedule

#: What must be as it was for an outcome to be written: whose row it is, and where.
COMPARED = ("lease_token", "status")


@dataclass(frozen=True, eq=False)
class Lane:
    """The states of one machine that belong to one queue."""

    bound: Binding[Any]
    using: str
    queue: str
    schedules: Mapping[str, Schedule]

    def __str__(self) -> str:
        return str(self.bound)

    @property
    def connection(self) -> Any:
        """The connection of the calling thread."""
        return connections[self.using]

    @property
    def dialect(self) -> Dialect:
        return dialect_for(self.connection)

    # What a worker asks of the rows, on the connection of the calling thread. Each answer names the keys for which it is true.

    def claim(self, wanted: Wanted) -> list[Claimed]:
        """Lease due rows that nobody holds."""
        return self.dialect.claim(self.connection, self.bound.table, wanted)

    def candidates(self, wanted: Wanted) -> list[Any]:
        """Return the keys of rows that such a claim would take, as the database has them, and lock none."""
        return self.dialect.candidates(self.connection, self.bound.table, wanted)

    def recover(self, left: Left) -> Recovered:
        """Take back what was left behind."""
        return self.dialect.recover(self.connection, self.bound.table, self.states, left)

    def lock(self, key: Any, token: int) -> bool:
        """Lock a row until the transaction ends, if it is held with this token and nobody else has it locked."""
        return self.dialect.lock_held(self.connection, self.bound.table, key, token)

    def held(self, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        """Return the keys that are still held with these tokens, locked or not."""
        return self.dialect.held(self.connection, self.bound.table, keys, tokens)

    def beat(self, keys: Sequence[Any], tokens: Sequence[int], seconds: float) -> set[Any]:
        """Extend leases."""
        return self._write(BEAT, key=keys, was_lease_token=tokens, lease_expires_at=[seconds] * len(keys))

    def release(self, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        """Give rows back as they were: due, and with no crash counted."""
        return self._write(RELEASE, key=keys, was_lease_token=tokens)

    def _write(self, effect: Effect, **rows: Sequence[Any]) -> set[Any]:
        return self.dialect.write_rows(self.connection, self.bound.table, effect, rows)

    def stay(self, rows: Mapping[str, Sequence[Any]]) -> set[Any]:
        """Write what became of rows that stay in their state, and end their leases. For `rows` see `Dialect.write_rows()`."""
        return self.dialect.write_rows(self.connection, self.bound.table, STAY, rows, compares=COMPARED)

    def enter(self, rows: Mapping[str, Sequence[Any]], updates: Sequence[tuple[str, Any]] = ()) -> set[Any]:
        """Move rows, record each move, and end their leases."""
        table, updated = self.bound.table, list(updates)
        return self.dialect.write_rows(
            self.connection, table, ENTER, rows, compares=COMPARED, records=True, updates=updated
        )

    @cached_property
    def states(self) -> list[str]:
        return list(self.schedules)

    @cached_property
    def priorities(self) -> list[int]:
        return [schedule.priority for schedule in self.schedules.values()]

    @cached_property
    def is_async(self) -> bool:
        """Whether a handler of the lane wants an event loop."""
        return any(schedule.handler is not None and schedule.handler.is_async for schedule in self.schedules.values())

    @cached_property
    def plain_moves(self) -> dict[str, dict[str, float | None]]:
        """The moves that are legal and that no guard is asked about: when a row is due that has made one."""
        bound = self.bound
        if bound.guards:
            return {}
        return {
            state: {target: bound.entry_delay(target) for target in bound.graph.targets(state)}
            for state in self.schedules
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
    machines: Iterable[Binding[Any]], queues: Iterable[str] | None = None, using: str | None = None
) -> list[Lane]:
    """Return the lanes of timed machines, in the order of the machines; of the queues named, or of all."""
    wanted = None if queues is None else set(queues)
    lanes = []
    for bound in machines:
        if not bound.is_timed:
            continue
        by_queue: dict[str, dict[str, Schedule]] = {}
        for state, schedule in bound.schedules.items():
            if schedule.runs and (wanted is None or schedule.queue in wanted):
                by_queue.setdefault(schedule.queue, {})[state] = schedule
        alias = using or router.db_for_write(bound.model)
        lanes += [Lane(bound, alias, queue, schedules) for queue, schedules in by_queue.items()]
    return lanes
