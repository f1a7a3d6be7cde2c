"""Events on PostgreSQL: one statement puts one into the inbox of a row and wakes the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statemachine_fields.db import prepared
from statemachine_fields.db.columns import Table
from statemachine_fields.db.inbox import DeliveredEvent, Receipt, Receivers
from statemachine_fields.db.postgresql_text import names_of

# A row that waits for the event and that nobody holds is due. One that is held is compared when it is let go, and one that failed, or
# is parked, has an error: it is due by its policy, or when somebody sees to it. Not `failures = 0`: that counts what failed in this
# state before, also of a row that sleeps again and that nothing is wrong with. LEAST() leaves out what is NULL.
WOKEN = """CASE WHEN {is_awaited} AND t.{lease_expires_at} IS NULL AND t.{error} = ''
                    THEN LEAST(t.{next_at}, clock_timestamp()) ELSE t.{next_at} END"""
IS_WOKEN = "{is_awaited} AND t.{lease_expires_at} IS NULL AND t.{next_at} <= clock_timestamp()"

# The row is locked first, so that numbers are given in the order of commits and have no gaps; then the event is inserted, and only if it
# was, the counter is raised to its number. A sender that draws the number before the lock, or does not write the row, lets a row
# sleep beside an event. NO KEY lets foreign-key checks of other transactions pass beside us.
DELIVER = """
    WITH target AS MATERIALIZED (
        SELECT {key} AS key, {status} AS status, {inbox} AS inbox FROM {name} WHERE {key} = %s FOR NO KEY UPDATE),
    put AS (
        INSERT INTO {events} (id, instance_id, number, name, payload, dedup_key, delivered_at)
        SELECT %s::uuid, key, inbox + 1, %s, %s::jsonb, %s, clock_timestamp() FROM target WHERE status <> ALL(%s::text[])
        ON CONFLICT (instance_id, dedup_key) DO NOTHING RETURNING instance_id, number),
    woken AS (
        UPDATE {name} AS t SET {inbox} = put.number, {next_at} = {woken}
          FROM put WHERE t.{key} = put.instance_id
        RETURNING {is_woken} AS is_woken)
    SELECT target.status::text, (SELECT number FROM put)::bigint, coalesce((SELECT is_woken FROM woken), false)
      FROM target"""

LOCK_MANY = "SELECT 1 FROM {name} WHERE {key} = ANY(%s::{type}[]) ORDER BY {key} FOR NO KEY UPDATE"

# A statement of its own after the lock: it sees what those have committed that the lock waited for, so that what came before is found
# beforehand, and the numbers of a row that gets several have no gap where one of them is left out.
DELIVER_MANY = """
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest(%s::{type}[], %s::uuid[], %s::text[], %s::text[], %s::text[]) WITH ORDINALITY
            AS given (key, id, name, payload, dedup_key, place)),
    fresh AS MATERIALIZED (
        SELECT given.*, t.{inbox} + row_number() OVER (PARTITION BY given.key ORDER BY given.place) AS number,
               EXISTS (SELECT 1 FROM unnest(%s::text[], %s::text[]) AS awaited (state, name)
                        WHERE awaited.state = t.{status} AND awaited.name = given.name) AS is_awaited
          FROM given JOIN {name} AS t ON t.{key} = given.key
         WHERE t.{key} = ANY(%s::{type}[]) AND t.{status} <> ALL(%s::text[])
           AND NOT EXISTS (SELECT 1 FROM {events} AS e WHERE e.instance_id = given.key AND e.dedup_key = given.dedup_key)),
    put AS (
        INSERT INTO {events} (id, instance_id, number, name, payload, dedup_key, delivered_at)
        SELECT id, key, number, name, payload::jsonb, dedup_key, clock_timestamp() FROM fresh ORDER BY key, number),
    counted AS MATERIALIZED (
        SELECT key, max(number) AS number, bool_or(is_awaited) AS is_awaited FROM fresh GROUP BY key),
    woken AS (
        UPDATE {name} AS t SET {inbox} = counted.number, {next_at} = {woken}
          FROM counted WHERE t.{key} = ANY(%s::{type}[]) AND t.{key} = counted.key
        RETURNING t.{key} AS key, {is_woken} AS is_woken)
    SELECT given.place, t.{status}::text, fresh.number::bigint,
           coalesce(fresh.is_awaited AND woken.is_woken, false)
      FROM given LEFT JOIN {name} AS t ON t.{key} = given.key AND t.{key} = ANY(%s::{type}[])
      LEFT JOIN fresh ON fresh.place = given.place LEFT JOIN woken ON woken.key = given.key"""

_texts: dict[tuple[Table, str], str] = {}


class PostgreSQLEvents:
    """Deliveries by any number of senders, side by side with workers."""

    def deliver(self, connection: Any, table: Table, event: DeliveredEvent, receivers: Receivers) -> Receipt:
        text = _text(connection, table, DELIVER, "t.{status} = ANY(%s::text[])")
        key = prepared.key(table.key_field.get_db_prep_value(event.key, connection))
        waiting = receivers.waiting_for(event.name)
        values = (key, event.id, event.name, event.payload, event.dedup_key, [*receivers.terminal], waiting, waiting)
        rows = prepared.run(connection, text, values)
        return Receipt(*rows[0]) if rows else Receipt(None, None, False)

    def deliver_many(
        self, connection: Any, table: Table, events: Sequence[DeliveredEvent], receivers: Receivers
    ) -> list[Receipt]:
        keys = prepared.prepared_keys(table, [event.key for event in events], connection)
        prepared.run(connection, _text(connection, table, LOCK_MANY), (keys,))
        awaited = [(state, name) for state, names in receivers.awaited.items() for name in names]
        columns = [[event[place] for event in events] for place in (0, 2, 3, 4)]
        values = (
            keys,
            *map(prepared.array_of, columns),
            [state for state, _name in awaited],
            [name for _state, name in awaited],
            keys,
            [*receivers.terminal],
            keys,
            keys,
        )
        rows = prepared.run(connection, _text(connection, table, DELIVER_MANY, "counted.is_awaited"), values)
        return [Receipt(*receipt) for _place, *receipt in sorted(rows)]


def _text(connection: Any, table: Table, template: str, is_awaited: str = "") -> str:
    found = _texts.get((table, template))
    if found is None:
        names = names_of(table, connection)
        names["is_awaited"] = is_awaited.format(**names)
        names |= {"woken": WOKEN.format(**names), "is_woken": IS_WOKEN.format(**names)}
        found = _texts[table, template] = template.format(**names)
    return found
