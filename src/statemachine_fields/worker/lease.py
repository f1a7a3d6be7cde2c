"""Which rows a worker serves: a `Lane` for each machine, database, queue and kind of handler; and the `Lease` of one row of it: the
right to move it until a time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from django.db import connections, models, router
from django.db.models.sql.query import Query
from django.dispatch import Signal

from statemachine_fields.db.claims import Claimed, Left, NextDue, Recovered, Wanted
from statemachine_fields.db.dialect import Dialect, dialect_for
from statemachine_fields.db.effects import BEAT, ENTER, ENTER_CLAIMED, RELEASE, STAY, UNCLAIM, Effect
from statemachine_fields.machine.listeners import MOVED, SAVED, has_plain_attributes, lasting_reasons_for_each_row
from statemachine_fields.machine.registry import find_machine
from statemachine_fields.schedule.wakeups import gates_behind
from statemachine_fields.worker.awaited import Awaited, WaitKind
from statemachine_fields.worker.levels import Levels, lane_parts
from statemachine_fields.worker.waits import waits_of

if TYPE_CHECKING:
    from statemachine_fields.db.dialect import Written
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.schedule.policy import Schedule
    from statemachine_fields.worker.options import WorkerOptions


#: Returns seconds by a clock that nobody sets and that goes on while the machine sleeps, where there is one.
now: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    now = partial(time.clock_gettime, time.CLOCK_BOOTTIME)

#: What must be as it was for an outcome to be written: whose row it is, and where.
COMPARED = ("lease_token", "status")
#: What is written with rows besides the machine's columns, of most: the `updates` and `values` of `Dialect.write_rows()`.
NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, eq=False)
class Lane:
    """The states of one machine that belong to one queue, with handlers of one kind unless their rows have one order."""

    bound: Binding[Any]
    using: str
    queue: str
    schedules: Mapping[str, Schedule]
    #: Where rows say themselves in which queue they are, and this is about some, or how urgent they are.
    levels: Levels | None = None

    def __str__(self) -> str:
        return self.label

    @cached_property
    def label(self) -> str:
        return str(self.bound)

    def is_of(self, other: Lane) -> bool:
        """Say whether both have rows of the same table."""
        return self.bound is other.bound and self.using == other.using

    def serves(self, state: str, queue: str | None) -> bool:
        """Say whether it has a row that is in a state, and in a queue by its own column, as far as that is known."""
        return state in self.schedules if self.levels is None else self.levels.serve(state, queue)

    @property
    def connection(self) -> Any:
        """The connection of the calling thread."""
        return connections[self.using]

    @cached_property
    def dialect(self) -> Dialect:
        return dialect_for(self.connection)

    @property
    def gates(self) -> set[int]:
        """The gates behind which to wait for rows that become due."""
        return gates_behind(self.bound, self.queue, None if self.levels is None else self.levels.queues)

    # What a worker asks of the rows, on the connection of the calling thread. Each answer names the keys for which it is true.

    def claim(self, wanted: Wanted) -> list[Claimed]:
        """Lease due rows that nobody holds."""
        if self.levels is not None:
            return self.levels.claim(self.connection, wanted)
        return self.dialect.claim(self.connection, self.bound.table, wanted)

    @property
    def is_sure(self) -> bool:
        """Whether the last claim has missed no row that was due."""
        return self.levels is None or self.levels.is_sure

    def candidates(self, wanted: Wanted) -> list[Any]:
        """Return the keys of rows that such a claim would take, as the database has them, and lock none."""
        if self.levels is not None:
            return self.levels.candidates(self.connection, wanted)
        return self.dialect.candidates(self.connection, self.bound.table, wanted)

    def next_due(self) -> NextDue:
        """Say whether any row is due, free or held, and when the next one is."""
        if self.levels is not None:
            return self.levels.next_due(self.connection)
        return self.dialect.next_due(self.connection, self.bound.table, self.states)

    def recover(self, left: Left) -> Recovered:
        """Take back what was left behind."""
        if self.levels is not None:
            return self.levels.recover(self.connection, left)
        return self.dialect.recover(self.connection, self.bound.table, self.states, left)

    def lock(self, key: Any, token: int) -> bool:
        """Lock a row until the transaction ends, if it is held with this token and nobody else has it locked."""
        return self.dialect.lock_held(self.connection, self.bound.table, key, token)

    def held(self, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        """Return the keys that are still held with these tokens, locked or not."""
        return self.dialect.held(self.connection, self.bound.table, keys, tokens)

    def beat(self, keys: Sequence[Any], tokens: Sequence[int], seconds: float) -> set[Any]:
        """Extend leases."""
        rows = {"key": keys, "was_lease_token": tokens, "lease_expires_at": [seconds] * len(keys)}
        return self._write(BEAT, rows)

    def release(self, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        """Give rows back as they were: due, and with no crash counted."""
        return self._write(RELEASE, {"key": keys, "was_lease_token": tokens})

    def unclaim(self, keys: Sequence[Any], tokens: Sequence[int]) -> set[Any]:
        """Give rows back whose handlers have not begun: as if they had not been claimed."""
        return self._write(UNCLAIM, {"key": keys, "was_lease_token": tokens})

    def stay(self, rows: Mapping[str, Sequence[Any]], others: Mapping[str, Any] = NOTHING) -> Written:
        """Write what became of rows that stay in their state, and end their leases. For `rows` see `Dialect.write_rows()`."""
        return self._write(STAY, rows, compares=COMPARED, **others)

    def enter(self, rows: Mapping[str, Sequence[Any]], others: Mapping[str, Any] = NOTHING) -> Written:
        """Move rows, record each move, and end their leases."""
        return self._write(ENTER, rows, compares=COMPARED, records=True, **others)

    def enter_claimed(
        self, rows: Mapping[str, Sequence[Any]], others: Mapping[str, Any] = NOTHING
    ) -> dict[Any, Claimed]:
        """Move rows, record each move, and take them anew: their leases go on under the next token."""
        return self.dialect.write_and_read_rows(
            self.connection,
            self.bound.table,
            ENTER_CLAIMED,
            rows,
            self.fields,
            compares=COMPARED,
            records=True,
            **others,
        )

    def adopt(self, rows: Mapping[str, Sequence[Any]]) -> dict[Any, Claimed]:
        """Extend leases of a given owner of which nothing but the token is known, and read the rows."""
        table, compares = self.bound.table, ("lease_token", "lease_owner")
        return self.dialect.write_and_read_rows(self.connection, table, BEAT, rows, self.fields, compares=compares)

    def _write(self, effect: Effect, rows: Mapping[str, Sequence[Any]], **how: Any) -> Written:
        return self.dialect.write_rows(self.connection, self.bound.table, effect, rows, **how)

    @cached_property
    def runs_ahead(self) -> bool:
        """Whether a row that is due at once where it enters goes on under the claim that it has."""
        return self.bound.machine.run_ahead

    @cached_property
    def states(self) -> list[str]:
        return list(self.schedules)

    @cached_property
    def priorities(self) -> list[int]:
        return [schedule.priority for schedule in self.schedules.values()]

    @cached_property
    def is_async(self) -> bool:
        """Whether a handler of the lane wants an event loop."""
        return any(each.is_async for each in self.schedules.values())

    @cached_property
    def waits(self) -> dict[str, WaitKind]:
        """How it is found out what has happened, for states that wait for something."""
        return waits_of(self.schedules)

    @cached_property
    def plain_moves(self) -> dict[str, dict[str, float | None]]:
        """The moves that are legal and that nobody is asked about, neither a guard nor what the row has waited for: when a row
        is due that has made one."""
        if self.bound.guards:
            return {}
        return {
            state: {target: self.bound.entry_delay(target) for target in self.bound.graph.targets(state)}
            for state, schedule in self.schedules.items()
            if schedule.until is None
        }

    @cached_property
    def fields(self) -> tuple[Any, ...]:
        """The fields that a claim reads: all of the row, if they are all in one table."""
        meta = self.bound.model._meta
        fields = tuple(meta.concrete_fields)
        if self.is_one_table:
            return fields
        own = [each for each in (self.bound.queue_field, self.bound.priority_field) if each is not None]
        return (meta.pk, *(meta.get_field(column) for column in self.bound.columns), *own)

    @cached_property
    def places(self) -> dict[str, int]:
        """Where the key, the machine's columns and the row's priority are among the fields that a claim reads."""
        attnames = [field.attname for field in self.fields]
        columns = {column: attnames.index(name) for column, name in self.bound.table.columns.items()}
        if self.bound.priority_field is not None:
            columns["priority"] = attnames.index(self.bound.priority_field.attname)
        return {"key": attnames.index(self.bound.key_name), **columns}

    def converters(self) -> tuple[Any, dict[int, Any]]:
        """Return what makes of the driver's values those of the fields that a claim reads, for the calling thread."""
        model = self.bound.model
        compiler: Any = Query(model).get_compiler(self.using)
        return compiler, compiler.get_converters([field.get_col(model._meta.db_table) for field in self.fields])

    @cached_property
    def is_read_plainly(self) -> bool:
        """Whether there is nothing to convert. To ask takes a good part of the time that one row takes."""
        return not self.converters()[1]

    @cached_property
    def has_plain_attributes(self) -> bool:
        model: Any = self.bound.model
        return has_plain_attributes(model)

    @property
    def is_watched(self) -> bool:
        """Whether moving rows runs code of the project's. Receivers come and go, and methods are patched; the rest is asked once."""
        model = self.bound.model
        save_base = getattr(model.save_base, "__wrapped__", model.save_base)
        if model.save is not models.Model.save or save_base is not models.Model.save_base:
            return True
        if any(signal.receivers and signal.has_listeners(sender) for signal, sender in self._signals):
            return True
        return self._is_watched_in_itself

    @cached_property
    def _is_watched_in_itself(self) -> bool:
        return any(lasting_reasons_for_each_row(self.bound, self.bound.model))

    @cached_property
    def _signals(self) -> list[tuple[Signal, type[models.Model]]]:
        """What is sent when a row is moved, and of whom."""
        model, audit = self.bound.model, self.bound.transition_model
        return [(signal, each) for each in (model, audit) for signal in SAVED] + [(signal, model) for signal in MOVED]

    @cached_property
    def is_one_table(self) -> bool:
        meta = self.bound.model._meta
        return list(meta.concrete_fields) == list(meta.local_concrete_fields)


