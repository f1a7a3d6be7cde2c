"""The write path: judge, move, record. In one transaction, judged by the row and not by the instance."""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections, models, router, transaction
from django.db.models.fields import NOT_PROVIDED
from django.db.models.functions import Now
from django.db.models.signals import post_save, pre_save
from django.db.transaction import TransactionManagementError

from statemachine_fields.exceptions import InvalidStateTransition, RowMissing, StateMachineError, UnknownState
from statemachine_fields.machine.fields import Pending, row_label

if TYPE_CHECKING:
    from statemachine_fields.machine.audit import StateTransition
    from statemachine_fields.machine.bound import BoundMachine

M = TypeVar("M", bound=models.Model)

NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

logger = logging.getLogger("statemachine_fields.machine")


class Transitioner(Generic[M]):
    """One attempt to move one row."""

    def __init__(
        self,
        bound: BoundMachine[M],
        instance: M,
        to_status: str,
        metadata: Mapping[str, Any] | None,
        record: Mapping[str, Any] | None,
    ) -> None:
        self.bound = bound
        self.instance = instance
        self.to_status = to_status
        self.metadata = read_metadata(metadata)
        self.record = bound.read_record(record)
        self.using = router.db_for_write(type(instance), instance=instance)
        self.auto_now = [field for field in instance._meta.concrete_fields if getattr(field, "auto_now", False)]

    def run(self, *, save: bool) -> StateTransition[M]:
        """Move the row and return the record, or raise and leave row and instance as they were."""
        self._refuse_the_impossible(save)
        # User code may raise after the record is written, and the caller may catch that and go on.
        own_savepoint = save and self._runs_user_code
        with self._instance_restored_on_error():
            with transaction.atomic(using=self.using, savepoint=own_savepoint):
                outcome = self._move(self._lock(), save)
            if isinstance(outcome, StateMachineError):  # raised out here, so that a caller's transaction stays usable
                raise outcome
        return outcome

    def _move(self, from_status: str | None, save: bool) -> StateTransition[M] | StateMachineError:
        """Judge by the row's status, and write the move or return why not."""
        if from_status is None:
            return RowMissing(row_label(self.instance), saved=True)
        if not self.bound.graph.allows(from_status, self.to_status):
            allowed = self.bound.graph.targets(from_status)
            return InvalidStateTransition(row_label(self.instance), from_status, self.to_status, allowed)
        return self._write(from_status, save)

    def _refuse_the_impossible(self, save: bool) -> None:
        """Raise what can be told without looking at the row."""
        if self.to_status not in self.bound.graph:
            current = getattr(self.instance, self.bound.names.status)
            raise UnknownState(
                row_label(self.instance),
                self.to_status,
                list(self.bound.graph.states),
                current,
                self.bound.graph.targets(current),
            )
        if self.instance._state.adding or self.instance.pk is None:
            raise RowMissing(row_label(self.instance), saved=False)
        if not save and not connections[self.using].in_atomic_block:
            raise TransactionManagementError(
                f"{row_label(self.instance)}: transition_to(save=False) writes the record now and leaves the status to "
                "your own save(). Wrap both in transaction.atomic(), so that they succeed or fail together."
            )

    def _lock(self) -> str | None:
        """Lock the row until the transaction ends and return its status; None if it is gone."""
        rows = self._rows()
        features = connections[self.using].features
        if features.has_select_for_update:
            rows = rows.select_for_update(no_key=features.has_select_for_no_key_update)
        else:  # a write is the only lock there is, and it must come before the read
            rows.update(**{self.bound.names.sequence: models.F(self.bound.names.sequence)})
        return rows.values_list(self.bound.names.status, flat=True).first()

    def _write(self, from_status: str, save: bool) -> StateTransition[M]:
        names = self.bound.names
        direct = save and not self._runs_user_code
        changes: dict[str, Any] = {names.sequence: models.F(names.sequence) + 1, names.changed_at: Now()}
        if direct:
            changes[names.status] = self.to_status
            changes |= {field.name: field.pre_save(self.instance, False) for field in self.auto_now}
        type(self.instance)._base_manager.using(self.using).filter(pk=self.instance.pk).update(**changes)
        sequence, changed_at = self._rows().values_list(names.sequence, names.changed_at).get()
        transition = self.bound.build_record(
            instance=self.instance,
            from_status=from_status,
            to_status=self.to_status,
            transitioned_at=changed_at,
            metadata=self.metadata,
            sequence=sequence,
            **self.record,
        )
        transition.insert(self.using)
        vars(self.instance).update({names.sequence: sequence, names.changed_at: changed_at})
        pending = None if direct else Pending(self.to_status, sequence, transition.id)
        self.bound.field.assignments.write(self.instance, self.to_status, pending)
        if pending is not None:
            self._settle(pending) if save else self._watch(pending)
        return transition

    def _settle(self, pending: Pending) -> None:
        """Let the model's own save() and its receivers write the status."""
        self.instance.save(update_fields=[self.bound.names.status, *(field.name for field in self.auto_now)])
        if not pending.settled:
            raise StateMachineError(
                f"{row_label(self.instance)}: save() returned without saving, so the move to {self.to_status!r} was "
                "undone. Let save() of the model call super().save() with the update_fields it is given."
            )
        self.bound.field.assignments.write(self.instance, self.to_status)

    def _watch(self, pending: Pending) -> None:
        """Say so if the transaction commits the record of a move that nobody saved."""
        label = row_label(self.instance)

        def complain_if_unsaved() -> None:
            if not pending.settled:
                logger.error(
                    "%s: the move to %r was recorded with save=False and never saved, so the row is still in its old "
                    "state and transition %d has no effect. Call save() in the same transaction as transition_to().",
                    label,
                    pending.status,
                    pending.sequence,
                )

        transaction.on_commit(complain_if_unsaved, using=self.using)

    def _rows(self) -> models.QuerySet[M]:
        return self.bound.model._base_manager.using(self.using).filter(pk=self.bound.key_of(self.instance))

    @property
    def _runs_user_code(self) -> bool:
        """Say whether saving the instance runs anything but Django and us."""
        model = type(self.instance)
        return (
            model.save is not models.Model.save
            or inspect.unwrap(model.save_base) is not models.Model.save_base
            or pre_save.has_listeners(model)
            or post_save.has_listeners(model)
        )

    @contextmanager
    def _instance_restored_on_error(self) -> Iterator[None]:
        data, state = vars(self.instance), vars(self.instance._state)
        names = [*self.bound.names.columns, *(field.attname for field in self.auto_now)]
        marks = [self.bound.field.assignments.was, self.bound.field.assignments.pending]
        before = [
            (place, name, place.get(name, NOT_PROVIDED))
            for place, part in ((data, names), (state, marks))
            for name in part
        ]
        try:
            yield
        except BaseException:
            for place, name, value in before:
                if value is NOT_PROVIDED:
                    place.pop(name, None)
                else:
                    place[name] = value
            raise


def read_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return metadata as it will be read back from the database, or raise before anything is written."""
    if not metadata and (metadata is None or isinstance(metadata, Mapping)):
        return {}
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a dict, got {type(metadata).__name__}. Nothing was written.")
    try:
        text = json.dumps(dict(metadata), cls=DjangoJSONEncoder, allow_nan=False, ensure_ascii=False)
        text.encode()  # half of a surrogate pair is a Python string and no text
    except (TypeError, ValueError) as error:
        raise TypeError(f"metadata cannot be written as JSON: {error}. Nothing was written.") from error
    if NUL.search(text):
        raise TypeError("metadata holds a NUL character, which PostgreSQL cannot store. Nothing was written.")
    read: dict[str, Any] = json.loads(text)
    return read
