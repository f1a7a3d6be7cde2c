"""Where the history of a row begins: with a first record, and after what was kept of another row with its key.

History may outlive its row (`history_on_delete=models.DO_NOTHING`), whose key is then used again. The new row counts on from the
records that were kept, and begins with a record of its own that leads away from nothing. `save()` writes that one with the
row. Rows that nobody saw being made, as those of `bulk_create()`, have counted nothing yet: `record_initial()` lets them
begin, and of those whose key has records whoever moves one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from django.db import models, transaction
from django.db.models import Exists, Max, OuterRef, Subquery
from django.db.models.functions import Coalesce

from statemachine_fields.db.batches import LARGEST_KEY_LIST, Batches, Done
from statemachine_fields.db.expressions import MachineValue
from statemachine_fields.db.rows import all_rows

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding


def newest_records(bound: Binding[Any], keys: Sequence[Any], using: str) -> dict[Any, int]:
    """Return the number of the newest record of each key that has one."""
    found: dict[Any, int] = {}
    for start in range(0, len(keys), LARGEST_KEY_LIST):
        records = all_rows(bound.transition_model, using).filter(instance_id__in=keys[start : start + LARGEST_KEY_LIST])
        found |= dict(records.order_by().values_list("instance_id").annotate(newest=Max("sequence")))
    return found


def records_of_rows(bound: Binding[Any], records: models.QuerySet[Any]) -> models.QuerySet[Any]:
    """Return those records that are of the rows there are now, and not of rows that had the same key before them."""
    if not bound.keeps_history:
        return records
    same_key = all_rows(bound.transition_model).filter(instance_id=OuterRef("instance_id"), from_status="")
    beginning = Subquery(same_key.order_by("-sequence").values("sequence")[:1])
    not_begun = all_rows(bound.model).filter(**{"pk": OuterRef("instance_id"), bound.names.sequence: 0})
    return records.filter(~Exists(not_begun), sequence__gte=Coalesce(beginning, 0))


class InitialRecorder:
    """Give rows without a history of their own their first record: number 1, or the one after those that were kept."""

    def __init__(self, bound: Binding[Any], queryset: models.QuerySet[Any], batch_size: int) -> None:
        self.bound = bound
        self.batches = Batches(bound, queryset, batch_size)
        self.recorded = 0
        #: The numbers of the records, by key, of the last batch.
        self.numbers: dict[Any, int] = {}

    def run(self) -> int:
        self.batches.run(self._record)
        return self.recorded

    def _record(self, rows: models.QuerySet[Any]) -> Done:
        names, using = self.bound.names, self.batches.using
        with transaction.atomic(using=using, savepoint=False):
            found = list(self.batches.locked(rows).values_list("pk", names.status, names.changed_at, names.sequence))
            new = [row[:3] for row in found if row[3] == 0]
            kept = newest_records(self.bound, [row[0] for row in new], using) if self.bound.keeps_history else {}
            self.numbers = {row[0]: kept.get(row[0], 0) + 1 for row in new}
            for number, group in groupby(sorted(new, key=self._number), key=self._number):
                alike = list(group)
                keys = [row[0] for row in alike]
                self.batches.owners.filter(pk__in=keys).update(**{names.sequence: MachineValue(number)})
                self.bound.record_first(alike, using, number)
                if self.bound.records_attempts:  # which say after how many moves they were, and were after this one
                    all_rows(self.bound.attempt_model, using).filter(instance_id__in=keys).update(sequence=number)
        self.recorded += len(new)
        return Done(len(found), found[-1][0] if found else None)

    def _number(self, row: tuple[Any, ...]) -> int:
        return self.numbers[row[0]]


def begin_after_kept(bound: Binding[Any], keys: Sequence[Any], using: str) -> dict[Any, int]:
    """Write the first record of those rows that have counted nothing and whose key has records, which then are of another
    row. Return its number for each. One query, if there are none."""
    begun: dict[Any, int] = {}
    used_before = list(newest_records(bound, keys, using))
    for start in range(0, len(used_before), LARGEST_KEY_LIST):
        rows = all_rows(bound.model, using).filter(pk__in=used_before[start : start + LARGEST_KEY_LIST])
        recorder = InitialRecorder(bound, rows, LARGEST_KEY_LIST + 1)
        recorder.run()
        begun |= recorder.numbers
    return begun
