"""The shop's admin: orders, and what happened to them."""

from __future__ import annotations

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html

from shop.models import Order, OrderStateTransition
from statemachine_fields.admin import StateTransitionAdmin


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ["id", "customer", "total", "status", "moves", "created_at"]
    list_display_links = ["id", "customer"]
    list_filter = ["status"]
    search_fields = ["=id", "customer"]
    readonly_fields = ["status", "moves", "created_at"]

    @admin.display(description="history", ordering="status_sequence")
    def moves(self, order: Order) -> str:
        """Link to what happened to the order; the row itself knows how much that is."""
        count: int = order.status_sequence  # type: ignore[attr-defined]
        url = f"{reverse('admin:shop_orderstatetransition_changelist')}?q={order.pk}"
        return format_html('<a href="{}">{} move{}</a>', url, count, "" if count == 1 else "s")


admin.site.register(OrderStateTransition, StateTransitionAdmin)
