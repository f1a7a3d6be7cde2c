"""Timed machines: rows that workers move. What a handler does is written on the row, for tests to choose."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import sys
import time
import uuid
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.db import connection, models

from lab.models.options import Reason
from statemachine_fields import State, StateMachine, handler
from statemachine_fields.worker import HandlerContext, Move, Retry, TryAgainLater


class Run(models.Model):
    """That a handler was called: written by it, outside the transaction of its outcome unless that is atomic."""

    chore = models.BigIntegerField(db_index=True)
    state = models.CharField(max_length=50)
    attempt = models.IntegerField()
    token = models.BigIntegerField()
    pid = models.IntegerField()
    at = models.DateTimeField(auto_now_add=True)


class Chore(models.Model):
    """NEW → DOING → DONE, or FAILED. `script` says what the handler of each state does; by default it moves on."""

    status: str

    name = models.CharField(max_length=100, blank=True)
    script = models.JSONField(default=dict, blank=True)
    note = models.CharField(max_length=20, blank=True)

    states = StateMachine(
        states=[
            State("NEW", retry_after=60, backoff=2, max_attempts=3, error_to="FAILED", time_limit=2),
            State("DOING", retry_after=60, timeout_after=timedelta(days=3), timeout_to="FAILED"),
            State("DONE", delete_after=timedelta(days=365)),
            State("FAILED"),
            State("HELD", external=True),
        ],
        initial="NEW",
        transitions={
            "NEW": ["DOING", "DONE", "FAILED", "HELD"],
            "DOING": ["DONE", "FAILED", "NEW"],
            "HELD": ["NEW", "FAILED"],
        },
        queue="chores",
    )

    @states.handler("NEW")
    def start(self, ctx: HandlerContext):
        return self.play("NEW", ctx, "DOING")

    @states.handler("DOING")
    def finish(self, ctx: HandlerContext):
        return self.play("DOING", ctx, "DONE")

    def play(self, state: str, ctx: HandlerContext, otherwise: str):
        """Do what the script says for this state; for the nth try if it is a list."""
        step = self.script.get(state, otherwise)
        if isinstance(step, list):
            step = step[min(ctx.attempt, len(step)) - 1]
        if self.script.get("marks"):
            Run.objects.create(chore=self.pk, state=state, attempt=ctx.attempt, token=ctx.token, pid=os.getpid())
        match step:
            case None:
                return None
            case "raise":
                raise ValueError(f"no luck with {self.name}")
            case "retry":
                return Retry(error="asked for it")
            case "later":
                raise TryAgainLater
            case "itself":
                self.states.transition_to(otherwise)
                return None
            case "update":
                return Move(otherwise, update={"note": "written"}, metadata={"attempt": ctx.attempt})
            case "nonsense":
                return 42
            case "leave":
                sys.exit(3)
            case "exit":
                os._exit(13)
            case "segfault":
                ctypes.string_at(0)
            case "loop":
                while True:
                    pass
            case "sleep":
                time.sleep(3600)
            case {"sleep": seconds}:
                time.sleep(seconds)
                return otherwise
            case "wait":  # until the script says something else
                while Chore.objects.values_list("script", flat=True).get(pk=self.pk).get(state) == "wait":
                    time.sleep(0.02)
                return otherwise
            case "socket":
                ours, _theirs = socket.socketpair()
                ours.recv(1)
            case "hold":
                ctypes.PyDLL(None).sleep(3600)  # a call that never lets go of the interpreter
            case "hoard":
                hoard = []
                while True:
                    hoard.append(bytearray(32 * 2**20))
            case _:
                return step
        return None


class Payment(models.Model):
    """An atomic handler: what it writes stands or falls with the move."""

    status: str

    amount = models.IntegerField(default=1)
    fails = models.BooleanField(default=False)

    states = StateMachine(
        states=[State("OPEN", retry_after=60), State("BOOKED")],
        initial="OPEN",
        transitions={"OPEN": ["BOOKED"]},
    )

    @states.handler("OPEN", atomic=True)
    def book(self):
        Booking.objects.create(payment=self, amount=self.amount)
        if self.fails:
            raise ValueError("the books do not balance")
        return "BOOKED"


class Booking(models.Model):
    payment = models.ForeignKey(Payment, on_delete=models.CASCADE)
    amount = models.IntegerField()


class Ping(models.Model):
    """An async handler."""

    status: str

    wait = models.FloatField(default=0)

    states = StateMachine(
        states=[State("SENT", retry_after=60, time_limit=1), State("ANSWERED")],
        initial="SENT",
        transitions={"SENT": ["ANSWERED"]},
        queue="network",
    )

    @states.handler("SENT")
    async def await_answer(self, ctx: HandlerContext):
        await asyncio.sleep(self.wait)
        return Move("ANSWERED", metadata={"attempt": ctx.attempt})


class Step(models.Model):
    """A base whose machine is plain. What becomes of it is up to its children."""

    states = StateMachine(
        states=[("FIRST", "First"), ("LAST", "Last")], initial="FIRST", transitions={"FIRST": ["LAST"]}
    )

    class Meta:
        abstract = True


class ByHand(Step):
    """Has no handler, so it is not timed."""


class ByWorker(Step):
    """Has one, so it is."""

    @handler("FIRST")
    def go_on(self):
        return "LAST"


class ByOtherWorker(Step):
    """Has its own."""

    @handler("FIRST")
    def go_on(self):
        return None


class Ticking(models.Model):
    """Moves by time alone: no handler anywhere. With a save() of its own, so that each row is written by itself."""

    status: str

    saved: ClassVar[list[Any]] = []

    states = StateMachine(
        states=[
            State("FRESH", timeout_after=60, timeout_to="STALE"),
            State("STALE", timeout_after=timedelta(days=1), timeout_to="GONE"),
            State("GONE", delete_after=timedelta(days=7)),
        ],
        initial="FRESH",
        transitions={"FRESH": ["STALE"], "STALE": ["GONE", "FRESH"]},
    )

    def save(self, *args, **kwargs):
        self.saved.append(kwargs.get("update_fields"))
        super().save(*args, **kwargs)


class Handed(models.Model):
    """A base for rows that differ in their key only."""

    status: str

    states = StateMachine(
        states=[State("NEW", retry_after=60), State("DONE")], initial="NEW", transitions={"NEW": ["DONE"]}
    )

    class Meta:
        abstract = True

    @states.handler("NEW")
    def hand_over(self):
        return "DONE"


class Crate(Handed):
    """A UUID for a key."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)


