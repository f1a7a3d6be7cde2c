"""The table of tries: one `<Model>StateAttempt` for each machine with `record_attempts`, one row for each try that did not move
its row.

Imported only once the app registry is ready, because it defines a model class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

from django.apps import apps as global_apps
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.base import ModelBase
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from statemachine_fields.db.fields import PlainInMigrations
from statemachine_fields.exceptions import StateMachineError
from statemachine_fields.machine.audit import M, RecordedStatusField, RecordOf, is_free, make_importable
from statemachine_fields.schedule.columns import OWNER_LENGTH

if TYPE_CHECKING:
    import datetime
    from typing import TypeAlias

    from statemachine_fields.machine.binding import Binding

    CharField: TypeAlias = models.CharField[Any, Any]
else:
    from django.db.models import CharField


class AttemptOutcome(models.TextChoices):
    """What came of a try that did not move its row."""

    WAITED = "waited", pgettext_lazy("try", "not yet")
    FAILED = "failed", pgettext_lazy("try", "failed")
    PARKED = "parked", pgettext_lazy("try", "parked")
    CRASHED = "crashed", pgettext_lazy("try", "crashed")


class AttemptOutcomeField(PlainInMigrations, CharField):
    """What came of a try: choices at run time, so that another kind of it makes no migration."""

    runtime_only = ("choices",)


class StateAttempt(RecordOf[M]):
    """One try at one row that did not move it. The base of every model of tries; abstract.

    Rows are written by workers, in the statement that ends the try, and never change. `number` is the row's own count of tries,
    `sequence` how many moves it had made by then. Times are by the database's clock.
    """

    if TYPE_CHECKING:
        id: int
        instance: M
        number: int
        sequence: int
        state: str
        worker: str
        claimed_at: datetime.datetime | None
        started_at: datetime.datetime | None
        ended_at: datetime.datetime
        outcome: str
        error: str
        traceback: str
        objects: models.Manager[Self]

    else:
        id = models.BigAutoField(primary_key=True)
        instance = models.ForeignKey("self", on_delete=models.CASCADE, related_name="+")  # each model has its own
        number = models.IntegerField(editable=False)
        sequence = models.IntegerField(editable=False)
        state = RecordedStatusField(editable=False)
        worker = models.CharField(max_length=OWNER_LENGTH, blank=True, editable=False)
        claimed_at = models.DateTimeField(null=True, editable=False)
        started_at = models.DateTimeField(null=True, editable=False)
        ended_at = models.DateTimeField(editable=False)
        outcome = AttemptOutcomeField(max_length=20, choices=AttemptOutcome.choices, editable=False)
        error = models.TextField(blank=True, editable=False)
        traceback = models.TextField(blank=True, editable=False)

        def __class_getitem__(cls, item: object) -> type[StateAttempt]:
            return cls

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.number}: {self.outcome}"

    @property
    def seconds(self) -> float | None:
        """How long the handler ran; None if it is not known when it began."""
        return None if self.started_at is None else (self.ended_at - self.started_at).total_seconds()

    def clean(self) -> None:
        super().clean()
        if self._state.adding:
            raise ValidationError(_("Tries are recorded by workers, and cannot be added by hand."))

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to add or change a try."""
        raise StateMachineError(
            f"{self._meta.label} is written by workers alone, in the statement that ends a try, and never changes."
        )


def build_attempt_model(bound: Binding[M]) -> type[StateAttempt[M]] | None:
    """Create the model of a machine's tries beside the model it belongs to; None if the name is taken."""
    model, machine = bound.model, bound.machine
    meta = model._meta
    name = bound.names.attempt_model(model.__name__)
    if not is_free(model, name):
        return None
    choices = [(state.value, state.label) for state in bound.graph.states.values()]
    options: dict[str, Any] = {
        "app_label": meta.app_label,
        "unique_together": [("instance", "number")],
        "ordering": ["-id"],
        "default_permissions": ("view",),
    }
    if meta.apps is not global_apps:
        options["apps"] = meta.apps
    body = {
        "__module__": model.__module__,
        "__qualname__": name,
        "__doc__": f"A try at {meta.label} that did not move it.",
        "Meta": type("Meta", (), options),
        "instance": models.ForeignKey(
            model,
            on_delete=models.CASCADE,
            related_name=bound.names.tries_accessor,
            db_index=False,  # unique_together starts with it
            editable=False,
        ),
        "state": RecordedStatusField(max_length=machine.max_length, choices=choices, editable=False),
    }
    made = cast("type[StateAttempt[M]]", ModelBase(name, (StateAttempt,), body))
    make_importable(model, made)
    return made
