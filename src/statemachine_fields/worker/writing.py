"""How outcomes are written: the effects on rows of one lane, and what else is asked of the database about leased rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, InterfaceError, connections, models

from statemachine_fields.db.dialect import is_timeout
from statemachine_fields.db.riders import Taking
from statemachine_fields.db.tries import keep_try
from statemachine_fields.exceptions import ConcurrentTransition, DuplicateLiveRow, LeaseLost, RowMissing
from statemachine_fields.machine import parents
from statemachine_fields.machine.context import loaded, read_facts
from statemachine_fields.machine.ids import uuid7, uuid7_many
from statemachine_fields.machine.registry import machines_of
from statemachine_fields.machine.transitioner import Transitioner
from statemachine_fields.machine.updates import Updates, auto_now_fields
from statemachine_fields.schedule.wakeups import wake
from statemachine_fields.worker.attempts import is_failed_try, signed, tries_of
from statemachine_fields.worker.waits import tell_waits

if TYPE_CHECKING:
    from statemachine_fields.db.dialect import Written
    from statemachine_fields.worker.lease import Lane, Lease
    from statemachine_fields.worker.outcomes import RowOutcome, Stayed, Transitioned

DELETING_SECONDS = 60.0


class ConnectionLost(Exception):
    """The database went away. What was sent may have been written or not: repeat it on a new connection."""

    #: What is to be written besides the outcomes that nothing is known of yet.
    again: list[RowOutcome]

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.again = []


class NotWritten(Exception):
    """The database did not write a row, and gave no reason."""

    def __str__(self) -> str:
        return (
            "The database did not write the row and gave no reason: a trigger returned NULL, or a rule is in the way."
        )


# Each of these returns the keys of the rows that it wrote, or that it found written.


def enter(lane: Lane, outcomes: Sequence[Transitioned]) -> set[Any]:
    """Move rows in one statement, where nobody could tell the difference."""
    rows, others = entries(lane, outcomes)
    return _entered(lane, outcomes, lane.enter(rows, others))


def _entered(lane: Lane, outcomes: Sequence[Transitioned], written: Written) -> Written:
    """Note what has come of moves, and tell who looks after parents which children have ended."""
    if parents.waiting and lane.bound.joins_as_child != ():
        moves = [
            (each.lease.instance, each.lease.key, each.to_status) for each in outcomes if each.lease.key in written
        ]
        parents.instances_moved(lane.bound, lane.connection, moves)
    return _noted(outcomes, written)


def entries(lane: Lane, outcomes: Sequence[Transitioned]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return what is given for each row that moves, and what is written besides."""
    new = [outcome for outcome in outcomes if outcome.record_id is None]
    for outcome, record_id in zip(new, uuid7_many(len(new)), strict=True):
        outcome.record_id = record_id
    rows = {
        **compared(outcomes),
        "status": [outcome.to_status for outcome in outcomes],
        "next_at": [outcome.delay for outcome in outcomes],
        "record": [outcome.record_id for outcome in outcomes],
        "metadata": [outcome.written_metadata for outcome in outcomes],
    }
    if lane.bound.records_attempts:
        rows["metadata"] = [signed(outcome) for outcome in outcomes]
    others = other_fields(lane, outcomes)
    if "inbox" in lane.bound.features:
        rows["seen"] = [outcome.seen for outcome in outcomes]
        if any(each.take for each in outcomes):
            others["riders"] = [Taking([each.take for each in outcomes])]
    return rows, others


def other_fields(lane: Lane, outcomes: Sequence[RowOutcome]) -> dict[str, Any]:
    """Return what rows are written with besides the machine's columns: `auto_now` fields, and those of their `update=`, which are
    the same ones for all of a group."""
    model: Any = lane.bound.model
    fields = auto_now_fields(model)
    group = outcomes[0].group
    if not fields and group is None:
        return {}
    connection = lane.connection
    draft = model() if fields else None
    updates = [(field.column, field.get_db_prep_save(field.pre_save(draft, False), connection)) for field in fields]
    values = [
        (field, [field.get_db_prep_save(_assigned(field, each.update), connection) for each in outcomes])
        for field in (() if group is None else group.fields)
    ]
    return {"updates": updates, "values": values}


def _assigned(field: Any, update: Any) -> Any:
    """Return what an assignment would store: of a related row its key."""
    value = update[field.name]
    return value if value is None or not field.is_relation else getattr(value, field.target_field.attname)


