"""The ways to declare states and columns."""

from __future__ import annotations

import uuid

from django.db import models
from django.utils.translation import gettext_lazy as _

from statemachine_fields import State, StateMachine


class Ticket(models.Model):
    """States as a `TextChoices` class, with labels that Django itself translates."""

    class Status(models.TextChoices):
        OPEN = "open", _("Open")
        MONDAY = "monday", _("Monday")
        CLOSED = "closed", _("Close")

    title = models.CharField(max_length=50, default="")

    states = StateMachine(
        states=Status,
        initial=Status.OPEN,
        transitions={Status.OPEN: [Status.MONDAY, Status.CLOSED], Status.MONDAY: [Status.CLOSED, Status.OPEN]},
    )


class Parcel(models.Model):
    """`State` objects, a UUID key, and a state that may be entered again."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    states = StateMachine(
        states=[State("IN_TRANSIT"), State("SCANNED", _("Scanned")), State("LOST", "Lost")],
        initial="IN_TRANSIT",
        transitions={"IN_TRANSIT": ["SCANNED", "LOST"], "SCANNED": ["SCANNED", "IN_TRANSIT", "LOST"]},
    )


class Invoice(models.Model):
    """Two machines on one model."""

    number = models.CharField(max_length=20, default="")
    states = StateMachine(
        states=[("DRAFT", "Draft"), ("SENT", "Sent")], initial="DRAFT", transitions={"DRAFT": ["SENT"]}
    )
    payment = StateMachine(
        states=[("DUE", "Due"), ("PAID", "Paid"), ("REFUNDED", "Refunded")],
        initial="DUE",
        transitions={"DUE": ["PAID"], "PAID": ["REFUNDED"]},
        field="payment_status",
    )


class Project(models.Model):
    """A column of another name."""

    flow = StateMachine(
        states=[("PLAN", "Plan"), ("BUILD", "Build")],
        initial="PLAN",
        transitions={"PLAN": ["BUILD"], "BUILD": ["PLAN"]},
        field="phase",
    )
