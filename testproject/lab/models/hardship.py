"""Rows for workers in hard times: how long a handler takes is written on the row, and each call of one leaves a mark."""

from __future__ import annotations

import os
import time

from django.db import models

from lab.models.timed import Run
from statemachine_fields import State, StateMachine
from statemachine_fields.worker import HandlerContext


class Stint(models.Model):
    """BRIEF has little time and is tried again soon, for ever; LONG has much. Each is a queue of its own."""

    status: str

    seconds = models.FloatField(default=0)

    states = StateMachine(
        states=[
            State("BRIEF", retry_after=0.1, time_limit=0.5, queue="brief"),
            State("LONG", retry_after=0.1, time_limit=60, queue="long"),
            State("DONE"),
        ],
        initial="LONG",
        transitions={"BRIEF": ["DONE"], "LONG": ["BRIEF", "DONE"]},
    )

    @states.handler("BRIEF", "LONG")
    def work(self, ctx: HandlerContext):
        """Work for as many seconds as the row says, also if that changes meanwhile."""
        Run.objects.create(chore=self.pk, state=self.status, attempt=ctx.attempt, token=ctx.token, pid=os.getpid())
        began = time.monotonic()
        while time.monotonic() - began < Stint.objects.values_list("seconds", flat=True).get(pk=self.pk):
            time.sleep(0.02)
        return "DONE"
