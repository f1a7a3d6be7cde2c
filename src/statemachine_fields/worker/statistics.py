"""Run statistics: counts of this process, added now and then to those of all others."""

from __future__ import annotations

import datetime
import logging

from django.db import DatabaseError, connections, router
from django.utils import timezone

from statemachine_fields.conf import settings
from statemachine_fields.db.leases import Tally, leases_for
from statemachine_fields.worker.events import Events
from statemachine_fields.worker.models import RunStatistics
from statemachine_fields.worker.outcomes import Kind

logger = logging.getLogger("statemachine_fields.worker")

#: Counts that have a column under another name.
COLUMNS = {Kind.SETTLED_ITSELF: "moved"}


def write_statistics(events: Events) -> None:
    """Add what was counted since the last time. What cannot be written is kept for the next."""
    counts = events.take_counts()
    if not counts:
        return
    tallies = []
    for (machine, state), numbers in counts.items():
        summed: dict[str, float] = {}
        for what, number in numbers.items():
            column = COLUMNS.get(what, what)  # type: ignore[call-overload]
            summed[column] = summed.get(column, 0) + number
        tallies.append(Tally(machine, state, summed))
    connection = connections[router.db_for_write(RunStatistics)]
    try:
        leases_for(connection).add_up(connection, RunStatistics._meta.db_table, this_period(), tallies)
    except DatabaseError:
        events.put_back(counts)
        raise


def this_period() -> datetime.datetime:
    return timezone.now().replace(minute=0, second=0, microsecond=0)


def delete_old_statistics() -> None:
    oldest = timezone.now() - datetime.timedelta(days=settings().STATISTICS_DAYS)
    RunStatistics.objects.filter(period__lt=oldest).delete()