@dataclass(slots=True, eq=False)
class Lease:
    """One claimed row. The token is the only authority; everything else is for people and for policy."""

    lane: Lane
    schedule: Schedule
    status: str
    key: Any
    token: int
    sequence: int
    failures: int
    crashes: int
    #: What went wrong before; of a recovered row, from whom it was taken.
    error: str
    #: How long the row has been in its state, by the database's clock, when it was claimed.
    age: float
    #: The row, or None if it could not be loaded, and why.
    instance: models.Model | None
    load_error: Exception | None
    #: By `now()`: until when nobody else can have the row. Extended by heartbeats.
    trusted_until: float
    #: By the monotonic clock.
    claimed_at: float
    is_lost: bool = False
    #: That its handler's time was up, or the process's: what it still says is not heard.
    is_stopped: bool = False
    #: When its handler began, and by when it has to be done.
    started_at: float | None = None
    deadline: float | None = None
    #: The connection of an atomic handler, which has the row locked.
    connection: Any = None
    #: How long the handler ran.
    seconds: float = 0.0
    #: How often an atomic handler was undone because somebody else was in its way.
    conflicts: int = 0
    #: Of machines that keep tries: who holds the row, and which try in its life this is.
    owner: str = ""
    number: int = 0
    #: Which handler in a row this is under one claim, from 1: more only where rows run ahead.
    step: int = 1
    #: What has happened of what the row waits for, in a state that waits.
    awaited: Awaited | None = None

    @property
    def label(self) -> str:
        return f"{self.lane.bound.model._meta.label} pk={shown(self.key)}"

    @property
    def log_fields(self) -> dict[str, Any]:
        """What a line in the log is about, for programs."""
        return {**row_fields(self.lane, self.key), "state": self.status, "attempt": self.failures + 1}

    @property
    def is_async(self) -> bool:
        """Whether its handler wants an event loop."""
        return self.schedule.is_async

    @property
    def is_trusted(self) -> bool:
        return not self.is_lost and now() < self.trusted_until

    def stop(self) -> None:
        """Hear no more of the handler, and undo the transaction it is in, so that its row can be written."""
        self.is_stopped = True
        connection = self.connection  # its thread takes it away when it is done
        if connection is not None:
            self.lane.dialect.hang_up(connection)


