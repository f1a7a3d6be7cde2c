"""The shop's admin: orders, what is to happen to them next, and what did."""

from __future__ import annotations

from datetime import datetime

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html

from shop.models import Order, OrderStateTransition
from statemachine_fields.admin import StateTransitionAdmin


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ["id", "customer", "total", "status", "next_step", "status_error", "moves", "created_at"]
    list_display_links = ["id", "customer"]
    list_filter = ["status"]
    search_fields = ["=id", "customer"]
    ordering = ["-id"]
    readonly_fields = ["status", "next_step", "status_error", "tracking", "moves", "created_at"]
    actions = ["resume"]

    class Media:
        js = ["shop/refresh.js"]

    @admin.display(description="next step", ordering="status_next_at")
    def next_step(self, order: Order) -> str:
        """Say when a worker looks at the order."""
        when: datetime | None = order.status_next_at  # type: ignore[attr-defined]
        if order.status_lease_owner:  # type: ignore[attr-defined]
            return "now"
        if when is None:
            return "parked" if order.status_error else ""  # type: ignore[attr-defined]
        seconds = (when - timezone.now()).total_seconds()
        return "due" if seconds <= 0 else f"in {seconds:.0f} s" if seconds < 100 else f"in {seconds / 86400:.0f} days"

    @admin.display(description="history", ordering="status_sequence")
    def moves(self, order: Order) -> str:
        """Link to what happened to the order; the row itself knows how much that is."""
        count: int = order.status_sequence  # type: ignore[attr-defined]
        url = f"{reverse('admin:shop_orderstatetransition_changelist')}?q={order.pk}"
        return format_html('<a href="{}">{} move{}</a>', url, count, "" if count == 1 else "s")

    @admin.action(description="Resume selected orders that are parked", permissions=["change"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Order]) -> None:
        resumed = sum(order.states.resume() for order in queryset)
        self.message_user(request, f"Resumed: {resumed}.", messages.SUCCESS)


admin.site.register(OrderStateTransition, StateTransitionAdmin)
