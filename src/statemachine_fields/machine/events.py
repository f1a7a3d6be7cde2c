"""The table of events: one `<Model>StateEvent` for each machine with a state that waits for events, built as the audit model is.

Imported only once the app registry is ready, because it defines a model class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from django.apps import apps as global_apps
from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models.base import ModelBase
from django.utils.translation import gettext_lazy as _

from statemachine_fields.exceptions import StateMachineError
from statemachine_fields.machine.audit import TimeOrderedUUIDField, make_importable
from statemachine_fields.schedule.waiting import NAME_LENGTH

if TYPE_CHECKING:
    import datetime
    import uuid

    from statemachine_fields.machine.binding import Binding

M = TypeVar("M", bound=models.Model)

#: How long a key may be by which an event is known that was delivered before.
DEDUP_LENGTH = 200

if TYPE_CHECKING:

    class EventOf(models.Model, Generic[M]): ...  # noqa: DJ008 - for type checkers

else:  # a base that is no model would be written into every user's migrations
    EventOf = {M: models.Model}


class StateEvent(EventOf[M]):
    """One event that was delivered to one row. The base of every model of events; abstract.

    `number` counts 1, 2, 3 for each row, in the order in which they were committed. `taken_by` is the `sequence` of the move
    that took the event, and empty while none has. Events are written by `deliver()` and marked by the move that takes
    them, are never changed otherwise, and are gone with their row.
    """

    if TYPE_CHECKING:
        id: uuid.UUID
        instance: M
        number: int
        name: str
        payload: Any
        dedup_key: str | None
        delivered_at: datetime.datetime
        taken_by: int | None
        objects: models.Manager[Self]

    else:
        id = TimeOrderedUUIDField(primary_key=True)
        instance = models.ForeignKey("self", on_delete=models.CASCADE, related_name="+")  # each model has its own
        number = models.IntegerField(editable=False)
        name = models.CharField(max_length=NAME_LENGTH, editable=False)
        payload = models.JSONField(default=dict, blank=True, encoder=DjangoJSONEncoder, editable=False)
        dedup_key = models.CharField(max_length=DEDUP_LENGTH, null=True, blank=True, editable=False)
        delivered_at = models.DateTimeField(editable=False)
        taken_by = models.IntegerField(null=True, blank=True, editable=False)

        def __class_getitem__(cls, item: object) -> type[StateEvent]:
            return cls

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        super().clean()
        if self._state.adding:
            raise ValidationError(_("Events are delivered to the row, and cannot be added by hand."))

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: whoever wrote an event past `deliver()` would wake nobody."""
        raise StateMachineError(
            f"{self._meta.label} is written by the machine alone. Use deliver() of the row, or of the machine."
        )


def build_event_model(bound: Binding[M]) -> type[StateEvent[M]] | None:
    """Create the model of a machine's events beside the model it belongs to; None if the name is taken."""
    model = bound.model
    meta = model._meta
    name = bound.names.event_model(model.__name__)
    if name.lower() in meta.apps.all_models[meta.app_label]:
        return None
    body = {
        "__module__": model.__module__,
        "__qualname__": name,
        "__doc__": f"An event that was delivered to {meta.label}.",
        "Meta": _meta(model),
        "instance": models.ForeignKey(
            model,
            on_delete=models.CASCADE,
            related_name=bound.names.event_accessor,
            db_index=False,  # unique_together starts with it
            editable=False,
        ),
    }
    events = cast("type[StateEvent[M]]", ModelBase(name, (StateEvent,), body))
    # Rows that got many events have few that nobody took, and those are what a worker asks for. Django names an index
    # itself only if it has no condition, and only of a class that is there.
    fields = ["instance", "number"]
    twin = models.Index(fields=fields)
    twin.set_name_with_model(events)
    index = models.Index(fields=fields, name=twin.name, condition=models.Q(taken_by__isnull=True))
    events._meta.indexes = [index]
    events._meta.original_attrs["indexes"] = events._meta.indexes
    make_importable(model, events)
    return events


def _meta(model: type[models.Model]) -> type[Any]:
    options: dict[str, Any] = {
        "app_label": model._meta.app_label,
        "unique_together": [("instance", "number"), ("instance", "dedup_key")],
        "ordering": ["-id"],
        "default_permissions": ("add", "view"),
    }
    if model._meta.apps is not global_apps:
        options["apps"] = model._meta.apps
    return type("Meta", (), options)
