"""What else is written with rows that move, in the same statement, or transaction where one statement cannot: for those alone that are
moved, and with what only the database knows then, such as the number of the move."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class Rider(ABC):
    """Something to be written for some of the rows of a write that is recorded."""

    #: What it is called in the statement. Two of one name have the same text.
    name: ClassVar[str]

    @abstractmethod
    def as_cte(self, names: Mapping[str, str]) -> str:
        """Return what is written as a part of the statement, which reads `key`, `sequence` and `place` of `moved`."""

    @abstractmethod
    def parameters(self) -> tuple[Any, ...]:
        """Return the parameters of that part."""

    @abstractmethod
    def write_one(self, cursor: Any, names: Mapping[str, str], place: int, key: Any, sequence: int) -> None:
        """Write it for one row that was moved, as a statement of its own.

        :param place: which of the rows that is, from 1.
        """


class Taking(Rider):
    """Mark events as taken by the move."""

    name = "taken"

    # The array keeps it on an index, where a join would read the whole of a small table. The token has seen to it that nobody else
    # can have taken them; that they are untaken is asked so that the index of those is used.
    TEXT = """
        UPDATE {events} AS e SET taken_by = moved.sequence
          FROM moved JOIN unnest(%s::bigint[], %s::bigint[]) AS take (place, number) ON take.place = moved.place
         WHERE e.instance_id = ANY(ARRAY(SELECT key FROM moved)) AND e.instance_id = moved.key
           AND e.number = take.number AND e.taken_by IS NULL"""

    ONE = "UPDATE {events} SET taken_by = %s WHERE instance_id = %s AND number IN ({places}) AND taken_by IS NULL"

    def __init__(self, taken: Sequence[Sequence[int]]) -> None:
        """:param taken: the numbers of the events that the move of each row takes."""
        self.taken = taken

    def as_cte(self, names: Mapping[str, str]) -> str:
        return self.TEXT.format(**names)

    def parameters(self) -> tuple[Any, ...]:
        from statemachine_fields.db import prepared  # which needs PostgreSQL's driver; others write one row at a time

        pairs = [(place, number) for place, numbers in enumerate(self.taken, 1) for number in numbers]
        places, numbers = zip(*pairs, strict=True) if pairs else ((), ())
        return prepared.array_of(places), prepared.array_of(numbers)

    def write_one(self, cursor: Any, names: Mapping[str, str], place: int, key: Any, sequence: int) -> None:
        if numbers := self.taken[place - 1]:
            text = self.ONE.format(**names, places=", ".join(["%s"] * len(numbers)))
            cursor.execute(text, (sequence, key, *numbers))