def lanes_of(
    machines: Iterable[Binding[Any]], queues: Iterable[str] | None = None, using: str | None = None
) -> list[Lane]:
    """Return the lanes of timed machines, in the order of the machines; of the queues named, maybe with limits, or of all."""
    wanted = None if queues is None else dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues)
    return [
        Lane(bound, using or router.db_for_write(bound.model), *part)
        for bound in machines
        if bound.is_timed
        for part in lane_parts(bound, wanted)
    ]


def lanes_for(options: WorkerOptions) -> list[Lane]:
    """Return the lanes that the options name."""
    machines = [find_machine(*label.rsplit(".", 1)) for label in options.machines]
    return lanes_of(machines, options.queues or None, options.database)


def row_fields(lane: Lane, key: Any) -> dict[str, Any]:
    """Return which row a line in the log is about."""
    bound = lane.bound
    return {
        "model": bound.model._meta.label,
        "machine": bound.accessor,
        "key": key if isinstance(key, int) else shown(key) if not isinstance(key, str | uuid.UUID) else str(key),
        "database": lane.using,
    }


def shown(key: Any) -> str:
    """Return a key for people, also one of a class whose own words fail."""
    try:
        return repr(key)
    except Exception:  # noqa: BLE001
        return f"<{type(key).__name__}>"
