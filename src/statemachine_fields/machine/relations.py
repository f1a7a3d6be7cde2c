"""Which relation a state with `until=Children(...)` means: the foreign key of its children, and their machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.core.exceptions import FieldDoesNotExist
from django.db import connections, models
from django.db.models.signals import post_delete

from statemachine_fields.machine import parents
from statemachine_fields.machine.joins import Join
from statemachine_fields.machine.registry import machines_of
from statemachine_fields.schedule.children import Children

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding


class WrongJoin(Exception):
    """What is declared of children does not fit their model. Says why, and what to do."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what, hint)
        self.what, self.hint = what, hint

    def __str__(self) -> str:
        return f"{self.what} {self.hint}"


def find_joins(child: Binding[Any]) -> Iterator[Join]:
    """Yield the joins in which rows of a machine are the children. Of what is declared wrongly a check tells."""
    for bound in list(parents.waiting):
        for state in bound.joined_states:
            try:
                join = resolve(bound, state)
            except WrongJoin:
                continue
            if join.child is child:
                yield join


def resolve(bound: Binding[Any], state: str) -> Join:
    """Return the join of one state, or raise WrongJoin."""
    known = bound.joins.get(state)
    if known is None:
        known = bound.joins[state] = _resolve(bound, state, bound.joined_states[state])
    return known


def _resolve(bound: Binding[Any], state: str, until: Children) -> Join:
    field = _foreign_key(bound, until)
    model = field.model
    child = _machine_of(bound, until, model)
    for option, states in (("failed", until.failed), ("cancel_to", [until.cancel_to] if until.cancel_to else [])):
        for each in states:
            if each not in child.graph:
                raise WrongJoin(
                    f"{option} names {each!r}, which {child} does not declare.",
                    f"Its states are {', '.join(child.graph.states)}.",
                )
    if until.cancel_to is not None and child.graph.states[until.cancel_to].retired:
        raise WrongJoin(f"cancel_to names {until.cancel_to!r}, which is retired in {child}.", "Name another state.")
    if unfinished := [each for each in until.failed if not child.graph.is_terminal(each)]:
        raise WrongJoin(
            f"failed names {unfinished[0]!r}, which is not terminal in {child}: a child is finished in a terminal state only.",
            f"Its terminal states are {', '.join(child.graph.terminal_states) or 'none'}.",
        )
    join = Join(bound, state, until, child, field, model)
    # Not of save(): to be heard there would make every move of a child one by itself. Of a row that is deleted by way of a proxy
    # Django sends the proxy.
    for each in model._meta.apps.get_models():
        if each._meta.concrete_model is model:
            post_delete.connect(_child_deleted, sender=each, dispatch_uid=f"statemachine_fields.{child}")
    return join


def connect() -> None:
    """Hear of the deletion of children from the start."""
    for bound in parents.waiting:
        for state in bound.joined_states:
            with suppress(WrongJoin):
                resolve(bound, state)


def _child_deleted(sender: type[models.Model], instance: models.Model, using: str, **kwargs: Any) -> None:
    for bound in machines_of(sender).values():
        for join in parents.joins_of_child(bound):
            if join.model is sender._meta.concrete_model:
                join.look_after_commit(connections[using], [instance])


def _foreign_key(bound: Binding[Any], until: Children) -> Any:
    label, name = bound.model._meta.label, until.relation
    relations = {
        relation.get_accessor_name(): relation
        for relation in bound.model._meta.get_fields()
        if relation.auto_created and not relation.concrete and hasattr(relation, "get_accessor_name")
    }
    relation: Any = relations.get(name)
    if (
        relation is not None
        and (relation.one_to_many or relation.one_to_one)
        and not relation.field.remote_field.parent_link
    ):
        return relation.field
    known = sorted(
        accessor
        for accessor, each in relations.items()
        if (each.one_to_many or each.one_to_one) and accessor and machines_of(each.related_model)
    )
    hint = f"Name the related_name of a child's foreign key to {label}: {', '.join(known) or 'there is none yet'}."
    if relation is not None:
        raise WrongJoin(f"{name!r} of {label} is not the other side of a foreign key.", hint)
    try:
        bound.model._meta.get_field(name)
    except FieldDoesNotExist:
        raise WrongJoin(f"{label} has no relation {name!r}.", hint) from None
    raise WrongJoin(f"{name!r} of {label} is not the other side of a foreign key.", hint)


def _machine_of(bound: Binding[Any], until: Children, model: type[models.Model]) -> Binding[Any]:
    machines = machines_of(model)
    label = model._meta.label
    if not machines:
        raise WrongJoin(
            f"{label}, of {until.relation!r}, has no state machine, so nobody can tell when a child is finished.",
            "Give it one, or name another relation.",
        )
    if until.machine is not None and until.machine not in machines:
        raise WrongJoin(f"{label} has no machine {until.machine!r}.", f"There are: {', '.join(machines)}.")
    if until.machine is None and len(machines) > 1:
        names = ", ".join(machines)
        raise WrongJoin(f"{label} has several machines: {names}.", f"Say which, as machine={next(iter(machines))!r}.")
    return machines[until.machine or next(iter(machines))]
