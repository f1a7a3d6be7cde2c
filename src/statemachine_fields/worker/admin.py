"""A read-only page of the run statistics, for those who may view them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from statemachine_fields.worker.models import RunStatistics

if TYPE_CHECKING:
    from django.http import HttpRequest

    StatisticsAdmin: TypeAlias = admin.ModelAdmin[RunStatistics]
else:
    StatisticsAdmin = admin.ModelAdmin

COUNTS = ["claimed", "moved", "waited", "failed", "parked", "released", "recovered", "dropped", "deleted"]


@admin.register(RunStatistics)
class RunStatisticsAdmin(StatisticsAdmin):
    """What workers did, the newest hour first."""

    list_display = ["period", "machine", "state", *COUNTS, "seconds_in_handlers"]
    list_display_links = None
    list_filter = ["period", "machine", "state"]
    ordering = ["-period", "machine", "state"]

    @admin.display(description=_("seconds in handlers"), ordering="seconds")
    def seconds_in_handlers(self, statistics: RunStatistics) -> str:
        return f"{statistics.seconds:,.1f}"

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
