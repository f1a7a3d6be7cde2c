"""Connections of the threads of a worker: its own, which end what they wait for, and those that handlers use; and how long to
wait for one that is not to be had."""

from __future__ import annotations

import enum
import logging
import random
import re
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, InterfaceError, connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.db.own import Limits, own_connection
from statemachine_fields.worker.digest import Digest

logger = logging.getLogger("statemachine_fields.worker")

FIRST_WAIT = 0.05

#: How long it is believed that a database is away, so that not every handler that meets it asks again.
BELIEVED_SECONDS = 1.0
#: How long a new connection may take that only asks whether there is one to be had.
PROBE_LIMITS = Limits(statement=5.0, lock=1.0)


class Backoff:
    """How long to leave something alone: longer after each failure, and not all workers as long."""

    def __init__(self, most: float, first: float = FIRST_WAIT) -> None:
        self.first = min(first, most)
        self.most = most
        self.failures = 0
        self.until = 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    @property
    def left(self) -> float:
        """Seconds until it may be tried again."""
        return max(self.until - time.monotonic(), 0.0)

    def failed(self) -> None:
        wait = min(self.first * 2 ** min(self.failures, 30), self.most)
        self.failures += 1
        self.until = time.monotonic() + wait * random.uniform(0.6, 1.0)  # noqa: S311 - to spread workers, not to hide

    def succeeded(self) -> None:
        self.failures, self.until = 0, 0.0


class Reconnect(Backoff):
    """How long to wait for a database that is away, and what is said of it."""

    def __init__(self, role: str, alias: str, digest: Digest) -> None:
        super().__init__(most=5.0, first=0.1)
        self.role, self.alias, self.digest = role, alias, digest

    def lost(self, error: BaseException) -> None:
        """Close what is broken, and say so now and then."""
        self.failed()
        with suppress(Exception):
            connections[self.alias].close()
        kind, text = ("away", self.role, self.alias), "The %s has no database and tries again (%s): %s"
        self.digest.log(kind, logging.WARNING, text, self.role, self.alias, str(error).strip())

    def found(self) -> None:
        """The database has answered."""
        if self.failures:
            logger.info("The %s has its database again (%s).", self.role, self.alias)
        self.succeeded()


class OwnConnections:
    """The connections of a process's own threads, for its watch to hang up on."""

    def __init__(self, lease_seconds: float) -> None:
        self.limits = Limits.of_lease(lease_seconds)
        #: What each of them knows, by name.
        self.marks: dict[str, Any] = {}
        self._open: dict[tuple[int, str], Any] = {}

    def use(self, aliases: Iterable[str], role: str) -> None:
        """Give the calling thread connections of its own, which are opened when they are used."""
        for alias in aliases:
            connection = own_connection(alias, role, self.limits)
            vars(connection).update(self.marks)
            connections[alias] = connection
            self._open[threading.get_ident(), alias] = connection

    def hang_up_on_the_silent(self) -> list[str]:
        """End the connections whose server owes an answer for too long, and return what they are for."""
        silent = []
        for connection in list(self._open.values()):
            if getattr(connection, "overdue", False):
                connection.forget_answer()
                dialect_for(connection).hang_up(connection)
                silent.append(f"{connection.role} of {connection.alias!r}")
        return silent


def close_connections() -> None:
    """Close the connections of this thread."""
    for connection in connections.all(initialized_only=True):
        with suppress(Exception):  # it may be broken, which is why it is closed
            connection.close()


def is_same(connection: Any, driver: Any) -> bool:
    """Say whether a connection still is the one it was, and works. After an error within a transaction Django may have
    closed it and opened another, which says nothing of what became of the statement."""
    return connection.connection is driver and driver is not None and connection.is_usable()


class _Used(threading.local):
    """What connections the thread has had: most of what tidying costs is to ask whether there is one."""

    def __init__(self) -> None:
        self.aliases: set[str] = set()
        #: How often one was opened anew since the last handler: Django does so after a transaction whose connection broke.
        self.reconnects = 0


used = _Used()


