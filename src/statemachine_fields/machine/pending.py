"""A status that is recorded first and left to a `save()`: of the caller's with `save=False`, else of the model's own.

Whether it has reached the row is asked of the row. That a `save()` has returned says little: it may have swallowed an error
and rolled back a savepoint, gone to another database, or met a receiver that had moved the row elsewhere.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import transaction

from statemachine_fields.db.expressions import PendingStatus
from statemachine_fields.db.rows import all_rows
from statemachine_fields.exceptions import StateMachineError

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

logger = logging.getLogger("statemachine_fields.machine")


@dataclass(slots=True)
class Pending:
    """What a `save()` is to write, and whether one was about to."""

    key: Any
    status: str
    sequence: int
    record_id: uuid.UUID
    was_saved: bool = False

    def to_save(self, bound: Binding[Any]) -> PendingStatus:
        """Return what a `save()` writes that is about to."""
        self.was_saved = True
        record_pk = bound.transition_model._meta.pk
        return PendingStatus(bound.field, bound.names.sequence, self.status, self.sequence, record_pk, self.record_id)

    def has_reached_row(self, bound: Binding[Any], using: str) -> bool:
        """Say whether the row is in that state, or has left it again. Asks the database."""
        rows = all_rows(bound.model, using).filter(pk=self.key)
        return self.is_reached(rows.values_list(bound.names.status, bound.names.sequence).first(), bound, using)

    def is_reached(self, found: tuple[str, int] | None, bound: Binding[Any], using: str) -> bool:
        """Say the same of a row whose status and counter were read already. Asks the database if it has moved on."""
        if found is None:  # deleted since, as a receiver may do with what is done
            return self.was_saved
        status, sequence = found
        if sequence == self.sequence:
            return bool(status == self.status)
        records = all_rows(bound.transition_model, using)
        left = records.filter(instance_id=self.key, sequence=self.sequence + 1).values_list("from_status", flat=True)
        return bool(left.first() == self.status)


def not_saved(pending: Pending, label: str) -> StateMachineError:
    """Return the error for a model whose own `save()` left the row where it was."""
    if not pending.was_saved:
        return StateMachineError(
            f"{label}: save() returned without saving, so the move to {pending.status!r} was "
            "undone. Let save() of the model call super().save() with the update_fields it is given."
        )
    return StateMachineError(
        f"{label}: save() returned, but the row did not get to {pending.status!r}, so the move was undone. Either save() of "
        "the model or a receiver swallowed an error and what it had saved was rolled back, or it saved in another database, "
        "or a receiver of pre_save moved the row. Let errors pass, and move the row on in a receiver of post_save."
    )


def undone(label: str, to_status: str) -> StateMachineError:
    """Return the error for a move whose transaction somebody marked for rollback."""
    return StateMachineError(
        f"{label}: a receiver, or save() of the model, marked the transaction for rollback, or swallowed an error of the "
        f"database that did, so the move to {to_status!r} was undone. Let errors pass, or give what may fail an atomic() of "
        "its own."
    )


def watch(pending: Pending, bound: Binding[Any], label: str, using: str) -> None:
    """Say so if the transaction commits the record of a move that the caller did not save."""

    def complain_if_unsaved() -> None:
        if not pending.has_reached_row(bound, using):
            logger.error(
                "%s: the move to %r was recorded with save=False and never saved, so the row is still in its old "
                "state and transition %d has no effect. Call save() in the same transaction as transition_to().",
                label,
                pending.status,
                pending.sequence,
            )

    transaction.on_commit(complain_if_unsaved, using=using, robust=True)  # it is committed: nothing may fail now
