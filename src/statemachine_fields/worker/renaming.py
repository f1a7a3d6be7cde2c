"""Run statistics of a state that gets another name."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, IntegrityError, connections, models, router, transaction
from django.db.models import F

from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.worker.models import RunStatistics

#: How often to try again where a worker writes at the same moment.
MOST_TRIES = 5

KEYS = ("id", "machine", "state", "period")


def rename_statistics(machine: str, old: str, new: str, using: str) -> None:
    """Count what was counted under one name under another, hour by hour, with what that has already."""
    connection = connections[using]
    if not router.allow_migrate_model(using, RunStatistics):
        return
    with connection.cursor() as cursor:
        if RunStatistics._meta.db_table not in connection.introspection.table_names(cursor):
            return
    of_machine: models.QuerySet[Any] = models.QuerySet(RunStatistics, using=using).filter(machine=machine)
    for period in list(of_machine.filter(state=old).values_list("period", flat=True)):
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
    rows = hour.filter(state__in=[old, new]).order_by("state")  # in the order in which workers write them
    if connection.features.has_select_for_update:
        rows = rows.select_for_update()
    found = {row.state: row for row in rows}
    if old not in found:
        return
    if new not in found:
        hour.filter(pk=found[old].pk).update(state=new)
        return
    counts = [field.name for field in RunStatistics._meta.concrete_fields if field.name not in KEYS]
    hour.filter(pk=found[new].pk).update(**{name: F(name) + getattr(found[old], name) for name in counts})
    hour.filter(pk=found[old].pk).delete()
