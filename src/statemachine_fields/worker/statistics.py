"""Run statistics: counts of this process, added now and then to those of all others.

What is added is what was committed, once: a connection that breaks before the answer leaves it open whether the counts were
added, and then the database is asked before they are sent again.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from typing import Any

from django.db import DatabaseError, IntegrityError, InterfaceError, connections, models, router, transaction
from django.db.models import F
from django.utils import timezone

from statemachine_fields.conf import settings
from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.db.tallies import Tally, add_up
from statemachine_fields.worker.connections import Backoff, close_connections
from statemachine_fields.worker.models import RunStatistics
from statemachine_fields.worker.outcome_events import Events
from statemachine_fields.worker.reporting import Counts

WRITE_EVERY = 5.0
DELETE_EVERY = 3600.0
#: How often to try to rename a state again where a worker writes at the same moment.
MOST_TRIES = 5


class StatisticsWriter:
    """Writes the counts of a process when it is time to."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._write_at = time.monotonic() + WRITE_EVERY
        self._delete_at = time.monotonic()
        self._backoff = Backoff(most=60.0, first=1.0)
        #: Counts that were sent, and the transaction of which it is not known whether it was committed.
        self._unheard: tuple[Counts, int] | None = None
        self._lock = threading.Lock()

    def tick(self) -> None:
        """Write if it is time to. What cannot be written is kept for the next time."""
        now = time.monotonic()
        if not self._backoff.is_over or now < min(self._write_at, self._delete_at):
            return
        try:
            if now >= self._write_at:
                self.write()
                self._write_at = now + WRITE_EVERY
            if now >= self._delete_at:
                delete_old_statistics()
                self._delete_at = now + DELETE_EVERY
        except (DatabaseError, InterfaceError) as error:
            self._backoff.failed()
            close_connections()
            text = "Run statistics cannot be written now, and are kept: %s"
            self.events.digest.log(("statistics", type(error)), logging.WARNING, text, str(error).strip())
        else:
            self._backoff.succeeded()

    def write(self) -> None:
        """Add what was counted since the last time. Whoever comes while another writes waits until that is done."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        connection = connections[router.db_for_write(RunStatistics)]
        dialect = dialect_for(connection)
        if self._unheard is not None:
            counts, doubtful = self._unheard
            was_committed = dialect.was_committed(connection, doubtful)
            if was_committed is None:
                return
            if not was_committed:
                self.events.put_back(counts)
            self._unheard = None
        counts = self.events.take_counts()
        if not counts:
            return
        sent: int | None = None
        try:
            with transaction.atomic(using=connection.alias):
                number = dialect.transaction_number(connection)
                tallies = [Tally(*key, number, seconds) for key, (number, seconds) in counts.items()]
                add_up(connection, RunStatistics._meta.db_table, this_period(), tallies)
                sent = number
        except (DatabaseError, InterfaceError):
            if sent is None:
                self.events.put_back(counts)
            else:  # it may be the answer to COMMIT that was lost
                self._unheard = counts, sent
            raise


def this_period() -> datetime.datetime:
    return timezone.now().replace(minute=0, second=0, microsecond=0)


def delete_old_statistics() -> None:
    oldest = timezone.now() - datetime.timedelta(days=settings().STATISTICS_DAYS)
    RunStatistics.objects.filter(period__lt=oldest).delete()


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
