"""Which machines and queues a worker serves: from labels to lanes."""

from __future__ import annotations

from typing import Any

from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.registry import find_machine, find_machines
from statemachine_fields.worker.lanes import Lane, lanes_of
from statemachine_fields.worker.options import WorkerOptions


def select_machines(labels: list[str], excluded: list[str]) -> list[Binding[Any]]:
    """Return the timed machines that labels name, or all, less those excluded; or raise ValueError."""
    found = find_machines(labels)
    timed = [machine for machine in found if machine.is_timed]
    if labels and (plain := [machine for machine in found if not machine.is_timed]) and not timed:
        raise ValueError(
            f"{', '.join(map(str, plain))}: no state has a handler or a policy, so there is nothing for a worker to do."
        )
    less = set(find_machines(excluded)) if excluded else set()
    machines = [machine for machine in timed if machine not in less]
    if not machines:
        raise ValueError("No timed machine is left to serve. Give a state a handler or a policy, or exclude less.")
    return machines


def lanes_for(options: WorkerOptions) -> list[Lane]:
    """Return the lanes that the options name."""
    machines = [find_machine(*label.rsplit(".", 1)) for label in options.machines]
    return lanes_of(machines, options.queues or None, options.database)
