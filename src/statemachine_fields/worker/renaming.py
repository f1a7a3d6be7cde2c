"""Run statistics of a state that gets another name."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, IntegrityError, connections, models, router, transaction
from django.db.models import F

from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.worker.models import RunStatistics

#: How often to try again where a worker writes at the same moment.
MOST_TRIES = 5


def rename_statistics(machine: str, old: str, new: str, using: str) -> None:
    """Count what was counted under one name under another, hour by hour, with what that has already."""
    connection = connections[using]
    if not router.allow_migrate_model(using, RunStatistics):
        return
    with connection.cursor() as cursor:
        if RunStatistics._meta.db_table not in connection.introspection.table_names(cursor):
            return
    of_machine: models.QuerySet[Any] = models.QuerySet(RunStatistics, using=using).filter(machine=machine)
    for period in list(of_machine.filter(state=old).order_by("period").values_list("period", flat=True).distinct()):
        _try_to_add(of_machine.filter(period=period), old, new, connection)


def _try_to_add(hour: models.QuerySet[Any], old: str, new: str, connection: Any) -> None:
    for tries_left in reversed(range(MOST_TRIES)):
        try:
            with transaction.atomic(using=connection.alias):
                _add(hour, old, new, connection)
                return
        except DatabaseError as error:
            is_passing = isinstance(error, IntegrityError) or dialect_for(connection).is_conflict(error)
            if not (is_passing and tries_left):
                raise


def _add(hour: models.QuerySet[Any], old: str, new: str, connection: Any) -> None:
    rows = hour.filter(state__in=[old, new]).order_by("state", "kind")  # in the order in which workers write them
    if connection.features.has_select_for_update:
        rows = rows.select_for_update()
    found = {(row.state, row.kind): row for row in rows}
    both = [row for row in found.values() if row.state == old and (new, row.kind) in found]
    for row in both:
        into = hour.filter(pk=found[new, row.kind].pk)
        into.update(count=F("count") + row.count, seconds=F("seconds") + row.seconds)
    hour.filter(pk__in=[row.pk for row in both]).delete()
    hour.filter(state=old).update(state=new)
