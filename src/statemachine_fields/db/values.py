"""Which values a column holds besides those that are known, whatever the size of the table."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

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