class Coupon(Handed):
    """A text for a key, and a column of just its length."""

    code = models.CharField(primary_key=True, max_length=8)


class Device(models.Model):
    name = models.CharField(max_length=20, blank=True)


class Sensor(Device, Handed):
    """A row in two tables, whose key is another's."""


class Lot(models.Model):
    """States of different urgency; moves that the database refuses; deletion, unless something is pinned to the row."""

    status: str

    amount = models.IntegerField(default=1)
    touched_at = models.DateTimeField(auto_now=True)

    states = StateMachine(
        states=[
            State("OPEN", retry_after=60),
            State("BID", retry_after=60),
            State("URGENT", retry_after=60, priority=5, max_attempts=1, error_to="VOID"),
            State("SOLD", delete_after=timedelta(days=1)),
            State("VOID", external=True),
        ],
        initial="OPEN",
        transitions={"OPEN": ["BID", "SOLD", "VOID"], "BID": ["SOLD"], "URGENT": ["SOLD", "VOID"]},
    )

    class Meta:
        constraints = [
            models.CheckConstraint(condition=~models.Q(status="SOLD") | models.Q(amount__gt=0), name="lab_lot_sold"),
            models.CheckConstraint(condition=~models.Q(status="VOID") | models.Q(amount__gt=-10), name="lab_lot_void"),
        ]

    @states.handler("OPEN", "BID", "URGENT")
    def sell(self):
        return "SOLD"


class Pin(models.Model):
    lot = models.ForeignKey(Lot, on_delete=models.PROTECT)


class Noted(models.Model):
    """Fields of its own in the audit table, and a guard."""

    status: str

    locked = models.BooleanField(default=False)

    states = StateMachine(
        states=[State("NEW", retry_after=60), State("DONE")],
        initial="NEW",
        transitions={"NEW": ["DONE"]},
        transition_base=Reason,
    )

    @states.guard(to="DONE")
    def is_unlocked(self):
        return not self.locked

    @states.handler("NEW")
    def note(self):
        return "DONE"


class Fragile(models.CharField):
    """A text that the database can keep and the code cannot always read."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if value == "broken":
            raise ValueError("the text is broken")
        return value


class Vase(Handed):
    """Rows that cannot be loaded: by a field of the project's own, or by the driver, which knows no year 12000."""

    text = Fragile(max_length=20, blank=True)
    fired_at = models.DateTimeField(null=True)


class Transfer(models.Model):
    """An atomic handler that takes its time."""

    status: str

    wait = models.FloatField(default=0)

    states = StateMachine(
        states=[State("OPEN", retry_after=60, time_limit=1), State("SENT")],
        initial="OPEN",
        transitions={"OPEN": ["SENT"]},
    )

    @states.handler("OPEN", atomic=True)
    def send(self):
        Run.objects.create(chore=self.pk, state=self.status, attempt=1, token=self.status_lease_token, pid=os.getpid())
        if self.wait < 0:  # in the server
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(%s)", [-self.wait])
        else:
            time.sleep(self.wait)
        return "SENT"


class Call(models.Model):
    """An async handler with bad manners."""

    status: str

    manners = models.CharField(max_length=20, blank=True)

    states = StateMachine(
        states=[State("DIALLED", retry_after=60, time_limit=1), State("ANSWERED")],
        initial="DIALLED",
        transitions={"DIALLED": ["ANSWERED"]},
    )

    @states.handler("DIALLED")
    async def talk(self):
        match self.manners:
            case "endless":
                await asyncio.sleep(3600)
            case "blocking":
                time.sleep(3600)  # noqa: ASYNC251 - that is the point
            case "stubborn":
                while True:
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(3600)
            case "elsewhere":
                await sync_to_async(time.sleep)(3600)
            case "cancelled":
                raise asyncio.CancelledError
            case "slow":
                await asyncio.sleep(0.7)
        return "ANSWERED"
