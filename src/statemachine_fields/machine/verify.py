"""Find rows whose status, counter and history disagree.

Rows are read in the order of their key and records by row and number, in pages that start where the last one ended: no
OFFSET, no server-side cursor, so it works behind a pooler and with any database, and memory does not grow with tables.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DEFAULT_DB_ALIAS, models
from django.db.models import Exists, FilteredRelation, OuterRef, Q

from statemachine_fields.db.clock import StatementClock
from statemachine_fields.db.rows import all_rows
from statemachine_fields.machine.findings import ERROR, Finding
from statemachine_fields.machine.verify_attempts import AttemptsReader

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

#: How many places of one kind of damage in one history a message names.
EXAMPLES = 3
#: How many records are read at once, for each row that is.
RECORDS_PER_ROW = 4
#: How far the times of a row and its record may be apart: serialisers cut what is below a millisecond.
CUT_OFF = datetime.timedelta(milliseconds=1)
#: How far a time may be in the future: the clock of a replica is another one.
AHEAD = datetime.timedelta(minutes=1)
#: Below every number that a record can have in an integer column.
BEFORE_ALL = -(2**31)


class CurrentRow(NamedTuple):
    """What a row says of itself."""

    status: str
    sequence: int
    changed_at: datetime.datetime
    #: When it was asked, by the database's clock.
    now: datetime.datetime

    @property
    def is_ahead(self) -> bool:
        return self.changed_at > self.now + AHEAD


class History:
    """What the records of one row come to. Takes them one at a time by number, and keeps only what is wrong."""

    __slots__ = ("at", "graph", "id", "keeps", "noted", "sequence", "to_status")

    def __init__(self, bound: Binding[Any]) -> None:
        self.graph = bound.graph
        #: Whether it may outlive its row, and be followed by that of another row with the same key.
        self.keeps = bound.keeps_history
        self.id: uuid.UUID | None = None
        self.sequence = 0  # of the record before
        self.to_status: str | None = None
        self.at: datetime.datetime | None = None
        self.noted: dict[str, list[str]] = {}

    def add(
        self,
        sequence: int,
        from_status: str,
        to_status: str,
        transitioned_at: datetime.datetime,
        forced: Any,
        imported: Any,
        record_id: uuid.UUID,
    ) -> None:
        """Judge the next record by the one before it."""
        if sequence == self.sequence + 1:
            if self.to_status is not None and from_status != self.to_status and not self._begins(sequence, from_status):
                self._note(
                    "chain-broken",
                    f"record {sequence} says that the row came from {from_status!r}, record {self.sequence} that it "
                    f"went to {self.to_status!r}",
                )
        elif sequence > self.sequence:
            self._note("records-missing", _numbers(self.sequence + 1, sequence - 1))
        else:
            self._note("number-invalid", str(sequence))
        if self.at is not None and self.id is not None and transitioned_at < self.at:
            # Ids are made by the clock of a program, times by that of the database.
            code = "time-backwards" if record_id > self.id else "record-misplaced"
            self._note(code, f"record {sequence} is of {transitioned_at}, the one before of {self.at}")
        if imported is not True and not self.graph.allows(from_status, to_status):  # another graph held then
            self._note_undeclared(sequence, from_status, to_status, forced is True)
        self.sequence, self.to_status = max(sequence, self.sequence), to_status
        self.at, self.id = transitioned_at, record_id

    def _begins(self, sequence: int, from_status: str) -> bool:
        """Say whether a row begins with the record."""
        return from_status == "" and (sequence == 1 or self.keeps)

    def _note_undeclared(self, sequence: int, from_status: str, to_status: str, forced: bool) -> None:
        is_first = self._begins(sequence, from_status)
        states = [to_status] if is_first else dict.fromkeys((from_status, to_status))
        unknown = [state for state in states if state not in self.graph]
        if unknown:
            self._note("state-undeclared", f"record {sequence} has {' and '.join(map(repr, unknown))}")
        elif not (is_first or forced or any(self.graph.states[state].retired for state in states)):
            self._note("move-undeclared", f"record {sequence} from {from_status!r} to {to_status!r}")

    def _note(self, code: str, place: str) -> None:
        places = self.noted.setdefault(code, [])
        if len(places) == EXAMPLES:
            places.append("...")
        if len(places) < EXAMPLES:
            places.append(place)

    def disagreements(self, row: CurrentRow | None) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the history, and between it and its row, as code and text."""
        if row is not None and row.status not in self.graph:
            yield "status-undeclared", f"The row is in {row.status!r}, which is not declared."
        for code, places in self.noted.items():
            yield code, SUMMARIES[code].format("; ".join(places))
        latest = f"the latest record is number {self.sequence}" if self.sequence else "there is no record"
        if row is None:
            if not self.keeps:
                yield "row-missing", f"There is no row, but {latest}."
        elif row.sequence == 0 and self.keeps:
            pass  # the row has not moved yet, and what there is was kept of another
        elif row.sequence != self.sequence:
            code = "counter-ahead" if row.sequence > self.sequence else "counter-behind"
            yield code, f"The counter is {row.sequence}, but {latest}."
        elif self.to_status is not None and row.status != self.to_status:
            what = f"The status is {row.status!r}, but record {self.sequence} says {self.to_status!r}."
            yield "status-mismatch", what
        elif self.at is not None and abs(row.changed_at - self.at) >= CUT_OFF:
            yield (
                "time-mismatch",
                f"The row says that it moved at {row.changed_at}, record {self.sequence} at {self.at}.",
            )
        if row is not None and row.is_ahead:
            yield "time-future", f"The row says that it moved at {row.changed_at}, and it is {row.now}."


