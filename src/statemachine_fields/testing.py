"""Helpers for your own tests of timed machines, and of any machine's history.

`drain()` runs what a worker would run, in the test's own process and transaction. The pytest fixtures in
`statemachine_fields.pytest_plugin` give the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from asgiref.sync import async_to_sync
from django.apps import apps
from django.db import models

from statemachine_fields.db.clock import DatabaseClock
from statemachine_fields.exceptions import StateMachineError
from statemachine_fields.machine.bound import BoundMachine
from statemachine_fields.machine.descriptor import machines_of
from statemachine_fields.machine.questions import StatementClock
from statemachine_fields.machine.rows import all_rows
from statemachine_fields.worker.atomic import run_atomic
from statemachine_fields.worker.attempt import Attempts
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.events import Events
from statemachine_fields.worker.lanes import Lane, lanes_of
from statemachine_fields.worker.lease import Lease
from statemachine_fields.worker.outcomes import Kind, Verdict

__all__ = ["DrainTally", "assert_history", "assert_state", "drain"]

#: Long enough for a debugger.
LEASE_SECONDS = 3600.0
#: After how many dead workers a row is given up; in a test none dies unless a lease was left open on purpose.
MAX_CRASHES = 5
BATCH = 100


@dataclass(slots=True)
class DrainTally:
    """What a `drain()` did: how many tries came to what, which moves were made, and what went wrong."""

    moved: int = 0
    waited: int = 0
    failed: int = 0
    parked: int = 0
    deleted: int = 0
    dropped: int = 0
    #: How often each move was made, by source and target.
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: What was written on rows that failed or were parked, in order.
    errors: list[str] = field(default_factory=list)

    @property
    def tries(self) -> int:
        return self.moved + self.waited + self.failed + self.parked + self.deleted + self.dropped


def drain(
    *models_or_machines: type[models.Model] | BoundMachine[Any],
    collapse_time: bool = True,
    timeouts: bool = False,
    deletions: bool = False,
    reraise: bool = False,
    max_tries: int = 1000,
    using: str | None = None,
) -> DrainTally:
    """Run everything that is due, and what becomes due by that, until there is nothing left; return a tally.

    In the test's own process and transaction, so it works in `TestCase` and sees what the test has written.

    :param models_or_machines: what to run: all timed machines of the project if not given.
    :param collapse_time: make waiting rows due, so that no test has to wait for `start_after` or `retry_after`. The
        database's clock is left alone. A row that answers "not yet" is asked once for each state it enters; one that
        fails is tried until its `max_attempts` are used up, or once if it has none.
    :param timeouts: let time-outs happen, whatever the time.
    :param deletions: let deletions happen, whatever the time.
    :param reraise: raise what a handler raises, in place of recording it.
    :param max_tries: raise `AssertionError` after so many: two states that hand a row to and fro would go on for ever.
    :param using: the database, if not the one that the router chooses.
    """
    lanes = lanes_of(_machines(models_or_machines), using=using)
    attempts = Attempts(max_crashes=MAX_CRASHES, fires_timeouts=timeouts, fires_deletions=deletions)
    return _Drain(lanes, attempts, collapse_time, reraise, max_tries).run()


class _Drain:
    """One run over some lanes, in the calling thread."""

    def __init__(
        self, lanes: list[Lane], attempts: Attempts, collapse_time: bool, reraise: bool, max_tries: int
    ) -> None:
        self.lanes = lanes
        self.attempts = attempts
        self.collapse_time = collapse_time
        self.reraise = reraise
        self.max_tries = max_tries
        self.events = Events()
        self.claimer = Claimer("drain()", LEASE_SECONDS)
        self.committer = Committer(attempts, self.events)
        self.tally = DrainTally()
        #: Rows that had their turn in the state they are in, by machine: key and sequence.
        self.asked: dict[BoundMachine[Any], set[tuple[Any, int]]] = {lane.bound: set() for lane in lanes}

    def run(self) -> DrainTally:
        while any([self._pass(lane) for lane in self.lanes]):  # noqa: C419 - every lane has its turn in every round
            pass
        return self.tally

    def _pass(self, lane: Lane) -> bool:
        """Run a batch of a lane's due rows, and say whether there were any."""
        if self.collapse_time:
            self._make_due(lane)
        leases = self.claimer.claim(lane, BATCH) + self.claimer.claim(lane, BATCH, suspects=True)
        asked = self.asked[lane.bound]
        again = [lease for lease in leases if (lease.key, lease.sequence) in asked]
        self.committer.commit(Verdict(lease, Kind.RELEASED) for lease in again)
        leases = [lease for lease in leases if (lease.key, lease.sequence) not in asked]
        for lease in leases:
            self._run(lease)
        return bool(leases)

    def _make_due(self, lane: Lane) -> None:
        names = lane.bound.names
        states = [state for state, clock in lane.clocks.items() if self._has_something_to_do(clock)]
        waiting = {f"{names.status}__in": states, f"{names.next_at}__gt": StatementClock()}
        rows = all_rows(lane.bound.model, lane.using).filter(**waiting)
        asked = [key for key, _sequence in self.asked[lane.bound]]
        rows.filter(lane.bound.free_condition()).exclude(pk__in=asked).update(**{names.next_at: DatabaseClock()})
        # Those that were asked may have moved on since.
        for key, sequence in self.asked[lane.bound]:
            moved_on = rows.filter(**{"pk": key, f"{names.sequence}__gt": sequence})
            moved_on.update(**{names.next_at: DatabaseClock()})

    def _has_something_to_do(self, clock: Any) -> bool:
        return (
            clock.handler is not None
            or (self.attempts.fires_timeouts and clock.timeout_to is not None)
            or (self.attempts.fires_deletions and clock.delete_after is not None)
        )

    def _run(self, lease: Lease) -> None:
        if self.tally.tries >= self.max_tries:
            raise AssertionError(
                f"drain() has made {self.max_tries} tries and rows are still due, {lease.label} in {lease.status!r} "
                "among them. If states hand rows to and fro, end the test earlier; else raise max_tries."
            )
        before = self.events.total.copy()
        verdict = self._attempt(lease)
        if verdict is not None:
            if self.reraise and verdict.exception is not None:
                raise verdict.exception
            self.committer.commit([verdict])
        self._count(lease, verdict, self.events.total - before)

    def _attempt(self, lease: Lease) -> Verdict | None:
        handler = lease.clock.handler
        if handler is not None and handler.atomic:
            verdict = run_atomic(self.attempts, self.events, lease)
            while verdict is not None and verdict.kind is Kind.CONFLICT:
                verdict = run_atomic(self.attempts, self.events, lease)
            return verdict
        if handler is not None and handler.is_async:
            return async_to_sync(self.attempts.arun)(lease)
        return self.attempts.run(lease)

    def _count(self, lease: Lease, verdict: Verdict | None, counted: Counter[str]) -> None:
        for kind in (Kind.WAITED, Kind.FAILED, Kind.PARKED, Kind.DELETED, Kind.DROPPED):
            setattr(self.tally, kind, getattr(self.tally, kind) + int(counted[kind]))
        self.tally.moved += int(counted[Kind.MOVED] + counted[Kind.SETTLED_ITSELF])
        row = all_rows(lease.lane.bound.model, lease.lane.using).filter(pk=lease.key)
        names = lease.lane.bound.names
        found = row.values_list(names.status, names.sequence, names.error, names.failures).first()
        if found is None:
            return
        status, sequence, error, failures = found
        if sequence > lease.sequence:
            self.tally.moves[lease.status, status] += 1
        error = error or ("" if verdict is None else verdict.error)
        if error:
            self.tally.errors.append(error)
        endless = lease.clock.max_attempts is None
        if sequence == lease.sequence and (counted[Kind.WAITED] or endless or failures == lease.failures):
            self.asked[lease.lane.bound].add((lease.key, sequence))


