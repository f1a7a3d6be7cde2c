"""The peers: how each is installed, and how one process of it is run.

`drain_...` serves what is there and returns: when it is empty, or when the window is over. `serve_...` never returns, and is
set as it is by default.
"""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import timedelta
from typing import Any

import witness

from tests import database_url


def place() -> dict[str, Any]:
    """Return where the database is, in words that both drivers know."""
    entry = database_url.parse(os.environ["BENCHMARK_DATABASE"])
    return {"host": entry["HOST"], "user": entry["USER"]}


def database_name() -> str:
    return str(database_url.parse(os.environ["BENCHMARK_DATABASE"])["NAME"])


def install() -> None:
    """Create the tables of those peers that have no migrations of Django's."""
    asyncio.run(_install_pgqueuer())
    with procrastinate_app().open() as app:
        app.schema_manager.apply_schema()


# pgqueuer


async def _install_pgqueuer() -> None:
    import asyncpg
    from pgqueuer.queries import Queries

    connection = await asyncpg.connect(**place(), database=database_name())
    await Queries.from_asyncpg_connection(connection).install()
    await connection.close()


def drain_pgqueuer(window: float) -> None:
    _run_pgqueuer(until_empty=True, batch_size=500)


def serve_pgqueuer() -> None:
    _run_pgqueuer(until_empty=False)


def _run_pgqueuer(*, until_empty: bool, **options: Any) -> None:
    import asyncpg
    import uvloop  # its own command uses it
    from pgqueuer import PgQueuer

    async def work() -> None:
        async with asyncpg.create_pool(**place(), database=database_name(), min_size=4, max_size=4) as pool:
            worker = PgQueuer.from_asyncpg_pool(pool)

            @worker.entrypoint("nothing")
            async def nothing(_job: Any) -> None:
                witness.seen()

            if until_empty:
                # A shutdown writes at once what waits to be written; its timer would let up to 0.1 s pass.
                witness.watch(last=worker.shutdown.set)
                # Statistics are taken from the log by a timer, which is no part of a job.
                options["log_aggregation_interval"] = timedelta(0)
            await worker.qm.run(**options)

    uvloop.run(work())


# procrastinate


def procrastinate_app() -> Any:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(kwargs={**place(), "dbname": database_name()}))

    @app.task(name="nothing")
    async def nothing() -> None:
        witness.seen()

    return app


def drain_procrastinate(window: float) -> None:
    async def work() -> None:
        async with procrastinate_app().open_async() as app:
            worker = asyncio.create_task(app.run_worker_async(concurrency=100, wait=False, listen_notify=False))
            loop = asyncio.get_running_loop()
            witness.watch(first=lambda: loop.call_later(window, worker.cancel) and None)
            await asyncio.wait([worker])  # cancelled, it finishes the jobs that it has begun
            if not worker.cancelled():
                worker.result()

    asyncio.run(work())


def serve_procrastinate() -> None:
    async def work() -> None:
        async with procrastinate_app().open_async() as app:
            await app.run_worker_async()

    asyncio.run(work())


# django-tasks-db


def drain_tasks_db(window: float) -> None:
    worker = _tasks_db_worker(interval=0, batch=True)

    def stop() -> None:
        worker.running = False

    def stop_later() -> None:
        timer = threading.Timer(window, stop)
        timer.daemon = True
        timer.start()

    witness.watch(first=stop_later)
    worker.run()


def serve_tasks_db() -> None:
    _tasks_db_worker(interval=1, batch=False).run()


def _tasks_db_worker(*, interval: float, batch: bool) -> Any:
    from django_tasks_db.management.commands.db_worker import Worker

    return Worker(
        queue_names=["default"],
        interval=interval,
        batch=batch,
        backend_name="default",
        startup_delay=False,
        max_tasks=None,
        worker_id="benchmark",
        excluded_queue_names=[],
    )
