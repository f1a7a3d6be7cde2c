"""History from elsewhere: what happened to rows before the machine was there, put before what it records itself.

Entries are read and judged outside any transaction of ours, one row's at a time: a cursor that they come from, opened
inside one, would end with it. Then the row is locked, and all its records are written or none.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django.core.exceptions import ValidationError
from django.db import models, router, transaction
from django.db.models import F

from statemachine_fields.db.batches import Batches
from statemachine_fields.db.clock import DatabaseClock
from statemachine_fields.db.expressions import Increment, MachineValue
from statemachine_fields.db.rows import all_rows
from statemachine_fields.machine.bulk import Refusal
from statemachine_fields.machine.history_entries import Chain, HistoryEntry, Refused, Step, read_entries
from statemachine_fields.machine.ids import uuid7_from
from statemachine_fields.machine.initial_records import newest_records, records_of_rows
from statemachine_fields.schedule.policy import plain

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

M = TypeVar("M", bound=models.Model)


@dataclass(slots=True)
class ImportResult:
    """How many rows got their history, and which did not.

    `records` is how many records were written, `gaps` how many of them stand for what nobody recorded, and `skipped` how
    many rows had these records already.
    """

    imported: int = 0
    records: int = 0
    gaps: int = 0
    skipped: int = 0
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def refused(self) -> int:
        return len(self.refusals)


class Key(NamedTuple):
    """The key of a row as its model has it; as it was given, if no row can have it."""

    value: Any
    is_possible: bool


class Found(NamedTuple):
    """What the locked row says of itself, and what time the database has."""

    status: str
    sequence: int
    changed_at: datetime.datetime
    now: datetime.datetime
    lease_expires_at: datetime.datetime | None = None


class HistoryImporter:
    """One run over the entries of many rows."""

    def __init__(
        self,
        bound: Binding[Any],
        rows: Iterable[Mapping[str, Any]],
        gaps: str,
        past_states: Collection[str],
        batch_size: int,
        progress: Callable[[ImportResult], None] | None,
        using: str | None,
    ) -> None:
        if gaps not in ("refuse", "record"):
            raise ValueError(f"gaps must be 'refuse' or 'record', got {gaps!r}.")
        if isinstance(past_states, str):
            raise TypeError(f"past_states must be a list of states, got {past_states!r}.")
        room = bound.machine.max_length
        if too_long := [state for state in past_states if len(state) > room]:
            raise ValueError(
                f"past_states has {too_long[0]!r}, but the audit table has room for {room} characters. Give the machine a "
                "larger max_length and migrate."
            )
        self.bound = bound
        self.rows = rows
        self.chain = Chain(frozenset([*bound.graph.states, *map(plain, past_states)]), gaps == "record")
        self.progress = progress
        self.using = using or router.db_for_write(bound.model)
        every_row: models.QuerySet[Any] = all_rows(bound.model, self.using)
        self.batches = Batches(bound, every_row, batch_size)
        self.records: models.QuerySet[Any] = all_rows(bound.transition_model, self.using)
        self.refused: set[Any] = set()
        self.result = ImportResult()

    def run(self) -> ImportResult:
        for key, given in groupby(self.rows, key=self._key_of):
            try:
                self._import(key, self._read(key, list(given)))
            except Refused as refusal:
                if key.is_possible:
                    self.refused.add(key.value)
                self.result.refusals.append(Refusal(key.value, refusal.status, str(refusal)))
            if self.progress is not None:
                self.progress(self.result)
        return self.result

    def _key_of(self, entry: Mapping[str, Any]) -> Key:
        if not isinstance(entry, Mapping) or "key" not in entry:
            raise self._stop(TypeError(f"an entry must be a dict with a key, got {entry!r}."))
        try:
            key = self.bound.model._meta.pk.to_python(entry["key"])
        except ValidationError:
            return Key(entry["key"], False)
        return Key(key, key is not None)

    def _read(self, key: Key, given: Sequence[Mapping[str, Any]]) -> list[HistoryEntry]:
        try:
            return list(read_entries(self.bound, key.value, given))
        except (TypeError, ValueError) as error:
            raise self._stop(error) from error

    def _stop(self, error: Exception) -> Exception:
        kept = f"Rows that came before it, {self.result.imported} in all, have their history."
        return type(error)(f"{self.bound}: {error} Nothing was written for this key. {kept}")

    def _import(self, key: Key, entries: Sequence[HistoryEntry]) -> None:
        if not key.is_possible:
            raise Refused(f"No row of {self.bound.model._meta.label} can have this key.")
        if key.value in self.refused:
            raise Refused(
                "The key came before and was refused. Give all entries of a key one after the other, by time."
            )
        steps = self.chain.join(entries)
        written: list[Step] = []
        refusal: Refused | None = None
        with transaction.atomic(using=self.using, savepoint=False):
            try:
                written = self._place(key.value, steps)
            except Refused as error:  # nothing is written yet, and a transaction of the caller's stays usable
                refusal = error
        if refusal is not None:
            raise refusal
        if written:
            self.result.imported += 1
            self.result.records += len(written)
            self.result.gaps += sum(step.is_gap for step in written)
        else:
            self.result.skipped += 1

    def _place(self, key: Any, steps: list[Step]) -> list[Step]:
        """Write records before what the row has, and return them; none if it has them already."""
        row = self._lock(key)
        if steps[-1].at > row.now:
            raise Refused(f"The last entry, of {steps[-1].at}, lies in the future: it is {row.now} now.", row.status)
        if row.sequence:
            return self._put_before(key, row, steps)
        if self.bound.keeps_history and newest_records(self.bound, [key], self.using):
            raise Refused(
                "The key has records of another row, which is gone, and history cannot be put between the two. Leave the "
                "entries out: the row begins with its first move, or with record_initial().",
                row.status,
            )
        last = steps[-1]
        if last.to_status != row.status:
            at = max(last.at, row.changed_at)  # by then at the latest
            what = f"The last entry leads to {last.to_status!r}, and the row is in {row.status!r}."
            steps.append(self.chain.gap(last.to_status, row.status, at, what, row.status))
        self._write(key, steps, {self.bound.names.changed_at: MachineValue(steps[-1].at)}, len(steps))
        return steps

    def _lock(self, key: Any) -> Found:
        names = self.bound.names
        columns = [names.status, names.sequence, names.changed_at]
        lease = [names.lease_expires_at] if self.bound.is_timed else []
        rows = self.batches.locked(self.batches.owners.filter(pk=key))
        found = rows.values_list(*columns, DatabaseClock(), *lease).first()
        if found is None:
            raise Refused(f"There is no row of {self.bound.model._meta.label} with this key.")
        row = Found(*found)
        if row.lease_expires_at is not None:  # a worker knows by the counter whether the row has moved
            raise Refused(
                "A worker is running the row. Import it again later; rows that have their history are left alone.",
                row.status,
            )
        return row

    def _put_before(self, key: Any, row: Found, steps: list[Step]) -> list[Step]:
        """Write the past of a row that the machine has moved since, before the records of that."""
        records = self.records.filter(instance_id=key)
        columns = ("from_status", "to_status", "transitioned_at", "sequence", "id")
        of_row = records_of_rows(self.bound, records).order_by("sequence")
        there: list[Any] = list(of_row.values_list(*columns, named=True)[: len(steps)])
        if [found[:3] for found in there] == [step[:3] for step in steps]:  # both states, and the time
            return []
        has = f"The row has {row.sequence} transitions already"
        if not there or there[0].sequence != 1 or not there[0].from_status:
            raise Refused(
                f"{has}, which do not say where the row was before them, and are not these entries. Import history before "
                "record_initial(), and give all entries of a key one after the other.",
                row.status,
            )
        first, last = there[0], steps[-1]
        if last.at > first.transitioned_at:
            raise Refused(
                f"{has}, the first of {first.transitioned_at}, which is before the last entry, of {last.at}. Leave out what the machine "
                "recorded itself, and give all entries of a key one after the other.",
                row.status,
            )
        if last.to_status != first.from_status:
            what = f"{has}, the first from {first.from_status!r}, but the last entry leads to {last.to_status!r}."
            steps.append(self.chain.gap(last.to_status, first.from_status, first.transitioned_at, what, row.status))
        # In two steps, because a number has to be free when it is taken.
        records.update(sequence=-F("sequence") - len(steps))
        records.update(sequence=-F("sequence"))
        self._write(key, steps, {}, row.sequence + len(steps), before=first.id)
        return steps

    def _write(
        self,
        key: Any,
        steps: Sequence[Step],
        changes: Mapping[str, Any],
        sequence: int,
        before: uuid.UUID | None = None,
    ) -> None:
        self._shift_mentions(key, len(steps))
        self.batches.owners.filter(pk=key).update(**changes, **{self.bound.names.sequence: MachineValue(sequence)})
        ids = uuid7_from((step.at for step in steps), before)
        self.records.bulk_create(
            (
                self.bound.build_record(
                    id=made,
                    instance_id=key,
                    from_status=step.from_status,
                    to_status=step.to_status,
                    transitioned_at=step.at,
                    metadata=step.metadata,
                    sequence=number,
                    **step.record,
                )
                for number, (made, step) in enumerate(zip(ids, steps, strict=True), 1)
            ),
            batch_size=self.batches.batch_size,
        )

    def _shift_mentions(self, key: Any, by: int) -> None:
        """Let what names a move of the row by its number go on naming the same move."""
        bound = self.bound
        if bound.records_attempts:  # after which move a try was
            all_rows(bound.attempt_model, self.using).filter(instance_id=key).update(sequence=F("sequence") + by)
        if "inbox" in bound.features:  # which move took an event
            events = all_rows(bound.require_events(), self.using).filter(instance_id=key, taken_by__isnull=False)
            events.update(taken_by=F("taken_by") + by)
        if "cancels" in bound.features:  # by which move the row has left its children
            cancels = bound.names.cancels
            marked = self.batches.owners.filter(**{"pk": key, f"{cancels}__gt": 0})
            marked.update(**{cancels: Increment(cancels, by)})
