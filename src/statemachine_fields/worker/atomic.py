"""Handlers that share one transaction with their outcome: what they write in the database happens exactly once."""

from __future__ import annotations

from statemachine_fields.db.dialect import is_connection_error
from statemachine_fields.exceptions import LeaseLost
from statemachine_fields.worker.attempt import Attempts
from statemachine_fields.worker.blocks import Block
from statemachine_fields.worker.events import Events
from statemachine_fields.worker.lease import Lease
from statemachine_fields.worker.outcomes import Kind, Verdict
from statemachine_fields.worker.writing import NotWritten, is_conflict, leave_alone, write_now

_MOVES = (Kind.MOVED, Kind.SETTLED_ITSELF)


def run_atomic(attempts: Attempts, events: Events, lease: Lease) -> Verdict | None:
    """Lock the row, run its handler and write the outcome, all or nothing.

    Returns what is left to be done: nothing if the transaction stands, else what the try has come to. While the row is
    locked nobody can claim it, so its lease need not be extended.
    """
    verdict: Verdict | None = None
    block = Block(lease.lane.using)
    try:
        verdict = attempts.without_handler(lease)
        if verdict is not None:
            return verdict
        lease.connection = lease.lane.connection
        with block:
            verdict = _run_and_write(attempts, lease)
    except LeaseLost:
        # Either it is gone, which the committer will find out, or somebody has the row locked at this moment.
        return Verdict(lease, Kind.RELEASED)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        if not block.is_committed or verdict is None:
            if verdict is not None and verdict.kind in _MOVES and is_connection_error(error):
                # It may be the answer to COMMIT that was lost. The record tells.
                return Verdict(lease, Kind.SETTLED_ITSELF, exception=error)
            judge = attempts.judge_conflict if is_conflict(lease.lane, error) else attempts.judge_error
            return judge(lease, error)
        _tell(events, verdict)
        events.raised_after_commit(verdict, error)
        return None
    finally:
        lease.connection = None
    _tell(events, verdict)
    return None


def _tell(events: Events, verdict: Verdict) -> None:
    if verdict.kind is Kind.DROPPED:
        events.dropped(verdict)
    else:
        events.written([verdict])


def _run_and_write(attempts: Attempts, lease: Lease) -> Verdict:
    lane = lease.lane
    if not lane.lock(lease.key, lease.token):
        raise LeaseLost(lease.label, lease.token)
    method, arguments = attempts.begin(lease)
    verdict = attempts.judge(lease, method(*arguments))
    written = write_now(verdict)
    if not written and verdict.kind is Kind.SETTLED_ITSELF:  # in a transaction within ours that was undone
        verdict = attempts.not_moved(verdict)
        written = write_now(verdict)
    if written:
        return verdict
    if lane.lock(lease.key, lease.token):
        raise NotWritten
    if verdict.kind is not Kind.WAITED:
        raise TypeError(f"The handler moved the row itself, and its answer, a {verdict.words}, comes too late.")
    moved = Verdict(lease, Kind.SETTLED_ITSELF)  # by way of another instance, if it is not deleted or released
    return moved if lease.key in leave_alone(lane, [moved]) else Verdict(lease, Kind.DROPPED)
