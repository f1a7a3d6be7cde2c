"""Claims on PostgreSQL: which rows are due, in SQL, and how they are read, whatever is wrong with one of them; and how those are
found that a worker left behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from statemachine_fields.db import prepared, tries
from statemachine_fields.db.claims import DIED, HOW_OFTEN, RECOVERED, Claimed, Left, Level, NextDue, Recovered, Wanted
from statemachine_fields.db.columns import TIMES, Table
from statemachine_fields.db.effects import CLAIM, RECOVER, UNCLAIM
from statemachine_fields.db.postgresql_levels import (
    PostgreSQLLevels,
    kind_of,
    level_names,
    level_values,
    levels_text,
    levels_values,
)
from statemachine_fields.db.postgresql_text import TERMS, names_of

# One LATERAL scan for each state keeps each walk on the (status, next_at) index: with next_at alone, a state that queues
# behind 200,000 rows of another would take as long as it takes to pass those. NO KEY lets foreign-key checks pass beside
# us. What a worker left behind, or may have died of, is passed by: see SUSPECTS. CASE mostly keeps the planner from guessing that
# such rows are few, as it does of a table that was not analyzed, and from reading all that are due in order to sort them. What a
# plan depends on is written out, and not in arrays, whose length the server can only guess: then one plan is as good as the next, and
# it soon makes no more of them, which is half of what it costs to claim a row or two.
DUE = """
        SELECT found.key FROM (VALUES {states}) AS wanted (state, priority)
         CROSS JOIN LATERAL (
            SELECT {key} AS key, {next_at} AS next_at FROM {name}
             WHERE {status} = wanted.state AND {next_at} <= statement_timestamp()
               AND CASE WHEN {lease_expires_at} IS NULL THEN {crashes} = 0 ELSE false END{which}
             ORDER BY {next_at} LIMIT {limit}{lock}) AS found
         ORDER BY wanted.priority DESC, found.next_at LIMIT {limit}"""

#: Up to how many rows the number is written out. Each has a statement of its own.
FEW = 4

# Those that fewer workers died of come first. An index has rows with crashes alone, so that to find none costs nothing,
# however many rows are due. CASE keeps the planner from finding them among all that are due, by their state.
SUSPECTS = """
        SELECT {key} AS key FROM {name}
         WHERE {crashes} {how_often} AND {next_at} <= statement_timestamp()
           AND CASE WHEN {lease_expires_at} IS NULL THEN {whose} ELSE false END{which}
         ORDER BY {crashes}, {urgency}{next_at} LIMIT %s{lock}"""

# date_part() is extract() in floating point, which is exact enough for an age and costs half of it. (A difference of times that
# are infinite would be an error.) What is the same for all rows is computed once, in a sub-select.
CLAIMED = """
    WITH due AS MATERIALIZED ({due})
    UPDATE {name} SET {changes}
     WHERE {key} = ANY(ARRAY(SELECT key FROM due))
    RETURNING (SELECT date_part('epoch', statement_timestamp())) - date_part('epoch', {changed_at}){columns}"""

#: When a claim is made, and until when it is. It waits for nobody, so that it can have one time for all rows.
NOW, LEASED_UNTIL = "statement_timestamp()", "statement_timestamp() + make_interval(secs => {seconds})"
ALL_AT_ONCE = TERMS._replace(now=NOW, later=LEASED_UNTIL)

LOCKS = " FOR NO KEY UPDATE SKIP LOCKED"

# Rows are claimed in the order in which they became due, so those that are held come before those that nobody has
# claimed yet, and a walk along the same index need not go further than where the held ones end: see recover(). Only those that are
# due at the same instant have no order, and a claimed row comes last among them: the walk has to pass them all.
FREED = """
    WITH walked AS MATERIALIZED (
        SELECT found.* FROM unnest({arrays}) AS wanted ({level})
         CROSS JOIN LATERAL (
            SELECT near.*, row_number() OVER () AS place FROM (
                SELECT {key} AS key, {lease_expires_at} IS NOT NULL OR {crashes} > 0 AS is_taken, ({which}) AS is_wanted,
                       {own}, {next_at} AS at
                  FROM {name} WHERE {match} AND {next_at} <= statement_timestamp()
                 ORDER BY {next_at} LIMIT %s) AS near) AS found),
    left_open AS MATERIALIZED (
        SELECT {key} AS key{held} FROM {name}
         WHERE {key} = ANY(ARRAY(SELECT key FROM walked WHERE is_wanted)) AND {lease_expires_at} IS NOT NULL AND ({which})
         ORDER BY {key} FOR NO KEY UPDATE SKIP LOCKED),
    freed AS (
        UPDATE {name} SET {changes}
         WHERE {key} = ANY(ARRAY(SELECT key FROM left_open)) RETURNING {freed}){tried}
    SELECT (SELECT count(*) FROM freed), (SELECT coalesce(max(place) FILTER (WHERE is_taken), 0) FROM walked),
           EXISTS(SELECT 1 FROM walked GROUP BY {level}
                  HAVING count(*) = %s AND max(at) = min(at) FILTER (WHERE NOT is_taken))"""

# Two steps into the index for each state: to its first row, which is due if any is, held ones included, and to the first that is
# not due yet. min() over all states would read everything that waits.
NEXT_DUE = """
    SELECT coalesce(bool_or(first.at <= statement_timestamp()), false),
           (extract(epoch FROM min(later.at)) - extract(epoch FROM statement_timestamp()))::float8
      FROM unnest(%s::text[]) AS wanted (state)
      LEFT JOIN LATERAL (
        SELECT {next_at} AS at FROM {name} WHERE {status} = wanted.state ORDER BY {next_at} LIMIT 1) AS first ON true
      LEFT JOIN LATERAL (
        SELECT {next_at} AS at FROM {name} WHERE {status} = wanted.state AND {next_at} > statement_timestamp()
         ORDER BY {next_at} LIMIT 1) AS later ON true"""

#: How many rows of a state to look at first, and how many times as many if there are held ones among the last of them.
FIRST_WALK, LONGER_WALK, LONGEST_WALK = 16, 8, 1_000_000

#: A time in words that Python reads, whatever the `DateStyle` of the server is. They are in quotes.
ISO = "to_json({})::text"
#: Quicker than any way from a number to a time.
READ_TIME = "fromisoformat({}[1:-1])"

READER = """
def read(rows):
{first}
    return [new(Claimed, (age, ({read},), None)) for age, {names}, in rows]
