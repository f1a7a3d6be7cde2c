"""Events in SQL that SQLite, MariaDB and MySQL understand, one after the other. Whoever delivers opens the transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from statemachine_fields.db.clock import clock_sql, make_ready
from statemachine_fields.db.columns import Table
from statemachine_fields.db.inbox import DeliveredEvent, Receipt, Receivers

if TYPE_CHECKING:
    from statemachine_fields.db.dialect import LockedRow


class PortableEvents:
    """Lock the row, see what there is, insert the event and wake the row."""

    if TYPE_CHECKING:

        def lock(self, connection: Any, table: Table, key: Any) -> LockedRow | None: ...

    def deliver(self, connection: Any, table: Table, event: DeliveredEvent, receivers: Receivers) -> Receipt:
        locked = self.lock(connection, table, event.key)
        if locked is None:
            return Receipt(None, None, False)
        if locked.status in receivers.terminal:
            return Receipt(locked.status, None, False)
        names = table.quoted(connection)
        key = table.key_field.get_db_prep_value(event.key, connection)
        with connection.cursor() as cursor:
            make_ready(connection)
            cursor.execute(
                f"SELECT 1 FROM {names['events']} WHERE instance_id = %s AND dedup_key = %s", (key, event.dedup_key)
            )
            if cursor.fetchone():
                return Receipt(locked.status, None, False)
            now, its = clock_sql(connection)
            cursor.execute(
                f"INSERT INTO {names['events']} (id, instance_id, number, name, payload, dedup_key, delivered_at) "
                f"SELECT %s, {names['key']}, {names['inbox']} + 1, %s, %s, %s, {now} FROM {names['name']} "
                f"WHERE {names['key']} = %s",
                (
                    table.id_field.get_db_prep_value(event.id, connection),
                    event.name,
                    event.payload,
                    event.dedup_key,
                    *its,
                    key,
                ),
            )
            is_awaited = locked.status in receivers.waiting_for(event.name)
            is_due = "{next_at} IS NOT NULL AND {next_at} <= {now}"
            is_asleep = "{lease_expires_at} IS NULL AND {error} = '' AND NOT (" + is_due + ")"
            texts = {**names, "now": now}
            cursor.execute("UPDATE {name} SET {inbox} = {inbox} + 1 WHERE {key} = %s".format(**texts), (key,))
            if is_awaited:
                wake = "UPDATE {name} SET {next_at} = {now} WHERE {key} = %s AND " + is_asleep
                cursor.execute(wake.format(**texts), (*its, key, *its))
            select = "SELECT {inbox}, {lease_expires_at} IS NULL AND " + is_due + " FROM {name} WHERE {key} = %s"
            cursor.execute(select.format(**texts), (*its, key))
            number, is_free_and_due = cursor.fetchone()
        return Receipt(locked.status, number, bool(is_awaited and is_free_and_due))

    def deliver_many(
        self, connection: Any, table: Table, events: Sequence[DeliveredEvent], receivers: Receivers
    ) -> list[Receipt]:
        """In the order given, but that rows are locked in the order of their keys."""
        receipts: dict[int, Receipt] = {}
        for place in sorted(range(len(events)), key=lambda each: (events[each].key, each)):
            receipts[place] = self.deliver(connection, table, events[place], receivers)
        return [receipts[place] for place in range(len(events))]
