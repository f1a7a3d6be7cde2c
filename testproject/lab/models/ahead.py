"""Machines whose rows run ahead: what a worker moves into a state where it is due at once goes on under the same claim."""

from __future__ import annotations

import time
from typing import Any

from django.db import models

from lab.models.shapes import Mark
from lab.models.timed import Fragile
from statemachine_fields import State, StateMachine
from statemachine_fields.worker import HandlerContext, Move

STEPS = ("ONE", "TWO", "THREE", "FOUR", "FIVE")


class Relay(models.Model):
    """Five quick steps. `script` says what the handler of each state does; by default it moves on."""

    status: str

    script = models.JSONField(default=dict, blank=True)
    note = models.CharField(max_length=20, blank=True)
    text = Fragile(max_length=20, blank=True)

    states = StateMachine(
        states=[
            *[State(step, retry_after=60, max_attempts=2, error_to="FAILED") for step in STEPS],
            State("FAILED"),
            State("END"),
        ],
        initial="ONE",
        transitions={
            "ONE": ["TWO", "FAILED", "END"],
            "TWO": ["THREE", "FAILED"],
            "THREE": ["FOUR", "FAILED"],
            "FOUR": ["FIVE", "FAILED"],
            "FIVE": ["END", "ONE", "FAILED"],
        },
        run_ahead=True,
    )

    @states.handler(*STEPS)
    def run(self, ctx: HandlerContext) -> Any:
        if self.script.get("marks"):
            Mark.of(self, ctx).save()
        otherwise = "END" if self.status == STEPS[-1] else STEPS[STEPS.index(self.status) + 1]
        match self.script.get(self.status, otherwise):
            case "raise":
                raise ValueError("no luck")
            case "itself":
                self.states.transition_to(otherwise)
                return None
            case "update":
                return Move(otherwise, update={"note": self.status})
            case "compute":
                return Move(otherwise, update={"note": models.F("status")})
            case "break":  # so that nobody can read the row any more
                Relay.objects.filter(pk=self.pk).update(text="broken")
                return otherwise
            case "change":  # in the database alone
                Relay.objects.filter(pk=self.pk).update(note=self.status)
                self.note = "in memory"
                return otherwise
            case {"sleep": seconds}:
                time.sleep(seconds)
                return otherwise
            case {"after": seconds}:
                return Move(otherwise, after=seconds)
            case step:
                return step


class Handover(models.Model):
    """Each step in other hands: another queue, an event loop, a transaction, after a while."""

    status: str

    note = models.CharField(max_length=100, blank=True)

    states = StateMachine(
        states=[
            State("THREAD", retry_after=60),
            State("QUEUE", queue="other", retry_after=60),
            State("LOOP", retry_after=60),
            State("ATOMIC", retry_after=60),
            State("THEN", retry_after=60),
            State("LATER", start_after=3600, retry_after=60),
            State("END"),
        ],
        initial="THREAD",
        transitions={
            "THREAD": ["QUEUE"],
            "QUEUE": ["LOOP"],
            "LOOP": ["ATOMIC"],
            "ATOMIC": ["THEN"],
            "THEN": ["LATER"],
            "LATER": ["END"],
        },
        run_ahead=True,
    )

    def tell(self, ctx: HandlerContext) -> None:
        Mark.of(self, ctx).save()

    @states.handler("THREAD")
    def thread(self, ctx: HandlerContext) -> str:
        self.tell(ctx)
        return "QUEUE"

    @states.handler("QUEUE")
    def queue(self, ctx: HandlerContext) -> str:
        self.tell(ctx)
        return "LOOP"

    @states.handler("LOOP")
    async def loop(self, ctx: HandlerContext) -> str:
        await Mark.of(self, ctx).asave()
        return "ATOMIC"

    @states.handler("ATOMIC", atomic=True)
    def atomic(self, ctx: HandlerContext) -> str:
        self.tell(ctx)
        return "THEN"

    @states.handler("THEN")
    def then(self, ctx: HandlerContext) -> str:
        self.tell(ctx)
        return "LATER"

    @states.handler("LATER")
    def later(self) -> str:
        return "END"
