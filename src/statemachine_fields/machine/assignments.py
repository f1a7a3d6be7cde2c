"""What was assigned to a status: remembered, so that `save()` can refuse it, and a move tell it from what was loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models.fields import NOT_PROVIDED
from django.db.models.query_utils import DeferredAttribute

if TYPE_CHECKING:
    from statemachine_fields.machine.fields import StatusField
    from statemachine_fields.machine.pending import Pending


class Assignments:
    """What was assigned to a status since it was loaded or last written by the machine.

    Kept on the instance's `_state`, in flat attributes, because `copy.copy()` shares anything deeper.
    """

    def __init__(self, attname: str) -> None:
        self.attname = attname
        self.was = f"statemachine_{attname}_was"
        self.pending = f"statemachine_{attname}_pending"

    def made(self, instance: models.Model) -> bool:
        """Say whether the attribute holds something else than was loaded or written."""
        state = vars(instance._state)
        return self.was in state and state[self.was] != vars(instance).get(self.attname)

    def forget(self, instance: models.Model) -> None:
        """Take what the attribute holds now as the truth."""
        vars(instance._state).pop(self.was, None)
        vars(instance._state).pop(self.pending, None)

    def pending_of(self, instance: models.Model) -> Pending | None:
        pending: Pending | None = vars(instance._state).get(self.pending)
        return pending

    def write(self, instance: models.Model, value: str, pending: Pending | None = None) -> None:
        """Set the attribute on behalf of the machine."""
        vars(instance)[self.attname] = value
        self.forget(instance)
        if pending is not None:
            vars(instance._state)[self.pending] = pending


class StatusAttribute(DeferredAttribute):
    """Let anything be assigned, and remember what was there, so that `save()` can refuse it.

    Refusing the assignment itself would break `refresh_from_db()`, deserialisers and forms, all of which assign.
    Nothing is done while an instance is being loaded or is new.
    """

    def __init__(self, field: StatusField) -> None:
        super().__init__(field)
        self.attname = field.attname
        self.assignments = field.assignments

    def __get__(self, instance: models.Model | None, cls: Any = None) -> Any:
        if instance is not None and self.attname in vars(instance):
            return vars(instance)[self.attname]
        return super().__get__(instance, cls)

    def __set__(self, instance: models.Model, value: object) -> None:
        data = vars(instance)
        state = data["_state"]
        if not state.adding:
            vars(state).setdefault(self.assignments.was, data.get(self.attname, NOT_PROVIDED))
        data[self.attname] = value

    def __delete__(self, instance: models.Model) -> None:
        del vars(instance)[self.attname]  # documented by Django: the next read loads the column again
        self.assignments.forget(instance)

    def fetch_many(self, instances: Iterable[models.Model]) -> None:  # Django 6.1: FETCH_PEERS loads by assignment
        missing = [instance for instance in instances if self.attname not in vars(instance)]
        super().fetch_many(instances)
        for instance in missing:
            self.assignments.forget(instance)
