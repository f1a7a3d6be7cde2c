"""Rows of five steps that do nothing, as they are by default and with `run_ahead`."""

from __future__ import annotations

from inspect import signature
from typing import Any

import witness
from django.db import models

from statemachine_fields import State, StateMachine

STEPS = ("ONE", "TWO", "THREE", "FOUR", "FIVE")
NEXT = dict(zip(STEPS, (*STEPS[1:], "END"), strict=True))


def machine(**options: Any) -> StateMachine:
    states = [State(step, retry_after=60) for step in STEPS]
    return StateMachine(
        states=[*states, State("END")],
        initial="ONE",
        transitions={step: [then] for step, then in NEXT.items()},
        **options,
    )


class Stepping(models.Model):
    """What both do."""

    status: str
    payload = models.BinaryField(null=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"Relay {self.pk}"

    def go(self) -> str:
        witness.seen()
        return NEXT[self.status]


class ByClaims(Stepping):
    """Each step is claimed."""

    states = machine()
    step = states.handler(*STEPS)(Stepping.go)


if "run_ahead" in signature(StateMachine).parameters:  # earlier commits have none

    class Ahead(Stepping):
        """Rows go on under the claim that they have."""

        states = machine(run_ahead=True)
        step = states.handler(*STEPS)(Stepping.go)
