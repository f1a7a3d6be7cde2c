"""Find rows that wait for children in vain: it is decided, or a child is parked, or those that were left behind are not cancelled."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.db.models import Exists, OuterRef

from statemachine_fields.db.clock import DatabaseClock
from statemachine_fields.db.rows import all_rows
from statemachine_fields.machine.findings import Finding
from statemachine_fields.machine.relations import WrongJoin, resolve
from statemachine_fields.machine.verify_events import pages

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.machine.joins import Join

#: How long whoever sees to it may take before it is said that nobody does: twice the floor.
PATIENCE = datetime.timedelta(seconds=60)


def join_findings(bound: Binding[Any], using: str, batch_size: int = 2000) -> Iterator[Finding]:
    """Yield what is wrong with rows of a machine that wait for children; nothing if none does.

    What is wrongly declared is for a check to tell. Page by page in the order of keys, and nothing is locked.
    """
    name, names = str(bound), bound.names
    late = DatabaseClock(-PATIENCE.total_seconds())
    for state in bound.joined_states:
        try:
            join = resolve(bound, state)
        except WrongJoin:
            continue
        for key in _decided(join, using, late, batch_size):
            what = f"The row sleeps in {state!r} though it is decided what {join.until} come to."
            yield Finding(name, key, "children-decided", what)
        parked = join.parked(using).filter(**{join.field.name: OuterRef(join.target)})
        waiting = join.rows(using).filter(Exists(parked), **{names.status: state})
        for key, value in pages(waiting, batch_size, join.target):
            number = join.parked(using).filter(**{join.field.attname: value}).count()
            what = f"The row waits in {state!r} for {join.until}, of which {number} {'is' if number == 1 else 'are'} parked."
            yield Finding(name, key, "children-parked", what)
    if "cancels" in bound.features:
        left = all_rows(bound.model, using).filter(**{f"{names.cancels}__gt": 0, f"{names.changed_at}__lt": late})
        for (key,) in pages(left, batch_size):
            yield Finding(name, key, "children-left", "The row has left children behind that are to be cancelled.")


def _decided(join: Join, using: str, late: Any, batch_size: int) -> Iterator[Any]:
    """Yield the keys of parents that sleep though it is decided, and of which nothing has moved for a while."""
    ready = join.ready(using).filter(**{f"{join.parent.names.changed_at}__lt": late})
    for key, value in pages(ready, batch_size, join.target):
        children = join.children(using).filter(**{join.field.attname: value})
        if not children.filter(**{f"{join.child.names.changed_at}__gte": late}).exists():
            yield key