"""

_claims: dict[tuple[Any, ...], tuple[Reading, str]] = {}
_next_due: dict[Table, str] = {}


class PostgreSQLClaims(PostgreSQLLevels):
    """Claims by any number of processes, side by side."""

    def claim(self, connection: Any, table: Table, wanted: Wanted) -> list[Claimed]:
        reading, text = claim_text(table, wanted, connection)
        values = claim_values(table, wanted, connection)
        return read_leased(table, reading, prepared.run(connection, text, values, read_rows), connection)

    def candidates(self, connection: Any, table: Table, wanted: Wanted) -> list[Any]:
        text = due_text(table, wanted, connection, lock="")
        # As the server has them: they go back as they came.
        return [row[0] for row in prepared.run(connection, text, due_values(table, wanted, connection))]

    def next_due(self, connection: Any, table: Table, states: Sequence[str]) -> NextDue:
        text = _next_due.get(table)
        if text is None:
            text = _next_due[table] = NEXT_DUE.format(**table.quoted(connection))
        ((is_any, seconds),) = prepared.run(connection, text, ([*states],))
        return NextDue(is_any, seconds)

    def recover(self, connection: Any, table: Table, states: Sequence[str], left: Left) -> Recovered:
        levels = [Level(state) for state in states] if left.levels is None else left.levels
        names = {**names_of(table, connection), **level_names(table, levels, connection)}
        effect = RECOVER if left.is_crash else UNCLAIM
        names["changes"] = effect.as_sql(names, TERMS)
        which = "{lease_expires_at} <= statement_timestamp()"
        params: tuple[Any, ...] = ()
        if left.owner is not None:
            which, params = "{lease_owner} = %s", (left.owner,)
        if left.held:
            which, params = (
                which + " AND {key} <> ALL(%s::{type}[])",
                (*params, prepared.prepared_keys(table, left.held, connection)),
            )
        names["which"] = which.format(**names)
        names |= {"held": "", "freed": "1", "tried": ""}
        blame: tuple[str, ...] = (RECOVERED if left.owner is None else DIED) if left.is_crash else ()
        if table.tries is not None and left.is_crash:
            names |= {"held": tries.held(names), "freed": "{key} AS key".format(**names)}
            names["tried"] = tries.from_left_open(names)
            blame *= 2  # once on the row, and once in what is kept of its try
        text = FREED.format(**names)
        freed, walk = 0, FIRST_WALK
        while True:
            values = (*level_values(levels), *params, walk, *params, *blame, walk)
            ((found, last, is_tied),) = prepared.run(connection, text, values)
            freed += found
            if (last <= walk // 2 and not is_tied) or walk >= LONGEST_WALK:
                return Recovered(freed, last > 0)
            walk *= LONGER_WALK


def claim_text(table: Table, wanted: Wanted, connection: Any) -> tuple[Reading, str]:
    """Return the claim of a machine, and how to read what it returns."""
    number = len(wanted.states), limit_of(wanted)
    kind: tuple[Any, ...] = (table, wanted.fields, wanted.crashes, wanted.keys is None, not wanted.aside, *number)
    if wanted.ranks is not None or wanted.members is not None:
        kind = (*kind, *kind_of(wanted))
    found = _claims.get(kind)
    if found is not None:
        return found
    reading = Reading.of(
        table, wanted.fields, {"lease_expires_at": LEASED_UNTIL.format(seconds="%s"), "claimed_at": NOW}
    )
    names = names_of(table, connection)
    text = CLAIMED.format(
        **names,
        changes=CLAIM.as_sql(names, ALL_AT_ONCE),
        due=due_text(table, wanted, connection, LOCKS),
        columns="".join(f", {column}" for column in reading.columns(connection)),
    )
    _claims[kind] = reading, text
    return reading, text


def claim_values(table: Table, wanted: Wanted, connection: Any) -> tuple[Any, ...]:
    return (*due_values(table, wanted, connection), wanted.owner, wanted.seconds, wanted.seconds)


def due_text(table: Table, wanted: Wanted, connection: Any, lock: str) -> str:
    """Return the rows that a claim is about, as SQL."""
    names = names_of(table, connection)
    which = ""
    if wanted.keys is not None:
        which = " AND {key} = ANY(%s::{type}[])".format(**names)
    elif wanted.aside:
        which = " AND {key} <> ALL(%s::{type}[])".format(**names)
    own = level_names(table, wanted.members or [Level("")], connection)
    served = "({columns}) IN (SELECT * FROM unnest({arrays}))".format(**own)
    if wanted.crashes:
        whose, urgency = "{status} = ANY(%s)".format(**names), ""
        if wanted.members is not None:
            whose = served
        if table.priority is not None:
            urgency = "{priority} DESC, ".format(**own)
        how_often = HOW_OFTEN[wanted.crashes]
        return SUSPECTS.format(**names, which=which, lock=lock, how_often=how_often, whose=whose, urgency=urgency)
    if wanted.ranks is not None and wanted.keys is None:
        return levels_text(names, level_names(table, wanted.ranks[0], connection), wanted.ranks, which, lock)
    if wanted.members is not None:  # a row that was set aside may be in another queue by now
        which += f" AND {served}"
    states = ", ".join(["(%s::text, %s::int)"] * len(wanted.states))
    return DUE.format(**names, which=which, lock=lock, states=states, limit=limit_of(wanted))


def limit_of(wanted: Wanted) -> str:
    """Return how many rows to claim, in SQL."""
    return str(wanted.limit) if wanted.limit <= FEW else "%s"


def due_values(table: Table, wanted: Wanted, connection: Any) -> tuple[Any, ...]:
    keys = wanted.aside if wanted.keys is None else wanted.keys
    which = (prepared.array_of([*keys]),) if keys or wanted.keys is not None else ()
    if wanted.crashes:
        whose = ([*wanted.states],) if wanted.members is None else level_values(wanted.members)
        return (*whose, *which, wanted.limit)
    if wanted.ranks is not None and wanted.keys is None:
        return levels_values(wanted, wanted.ranks, which)
    if wanted.members is not None:
        which = (*which, *level_values(wanted.members))
    states = [value for pair in zip(wanted.states, wanted.priorities, strict=True) for value in pair]
    limit = (wanted.limit,) if wanted.limit > FEW else ()
    return (*states, *which, *limit, *limit)


@dataclass(frozen=True, slots=True)
class Reading:
    """How the fields of leased rows are read: times as text, because Django's loader is slow, and knows neither the infinite nor
    years before Christ."""

    fields: tuple[Any, ...]
    #: The places of the times among the fields.
    times: tuple[int, ...]
    #: Of those that are the same for all rows, what they are in SQL.
    same: Mapping[int, str]
    #: Reads rows with nothing wrong in them, in UTC.
    read: Callable[[list[Any]], list[Claimed]]

    @classmethod
    def of(cls, table: Table, fields: tuple[Any, ...], same: Mapping[str, str] = MappingProxyType({})) -> Reading:
        """:param same: the machine's columns that are the same for all rows, and what they are."""
        places = {table.columns[name]: name for name in TIMES}
        times = {place: places[field.column] for place, field in enumerate(fields) if field.column in places}
        alike = {place: same[name] for place, name in times.items() if name in same}
        return cls(fields, tuple(times), alike, compiled_reader(len(fields), tuple(times), tuple(alike)))

    def columns(self, connection: Any, row: str = "") -> list[str]:
        """Return what is read, in SQL.

        :param row: how the row is called, if it has to be.
        """
        columns = [row + connection.ops.quote_name(field.column) for field in self.fields]
        for place in self.times:
            alike = self.same.get(place)
            columns[place] = ISO.format(columns[place]) if alike is None else f"(SELECT {ISO.format(alike)})"
        return columns


