"""By hand: one connection that claims a batch, runs it, commits it, and claims the next; or two, of which one claims the next
batch while the other commits. A reference, not a worker.

It leases, fences by token and records like ours, but has no threads, heartbeats, time limits, instances or signals.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import witness
from contenders import time_ordered_id

from tests import database_url

BATCH = 500

# `= ANY(ARRAY(...))` keeps to the primary key where a join would read the whole of a small table.
CLAIM = """
    WITH due AS MATERIALIZED (
        SELECT id FROM {table}
         WHERE status = %s AND status_next_at <= statement_timestamp()
           AND (status_lease_expires_at IS NULL OR status_lease_expires_at < statement_timestamp())
         ORDER BY status_next_at LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE {table}
       SET status_lease_owner = 'by hand', status_lease_token = status_lease_token + 1,
           status_claimed_at = statement_timestamp(), status_attempts = status_attempts + 1,
           status_lease_expires_at = statement_timestamp() + interval '2 minutes'
     WHERE id = ANY(ARRAY(SELECT id FROM due))
    RETURNING id, payload, status, status_sequence, status_lease_token"""

COMMIT = """
    WITH moved AS (
        UPDATE jobs_plainjob AS job
           SET status = 'DONE', status_sequence = status_sequence + 1, status_changed_at = clock_timestamp(),
               status_next_at = NULL, status_lease_owner = '', status_lease_expires_at = NULL,
               status_lease_token = status_lease_token + 1
          FROM unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) AS held(id, token)
         WHERE job.id = ANY(%(ids)s::bigint[]) AND job.id = held.id
           AND status_lease_token = held.token AND status = 'PENDING'
        RETURNING job.id, status_sequence, status_changed_at)
    INSERT INTO jobs_plaintransition
           (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT (%(first)s || lpad(to_hex(row_number() OVER ()), 8, '0'))::uuid,
           'PENDING', 'DONE', '{}', id, status_sequence, status_changed_at FROM moved"""


Rows = list[tuple[object, ...]]


def drain_by_hand(window: float) -> None:
    connection = connect()
    while rows := claim_batch(connection):
        run_and_commit(connection, rows)


def drain_claiming_ahead(window: float) -> None:
    claiming, committing = connect(), connect()
    with ThreadPoolExecutor(1) as ahead:
        upcoming = ahead.submit(claim_batch, claiming)
        while rows := upcoming.result():
            upcoming = ahead.submit(claim_batch, claiming)
            run_and_commit(committing, rows)


def claim_batch(connection: psycopg.Connection[tuple[object, ...]]) -> Rows:
    return connection.execute(CLAIM.format(table="jobs_plainjob"), ("PENDING", BATCH), prepare=True).fetchall()


def run_and_commit(connection: psycopg.Connection[tuple[object, ...]], rows: Rows) -> None:
    for _row in rows:
        witness.seen()
    held = {"ids": [row[0] for row in rows], "tokens": [row[-1] for row in rows]}
    connection.execute(COMMIT, {**held, "first": time_ordered_id().hex[:24]}, prepare=True)


def claimer_by_hand() -> Callable[[str, int], int]:
    connection = connect()
    statement = CLAIM.format(table="jobs_crowdedplainjob")

    def claim(state: str, batch: int) -> int:
        return len(connection.execute(statement, (state, batch), prepare=True).fetchall())

    return claim


def connect() -> psycopg.Connection[tuple[object, ...]]:
    place = database_url.parse(os.environ["BENCHMARK_DATABASE"])
    return psycopg.connect(host=place["HOST"], user=place["USER"], dbname=place["NAME"], autocommit=True)
