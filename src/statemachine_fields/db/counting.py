"""Questions about rows of many kinds in one statement, each answered from an index whatever the size of the table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections, models

Querysets = Mapping[str, models.QuerySet[Any]]

# From each value to the next larger one, which an index on the column finds at once: as many steps as there are values.
# DISTINCT and NOT IN would read every row of the table to find out that there is nothing to find.
FOUND = """
    WITH RECURSIVE found (value, place) AS (
        SELECT MIN({column}), 1 FROM {table}
         UNION ALL
        SELECT (SELECT MIN({column}) FROM {table} WHERE {column} > found.value), found.place + 1
          FROM found WHERE found.value IS NOT NULL AND found.place < %s)"""

#: How many values that nobody knows are looked at, if a column is full of them.
MOST = 100


@dataclass(frozen=True, slots=True)
class OtherValues:
    """The values of a column that are not among those known, as parts of a statement."""

    table: str
    column: str
    known: Collection[str]

    def cte(self, connection: Any) -> tuple[str, list[Any]]:
        """Return the common table expression `found`, for the front of a statement, and its parameters."""
        quote = connection.ops.quote_name
        return FOUND.format(column=quote(self.column), table=quote(self.table)), [len(self.known) + MOST]

    def condition(self) -> tuple[str, list[Any]]:
        """Return what holds of the values of `found` that are not known, and its parameters."""
        places = ", ".join(["%s"] * len(self.known))
        return f"found.value IS NOT NULL AND found.value NOT IN ({places})", list(self.known)

    def ask(self, connection: Any) -> list[str]:
        """Return the values, sorted. One statement."""
        found, most = self.cte(connection)
        condition, known = self.condition()
        with connection.cursor() as cursor:
            cursor.execute(f"{found} SELECT found.value FROM found WHERE {condition}", [*most, *known])
            return sorted(value for (value,) in cursor.fetchall())


def count_each(querysets: Querysets, limit: int) -> dict[str, int]:
    """Return how many rows each queryset has, by name; `limit` and one for any number above the limit."""
    counts = dict.fromkeys(querysets, 0)
    counts.update(_ask(querysets, limit + 1, "COUNT(*)")[0])
    return counts


def count_each_and_find(querysets: Querysets, limit: int, others: OtherValues) -> tuple[dict[str, int], list[str]]:
    """As `count_each()`, and return the other values of a column with it, sorted. One statement."""
    found, _compiler = _ask(querysets, limit + 1, "COUNT(*)", others)
    counts = dict.fromkeys(querysets, 0)
    counts.update({name: number for name, number, value in found if value is None})
    return counts, sorted(value for _name, _number, value in found if value is not None)


def first_of_each(querysets: Querysets, limit: int) -> dict[str, list[Any]]:
    """Return the keys of the first rows of each queryset, by name, in any order.

    Each part keeps only the first few while it reads. ROW_NUMBER() for all kinds at once would sort every row of them,
    on disk if there are half a million, which takes seven times as long.
    """
    keys: dict[str, list[Any]] = {name: [] for name in querysets}
    found, compiler = _ask(querysets, limit, "part.*")
    if found:
        converters = compiler.get_converters([compiler.select[0][0]])
        read = compiler.apply_converters([[key] for _name, key, *_rest in found], converters)
        for (name, *_columns), (key,) in zip(found, read, strict=True):
            keys[name].append(key)
    return keys


def _ask(
    querysets: Querysets, limit: int, what: str, others: OtherValues | None = None
) -> tuple[list[tuple[Any, ...]], Any]:
    """Ask the same of the first rows of each queryset, all of one model and one database; return each answer after the
    name of its queryset, and a compiler that knows how to read the key.

    :param others: values to find in the same statement. Answers have one value more then, which is None for a queryset.
    """
    names: list[str] = []
    parts: list[str] = []
    params: list[Any] = []
    using, compiler = "", None
    beside = "" if others is None else ", NULL AS value"
    for name, queryset in querysets.items():
        using = queryset.db
        its_compiler: Any = queryset.values("pk")[:limit].query.get_compiler(using)
        try:
            sql, given = its_compiler.as_sql()
        except EmptyResultSet:
            continue
        compiler = its_compiler
        parts.append(f"SELECT {len(names)} AS place, {what}{beside} FROM ({sql}) AS part")
        names.append(name)
        params += given
    if not parts:
        return [], None
    statement = " UNION ALL ".join(parts)
    if others is not None:
        found, before = others.cte(connections[using])
        condition, after = others.condition()
        statement = f"{found} {statement} UNION ALL SELECT {len(names)}, 0, found.value FROM found WHERE {condition}"
        params = [*before, *params, *after]
        names.append("")
    with connections[using].cursor() as cursor:
        cursor.execute(statement, params)
        return [(names[place], *rest) for place, *rest in cursor.fetchall()], compiler
