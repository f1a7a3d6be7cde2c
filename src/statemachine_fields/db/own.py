"""Connections of our own threads: never from a pool, and with an end to everything they wait for.

The server ends what waits for a lock or takes too long. A server that has fallen silent cannot, so each statement also has
a time by which it must be answered, after which another thread hangs up: see `overdue`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import connections, transaction
from django.db.utils import load_backend

from statemachine_fields.db.dialect import dialect_for

#: No limit is shorter than this, however short the leases are.
SHORTEST = 0.5
#: What part of a lease a statement may take, and how much of that waiting for a lock.
SHARE, WAITING = 1 / 6, 0.5
LONGEST_WAIT = 1.0
#: The server gives up before the client does, so that its answer says what became of the statement.
AHEAD = 0.8

LIMITS = """
    SELECT set_config('lock_timeout', %s, {local}), set_config('statement_timeout', %s, {local})"""

#: How the server is to plan for those who send statements of ours and nothing else. They find their rows by an index, and the server
#: keeps their plans, also one that it made when the table was empty, and to read all of it cost nothing. By keys one plan is as good as
#: another, and to make one takes as long as to write a row. Up to PostgreSQL 17 a plan that has to read a table all the same, as that of
#: a trigger may, seems so dear that it would be compiled each time.
BY_INDEX = "SET enable_seqscan = off; SET jit = off"
BY_KEY = f"{BY_INDEX}; SET plan_cache_mode = force_generic_plan"
PLANS = {"claimer": BY_INDEX} | dict.fromkeys(["committer", "advancer", "second advancer", "heartbeat"], BY_KEY)

# A pooler names to its clients a process that the server does not know.
INTRODUCTION = """
    SELECT pg_backend_pid(),
           (SELECT setting::int FROM pg_settings WHERE name = 'lock_timeout'),
           (SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout')"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a statement may take in all, and how much of it waiting for a lock, in seconds."""

    statement: float
    lock: float

    @classmethod
    def of_lease(cls, seconds: float) -> Limits:
        """Return limits far below a lease, so that nothing that waits can cost one."""
        statement = max(seconds * SHARE, SHORTEST)
        return cls(statement, min(statement * WAITING, LONGEST_WAIT))


def own_connection(alias: str, role: str, limits: Limits, program: str = "statemachine_worker") -> Any:
    """Return a new connection to a database, for one thread.

    :param role: what it is for, as operators of the database see it, after the name of the program.
    """
    given = connections[alias].settings_dict
    base = load_backend(given["ENGINE"]).DatabaseWrapper
    options = {name: value for name, value in given["OPTIONS"].items() if name != "pool"}
    settings = {**given, "OPTIONS": options, "AUTOCOMMIT": True, "CONN_MAX_AGE": None}
    settings["CONN_HEALTH_CHECKS"] = False
    connection = dialect_for(connections[alias]).own_class(base)(settings, alias)
    connection.program, connection.role, connection.limits = program, role, limits
    return connection


def is_seen_by_others(connection: Any) -> bool:
    """Say whether another connection would see what this one sees: none does with a database in memory."""
    is_in_memory = getattr(connection, "is_in_memory_db", None)
    return is_in_memory is None or not is_in_memory()


@cache
def own_class(base: Any) -> type[Any]:
    """Return a class of Django's for connections to PostgreSQL, with limits."""
    return type("OwnConnection", (OwnConnection, base), {})


class OwnConnection:
    """What is ours in the class of such a connection."""

    program: str
    role: str
    limits: Limits
    #: Whether we talk to the server itself: what we set then is ours alone. Behind a pooler it is set for a transaction.
    is_direct = False
    _answer_by: float | None = None
    _is_limited = False

    def __init__(self, settings: dict[str, Any], alias: str) -> None:
        super().__init__(settings, alias)  # type: ignore[call-arg]  # Django's class comes after this one
        self.execute_wrappers = [self._execute_within_limits]

    @property
    def overdue(self) -> bool:
        """Whether a statement should have been answered by now."""
        answer_by = self._answer_by
        return answer_by is not None and time.monotonic() > answer_by

    def forget_answer(self) -> None:
        """Owe no answer any more: somebody has hung up."""
        self._answer_by = None

    def get_connection_params(self) -> dict[str, Any]:
        params: dict[str, Any] = super().get_connection_params()  # type: ignore[misc]
        ours = max(round(self.limits.statement), 2)  # less than 2 is not heeded
        params["connect_timeout"] = min(int(params.get("connect_timeout") or ours), ours)
        return params

    def init_connection_state(self) -> None:
        super().init_connection_state()  # type: ignore[misc]
        self.is_direct = False
        connection: Any = self
        with self.answered(), connection.connection.cursor() as cursor:
            cursor.execute(INTRODUCTION)
            pid, lock, statement = cursor.fetchone()
            self._milliseconds = (_lesser(lock, self.limits.lock), _lesser(statement, self.limits.statement * AHEAD))
            if pid == connection.connection.info.backend_pid:
                self.is_direct = True
                cursor.execute(LIMITS.format(local="false"), self._milliseconds)
                name = f"{self.program} {self.role}"
                cursor.execute("SELECT set_config('application_name', %s, false)", (name,))
                if self.role in PLANS:
                    cursor.execute(PLANS[self.role])

    def _execute_within_limits(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        connection: Any = self
        with self.answered():
            if self.is_direct or self._is_limited:
                return execute(sql, params, many, context)
            if not connection.in_atomic_block:  # for this statement alone
                with transaction.atomic(using=connection.alias):
                    self._set_limits()
                    return execute(sql, params, many, context)
            self._set_limits()
            return execute(sql, params, many, context)

    def _set_limits(self) -> None:
        """Set the limits until the transaction ends."""
        connection: Any = self
        with connection.wrap_database_errors, connection.connection.cursor() as cursor:
            cursor.execute(LIMITS.format(local="true"), self._milliseconds)
        self._is_limited = True

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Let the watch of the process hang up if what is done here is not done in time."""
        outer, self._answer_by = self._answer_by, time.monotonic() + self.limits.statement
        try:
            yield
        finally:
            self._answer_by = outer

    def is_usable(self) -> bool:
        with self.answered():
            usable: bool = super().is_usable()  # type: ignore[misc]
        return usable

    def _set_autocommit(self, autocommit: bool) -> None:
        self._is_limited = False
        with self.answered():
            super()._set_autocommit(autocommit)  # type: ignore[misc]

    def _commit(self) -> None:
        with self.answered():
            super()._commit()  # type: ignore[misc]

    def _rollback(self) -> None:
        with self.answered():
            super()._rollback()  # type: ignore[misc]


def _lesser(milliseconds: int, seconds: float) -> str:
    """Return the shorter of two limits, where 0 is none, as the server takes it."""
    ours = max(round(seconds * 1000), 1)
    return str(min(milliseconds, ours) if milliseconds else ours)
