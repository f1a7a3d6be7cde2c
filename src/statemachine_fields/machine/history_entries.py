"""What is said of a row's past, and whether it holds together. Knows nothing of the database."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from statemachine_fields.db.clock import read_instant
from statemachine_fields.machine.context import loaded, read_metadata
from statemachine_fields.schedule.policy import plain

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

#: What an entry must say, and what it may.
NEEDED = frozenset({"key", "to_status", "at"})
KNOWN = NEEDED | {"from_status", "metadata", "record"}
#: What may be said for short.
SHORT = {"from": "from_status", "to": "to_status"}

#: Ids count milliseconds from here on.
FIRST_YEAR = 1970


class Refused(Exception):
    """Why the history of a row is not written, and where the row stands if that is known."""

    def __init__(self, reason: str, status: str = "") -> None:
        super().__init__(reason)
        self.status = status


class HistoryEntry(NamedTuple):
    """One thing that is said of a row. With no `from_status`, it is only said where the row was."""

    number: int
    from_status: str
    to_status: str
    at: datetime.datetime
    metadata: Any
    record: dict[str, Any]

    def __str__(self) -> str:
        move = f"{self.from_status!r} → {self.to_status!r}" if self.from_status else repr(self.to_status)
        return f"Entry {self.number}, {move} at {self.at},"


class Step(NamedTuple):
    """A record to be written."""

    from_status: str
    to_status: str
    at: datetime.datetime
    metadata: dict[str, Any]
    record: dict[str, Any]
    is_gap: bool = False


def read_entries(bound: Binding[Any], key: object, entries: Iterable[Mapping[str, Any]]) -> Iterator[HistoryEntry]:
    """Yield the entries of one row, or raise TypeError or ValueError for what the program that made them got wrong."""
    for number, given in enumerate(entries, 1):
        where = f"entry {number} of key {key!r}"
        entry = {SHORT.get(name, name): value for name, value in given.items()}
        if not NEEDED <= entry.keys() <= KNOWN or len(entry) < len(given):
            names = ", ".join(sorted(map(str, given.keys() - {"key"}))) or "nothing"
            raise TypeError(
                f"{where} has {names} beside its key. It must have to_status and at, and may have from_status, metadata and "
                "record. `to` and `from` stand for the names of the states."
            )
        came, went = entry.get("from_status"), entry["to_status"]
        if not (came is None or isinstance(came, str)) or not (isinstance(went, str) and went):
            raise TypeError(f"{where} must have states that are text, got {came!r} and {went!r}.")
        try:
            at = read_instant(entry["at"], "at")
            record = bound.read_record(entry.get("record"))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: {error}") from error
        yield HistoryEntry(number, plain(came or ""), plain(went), at, entry.get("metadata"), record)


def _without_zone(at: datetime.datetime) -> datetime.datetime:
    """Return an instant in UTC. In the hour that comes twice in autumn, Python compares two times of one zone by what the
    clock on the wall says, and takes none for equal to one of another zone."""
    return at.astimezone(datetime.UTC) if at.tzinfo is not None else at


@dataclass(frozen=True, slots=True)
class Chain:
    """The rules by which entries become records.

    :param states: every state that an entry may name.
    :param records_gaps: whether what nobody recorded is recorded as such; it is refused otherwise.
    """

    states: Collection[str]
    records_gaps: bool

    def join(self, entries: Sequence[HistoryEntry]) -> list[Step]:
        """Return the records that the entries of a row come to, each going on from the one before, or refuse them."""
        steps: list[Step] = []
        for given in entries:
            self._look_at(given)
            entry = given._replace(at=_without_zone(given.at))
            status = steps[-1].to_status if steps else ""
            if steps and entry.at < steps[-1].at:
                raise Refused(f"{entry} is earlier than the one before it, of {steps[-1].at}. Order entries by time.")
            if not entry.from_status and entry.to_status == status:
                continue  # the row was seen where it was already
            if steps and entry.from_status and entry.from_status != status:
                what = f"{entry} does not go on from the one before it, which led to {status!r}."
                steps.append(self.gap(status, entry.from_status, entry.at, what))
            steps.append(self._step(entry, entry.from_status or status))
        return steps

    def gap(self, came: str, went: str, at: datetime.datetime, what: str, row_status: str = "") -> Step:
        """Return a record of what nobody recorded, or refuse, saying what is missing."""
        if not self.records_gaps:
            raise Refused(f"{what} Add what is missing, or have it recorded as a gap with gaps='record'.", row_status)
        return Step(came, went, at, {"gap": True, "imported": True}, {}, is_gap=True)

    def _look_at(self, entry: HistoryEntry) -> None:
        """Refuse what can be told of an entry alone."""
        unknown = [state for state in (entry.from_status, entry.to_status) if state and state not in self.states]
        if unknown:
            raise Refused(
                f"{entry} has {unknown[0]!r}, which is not declared. Give the entry the state that it is called now, or, if "
                "there is none, name it in past_states."
            )
        # A year of margin, because both ends of what a datetime holds have no other time zone.
        years = (FIRST_YEAR, datetime.MAXYEAR)
        if not years[0] <= entry.at.year < years[1] or entry.at.astimezone(datetime.UTC).year < FIRST_YEAR:
            raise Refused(f"{entry} is out of bounds: ids of records begin with the year {FIRST_YEAR}.")

    def _step(self, entry: HistoryEntry, came: str) -> Step:
        try:
            metadata = loaded(read_metadata(entry.metadata))
        except TypeError as error:
            raise Refused(f"{entry} is refused: {error}") from error
        return Step(came, entry.to_status, entry.at, {**metadata, "imported": True}, entry.record)
