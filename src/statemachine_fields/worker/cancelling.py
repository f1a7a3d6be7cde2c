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
from statemachine_fields.db.effects import CANCELLED
from statemachine_fields.db.rows import all_rows
from statemachine_fields.machine.bulk import BulkTransitioner
from statemachine_fields.machine.joins import Join
from statemachine_fields.worker.digest import Digest
from statemachine_fields.worker.joining import joins_of
from statemachine_fields.worker.lease import Lane

#: How many parents are seen to in one turn, and how many children of one are moved in one transaction.
MOST, BATCH = 100, 1000


def cancel_left_behind(lane: Lane, digest: Digest) -> int:
    """Cancel the unfinished children of parents that have left, and return how many parents there were."""
    bound = lane.bound
    if "cancels" not in bound.features:
        return 0
    marked = all_rows(bound.model, lane.using).filter(**{bound.names.cancels: True})
    keys = list(marked.order_by("pk").values_list("pk", flat=True)[:MOST])
    for key in keys:
        after: Any = None
        while (after := _cancel_some(lane, key, after, digest)) is not None:
            pass
    return len(keys)


def _cancel_some(lane: Lane, key: Any, after: tuple[int, Any] | None, digest: Digest) -> tuple[int, Any] | None:
    """Cancel a batch of children of one parent, and return where to go on; None if there is no more to be done.

    :param after: which of its joins it is at, and after which child.
    """
    bound, using = lane.bound, lane.using
    row = all_rows(bound.model, using).filter(**{"pk": key, bound.names.cancels: True})
    with transaction.atomic(using=using):
        parent = skip_locked(row.order_by("pk")).first()
        if parent is None:  # somebody else is at it
            return None
        joins = _left(lane, parent)
        number, last = after or (0, None)
        while number < len(joins):
            last = _cancel_batch(joins[number], parent, using, last, digest)
            if last is not None:
                return number, last
            number += 1
        row.update(**CANCELLED.as_update(bound.names, bound.table.columns))
    return None


def _left(lane: Lane, parent: Any) -> list[Join]:
    """Return the joins that a parent has left, by its records: it may be in one of them again, or never have been in another."""
    bound = lane.bound
    status = getattr(parent, bound.names.status)
    records = all_rows(bound.transition_model, lane.using).filter(instance_id=bound.key_of(parent))
    left = set(records.order_by().values_list("from_status", flat=True).distinct())
    joins = (join for join in joins_of(lane) if join.until.cancel_to is not None)
    return [join for join in joins if join.state != status and join.state in left]


def _cancel_batch(join: Join, parent: Any, using: str, after: Any, digest: Digest) -> Any:
    """Move some children of a parent, and return the last one's key; None if there are no more."""
    assert join.until.cancel_to is not None  # noqa: S101 - _left() has seen to it
    children = join.children(using).filter(join.unfinished, **{join.field.attname: join.value_of(parent)})
    rest = (children if after is None else children.filter(pk__gt=after)).order_by("pk")
    keys = list(rest.values_list("pk", flat=True)[:BATCH])
    if not keys:
        return None
    label = f"{parent._meta.label} pk={parent.pk}"
    facts = {"cancelled_by": label, "left": join.state}
    rows = all_rows(join.model, using).filter(pk__in=keys)
    result = BulkTransitioner(join.child, rows, join.until.cancel_to, facts, BATCH).run()
    for refusal in result.refusals:
        text = "%s has left %r, and its child %s pk=%s stays in %r: %s"
        values = (label, join.state, join.model._meta.label, refusal.pk, refusal.status, refusal.reason)
        digest.log(("cancel", str(join), refusal.status), logging.WARNING, text, *values)
    return keys[-1] if len(keys) == BATCH else None
