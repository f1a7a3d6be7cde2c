"""Columns that only a machine writes, and that a migration sees as the plain Django fields they derive from, so that no
migration imports this library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models.fields import NOT_PROVIDED

from statemachine_fields.db.expressions import Increment, MachineValue, PendingStatus, Unchanged
from statemachine_fields.exceptions import RECORDED, UnrecordedStatusChange

if TYPE_CHECKING:
    from typing import TypeAlias

    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.machine.descriptor import StateMachine

    Field: TypeAlias = models.Field[Any, Any]
else:  # Django's fields take type arguments in the stubs and not at run time
    from django.db.models import Field

#: While a `save()` runs that wants to know: the counters of the rows it has inserted.
INSERTED = "statemachine_inserted"


class PlainInMigrations(Field):
    """Deconstruct to the Django field we derive from, less what only matters at run time."""

    runtime_only: tuple[str, ...] = ()

    def deconstruct(self) -> Any:
        name, _path, args, kwargs = super().deconstruct()
        for option in self.runtime_only:
            kwargs.pop(option, None)
        return name, f"django.db.models.{self.get_internal_type()}", args, kwargs


class MachineColumn(PlainInMigrations):
    """A column that only the machine it is bound to writes.

    What `save()` writes is what `pre_save()` made of the instance, wrapped. Anything that reaches the database's door
    without that wrapper came through `update()` or `bulk_update()`, and is refused. (An upsert passes: its UPDATE half is
    never shown to the field.) A copy that is bound to no machine, as in a migration or in a history table of another
    library, is the plain field.
    """

    bound: Binding[Any] | None = None
    remedy = RECORDED
    #: What the machine lets the database compute for the column.
    computed: tuple[type, ...] = (Unchanged, Increment, PendingStatus)

    def __init__(self, *args: Any, machine: StateMachine | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.machine = machine

    def contribute_to_class(self, cls: type[models.Model], name: str, private_only: bool = False) -> None:
        self.bound = None  # what was copied from another class is not ours
        super().contribute_to_class(cls, name, private_only=private_only)

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        if self.bound is None:
            return super().pre_save(model_instance, add)
        return MachineValue(self.initial_value(model_instance)) if add else self.kept_value(model_instance)

    def initial_value(self, instance: models.Model) -> Any:
        """Return what a new row gets, whatever the instance holds."""
        raise NotImplementedError

    def kept_value(self, instance: models.Model) -> Any:
        """Return what a save of an existing row writes: what the database has."""
        return Unchanged(self)

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        if self.bound is not None:
            if isinstance(value, MachineValue):
                value = value.value
            elif not isinstance(value, self.computed):
                label, accessor = self.model._meta.label, self.bound.accessor
                raise UnrecordedStatusChange(label, self.name, accessor, NOT_PROVIDED, value, self.remedy)
        return super().get_db_prep_save(value, connection)


def owns_column(machine: object, model: type[models.Model], column: str) -> bool:
    """Say whether a column is on the model once, and of that machine."""
    fields = [field for field in model._meta.local_fields if field.name == column]
    return len(fields) == 1 and getattr(fields[0], "machine", None) is machine


def is_taken(model: type[models.Model], column: str) -> bool:
    """Say whether a class that is being made has something of its own under the name of a column."""
    if any(field.name == column for field in model._meta.local_fields):
        return True
    return column in vars(model) and vars(model)[column] is not None


def add_indexes(model: type[models.Model], indexes: list[models.Index]) -> None:
    """Add indexes to a class that is being made, but for those that it has. The migration autodetector looks at the list only
    if it was given in `Meta`, as `original_attrs` tells it."""
    there = [_contents(index) for index in model._meta.indexes]
    if missing := [index for index in indexes if _contents(index) not in there]:
        model._meta.indexes = [*model._meta.indexes, *missing]
        model._meta.original_attrs["indexes"] = model._meta.indexes


def _contents(index: models.Index) -> tuple[Any, ...]:
    return index.fields, index.expressions, index.condition
