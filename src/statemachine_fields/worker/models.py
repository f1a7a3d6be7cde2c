"""Run statistics: what workers did, by machine, state and hour, added up over all of them."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy


class RunStatistics(models.Model):
    """What became of the rows of one state of one machine that were due in one hour."""

    machine = models.CharField(pgettext_lazy("state machine", "machine"), max_length=200)
    state = models.CharField(pgettext_lazy("state machine", "state"), max_length=200)
    period = models.DateTimeField(pgettext_lazy("state machine", "hour"))
    claimed = models.BigIntegerField(pgettext_lazy("state machine", "claimed"), default=0, db_default=0)
    moved = models.BigIntegerField(pgettext_lazy("state machine", "moved"), default=0, db_default=0)
    waited = models.BigIntegerField(pgettext_lazy("state machine", "not yet"), default=0, db_default=0)
    failed = models.BigIntegerField(pgettext_lazy("state machine", "failed"), default=0, db_default=0)
    parked = models.BigIntegerField(pgettext_lazy("state machine", "parked"), default=0, db_default=0)
    released = models.BigIntegerField(pgettext_lazy("state machine", "given back"), default=0, db_default=0)
    recovered = models.BigIntegerField(pgettext_lazy("state machine", "recovered"), default=0, db_default=0)
    dropped = models.BigIntegerField(pgettext_lazy("state machine", "dropped"), default=0, db_default=0)
    deleted = models.BigIntegerField(pgettext_lazy("state machine", "deleted"), default=0, db_default=0)
    seconds = models.FloatField(_("seconds in handlers"), default=0, db_default=0)

    class Meta:
        verbose_name = pgettext_lazy("state machine", "run statistics")
        verbose_name_plural = pgettext_lazy("state machine", "run statistics")
        ordering = ["-period", "machine", "state"]
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(fields=["machine", "state", "period"], name="statemachine_worker_one_hour"),
        ]
        indexes = [models.Index(fields=["period"], name="statemachine_worker_period")]

    def __str__(self) -> str:
        return f"{self.machine} {self.state} {self.period:%Y-%m-%d %H:%M}"
