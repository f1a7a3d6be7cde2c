"""The shop's admin: orders, what is to happen to them next, and what did."""

from __future__ import annotations

from django.contrib import admin

from shop.models import Order, OrderStateTransition
from statemachine_fields.admin import StateMachineAdminMixin, StateTransitionAdmin


@admin.register(Order)
class OrderAdmin(StateMachineAdminMixin, admin.ModelAdmin):
    list_display = ["id", "customer", "total", "status", "status_next_at", "status_error", "created_at"]
    list_display_links = ["id", "customer"]
    list_filter = ["status"]
    search_fields = ["=id", "customer"]
    ordering = ["-id"]
    readonly_fields = ["tracking", "created_at"]
    state_colors = {"DELIVERED": "green", "RETURNED": "pink"}

    class Media:
        js = ["shop/refresh.js"]


admin.site.register(OrderStateTransition, StateTransitionAdmin)
