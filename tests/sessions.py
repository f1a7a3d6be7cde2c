"""Who is connected to the database of the tests, and who of them waits.

The server may be shared with other processes of the test run, whose databases are none of ours: their sessions are never listed.
"""

from __future__ import annotations

from typing import Any

from django.db import connection

from tests.patience import eventually

OURS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"


def sessions(application_name: str) -> list[int]:
    """Return the ids of the server's processes that serve a program."""
    return _pids(f"{OURS} AND application_name = %s", application_name)


def waiting_for_locks() -> list[int]:
    """Return the ids of the server's processes that wait for a lock."""
    return _pids(f"{OURS} AND wait_event_type = 'Lock'")


def wait_until_blocked() -> None:
    """Wait until another session waits for a lock."""
    eventually(waiting_for_locks, "somebody waits for a lock")


def _pids(query: str, *params: Any) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # which a transaction keeps
        cursor.execute(query, params)
        return [pid for (pid,) in cursor.fetchall()]
