"""Keys that at most one live row has."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import models

from statemachine_fields import LiveKey, State, StateMachine
from statemachine_fields.worker import Move

FLOW: dict[str, Any] = {
    "states": [("NEW", "New"), ("SENT", "Sent"), ("DONE", "Done"), ("LOST", "Lost")],
    "initial": "NEW",
    "transitions": {"NEW": ["SENT", "LOST"], "SENT": ["DONE", "LOST"]},
}


class Shipment(models.Model):
    number = models.CharField(max_length=20, null=True)  # noqa: DJ001 - a row without a number has no key
    code = models.CharField(max_length=20, unique=True, null=True)  # noqa: DJ001 - a constraint beside it
    note = models.CharField(max_length=20, blank=True)
    states = StateMachine(**FLOW, unique_while_live=["number"])

    class Meta:
        constraints = [  # which no ON CONFLICT for all constraints could take
            models.UniqueConstraint(fields=["note", "code"], name="lab_note", deferrable=models.Deferrable.DEFERRED),
        ]


class Place(models.Model):
    """What a key can refer to."""


class Reservation(models.Model):
    """A key of two fields, a relation among them, declared after the machine, that one terminal state keeps."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    states = StateMachine(
        **FLOW, unique_while_live=LiveKey("place", "day", also=["DONE"]), field="booking_status", record_initial=True
    )
    place = models.ForeignKey(Place, on_delete=models.CASCADE)
    day = models.DateField()


class Numbered(models.Model):
    number = models.CharField(max_length=20)
    states = StateMachine(**FLOW, unique_while_live=["number"])

    class Meta:
        abstract = True


class Order(Numbered):
    """One of an abstract base, each with a constraint of its own; and parent of another table."""


class Quote(Numbered):
    """A `save()` of its own, which writes something before the row."""

    def save(self, *args: Any, **kwargs: Any) -> None:
        Place.objects.create()
        super().save(*args, **kwargs)


class BulkOrder(Order):
    size = models.IntegerField(default=1)


class PlacedOrder(Place):
    """A machine in the table of a child."""

    number = models.CharField(max_length=20)
    states = StateMachine(**FLOW, unique_while_live=["number"])


class Twice(models.Model):
    """Two machines, and a key of each."""

    left = models.IntegerField(default=0)
    right = models.IntegerField(default=0)
    states = StateMachine(**FLOW, unique_while_live=["left"])
    others = StateMachine(**FLOW, unique_while_live=["right"], field="phase")


class Carriage(models.Model):
    """A timed machine, whose worker gives rows another number."""

    number = models.CharField(max_length=20)
    wanted = models.CharField(max_length=20, blank=True)
    states = StateMachine(
        states=[State("NEW", max_attempts=2, retry_after=60), State("SENT", external=True), State("DONE")],
        initial="NEW",
        transitions={"NEW": ["SENT"], "SENT": ["DONE"]},
        unique_while_live=["number"],
    )

    @states.handler("NEW")
    def send(self) -> Any:
        return Move("SENT", update={"number": self.wanted}) if self.wanted else "SENT"