def enter_tried(lane: Lane, outcomes: Sequence[Transitioned]) -> set[Any]:
    """Move rows in one statement whose tries have failed, and keep those."""
    rows, others = entries(lane, outcomes)
    errors = [outcome.error for outcome in outcomes]
    return _entered(lane, outcomes, lane.enter({**rows, "error": errors, **tries_of(outcomes)}, others))


def enter_each(lane: Lane, outcomes: Sequence[Transitioned]) -> set[Any]:
    """Move rows one by one, with all that `transition_to()` does."""
    return {outcome.lease.key for outcome in outcomes if lock(outcome.lease) and enter_one(outcome)}


def enter_one(outcome: Transitioned) -> bool:
    """Move one locked row as `transition_to()` would; False if it is no longer ours.

    The row is loaded anew. What the handler has made of its instance is its own affair: it may be another row by now.
    """
    lease, lane = outcome.lease, outcome.lease.lane
    row: Any = models.QuerySet(lane.bound.model, using=lane.using).filter(pk=lease.key).first()
    if row is None:
        return False
    outcome.record_id = outcome.record_id or uuid7()
    facts = None
    if lane.bound.records_attempts:
        facts = read_facts(loaded(signed(outcome)))
        if is_failed_try(outcome):
            kept = {name: values[0] for name, values in tries_of([outcome]).items()}
            keep_try(lane.connection, lane.bound.table, lease.key, lease.token, {**kept, "error": outcome.error})
    transitioner = Transitioner(
        lane.bound,
        row,
        outcome.to_status,
        outcome.metadata,
        facts=facts,
        update=outcome.update,
        expected=lease.status,
        lease=lease.token,
        delay=outcome.delay,
        seen=outcome.seen,
        record_id=outcome.record_id,
        using=lane.using,
    )
    try:
        record = transitioner.run()
    except (LeaseLost, RowMissing, ConcurrentTransition) as error:
        if is_in_the_way(lane, error) or connections[lane.using].needs_rollback:  # then it is of the whole transaction
            raise
        return False
    if outcome.take:
        events: models.QuerySet[Any] = models.QuerySet(lane.bound.event_model, using=lane.using)
        taken = events.filter(instance_id=lease.key, number__in=outcome.take, taken_by=None)
        taken.update(taken_by=record.sequence)
    return True


def has_record(lane: Lane, outcomes: Sequence[Transitioned]) -> set[Any]:
    """Find moves that have a record under the id they were sent with."""
    sent = {outcome.record_id: outcome.lease.key for outcome in outcomes if outcome.record_id is not None}
    records: models.QuerySet[Any] = models.QuerySet(lane.bound.transition_model, using=lane.using)
    found = records.filter(pk__in=list(sent)).values_list("pk", flat=True) if sent else ()
    return {sent[record_id] for record_id in found}


def stay(lane: Lane, outcomes: Sequence[Stayed]) -> set[Any]:
    """Write what became of rows that stay in their state."""
    return _stay(lane, outcomes, other_fields(lane, outcomes)) if outcomes[0].update else _stay(lane, outcomes)


def _stay(lane: Lane, outcomes: Sequence[Stayed], *others: Any) -> set[Any]:
    rows = {
        **compared(outcomes),
        "failures": [outcome.failures for outcome in outcomes],
        "error": [outcome.error for outcome in outcomes],
        "next_at": [outcome.delay for outcome in outcomes],
        "horizon": [outcome.horizon for outcome in outcomes],
    }
    if lane.bound.records_attempts:
        rows |= tries_of(outcomes)
    if "inbox" in lane.bound.features:
        rows["seen"] = [outcome.seen for outcome in outcomes]
    stayed = _noted(outcomes, lane.stay(rows, *others))
    if lane.waits:
        asleep = [each.lease for each in outcomes if each.delay is None and not each.error]
        tell_waits(lane, [lease for lease in asleep if lease.key in stayed])
    return stayed


def _noted(outcomes: Sequence[RowOutcome], written: Written) -> Written:
    """Note on outcomes which of their rows are due at once although they were to sleep."""
    if written.woken:
        for outcome in outcomes:
            outcome.is_woken = outcome.lease.key in written.woken
    return written


