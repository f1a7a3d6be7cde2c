"""`cancel_to`: what becomes of unfinished children whose parent has left the state in which it waited for them.

However it left, the statement that moved it has left a mark in `<prefix>_cancels`. Workers find marked rows after that is committed,
move the children, and take the mark away. The row is locked meanwhile, so that it cannot come back to the state unseen; and who dies
on the way leaves the mark to the next.
"""

from __future__ import annotations

import logging
from typing import Any

from django.db import transaction

from statemachine_fields.db.batches import skip_locked
from statemachine_fields.db.dialect import is_connection_error
from statemachine_fields.db.effects import CANCELLED
from statemachine_fields.db.rows import all_rows
from statemachine_fields.machine.bulk import BulkTransitioner
from statemachine_fields.machine.joins import Join
from statemachine_fields.worker.digest import Digest, cause_of
from statemachine_fields.worker.joining import joins_of
from statemachine_fields.worker.lease import Lane

#: How many parents are asked for at once, and how many children of one are moved in one transaction.
MOST, BATCH = 100, 1000


def cancel_left_behind(lane: Lane, digest: Digest) -> int:
    """Cancel the unfinished children of parents that have left, and return of how many parents all that can be done is done.

    A child whose own code raises hinders neither other children nor other parents. Its parent keeps the mark, so that it is tried again.
    """
    bound = lane.bound
    if "cancels" not in bound.features:
        return 0
    marked = all_rows(bound.model, lane.using).filter(**{bound.names.cancels: True}).order_by("pk")
    done = 0
    keys = list(marked.values_list("pk", flat=True)[:MOST])
    while keys:
        done += sum(Abandoned(lane, key, digest).cancel() for key in keys)
        keys = list(marked.filter(pk__gt=keys[-1]).values_list("pk", flat=True)[:MOST])
    return done


class Abandoned:
    """The children that one parent has left behind."""

    def __init__(self, lane: Lane, key: Any, digest: Digest) -> None:
        self.lane = lane
        self.key = key
        self.digest = digest
        #: Whether something was raised, and is to be tried again.
        self.is_hindered = False

    def cancel(self) -> bool:
        """Cancel them, and say whether there is no more to be done."""
        after: tuple[int, Any] | None = None
        try:
            while True:
                after, is_done = self._cancel_some(after)
                if after is None:
                    return is_done
        except Exception as error:
            if is_connection_error(error):
                raise
            self._tell_of(error, f"{self.lane.bound.model._meta.label} pk={self.key}")
            return False

    def _cancel_some(self, after: tuple[int, Any] | None) -> tuple[tuple[int, Any] | None, bool]:
        """Cancel a batch, and return where to go on, which is nowhere if that was the last one, and whether the mark is taken away.

        :param after: which of the parent's joins it is at, and after which child.
        """
        bound, using = self.lane.bound, self.lane.using
        row = all_rows(bound.model, using).filter(**{"pk": self.key, bound.names.cancels: True})
        with transaction.atomic(using=using):
            parent = skip_locked(row.order_by("pk")).first()
            if parent is None:  # somebody else is at it
                return None, False
            joins = _left(self.lane, parent)
            number, last = after or (0, None)
            while number < len(joins):
                last = self._cancel_batch(joins[number], parent, last)
                if last is not None:
                    return (number, last), False
                number += 1
            if not self.is_hindered:
                row.update(**CANCELLED.as_update(bound.names, bound.table.columns))
        return None, not self.is_hindered

    def _cancel_batch(self, join: Join, parent: Any, after: Any) -> Any:
        """Move some children of a parent, and return the last one's key; None if there are no more."""
        using = self.lane.using
        children = join.children(using).filter(join.unfinished, **{join.field.attname: join.value_of(parent)})
        rest = (children if after is None else children.filter(pk__gt=after)).order_by("pk")
        keys = list(rest.values_list("pk", flat=True)[:BATCH])
        if not keys:
            return None
        try:
            self._move(join, parent, keys)
        except Exception as error:
            if is_connection_error(error):
                raise
            for key in keys:  # one of them has raised, and the others need not suffer from it
                self._move_one(join, parent, key)
        return keys[-1] if len(keys) == BATCH else None

    def _move_one(self, join: Join, parent: Any, key: Any) -> None:
        try:
            self._move(join, parent, [key])
        except Exception as error:
            if is_connection_error(error):
                raise
            self.is_hindered = True
            self._tell_of(error, f"{join.model._meta.label} pk={key}")

    def _move(self, join: Join, parent: Any, keys: list[Any]) -> None:
        """Move children, all of them that may be moved or, if something is raised, none."""
        assert join.until.cancel_to is not None  # noqa: S101 - _left() has seen to it
        using, label = self.lane.using, f"{parent._meta.label} pk={parent.pk}"
        facts = {"cancelled_by": label, "left": join.state}
        rows = all_rows(join.model, using).filter(pk__in=keys)
        with transaction.atomic(using=using):
            result = BulkTransitioner(join.child, rows, join.until.cancel_to, facts, BATCH).run()
        for refusal in result.refusals:
            text = "%s has left %r, and its child %s pk=%s stays in %r: %s"
            values = (label, join.state, join.model._meta.label, refusal.pk, refusal.status, refusal.reason)
            self.digest.log(("cancel", str(join), refusal.status), logging.WARNING, text, *values)

    def _tell_of(self, error: Exception, label: str) -> None:
        text = "%s: a row that its parent has left behind could not be cancelled, which is tried again later."
        kind = ("not cancelled", str(self.lane), cause_of(error))
        self.digest.log(kind, logging.ERROR, text, label, error=error)


def _left(lane: Lane, parent: Any) -> list[Join]:
    """Return the joins that a parent has left, by its records: it may be in one of them again, or never have been in another."""
    bound = lane.bound
    status = getattr(parent, bound.names.status)
    records = all_rows(bound.transition_model, lane.using).filter(instance_id=bound.key_of(parent))
    left = set(records.order_by().values_list("from_status", flat=True).distinct())
    joins = (join for join in joins_of(lane) if join.until.cancel_to is not None)
    return [join for join in joins if join.state != status and join.state in left]
