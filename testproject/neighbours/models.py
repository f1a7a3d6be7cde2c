"""A model for each package: one that is exported, one whose versions are kept, one whose every save is."""

from __future__ import annotations

from django.db import models
from simple_history.models import HistoricalRecords

from statemachine_fields import StateMachine, Transition


class Parcel(models.Model):
    status: str

    title = models.CharField(max_length=100)

    states = StateMachine(
        states=[("PACKED", "Packed"), ("SENT", "Sent"), ("LOST", "Lost"), ("ARRIVED", "Arrived")],
        initial="PACKED",
        transitions={
            "PACKED": ["SENT"],
            "SENT": ["ARRIVED", Transition("LOST", label="Give up", confirm="Is it really lost?")],
        },
    )

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.title


class Exported(Parcel):
    class Meta:
        verbose_name_plural = "exported"


class Versioned(Parcel):
    class Meta:
        verbose_name_plural = "versioned"


class Tracked(Parcel):
    history = HistoricalRecords()

    class Meta:
        verbose_name_plural = "tracked"
