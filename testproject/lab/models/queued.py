"""Rows that say themselves in which queue they are, and how urgent."""

from __future__ import annotations

from typing import Any

from django.db import models

from statemachine_fields import State, StateMachine

STEPS: dict[str, Any] = {"transitions": {"NEW": ["PACKED", "DONE"], "PACKED": ["DONE"]}, "initial": "NEW"}


class Dispatch(models.Model):
    """Both, and states in queues of their own for rows that name none."""

    status: str

    queue = models.CharField(max_length=20, blank=True, default="")
    priority = models.SmallIntegerField(default=0)
    steps = models.JSONField(default=list, blank=True)

    states = StateMachine(
        states=[State("NEW", retry_after=60), State("PACKED", retry_after=60, queue="packing"), State("DONE")],
        **STEPS,
        queue="general",
        queue_field="queue",
        priority_field="priority",
        run_ahead=True,
    )

    @states.handler("NEW", "PACKED")
    def move_on(self) -> str | None:
        """Go where the row says, and be done by default."""
        return self.steps[self.status_sequence] if len(self.steps) > self.status_sequence else "DONE"  # type: ignore[attr-defined]


class Urgent(models.Model):
    """A priority and no queue: two states that are served in one order."""

    status: str

    priority = models.IntegerField(default=0)

    states = StateMachine(
        states=[State("NEW", retry_after=60), State("PACKED", retry_after=60), State("DONE")],
        **STEPS,
        priority_field="priority",
    )

    @states.handler("NEW", "PACKED")
    def move_on(self) -> str:
        return "DONE"


class Sorted(models.Model):
    """A queue and no priority but that of the states."""

    status: str

    queue = models.CharField(max_length=20, default="")

    states = StateMachine(
        states=[State("NEW", retry_after=60), State("PACKED", retry_after=60, priority=5), State("DONE")],
        **STEPS,
        queue_field="queue",
    )

    @states.handler("NEW", "PACKED")
    def move_on(self) -> str:
        return "DONE"


class Unsure(models.Model):
    """Both, and either may be NULL."""

    status: str

    queue = models.TextField(null=True)  # noqa: DJ001 - it is what this is about
    priority = models.BigIntegerField(null=True)

    states = StateMachine(
        states=[State("NEW", retry_after=60), State("PACKED", retry_after=60, queue="packing"), State("DONE")],
        **STEPS,
        queue_field="queue",
        priority_field="priority",
    )

    class Meta:
        abstract = True

    @states.handler("NEW", "PACKED")
    def move_on(self) -> str:
        return "DONE"


class Wish(Unsure):
    """The same, in a table."""


class Bundle(models.Model):
    """What a row in another table extends."""

    name = models.CharField(max_length=20, blank=True)


class Tour(Bundle):
    """A multi-table child with a machine of its own: claims read its table, and the rest is loaded."""

    status: str

    lane = models.CharField(max_length=20, default="", db_column="tour lane")
    urgency = models.IntegerField(default=0)

    states = StateMachine(
        states=[State("NEW", retry_after=60), State("PACKED", retry_after=60), State("DONE")],
        **STEPS,
        queue_field="lane",
        priority_field="urgency",
    )

    @states.handler("NEW", "PACKED")
    def move_on(self) -> str:
        return "DONE"


class QuickDispatch(Dispatch):
    """Shares the machine of the model that it stands for."""

    class Meta:
        proxy = True
