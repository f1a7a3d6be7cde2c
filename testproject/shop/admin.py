"""The shop's admin: orders and parcels, what is to happen to them next, and what did."""

from __future__ import annotations

from django.contrib import admin

from shop.models import (
    Order,
    OrderStateEvent,
    OrderStateTransition,
    Parcel,
    ParcelStateAttempt,
    ParcelStateEvent,
    ParcelStateTransition,
)
from statemachine_fields.admin import StateAttemptAdmin, StateEventAdmin, StateMachineAdminMixin, StateTransitionAdmin


@admin.register(Order)
class OrderAdmin(StateMachineAdminMixin, admin.ModelAdmin):
    list_display = ["id", "customer", "total", "status", "status_next_at", "status_error", "created_at"]
    list_display_links = ["id", "customer"]
    list_filter = ["status"]
    search_fields = ["=id", "customer"]
    ordering = ["-id"]
    readonly_fields = ["created_at"]
    state_colors = {"DELIVERED": "green", "RETURNED": "pink", "LOST": "red"}

    class Media:
        js = ["shop/refresh.js"]


@admin.register(Parcel)
class ParcelAdmin(StateMachineAdminMixin, admin.ModelAdmin):
    list_display = ["id", "order", "status", "status_next_at", "carrier", "tracking", "weight"]
    list_filter = ["status", "carrier"]
    list_select_related = ["order"]
    search_fields = ["=tracking", "=order__id", "order__customer"]
    ordering = ["-id"]
    raw_id_fields = ["order"]
    readonly_fields = ["carrier", "tracking"]
    state_colors = {"DELIVERED": "green", "LOST": "red"}

    class Media:
        js = ["shop/refresh.js"]


admin.site.register([OrderStateTransition, ParcelStateTransition], StateTransitionAdmin)
admin.site.register(ParcelStateAttempt, StateAttemptAdmin)
admin.site.register([OrderStateEvent, ParcelStateEvent], StateEventAdmin)
