"""Rows that get events."""

from __future__ import annotations

from django.db import models

from statemachine_fields import Event, State, StateMachine


class Order(models.Model):
    """Waits for its payment while it is PENDING, and for nothing while it is NEW."""

    number = models.CharField(max_length=20)

    states = StateMachine(
        states=[State("NEW", external=True), State("PENDING", until=Event(paid="PAID")), State("PAID")],
        initial="NEW",
        transitions={"NEW": ["PENDING"], "PENDING": ["PAID"]},
    )
