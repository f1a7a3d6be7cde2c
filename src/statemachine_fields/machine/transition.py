"""The write path: judge, move, record. Judged by the row and not by the instance; both written, or neither.

First look: the instance says where the row is. If the move is legal from there, compare and set; on PostgreSQL that is one
statement and all there is. Second look, if the comparison missed or the instance cannot be trusted: lock the row,
judge by what it says, and move it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.db import OperationalError, connections, models, router, transaction
from django.db.models.fields import NOT_PROVIDED
from django.db.models.signals import post_save, pre_save
from django.db.transaction import TransactionManagementError

from statemachine_fields.db.dialect import Move, Moved, Row, dialect_for
from statemachine_fields.exceptions import (
    ConcurrentTransition,
    InvalidStateTransition,
    RowMissing,
    StateMachineError,
    TransitionBlocked,
    UnknownState,
)
from statemachine_fields.machine.context import described, with_context
from statemachine_fields.machine.fields import Pending, row_label
from statemachine_fields.machine.guards import find_blockers
from statemachine_fields.machine.ids import uuid7
from statemachine_fields.machine.metadata import loaded, read_metadata
from statemachine_fields.machine.updates import Updates, is_expression, read_update
from statemachine_fields.signals import post_transition, pre_transition, transition_committed, transition_rejected

if TYPE_CHECKING:
    from statemachine_fields.machine.audit import StateTransition
    from statemachine_fields.machine.bound import BoundMachine

M = TypeVar("M", bound=models.Model)

logger = logging.getLogger("statemachine_fields.machine")


class Transitioner(Generic[M]):
    """One attempt to move one row."""

    def __init__(
        self,
        bound: BoundMachine[M],
        instance: M,
        to_status: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        record: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        expected: str | int | None = None,
        user: Any = None,
        forced: bool = False,
    ) -> None:
        self.bound = bound
        self.instance = instance
        self.to_status = to_status
        self.expected = expected
        self.user = user
        self.forced = forced
        self.using = router.db_for_write(type(instance), instance=instance)
        self.connection = connections[self.using]
        self.dialect = dialect_for(self.connection)
        read_metadata(metadata)  # complains of what the caller passed, not of what surrounds it
        facts = metadata or {}
        if user is not None and "actor" not in facts:
            facts = {"actor": described(user), **facts}
        self.metadata = read_metadata(with_context(facts))
        self.record = bound.read_record(record)
        self.updates = Updates(bound.model, instance, read_update(type(instance), update))

    def run(self, *, save: bool = True) -> StateTransition[M]:
        """Move the row and return the record, or raise and leave row and instance as they were."""
        try:
            self._refuse_the_impossible(save)
            with self._instance_restored_on_error():
                self.updates.assign()
                return self._attempt(save)
        except (InvalidStateTransition, ConcurrentTransition) as error:
            transition_rejected.send_robust(**self._told(getattr(error, "from_status", None)), error=error)
            raise

    def _refuse_the_impossible(self, save: bool) -> None:
        """Raise what can be told without looking at the row."""
        for state in (self.to_status, self.expected if isinstance(self.expected, str) else self.to_status):
            if state not in self.bound.graph:
                current = getattr(self.instance, self.bound.names.status)
                allowed = self.bound.graph.targets(current)
                known = list(self.bound.graph.states)
                raise UnknownState(row_label(self.instance), state, known, current, allowed)
        if self.instance._state.adding or self.instance.pk is None:
            raise RowMissing(row_label(self.instance), saved=False)
        if not save and not self.connection.in_atomic_block:
            raise TransactionManagementError(
                f"{row_label(self.instance)}: transition_to(save=False) writes the record now and leaves the status to "
                "your own save(). Wrap both in transaction.atomic(), so that they succeed or fail together."
            )

    def _attempt(self, save: bool) -> StateTransition[M]:
        model = type(self.instance)
        by_save = save and runs_user_code(model)
        ours, left = ({}, {}) if by_save or not save else self.updates.split()
        extras = self.bound.read_extras(self.record, self.connection)
        shape = self.bound.shape(
            moves=save and not by_save,
            records=not has_receivers(self.bound.transition_model),
            compares_sequence=isinstance(self.expected, int),
            updates=tuple(field.column for field in ours),
        )
        values = tuple(field.get_db_prep_save(value, self.connection) for field, value in ours.items())
        written = _Written(self, shape, values, extras, left, by_save, save)
        watched = pre_transition.has_listeners(self.bound.model) or post_transition.has_listeners(self.bound.model)
        alone = self.dialect.is_one_statement and shape.records and not (left or by_save or watched)
        tried = False
        if alone:
            moved = self._compare_and_set(written)
            if moved is not None:
                return written.conclude(moved)
            tried = True
        # Code of the user's may raise after the record is written, and the caller may catch that and go on.
        runs_code = by_save or watched or bool(self.bound.guards)
        with transaction.atomic(using=self.using, savepoint=runs_code):
            outcome = self._in_transaction(written, tried)
        if isinstance(outcome, StateMachineError):  # raised out here, so that a caller's transaction stays usable
            raise outcome
        return outcome

    def _in_transaction(self, written: _Written[M], tried: bool) -> StateTransition[M] | StateMachineError:
        moved = None
        if not tried and not pre_transition.has_listeners(self.bound.model):  # they are told once, of a locked row
            moved = self._compare_and_set(written)
        if moved is None:
            row = self._guarded(lambda: self.dialect.lock(self.connection, self.bound.table, self._key))
            refusal = self._judge(row)
            if refusal is not None:
                return refusal
            assert row is not None  # noqa: S101 - for the type checker: a missing row was refused
            pre_transition.send(**self._told(row.status))
            moved = written.move(row.status)
            if moved is None:  # only a trigger of the database's own could bring this about
                return ConcurrentTransition(row_label(self.instance), self.to_status, self.expected, *row)
        return written.conclude(moved)

    def _compare_and_set(self, written: _Written[M]) -> Moved | None:
        """Move the row if it is where the instance says, and may go from there; None if that remains to be seen."""
        believed = self.expected if isinstance(self.expected, str) else self._believed_status()
        if believed is None or (not self.forced and self._blockers(believed)):
            return None
        return written.move(believed)

    def _believed_status(self) -> str | None:
        if self.bound.field.assignments.made(self.instance):
            return None
        status: str | None = vars(self.instance).get(self.bound.names.status)
        return status

    def _judge(self, row: Row | None) -> StateMachineError | None:
        """Say why the locked row must not move, with the instance brought up to it."""
        label = row_label(self.instance)
        if row is None:
            return RowMissing(label, saved=True)
        if self.expected is not None and self.expected not in (row.status, row.sequence):
            return ConcurrentTransition(label, self.to_status, self.expected, row.status, row.sequence)
        self.bound.field.assignments.write(self.instance, row.status)
        vars(self.instance)[self.bound.names.sequence] = row.sequence
        if self.forced:
            return None
        allowed = self.bound.graph.targets(row.status)
        if self.to_status not in allowed:
            return InvalidStateTransition(label, row.status, self.to_status, allowed)
        blockers = self._blockers(row.status)
        return TransitionBlocked(label, row.status, self.to_status, allowed, blockers) if blockers else None

    def _blockers(self, from_status: str) -> list[Any]:
        return find_blockers(self.bound, self.instance, from_status, self.to_status, self.user)

    def _guarded(self, ask: Any) -> Any:
        """Ask the database; a conflict it gives up on is told as ConcurrentTransition."""
        try:
            with transaction.mark_for_rollback_on_error(using=self.using):
                return ask()
        except OperationalError as error:
            if not self.dialect.is_conflict(error):
                raise
            raise ConcurrentTransition(row_label(self.instance), self.to_status, self.expected, None, None) from error

    @property
    def _key(self) -> Any:
        return self.bound.key_of(self.instance)

    def _told(self, from_status: str | None) -> dict[str, Any]:
        """Return what every signal says."""
        return {
            "sender": self.bound.model,
            "machine": self.bound,
            "instance": self.instance,
            "from_status": from_status,
            "to_status": self.to_status,
            "metadata": loaded(self.metadata),
            "using": self.using,
        }

    @contextmanager
    def _instance_restored_on_error(self) -> Iterator[None]:
        instance, assignments = self.instance, self.bound.field.assignments
        names = [*self.bound.names.columns, *(field.attname for field in self.updates.fields)]
        marks = [assignments.was, assignments.pending]
        places = ((vars(instance), names), (vars(instance._state), marks))
        before = [(place, name, place.get(name, NOT_PROVIDED)) for place, part in places for name in part]
        related = [field.name for field in self.updates.fields if field.is_relation]
        cache = instance._state.fields_cache if related else {}
        before += [(cache, name, cache.get(name, NOT_PROVIDED)) for name in related]
        try:
            yield
        except BaseException:
            for place, name, value in before:
                if value is NOT_PROVIDED:
                    place.pop(name, None)
                else:
                    place[name] = value
            raise


class _Written(Generic[M]):
    """What one attempt writes, once it is known from where."""

    def __init__(
        self,
        attempt: Transitioner[M],
        shape: Any,
        values: tuple[Any, ...],
        extras: Mapping[str, Any],
        left: dict[str, Any],
        by_save: bool,
        save: bool,
    ) -> None:
        self.attempt = attempt
        self.shape = shape
        self.values = values
        self.extras = extras
        self.left = left
        self.by_save = by_save
        self.save = save
        self.record_id = uuid7()
        self.from_status = ""

    def move(self, from_status: str) -> Moved | None:
        attempt = self.attempt
        self.from_status = from_status
        move = Move(
            key=attempt._key,
            from_status=from_status,
            to_status=attempt.to_status,
            record_id=self.record_id,
            metadata=attempt.metadata,
            sequence=attempt.expected if isinstance(attempt.expected, int) else None,
            updates=self.values,
            extras=tuple(self.extras.values()),
        )
        moved: Moved | None = attempt._guarded(lambda: attempt.dialect.move(attempt.connection, self.shape, move))
        return moved

    def conclude(self, moved: Moved) -> StateTransition[M]:
        """Bring the instance up to the row, let others write and know, and return the record."""
        attempt = self.attempt
        bound, instance = attempt.bound, attempt.instance
        transition = self._record(moved)
        if not self.shape.records:
            transition.insert(attempt.using)
        vars(instance).update({bound.names.sequence: moved.sequence, bound.names.changed_at: moved.changed_at})
        pending = None if self.shape.moves else Pending(attempt.to_status, moved.sequence, self.record_id)
        bound.field.assignments.write(instance, attempt.to_status, pending)
        if self.left:
            self._write_left()
        if pending is not None:
            self._settle(pending) if self.by_save else self._watch(pending)
        if post_transition.has_listeners(bound.model):
            post_transition.send(**attempt._told(self.from_status), transition=transition)
        if transition_committed.has_listeners(bound.model):
            told = attempt._told(self.from_status)
            transaction.on_commit(lambda: transition_committed.send(**told, transition=transition), using=attempt.using)
        return transition

    def _record(self, moved: Moved) -> StateTransition[M]:
        attempt = self.attempt
        return attempt.bound.load_record(
            attempt.instance,
            attempt.using,
            adding=not self.shape.records,
            values={
                "id": self.record_id,
                "instance_id": attempt._key,
                "from_status": self.from_status,
                "to_status": attempt.to_status,
                "transitioned_at": moved.changed_at,
                "metadata": loaded(attempt.metadata),
                "sequence": moved.sequence,
            },
            record=attempt.record,
        )

    def _write_left(self) -> None:
        """Let Django write what our statement could not carry, and read back what came of expressions."""
        attempt = self.attempt
        rows = type(attempt.instance)._base_manager.using(attempt.using).filter(pk=attempt.instance.pk)
        rows.update(**self.left)
        computed = [name for name, value in self.left.items() if is_expression(value)]
        if computed:
            attempt.instance.refresh_from_db(using=attempt.using, fields=computed)

    def _settle(self, pending: Pending) -> None:
        """Let the model's own save() and its receivers write the status."""
        attempt = self.attempt
        attempt.instance.save(update_fields=[attempt.bound.names.status, *attempt.updates.names])
        if not pending.settled:
            raise StateMachineError(
                f"{row_label(attempt.instance)}: save() returned without saving, so the move to "
                f"{attempt.to_status!r} was undone. Let save() of the model call super().save() with the update_fields "
                "it is given."
            )
        attempt.bound.field.assignments.write(attempt.instance, attempt.to_status)

    def _watch(self, pending: Pending) -> None:
        """Say so if the transaction commits the record of a move that nobody saved."""
        label = row_label(self.attempt.instance)

        def complain_if_unsaved() -> None:
            if not pending.settled:
                logger.error(
                    "%s: the move to %r was recorded with save=False and never saved, so the row is still in its old "
                    "state and transition %d has no effect. Call save() in the same transaction as transition_to().",
                    label,
                    pending.status,
                    pending.sequence,
                )

        transaction.on_commit(complain_if_unsaved, using=self.attempt.using)


def runs_user_code(model: type[models.Model]) -> bool:
    """Say whether saving an instance runs anything but Django and us."""
    return (
        model.save is not models.Model.save
        or inspect.unwrap(model.save_base) is not models.Model.save_base
        or has_receivers(model)
    )


def has_receivers(model: type[models.Model]) -> bool:
    return pre_save.has_listeners(model) or post_save.has_listeners(model)
