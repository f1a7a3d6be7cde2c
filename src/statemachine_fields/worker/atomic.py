"""Handlers that share one transaction with their outcome: what they write in the database happens exactly once."""

from __future__ import annotations

from django.db import transaction

from statemachine_fields.db.dialect import sqlstate
from statemachine_fields.exceptions import LeaseLost
from statemachine_fields.worker.attempt import Attempts, described, exited
from statemachine_fields.worker.commit import QUERY_CANCELED, is_conflict, write_now
from statemachine_fields.worker.events import Events
from statemachine_fields.worker.lease import Lease
from statemachine_fields.worker.outcomes import Kind, Verdict


def run_atomic(attempts: Attempts, events: Events, lease: Lease) -> Verdict | None:
    """Lock the row, run its handler and write the outcome, all or nothing.

    Returns what is left to be written: nothing if the transaction stands, else that the try failed. While the row is
    locked nobody can claim it, so its lease need not be extended.
    """
    verdict = attempts.without_handler(lease)
    if verdict is not None:
        return verdict
    lane = lease.lane
    try:
        lease.connection = lane.connection
        with transaction.atomic(using=lane.using):
            if not lane.leases.lock(lane.connection, lane.bound.table, lease.key, lease.token):
                raise LeaseLost(lease.label, lease.token)
            method, arguments = attempts.begin(lease)
            verdict = attempts.judge(lease, method(*arguments))
            written = write_now(verdict)
            if not written and verdict.kind is Kind.SETTLED_ITSELF:  # in a transaction within ours that was undone
                verdict = attempts.not_moved(verdict)
                written = write_now(verdict)
            if not written:
                raise LeaseLost(lease.label, lease.token)
    except LeaseLost:
        # Either it is gone, which the committer will find out, or somebody has the row locked at this moment.
        return Verdict(lease, Kind.RELEASED)
    except SystemExit as error:
        return attempts.judge_error(lease, exited(error))
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        # Nothing is wrong with the row, and it is run again; but what took too long would do so again and again.
        if is_conflict(lane, error) and sqlstate(error) != QUERY_CANCELED:
            return Verdict(lease, Kind.RELEASED, error=described(error))
        return attempts.judge_error(lease, error)
    events.written([verdict])
    return None
