"""Connections of the threads of a worker: each keeps its own, and gets a new one when the database was away."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from statemachine_fields.db.leases import leases_for

logger = logging.getLogger("statemachine_fields.worker")

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
#: Seconds between two log lines about the same trouble.
LOG_EVERY = 10.0


def introduce(using: str, role: str) -> None:
    """Tell the database who we are, so that an operator finds the connection in its list."""
    connection = connections[using]
    connection.ensure_connection()
    leases_for(connection).introduce(connection, f"statemachine_worker {role}")


def close_connections() -> None:
    """Close the connections of this thread."""
    connections.close_all()


class _Used(threading.local):
    """Whether the thread has ever had a connection: most of what tidying costs is to ask whether there is one."""

    connected = False


_used = _Used()


@receiver(connection_created, dispatch_uid="statemachine_fields.worker")
def _remember(connection: Any, **kwargs: object) -> None:
    _used.connected = True
    program, _, role = threading.current_thread().name.partition(" ")
    if program == "statemachine":  # also after the connection was lost
        leases_for(connection).introduce(connection, f"statemachine_worker {role.split()[0]}")


def tidy_after_handler() -> None:
    """Leave no transaction open and no broken connection behind, and do not let the query log of DEBUG grow."""
    if not _used.connected:
        return
    for connection in connections.all(initialized_only=True):
        if connection.connection is None:
            continue
        if connection.errors_occurred or connection.in_atomic_block or not connection.autocommit:
            connection.close()
        connection.queries_log.clear()


class Patience:
    """How long to wait for a database that is away: longer each time, and not all workers at once."""

    def __init__(self, role: str, stop: threading.Event) -> None:
        self.role = role
        self.stop = stop
        self.wait = FIRST_WAIT
        self.logged_at = 0.0

    def after(self, error: Exception) -> None:
        """Close what may be broken, say so now and then, and wait."""
        close_connections()
        now = time.monotonic()
        if now - self.logged_at >= LOG_EVERY:
            self.logged_at = now
            logger.warning("The %s has no database and tries again: %s", self.role, str(error).strip())
        self.stop.wait(self.wait * random.uniform(0.5, 1.5))  # noqa: S311 - to spread the workers, not to hide
        self.wait = min(self.wait * 2, LONGEST_WAIT)

    def over(self) -> None:
        """The database answered."""
        if self.wait > FIRST_WAIT:
            logger.info("The %s has its database again.", self.role)
        self.wait = FIRST_WAIT
