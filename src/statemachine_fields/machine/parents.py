"""Which rows wait for other rows, and how they come to know that those have ended.

A row does not count its children: who commits the end of one looks afterwards, in a statement of its own, whether its parent has
what it waits for. Of two that end at once the later look sees both. A look that is lost, because its process died, costs the time
until a worker looks by itself.

Most machines are nobody's children, so this module only knows whether there are any that are. The rest is in `joins.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from django.db import models

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.machine.joins import Join

#: The machines that have a state in which rows wait for children. Ask first, before all that is below, and then whether the machine
#: is known to be nobody's child: `if parents.waiting and bound.joins_as_child != ()`.
waiting: list[Binding[Any]] = []

_all: WeakSet[Binding[Any]] = WeakSet()


def machine_bound(bound: Binding[Any]) -> None:
    """Hear of a machine that was made. What was found out before may be out of date."""
    _all.add(bound)
    if bound.joined_states:
        waiting.append(bound)
    for each in _all if waiting else ():
        each.joins, each.joins_as_child = {}, None


def row_moved(bound: Binding[Any], connection: Any, to_status: str, instance: models.Model) -> None:
    """Look for the parents of a row that has moved, once that is committed."""
    for join in _ending(bound, to_status):
        join.look_after_commit(connection, [instance])


def rows_moved(bound: Binding[Any], connection: Any, to_status: str, which: models.Q) -> None:
    """Look for the parents of many.

    :param which: finds the rows, by fields of the model that has the machine's columns.
    """
    for join in _ending(bound, to_status):
        join.look_after_commit(connection, which=which)


def instances_moved(
    bound: Binding[Any], connection: Any, moves: Iterable[tuple[models.Model | None, Any, str]]
) -> None:
    """Look for the parents of rows that were moved together.

    :param moves: of each the row as it was loaded, if it was, its key, and its new state.
    """
    joins = joins_of_child(bound)
    if not joins:
        return
    ended = [(instance, key) for instance, key, to_status in moves if bound.graph.is_terminal(to_status)]
    if not ended:
        return
    loaded = [instance for instance, _key in ended if instance is not None]
    unloaded = [key for instance, key in ended if instance is None]
    for join in joins:
        join.look_after_commit(
            connection, loaded, models.Q(**{f"{bound.key_name}__in": unloaded}) if unloaded else None
        )


def _ending(bound: Binding[Any], to_status: str) -> tuple[Join, ...]:
    """Return the joins that may be decided by a row of a machine that has come to a state."""
    joins = joins_of_child(bound)
    return joins if joins and bound.graph.is_terminal(to_status) else ()


def joins_of_child(bound: Binding[Any]) -> tuple[Join, ...]:
    """Return the joins in which rows of a machine are the children."""
    known = bound.joins_as_child
    if known is None:
        from statemachine_fields.machine.relations import find_joins

        known = bound.joins_as_child = tuple(find_joins(bound))
    return known
