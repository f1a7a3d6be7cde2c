"""What a test changes in the surroundings of a worker: its clock, its memory, its pipes and its database.

Only a process whose settings are `tests.faults.settings_injected` has any: see `injected()`.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import resource
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from django.apps import AppConfig
from django.db import connection
from django.utils import timezone

VARIABLE = "SMF_INJECTIONS"


def injected(**injections: Any) -> dict[str, str]:
    """Return the environment of a worker with injections.

    :param skew: by how many seconds its wall clock is wrong.
    :param memory: how many bytes of address space each of its processes may have.
    :param database: what differs in its `DATABASES["default"]`.
    :param other: the URL of its `DATABASES["other"]`.
    :param routers: its `DATABASE_ROUTERS`.
    :param asks: that an app of the project asks the database something as soon as it is ready.
    :param spawn: that its processes are not forked, as on macOS.
    :param pipe: how many bytes the pipes to its supervisor hold.
    :param databases: URLs of other databases, by alias; what was `default` is then `main`.
    :param routers: its `DATABASE_ROUTERS`.
    """
    return {"DJANGO_SETTINGS_MODULE": "tests.faults.settings_injected", VARIABLE: json.dumps(injections)}


def injections() -> dict[str, Any]:
    return dict(json.loads(os.environ.get(VARIABLE, "{}")))


def set_wall_clock(skew: float) -> None:
    """Let Python's wall clock be wrong. The monotonic one is left alone, as by an operator who sets the time."""
    true_time, true_time_ns, true = time.time, time.time_ns, datetime.datetime

    class Skewed(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return true.now(tz) + datetime.timedelta(seconds=skew)

        @classmethod
        def utcnow(cls) -> Any:
            return true.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=skew)

    time.time = lambda: true_time() + skew
    time.time_ns = lambda: true_time_ns() + int(skew * 1e9)
    datetime.datetime = Skewed  # type: ignore[misc]
    timezone.datetime = Skewed  # type: ignore[attr-defined]


class Stubborn:
    """A router that knows one database, whatever it is told of the row."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "default"

    db_for_write = db_for_read

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool:
        return True


class Injections(AppConfig):
    name = "tests.faults.injections"
    label = "injections"

    def ready(self) -> None:
        wanted = injections()
        if "memory" in wanted:
            resource.setrlimit(resource.RLIMIT_AS, (wanted["memory"], wanted["memory"]))
        if wanted.get("asks"):
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        if wanted.get("spawn"):
            import_module("statemachine_fields.worker.supervisor").sys = SimpleNamespace(platform="darwin")  # type: ignore[attr-defined]
        if "pipe" in wanted:
            supervisor: Any = import_module("statemachine_fields.worker.supervisor")
            process: Any = import_module("statemachine_fields.worker.process")
            supervisor.run_process = _with_a_small_pipe(process.run_process, wanted["pipe"])


def _with_a_small_pipe(run_process: Any, size: int) -> Any:
    def run(options: Any, pipes: Any, *arguments: Any) -> None:
        fcntl.fcntl(pipes.reports.fileno(), fcntl.F_SETPIPE_SZ, size)
        run_process(options, pipes, *arguments)

    return run