@cache
def compiled_reader(width: int, times: tuple[int, ...], same: tuple[int, ...]) -> Callable[[list[Any]], list[Claimed]]:
    """Return what reads rows of so many fields, written out: a loop over the places would take twice as long."""
    names = [f"value_{place}" for place in range(width)]
    read = [*names]
    for place in times:
        read[place] = f"same_{place}" if place in same else READ_TIME.format(names[place])
    first = [f"    same_{place} = {READ_TIME.format(f'rows[0][{place + 1}]')}" for place in same]
    text = READER.format(names=", ".join(names), read=", ".join(read), first="\n".join(first))
    scope: dict[str, Any] = {"Claimed": Claimed, "fromisoformat": datetime.fromisoformat, "new": tuple.__new__}
    exec(text, scope)  # noqa: S102 - nothing in it is anybody else's
    reader: Callable[[list[Any]], list[Claimed]] = scope["read"]
    return reader


def read_leased(table: Table, reading: Reading, rows: list[Any], connection: Any) -> list[Claimed]:
    """Return rows that are leased by now, whatever is wrong with one of them."""
    # Else Python has to find out what Django would make of a time.
    if rows and connection.timezone is not None and connection.timezone_name == "UTC":
        try:
            return reading.read(rows)
        except (LookupError, TypeError, ValueError):  # also of a row that the driver could not read
            pass
    return [read_claimed(table, reading, row, connection) for row in rows]