def stay_each(lane: Lane, outcomes: Sequence[Stayed]) -> set[Any]:
    """Write rows one by one that stay, with a `save()` of the fields of their `update=`."""
    return {outcome.lease.key for outcome in outcomes if lock(outcome.lease) and stay_one(outcome)}


def stay_one(outcome: Stayed) -> bool:
    """Write one locked row, loaded anew as for a move; False if it is no longer ours."""
    lane = outcome.lease.lane
    if not _stay(lane, [outcome]):
        return False
    row: Any = row_of(outcome.lease).get()
    updates = Updates(lane.bound.model, row, outcome.update)
    for field, value in updates.given.items():
        setattr(row, field.name, value)
    row.save(update_fields=updates.names, using=lane.using)
    return True


def has_stayed(lane: Lane, outcomes: Sequence[RowOutcome]) -> set[Any]:
    names = lane.bound.names
    return {
        each.lease.key
        for each in outcomes
        if _was_left(each.lease, {names.failures: each.failures, names.error: each.error, names.crashes: 0})
    }


def release(lane: Lane, outcomes: Sequence[RowOutcome]) -> set[Any]:
    return lane.release(*pairs(outcomes))


def unclaim(lane: Lane, outcomes: Sequence[RowOutcome]) -> set[Any]:
    return lane.unclaim(*pairs(outcomes))


def was_released(lane: Lane, outcomes: Sequence[RowOutcome]) -> set[Any]:
    return {outcome.lease.key for outcome in outcomes if _was_left(outcome.lease, {})}


def _was_left(lease: Lease, columns: dict[str, Any]) -> bool:
    """Say whether a row is as we left it when we ended its lease."""
    names = lease.lane.bound.names
    ended = {names.lease_token: lease.token + 1, names.status: lease.status, names.lease_owner: ""}
    return row_of(lease).filter(**ended, **columns).exists()


def delete(lane: Lane, outcomes: Sequence[RowOutcome]) -> set[Any]:
    """Delete rows through the ORM, with what hangs on them: those that are still ours and in their state."""
    # Extending the leases locks the rows.
    ours = lane.beat(*pairs(outcomes), DELETING_SECONDS)
    rows: models.QuerySet[Any] = models.QuerySet(lane.bound.model, using=lane.using).filter(pk__in=ours)
    rows.delete()
    if ours and rows.exists():
        raise NotWritten
    return ours


def was_deleted(lane: Lane, outcomes: Sequence[RowOutcome]) -> set[Any]:
    return {outcome.lease.key for outcome in outcomes if not row_of(outcome.lease).exists()}


def confirm(lane: Lane, outcomes: Sequence[RowOutcome]) -> set[Any]:
    """Write nothing: the handlers have moved the rows, if there is a record of it. A handler may move its row in a
    transaction that is then undone, and the instance does not learn of that."""
    moves = {outcome.lease.key: outcome.lease.sequence + 1 for outcome in outcomes}
    records: Any = models.QuerySet(lane.bound.transition_model, using=lane.using)
    found = records.filter(instance_id__in=[*moves], sequence__in={*moves.values()})
    recorded = set(found.values_list("instance_id", "sequence"))
    return {key for key, sequence in moves.items() if (key, sequence) in recorded}


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """One way to write outcomes of a lane, together."""

    run: Callable[[Lane, Sequence[Any]], set[Any]]
    #: Which of those that were sent before were written, as far as that can be seen.
    find: Callable[[Lane, Sequence[Any]], set[Any]]
    #: The thread that writes so: what may take long has others than what is quick.
    role: str = "committer"
    #: Whether it takes more than one statement, and how many rows it takes at once: of those that are deleted, what hangs on
    #: them is not known beforehand.
    is_transaction: bool = False
    most: int | None = None
    #: Whether rows may go on after it under the claim that they have.
    goes_on: bool = False


#: The threads that write, and those that only a process has whose rows run ahead. These share their work: a row waits for its
#: write there, so that with one alone nothing would be written while rows are read and run.
ROLES, ADVANCERS = ("committer", "writer", "housekeeper"), ("advancer", "second advancer")
#: Those that take their time for each row.
ONE_BY_ONE = ("writer", "housekeeper")

