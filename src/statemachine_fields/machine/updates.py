"""What a move writes besides the machine's own columns: `update={...}` and `auto_now` fields."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from django.db import models

from statemachine_fields.db.fields import MachineColumn


@cache
def auto_now_fields(model: type[models.Model]) -> tuple[Any, ...]:
    """Return the fields that every save of the model refreshes."""
    return tuple(field for field in model._meta.concrete_fields if getattr(field, "auto_now", False))


@cache
def has_generated_fields(model: type[models.Model]) -> bool:
    return any(field.generated for field in model._meta.concrete_fields)


@cache
def writable_fields(model: type[models.Model]) -> tuple[Any, ...]:
    """Return the fields that `update=` may write."""
    fields = model._meta.concrete_fields
    return tuple(each for each in fields if not (each.primary_key or each.generated or isinstance(each, MachineColumn)))


def read_update(model: type[models.Model], update: Mapping[str, Any]) -> dict[Any, Any]:
    """Return the values of `update=` by field, or raise before anything is written."""
    fields = {field.name: field for field in model._meta.concrete_fields}
    read = {}
    for name, value in update.items():
        field = fields.get(name)
        if field is None or field.primary_key or field.generated:
            raise TypeError(
                f"update= names {name!r}, which is no field of {model._meta.label} that can be written. "
                "Nothing was written."
            )
        if isinstance(field, MachineColumn):
            raise TypeError(f"update= names {name!r}, which only a machine writes. Nothing was written.")
        read[field] = value
    return read


def is_expression(value: object) -> bool:
    """Say whether the database is to compute the value."""
    return hasattr(value, "resolve_expression") or hasattr(value, "as_sql")


def is_left_to_django(field: Any, owner: type[models.Model]) -> bool:
    """Say whether our statement cannot carry a field: a column of another table, as of a multi-table child, or one with a way
    of its own to be written in SQL."""
    return field.model is not owner or hasattr(field, "get_placeholder") or hasattr(field, "get_placeholder_sql")


def is_refreshed_apart(field: Any, owner: type[models.Model]) -> bool:
    """Say whether a value for an `auto_now` field is not simply the time of day, which our statement can carry for any row: it may
    depend on the instance, or be an expression."""
    own_way = type(field).pre_save not in (
        models.DateField.pre_save,
        models.DateTimeField.pre_save,
        models.TimeField.pre_save,
    )
    return own_way or is_left_to_django(field, owner)


class Updates:
    """The values to write, split by what can carry them: our own statement, or Django's afterwards."""

    def __init__(self, owner: type[models.Model], instance: models.Model, update: Mapping[str, Any] | None) -> None:
        self.given = read_update(type(instance), update) if update else {}
        self.fields = auto_now_fields(type(instance))
        if self.given:
            self.fields = (*self.given, *(field for field in self.fields if field not in self.given))
        #: What the database is to compute, by field, as the field's own way to be assigned has made it.
        self.computed: dict[Any, Any] = {}
        self._owner = owner
        self._instance = instance

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.fields]

    def assign(self) -> None:
        """Put the given values on the instance, where `save()` and `pre_save()` find them.

        An assignment may fill other fields too, as that of an amount does which has a currency: these are written as well.
        An expression does not stay there. Guards would be asked about it, and each save on the way would apply it.
        """
        if not self.given:
            return
        data = vars(self._instance)
        before = data.copy()
        for field, value in self.given.items():
            if is_expression(value):
                setattr(self._instance, field.attname, value)
                self.computed[field] = data.pop(field.attname, value)
                if field.attname in before:
                    data[field.attname] = before[field.attname]
            else:
                setattr(self._instance, field.name, value)
        self.fields = (
            *self.fields,
            *(field for field in writable_fields(type(self._instance)) if self._was_filled(field, before)),
        )
        if related := [field for field in self.given if field.is_relation and field not in self.computed]:
            # As save() does: refuse an object that has no key yet, which would be written as NULL.
            prepare: Any = getattr(self._instance, "_prepare_related_fields_for_save")  # noqa: B009
            prepare(operation_name="transition_to", fields=related)

    def _was_filled(self, field: Any, before: dict[str, Any]) -> bool:
        data = vars(self._instance)
        known = field in self.fields or field.attname not in data
        return not known and before.get(field.attname, self) is not data[field.attname]

    def expressions(self) -> dict[str, Any]:
        """Return the given values that the database is to compute, by name."""
        return {field.name: value for field, value in self.computed.items()}

    def split(self) -> tuple[dict[Any, Any], dict[str, Any]]:
        """Return values for our statement, by field, and those left to Django, by name."""
        ours, left = {}, {}
        for field in self.fields:
            value = self.computed[field] if field in self.computed else field.pre_save(self._instance, False)
            if is_left_to_django(field, self._owner) or is_expression(value):
                left[field.name] = value
            else:
                ours[field] = value
        return ours, left
