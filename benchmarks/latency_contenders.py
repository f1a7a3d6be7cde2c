"""Who runs jobs that come one by one: how each serves, and how a client of each adds a job, as its documentation has it.

An `enqueue_...` keeps one connection, adds a job after each pause, and returns when each was begun.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import drain_contenders
import drain_ours
import drain_peers


@dataclass(frozen=True)
class Contender:
    """One worker, set as it is by default, and its client."""

    name: str
    serve: Callable[[], None]
    enqueue: Callable[[Sequence[float]], list[float]]
    #: Whether it runs the library of an earlier commit, if there is one to compare with.
    is_before: bool = False

    @property
    def tables(self) -> tuple[str, ...]:
        return drain_contenders.ALL[self.name].tables


def enqueue_ours(pauses: Sequence[float]) -> list[float]:
    from jobs.models import Job

    return one_by_one(Job.objects.create, pauses)


def enqueue_pgqueuer(pauses: Sequence[float]) -> list[float]:
    return asyncio.run(_enqueue_pgqueuer(pauses))


async def _enqueue_pgqueuer(pauses: Sequence[float]) -> list[float]:
    import asyncpg
    from pgqueuer.queries import Queries

    connection = await asyncpg.connect(**drain_peers.place(), database=drain_peers.database_name())
    queries = Queries.from_asyncpg_connection(connection)
    began = []
    for pause in pauses:
        await asyncio.sleep(pause)
        began.append(time.time())
        await queries.enqueue("nothing", None)
    await connection.close()
    return began


def enqueue_procrastinate(pauses: Sequence[float]) -> list[float]:
    with drain_peers.procrastinate_app().open() as app:
        return one_by_one(app.tasks["nothing"].defer, pauses)


def enqueue_tasks_db(pauses: Sequence[float]) -> list[float]:
    from jobs.tasks import nothing

    return one_by_one(nothing.enqueue, pauses)


def one_by_one(call: Callable[[], object], pauses: Sequence[float]) -> list[float]:
    began = []
    for pause in pauses:
        time.sleep(pause)
        began.append(time.time())
        call()
    return began


OURS = Contender("ours", drain_ours.serve_ours, enqueue_ours)
PGQUEUER = Contender("pgqueuer", drain_peers.serve_pgqueuer, enqueue_pgqueuer)

#: By name, for the processes of the cells.
ALL = {
    contender.name: contender
    for contender in (
        OURS,
        replace(OURS, name="before", is_before=True),
        PGQUEUER,
        Contender("procrastinate", drain_peers.serve_procrastinate, enqueue_procrastinate),
        Contender("django-tasks-db", drain_peers.serve_tasks_db, enqueue_tasks_db),
    )
}
