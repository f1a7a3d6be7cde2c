"""Run statistics: counts of this process, added now and then to those of all others.

What is added is what was committed, once: a connection that breaks before the answer leaves it open whether the counts were
added, and then the database is asked before they are sent again.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time

from django.db import DatabaseError, InterfaceError, connections, router, transaction
from django.utils import timezone

from statemachine_fields.conf import settings
from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.db.tallies import Tally
from statemachine_fields.worker.connections import Backoff, close_connections
from statemachine_fields.worker.models import RunStatistics
from statemachine_fields.worker.outcomes import Counts, Events

WRITE_EVERY = 5.0
DELETE_EVERY = 3600.0


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
                dialect.add_up(connection, RunStatistics._meta.db_table, this_period(), _tallies(counts))
                sent = number
        except (DatabaseError, InterfaceError):
            if sent is None:
                self.events.put_back(counts)
            else:  # it may be the answer to COMMIT that was lost
                self._unheard = counts, sent
            raise


def _tallies(counts: Counts) -> list[Tally]:
    return [Tally(*key, number, seconds) for key, (number, seconds) in counts.items()]


def this_period() -> datetime.datetime:
    return timezone.now().replace(minute=0, second=0, microsecond=0)


def delete_old_statistics() -> None:
    oldest = timezone.now() - datetime.timedelta(days=settings().STATISTICS_DAYS)
    RunStatistics.objects.filter(period__lt=oldest).delete()
