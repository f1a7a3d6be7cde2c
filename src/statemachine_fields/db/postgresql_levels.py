"""Claims on PostgreSQL where rows say themselves in which queue they are or how urgent: level by level, each a walk along an index
that has its rows in the order in which they are due."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from statemachine_fields.db import prepared
from statemachine_fields.db.claims import Level, Ranks, SurveyedLevel, Wanted
from statemachine_fields.db.columns import Table

# Nothing at all costs a step for each state: the first one in order, or the planner would read the table until it meets one.
ANY_DUE = """(
            SELECT WHERE EXISTS (
                SELECT FROM unnest(%s::text[]) AS wanted (state)
                 CROSS JOIN LATERAL (
                    SELECT FROM {name} WHERE {status} = wanted.state AND {next_at} <= statement_timestamp()
                     ORDER BY {next_at} LIMIT 1) AS first)
            ) AS any_due"""

WALK = """(
                SELECT {key} AS key, {next_at} AS next_at FROM {name}
                 WHERE {match} AND {next_at} <= statement_timestamp()
                   AND CASE WHEN {lease_expires_at} IS NULL THEN {crashes} = 0 ELSE false END{which}
                 ORDER BY {next_at} LIMIT %s{lock}) AS near"""

# Level by level, the next one only if these were not enough, so that neither the rows of less urgent levels are read or locked, nor
# those of the future.
DUE = f"""
        SELECT near.key FROM {ANY_DUE}
         CROSS JOIN unnest({{arrays}}) AS wanted ({{level}})
         CROSS JOIN LATERAL {WALK}
         LIMIT %s"""

# The same where several are of one urgency: those are walked together and put in the order of time. (Slices cost more than the steps
# into an index do, if there are many levels and nothing is due in most.)
DUE_TOGETHER = f"""
        SELECT found.key FROM {ANY_DUE}
         CROSS JOIN unnest(%s::int[], %s::int[]) AS urgency (first, last)
         CROSS JOIN LATERAL (
            SELECT near.key FROM unnest({{slices}}) AS wanted ({{level}})
             CROSS JOIN LATERAL {WALK}
             ORDER BY near.next_at LIMIT %s) AS found
         LIMIT %s"""

# The most urgent level of a state, or of a queue, and from each the next one: a step into the index for each that is in use, with the
# row of it that is due first. {later} is when the first one is that is not due yet, for those who serve single queues and want to sleep.
SURVEY = """
    WITH RECURSIVE level AS (
        SELECT {own}, first.* FROM unnest({arrays}) AS wanted ({level})
         CROSS JOIN LATERAL (
            SELECT {urgency} AS found_priority, {next_at} AS found_at FROM {name}
             WHERE {match} AND {next_at} IS NOT NULL ORDER BY {order}{next_at} LIMIT 1) AS first (priority, at){less_urgent})
    SELECT state, {queues}, priority, at <= statement_timestamp(),
           (extract(epoch FROM {later}) - extract(epoch FROM statement_timestamp()))::float8
      FROM level AS wanted"""

LESS_URGENT = """
         UNION ALL
        SELECT {own}, next.* FROM level AS wanted
         CROSS JOIN LATERAL (
            SELECT {priority} AS found_priority, {next_at} AS found_at FROM {name}
             WHERE {match} AND {next_at} IS NOT NULL AND {priority} < wanted.priority
             ORDER BY {priority} DESC, {next_at} LIMIT 1) AS next"""

LATER = """CASE WHEN at > statement_timestamp() THEN at ELSE (
            SELECT {next_at} FROM {name} WHERE {match} AND {next_at} > statement_timestamp()
             ORDER BY {next_at} LIMIT 1) END"""

#: What the parts of a level are compared with, and their types.
PARTS = {"state": ("status", "text"), "queue": ("queue", "text"), "priority": ("priority", "bigint")}

# The second comparison says nothing new, and costs nothing in an index that has the column. Without it, statistics of a time when all
# rows were in one queue, or of one priority, make all indexes alike to the planner, and it may read one that does not have it.
MATCH = "{0} = wanted.{1} AND {0} >= wanted.{1}"
MATCHES = {"state": "{0} = wanted.{1}"}

_surveys: dict[tuple[Any, ...], str] = {}


class PostgreSQLLevels:
    """Finds out which levels are in use."""

    def survey(
        self, connection: Any, table: Table, members: Sequence[Level], *, later: bool = True
    ) -> list[SurveyedLevel]:
        rows = prepared.run(connection, *survey_text(table, members, connection, later=later))
        return [SurveyedLevel(Level(state, queue, priority), *due) for state, queue, priority, *due in rows]


def kind_of(wanted: Wanted) -> tuple[Any, ...]:
    """Return on what the text of a claim depends that is about levels."""
    members = None if wanted.members is None else len(_parts(wanted.members[0]))
    return (members,) if wanted.ranks is None else (members, *_parts(wanted.ranks[0][0]), is_single(wanted.ranks))


def level_names(table: Table, levels: Sequence[Level], connection: Any) -> dict[str, str]:
    """Return how levels are written: as arrays, as columns of what those are unnested to, and what is true of their rows."""
    own, parts = table.quoted_own(connection), _parts(levels[0])
    names = {"status": table.quoted(connection)["status"], **own}
    return {
        **own,
        "arrays": ", ".join([f"%s::{PARTS[part][1]}[]" for part in parts]),
        "slices": ", ".join([f"(%s::{PARTS[part][1]}[])[urgency.first:urgency.last]" for part in parts]),
        "level": ", ".join(parts),
        "own": ", ".join([f"wanted.{part}" for part in parts]),
        "columns": ", ".join([names[PARTS[part][0]] for part in parts]),
        "match": " AND ".join([MATCHES.get(part, MATCH).format(names[PARTS[part][0]], part) for part in parts]),
    }


def level_values(levels: Sequence[Level]) -> tuple[Any, ...]:
    """Return an array for each part of some levels."""
    return tuple([prepared.array_of([getattr(level, part) for level in levels]) for part in _parts(levels[0])])


def levels_text(names: dict[str, str], own: dict[str, str], ranks: Ranks, which: str, lock: str) -> str:
    """Return the rows that a claim is about, as SQL."""
    return (DUE if is_single(ranks) else DUE_TOGETHER).format(**names, **own, which=which, lock=lock)


def levels_values(wanted: Wanted, ranks: Ranks, which: tuple[Any, ...]) -> tuple[Any, ...]:
    states, levels = prepared.array_of([*wanted.states]), level_values([level for rank in ranks for level in rank])
    if is_single(ranks):
        return (states, *levels, *which, wanted.limit, wanted.limit)
    lasts = [*accumulate(len(rank) for rank in ranks)]
    firsts = [last - len(rank) + 1 for last, rank in zip(lasts, ranks, strict=True)]
    bounds = [prepared.array_of(each) for each in (firsts, lasts)]
    return (states, *bounds, *levels, *which, *[wanted.limit] * 3)


def is_single(ranks: Ranks) -> bool:
    """Say whether no two levels are of one urgency."""
    return all(len(rank) == 1 for rank in ranks)


def _parts(level: Level) -> list[str]:
    """Return by what levels of this kind are told from each other."""
    return [part for part in PARTS if getattr(level, part) is not None]


def survey_text(
    table: Table, members: Sequence[Level], connection: Any, *, later: bool = True
) -> tuple[str, tuple[Any, ...]]:
    """Return the question for the levels that have rows, and its values."""
    kind = (table, *_parts(members[0]), later)
    text = _surveys.get(kind)
    if text is None:
        text = _surveys[kind] = _survey_text(table, members, connection, later=later)
    return text, level_values(members)


def _survey_text(table: Table, members: Sequence[Level], connection: Any, *, later: bool) -> str:
    names = {**table.quoted(connection), **level_names(table, members, connection)}
    names |= {"urgency": "NULL::bigint", "order": "", "less_urgent": "", "later": "at"}
    member = members[0]
    names["queues"] = "NULL" if member.queue is None else "queue"
    if table.priority is not None:
        names |= {"urgency": names["priority"], "order": "{priority} DESC, ".format(**names)}
        names["less_urgent"] = LESS_URGENT.format(**names)
        member = member._replace(priority=0)
    if later and member.queue is not None:
        names["later"] = LATER.format(**names | level_names(table, [member], connection))
    return SURVEY.format(**names)
