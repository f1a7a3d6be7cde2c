"""The system checks of states that wait for children: 120–129."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    if join.field.model is not join.child.model or any(names[:2] == wanted for names in _indexed(join)):
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


def _indexed(join: Join) -> Iterator[list[str]]:
    """Yield the fields of each index that has all children of a parent; of one with expressions, an empty name for each."""
    meta = join.model._meta
    names = {field.attname: field.name for field in meta.concrete_fields}
    constraints = [each for each in meta.constraints if isinstance(each, models.UniqueConstraint)]
    # That it has a parent is true of every child.
    conditions = (None, models.Q(**{f"{join.field.name}__isnull": False}))
    given: list[Iterable[str]] = [*meta.unique_together]
    for index in (*meta.indexes, *constraints):
        if index.condition in conditions:
            fields = [name.removeprefix("-") for name in index.fields]
            given.append(fields or [_column(expression) for expression in index.expressions])
    for its in given:
        yield [names.get(name, name) for name in its]


def _column(expression: Any) -> str:
    """Return the field that an expression of an index is; empty if it is more than that."""
    plain = expression.expression if isinstance(expression, models.expressions.OrderBy) else expression
    return str(getattr(plain, "name", "")) if isinstance(plain, models.F) else ""


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
