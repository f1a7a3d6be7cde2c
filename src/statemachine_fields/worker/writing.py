"""The ways in which outcomes are written, each for rows of one lane, and which outcome goes which way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.db import DatabaseError, connections, models

from statemachine_fields.db.dialect import sqlstate
from statemachine_fields.exceptions import ConcurrentTransition, LeaseLost, RowMissing
from statemachine_fields.machine.ids import uuid7, uuid7_many
from statemachine_fields.machine.listeners import needs_each_row
from statemachine_fields.machine.transitioner import Transitioner
from statemachine_fields.machine.updates import auto_now_fields
from statemachine_fields.worker.lanes import Lane
from statemachine_fields.worker.outcomes import Kind, Verdict

QUERY_CANCELED = "57014"

#: How many rows one transaction deletes: what hangs on them is deleted with them, and is not known beforehand.
DELETED_AT_ONCE = 100
DELETING_SECONDS = 60.0
#: How many rows one transaction moves that are written one by one.
MOVED_AT_ONCE = 100
Write = Callable[[Lane, Sequence[Verdict]], set[Any]]
Group = tuple[Lane, Write, int]


class NotWritten(Exception):
    """The database did not write a row, and gave no reason."""

    def __str__(self) -> str:
        return (
            "The database did not write the row and gave no reason: a trigger returned NULL, or a rule is in the way."
        )


def groups_of(verdicts: Iterable[Verdict]) -> dict[Group, list[Verdict]]:
    """Sort verdicts by what can be written together, and how. What runs code of the user's is written alone, so that a
    receiver that raises undoes nobody else's move."""
    groups: dict[Group, list[Verdict]] = {}
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
    for group, members in list(groups.items()):
        if len({verdict.lease.key for verdict in members}) < len(members):
            groups[group] = _first_tries(group, members, groups)
    return groups


def _first_tries(group: Group, members: list[Verdict], groups: dict[Group, list[Verdict]]) -> list[Verdict]:
    """Return verdicts of different rows, and put the others into groups of their own: a process may have taken its own row
    again, and the answer names rows, not tries."""
    lane, how, _alone = group
    first: dict[Any, Verdict] = {}
    for verdict in members:
        if first.setdefault(verdict.lease.key, verdict) is not verdict:
            groups[lane, how, id(verdict)] = [verdict]
    return list(first.values())


def write_now(verdict: Verdict) -> bool:
    """Write one verdict in the transaction that is open, and say whether the row was still ours."""
    ((lane, how, _alone),) = groups_of([verdict])
    return verdict.lease.key in how(lane, [verdict])


