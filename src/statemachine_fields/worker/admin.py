"""A read-only page of the run statistics, for those who may view them."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Exists, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from statemachine_fields.worker.models import HourlyRuns, RunStatistics, RunStatisticsQuerySet

if TYPE_CHECKING:
    from django.http import HttpRequest

    StatisticsAdmin: TypeAlias = admin.ModelAdmin[RunStatistics]
else:
    StatisticsAdmin = admin.ModelAdmin

#: What a line of the page is about.
KEYS = ("period", "machine", "state")

#: What columns are called, in their order. A kind that is not here has a column after these, under its own name.
LABELS = {
    "claimed": pgettext_lazy("state machine", "claimed"),
    "moved": pgettext_lazy("state machine", "moved"),
    "waited": pgettext_lazy("state machine", "not yet"),
    "failed": pgettext_lazy("state machine", "failed"),
    "parked": pgettext_lazy("state machine", "parked"),
    "released": pgettext_lazy("state machine", "given back"),
    "recovered": pgettext_lazy("state machine", "recovered"),
    "dropped": pgettext_lazy("state machine", "dropped"),
    "deleted": pgettext_lazy("state machine", "deleted"),
}

SAME_HOUR = RunStatistics.objects.order_by().filter(**{name: OuterRef(name) for name in KEYS})


class HourList(ChangeList):
    """Shows an hour of a state in one line, whatever kinds it has."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Return a row for each line: the first by kind."""
        rows = super().get_queryset(request, exclude_parameters)
        return rows.filter(~Exists(SAME_HOUR.filter(kind__lt=OuterRef("kind"))))

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.sortable_by: Any = self.list_display
        lines: list[Any] = list(self.result_list)
        shown = Exists(SAME_HOUR.filter(pk__in=[line.pk for line in lines]))
        rows = RunStatisticsQuerySet(RunStatistics).filter(shown, period__in={line.period for line in lines})
        key_of = attrgetter(*KEYS)
        hours = {key_of(hour): hour for hour in rows.by_hour()}
        for line in lines:
            line.hour = hours.get(key_of(line)) or HourlyRuns(line.machine, line.state, line.period)  # just deleted
        self.result_list: Any = lines


@admin.register(RunStatistics)
class RunStatisticsAdmin(StatisticsAdmin):
    """What workers did, the newest hour first."""

    list_display = [*KEYS, "seconds_in_handlers"]
    list_display_links = None
    list_filter = ["period", "machine", "state"]
    ordering = ["-period", "machine", "state"]
    sortable_by = KEYS  # and what `HourList` adds: Django would ask for the kinds once more
    show_full_result_count = False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return HourList

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the columns, with one for each kind that occurs."""
        found = set(RunStatistics.objects.order_by().values_list("kind", flat=True).distinct())
        kinds = [kind for kind in LABELS if kind in found] + sorted(found - LABELS.keys())
        return [*KEYS, *map(kind_column, kinds), "seconds_in_handlers"]

    @admin.display(
        description=_("seconds in handlers"),
        ordering=Subquery(SAME_HOUR.values("period").annotate(sum=Sum("seconds")).values("sum")),
    )
    def seconds_in_handlers(self, line: Any) -> str:
        return f"{line.hour.seconds:,.1f}"

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def kind_column(kind: str) -> Callable[[Any], int]:
    """Return a column of the page, by which it can be sorted."""

    @admin.display(
        description=LABELS.get(kind, kind.replace("_", " ")),
        ordering=Coalesce(Subquery(SAME_HOUR.filter(kind=kind).values("count")), 0),
    )
    def column(line: Any) -> int:
        return line.hour.counts[kind]  # type: ignore[no-any-return]

    column.__name__ = kind
    return column
