"""A row that makes ten thousand children and waits for them, and as many rows that nobody waits for."""

from __future__ import annotations

import witness
from django.db import models

from statemachine_fields import Children, State, StateMachine
from statemachine_fields.worker import Spawn


class Family(models.Model):
    """Makes its children when it is run, and is done when all of them are."""

    states = StateMachine(
        states=[State("NEW", retry_after=60), State("WAITING", until=Children("children", then="DONE")), State("DONE")],
        initial="NEW",
        transitions={"NEW": ["WAITING"], "WAITING": ["DONE"]},
    )

    def __str__(self) -> str:
        return f"Family {self.pk}"

    @states.handler("NEW")
    def spawn(self) -> Spawn:
        witness.seen()
        return Spawn("WAITING", [Child(family=self) for _ in range(witness.JOBS)])


def machine() -> StateMachine:
    return StateMachine(
        states=[State("PENDING", retry_after=60), State("DONE")], initial="PENDING", transitions={"PENDING": ["DONE"]}
    )


class Child(models.Model):
    """One of many that somebody waits for."""

    family = models.ForeignKey(Family, models.CASCADE, related_name="children", db_index=False)
    states = machine()

    class Meta:
        indexes = (models.Index(fields=["family", "status"]),)

    def __str__(self) -> str:
        return f"Child {self.pk}"

    @states.handler("PENDING")
    def nothing(self) -> str:
        witness.seen()
        return "DONE"


class Plain(models.Model):
    """The same row, for which nobody waits. It has as many indexes, so that what is compared is the waiting."""

    family = models.BigIntegerField()
    states = machine()

    class Meta:
        indexes = (models.Index(fields=["family", "status"]),)

    def __str__(self) -> str:
        return f"Plain {self.pk}"

    @states.handler("PENDING")
    def nothing(self) -> str:
        witness.seen()
        return "DONE"
