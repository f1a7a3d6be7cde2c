"""Audit pages for machines of several kinds, and their rows where a test needs those."""

from __future__ import annotations

from django.contrib import admin

from lab.models import Car, Invoice, Kept, Parcel, Protected, Reasoned, Ticket
from statemachine_fields.admin import StateTransitionAdmin

# Ticket is not registered, so the pages of its history have nothing to link to.
admin.site.register([Car, Invoice, Kept, Parcel, Protected, Reasoned])

for machine in (
    Car.states,
    Car.fuel,
    Invoice.states,
    Invoice.payment,
    Kept.states,
    Parcel.states,
    Protected.states,
    Reasoned.states,
    Ticket.states,
):
    admin.site.register(machine.transition_model, StateTransitionAdmin)
