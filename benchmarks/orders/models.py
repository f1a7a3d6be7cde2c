"""One table of orders for each contender, all with the same columns and the same index."""

from __future__ import annotations

import pghistory
from django.db import models
from django.db.models.functions import Now
from django.utils import timezone
from django_fsm import FSMField, transition

from statemachine_fields import StateMachine

STATES = [("NEW", "New"), ("DONE", "Done")]


class Order(models.Model):
    """What every order has, and enough of it for a row to be no toy."""

    customer = models.CharField(max_length=100, default="Somebody")
    total = models.DecimalField(max_digits=10, decimal_places=2, default=0)
    note = models.TextField(default="")

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"Order {self.pk}"


class Counted(Order):
    """The columns that a machine adds, for the tables that have none."""

    status_sequence = models.IntegerField(default=0, db_default=0)
    status_changed_at = models.DateTimeField(db_default=Now())

    class Meta:
        abstract = True


class MachineOrder(Order):
    """Ours."""

    states = StateMachine(states=STATES, initial="NEW", transitions={"NEW": ["DONE"]})


class KeyedOrder(Order):
    """Ours, with a key that is unique while the row is live."""

    states = StateMachine(states=STATES, initial="NEW", transitions={"NEW": ["DONE"]}, unique_while_live=["customer"])


class FsmOrder(Counted):
    """django-fsm-2, with django-fsm-log as its log."""

    status = FSMField(default="NEW", choices=STATES)

    class Meta:
        indexes = [models.Index(fields=["status"])]

    @transition(field=status, source="NEW", target="DONE")
    def finish(self) -> None:
        """Nothing but the move."""


@pghistory.track(pghistory.UpdateEvent())
class TrackedOrder(Counted):
    """django-pghistory: a trigger copies the row into an event table."""

    status = models.CharField(max_length=50, default="NEW", choices=STATES)

    class Meta:
        indexes = [models.Index(fields=["status"])]


class PlainOrder(Counted):
    """Django alone, and SQL by hand."""

    status = models.CharField(max_length=50, default="NEW", choices=STATES)

    class Meta:
        indexes = [models.Index(fields=["status"])]


class TimedOrder(Order):
    """Ours, with a handler, which nobody runs: a row is due as soon as it is there."""

    states = StateMachine(states=STATES, initial="NEW", transitions={"NEW": ["DONE"]})

    @states.handler("NEW")
    def finish(self) -> str:
        return "DONE"


class PlainTimedOrder(Order):
    """The columns and the indexes of a timed machine, and times of Python's clock."""

    status = models.CharField(max_length=50, default="NEW", choices=STATES)
    status_sequence = models.IntegerField(default=0, db_default=0)
    status_changed_at = models.DateTimeField(default=timezone.now)
    status_next_at = models.DateTimeField(null=True, default=timezone.now)
    status_next_at_pinned = models.BooleanField(default=False, db_default=False)
    status_lease_owner = models.CharField(max_length=100, default="", db_default="")
    status_lease_expires_at = models.DateTimeField(null=True)
    status_lease_token = models.BigIntegerField(default=0, db_default=0)
    status_claimed_at = models.DateTimeField(null=True)
    status_attempts = models.IntegerField(default=0, db_default=0)
    status_failures = models.IntegerField(default=0, db_default=0)
    status_crashes = models.IntegerField(default=0, db_default=0)
    status_error = models.TextField(default="", db_default="")

    class Meta:
        indexes = [
            models.Index(fields=["status", "status_next_at"]),
            models.Index(
                fields=["status_crashes", "status_next_at"],
                name="plaintimedorder_crashes",
                condition=models.Q(status_crashes__gt=0),
            ),
        ]


class PlainTransition(models.Model):
    """The audit table that ours is, declared by hand."""

    id = models.UUIDField(primary_key=True)
    instance = models.ForeignKey(PlainOrder, on_delete=models.CASCADE, db_index=False)
    from_status = models.CharField(max_length=50, blank=True)
    to_status = models.CharField(max_length=50)
    transitioned_at = models.DateTimeField()
    metadata = models.JSONField(default=dict, blank=True)
    sequence = models.IntegerField()

    class Meta:
        unique_together = [("instance", "sequence")]

    def __str__(self) -> str:
        return f"{self.from_status} → {self.to_status}"
