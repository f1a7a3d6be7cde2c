"""A state under two names: the old one is retired, and rows in it are served as those in the new one are."""

from __future__ import annotations

from datetime import timedelta

from django.db import models

from statemachine_fields import State, StateMachine
from statemachine_fields.worker import HandlerContext


class Consignment(models.Model):
    """OPEN → BOXED → SENT, where BOXED was once called PACKED. `waits` keeps the handler from moving the row."""

    status: str

    name = models.CharField(max_length=20, blank=True)
    waits = models.BooleanField(default=False)

    states = StateMachine(
        states=[
            State("OPEN", external=True),
            State("PACKED", retired=True, retry_after=60, timeout_after=timedelta(days=1), timeout_to="LOST"),
            State("BOXED", retry_after=60, timeout_after=timedelta(days=1), timeout_to="LOST"),
            State("SENT"),
            State("LOST"),
        ],
        initial="OPEN",
        transitions={
            "OPEN": ["BOXED", "SENT"],
            "PACKED": ["SENT", "LOST", "OPEN"],
            "BOXED": ["SENT", "LOST", "OPEN"],
        },
    )

    @states.handler("PACKED", "BOXED")
    def send(self, ctx: HandlerContext):
        return None if self.waits else "SENT"
