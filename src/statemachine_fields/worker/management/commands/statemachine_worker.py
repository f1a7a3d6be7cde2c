"""`manage.py statemachine_worker`: run the handlers of timed machines, and move their rows on."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from statemachine_fields.db.dialect import dialect_for, is_served
from statemachine_fields.machine.binding import Binding
from statemachine_fields.management.arguments import add_labels, add_number, at_least, find
from statemachine_fields.schedule.policy import is_queue_name
from statemachine_fields.worker.lease import lanes_of
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.supervisor import Supervisor

LOGGER = logging.getLogger("statemachine_fields")
logger = logging.getLogger("statemachine_fields.worker")
LEVELS = {0: logging.ERROR, 1: logging.INFO, 2: logging.INFO, 3: logging.DEBUG}


class Command(BaseCommand):
    help = (
        "Runs the handlers of timed machines and moves their rows on: when they are due, one worker at a time for each "
        "row, and again if a worker dies. Start as many as you like, on as many hosts as you like. SIGTERM or Ctrl-C "
        "stops in good order, a second one at once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_labels(parser, "serve", "timed machine")
        parser.add_argument(
            "--exclude", action="append", default=[], metavar="LABEL", help="What not to serve. May be repeated."
        )
        add_number(parser, "--processes", 1, "Worker processes to run.")
        add_number(parser, "--threads", 4, "Handlers at once in each.")
        add_number(parser, "--coroutines", 100, "Handlers at once in each process that are async.")
        threads = "Threads in each process, with a connection each, in which async handlers use the ORM."
        add_number(parser, "--coroutine-connections", 8, threads)
        parser.add_argument(
            "--queue",
            action="append",
            default=[],
            type=_queue,
            metavar="NAME[=N]",
            help="Serve only this queue, with at most N rows at once in each process. May be repeated.",
        )
        parser.add_argument(
            "--once", action="store_true", help="Stop as soon as nothing is due: for cron, and for trying things out."
        )
        parser.add_argument(
            "--run-for", type=_seconds, default=0.0, metavar="SECONDS", help="Stop in good order after so long."
        )
        parser.add_argument(
            "--max-rows",
            type=at_least(1),
            default=0,
            metavar="N",
            help="Replace a process after it has taken so many rows, if handlers leak memory.",
        )
        parser.add_argument(
            "--liveness-file",
            metavar="PATH",
            help="Write the time into this file every second while all is well, and remove it at the end.",
        )
        parser.add_argument("--database", choices=tuple(connections), help="The database, if not the router's choice.")
        parser.add_argument(
            "--log-format",
            choices=["text", "json"],
            default="text",
            help="text for people, json for machines: one object a line. Default: text.",
        )

    def handle(self, *, labels: list[str], exclude: list[str], **options: Any) -> None:
        machines = select_machines(labels, exclude)
        queues: dict[str, int | None] = dict(options["queue"])
        lanes = lanes_of(machines, queues or None, options["database"])
        names_itself = any(bound.is_timed and bound.queue_field is not None for bound in machines)  # any name may come
        if not names_itself and (unknown := set(queues) - {lane.queue for lane in lanes}):
            there = sorted({lane.queue for lane in lanes_of(machines)})
            raise CommandError(f"No state has the queue {', '.join(sorted(unknown))}. There are: {', '.join(there)}.")
        if not lanes:
            raise CommandError(
                "In none of these machines is anything ever due, so there is nothing for a worker to do."
            )
        self._refuse_what_the_database_cannot(lanes, options["processes"])
        set_up_logging(options["log_format"], options["verbosity"])
        coroutine_connections = int(min(options["coroutine_connections"], room_in_pools(lanes, options["threads"])))
        self._warn_of_small_pools(lanes, options["threads"], coroutine_connections)
        same = ("processes", "threads", "coroutines", "once", "run_for", "max_rows", "liveness_file", "database")
        worker = WorkerOptions(
            machines=tuple(map(str, machines)),
            coroutine_connections=coroutine_connections,
            queues=queues,
            **{name: options[name] for name in same},
        )
        logger.info("Serving %s with %d × %d.", ", ".join(map(str, machines)), worker.processes, worker.threads)
        if code := Supervisor(worker).run():
            sys.exit(code)

    def _warn_of_small_pools(self, lanes: list[Any], threads: int, coroutine_connections: int) -> None:
        """Say so if handlers may have to wait for a connection. What the worker itself uses is not from the pool."""
        for using in {lane.using for lane in lanes}:
            handlers = [each.handler for lane in lanes for each in lane.schedules.values() if each.handler is not None]
            is_async = any(handler.is_async for handler in handlers)
            wanted = coroutine_connections if is_async else 0
            wanted += threads if any(not handler.is_async for handler in handlers) else 0
            size = pool_size(connections[using].settings_dict["OPTIONS"].get("pool"))
            if size is not None and size < wanted:
                logger.warning(
                    "The pool of database %r has %d connections, and the handlers of a process may want %d. Those that get "
                    "none within the pool's time-out fail. Set its max_size to %d, or use fewer --threads%s.",
                    using,
                    size,
                    wanted,
                    wanted,
                    " and --coroutine-connections" if is_async else "",
                )

    def _refuse_what_the_database_cannot(self, lanes: list[Any], processes: int) -> None:
        for using in {lane.using for lane in lanes}:
            connection = connections[using]
            if not is_served(connection):
                raise CommandError(
                    f"Database {using!r} is {connection.display_name}, on which there is no worker yet. Move the models to "
                    "PostgreSQL, or move the rows yourself with transition_to()."
                )
            if processes > 1 and not dialect_for(connection).is_shared:
                raise CommandError(
                    f"Database {using!r} is {connection.display_name}, which one process at a time can write to. Run one "
                    "worker with --processes 1 and more --threads, or move the models to PostgreSQL."
                )
            connection.close()


def select_machines(labels: list[str], excluded: list[str]) -> list[Binding[Any]]:
    """Return the timed machines that labels name, or all, less those excluded; or raise CommandError."""
    found = find(labels)
    timed = [machine for machine in found if machine.is_timed]
    if labels and (plain := [machine for machine in found if not machine.is_timed]) and not timed:
        raise CommandError(
            f"{', '.join(map(str, plain))}: no state has a handler or a policy, so there is nothing for a worker to do."
        )
    less = set(find(excluded)) if excluded else set()
    machines = [machine for machine in timed if machine not in less]
    if not machines:
        raise CommandError("No timed machine is left to serve. Give a state a handler or a policy, or exclude less.")
    return machines


def room_in_pools(lanes: list[Any], threads: int) -> float:
    """Return how many connections coroutines can have beside the threads that run handlers, at least one."""
    sizes = [pool_size(connections[lane.using].settings_dict["OPTIONS"].get("pool")) for lane in lanes]
    handlers = [each.handler for lane in lanes for each in lane.schedules.values() if each.handler is not None]
    taken = threads if any(not handler.is_async for handler in handlers) else 0
    return min((max(size - taken, 1) for size in sizes if size is not None), default=math.inf)


def pool_size(options: Any) -> int | None:
    """Return how many connections Django's `pool` option gives a process; None without it."""
    if not options:
        return None
    given = options if isinstance(options, dict) else {}
    least = given.get("min_size", 4)  # psycopg_pool's own
    most = given.get("max_size")
    return int(least if most is None else most)


def set_up_logging(format: str, verbosity: int) -> None:
    """Show what the worker says, unless the project's own LOGGING does, and in JSON if that is wanted."""
    if format == "text" and LOGGER.hasHandlers():
        return
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s [%(process)d] %(message)s")
    handler.setFormatter(JsonFormatter() if format == "json" else text)
    LOGGER.handlers[:] = [handler]
    LOGGER.propagate = False
    LOGGER.setLevel(LEVELS.get(verbosity, logging.DEBUG))


#: What every record has. The rest is what the line is about.
STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with what it is about in fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        fields.update({name: value for name, value in vars(record).items() if name not in STANDARD})
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def _seconds(text: str) -> float:
    seconds = float(text)
    if seconds <= 0:
        raise ArgumentTypeError("must be more than 0")
    return seconds


def _queue(text: str) -> tuple[str, int | None]:
    name, sign, limit = text.partition("=")
    if not is_queue_name(name) or (sign and not (limit.isdecimal() and int(limit) > 0)):
        raise ArgumentTypeError(f"must be a name, or a name and a number above 0 as in mail=2, got {text!r}")
    return name, int(limit) if sign else None
