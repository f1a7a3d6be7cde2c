"""Rows that wait for events. What a handler does with them is written on the row, for tests to choose."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db import models

from statemachine_fields import Event, State, StateMachine, handler
from statemachine_fields.worker import HandlerContext, Move, TryAgainLater


class Reading(models.Model):
    """That a handler was called with some events."""

    petition = models.CharField(max_length=50, db_index=True)
    numbers = models.JSONField()
    token = models.BigIntegerField()


def petition_machine(**options: Any) -> StateMachine:
    """Return DRAFT → OPEN, where letters are read by a handler, → HEARD, where the answer moves the row → GRANTED or DENIED."""
    return StateMachine(
        states=[
            State("DRAFT", external=True),
            State(
                "OPEN",
                until=Event("letter", "call"),
                retry_after=60,
                max_attempts=3,
                timeout_after=timedelta(days=3),
                timeout_to="DENIED",
            ),
            State("HEARD", until=Event({"court.granted": "GRANTED"}, denied="DENIED", letter="OPEN"), retry_after=60),
            State("GRANTED"),
            State("DENIED"),
        ],
        initial="DRAFT",
        transitions={
            "DRAFT": ["OPEN", "HEARD", "DENIED"],
            "OPEN": ["HEARD", "GRANTED", "DENIED", "DRAFT"],
            "HEARD": ["GRANTED", "DENIED", "OPEN"],
        },
        **options,
    )


class PetitionBase(models.Model):
    """`script` says what the handler of OPEN does; by default it moves on to HEARD with the first event, and takes all."""

    status: str

    number = models.CharField(max_length=20, blank=True)
    script = models.JSONField(default=dict, blank=True)
    note = models.CharField(max_length=20, blank=True)

    states = petition_machine()

    class Meta:
        abstract = True

    def play(self, ctx: HandlerContext):
        """Do what the script says: wait until there are so many, take some, fail, say when to be asked again."""
        numbers = [event.number for event in ctx.events]
        if self.script.get("marks"):
            name = f"{self._meta.model_name} {self.pk}"
            Reading.objects.create(petition=name, numbers=numbers, token=ctx.token)
        if self.script.get("raises"):
            raise ValueError("illegible")
        if "again" in self.script:
            raise TryAgainLater(after=self.script["again"])
        if len(ctx.events) < self.script.get("needs", 1):
            return None
        take = None
        if (wanted := self.script.get("take")) is not None:
            take = [event for event in ctx.events if event.number in wanted]
        return Move(
            self.script.get("to", "HEARD"),
            take=take,
            update={"note": ctx.events[0].name} if self.script.get("notes") else None,
            metadata={"read": numbers},
        )


class Petition(PetitionBase):
    """The plain one."""

    @handler("OPEN")
    def read(self, ctx: HandlerContext):
        return self.play(ctx)


class LongPetition(Petition):
    """A multi-table child."""

    pages = models.IntegerField(default=100)


class PetitionOfSomebody(Petition):
    """A proxy."""

    class Meta:
        proxy = True


class AtomicPetition(PetitionBase):
    """Read in the transaction of the outcome."""

    @handler("OPEN", atomic=True)
    def read(self, ctx: HandlerContext):
        return self.play(ctx)


class AsyncPetition(PetitionBase):
    """Read on an event loop."""

    @handler("OPEN")
    async def read(self, ctx: HandlerContext):
        return await sync_to_async(self.play)(ctx)


class SavedPetition(PetitionBase):
    """Its own `save()` has to see every move."""

    saves = models.IntegerField(default=0)

    def save(self, *args: Any, **kwargs: Any) -> None:
        super().save(*args, **kwargs)
        type(self).objects.filter(pk=self.pk).update(saves=models.F("saves") + 1)

    @handler("OPEN")
    def read(self, ctx: HandlerContext):
        return self.play(ctx)


class SwiftPetition(PetitionBase):
    """Goes on under the claim that it has."""

    states = petition_machine(run_ahead=True)

    @handler("OPEN")
    def read(self, ctx: HandlerContext):
        return self.play(ctx)


class HastyPetition(PetitionBase):
    """Waits for no longer than a second at a time, so that time-outs and events meet. What was missed is heard when more comes."""

    states = StateMachine(
        states=[
            State("OPEN", until=Event("letter", "call"), retry_after=1, timeout_after=1, timeout_to="MISSED"),
            State("HEARD", until=Event(letter="OPEN", call="OPEN"), timeout_after=1, timeout_to="MISSED"),
            State("MISSED", until=Event(letter="OPEN", call="OPEN")),
        ],
        initial="OPEN",
        transitions={"OPEN": ["HEARD", "MISSED"], "HEARD": ["OPEN", "MISSED"], "MISSED": ["OPEN"]},
    )

    @handler("OPEN")
    def read(self, ctx: HandlerContext):
        return self.play(ctx)


class Deal(models.Model):
    """Two machines, both with events, and a key that is no number."""

    code = models.CharField(max_length=20, primary_key=True)

    states = StateMachine(
        states=[State("OPEN", until=Event(signed="DONE")), State("DONE")],
        initial="OPEN",
        transitions={"OPEN": ["DONE"]},
    )
    payment = StateMachine(
        field="payment_status",
        states=[State("DUE", until=Event(paid="PAID")), State("PAID")],
        initial="DUE",
        transitions={"DUE": ["PAID"]},
    )
