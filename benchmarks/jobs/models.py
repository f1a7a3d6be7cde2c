"""The rows that are drained: ours, and the same table by hand."""

from __future__ import annotations

import time

import witness
from django.db import models
from django.db.models.functions import Now

from statemachine_fields import StateMachine


class Work(models.Model):
    """What every job has besides its status."""

    payload = models.BinaryField(null=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"Job {self.pk}"


class Job(Work):
    """Ours."""

    states = StateMachine(
        states=[("PENDING", "Pending"), ("DONE", "Done")],
        initial="PENDING",
        transitions={"PENDING": ["DONE"]},
    )

    @states.handler("PENDING")
    def nothing(self) -> str:
        witness.seen()
        return "DONE"


class CrowdedJob(Work):
    """Ours, with another state whose rows are due as well."""

    states = StateMachine(
        states=[("CROWD", "Crowd"), ("PENDING", "Pending"), ("DONE", "Done")],
        initial="PENDING",
        transitions={"CROWD": ["DONE"], "PENDING": ["DONE"]},
    )

    @states.handler("CROWD", "PENDING")
    def nothing(self) -> str:
        witness.seen()
        return "DONE"


class LongJob(Work):
    """Ours, with a handler that outlasts every cell."""

    states = StateMachine(
        states=[("PENDING", "Pending"), ("DONE", "Done")],
        initial="PENDING",
        transitions={"PENDING": ["DONE"]},
    )

    @states.handler("PENDING")
    def sleep(self) -> str:
        witness.seen()
        time.sleep(3600)
        return "DONE"


class TimedByHand(Work):
    """The columns and the indexes of a timed machine, declared by hand."""

    status = models.CharField(max_length=50, default="PENDING")
    status_sequence = models.IntegerField(default=0, db_default=0)
    status_changed_at = models.DateTimeField(db_default=Now())
    status_next_at = models.DateTimeField(null=True)
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
        abstract = True
        indexes = [
            models.Index(fields=["status", "status_next_at"], name="%(class)s_due"),
            models.Index(
                fields=["status_crashes", "status_next_at"],
                name="%(class)s_crashes",
                condition=models.Q(status_crashes__gt=0),
            ),
        ]


class PlainJob(TimedByHand):
    """SQL by hand."""


class CrowdedPlainJob(TimedByHand):
    """SQL by hand, with rows of another state that are due as well."""


class PlainTransition(models.Model):
    """The audit table that ours is, declared by hand."""

    id = models.UUIDField(primary_key=True)
    instance = models.ForeignKey(PlainJob, on_delete=models.CASCADE, db_index=False)
    from_status = models.CharField(max_length=50, blank=True)
    to_status = models.CharField(max_length=50)
    transitioned_at = models.DateTimeField()
    metadata = models.JSONField(default=dict, blank=True)
    sequence = models.IntegerField()

    class Meta:
        unique_together = [("instance", "sequence")]

    def __str__(self) -> str:
        return f"{self.from_status} → {self.to_status}"
