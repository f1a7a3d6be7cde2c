"""Pages for machines of several kinds, and for what was recorded of them."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from lab.models import (
    Car,
    Deal,
    Dispatch,
    Dossier,
    Effort,
    Expedition,
    Invoice,
    Kept,
    Leg,
    Parcel,
    Petition,
    Protected,
    Reasoned,
    Reservation,
    Shipment,
    Sorted,
    Ticket,
    Wish,
)
from statemachine_fields.admin import (
    StateAttemptAdmin,
    StateEventAdmin,
    StateMachineAdminMixin,
    StateTransitionAdmin,
)


class MachineAdmin(StateMachineAdminMixin, admin.ModelAdmin):
    """The mixin, and nothing else."""


@admin.register(Dossier)
class DossierAdmin(StateMachineAdminMixin, admin.ModelAdmin):
    """Everybody sees the dossiers of their team; those without a team are for all."""

    list_display = ["title", "status", "team"]
    list_filter = ["status", "team"]
    fieldsets = [(None, {"fields": [("title", "status"), "team", "seal", "status_changed_at"]})]
    state_colors = {"LOST": "red", "DONE": "green"}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Dossier]:
        rows = super().get_queryset(request)
        if request.user.is_superuser:
            return rows
        return rows.filter(team__in=["", request.user.get_username()])


class WaitingAdmin(MachineAdmin):
    """What is next, in the list."""

    list_display = ["__str__", "status", "status_next_at"]


# Ticket is not registered, so the pages of its history have nothing to link to.
admin.site.register(
    [Car, Deal, Dispatch, Effort, Invoice, Parcel, Reasoned, Reservation, Shipment, Sorted, Wish], MachineAdmin
)
admin.site.register([Expedition, Leg, Petition], WaitingAdmin)
admin.site.register([Kept, Protected])
admin.site.register(Effort.states.attempt_model, StateAttemptAdmin)
admin.site.register([Deal.payment.event_model, Petition.states.event_model], StateEventAdmin)

for machine in (
    Car.states,
    Car.fuel,
    Dossier.states,
    Invoice.states,
    Invoice.payment,
    Kept.states,
    Parcel.states,
    Protected.states,
    Reasoned.states,
    Ticket.states,
):
    admin.site.register(machine.transition_model, StateTransitionAdmin)
