"""The admin that each peer has to offer."""

from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django_fsm.admin import FSMAdminMixin
from django_fsm_log.admin import StateLogInline
from simple_history.admin import SimpleHistoryAdmin
from viewflow.fsm import FlowAdminMixin

from compared import models
from statemachine_fields.admin import StateMachineAdminMixin


@admin.register(models.OurOrder)
class OurAdmin(StateMachineAdminMixin, admin.ModelAdmin):
    list_display = ["id", "status"]


@admin.register(models.FsmOrder)
class FsmAdmin(FSMAdminMixin, admin.ModelAdmin):
    fsm_fields = ["status"]
    inlines = [StateLogInline]
    list_display = ["id", "status"]


@admin.register(models.ViewflowOrder)
class ViewflowAdmin(FlowAdminMixin, admin.ModelAdmin):
    flow_state = models.ViewflowFlow.stage
    list_display = ["id", "status"]


@admin.register(models.HistoricOrder)
class HistoricAdmin(SimpleHistoryAdmin):
    list_display = ["id", "status"]


if settings.IS_POSTGRESQL:
    from pghistory.admin import EventModelAdmin

    @admin.register(models.PgOrder)
    class PgAdmin(admin.ModelAdmin):
        list_display = ["id", "status"]

    @admin.register(models.PgOrder.pgh_event_model)
    class PgEventAdmin(EventModelAdmin):
        list_display = ["pgh_created_at", "pgh_label", "status"]
