"""What a row says itself: in which queue it is, and how urgent. Both are fields of the model's own, and anybody may write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from django.core.exceptions import FieldDoesNotExist
from django.db import models
from django.db.models.functions import Coalesce

from statemachine_fields.db.columns import RowColumn
from statemachine_fields.db.fields import add_indexes

if TYPE_CHECKING:
    from statemachine_fields.db.columns import Names
    from statemachine_fields.schedule.policy import Policy

#: What each option must name, in words, and what counts for a row that has NULL there, in Python and in SQL.
KINDS: dict[str, tuple[tuple[type[Any], ...], str, Any, str]] = {
    "queue_field": ((models.CharField, models.TextField), "a CharField or a TextField", "", "''"),
    "priority_field": ((models.IntegerField,), "an IntegerField", 0, "0"),
}


@dataclass(frozen=True, slots=True)
class RowFields:
    """The names that a declaration gives, and nothing else is known of them yet."""

    queue_field: str | None = None
    priority_field: str | None = None

    @classmethod
    def read(
        cls, queue_field: str | None, priority_field: str | None, names: Names, policies: Mapping[str, Policy]
    ) -> RowFields:
        """Return them, or raise ValueError for what is wrong in itself."""
        for option, name in (("queue_field", queue_field), ("priority_field", priority_field)):
            if name is None:
                continue
            if not isinstance(name, str) or not name.isidentifier():
                raise ValueError(f"{option} must be the name of a field of the model, got {name!r}.")
            if name in (*names.columns, *names.schedule):
                raise ValueError(
                    f"{option} must be a field of the model's own, and {name!r} is a column of the machine."
                )
        if priority_field is not None and (states := [state for state, policy in policies.items() if policy.priority]):
            raise ValueError(
                f"priority_field={priority_field!r} lets each row say how urgent it is, so the priority of "
                f"{', '.join(map(repr, states))} would mean nothing. Remove one of them."
            )
        return cls(queue_field, priority_field)

    def __bool__(self) -> bool:
        return self.queue_field is not None or self.priority_field is not None

    def find(self, model: type[models.Model], option: str, machine: str) -> Any:
        """Return the field that an option names on a class that is complete, or raise ValueError; None if it names none."""
        name = getattr(self, option)
        if name is None:
            return None
        types, words, _empty, _sql = KINDS[option]
        label = f"{model._meta.label}.{machine}: {option}={name!r}"
        try:
            field: Any = model._meta.get_field(name)
        except FieldDoesNotExist:
            near = get_close_matches(name, [each.name for each in model._meta.local_concrete_fields], n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Add {words}, or correct the name."
            raise ValueError(f"{label} is no field of the model.{hint}") from None
        if not isinstance(field, types) or field.primary_key or field.generated:
            raise ValueError(f"{label} must be {words} that can be written, got {type(field).__name__}.")
        if field not in model._meta.local_concrete_fields:
            raise ValueError(
                f"{label} is in the table of {field.model._meta.label}. A claim reads one table: declare the field on "
                f"{model._meta.label}, beside the machine."
            )
        return field


def row_column(option: str, field: Any) -> RowColumn | None:
    """Return how SQL writes a field."""
    return None if field is None else RowColumn(field.column, KINDS[option][3] if field.null else None)


def add_row_indexes(model: type[models.Model], names: Names, queue: Any, priority: Any) -> None:
    """Add the indexes by which rows are claimed that say their queue or priority themselves, those that wait for something only.

    One has the rows of each priority in the order in which they are due, for workers of all queues; the other those of each queue,
    and in it of each priority, for workers of some. The index of every timed machine stays: it says whether anything is due at all.
    """
    lists = [[priority]] if priority is not None else []
    if queue is not None:
        lists.append([queue, priority] if priority is not None else [queue])
    indexes = []
    for fields in lists:
        own = [f"-{each.name}" if each is priority else each.name for each in fields]
        twin = models.Index(fields=[names.status, *own, names.next_at])
        twin.set_name_with_model(model)  # Django names an index itself only if it has no condition
        waits = models.Q(**{f"{names.next_at}__isnull": False})
        if any(each.null for each in fields):
            terms = [_term("priority_field" if each is priority else "queue_field", each) for each in fields]
            index = models.Index(
                models.F(names.status), *terms, models.F(names.next_at), name=twin.name, condition=waits
            )
        else:
            index = models.Index(fields=twin.fields, name=twin.name, condition=waits)
        indexes.append(index)
    add_indexes(model, indexes)


def _term(option: str, field: Any) -> Any:
    """Return what an index has of a field that may be NULL."""
    term: Any = Coalesce(field.name, models.Value(KINDS[option][2])) if field.null else models.F(field.name)
    return term.desc() if option == "priority_field" else term
