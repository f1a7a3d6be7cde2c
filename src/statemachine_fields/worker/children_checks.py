"""The system checks of states that wait for children: 120–129."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core import checks
from django.db import models, router

from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.joins import Join
from statemachine_fields.machine.relations import WrongJoin, resolve


def check_children(bound: Binding[Any]) -> Iterator[checks.CheckMessage]:
    """Check what a machine says of its children, on the model that has its columns."""
    asked: set[tuple[Any, Any]] = set()
    for state in bound.joined_states:
        try:
            join = resolve(bound, state)
        except WrongJoin as wrong:
            yield checks.Error(
                f"What {state!r} of {bound.accessor!r} waits for cannot be: {wrong.what}",
                hint=wrong.hint,
                obj=bound.model,
                id="statemachine_fields.E121",
            )
            continue
        yield from another_database(join)
        if (join.field, join.child) not in asked:
            yield from no_index(join)
        asked.add((join.field, join.child))
        yield from not_to_be_cancelled(join)


def another_database(join: Join) -> Iterator[checks.Error]:
    here, there = router.db_for_write(join.parent.model), router.db_for_write(join.model)
    if here != there:
        yield checks.Error(
            f"{join.state!r} of {join.parent.accessor!r} waits for {join.model._meta.label}, whose rows are in the database "
            f"{there!r}, and its own are in {here!r}.",
            hint="Rows can wait only for children in their own database. Keep both models in one, or name another relation.",
            obj=join.parent.model,
            id="statemachine_fields.E122",
        )


def no_index(join: Join) -> Iterator[checks.Warning]:
    """Ask for an index on the parent and the status, if both are in one table."""
    meta, wanted = join.model._meta, [join.field.name, join.child.names.status]
    if join.field.model is not join.child.model or any(fields[:2] == wanted for fields in _indexed(join.model)):
        return
    status = wanted[1]
    yield checks.Warning(
        f"{meta.label} has no index on {join.field.name!r} and {status!r}, by which rows of {join.parent.model._meta.label} in "
        f"{join.state!r} find out whether their children have ended.",
        hint=f"Add models.Index(fields=[{join.field.name!r}, {status!r}]) to its Meta.indexes. The foreign key can then do without "
        "an index of its own: db_index=False.",
        obj=join.model,
        id="statemachine_fields.W121",
    )


def _indexed(model: type[models.Model]) -> Iterator[list[str]]:
    """Yield the fields of each index that has all rows of a model."""
    for index in model._meta.indexes:
        if index.condition is None:
            yield [name.removeprefix("-") for name in index.fields]
    for constraint in model._meta.constraints:
        if isinstance(constraint, models.UniqueConstraint) and constraint.condition is None:
            yield list(constraint.fields)
    for fields in model._meta.unique_together:
        yield list(fields)


def not_to_be_cancelled(join: Join) -> Iterator[checks.Warning]:
    target, graph = join.until.cancel_to, join.child.graph
    stuck = [state for state in join.live if target is not None and state != target and not graph.allows(state, target)]
    if stuck:
        yield checks.Warning(
            f"cancel_to of {join.state!r} in {join.parent.accessor!r} is {target!r}, and no move of {join.child} leads there from "
            f"{', '.join(map(repr, stuck))}. Children in such a state go on when their parent has left.",
            hint="Add the transition, or silence this check if they are to go on.",
            obj=join.parent.model,
            id="statemachine_fields.W122",
        )