@receiver(connection_created, dispatch_uid="statemachine_fields.worker")
def _remember(connection: Any, **kwargs: object) -> None:
    if hasattr(connection, "role"):  # one of our own
        return
    if connection.alias in used.aliases:
        used.reconnects += 1
    used.aliases.add(connection.alias)
    program, _, role = threading.current_thread().name.partition(" ")
    if program == "statemachine":  # also after the connection was lost
        with suppress(DatabaseError, InterfaceError):
            dialect_for(connection).set_application_name(
                connection, f"statemachine_worker {role.split('_')[0].split()[0]}"
            )
        if notice_what_stays not in connection.execute_wrappers:
            connection.execute_wrappers.append(notice_what_stays)


#: Statements that change the session for whoever comes next, not a transaction or a row.
STAYS = re.compile(
    r"(?:^|;)\s*(?:set\s+(?!local\b|transaction\b|constraints\b)|reset\b|listen\b|unlisten\b|load\b|prepare\b|discard\b|attach\b"
    r"|pragma\b)|set_config\s*\(|\b(?:create|into)\s+(?:local\s+|global\s+)?temp(?:orary)?\b"
    r"|pg_(?:try_)?advisory_lock(?:_shared)?\s*\(",
    re.IGNORECASE,
)


def notice_what_stays(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
    """Note if a handler changes the session of its connection, so that no other meets it. What a function of the database's
    does, and what is sent past Django, is not seen."""
    if STAYS.search(sql if isinstance(sql, str) else str(sql)):
        context["connection"].statemachine_fields_changed = True
    return execute(sql, params, many, context)


def tidy_after_handler(*, is_suspect: bool = False) -> None:
    """Leave no transaction open and no broken connection behind, and do not let the query log of DEBUG grow.

    :param is_suspect: that another thread may have hung up on a connection of this one.
    """
    used.reconnects = 0
    for connection in connections.all(initialized_only=True):
        if is_suspect or _is_soiled(connection):
            discard(connection)
        else:
            connection.queries_log.clear()


def _is_soiled(connection: Any) -> bool:
    """Say whether a handler left something on a connection that another would meet."""
    if connection.in_atomic_block or connection.closed_in_transaction:
        return True
    if getattr(connection, "statemachine_fields_changed", False):
        return True
    if any(wrapper is not notice_what_stays for wrapper in connection.execute_wrappers):
        return True
    if connection.connection is None:
        return False
    if connection.errors_occurred or connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        return True
    return not dialect_for(connection).is_clean(connection)


def discard(connection: Any) -> None:
    """Close a connection, whatever Django thinks that it is in the middle of, and let the thread have another."""
    connection.in_atomic_block = connection.needs_rollback = False
    connection.savepoint_ids, connection.atomic_blocks, connection.run_on_commit = [], [], []
    with suppress(Exception):
        connection.close()
    used.aliases.discard(connection.alias)
    with suppress(AttributeError):  # or somebody has discarded it already
        del connections[connection.alias]


_away: dict[str, float] = {}


class Trouble(enum.Enum):
    """What is behind an error that looks as if a database were away."""

    #: No new connection can be had.
    AWAY = enum.auto()
    #: One can, but somebody has broken the one that was used.
    CUT = enum.auto()
    #: Neither: it is the handler's own, such as a cursor that it has closed.
    NONE = enum.auto()


def diagnose(using: str) -> Trouble:
    """Say what has become of the databases that a handler has used in this thread, now that it has met an error."""
    failed = [each for each in connections.all(initialized_only=True) if each.errors_occurred]
    if any(_is_away(alias) for alias in {using, *(each.alias for each in failed)}):
        return Trouble.AWAY
    is_cut = used.reconnects or any(each.connection is None or dialect_for(each).is_broken(each) for each in failed)
    return Trouble.CUT if is_cut else Trouble.NONE


def _is_away(alias: str) -> bool:
    if time.monotonic() < _away.get(alias, 0.0):
        return True
    probe = own_connection(alias, "probe", PROBE_LIMITS)
    try:
        probe.ensure_connection()
    except (DatabaseError, InterfaceError):
        _away[alias] = time.monotonic() + BELIEVED_SECONDS
        return True
    finally:
        with suppress(Exception):
            probe.close()
    return False
