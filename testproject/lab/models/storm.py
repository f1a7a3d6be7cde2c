"""Machines of every shape for tests of faults that do all harm at once. What a handler does is written on the row."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections, models, transaction
from django.db.models.signals import post_save
from django.dispatch import receiver

from statemachine_fields import State, StateMachine, handler
from statemachine_fields.worker import HandlerContext, Move


class Footprint(models.Model):
    """That a handler was called: written by it, outside the transaction of its outcome unless that is atomic."""

    machine = models.CharField(max_length=50)
    key = models.CharField(max_length=40)
    state = models.CharField(max_length=20)
    token = models.BigIntegerField()
    pid = models.IntegerField()
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["machine", "key"])]


class Mute(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def scripted(**options: Any) -> StateMachine:
    """Return the machine of a scripted model. Each class that is to have it with other options declares it anew."""
    return StateMachine(
        states=[
            State("NEW", retry_after=0.3, time_limit=2),
            State("DOING", retry_after=0.3, time_limit=2),
            State("RISKY", retry_after=0.2, max_attempts=3, error_to="FAILED", time_limit=1),
            State("HELD", external=True),
            State("DONE"),
            State("FAILED"),
            State("CANCELLED"),
        ],
        initial="NEW",
        transitions={
            "NEW": ["DOING", "RISKY", "HELD", "CANCELLED"],
            "DOING": ["DONE", "NEW", "HELD", "CANCELLED"],
            "RISKY": ["DONE", "FAILED", "CANCELLED"],
            "HELD": ["NEW", "CANCELLED"],
        },
        **options,
    )


class Scripted(models.Model):
    """NEW → DOING → DONE, with no end of tries; from RISKY to DONE or, after a few, FAILED. People may hold or cancel."""

    status: str

    script = models.CharField(max_length=20, blank=True)
    note = models.CharField(max_length=20, blank=True)

    states = scripted()

    class Meta:
        abstract = True

    def mark(self, ctx: HandlerContext, state: str) -> None:
        """Write that the handler was called, to the database the row is in."""
        Footprint.objects.using(self._state.db).create(
            machine=type(self).__name__, key=str(self.pk), state=state, token=ctx.token, pid=os.getpid()
        )

    def play(self, ctx: HandlerContext, state: str, otherwise: str) -> Any:
        """Do what the script says; by default move on."""
        match self.script:
            case "update":
                return Move(otherwise, update={"note": state}, metadata={"token": ctx.token})
            case "itself" if self._state.db == DEFAULT_DB_ALIAS:  # elsewhere it would go where the router says
                self.states.transition_to(otherwise, metadata={"by": "itself"})
                return None
            case "slow":
                time.sleep(0.3)
            case "flaky" if ctx.attempt == 1:
                raise ValueError("not the first time")
            case "copy" if state == "NEW":
                self.pk, self._state.adding, self.script = None, True, ""
                self.save(using=self._state.db)
                return Move(otherwise, update={"note": "copied"})
            case "leak":
                transaction.set_autocommit(False, using=self._state.db)
            case "hang":
                time.sleep(60)
            case "nonsense":
                return 42
            case "raise":
                raise ValueError("no luck")
            case "raise mute":
                raise Mute
            case "raise interrupt":
                raise KeyboardInterrupt
            case "raise closed":
                cursor = connections[self._state.db or DEFAULT_DB_ALIAS].cursor()
                cursor.close()
                cursor.execute("SELECT 1")
            case str(script) if script.startswith("exit "):
                os._exit(int(script[5:]))
        return otherwise


class ScriptedSync(Scripted):
    """With handlers that are plain functions."""

    class Meta:
        abstract = True

    @handler("NEW")
    def begin(self, ctx: HandlerContext):
        self.mark(ctx, "NEW")
        return self.play(ctx, "NEW", "DOING")

    @handler("DOING")
    def finish(self, ctx: HandlerContext):
        self.mark(ctx, "DOING")
        return self.play(ctx, "DOING", "DONE")

    @handler("RISKY")
    def risk(self, ctx: HandlerContext):
        self.mark(ctx, "RISKY")
        return self.play(ctx, "RISKY", "DONE")


class Errand(ScriptedSync):
    """Nothing but a row, which runs ahead."""

    states = scripted(run_ahead=True)


class Folder(ScriptedSync):
    """A `save()` of its own."""

    saves = models.IntegerField(default=0)

    def save(self, *args: Any, update_fields: Any = None, **kwargs: Any) -> None:
        self.saves += 1
        if update_fields is not None:
            update_fields = {*update_fields, "saves"}
        super().save(*args, update_fields=update_fields, **kwargs)


class Paper(ScriptedSync):
    """Somebody listens when it is saved."""


class Receipt(models.Model):
    """That a paper was saved, written in the transaction that saved it."""

    paper = models.ForeignKey(Paper, on_delete=models.CASCADE)
    status = models.CharField(max_length=20)
    created = models.BooleanField()


@receiver(post_save, sender=Paper, dispatch_uid="receipt")
def give_receipt(instance: Any, created: bool, using: str, **kwargs: Any) -> None:
    Receipt.objects.using(using).create(paper=instance, status=instance.status, created=created)


class Sack(ScriptedSync):
    """A UUID for a key."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)