def assert_state(instance: models.Model, state: str, machine: str = "states") -> None:
    """Assert that the row is in a state, by what the database has."""
    bound = _machine_of(instance, machine)
    rows = all_rows(bound.model, instance._state.db).filter(pk=bound.key_of(instance))
    found: str | None = rows.values_list(bound.names.status, flat=True).first()
    if found != state:
        history = " → ".join(_path(instance, machine)) or "no moves"
        raise AssertionError(f"{instance!r} is in {found!r}, expected {state!r}. Its history: {history}.")


def assert_history(instance: models.Model, *states: str, machine: str = "states") -> None:
    """Assert that the row went through exactly these states, the one it started from first."""
    path = _path(instance, machine)
    if path != list(states):
        raise AssertionError(
            f"{instance!r} went {' → '.join(path) or 'nowhere'}, expected {' → '.join(states) or 'no moves'}."
        )


def _path(instance: models.Model, machine: str) -> list[str]:
    accessor = getattr(instance, machine)
    path: list[str] = []
    for record in accessor.history.order_by("sequence"):
        path += [record.from_status, record.to_status] if not path else [record.to_status]
    return [state for state in path if state]


def _machine_of(instance: models.Model, accessor: str) -> BoundMachine[Any]:
    machine: BoundMachine[Any] = getattr(type(instance), accessor)
    return machine


def _machines(given: Iterable[type[models.Model] | BoundMachine[Any]]) -> list[BoundMachine[Any]]:
    found: list[BoundMachine[Any]] = []
    for each in given or apps.get_models():
        if isinstance(each, BoundMachine):
            found.append(each)
            continue
        machines = machines_of(each).values()
        found += [machine for machine in machines if machine.is_timed]
        if given and not any(machine.is_timed for machine in machines):
            raise StateMachineError(f"{each._meta.label} has no timed machine, so there is nothing to drain.")
    return list(dict.fromkeys(found))
