"""DBOS, a peer of several commands: how it is installed, its client, and one process that runs workflows.

What it keeps is in a schema of its own, `dbos`, in the database of the benchmark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from tests import database_url

if TYPE_CHECKING:
    import dbos

#: The tables that a cell leaves something in.
TABLES = ("dbos.workflow_status", "dbos.operation_outputs", "dbos.notifications")
#: Whoever calls and whoever runs have to agree on these.
APPLICATION, VERSION, QUEUE = "benchmark", "1", "children"


def url() -> str:
    """Return where its tables are, in words of its driver's."""
    return os.environ["BENCHMARK_DATABASE"].replace("postgresql://", "postgresql+psycopg://", 1)


@contextmanager
def launched(**queue: Any) -> Iterator[None]:
    """Run DBOS in this process, with one queue, as it is by default.

    :param queue: options of the queue.
    """
    from dbos import DBOS

    DBOS(
        config={
            "name": APPLICATION,
            "system_database_url": url(),
            "application_version": VERSION,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    DBOS.register_queue(QUEUE, **queue)
    try:
        yield
    finally:
        DBOS.destroy()


def install() -> None:
    """Create its tables."""
    with launched():
        pass


def client() -> dbos.DBOSClient:
    """Return what other programs talk to it with. It keeps one connection: see `backend()`."""
    from dbos import DBOSClient

    return DBOSClient(system_database_url=url(), system_database_pool_size=1, application_name=APPLICATION)


def backend() -> int:
    """Return the process of the server that the client talks to."""
    place = database_url.parse(os.environ["BENCHMARK_DATABASE"])
    with psycopg.connect(host=place["HOST"], user=place["USER"], dbname=place["NAME"]) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'dbos_transact_client'"
        ).fetchall()
    ((pid,),) = found
    return int(pid)
