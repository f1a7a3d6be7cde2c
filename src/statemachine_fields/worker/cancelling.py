"""`cancel_to`: what becomes of unfinished children whose parent has left the state in which it waited for them.

However it left, the statement that moved it has left a mark in `<prefix>_cancels`: its number. Workers find marked rows after that is
committed, read from the records which states were left since then, and when; move the children that were there by then, and take the
mark away. The row is locked meanwhile, so that it cannot come back to the state unseen; and who dies on the way leaves the mark to the
next.
"""

from __future__ import annotations

import datetime
import logging
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from statemachine_fields.db.batches import skip_locked
from statemachine_fields.db.dialect import is_connection_error
from statemachine_fields.db.effects import CANCELLED
from statemachine_fields.db.rows import all_rows
from statemachine_fields.machine.bulk import BulkTransitioner
from statemachine_fields.machine.joins import Join
from statemachine_fields.machine.relations import resolve
from statemachine_fields.worker.digest import Digest, cause_of
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
    marked = all_rows(bound.model, lane.using).filter(**{f"{bound.names.cancels}__gt": 0}).order_by("pk")
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
        #: After which child to go on; None after the last. The parent may move between two batches.
        self.after: dict[Departure, Any] = {}

    def cancel(self) -> bool:
        """Cancel them, and say whether there is no more to be done."""
        try:
            while True:
                is_done = self._cancel_some()
                if is_done is not None:
                    return is_done
        except Exception as error:
            if is_connection_error(error):
                raise
            self._tell_of(error, f"{self.lane.bound.model._meta.label} pk={self.key}")
            return False

    def _cancel_some(self) -> bool | None:
        """Cancel a batch, and return None if there are more, or else whether the mark is taken away."""
        bound, using = self.lane.bound, self.lane.using
        row = all_rows(bound.model, using).filter(**{"pk": self.key, f"{bound.names.cancels}__gt": 0})
        with transaction.atomic(using=using):
            parent = skip_locked(row.order_by("pk")).first()
            if parent is None:  # somebody else is at it
                return False
            for left in _departures(self.lane, parent):
                last = self.after.get(left)
                if last is not None or left not in self.after:
                    self.after[left] = last = self._cancel_batch(left, parent, last)
                if last is not None:
                    return None
            if not self.is_hindered:
                row.update(**CANCELLED.as_update(bound.names, bound.table.columns))
        return not self.is_hindered

    def _cancel_batch(self, left: Departure, parent: Any, after: Any) -> Any:
        """Move some children of a parent, and return the last one's key; None if there are no more."""
        using, join = self.lane.using, left.join
        children = join.children(using).filter(join.unfinished, **{join.field.attname: join.value_of(parent)})
        children = children.filter(left.was_there(using))
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
        assert join.until.cancel_to is not None  # noqa: S101 - _departures() has seen to it
        using, label = self.lane.using, f"{parent._meta.label} pk={parent.pk}"
        facts = {"cancelled_by": label, "left": join.state}
        rows = all_rows(join.model, using).filter(pk__in=keys)
        with transaction.atomic(using=using):
            result = BulkTransitioner(join.child, rows, join.until.cancel_to, facts, BATCH).run()
        for refusal in result.refusals:
            if refusal.status in join.terminal:  # it has ended meanwhile
                continue
            text = "%s has left %r, and its child %s pk=%s stays in %r: %s"
            values = (label, join.state, join.model._meta.label, refusal.pk, refusal.status, refusal.reason)
            self.digest.log(("cancel", str(join), refusal.status), logging.WARNING, text, *values)

    def _tell_of(self, error: Exception, label: str) -> None:
        text = "%s: a row that its parent has left behind could not be cancelled, which is tried again later."
        kind = ("not cancelled", str(self.lane), cause_of(error))
        self.digest.log(kind, logging.ERROR, text, label, error=error)


@dataclass(frozen=True, slots=True)
class Departure:
    """The last time that a parent left a state in which it waited for children."""

    join: Join
    at: datetime.datetime
    #: Whether it has come since into another state in which it waits for the same ones.
    waits_again: bool

    def was_there(self, using: str) -> Q:
        """Return which children were there by then.

        A row does not say when it was made. It was there if something of it is older. If not, and it has never moved, or has a record of
        its beginning, it was made since. What is left are rows whose first move came since: one that the parent waits for again is
        not left behind, and any other is taken for old.
        """
        child = self.join.child
        names, records = child.names, all_rows(child.transition_model, using)
        own = records.filter(instance_id=OuterRef(child.key_name))
        is_old = Q(**{f"{names.changed_at}__lt": self.at}) | Q(Exists(own.filter(transitioned_at__lt=self.at)))
        if self.waits_again:
            return is_old
        return is_old | (Q(**{f"{names.sequence}__gt": 0}) & Q(~Exists(own.filter(from_status=""))))


def _departures(lane: Lane, parent: Any) -> list[Departure]:
    """Return which joins a parent has left since it was marked, by its records. It may be in one of them again."""
    bound = lane.bound
    status, first = getattr(parent, bound.names.status), getattr(parent, bound.names.cancels)
    records = all_rows(bound.transition_model, lane.using).filter(instance_id=bound.key_of(parent), sequence__gte=first)
    moves = list(records.order_by("sequence").values_list("from_status", "to_status", "transitioned_at"))
    joins = [resolve(bound, state) for state in bound.joined_states]  # also those of states that another queue serves
    found = []
    for join in joins:
        numbers = [number for number, (left, _to, _at) in enumerate(moves) if left == join.state]
        if join.until.cancel_to is not None and join.state != status and numbers:
            entered = {to for _left, to, _at in moves[numbers[-1] :]}
            waits_again = any(other.is_for_same(join) for other in joins if other.state in entered)
            found.append(Departure(join, moves[numbers[-1]][2], waits_again))
    return found