def move_together(lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
    """Move rows in one statement, where nobody could tell the difference."""
    new = [verdict for verdict in verdicts if verdict.record_id is None]
    for verdict, record_id in zip(new, uuid7_many(len(new)), strict=True):
        verdict.record_id = record_id
    rows = {
        **compared(verdicts),
        "status": [verdict.to_status for verdict in verdicts],
        "next_at": [verdict.delay for verdict in verdicts],
        "record": [verdict.record_id for verdict in verdicts],
        "metadata": [verdict.written_metadata for verdict in verdicts],
    }
    model: Any = lane.bound.model
    fields = auto_now_fields(model)
    draft = model() if fields else None
    updates = [
        (field.column, field.get_db_prep_save(field.pre_save(draft, False), lane.connection)) for field in fields
    ]
    return lane.enter(rows, updates)


def move_singly(lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
    """Move rows one by one, in one transaction, with all that `transition_to()` does."""
    done = set()
    for verdict in verdicts:
        lease = verdict.lease
        if lane.lock(lease.key, lease.token) and move_one(verdict):
            done.add(lease.key)
    return done


def move_one(verdict: Verdict) -> bool:
    """Move one locked row as `transition_to()` would; False if it is no longer ours.

    The row is loaded anew. What the handler has made of its instance is its own affair: it may be another row by now.
    """
    lease, lane = verdict.lease, verdict.lease.lane
    row: Any = models.QuerySet(lane.bound.model, using=lane.using).filter(pk=lease.key).first()
    if row is None:
        return False
    verdict.record_id = verdict.record_id or uuid7()
    transitioner = Transitioner(
        lane.bound,
        row,
        verdict.to_status,
        verdict.metadata,
        update=verdict.update,
        expected=lease.status,
        lease=lease.token,
        delay=verdict.delay,
        record_id=verdict.record_id,
        using=lane.using,
    )
    try:
        transitioner.run()
    except (LeaseLost, RowMissing, ConcurrentTransition) as error:
        if is_in_the_way(lane, error) or connections[lane.using].needs_rollback:  # then it is of the whole transaction
            raise
        return False
    return True


def settle_together(lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
    rows = {
        **compared(verdicts),
        "failures": [verdict.failures for verdict in verdicts],
        "error": [verdict.error for verdict in verdicts],
        "next_at": [verdict.delay for verdict in verdicts],
        "horizon": [None if each.kind is Kind.PARKED else each.lease.schedule.horizon for each in verdicts],
    }
    return lane.stay(rows)


def release_together(lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
    keys, tokens = pairs(verdicts)
    return lane.release(keys, tokens)


def delete_together(lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
    """Delete rows through the ORM, with what hangs on them: those that are still ours and in their state."""
    keys, tokens = pairs(verdicts)  # extending the leases locks the rows
    ours = lane.beat(keys, tokens, DELETING_SECONDS)
    rows: models.QuerySet[Any] = models.QuerySet(lane.bound.model, using=lane.using).filter(pk__in=ours)
    rows.delete()
    if ours and rows.exists():
        raise NotWritten
    return ours


def leave_alone(lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
    """Write nothing: the handlers have moved the rows, if there is a record of it. A handler may move its row in a
    transaction that is then undone, and the instance does not learn of that."""
    moves = {each.lease.key: each.lease.sequence + 1 for each in verdicts}
    records: Any = models.QuerySet(lane.bound.transition_model, using=lane.using)
    found = records.filter(instance_id__in=[*moves], sequence__in={*moves.values()})
    recorded = set(found.values_list("instance_id", "sequence"))
    return {key for key, sequence in moves.items() if (key, sequence) in recorded}


_WAYS: dict[Kind, Write] = {
    Kind.MOVED: move_together,
    Kind.WAITED: settle_together,
    Kind.FAILED: settle_together,
    Kind.PARKED: settle_together,
    Kind.RELEASED: release_together,
    Kind.DELETED: delete_together,
    Kind.SETTLED_ITSELF: leave_alone,
}

#: What takes more than one statement, and how many rows it takes at once.
IN_TRANSACTION = (move_singly, delete_together)
MOST_AT_ONCE: dict[Write, int] = {move_singly: MOVED_AT_ONCE, delete_together: DELETED_AT_ONCE}

#: The verdicts that leave a row in its state.
STAYING = (Kind.WAITED, Kind.FAILED, Kind.PARKED, Kind.RELEASED)


def compared(verdicts: Sequence[Verdict]) -> dict[str, list[Any]]:
    leases = [verdict.lease for verdict in verdicts]
    return {
        "key": [lease.key for lease in leases],
        "was_lease_token": [lease.token for lease in leases],
        "was_status": [lease.status for lease in leases],
    }


def pairs(verdicts: Sequence[Verdict]) -> tuple[list[Any], list[int]]:
    return [verdict.lease.key for verdict in verdicts], [verdict.lease.token for verdict in verdicts]


def is_in_the_way(lane: Lane, error: BaseException) -> bool:
    """Say whether the database gave up because of somebody else or for want of time. Nothing is wrong with the row, and the
    next try may succeed."""
    return is_conflict(lane, error) or sqlstate(error) == QUERY_CANCELED


def is_conflict(lane: Lane, error: BaseException) -> bool:
    """Say whether somebody else was in the way: a lock, a deadlock, a change that could not be serialised, or a pooler that
    has forgotten a statement."""
    cause = error.__cause__ if isinstance(error, ConcurrentTransition) else error
    if not isinstance(cause, DatabaseError):
        return False
    return lane.dialect.is_conflict(cause) or lane.dialect.is_statement_lost(cause)
