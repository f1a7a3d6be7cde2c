"""Transactions of which it is known afterwards whether they were committed; and handlers that share one with their outcome:
what they write in the database happens exactly once."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from django.db import connections, transaction

from statemachine_fields.db.dialect import is_connection_error
from statemachine_fields.exceptions import LeaseLost
from statemachine_fields.worker.connections import discard
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.lease import Lease
from statemachine_fields.worker.outcome_events import Events
from statemachine_fields.worker.outcomes import Dropped, Released, RowOutcome, TransitionedItself, Waited
from statemachine_fields.worker.writing import NotWritten, confirm, duplicate_behind, is_conflict, lock, write_now


class RolledBack(Exception):
    """A transaction was undone by code that took part in it, and said nothing."""


class LeftOpen(Exception):
    """A transaction was begun within another, and not ended."""


class TrackedTransaction:
    """A transaction that knows afterwards whether it was committed, whatever was raised on the way out."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.is_committed = False
        self._atomic = transaction.atomic(using=using)

    def __enter__(self) -> Self:
        connection = connections[self.using]
        if not connection.in_atomic_block and not connection.get_autocommit():
            connection.rollback()
            connection.set_autocommit(True)  # else Django would leave the end of it to us
        self._atomic.__enter__()
        transaction.on_commit(self._note, using=self.using)  # the first of all that are to run then
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        connection = connections[self.using]
        if connection.atomic_blocks[-1:] != [self._atomic]:  # Django would take the end of ours for the end of that
            discard(connection)
            if kind is None:
                raise LeftOpen("The handler began a transaction and did not end it, so nothing was written.")
            return
        if kind is None and connection.needs_rollback:  # Django would undo it in silence
            error = RolledBack("Code that took part in the transaction marked it for rollback, so nothing was written.")
            self._atomic.__exit__(RolledBack, error, None)
            raise error
        self._atomic.__exit__(kind, error, traceback)

    def _note(self) -> None:
        self.is_committed = True


def run_atomic(executor: HandlerExecutor, events: Events, lease: Lease) -> RowOutcome | None:
    """Lock the row, run its handler and write the outcome, all or nothing.

    Returns what is left to be done: nothing if the transaction stands, else what the try has come to. While the row is
    locked nobody can claim it, so its lease need not be extended.
    """
    outcome: RowOutcome | None = None
    answer: RowOutcome | None = None
    tracked = TrackedTransaction(lease.lane.using)
    try:
        outcome = executor.without_handler(lease)
        if outcome is not None:
            return outcome
        lease.connection = lease.lane.connection
        with tracked:
            answer = _run(executor, lease)
            outcome = _write(executor, answer)
    except LeaseLost:
        # Either it is gone, which the committer will find out, or somebody has the row locked at this moment.
        return Released(lease)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        if not tracked.is_committed or outcome is None:
            if outcome is not None and outcome.is_recorded and is_connection_error(error):
                # It may be the answer to COMMIT that was lost. The record tells.
                return TransitionedItself(lease, exception=error)
            judge = executor.judge_conflict if is_conflict(lease.lane, error) else executor.judge_error
            return judge(lease, error if answer is None else duplicate_behind(answer, error) or error)
        _report(events, outcome)
        events.raised_after_commit(outcome, error)
        return None
    finally:
        lease.connection = None
    _report(events, outcome)
    return None


def _report(events: Events, outcome: RowOutcome) -> None:
    if isinstance(outcome, Dropped):
        events.dropped(outcome)
    else:
        events.committed([outcome])


def _run(executor: HandlerExecutor, lease: Lease) -> RowOutcome:
    if not lock(lease):
        raise LeaseLost(lease.label, lease.token)
    method, arguments = executor.begin(lease)
    return executor.judge(lease, method(*arguments))


def _write(executor: HandlerExecutor, outcome: RowOutcome) -> RowOutcome:
    lease, lane = outcome.lease, outcome.lease.lane
    written = write_now(outcome)
    if not written and outcome.is_hearsay:  # in a transaction within ours that was undone
        outcome = executor.not_moved(outcome)
        written = write_now(outcome)
    if written:
        return outcome
    if lock(lease):
        raise NotWritten
    if not isinstance(outcome, Waited):
        raise TypeError(f"The handler moved the row itself, and its answer, a {outcome}, comes too late.")
    moved = TransitionedItself(lease)  # by way of another instance, if it is not deleted or released
    return moved if lease.key in confirm(lane, [moved]) else Dropped(lease)
