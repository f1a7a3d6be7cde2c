"""Points in a worker at which a test can hold it, leave something out, raise an error, or lose an answer of the database.

Only a process that a test started with `SMF_FAILPOINTS` has any: see `harness.Worker`. A point is named after the call
it stands before or after, and counts how often it was reached, over all processes of a worker: the first `n` times it
writes its process id to the file `<point>.<hit>` and waits for `<point>.<hit>.go`.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.db import OperationalError

VARIABLE = "SMF_FAILPOINTS"

CALLS = {
    "claim": "statemachine_fields.worker.claim:Claimer.take",
    "handler": "statemachine_fields.worker.executor:HandlerExecutor.run",
    "commit": "statemachine_fields.worker.commit:Committer.write_group",
    "move": "statemachine_fields.worker.lease:Lane.enter",
    "advance": "statemachine_fields.worker.lease:Lane.enter_claimed",
    "adopt": "statemachine_fields.worker.lease:Lane.adopt",
    "settle": "statemachine_fields.worker.lease:Lane.stay",
    "beat": "statemachine_fields.worker.heartbeat:Heartbeat._beat",
    "extend": "statemachine_fields.worker.lease:Lane.beat",
    "recover": "statemachine_fields.worker.claiming:ClaimLoop._take_back_from_the_dead",
    "process": "statemachine_fields.worker.supervisor:run_process",
    "setup": "statemachine_fields.worker.process:django.setup",
    "say": "statemachine_fields.worker.supervisor:Supervisor._say",
}


class Failpoints(AppConfig):
    name = "tests.faults"
    label = "faults"

    def ready(self) -> None:
        if text := os.environ.get(VARIABLE):
            set_up(**json.loads(text))


def set_up(
    directory: str,
    pause: dict[str, int],
    off: list[str],
    lose: dict[str, int],
    fail: dict[str, int],
    constants: dict[str, Any],
) -> None:
    """Wrap the calls that are named.

    :param pause: how many times to wait, by point: a call, and `before` or `after`; `empty` after a claim that found nothing.
    :param off: calls that are not made at all.
    :param lose: how many times the connection breaks after a call was done by the database, by call.
    :param fail: how many times a call is not made and raises a MemoryError, which nobody expects, by call.
    :param constants: values for constants, by module of the worker and name, as in `supervisor.SILENCE`.
    """
    here = Path(directory)
    for constant, value in constants.items():
        module_name, _, name = constant.partition(".")
        module = importlib.import_module(f"statemachine_fields.worker.{module_name}")
        assert hasattr(module, name), constant
        setattr(module, name, value)
    for call in {*(point.split(".")[0] for point in pause), *off, *lose, *fail}:
        module_name, _, path = CALLS[call].partition(":")
        owner: Any = importlib.import_module(module_name)
        *outer, name = path.split(".")
        owner = functools.reduce(getattr, outer, owner)
        setattr(owner, name, _wrapped(getattr(owner, name), call, here, pause, off, lose, fail))


def _wrapped(
    function: Callable[..., Any],
    call: str,
    here: Path,
    pause: dict[str, int],
    off: list[str],
    lose: dict[str, int],
    fail: dict[str, int],
) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if call in off:
            return None
        _pause(here, f"{call}.before", pause)
        if _hit(here, f"{call}.fail", fail.get(call, 0)):
            raise MemoryError(f"injected into {call}")
        result = function(*args, **kwargs)
        is_empty = call == "claim" and not result  # as most claims are
        _pause(here, f"{call}.empty" if is_empty else f"{call}.after", pause)
        if call in lose and _hit(here, f"{call}.lose", lose[call]):
            _break((args[0] if hasattr(args[0], "connection") else args[1]).connection)
        return result

    return wrapper


def _pause(here: Path, point: str, pause: dict[str, int]) -> None:
    if hit := _hit(here, point, pause.get(point, 0)):
        gate = here / f"{point}.{hit}.go"
        while not gate.exists():
            time.sleep(0.01)


def _hit(here: Path, point: str, most: int) -> int:
    """Count, and return which time it was; 0 after so many."""
    for number in range(1, most + 1):
        try:
            with (here / f"{point}.{number}").open("x") as file:
                file.write(f"{os.getpid()}\n")
        except FileExistsError:
            continue
        return number
    return 0


def _break(connection: Any) -> None:
    import psycopg

    connection.connection.close()
    raise OperationalError("the connection was lost") from psycopg.OperationalError("the connection was lost")
