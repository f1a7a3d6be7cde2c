"""`Spawn`: a row moves and its children are made, all or nothing."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from django.db import connections, models, router

from statemachine_fields.db.rows import all_rows
from statemachine_fields.machine.initial_records import InitialRecorder
from statemachine_fields.machine.listeners import has_own_save, has_receivers
from statemachine_fields.machine.registry import machines_of
from statemachine_fields.worker.outcomes import Transitioned
from statemachine_fields.worker.writing import Write, enter, enter_each, has_record

if TYPE_CHECKING:
    from statemachine_fields.worker.lease import Lane, Lease

#: How many children one INSERT makes.
BATCH = 1000


def refuse_wrong_children(lease: Lease, children: Sequence[models.Model]) -> None:
    """Raise what is wrong with children that a handler wants made, before anything is written.

    A worker may be told which database to serve, whatever routers say. Children belong there if routers put them where they put their
    parent.
    """
    lane = lease.lane
    home = {lane.using, router.db_for_write(lane.bound.model, instance=lease.instance)} if children else set()
    for model in dict.fromkeys(type(child) for child in children):
        if not machines_of(model):
            raise TypeError(f"Spawn makes rows that have a state machine, and {model._meta.label} has none.")
    for child in children:
        if not child._state.adding:
            raise ValueError(
                f"Spawn makes new rows, and {child._meta.label} pk={child.pk!r} is saved already. Return the instance unsaved."
            )
        using = router.db_for_write(type(child), instance=child)
        if using not in home:
            raise ValueError(
                f"Spawn makes rows in the database of their parent, {lane.using!r}, and {child._meta.label} belongs to {using!r}: "
                "no transaction has both."
            )


def make_children(children: Sequence[models.Model], using: str) -> None:
    """Insert children, in the transaction that is open. What is given stays as it is, so that it can be made again."""
    for model, group in groupby(children, key=type):
        copies = [_fresh(child) for child in group]
        if _is_made_together(model, using):
            rows: models.QuerySet[Any] = all_rows(model, using)
            for made in (copies[start : start + BATCH] for start in range(0, len(copies), BATCH)):
                rows.bulk_create(made)
                _record_initial(model, made, using)
        else:
            for child in copies:
                child.save(using=using, force_insert=True)


def spawn(lane: Lane, outcomes: Sequence[Spawned]) -> set[Any]:
    """Move rows, and make the children of those that were still ours."""
    return _with_children(lane, outcomes, enter(lane, outcomes))


def spawn_each(lane: Lane, outcomes: Sequence[Spawned]) -> set[Any]:
    """The same, with all that `transition_to()` does."""
    return _with_children(lane, outcomes, enter_each(lane, outcomes))


def _with_children(lane: Lane, outcomes: Sequence[Spawned], entered: set[Any]) -> set[Any]:
    for outcome in outcomes:
        if outcome.lease.key in entered:
            make_children(outcome.children, lane.using)
    return entered


#: Each alone: if its children cannot be made, no other row suffers from it. The record tells whether all of it was written.
SPAWN = Write(spawn, has_record, "writer", is_transaction=True, most=1)
SPAWN_EACH = Write(spawn_each, has_record, "writer", is_transaction=True, most=1)


@dataclass(slots=True, eq=False)
class Spawned(Transitioned):
    """The row moves to another state, and children are made with the move."""

    _: KW_ONLY
    children: Sequence[models.Model] = ()

    def __str__(self) -> str:
        return f"move to {self.to_status!r} with {len(self.children)} children"

    def way(self, is_watched: bool) -> Write:
        return SPAWN_EACH if is_watched or self.update else SPAWN


def _fresh(child: models.Model) -> models.Model:
    """Return a copy that knows nothing of a row, whatever becomes of it."""
    made = copy.copy(child)
    made._state = copy.copy(child._state)
    state = vars(made._state)
    if "fields_cache" in state:
        state["fields_cache"] = state["fields_cache"].copy()
    return made


def _is_made_together(model: type[models.Model], using: str) -> bool:
    """Say whether many rows can be inserted in one statement, and nobody could tell the difference."""
    meta = model._meta
    is_one_table = list(meta.concrete_fields) == list(meta.local_concrete_fields)
    returns_keys = connections[using].features.can_return_rows_from_bulk_insert
    return is_one_table and returns_keys and not (has_own_save(model) or has_receivers(model))


def _record_initial(model: type[models.Model], made: list[models.Model], using: str) -> None:
    for bound in machines_of(model).values():
        if bound.machine.record_initial:
            keys = [child.pk for child in made]
            InitialRecorder(bound, all_rows(model, using).filter(pk__in=keys), BATCH).run()
