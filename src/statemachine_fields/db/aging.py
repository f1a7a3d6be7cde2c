"""Make rows older, so that a test need not wait: all times of a machine's tables move into the past by the same step.

The database's clock cannot be set, and a time in the future would be a lie as soon as the test moves a row itself. So the
clock stays, and what it is compared with moves. A step also takes what was written after an instant for written at that
instant: a try takes a while, and time is to stand still meanwhile.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from django.db import models

from statemachine_fields.db.clock import clock_sql
from statemachine_fields.db.columns import TIMES, Table
from statemachine_fields.db.portable_text import read_time


class Due(NamedTuple):
    """A row that is due, now or later."""

    at: datetime.datetime
    entered_at: datetime.datetime
    #: As the database has it, and as it is compared with other keys.
    key: Any
    status: str
    crashes: int
    #: Whether somebody holds it until then.
    is_held: bool


class Aging:
    """The statements for one machine on one connection. Their texts are made once."""

    def __init__(self, connection: Any, table: Table) -> None:
        self.connection, self.table = connection, table
        names = self.names = table.quoted(connection)
        self.name, self.audit, self.changed_at = names["name"], names["audit"], names["changed_at"]
        times = {column: self._stopped(names[column]) for column in TIMES if column in names}
        if table.is_timed:
            self.next_at, self.expires_at = names["next_at"], names["lease_expires_at"]
            times |= {"next_at": self._stopped_due(), "lease_expires_at": self.expires_at}
        changes = ", ".join(f"{names[column]} = {self._older(time)}" for column, time in times.items())
        transitioned_at = connection.ops.quote_name("transitioned_at")
        self._texts = [
            f"UPDATE {self.name} SET {changes}",
            f"UPDATE {self.audit} SET {transitioned_at} = {self._older(self._stopped(transitioned_at))}",
        ]
        if table.tries is not None:
            kept = map(connection.ops.quote_name, ("claimed_at", "started_at", "ended_at"))
            changes = ", ".join(f"{time} = {self._older(self._stopped(time))}" for time in kept)
            self._texts.append(f"UPDATE {names['tries']} SET {changes}")
        if table.has_inbox:
            delivered_at = connection.ops.quote_name("delivered_at")
            self._texts.append(
                f"UPDATE {names['events']} SET {delivered_at} = {self._older(self._stopped(delivered_at))}"
            )

    def pass_time(self, stopped_at: datetime.datetime, step: datetime.timedelta) -> None:
        """Make all rows and records older by a step, and what was written after an instant as if written at it."""
        values = {"at": self._time(stopped_at), "step": models.DurationField().get_db_prep_value(step, self.connection)}
        for text in self._texts:
            self._execute(text, values)

    def first_due(
        self, priorities: Mapping[str, int], stopped_at: datetime.datetime, without: Any = None
    ) -> Due | None:
        """Return the row of these states that is due first, whenever that is; of one that somebody holds, when that ends.

        :param stopped_at: for when to take what was written after it.
        :param without: the key of a row to leave out.
        """
        values = {"at": self._time(stopped_at), "key": self._key(without)}
        values |= {f"state{number}": state for number, state in enumerate(priorities)}
        ranks = " ".join(f"WHEN :state{number} THEN {-rank}" for number, rank in enumerate(priorities.values()))
        urgency = f"CASE {self.names['status']} {ranks} END"
        if self.table.priority is not None:
            urgency = f"{self.table.quoted_own(self.connection)['priority']} DESC"
        status, key, crashes = self.names["status"], self.names["key"], self.names["crashes"]
        free = self._stopped_due()
        due = f"(CASE WHEN {self.expires_at} > {free} THEN {self.expires_at} ELSE {free} END)"
        text = (
            f"SELECT {due} AS due, {self._stopped(self.changed_at)}, {key}, {status}, "
            f"{crashes}, {self.expires_at} IS NOT NULL FROM {self.name} "
            f"WHERE {status} IN ({', '.join(f':state{number}' for number in range(len(priorities)))}) "
            f"AND {self.next_at} IS NOT NULL {'' if without is None else f'AND {key} <> :key '}"
            f"ORDER BY due, {urgency}, {key} LIMIT 1"
        )
        with self.connection.cursor() as cursor:
            cursor.execute(*_bound(text, values))
            row = cursor.fetchone()
        if row is None:
            return None
        at, entered_at, own_key, its_status, its_crashes, is_held = row
        return Due(self._read(at), self._read(entered_at), own_key, its_status, its_crashes, bool(is_held))

    def set_due(self, key: Any, sequence: int, at: datetime.datetime) -> None:
        """Say when a row is due that has stayed in its state."""
        values = {"at": self._time(at), "key": self._key(key)}
        text = f"UPDATE {self.name} SET {self.next_at} = :at WHERE {self.names['key']} = :key "
        text += f"AND {self.names['sequence']} = {sequence} AND {self.next_at} IS NOT NULL"
        self._execute(text, values)

    def count_tries(self, key: Any, tries: int, at: datetime.datetime) -> None:
        """Count tries of a row that were not written, the last of them at an instant."""
        values = {"at": self._time(at), "key": self._key(key)}
        text = f"UPDATE {{name}} SET {{claimed_at}} = :at, {{attempts}} = {{attempts}} + {tries} WHERE {{key}} = :key"
        self._execute(text.format(**self.names), values)

    def _execute(self, text: str, values: Mapping[str, Any]) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(*_bound(text, values))

    def _stopped(self, time: str) -> str:
        return f"(CASE WHEN {time} > :at THEN :at ELSE {time} END)"

    def _stopped_due(self) -> str:
        """When a row is due, as if it had entered its state no later than the instant."""
        ops = self.connection.ops
        late, _params = ops.subtract_temporals("DateTimeField", (self.changed_at, ()), (":at", ()))
        return f"(CASE WHEN {self.changed_at} > :at THEN {self._minus(self.next_at, late)} ELSE {self.next_at} END)"

    def _older(self, time: str) -> str:
        return self._minus(time, ":step")

    def _minus(self, time: str, duration: str) -> str:
        """Subtract, as Django does for this database."""
        if self.connection.features.has_native_duration_field:
            return f"({time} - {duration})"
        ops = self.connection.ops
        parts = [time, ops.format_for_duration_arithmetic(duration)]
        return str(ops.combine_duration_expression("-", parts))

    def _key(self, key: Any) -> Any:
        return self.table.key_field.get_db_prep_value(key, self.connection)

    def _time(self, at: datetime.datetime) -> Any:
        return self.table.time_field.get_db_prep_value(at, self.connection)

    def _read(self, value: Any) -> datetime.datetime:
        time: datetime.datetime = read_time(value, self.table, self.connection)
        return time


def in_use(connection: Any, agings: Iterable[Aging]) -> list[Aging]:
    """Return those of machines that have rows or records."""
    asked = list(agings)
    tables = [f"EXISTS(SELECT 1 FROM {each.name}) OR EXISTS(SELECT 1 FROM {each.audit})" for each in asked]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(tables)}")
        return [each for each, is_any in zip(asked, cursor.fetchone(), strict=True) if is_any]


def database_now(connection: Any, table: Table) -> datetime.datetime:
    """Return the time by the database's clock."""
    text, params = clock_sql(connection)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {text}", params)
        (value,) = cursor.fetchone()
    now: datetime.datetime = read_time(value, table, connection)
    return now


def recall(connection: Any) -> tuple[Any, ...] | None:
    """Return what was kept, if it was not undone since: in a table that only this connection sees."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE IF NOT EXISTS statemachine_fields_time "
            "(began_at varchar(40), drained_at varchar(40), passed bigint, signs text)"
        )
        cursor.execute("SELECT began_at, drained_at, passed, signs FROM statemachine_fields_time")
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row


def keep(connection: Any, values: tuple[Any, ...]) -> None:
    """Keep what `recall()` returns, in place of what was kept before. It is undone with the transaction, as rows are."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM statemachine_fields_time")
        cursor.execute("INSERT INTO statemachine_fields_time VALUES (%s, %s, %s, %s)", values)


def _bound(text: str, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return a text with places for parameters and these in its order."""
    names = re.findall(PLACE, text)
    return re.sub(PLACE, "%s", text), [values[name] for name in names]


#: A named place, and no cast of PostgreSQL's.
PLACE = r"(?<!:):([a-z]\w*)"
