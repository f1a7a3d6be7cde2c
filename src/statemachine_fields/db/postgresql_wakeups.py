"""Wake-ups on PostgreSQL: a message from whoever makes a row due to those who wait for one, sent only while somebody waits.

A gate is an advisory lock. A listener whose workers have nothing to do holds it for itself. Who has committed a row that is due
tries to share it, in a transaction of its own, and sends the message only where that fails: sending takes a lock that all
senders of a server queue for, and sharing takes none that two of them would collide on.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from typing import Any

from django.db.backends.postgresql.psycopg_any import is_psycopg3

from statemachine_fields.db.dialect import LEFT

#: All messages go through one channel. A server wakes all listeners of a database, whatever they listen to.
CHANNEL = "statemachine_fields"

# One gate, as nearly always: it takes half as long as a statement for many.
KNOCK_ONE = f"SELECT pg_notify('{CHANNEL}', %s) WHERE NOT pg_try_advisory_xact_lock_shared(%s::bigint)"

KNOCK = f"""
    SELECT gate, pg_notify('{CHANNEL}', gate::text) FROM unnest(%s::bigint[]) AS asked (gate)
     WHERE NOT pg_try_advisory_xact_lock_shared(gate)"""

TAKE = "SELECT gate FROM unnest(%s::bigint[]) AS wanted (gate) WHERE pg_try_advisory_lock(gate)"

# Only one listener can hold a gate. Others that wait as well hear from this that they can now.
LEAVE = f"""
    SELECT pg_advisory_unlock(gate), pg_notify('{CHANNEL}', '{LEFT}' || gate) FROM unnest(%s::bigint[]) AS held (gate)"""


class PostgreSQLWakeups:
    """Messages between those who write rows and those who wait for them."""

    can_notify = True
    #: With psycopg 2 there is no way to be told of a message while a connection is idle that this library knows of.
    can_listen = is_psycopg3

    def notify(self, connection: Any, gates: Collection[int]) -> set[int]:
        """Tell those who hold a gate that a row is due, and return which gates somebody holds.

        Past Django's cursors: neither a query log nor a test that counts queries is to see a statement that is sent or not by what
        workers happen to do.
        """
        driver = connection.connection
        with getattr(connection, "answered", nullcontext)(), driver.cursor() as cursor:
            if len(gates) == 1:
                (gate,) = gates
                cursor.execute(KNOCK_ONE, (str(gate), gate))
                return {gate} if cursor.fetchall() else set()
            cursor.execute(KNOCK, ([*gates],))
            return {gate for gate, _sent in cursor.fetchall()}

    def take_gates(self, connection: Any, gates: Collection[int]) -> set[int]:
        """Hold gates until they are left or the connection ends, and return which could be had."""
        return {gate for (gate,) in _run(connection, TAKE, [*gates])}

    def leave_gates(self, connection: Any, gates: Collection[int]) -> None:
        """Hold gates no more, and tell other listeners."""
        _run(connection, LEAVE, [*gates])

    def listen(self, connection: Any) -> MessageInbox:
        """Hear what is sent from now on."""
        with connection.cursor() as cursor:
            inbox = MessageInbox(connection)
            cursor.execute(f"LISTEN {CHANNEL}")
        return inbox

    def send(self, connection: Any, message: str) -> None:
        """Send a message to all who listen."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", (CHANNEL, message))


def _run(connection: Any, text: str, gates: list[int]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(text, (gates,))
        rows: list[Any] = cursor.fetchall()
        return rows


class MessageInbox:
    """The messages that a connection has received, also while a statement was run on it."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._driver = connection, connection.connection
        self._messages: list[str] = []
        self._driver.add_notify_handler(lambda message: self._messages.append(message.payload))

    def fileno(self) -> int:
        """Return what becomes readable when there may be a message."""
        return int(self._driver.fileno())

    def take(self) -> list[str]:
        """Return what was received since the last time, and wait for nothing."""
        with self._connection.wrap_database_errors:
            server = self._driver.pgconn
            server.consume_input()
            while (message := server.notifies()) is not None:
                self._messages.append(message.extra.decode())
        taken = self._messages[:]
        del self._messages[: len(taken)]
        return taken
