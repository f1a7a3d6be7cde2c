"""The first record of rows that no `save()` inserted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models, transaction

from statemachine_fields.db.columns import Written
from statemachine_fields.machine.batches import Batches, Done

if TYPE_CHECKING:
    from statemachine_fields.machine.bound import BoundMachine


class InitialRecorder:
    """Give rows without a history their transition number 1."""

    def __init__(self, bound: BoundMachine[Any], queryset: models.QuerySet[Any], batch_size: int) -> None:
        self.bound = bound
        self.batches = Batches(bound, queryset, batch_size)
        self.recorded = 0

    def run(self) -> int:
        self.batches.run(self._record)
        return self.recorded

    def _record(self, rows: models.QuerySet[Any]) -> Done:
        names, using = self.bound.names, self.batches.using
        with transaction.atomic(using=using, savepoint=False):
            found = list(self.batches.locked(rows).values_list("pk", names.status, names.changed_at, names.sequence))
            new = [row for row in found if row[3] == 0]
            self.batches.owners.filter(pk__in=[row[0] for row in new]).update(**{names.sequence: Written(1)})
            self.bound.record_first(((key, status, changed_at) for key, status, changed_at, _ in new), using)
        self.recorded += len(new)
        return Done(len(found), found[-1][0] if found else None)
