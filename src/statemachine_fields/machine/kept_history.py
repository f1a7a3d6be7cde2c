"""History that outlives its row (`history_on_delete=models.DO_NOTHING`), and a row that uses the key again.

The new row counts on from the records that were kept, and begins with a record of its own that leads away from nothing.
`save()` writes that one with the row. Rows that nobody saw being made, as those of `bulk_create()`, have counted nothing yet:
whoever moves one first lets it begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Exists, Max, OuterRef, Subquery
from django.db.models.functions import Coalesce

from statemachine_fields.db.batches import LARGEST_KEY_LIST
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
