"""Run statistics: what workers did, by machine, state and hour, added up over all of them."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class RunStatistics(models.Model):
    """What became of the rows of one state of one machine that were due in one hour."""

    machine = models.CharField(_("machine"), max_length=200)
    state = models.CharField(_("state"), max_length=200)
    period = models.DateTimeField(_("hour"))
    claimed = models.BigIntegerField(_("claimed"), default=0, db_default=0)
    moved = models.BigIntegerField(_("moved"), default=0, db_default=0)
    waited = models.BigIntegerField(_("not yet"), default=0, db_default=0)
    failed = models.BigIntegerField(_("failed"), default=0, db_default=0)
    parked = models.BigIntegerField(_("parked"), default=0, db_default=0)
    released = models.BigIntegerField(_("given back"), default=0, db_default=0)
    recovered = models.BigIntegerField(_("recovered"), default=0, db_default=0)
    dropped = models.BigIntegerField(_("dropped"), default=0, db_default=0)
    deleted = models.BigIntegerField(_("deleted"), default=0, db_default=0)
    seconds = models.FloatField(_("seconds in handlers"), default=0, db_default=0)

    class Meta:
        verbose_name = _("run statistics")
        verbose_name_plural = _("run statistics")
        ordering = ["-period", "machine", "state"]
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(fields=["machine", "state", "period"], name="statemachine_worker_one_hour"),
        ]
        indexes = [models.Index(fields=["period"], name="statemachine_worker_period")]

    def __str__(self) -> str:
        return f"{self.machine} {self.state} {self.period:%Y-%m-%d %H:%M}"
