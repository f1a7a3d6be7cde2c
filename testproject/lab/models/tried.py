"""Rows whose tries are looked at: what outcomes write besides the machine's columns, what decides on errors, and what is kept."""

from __future__ import annotations

import time
from typing import Any

from django.db import models

from statemachine_fields import State, StateMachine, StateMachineError

EDGES = {"NEW": ["DONE", "NEXT", "FAILED"], "NEXT": ["DONE", "FAILED"], "FAILED": ["NEW"]}


def machine(**options: Any) -> StateMachine:
    return StateMachine(
        states=[
            State("NEW", retry_after=60, max_attempts=3, error_to="FAILED"),
            State("NEXT", retry_after=60, max_attempts=2),
            State("DONE"),
            State("FAILED", external=True),
        ],
        initial="NEW",
        transitions=EDGES,
        **options,
    )


class Bin(models.Model):
    """What a row may point to."""

    name = models.CharField(max_length=10, primary_key=True)


class Kit(models.Model):
    """A field of every kind that `update=` may write, and a handler that tests replace."""

    status: str

    name = models.CharField(max_length=10, blank=True)
    words = models.TextField(blank=True)
    number = models.IntegerField(default=0)
    small = models.PositiveSmallIntegerField(null=True)
    big = models.BigIntegerField(null=True)
    ratio = models.FloatField(null=True)
    price = models.DecimalField(max_digits=8, decimal_places=2, null=True)
    is_good = models.BooleanField(null=True)
    day = models.DateField(null=True)
    at = models.DateTimeField(null=True)
    hour = models.TimeField(null=True)
    took = models.DurationField(null=True)
    data = models.JSONField(null=True)
    uid = models.UUIDField(null=True)
    raw = models.BinaryField(null=True)
    bin = models.ForeignKey(Bin, on_delete=models.SET_NULL, null=True)
    touched_at = models.DateTimeField(auto_now=True)

    states = machine()

    @states.handler("NEW", "NEXT")
    def go_on(self, ctx: Any) -> Any:
        return "DONE"


class Judged(models.Model):
    """What decides on errors: for all states, and for one."""

    status: str

    note = models.CharField(max_length=20, blank=True)

    states = machine()

    @states.handler("NEW", "NEXT")
    def go_on(self) -> Any:
        raise StateMachineError(self.note)

    @states.on_error
    def decide(self, ctx: Any, error: BaseException) -> Any:
        return None

    @states.on_error("NEXT")
    def decide_on_next(self, ctx: Any, error: BaseException) -> Any:
        return None


class AsyncJudged(models.Model):
    """The same, on an event loop."""

    status: str

    note = models.CharField(max_length=20, blank=True)

    states = machine()

    @states.handler("NEW", "NEXT")
    async def go_on(self) -> Any:
        raise StateMachineError(self.note)

    @states.on_error
    async def decide(self, ctx: Any, error: BaseException) -> Any:
        return None

    @states.on_error("NEXT")
    def decide_on_next(self, ctx: Any, error: BaseException) -> Any:
        return None


class Trying(models.Model):
    """An abstract base whose machine keeps tries."""

    status: str

    note = models.CharField(max_length=20, blank=True)

    states = machine(record_attempts=True)

    class Meta:
        abstract = True

    @states.handler("NEW", "NEXT")
    def go_on(self, ctx: Any) -> Any:
        if self.note == "sleep":
            type(self)._default_manager.filter(pk=self.pk).update(note="asleep")
            time.sleep(600)
        return "DONE"


class Effort(Trying):
    """Keeps its tries, and has a second machine that does."""

    payment_status: str

    payment = machine(record_attempts=True, field="payment_status")

    @payment.handler("NEW", "NEXT")
    def pay(self) -> Any:
        return None


class SavedEffort(Trying):
    """Keeps its tries, and is saved by code of its own."""

    def save(self, *args: Any, **kwargs: Any) -> None:
        super().save(*args, **kwargs)


class AtomicEffort(models.Model):
    """Keeps its tries, with the outcome of a handler in its own transaction; runs ahead."""

    status: str

    note = models.CharField(max_length=20, blank=True)

    states = machine(record_attempts=True, run_ahead=True)

    @states.handler("NEW", "NEXT", atomic=True)
    def go_on(self, ctx: Any) -> Any:
        return "DONE"


class EffortProxy(Effort):
    class Meta:
        proxy = True


class BigEffort(Effort):
    """A table beside that of its parent, which has the machine."""

    size = models.IntegerField(default=1)
