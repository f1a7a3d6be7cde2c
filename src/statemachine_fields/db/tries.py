"""Tries that did not move their row, in SQL: a rider on the write that ends one, or on the one that takes the row back.

What is kept is of the row as it was before that write: who held it, since when, and which try it was. So it is read where the
row is locked, and a try is kept if, and only if, its end was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statemachine_fields.db.clock import clock_sql
from statemachine_fields.db.columns import Table

#: What came of a try that nobody ended: its worker died, or vanished.
CRASHED = "crashed"

#: What is given of each try, besides its error.
GIVEN = ("started", "ended", "outcome", "traceback")

COLUMNS = "instance_id, number, sequence, state, worker, claimed_at, started_at, ended_at, outcome, error, traceback"  # in order

#: What is read of a row where it is locked, under names of ours.
HELD = (
    ", {attempts} AS attempts, {sequence} AS sequence, {status} AS status, {lease_owner} AS lease_owner, "
    "{claimed_at} AS claimed_at"
)

# A row that was given the number of a try which is there already, as one whose counter was set back by hand, is not held up by
# that: what it does next matters more than what is kept of it.
FROM_LOCKED = """,
    tried AS (
        INSERT INTO {tries} ({kept})
        SELECT locked.key, locked.attempts, locked.sequence, locked.status, locked.lease_owner, locked.claimed_at,
               clock_timestamp() - make_interval(secs => given.started),
               clock_timestamp() - make_interval(secs => given.ended), given.outcome, given.error, given.traceback
          FROM {written} JOIN given USING (place) JOIN locked ON locked.key = given.key
         WHERE given.outcome IS NOT NULL
        ON CONFLICT DO NOTHING)"""

FROM_LEFT_OPEN = """,
    tried AS (
        INSERT INTO {tries} ({kept})
        SELECT key, attempts, sequence, status, lease_owner, claimed_at, NULL, clock_timestamp(), '{crashed}',
               %s || lease_owner || %s, ''
          FROM left_open JOIN freed USING (key)
        ON CONFLICT DO NOTHING)"""

# Before the row is written, under a lock that holds until the transaction ends.
FROM_ROW = """
    INSERT INTO {tries} ({kept})
    SELECT {key}, {attempts}, {sequence}, {status}, {lease_owner}, {claimed_at}, {started}, {ended}, %s, {said}, %s
      FROM {name} WHERE {where}
    ON CONFLICT DO NOTHING"""


def held(names: Mapping[str, str]) -> str:
    return HELD.format(**names)


def from_locked(names: Mapping[str, str], written: str) -> str:
    """Return the rider on a statement over many rows.

    :param written: the part of it that has the places of those that were written.
    """
    return FROM_LOCKED.format(**names, kept=COLUMNS, written=written)


def from_left_open(names: Mapping[str, str]) -> str:
    return FROM_LEFT_OPEN.format(**names, kept=COLUMNS, crashed=CRASHED)


def keep_try(connection: Any, table: Table, key: Any, token: int, row: Mapping[str, Any]) -> None:
    """Keep the try of one row that is locked and still held with a token, before its end is written in the same transaction.

    :param row: `GIVEN` and the error. Nothing is kept of a row whose outcome is None: it was no try.
    """
    if row["outcome"] is None:
        return
    names = table.quoted(connection)
    clock, _params = clock_sql(connection, plus=0)
    where = "{key} = %s AND {lease_token} = %s".format(**names)
    text = FROM_ROW.format(**names, kept=COLUMNS, started=clock, ended=clock, said="%s", where=where)
    times = [None if ago is None else clock_sql(connection, plus=-ago)[1][0] for ago in (row["started"], row["ended"])]
    key = table.key_field.get_db_prep_value(key, connection)
    with connection.cursor() as cursor:
        cursor.execute(text, (*times, row["outcome"], row["error"], row["traceback"], key, token))


def keep_crashes(
    connection: Any, cursor: Any, table: Table, words: tuple[str, ...], where: str, params: tuple[Any, ...]
) -> None:
    """Keep the tries of all rows that are about to be taken back, in the transaction that does."""
    names = table.quoted(connection)
    clock, now = clock_sql(connection)
    said = "%s || {lease_owner} || %s".format(**names)
    text = FROM_ROW.format(**names, kept=COLUMNS, started="NULL", ended=clock, said=said, where=where)
    cursor.execute(text, (*now, CRASHED, *words, "", *params))