ENTER = Write(enter, has_record)
#: Of machines that run ahead: where rows that go on wait for the write, what ends does not hold them up, nor they it.
ENTER_DUE = Write(enter, has_record, ADVANCERS[0], goes_on=True)
ENTER_TRIED = Write(enter_tried, has_record)
ENTER_EACH = Write(enter_each, has_record, "writer", is_transaction=True, most=100)
#: What runs code of the project's is written alone, so that a receiver that raises undoes nobody else's move.
ENTER_ALONE = Write(enter_each, has_record, "writer", is_transaction=True, most=1)
STAY = Write(stay, has_stayed)
STAY_EACH = Write(stay_each, has_stayed, "writer", is_transaction=True, most=100)
STAY_ALONE = Write(stay_each, has_stayed, "writer", is_transaction=True, most=1)
RELEASE = Write(release, was_released)
UNCLAIM = Write(unclaim, was_released)
DELETE = Write(delete, was_deleted, "housekeeper", is_transaction=True, most=100)
CONFIRM = Write(confirm, confirm)


def write_now(outcome: RowOutcome) -> bool:
    """Write one outcome in the transaction that is open, and say whether the row was still ours."""
    lane = outcome.lease.lane
    is_written = outcome.lease.key in outcome.way(lane.is_watched).run(lane, [outcome])
    if is_written and outcome.due_state is not None:
        wake(lane.bound, lane.connection, outcome.due_state, outcome.due_in, outcome.queue)
    return is_written


def lock(lease: Lease) -> bool:
    """Lock a row until the transaction ends, if it is still ours and nobody else has it locked."""
    return lease.lane.lock(lease.key, lease.token)


def row_of(lease: Lease) -> models.QuerySet[Any]:
    rows: models.QuerySet[Any] = models.QuerySet(lease.lane.bound.model, using=lease.lane.using)
    return rows.filter(pk=lease.key)


def compared(outcomes: Sequence[RowOutcome]) -> dict[str, list[Any]]:
    leases = [outcome.lease for outcome in outcomes]
    return {
        "key": [lease.key for lease in leases],
        "was_lease_token": [lease.token for lease in leases],
        "was_status": [lease.status for lease in leases],
    }


def pairs(outcomes: Sequence[RowOutcome]) -> tuple[list[Any], list[int]]:
    return [outcome.lease.key for outcome in outcomes], [outcome.lease.token for outcome in outcomes]


def duplicate_behind(outcome: RowOutcome, error: BaseException) -> DuplicateLiveRow | None:
    """Return what says which row has the key that an outcome would have given its own, or a child; None if it is another matter."""
    lane, key = outcome.lease.lane, outcome.lease.lane.bound.key
    refusal = None
    # What cannot be asked now changes nothing: the error stands, and what is written in place of the outcome meets the same trouble.
    with suppress(DatabaseError, InterfaceError):
        refusal = _duplicate_among(getattr(outcome, "children", ()), error, lane.using)
        if refusal is None and key is not None and key.is_behind(error):
            row = row_of(outcome.lease).first()
            refusal = None if row is None else key.refusal(row, error, lane.using, outcome.update or {})
    return None if refusal is None else refusal.with_traceback(error.__traceback__)


def _duplicate_among(children: Sequence[models.Model], error: BaseException, using: str) -> DuplicateLiveRow | None:
    for model in dict.fromkeys(type(child) for child in children):
        for bound in machines_of(model).values():
            alike = [child for child in children if type(child) is model]
            refusal = None if bound.key is None else bound.key.refusal_among(alike, error, using)
            if refusal is not None:
                return refusal
    return None


def is_in_the_way(lane: Lane, error: BaseException) -> bool:
    """Say whether the database gave up because of somebody else or for want of time. Nothing is wrong with the row, and the
    next try may succeed."""
    return is_conflict(lane, error) or is_timeout(error)


def is_conflict(lane: Lane, error: BaseException) -> bool:
    """Say whether somebody else was in the way: a lock, a deadlock, a change that could not be serialised, or a pooler that
    has forgotten a statement."""
    cause = error.__cause__ if isinstance(error, ConcurrentTransition) else error
    if not isinstance(cause, DatabaseError):
        return False
    return lane.dialect.is_conflict(cause) or is_lost_statement(lane, cause)


def is_lost_statement(lane: Lane, error: BaseException) -> bool:
    """Say whether nothing was run, because the server no longer has what was prepared, and the next try will not ask."""
    return lane.dialect.is_statement_lost(error)
