"""Two sites with the same model and the same columns: one with the mixin, one without."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from shop.admin import OrderAdmin
from shop.models import Order


class PlainAdmin(admin.ModelAdmin):
    list_display = OrderAdmin.list_display
    list_display_links = OrderAdmin.list_display_links
    list_filter = OrderAdmin.list_filter
    search_fields = OrderAdmin.search_fields
    ordering = OrderAdmin.ordering
    readonly_fields = [*OrderAdmin.readonly_fields, "status"]


ours, plain = admin.AdminSite("ours"), admin.AdminSite("plain")
ours.register(Order, OrderAdmin)
plain.register(Order, PlainAdmin)

urlpatterns = [path("admin/", admin.site.urls), path("ours/", ours.urls), path("plain/", plain.urls)]