class Container(models.Model):
    name = models.CharField(max_length=20, blank=True)


class Keg(Container, ScriptedSync):
    """A row in two tables, whose key is another's."""


class Bale(ScriptedSync):
    """Says itself in which queue it is, and how urgent; runs ahead."""

    queue = models.CharField(max_length=20, blank=True, default="")
    priority = models.SmallIntegerField(default=0)

    states = scripted(run_ahead=True, queue_field="queue", priority_field="priority")


class Postcard(Scripted):
    """Handlers that are coroutines and use the database. They run ahead."""

    states = scripted(run_ahead=True)

    @handler("NEW")
    async def begin(self, ctx: HandlerContext):
        return await self.aplay(ctx, "NEW", "DOING")

    @handler("DOING")
    async def finish(self, ctx: HandlerContext):
        return await self.aplay(ctx, "DOING", "DONE")

    @handler("RISKY")
    async def risk(self, ctx: HandlerContext):
        return await self.aplay(ctx, "RISKY", "DONE")

    async def aplay(self, ctx: HandlerContext, state: str, otherwise: str):
        await sync_to_async(self.mark)(ctx, state)
        match self.script:
            case "slow":
                await asyncio.sleep(0.3)
                return otherwise
            case "hang":
                await asyncio.sleep(60)
            case "itself" | "leak" | "copy":
                return await sync_to_async(self.play)(ctx, state, otherwise)
        return self.play(ctx, state, otherwise)


class Deposit(Scripted):
    """Atomic handlers: what they write stands or falls with the move."""

    @handler("NEW", atomic=True)
    def begin(self, ctx: HandlerContext):
        self.enter(ctx, "NEW")
        return self.play(ctx, "NEW", "DOING")

    @handler("DOING", atomic=True)
    def finish(self, ctx: HandlerContext):
        self.enter(ctx, "DOING")
        return self.play(ctx, "DOING", "DONE")

    @handler("RISKY", atomic=True)
    def risk(self, ctx: HandlerContext):
        self.enter(ctx, "RISKY")
        return self.play(ctx, "RISKY", "DONE")

    def enter(self, ctx: HandlerContext, state: str) -> None:
        Entry.objects.using(self._state.db).create(deposit=self, state=state, token=ctx.token)


class Entry(models.Model):
    """What a handler of a deposit did, once for each move that it made."""

    deposit = models.ForeignKey(Deposit, on_delete=models.CASCADE)
    state = models.CharField(max_length=20)
    token = models.BigIntegerField()


class Guest(models.Model):
    """Leaves when its time is up and is then deleted, with its luggage. Its history stays."""

    status: str

    states = StateMachine(
        states=[
            State("STAYING", timeout_after=1.5, timeout_to="LEFT"),
            State("WAVING", retry_after=0.3, timeout_after=1, timeout_to="LEFT"),
            State("LEFT", delete_after=1),
        ],
        initial="STAYING",
        transitions={"STAYING": ["WAVING", "LEFT"], "WAVING": ["LEFT"]},
        history_on_delete=models.DO_NOTHING,
    )

    @states.handler("WAVING")
    def wave(self, ctx: HandlerContext):
        Footprint.objects.using(self._state.db).create(
            machine="Guest", key=str(self.pk), state="WAVING", token=ctx.token, pid=os.getpid()
        )


class Luggage(models.Model):
    guest = models.ForeignKey(Guest, on_delete=models.CASCADE)
