"""By hand: one connection that claims a batch, runs it, commits it, and claims the next. A reference, not a worker.

It leases, fences by token and records like ours, but has no threads, heartbeats, time limits, instances or signals.
"""

from __future__ import annotations

import os
from collections.abc import Callable

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


def drain_by_hand(window: float) -> None:
    connection = connect()
    claim = CLAIM.format(table="jobs_plainjob")
    while rows := connection.execute(claim, ("PENDING", BATCH), prepare=True).fetchall():
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
