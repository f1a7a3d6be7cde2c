"""The rows of the index benchmark, and the same with more columns, of which `indexes_ours.py` says who writes them."""

from __future__ import annotations

from django.db import models

from statemachine_fields import StateMachine


class Shipment(models.Model):
    """A timed machine: two states with a handler, between which rows go to and fro, and two in which nothing is due."""

    address = models.CharField(max_length=100, default="12 Long Street, 34567 Some Town")

    states = StateMachine(
        states=[("PENDING", "Pending"), ("CHECKED", "Checked"), ("DONE", "Done"), ("FAILED", "Failed")],
        initial="PENDING",
        transitions={"PENDING": ["CHECKED", "DONE", "FAILED"], "CHECKED": ["PENDING", "DONE", "FAILED"]},
    )

    class Meta:
        abstract = True

    @states.handler("PENDING", "CHECKED")
    def nothing(self) -> None:
        """Never called: the benchmark claims and moves without a worker."""


class Parcel(Shipment):
    """As it is."""


class TriedParcel(Shipment):
    """With the time of the last claim and the number of tries, which a claim writes."""

    more_at = models.DateTimeField(null=True, editable=False)
    more_tries = models.IntegerField(default=0, db_default=0, editable=False)


class MarkedParcel(Shipment):
    """With a mark that whatever sets the time of a row clears."""

    more_mark = models.BooleanField(default=True, db_default=True, editable=False)


class FullParcel(Shipment):
    """With all three."""

    more_at = models.DateTimeField(null=True, editable=False)
    more_tries = models.IntegerField(default=0, db_default=0, editable=False)
    more_mark = models.BooleanField(default=True, db_default=True, editable=False)