def read_claimed(table: Table, reading: Reading, row: Any, connection: Any) -> Claimed:
    """Return a row that is leased by now, whatever is wrong with it."""
    error: Exception | None = None
    if isinstance(row, Unread):
        error, row = row.error, _read_texts(table, reading, row.texts)
    age, *values = row
    for place in reading.times:
        try:
            values[place] = prepared.in_django_time(datetime.fromisoformat(values[place][1:-1]), connection)
        except (OverflowError, TypeError, ValueError):  # infinite, or of a year that Python does not know
            column = reading.fields[place].column
            error = error or ValueError(f"{column} is {values[place]}, which Python has no time for.")
            values[place] = None
    return Claimed(age, tuple(values), error)


class Unread(NamedTuple):
    """A row that the driver cannot read, such as one with a time after the year 9999, and what the server sent."""

    error: Exception
    texts: list[bytes | None]


def read_rows(cursor: Any) -> list[Any]:
    """Return all rows. They are leased by now, so that one that cannot be read must not take the others along."""
    try:
        rows: list[Any] = cursor.fetchall()
        return rows
    except Exception:
        result = getattr(cursor, "pgresult", None)
        if result is None:  # psycopg 2, which does not show it
            raise
        return [_read_row(cursor, result, place) for place in range(result.ntuples)]


def without_place(row: Any) -> tuple[int, Any]:
    """Return the place of what was given for a row that is leased by now, and the rest of it."""
    if isinstance(row, Unread):
        place, *texts = row.texts
        return int(place or 0), Unread(row.error, texts)
    return row[0], row[1:]


def _read_row(cursor: Any, result: Any, place: int) -> Any:
    cursor.scroll(place, mode="absolute")
    try:
        return cursor.fetchone()
    except Exception as error:  # noqa: BLE001 - of whatever kind
        return Unread(error, [result.get_value(place, column) for column in range(result.nfields)])


def _read_texts(table: Table, reading: Reading, texts: list[bytes | None]) -> list[Any]:
    """Return the key and the machine's columns of an unread row, and nothing for the others."""
    ours = {table.key, *table.columns.values()}
    age, *values = [None if text is None else text.decode() for text in texts]
    row: list[Any] = [float(age or 0)]
    for place, (field, text) in enumerate(zip(reading.fields, values, strict=True)):
        if text is None or field.column not in ours:
            row.append(None)
        else:
            row.append(text if place in reading.times else field.to_python(text))
    return row