SUMMARIES = {
    "chain-broken": "The chain is broken: {}.",
    "records-missing": "Missing records: {}.",
    "number-invalid": "Records with a number that cannot be: {}.",
    "time-backwards": "Time runs backwards: {}.",
    "record-misplaced": "Both the time and the id of a record are older than those before it: {}.",
    "state-undeclared": "States that are not declared: {}.",
    "move-undeclared": "Moves that are not declared: {}.",
}


class Verifier:
    """Read one machine's rows and records and compare them.

    A batch is one statement for its rows and one for the records of their range; one more for every
    `RECORDS_PER_ROW * batch_size` records, so that long histories fit too. What looks damaged is read once more, row by
    row. Nothing is locked and nothing written, so a replica will do.

    :param on_page: called after each page that was read, to show progress.
    """

    def __init__(
        self,
        bound: Binding[Any],
        *,
        using: str = DEFAULT_DB_ALIAS,
        batch_size: int = 2000,
        on_page: Callable[[Verifier], None] = lambda verifier: None,
    ) -> None:
        self.bound = bound
        self.batch_size = batch_size
        self.on_page = on_page
        self.page_size = RECORDS_PER_ROW * batch_size
        names = bound.names
        self.row_columns: list[Any] = [names.status, names.sequence, names.changed_at, StatementClock()]
        facts = ["sequence", "from_status", "to_status", "transitioned_at"]
        self.record_columns = [*facts, "metadata__forced", "metadata__imported", "id"]
        self.rows_of: models.QuerySet[Any] = all_rows(bound.model, using).order_by("pk")
        self.records_of: models.QuerySet[Any] = (
            all_rows(bound.transition_model, using)
            .filter(instance_id__isnull=False)
            .order_by("instance_id", "sequence")
        )
        self.using = using
        #: How much has been read.
        self.rows = self.records = self.attempts = 0

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong, to the end of both tables."""
        after: Any = None
        while True:
            page = self.rows_of if after is None else self.rows_of.filter(pk__gt=after)
            rows = {
                key: CurrentRow(*found) for key, *found in page.values_list("pk", *self.row_columns)[: self.batch_size]
            }
            self.rows += len(rows)
            until = next(reversed(rows)) if len(rows) == self.batch_size else None
            for key, row, history in self._histories(rows, after, until):
                yield from self._judge(key, row, history)
            if until is None:
                break
            after = until
        if self.bound.records_attempts:
            yield from self._attempts()

    def _attempts(self) -> Iterator[Finding]:
        """Yield what is wrong with tries."""
        reader = AttemptsReader(self.bound, self.using, self.page_size)
        for page in reader.pages():
            self.attempts += len(page)
            self.on_page(self)
            for attempt in page:
                for code, what in reader.disagreements(attempt):
                    yield Finding(str(self.bound), attempt.instance_id, code, what)

    def _histories(
        self, rows: dict[Any, CurrentRow], after: Any, until: Any
    ) -> Iterator[tuple[Any, CurrentRow | None, History]]:
        """Yield each row of a batch with its history, and each history in the batch's range that has no row.

        Keys are compared by the database alone: Python sorts text, and some databases UUIDs, in another order.
        """
        for key, records in groupby(self._records(after, until), key=itemgetter(0)):
            history = History(self.bound)
            for _key, *record in records:
                history.add(*record)
            yield key, rows.pop(key, None), history
        for key, row in rows.items():
            if row.sequence or row.is_ahead or row.status not in self.bound.graph:
                yield key, row, History(self.bound)

    def _records(self, after: Any, until: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the records of the rows after one key and up to another, page by page."""
        todo = self.records_of if until is None else self.records_of.filter(instance_id__lte=until)
        page_of = todo if after is None else todo.filter(instance_id__gt=after)
        while True:
            page = list(page_of.values_list("instance_id", *self.record_columns)[: self.page_size])
            self.records += len(page)
            self.on_page(self)
            yield from page
            if len(page) < self.page_size:
                return
            key, sequence = page[-1][:2]
            # The first condition follows from the second and is there for the index: databases do not start a scan
            # at an OR.
            page_of = todo.filter(Q(instance_id__gte=key), Q(instance_id__gt=key) | Q(sequence__gt=sequence))

    def _judge(self, key: Any, row: CurrentRow | None, history: History) -> list[Finding]:
        """Return what is wrong with a row. What looks damaged is read again, because the row may just have moved."""
        found = self._findings(key, row, history)
        if any(finding.severity == ERROR for finding in found):
            found = self._findings(key, *self._read_at_one_moment(key))
        return found

    def _findings(self, key: Any, row: CurrentRow | None, history: History | None) -> list[Finding]:
        if history is None:
            return []
        return [Finding(str(self.bound), key, code, what) for code, what in history.disagreements(row)]

    def _read_at_one_moment(self, key: Any) -> tuple[CurrentRow | None, History | None]:
        """Return a row and its history as they are together; nothing if both are gone.

        A batch reads rows first and records later, and a row that moves in between looks damaged. Here one statement
        reads the row beside its records. A statement sees the database at one moment, at which a move is there whole or
        not at all, so no lock is needed and nobody waits. A history longer than a page takes several statements; as
        records are only ever added at the end, what the last of them says of the row is true of all that was read.
        """
        history, last = History(self.bound), BEFORE_ALL
        relation = self.bound.names.reverse_accessor
        columns = [f"later_record__{column}" for column in self.record_columns]
        while True:
            later = FilteredRelation(relation, condition=Q(**{f"{relation}__sequence__gt": last}))
            rows = self.rows_of.filter(pk=key).annotate(later_record=later).order_by("later_record__sequence")
            page = list(rows.values_list(*self.row_columns, *columns)[: self.page_size])
            if not page:
                return None, self._orphans(key)
            for found in page:
                record = found[len(self.row_columns) :]
                if record[0] is not None:
                    history.add(*record)
                    last = record[0]
            if len(page) < self.page_size:
                return CurrentRow(*page[-1][: len(self.row_columns)]), history

    def _orphans(self, key: Any) -> History | None:
        """Return the history of a row that is gone, as long as it is gone; None if there is none."""
        history, last, found = History(self.bound), BEFORE_ALL, False
        of_row = self.records_of.filter(~Exists(self.rows_of.filter(pk=OuterRef("instance_id"))), instance_id=key)
        while page := list(of_row.filter(sequence__gt=last).values_list(*self.record_columns)[: self.page_size]):
            found, last = True, page[-1][0]
            for record in page:
                history.add(*record)
        return history if found else None


def _numbers(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
