"""Run statistics: what workers did, by machine, state and hour, added up over all of them."""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import dataclass, field

from django.db import models
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy


@dataclass(slots=True)
class HourlyRuns:
    """What became of the rows of one state of one machine that were due in one hour."""

    machine: str
    state: str
    period: datetime.datetime
    #: How often, by kind. What did not happen is 0.
    counts: Counter[str] = field(default_factory=Counter)
    #: The time that handlers took, over all kinds.
    seconds: float = 0.0


class RunStatisticsQuerySet(models.QuerySet["RunStatistics"]):
    """Run statistics, one row for each kind."""

    def by_hour(self) -> list[HourlyRuns]:
        """Return one object for each machine, state and hour, with the counts of all kinds. The newest hour comes first."""
        hours: dict[tuple[datetime.datetime, str, str], HourlyRuns] = {}
        for row in self:
            key = row.period, row.machine, row.state
            hour = hours.setdefault(key, HourlyRuns(row.machine, row.state, row.period))
            hour.counts[row.kind] += row.count
            hour.seconds += row.seconds
        return list(hours.values())


class RunStatistics(models.Model):
    """How often one kind of thing became of the rows of one state of one machine in one hour.

    A kind is a name, so that one which nobody knew before needs no migration. The seconds are those of the handlers that
    ended so: over all kinds, they are those of the state.
    """

    machine = models.CharField(pgettext_lazy("state machine", "machine"), max_length=200)
    state = models.CharField(pgettext_lazy("state machine", "state"), max_length=200)
    period = models.DateTimeField(pgettext_lazy("state machine", "hour"))
    kind = models.CharField(pgettext_lazy("state machine", "kind"), max_length=50)
    count = models.BigIntegerField(pgettext_lazy("state machine", "count"), default=0, db_default=0)
    seconds = models.FloatField(_("seconds in handlers"), default=0, db_default=0)

    objects = RunStatisticsQuerySet.as_manager()

    class Meta:
        verbose_name = pgettext_lazy("state machine", "run statistics")
        verbose_name_plural = pgettext_lazy("state machine", "run statistics")
        ordering = ["-period", "machine", "state", "kind"]
        default_permissions = ("view",)
        constraints = [
            # The hour first, because old ones are deleted and pages begin with the newest.
            models.UniqueConstraint(fields=["period", "machine", "state", "kind"], name="statemachine_worker_one_kind"),
        ]

    def __str__(self) -> str:
        return f"{self.machine} {self.state} {self.period:%Y-%m-%d %H:%M} {self.kind}"
