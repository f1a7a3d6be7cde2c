"""What a claim asks for and what it finds; and what is taken back from workers that are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

#: Rows by how often a worker died of them, or vanished: never, once, more often.
HOW_OFTEN = {0: "= 0", 1: "= 1", 2: "> 1"}

#: What is written on a row whose worker has vanished, between and after its name.
RECOVERED = ("Recovered from ", ", which stopped extending its lease.")
DIED = ("Recovered from ", ", which died.")


class Level(NamedTuple):
    """Rows of a state that are claimed in the order in which they are due: those of one queue, of one priority, or both."""

    state: str
    #: What the rows have in their queue column; None if they are of any queue.
    queue: str | None = None
    #: The same of their priority; None if that is not theirs to say, or for all that there are.
    priority: int | None = None


class SurveyedLevel(NamedTuple):
    """A level in use: whether any row of it is due, free or held, and in how many seconds the first of the others is."""

    level: Level
    is_due: bool
    seconds: float | None


#: Levels, those of one urgency together, the most urgent first.
Ranks: TypeAlias = "Sequence[Sequence[Level]]"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows to claim: of which states, by urgency, how many, for whom and for how long."""

    states: Sequence[str]
    priorities: Sequence[int]
    limit: int
    owner: str
    seconds: float
    #: Of how many workers' deaths the rows may be the cause: 0, 1, or 2 for more than one.
    crashes: int
    #: The fields of the row to read.
    fields: tuple[Any, ...]
    #: Only these rows, or all but those that are set aside; keys as `candidates()` returns them.
    keys: Sequence[Any] | None = None
    aside: Sequence[Any] = ()
    #: Where rows say themselves how urgent they are, or are claimed by queue: in which order, level by level, and which they are.
    ranks: Ranks | None = None
    members: Sequence[Level] | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """Which rows to take back: those whose lease has run out, or all that somebody holds who is known to be gone."""

    owner: str | None = None
    #: Keys of rows to leave alone.
    held: Sequence[Any] = ()
    #: Whether a crash is counted on each, and written from whom it was taken.
    is_crash: bool = True
    #: Where rows say themselves how urgent they are, or are served by queue: of which levels.
    levels: Sequence[Level] | None = None


class Recovered(NamedTuple):
    """How many rows were taken back, and whether there were any that somebody holds or a worker may have died of."""

    rows: int
    seen: bool


class Claimed(NamedTuple):
    """A row that was taken: its age in its state by the database's clock, and the values of the fields asked for."""

    age: float
    values: tuple[Any, ...]
    #: What the driver could not read in it. The key and the machine's own columns are there nevertheless.
    error: Exception | None = None


class NextDue(NamedTuple):
    """Whether any row is due, be it free or held, and in how many seconds the first of the others is; None if none ever is."""

    is_any: bool
    seconds: float | None
