"""Helpers for your own tests of timed machines, and of any machine's history.

`drain()` runs what a worker would run, in the test's own process and transaction. The pytest fixtures in
`statemachine_fields.pytest_plugin` give the same.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from django.db import models

from statemachine_fields.db.clock import read_instant
from statemachine_fields.db.rows import all_rows
from statemachine_fields.exceptions import StateMachineError
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.bound import BoundMachine
from statemachine_fields.machine.registry import all_machines, machines_of
from statemachine_fields.worker.draining import Drain, DrainTally, DrainUntil
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.lease import lanes_of

__all__ = ["DrainTally", "assert_history", "assert_state", "drain"]

#: After how many dead workers a row is given up; in a test none dies unless a lease was left open on purpose.
MAX_CRASHES = 5


def drain(
    *models_or_machines: type[models.Model] | BoundMachine[Any],
    at: datetime.timedelta | datetime.datetime | None = None,
    collapse_time: bool = True,
    timeouts: bool = False,
    deletions: bool = False,
    reraise: bool = False,
    max_tries: int = 1000,
    using: str | None = None,
) -> DrainTally:
    """Run everything that is due, and what becomes due by that, until there is nothing left; return a tally.

    In the test's own process and transaction, so it works in `TestCase` and sees what the test has written.

    :param models_or_machines: what to run: all timed machines of the project if not given.
    :param at: let time pass until then, and run each row when it is due, with time-outs, deletions and retries, and
        nothing that is due later. A `timedelta` counts from the first `drain(at=...)` of the test; an instant is one of
        the database's clock. Rows and records of all machines grow older by that time; the clock is left alone.
    :param collapse_time: make waiting rows due, so that no test has to wait for `start_after` or `retry_after`. The
        database's clock is left alone. A row that answers "not yet" is asked once for each state it enters; one that
        fails is tried until its `max_attempts` are used up, or once if it has none.
    :param timeouts: let time-outs happen, whatever the time.
    :param deletions: let deletions happen, whatever the time.
    :param reraise: raise what a handler raises, in place of recording it.
    :param max_tries: raise `AssertionError` after so many: two states that hand a row to and fro would go on for ever.
        With `at`, after so many as of one instant, or a hundred times as many in all.
    :param using: the database, if not the one that the router chooses.
    """
    lanes = lanes_of(_machines(models_or_machines), using=using)
    executor = HandlerExecutor(max_crashes=MAX_CRASHES, fires_timeouts=timeouts, fires_deletions=deletions, jitter=0.0)
    if at is None:
        return Drain(lanes, executor, collapse_time, reraise, max_tries).run()
    if timeouts or deletions:
        raise TypeError(
            "drain(at=...) lets time-outs and deletions happen when they are due. Leave timeouts= and deletions= out."
        )
    if not isinstance(at, datetime.timedelta):
        at = read_instant(at, "at")
    elif at < datetime.timedelta(0):
        raise ValueError(f"at must not be negative, got {at!r}.")
    return DrainUntil(lanes, executor, collapse_time=False, reraise=reraise, max_tries=max_tries, at=at).run()


def assert_state(instance: models.Model, state: str, machine: str = "states") -> None:
    """Assert that the row is in a state, by what the database has."""
    bound = machines_of(type(instance))[machine]
    rows = all_rows(bound.model, instance._state.db).filter(pk=bound.key_of(instance))
    found: str | None = rows.values_list(bound.names.status, flat=True).first()
    if found != state:
        history = " → ".join(_path(instance, machine)) or "no moves"
        raise AssertionError(f"{instance!r} is in {found!r}, expected {state!r}. Its history: {history}.")


def assert_history(instance: models.Model, *states: str, machine: str = "states") -> None:
    """Assert that the row went through exactly these states, the one it started from first."""
    path = _path(instance, machine)
    if path != list(states):
        raise AssertionError(
            f"{instance!r} went {' → '.join(path) or 'nowhere'}, expected {' → '.join(states) or 'no moves'}."
        )


def _path(instance: models.Model, machine: str) -> list[str]:
    accessor = getattr(instance, machine)
    path: list[str] = []
    for record in accessor.history.order_by("sequence"):
        path += [record.from_status, record.to_status] if not path else [record.to_status]
    return [state for state in path if state]


def _machines(given: Iterable[type[models.Model] | BoundMachine[Any]]) -> list[Binding[Any]]:
    if not given:
        return [machine for machine in all_machines() if machine.is_timed]
    found: list[Binding[Any]] = []
    for each in given:
        if isinstance(each, BoundMachine):
            found.append(each._meta)
            continue
        timed = [machine for machine in machines_of(each).values() if machine.is_timed]
        if not timed:
            raise StateMachineError(f"{each._meta.label} has no timed machine, so there is nothing to drain.")
        found += timed
    return list(dict.fromkeys(found))
