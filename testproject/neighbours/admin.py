"""The mixin beside the admin classes of other packages, and below a theme that has a class of its own."""

from __future__ import annotations

from django.apps import apps
from django.contrib import admin
from import_export.admin import ImportExportModelAdmin
from reversion.admin import VersionAdmin
from simple_history.admin import SimpleHistoryAdmin

from neighbours.models import Exported, Tracked, Versioned
from shop.admin import OrderAdmin
from shop.models import Order
from statemachine_fields.admin import StateMachineAdminMixin


@admin.register(Exported)
class ExportedAdmin(StateMachineAdminMixin, ImportExportModelAdmin):
    pass


@admin.register(Versioned)
class VersionedAdmin(StateMachineAdminMixin, VersionAdmin):
    pass


@admin.register(Tracked)
class TrackedAdmin(StateMachineAdminMixin, SimpleHistoryAdmin):
    pass


if apps.is_installed("unfold"):
    from unfold.admin import ModelAdmin

    admin.site.unregister(Order)

    @admin.register(Order)
    class UnfoldOrderAdmin(OrderAdmin, ModelAdmin):
        pass
