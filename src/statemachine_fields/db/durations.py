"""How long rows stayed in a state: medians and 95th percentiles, computed where the audit rows are."""

from __future__ import annotations

import datetime
import math
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statemachine_fields.db.columns import Table

MEDIAN = 0.5
P95 = 0.95


@dataclass(frozen=True, slots=True)
class Window:
    """The moves to look at: those from `since` on and before `until`. None is no border."""

    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    #: No move of the window has a smaller id, so the scan of the primary key may start here.
    first_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class Stay:
    """How long rows stayed in a state before they left it, in microseconds. Without a target: wherever they went."""

    source: str
    target: str | None
    count: int
    median: float
    p95: float


# A move ends the stay that the record numbered one less began: the unique index on (instance_id, sequence) finds it.
# The first record of a row has none before it, or that of another row which had the key before; it leads away from
# nothing. A gap in the numbers takes its stays away and spoils no other.
STAYS = """
      FROM {audit} AS leaving
      JOIN {audit} AS entering
        ON entering.instance_id = leaving.instance_id AND entering.sequence = leaving.sequence - 1
     WHERE leaving.from_status <> '' AND {window}"""

# One scan and one join answer for states and for edges. The array sorts each group once for both percentiles. They are
# taken of numbers: PostgreSQL interpolates intervals by their days and hours apart, and rounds each.
PERCENTILES = """
    SELECT source, target, count(*), percentile_cont(%s::float8[]) WITHIN GROUP (ORDER BY microseconds)
      FROM (SELECT leaving.from_status AS source, leaving.to_status AS target,
                   (extract(epoch FROM leaving.transitioned_at - entering.transitioned_at) * 1000000)::float8
                       AS microseconds {stays}) AS stays
     GROUP BY GROUPING SETS ((source), (source, target))"""

# SQLite, MariaDB and MySQL have no percentile to group by. The stays are numbered from 0 by length; of n + 1, the
# percentile p lies at p * n, between the two stays next to that place. `sides` doubles each row, once for its state and
# once for its edge, because MariaDB runs a common table expression again for each place that names it.
RANKS = """
      WITH stays AS (
        SELECT leaving.from_status AS source, leaving.to_status AS target, {elapsed} AS microseconds {stays}),
      grouped AS (
        SELECT source, CASE side WHEN 1 THEN target END AS target, microseconds
          FROM stays CROSS JOIN (SELECT 0 AS side UNION ALL SELECT 1) AS sides),
      ranked AS (
        SELECT source, target, microseconds,
               ROW_NUMBER() OVER (PARTITION BY source, target ORDER BY microseconds) - 1 AS place,
               COUNT(*) OVER (PARTITION BY source, target) - 1 AS final
          FROM grouped)
    SELECT source, target, COUNT(*),
           MAX(CASE WHEN place <= {median} * final AND place + 1 > {median} * final THEN microseconds END),
           MAX(CASE WHEN place >= {median} * final AND place - 1 < {median} * final THEN microseconds END),
           MAX(CASE WHEN place <= {p95} * final AND place + 1 > {p95} * final THEN microseconds END),
           MAX(CASE WHEN place >= {p95} * final AND place - 1 < {p95} * final THEN microseconds END)
      FROM ranked
     GROUP BY source, target"""


def ask_percentiles(connection: Any, table: Table, window: Window) -> list[Stay]:
    """Ask a database that has `percentile_cont` as an aggregate. One statement."""
    conditions: list[str] = []
    params: list[Any] = [[MEDIAN, P95]]
    for condition, value in (
        ("leaving.id >= %s", window.first_id),
        ("leaving.transitioned_at >= %s", window.since),
        ("leaving.transitioned_at < %s", window.until),
    ):
        if value is not None:
            conditions.append(condition)
            params.append(value)
    stays = STAYS.format(audit=connection.ops.quote_name(table.audit), window=" AND ".join(conditions) or "true")
    with connection.cursor() as cursor:
        cursor.execute(PERCENTILES.format(stays=stays), params)
        return [Stay(source, target, count, *found) for source, target, count, found in cursor.fetchall()]


def ask_ranks(connection: Any, table: Table, window: Window) -> list[Stay]:
    """Ask a database that has window functions. One statement, and the answer of `percentile_cont`."""
    elapsed, _params = _microseconds(connection, "leaving.transitioned_at", "entering.transitioned_at", ())
    conditions: list[str] = []
    params: list[Any] = []
    if window.first_id is not None and sorts_ids_by_time(connection):
        conditions.append("leaving.id >= %s")
        params.append(table.id_field.get_db_prep_value(window.first_id, connection))
    # Differences, since SQLite compares texts: of one instant it has '12:00:00', '12:00:00.000' and '12:00:00.000000'.
    for border, comparison in ((window.since, ">= 0"), (window.until, "< 0")):
        if border is not None:
            instant = table.time_field.get_db_prep_value(border, connection)
            since_border, given = _microseconds(connection, "leaving.transitioned_at", "%s", (instant,))
            conditions.append(f"{since_border} {comparison}")
            params += given
    stays = STAYS.format(audit=connection.ops.quote_name(table.audit), window=" AND ".join(conditions) or "1 = 1")
    # An exponent makes the number a float in MariaDB too, where 0.95 alone is a decimal.
    text = RANKS.format(stays=stays, elapsed=elapsed, median=f"{MEDIAN}e0", p95=f"{P95}e0")
    with connection.cursor() as cursor:
        cursor.execute(text, params)
        return [
            Stay(source, target, count, _between(MEDIAN, count, *median), _between(P95, count, *p95))
            for source, target, count, *places in cursor.fetchall()
            for median, p95 in [(places[:2], places[2:])]
        ]


def _between(percentile: float, count: int, low: int, high: int) -> float:
    """Return the value at a percentile from the two stays that are next to it."""
    place = percentile * (count - 1)
    return low + (place - math.floor(place)) * (high - low)


def _microseconds(connection: Any, left: str, right: str, params: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Return SQL for the time from `right` to `left`, as Django itself subtracts on this database."""
    sql, given = connection.ops.subtract_temporals("DateTimeField", (left, ()), (right, params))
    return str(sql), tuple(given)


def sorts_ids_by_time(connection: Any) -> bool:
    """Say whether ids made later are larger: MariaDB's own type compared the last bytes first until 10.11.5."""
    version: tuple[int, ...] | None = getattr(connection, "mysql_version", None)
    if version is None or not connection.features.has_native_uuid_field:
        return True
    return version >= (10, 11, 5) and not (11, 0) <= version < (11, 1, 2)
