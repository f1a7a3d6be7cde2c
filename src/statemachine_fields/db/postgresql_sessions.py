"""What a worker asks of its connections to PostgreSQL, and of what became of a transaction."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.db.backends.postgresql.psycopg_any import is_psycopg3

from statemachine_fields.db import prepared
from statemachine_fields.db.own import own_class

if TYPE_CHECKING or is_psycopg3:
    import psycopg

#: How a driver calls a connection with no transaction open.
IDLE = 0

#: How long to wait for a server that is asked to cancel a statement.
CANCEL_SECONDS = 0.2

# A pooler names a process to its clients that the server does not know, and hands what is set to others.
NAME_ITSELF = "SELECT CASE WHEN pg_backend_pid() = %s THEN set_config('application_name', %s, false) END"


class PostgreSQLSessions:
    """Connections: whether they are clean, and how to end one that waits."""

    def is_statement_lost(self, error: BaseException) -> bool:
        return prepared.is_lost(error)

    def hang_up(self, connection: Any) -> None:
        if (driver := connection.connection) is not None:
            with suppress(Exception):  # it may be closed by now, or at this moment
                line = socket.socket(fileno=os.dup(driver.fileno()))
                threading.Thread(target=_hang_up, args=(driver, line), daemon=True).start()

    def is_clean(self, connection: Any) -> bool:
        driver = connection.connection
        return not driver.closed and driver.info.transaction_status == IDLE

    def set_application_name(self, connection: Any, name: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(NAME_ITSELF, (connection.connection.info.backend_pid, name))

    def is_broken(self, connection: Any) -> bool:
        driver = connection.connection
        return bool(getattr(driver, "broken", driver.closed == 2))  # psycopg 2 has a number for it

    def own_class(self, base: type[Any]) -> type[Any]:
        found: type[Any] = own_class(base)  # type: ignore[arg-type]  # a class is hashable
        return found

    def transaction_number(self, connection: Any) -> int | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT txid_current()")
            return int(cursor.fetchone()[0])

    def was_committed(self, connection: Any, number: int) -> bool | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT txid_status(%s)", (number,))
            status = cursor.fetchone()[0]  # NULL if it was too long ago
        return None if status == "in progress" else status != "aborted"


def _hang_up(driver: Any, line: socket.socket) -> None:
    """Cancel what the server does for a connection of another thread, which it would not leave before it is done, and
    end the connection. To cancel takes a connection of its own, and the server may be as silent on that."""
    cancelling = threading.Thread(target=_cancel, args=(driver,), daemon=True)
    cancelling.start()
    cancelling.join(CANCEL_SECONDS)
    with suppress(OSError), line:
        line.shutdown(socket.SHUT_RDWR)


def _cancel(driver: Any) -> None:
    with suppress(Exception):
        if not is_psycopg3:
            driver.cancel()
        elif psycopg.capabilities.has_cancel_safe():
            driver.cancel_safe(timeout=CANCEL_SECONDS)
        elif psycopg.pq.__impl__ == "python":
            driver.cancel()
        # Else it would keep the interpreter until the server answers, and nothing in the process could run.
