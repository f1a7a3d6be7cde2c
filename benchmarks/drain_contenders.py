"""Who drains, what its tables hold before, and what they tell afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import drain_by_hand
import drain_ours
import drain_peers


@dataclass(frozen=True)
class Contender:
    """One worker: how it is run, how jobs are put before it, and which rows say that a job is done."""

    name: str
    drain: Callable[[float], None]
    #: What is emptied before a cell. The first two are vacuumed after they are filled.
    tables: tuple[str, ...]
    #: Adds one job for each number from `%(first)s` to `%(last)s`.
    fill: str
    #: A table and a condition. Each such row was last written by the transaction that completed the job.
    done: str
    #: Counts what must not be there once all are done.
    left: str
    #: Counts what must not be there at any time.
    wrong: str = "SELECT 0"
    #: Whether it is given a window, because it would take too long to complete all jobs.
    windowed: bool = False
    #: Whether it runs the library of an earlier commit, if there is one to compare with.
    is_before: bool = False
    #: How far the pages of its first table are filled, in percent.
    fillfactor: int = 100
    #: Whether it updates the rows of its jobs, as ours does, and what becomes of that table is told.
    updates: bool = False
    #: Returns a function that claims up to so many rows of a state and says how many it got.
    claimer: Callable[[], Callable[[str, int], int]] | None = None
    #: The table that it claims from.
    crowded: str = ""


# Rows are due in the order in which they are numbered, and none is due at the same instant as another.
FILL = """
    INSERT INTO {table} (id, payload, status, status_sequence, status_changed_at, status_next_at)
    SELECT key, NULL, 'PENDING', 0, statement_timestamp(), statement_timestamp() - (%(last)s::bigint - key) * interval '1 us'
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS key"""

# As its own enqueue() writes them, with the log row that it writes with each.
FILL_PGQUEUER = """
    WITH added AS (
        INSERT INTO pgqueuer (priority, entrypoint, payload, execute_after, headers, status)
        SELECT 0, 'nothing', NULL, now(), 'null', 'queued' FROM generate_series(%(first)s::bigint, %(last)s::bigint)
        RETURNING id)
    INSERT INTO pgqueuer_log (job_id, status, entrypoint, priority) SELECT id, 'queued', 'nothing', 0 FROM added"""

# What its function for deferring inserts. Triggers write the events.
FILL_PROCRASTINATE = """
    INSERT INTO procrastinate_jobs (queue_name, task_name, priority, lock, queueing_lock, args, scheduled_at)
    SELECT 'default', 'nothing', 0, NULL, NULL, '{}', NULL FROM generate_series(%(first)s::bigint, %(last)s::bigint)"""

# The far date is how it says "at once".
FILL_TASKS_DB = """
    INSERT INTO django_tasks_database_dbtaskresult
           (id, status, enqueued_at, args_kwargs, priority, task_path, worker_ids, queue_name, backend_name, run_after,
            exception_class_path, traceback)
    SELECT gen_random_uuid(), 'READY', clock_timestamp(), '{"args": [], "kwargs": {}}', 0, 'jobs.tasks.nothing', '[]',
           'default', 'default', '9999-01-01T00:00:00Z', '', ''
      FROM generate_series(%(first)s::bigint, %(last)s::bigint)"""

UNFINISHED = "SELECT count(*) FROM {table} WHERE status <> 'DONE' OR status_lease_expires_at IS NOT NULL"

OURS = Contender(
    "ours",
    drain_ours.drain_ours,
    tables=("jobs_job", "jobs_jobstatetransition"),
    fill=FILL.format(table="jobs_job"),
    done="jobs_jobstatetransition WHERE from_status = 'PENDING' AND to_status = 'DONE' AND sequence = 1",
    left=UNFINISHED.format(table="jobs_job"),
    wrong="SELECT count(*) FROM jobs_jobstatetransition WHERE to_status <> 'DONE' OR sequence <> 1",
    claimer=drain_ours.claimer_ours,
    crowded="jobs_crowdedjob",
    updates=True,
)
BEFORE = replace(OURS, name="before", is_before=True)
BY_HAND = Contender(
    "by hand",
    drain_by_hand.drain_by_hand,
    tables=("jobs_plainjob", "jobs_plaintransition"),
    fill=FILL.format(table="jobs_plainjob"),
    done="jobs_plaintransition",
    left=UNFINISHED.format(table="jobs_plainjob"),
    claimer=drain_by_hand.claimer_by_hand,
    crowded="jobs_crowdedplainjob",
    updates=True,
)
CLAIMING_AHEAD = replace(BY_HAND, name="by hand, claiming ahead", drain=drain_by_hand.drain_claiming_ahead)
PEERS = (
    Contender(
        "pgqueuer",
        drain_peers.drain_pgqueuer,
        tables=("pgqueuer", "pgqueuer_log", "pgqueuer_statistics"),
        fill=FILL_PGQUEUER,
        done="pgqueuer_log WHERE status = 'successful'",
        left="SELECT count(*) FROM pgqueuer",
        wrong="SELECT count(*) FROM pgqueuer_log WHERE status NOT IN ('queued', 'picked', 'successful')",
    ),
    Contender(
        "procrastinate",
        drain_peers.drain_procrastinate,
        tables=("procrastinate_jobs", "procrastinate_events", "procrastinate_workers", "procrastinate_periodic_defers"),
        fill=FILL_PROCRASTINATE,
        done="procrastinate_events WHERE type = 'succeeded'",
        left="SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'",
        wrong="SELECT count(*) FROM procrastinate_jobs WHERE status NOT IN ('todo', 'succeeded')",
        windowed=True,
    ),
    Contender(
        "django-tasks-db",
        drain_peers.drain_tasks_db,
        tables=("django_tasks_database_dbtaskresult",),
        fill=FILL_TASKS_DB,
        done="django_tasks_database_dbtaskresult WHERE status = 'SUCCESSFUL'",
        left="SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status <> 'SUCCESSFUL'",
        wrong="SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status NOT IN ('READY', 'SUCCESSFUL')",
        windowed=True,
    ),
)

#: What leaves room for a second version of each row, and some for a third.
FILLFACTOR = 45


def with_room(contender: Contender) -> Contender:
    """Return the same on a table with room in its pages. Nobody claims from it but to drain it."""
    name = f"{contender.name}, fillfactor {FILLFACTOR}"
    return replace(contender, name=name, fillfactor=FILLFACTOR, claimer=None)


OURS_WITH_ROOM = with_room(OURS)
WITH_ROOM = (OURS_WITH_ROOM, with_room(BEFORE), with_room(BY_HAND), with_room(CLAIMING_AHEAD))

#: By name, for the processes of the cells.
ALL = {contender.name: contender for contender in (OURS, BEFORE, BY_HAND, CLAIMING_AHEAD, *PEERS, *WITH_ROOM)}

#: What the report names with its version.
PACKAGES = ("Django", "psycopg", "pgqueuer", "asyncpg", "uvloop", "procrastinate", "django-tasks-db")
