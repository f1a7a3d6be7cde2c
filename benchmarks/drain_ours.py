"""Ours: the only module of the benchmarks of workers that knows how the worker is called."""

from __future__ import annotations

from collections.abc import Callable

from django.core.management import call_command

#: What the operator types: one worker process, everything else as it is by default. Heartbeats and time limits are on.
COMMAND = "statemachine_worker"


def drain_ours(window: float) -> None:
    """Serve `jobs.Job` with one worker process until nothing is due."""
    call_command(COMMAND, "jobs.Job", "--once", verbosity=0)


def serve_ours(model: str = "jobs.Job") -> None:
    """Serve a model with one worker process until it is killed."""
    call_command(COMMAND, model, verbosity=0)


def claimer_ours() -> Callable[[str, int], int]:
    """Return a function that claims up to so many due rows of `jobs.CrowdedJob` in a state and says how many it got."""
    from dataclasses import replace

    from jobs.models import CrowdedJob

    from statemachine_fields.worker.claim import Claimer
    from statemachine_fields.worker.lease import lanes_of

    (lane,) = lanes_of([CrowdedJob.states._meta])
    only = {state: replace(lane, schedules={state: clock}) for state, clock in lane.schedules.items()}
    claimer = Claimer("benchmark", 60)
    return lambda state, batch: len(claimer.claim(only[state], batch))
