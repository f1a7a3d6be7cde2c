"""Write what became of leased rows: many in one statement, each compared with its token, none harmed by another.

What the database does not confirm is either locked by somebody at the moment, and tried again later, or no longer ours,
and dropped. Nothing here ever waits for a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction

from statemachine_fields.db.dialect import dialect_for, sqlstate
from statemachine_fields.db.leases import Moving, Settled
from statemachine_fields.exceptions import ConcurrentTransition, LeaseLost, RowMissing
from statemachine_fields.machine.ids import uuid7, uuid7_many
from statemachine_fields.machine.listeners import needs_each_row
from statemachine_fields.machine.transition import Transitioner
from statemachine_fields.machine.updates import auto_now_fields
from statemachine_fields.worker.attempt import Attempts, is_connection_lost
from statemachine_fields.worker.events import Events
from statemachine_fields.worker.lanes import Lane
from statemachine_fields.worker.outcomes import Kind, Verdict

QUERY_CANCELED = "57014"

#: How many rows one transaction deletes: what hangs on them is deleted with them, and is not known beforehand.
DELETED_AT_ONCE = 100
DELETING_SECONDS = 60.0

Write = Callable[[Lane, Sequence[Verdict]], set[Any]]


class ConnectionLost(Exception):
    """The database went away. What was sent may have been written or not: repeat it on a new connection."""


class Committer:
    """Writes verdicts. Each thread that has one uses its own connection."""

    def __init__(self, attempts: Attempts, events: Events) -> None:
        self.attempts = attempts
        self.events = events

    def commit(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Write verdicts and tell of each, and return those to be tried again a little later.

        :raises ConnectionLost: the database went away. All that is not yet told of can be committed again.
        """
        again: list[Verdict] = []
        for (lane, how, _alone), group in _groups(verdicts).items():
            again += self._write_group(lane, how, group)
        return again

    def _write_group(self, lane: Lane, how: Write, verdicts: list[Verdict]) -> list[Verdict]:
        try:
            return self._write(lane, how, verdicts)
        except ConnectionLost:
            raise
        except Exception as error:  # noqa: BLE001 - a constraint, a trigger, a receiver: code of the user's
            if is_conflict(lane, error):
                return verdicts
            if len(verdicts) == 1:
                return self._refuse(verdicts[0], error)
        again: list[Verdict] = []
        for verdict in verdicts:  # one bad row must not harm its neighbours
            again += self._write_group(lane, how, [verdict])
        return again

    def _refuse(self, verdict: Verdict, error: Exception) -> list[Verdict]:
        """Write, in place of a verdict that the database will not have, that it would not."""
        if verdict.kind is Kind.PARKED:
            self.events.not_written(verdict, error)
            return []
        return self._replace(verdict, self.attempts.refuse(verdict, error))

    def _replace(self, verdict: Verdict, other: Verdict) -> list[Verdict]:
        """Write another verdict of the same row."""
        again = self.commit([other])
        verdict.is_told = True
        return again

    def _write(self, lane: Lane, how: Write, verdicts: list[Verdict]) -> list[Verdict]:
        try:
            with self._guarded(lane):
                written = how(lane, verdicts)
            missing = [verdict for verdict in verdicts if verdict.lease.key not in written]
            held = self._held(lane, missing) if missing else set()
            repeated = [verdict for verdict in missing if verdict.is_repeated and verdict.record_id is not None]
            recorded = self._recorded(lane, repeated) if repeated else set()
        except (OperationalError, InterfaceError) as error:
            if not is_connection_lost(error):
                raise
            for verdict in verdicts:
                verdict.is_repeated = True
            raise ConnectionLost(str(error)) from error
        if not missing:
            self.events.written(verdicts)
            return []
        again = []
        for verdict in verdicts:
            if verdict.lease.key in written or verdict.record_id in recorded:
                self.events.written([verdict])
            elif verdict.lease.key in held:
                itself = verdict.kind is Kind.SETTLED_ITSELF
                again += self._replace(verdict, self.attempts.not_moved(verdict)) if itself else [verdict]
            elif verdict.is_repeated and verdict.kind is not Kind.MOVED:
                verdict.is_told = True  # written before the connection broke, most likely, and of no consequence if not
            else:
                self.events.dropped(verdict)
        return again

    def _guarded(self, lane: Lane) -> AbstractContextManager[Any]:
        """Keep a transaction that is not ours usable if a statement fails, as in a test."""
        return transaction.atomic(using=lane.using) if lane.connection.in_atomic_block else nullcontext()

    def _held(self, lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
        keys, tokens = _pairs(verdicts)
        return lane.leases.held(lane.connection, lane.bound.table, keys, tokens)

    def _recorded(self, lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
        """Return the ids of records that were written although nobody told us so."""
        ids: list[Any] = [verdict.record_id for verdict in verdicts]
        records = lane.bound.transition_model._base_manager.using(lane.using)
        return set(records.filter(pk__in=ids).values_list("pk", flat=True))


def _groups(verdicts: Iterable[Verdict]) -> dict[tuple[Lane, Write, int], list[Verdict]]:
    """Sort verdicts by what can be written together, and how. What runs code of the user's is written alone, so that a
    receiver that raises undoes nobody else's move."""
    groups: dict[tuple[Lane, Write, int], list[Verdict]] = {}
    singly: dict[Lane, bool] = {}
    for verdict in verdicts:
        lane, how = verdict.lease.lane, _WAYS[verdict.kind]
        if verdict.kind is Kind.MOVED:
            if lane not in singly:
                singly[lane] = needs_each_row(lane.bound)
            if verdict.update or singly[lane]:
                how = move_singly
        alone = id(verdict) if how is move_singly and singly[lane] else 0
        groups.setdefault((lane, how, alone), []).append(verdict)
    return groups


def write_now(verdict: Verdict) -> bool:
    """Write one verdict in the transaction that is open, and say whether the row was still ours."""
    ((lane, how, _alone),) = _groups([verdict])
    return verdict.lease.key in how(lane, [verdict])


def move_together(lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
    """Move rows in one statement, where nobody could tell the difference."""
    new = [verdict for verdict in verdicts if verdict.record_id is None]
    for verdict, record_id in zip(new, uuid7_many(len(new)), strict=True):
        verdict.record_id = record_id
    moving = [
        Moving(
            verdict.lease.key,
            verdict.lease.token,
            verdict.lease.status,
            verdict.to_status,
            verdict.delay,
            verdict.record_id,  # type: ignore[arg-type]  # each has one now
            verdict.written_metadata,
        )
        for verdict in verdicts
    ]
    model: Any = lane.bound.model
    fields = auto_now_fields(model)
    draft = model() if fields else None
    updates = [
        (field.column, field.get_db_prep_save(field.pre_save(draft, False), lane.connection)) for field in fields
    ]
    return lane.leases.move(lane.connection, lane.bound.table, moving, updates)


def move_singly(lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
    """Move rows one by one, in one transaction, with all that `transition_to()` does."""
    done = set()
    with transaction.atomic(using=lane.using):
        for verdict in verdicts:
            lease = verdict.lease
            if not lane.leases.lock(lane.connection, lane.bound.table, lease.key, lease.token):
                continue
            if move_one(verdict):
                done.add(lease.key)
    return done


def move_one(verdict: Verdict) -> bool:
    """Move one locked row as `transition_to()` would; False if it is no longer ours."""
    lease = verdict.lease
    verdict.record_id = verdict.record_id or uuid7()
    transitioner = Transitioner(
        lease.lane.bound,
        lease.instance,
        verdict.to_status,
        metadata=verdict.metadata,
        update=verdict.update,
        expected=lease.status,
        lease=lease.token,
        delay=verdict.delay,
        record_id=verdict.record_id,
    )
    try:
        transitioner.run()
    except (LeaseLost, RowMissing, ConcurrentTransition):
        return False
    return True


def settle_together(lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
    settled = [
        Settled(
            key=verdict.lease.key,
            token=verdict.lease.token,
            status=verdict.lease.status,
            delay=verdict.delay,
            horizon=None if verdict.kind is Kind.PARKED else verdict.lease.clock.horizon,
            failures=verdict.failures,
            error=verdict.error,
        )
        for verdict in verdicts
    ]
    return lane.leases.settle(lane.connection, lane.bound.table, settled)


def release_together(lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
    keys, tokens = _pairs(verdicts)
    return lane.leases.release(lane.connection, lane.bound.table, keys, tokens)


def delete_in_batches(lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
    """Delete rows through the ORM, with what hangs on them: those that are still ours and in their state."""
    done: set[Any] = set()
    for start in range(0, len(verdicts), DELETED_AT_ONCE):
        part = verdicts[start : start + DELETED_AT_ONCE]
        with transaction.atomic(using=lane.using):
            keys, tokens = _pairs(part)  # extending the leases locks the rows
            ours = lane.leases.beat(lane.connection, lane.bound.table, keys, tokens, DELETING_SECONDS)
            lane.bound.model._base_manager.using(lane.using).filter(pk__in=ours).delete()
        done.update(ours)
    return done


def leave_alone(lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
    """Write nothing: the handlers have moved the rows. Those that are still held they have not: a handler may move its
    row in a transaction that is then undone, and the instance does not learn of that."""
    keys, tokens = _pairs(verdicts)
    return set(keys) - lane.leases.held(lane.connection, lane.bound.table, keys, tokens)


_WAYS: dict[Kind, Write] = {
    Kind.MOVED: move_together,
    Kind.WAITED: settle_together,
    Kind.FAILED: settle_together,
    Kind.PARKED: settle_together,
    Kind.RELEASED: release_together,
    Kind.DELETED: delete_in_batches,
    Kind.SETTLED_ITSELF: leave_alone,
}


def _pairs(verdicts: Sequence[Verdict]) -> tuple[list[Any], list[int]]:
    return [verdict.lease.key for verdict in verdicts], [verdict.lease.token for verdict in verdicts]


def is_conflict(lane: Lane, error: Exception) -> bool:
    """Say whether the database gave up because somebody else was in the way, because it took too long, or because it had
    forgotten a statement."""
    if not isinstance(error, DatabaseError):
        return False
    if lane.leases.is_statement_lost(error):
        return True
    return dialect_for(connections[lane.using]).is_conflict(error) or sqlstate(error) == QUERY_CANCELED
