"""The shop's admin: orders, and what happened to them."""

from __future__ import annotations

from django.contrib import admin

from shop.models import Order, OrderStateTransition
from statemachine_fields.admin import StateTransitionAdmin


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ["customer", "total", "status", "created_at"]
    list_filter = ["status"]
    search_fields = ["customer"]
    readonly_fields = ["status", "created_at"]


admin.site.register(OrderStateTransition, StateTransitionAdmin)
