"""The audit table: one `<Model>StateTransition` for each machine, one row for each move, never changed.

Imported only once the app registry is ready, because it defines a model class.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from django.apps import apps as global_apps
from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models.base import ModelBase
from django.db.models.options import normalize_together
from django.utils.translation import gettext_lazy as _

from statemachine_fields.db.fields import PlainInMigrations
from statemachine_fields.db.rows import all_rows
from statemachine_fields.exceptions import StateMachineError
from statemachine_fields.machine.ids import uuid7

if TYPE_CHECKING:
    import datetime
    import uuid
    from typing import TypeAlias

    from statemachine_fields.machine.binding import Binding

M = TypeVar("M", bound=models.Model)

if TYPE_CHECKING:
    CharField: TypeAlias = models.CharField[Any, Any]
    UUIDField: TypeAlias = models.UUIDField[Any, Any]

    class RecordOf(models.Model, Generic[M]): ...  # noqa: DJ008 - for type checkers

else:  # a base that is no model would be written into every user's migrations
    from django.db.models import CharField, UUIDField

    RecordOf = {M: models.Model}


class RecordedStatusField(PlainInMigrations, CharField):
    """`from_status` and `to_status`: choices at run time, so that an admin filter needs no DISTINCT."""

    runtime_only = ("choices",)


class TimeOrderedUUIDField(PlainInMigrations, UUIDField):
    """The audit table's key. Its default stays out of migrations, which would otherwise import it for ever."""

    runtime_only = ("default",)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"default": uuid7, "editable": False, **kwargs})


class StateTransition(RecordOf[M]):
    """One move of one row. The base of every audit model; abstract.

    Rows are written by the machine, in the transaction that moves the row, and never change. `sequence` counts 1, 2, 3
    for each row and is unique with it, so history has an order even where clocks tie, and a missing row shows.
    """

    if TYPE_CHECKING:
        id: uuid.UUID
        instance: M
        from_status: str
        to_status: str
        transitioned_at: datetime.datetime
        metadata: dict[str, Any]
        sequence: int
        objects: models.Manager[Self]

    else:
        id = TimeOrderedUUIDField(primary_key=True)
        instance = models.ForeignKey("self", on_delete=models.CASCADE, related_name="+")  # each audit model has its own
        from_status = RecordedStatusField(blank=True, editable=False)
        to_status = RecordedStatusField(editable=False)
        transitioned_at = models.DateTimeField(editable=False)
        metadata = models.JSONField(default=dict, blank=True, encoder=DjangoJSONEncoder, editable=False)
        sequence = models.IntegerField(editable=False)

        def __class_getitem__(cls, item: object) -> type[StateTransition]:
            return cls

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.from_status or '·'} → {self.to_status}"

    def clean(self) -> None:
        super().clean()
        if self._state.adding:
            raise ValidationError(_("State transitions are recorded by moving the row, and cannot be added by hand."))

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to add or change a record. Saving one that is unchanged, as an admin form does, is allowed."""
        if self._state.adding:
            raise StateMachineError(
                f"{self._meta.label} is written by the machine alone, in the transaction that moves the row. "
                "Use transition_to() on the row, or import_history() of the machine for what happened before it was there."
            )
        rows: Any = all_rows(type(self), self._state.db).filter(pk=self.pk)
        stored: dict[str, Any] = rows.values().first() or {}
        if not stored or any(vars(self).get(name, value) != value for name, value in stored.items()):
            raise StateMachineError(
                f"{self._meta.label} pk={self.pk} is a record of what happened and cannot be changed."
            )

    def insert(self, using: str) -> None:
        """Write the record. For the machine only."""
        super().save(force_insert=True, using=using)


def build_audit_model(bound: Binding[M]) -> type[StateTransition[M]] | None:
    """Create the audit model of a machine beside the model it belongs to; None if the name is taken."""
    model, machine = bound.model, bound.machine
    meta = model._meta
    name = bound.names.audit_model(model.__name__)
    if name.lower() in meta.apps.all_models[meta.app_label]:
        return None
    keep = machine.history_on_delete is models.DO_NOTHING
    choices = [(state.value, state.label) for state in bound.graph.states.values()]
    body = {
        "__module__": model.__module__,
        "__qualname__": name,
        "__doc__": f"A recorded move of {meta.label}.",
        "Meta": _meta(model, machine.transition_base),
        "instance": models.ForeignKey(
            model,
            on_delete=machine.history_on_delete,
            related_name=bound.names.reverse_accessor,
            db_index=False,  # unique_together starts with it
            db_constraint=not keep,
            null=keep,  # a join to a row that is gone must be an outer one
            editable=False,
        ),
        "from_status": RecordedStatusField(max_length=machine.max_length, choices=choices, blank=True, editable=False),
        "to_status": RecordedStatusField(max_length=machine.max_length, choices=choices, editable=False),
    }
    bases = (StateTransition,) if machine.transition_base is None else (machine.transition_base, StateTransition)
    audit = cast("type[StateTransition[M]]", ModelBase(name, bases, body))
    if meta.apps is global_apps:
        make_importable(model, audit)
    return audit


def _meta(model: type[models.Model], base: type[models.Model] | None) -> type[Any]:
    """Return the `Meta` of an audit model: that of its base, as a child of an abstract model would inherit it, and ours."""
    inherited: type[Any] = getattr(base, "Meta", object)
    together = normalize_together(getattr(inherited, "unique_together", ()))
    options: dict[str, Any] = {
        "app_label": model._meta.app_label,
        "unique_together": [("instance", "sequence"), *together],
    }
    usual = {"ordering": ["-id"], "default_permissions": ("view",)}
    options.update({option: value for option, value in usual.items() if not hasattr(inherited, option)})
    if model._meta.apps is not global_apps:
        options["apps"] = model._meta.apps
    return type("Meta", (inherited,), options)


def make_importable(model: type[models.Model], audit: type[models.Model]) -> None:
    """Put a model that belongs to a machine where people import from: the model's module, and the app's `models` if that is a package."""
    homes = {model.__module__}
    if app_config := global_apps.get_containing_app_config(model.__module__):
        homes.add(f"{app_config.name}.models")
    for home in homes:
        if (module := sys.modules.get(home)) is not None and not hasattr(module, audit.__name__):
            setattr(module, audit.__name__, audit)
