"""Which `update=` of an outcome is written together with those of other rows: what Django would write as it is.

Rows of one group set the same fields, each to a value of its own, so that a group is one statement however many they are. The
rest is written row by row: what the database is to compute, what is in another table, what has a way of its own to be assigned,
saved or put into SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import getattr_static
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from django.db import models
from django.db.models.fields.related_descriptors import (
    ForeignKeyDeferredAttribute,
    ForwardManyToOneDescriptor,
    ForwardOneToOneDescriptor,
)
from django.db.models.query_utils import DeferredAttribute

from statemachine_fields.machine.updates import is_expression, is_left_to_django, read_update
from statemachine_fields.worker.writing import ADVANCERS, Write, enter, has_record, has_stayed, stay

if TYPE_CHECKING:
    from statemachine_fields.worker.lease import Lane

PLAIN_ATTRIBUTES = (DeferredAttribute, ForeignKeyDeferredAttribute)
PLAIN_RELATIONS = (ForwardManyToOneDescriptor, ForwardOneToOneDescriptor)
#: What saves the value as it is, if it is not `auto_now`.
PLAIN_SAVES = (
    models.Field.pre_save,
    models.DateField.pre_save,
    models.DateTimeField.pre_save,
    models.TimeField.pre_save,
)


@dataclass(frozen=True, slots=True, eq=False)
class UpdateGroup:
    """How outcomes are written that set the same fields: each of these is a group of its own to the committer."""

    fields: tuple[Any, ...]
    enter: Write = field(default_factory=lambda: Write(enter, has_record))
    enter_due: Write = field(default_factory=lambda: Write(enter, has_record, ADVANCERS[0], goes_on=True))
    stay: Write = field(default_factory=lambda: Write(stay, has_stayed))


#: By the fields that outcomes set, how those are written together; and whether a field can be set so, of those asked about.
_groups: WeakKeyDictionary[Lane, dict[tuple[Any, ...], UpdateGroup]] = WeakKeyDictionary()
_carried: WeakKeyDictionary[Lane, dict[Any, bool]] = WeakKeyDictionary()


def group_of(lane: Lane, update: Mapping[str, Any]) -> UpdateGroup | None:
    """Return the group in which an update is written; None if its row is written by itself.

    :raises TypeError: a name is of no field that can be written so.
    """
    given = read_update(lane.bound.model, update)
    for each, value in given.items():
        if not _is_carried(lane, each) or is_expression(value) or not _is_plain(lane, each, value):
            return None
    fields = tuple(each for each in lane.bound.model._meta.concrete_fields if each in given)
    return _groups.setdefault(lane, {}).setdefault(fields, UpdateGroup(fields))


def _is_carried(lane: Lane, each: Any) -> bool:
    known = _carried.setdefault(lane, {})
    found = known.get(each)
    if found is None:
        found = known[each] = _is_written_plainly(lane, each)
    return found


def _is_written_plainly(lane: Lane, each: Any) -> bool:
    """Say whether assigning a field only stores a value, and saving it only writes that."""
    model: Any = lane.bound.model
    if is_left_to_django(each, model) or getattr(each, "auto_now", False) or type(each).pre_save not in PLAIN_SAVES:
        return False
    if type(getattr_static(model, each.attname)) not in PLAIN_ATTRIBUTES or model.__setattr__ is not object.__setattr__:
        return False
    if each.is_relation and type(getattr_static(model, each.name)) not in PLAIN_RELATIONS:
        return False
    return lane.dialect.carries(lane.connection, each)


def _is_plain(lane: Lane, each: Any, value: Any) -> bool:
    """Say whether a value is what it seems: of a relation, a row of the same database. What else is wrong with one Django says."""
    if not each.is_relation or value is None:
        return True
    other = each.remote_field.model._meta.concrete_model
    is_row = isinstance(value, other) and value.pk is not None and value._state.db == lane.using
    return is_row and getattr(value, each.target_field.attname) is not None
