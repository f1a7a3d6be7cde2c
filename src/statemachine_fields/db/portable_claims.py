"""Claims in SQL that SQLite understands, row by row, under its one lock; and how those are found that a worker left behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from statemachine_fields.db.claims import (
    DIED,
    HOW_OFTEN,
    RECOVERED,
    Claimed,
    Left,
    Level,
    NextDue,
    Recovered,
    SurveyedLevel,
    Wanted,
)
from statemachine_fields.db.clock import make_ready
from statemachine_fields.db.columns import Table
from statemachine_fields.db.effects import CLAIM, RECOVER, UNCLAIM
from statemachine_fields.db.portable_text import age_of, key_of, locked, parameters, places, read_now, terms
from statemachine_fields.db.tries import keep_crashes


class PortableClaims:
    """Claims by one process."""

    def claim(self, connection: Any, table: Table, wanted: Wanted) -> list[Claimed]:
        with locked(connection, table) as (cursor, names):
            now = read_now(cursor, connection)
            read = row_reader(connection, cursor, names, table, wanted.fields)
            update = f"UPDATE {{name}} SET {CLAIM.as_sql(names, terms(connection))} WHERE {{key}} = %s".format(**names)
            claimed = []
            for key in self._due(cursor, table, wanted, now):
                given = (wanted.owner, wanted.seconds)
                cursor.execute(update, (*parameters(connection, CLAIM, table, given), key))
                if not cursor.rowcount:
                    continue
                claimed.append(read(key, now))
        return claimed

    def candidates(self, connection: Any, table: Table, wanted: Wanted) -> list[Any]:
        with locked(connection, table) as (cursor, _names):
            return self._due(cursor, table, wanted, read_now(cursor, connection))

    def _due(self, cursor: Any, table: Table, wanted: Wanted, now: Any) -> list[Any]:
        """Return the keys of the rows that a claim is about, the most urgent first."""
        names = {**table.quoted(cursor.db), **table.quoted_own(cursor.db)}
        whose, served = _served(wanted.members)
        urgency = "{priority} DESC, " if table.priority else ""
        keys, sign = (wanted.aside, "NOT IN") if wanted.keys is None else (wanted.keys, "IN")
        which = f" AND {{key}} {sign} ({places(keys)})" if keys or wanted.keys is not None else ""
        found: list[Any] = []
        for states in [[*wanted.states]] if wanted.crashes or table.priority else _by_urgency(wanted):
            cursor.execute(
                (
                    f"SELECT {{key}} FROM {{name}} WHERE {{status}} IN ({places(states)}) AND {{next_at}} <= %s "
                    f"AND {{lease_expires_at}} IS NULL AND {{crashes}} {HOW_OFTEN[wanted.crashes]}{which}{whose} "
                    f"ORDER BY {{crashes}}, {urgency}{{next_at}} LIMIT %s"
                ).format(**names),
                (*states, now, *keys, *served, wanted.limit - len(found)),
            )
            found += [key for (key,) in cursor.fetchall()]
        return found

    def next_due(self, connection: Any, table: Table, states: Sequence[str], member: Level | None = None) -> NextDue:
        names = {**table.quoted(connection), **table.quoted_own(connection)}
        whose, served = _served(None if member is None else [member])
        first = (
            f"SELECT {{next_at}} FROM {{name}} WHERE {{status}} = %s AND {{next_at}} {{when}} %s{whose} "
            "ORDER BY {next_at} LIMIT 1"
        )
        with connection.cursor() as cursor:
            make_ready(connection)  # the text may have been made for another
            now = read_now(cursor, connection)
            found: dict[str, list[Any]] = {"<=": [], ">": []}
            for when, times in found.items():
                for state in states:  # each a step into the index
                    cursor.execute(first.format(**names, when=when), (state, now, *served))
                    times += [time for (time,) in cursor.fetchall()]
        later = [-age_of(time, now, table, connection) for time in found[">"]]
        return NextDue(bool(found["<="]), min(later, default=None))

    def recover(self, connection: Any, table: Table, states: Sequence[str], left: Left) -> Recovered:
        effect = RECOVER if left.is_crash else UNCLAIM
        words = (RECOVERED if left.owner is None else DIED) if left.is_crash else ()
        which = "{lease_expires_at} <= %s" if left.owner is None else "{lease_owner} = %s"
        whose, served = _served(left.levels)
        with locked(connection, table) as (cursor, names):
            held = [key_of(table, key, connection) for key in left.held]
            owner = read_now(cursor, connection) if left.owner is None else left.owner
            where = (
                f"{{status}} IN ({places(states)}) AND {which} "
                f"AND {{lease_expires_at}} IS NOT NULL AND {{key}} NOT IN ({places(held)}){whose}"
            ).format(**names, **table.quoted_own(connection))
            if table.tries is not None and left.is_crash:
                keep_crashes(connection, cursor, table, words, where, (*states, owner, *held, *served))
            cursor.execute(
                "UPDATE {name} SET ".format(**names) + f"{effect.as_sql(names, terms(connection))} WHERE {where}",
                (*parameters(connection, effect, table, words), *states, owner, *held, *served),
            )
            return Recovered(int(cursor.rowcount), True)

    def survey(
        self, connection: Any, table: Table, members: Sequence[Level], *, later: bool = True
    ) -> list[SurveyedLevel]:
        """Return the members themselves: their rows are found and sorted whatever the priorities are."""
        return [SurveyedLevel(each, *self.next_due(connection, table, [each.state], each)) for each in members]


def row_reader(
    connection: Any, cursor: Any, names: Mapping[str, str], table: Table, fields: tuple[Any, ...]
) -> Callable[[Any, Any], Claimed]:
    """Return what reads a row by its key, as the database has it, at a time by its clock."""
    columns = ", ".join([names["changed_at"], *[connection.ops.quote_name(each.column) for each in fields]])
    text = f"SELECT {columns} FROM {names['name']} WHERE {names['key']} = %s"

    def read(key: Any, now: Any) -> Claimed:
        cursor.execute(text, (key,))
        changed_at, *values = cursor.fetchone()
        return Claimed(age_of(changed_at, now, table, connection), tuple(values))

    return read


def _by_urgency(wanted: Wanted) -> list[list[str]]:
    """Return the wanted states, those of one priority together, the highest first."""
    together: dict[int, list[str]] = {}
    for state, priority in zip(wanted.states, wanted.priorities, strict=True):
        together.setdefault(priority, []).append(state)
    return [together[priority] for priority in sorted(together, reverse=True)]


def _served(levels: Sequence[Level] | None) -> tuple[str, list[str]]:
    """Return what is true of rows of some queues, as text, and its parameters; nothing if they are of any."""
    if not levels or levels[0].queue is None:
        return "", []
    pairs = dict.fromkeys((level.state, level.queue or "") for level in levels)
    text = " OR ".join(["({status} = %s AND {queue} = %s)"] * len(pairs))
    return f" AND ({text})", [value for pair in pairs for value in pair]
