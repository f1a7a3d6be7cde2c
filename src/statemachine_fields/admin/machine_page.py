"""The page of a machine: how long rows stay in each state, which moves they make, and which rows are stuck."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import urlencode

from django.apps import apps
from django.core.exceptions import PermissionDenied
from django.db.models import Count
from django.forms import Media
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext

from statemachine_fields.admin.base import MachineAdmin
from statemachine_fields.admin.display import as_text, badge, counted, grouped, in_words, one_line, since, time_tag
from statemachine_fields.admin.schedule import schedule_line
from statemachine_fields.admin.stuck import LEAST, Rule, Spared, Stuck, find_stuck
from statemachine_fields.admin.waiting import wait_lines, wait_moves
from statemachine_fields.db.rows import all_rows
from statemachine_fields.drawing.charts import Bar, draw_bars, short
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.questions import Durations, records_since

Edge: TypeAlias = tuple[str, str]

#: The parameter of the window, what it may be, and what it is if it is nothing of that: numbers of days.
DAYS = "days"
WINDOWS = (1, 7, 30, 90)
USUAL = 7

WHY_STUCK = {
    Rule.SLOW: gettext_lazy("there for longer than %(time)s, within which 95 of 100 left"),
    Rule.OLD: gettext_lazy("there for longer than %(time)s"),
    Rule.TIMED_OUT: gettext_lazy("still there after their time-out of %(time)s"),
    Rule.JAMMED: gettext_lazy("parked, or due for longer than %(time)s"),
}
SPARED = {
    Spared.EXTERNAL: gettext_lazy("others move its rows, and it has no time-out"),
    Spared.STAYS: gettext_lazy("fewer than half of its rows leave it"),
}

WORKER_APP = "statemachine_fields.worker"
RUN_STATISTICS = "statemachine_worker.RunStatistics"


class MachinePage(MachineAdmin):
    """Adds a page for each machine.

    Times and moves are those of all rows, whoever may see them. Counts and rows are those of `get_queryset()`.
    """

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_machine"
        return [
            # No row's address begins so: Django quotes the underscore of a key. A row may well be called "machine".
            path("_machine/<str:accessor>/", self.admin_site.admin_view(self.machine_view), name=name),
            *super().get_urls(),
        ]

    def machine_view(self, request: HttpRequest, accessor: str) -> HttpResponse:
        """Show how long rows stay, over a chosen window. Seven queries at most, the user's own not counted."""
        bound = self.machine_or_404(accessor)
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        days, now = read_days(request), timezone.now()
        window = dt.timedelta(days=days)
        rows = self.get_queryset(request)
        durations = bound.face.durations(since=now - window, using=rows.db)
        moves = count_moves(bound, now - window, rows.db)
        found = find_stuck(bound, rows, durations.states, moves, window=window, now=now, count_limit=self.count_limit)
        context = {
            "title": self.title_of(bound),
            "subtitle": pgettext("state machine", "Time"),
            "machine": bound,
            "window": window_name(days),
            "windows": [(window_name(each), f"?{urlencode({DAYS: each})}", each == days) for each in WINDOWS],
            "chart": self._chart(bound, durations),
            "stays": self._stay_lines(bound, durations),
            "graph": self.counted_graph(
                request,
                bound,
                lambda state: self._list_url(bound, state),
                weights=moves,
                lines=wait_lines(bound),
                says=wait_moves(bound),
            ),
            "moves": self._move_lines(bound, moves, durations) if moves else [],
            "stuck": [self._stuck_group(bound, each) for each in found.stuck if each.rows],
            "spared": [(badge(bound, state, self.tones(bound)), SPARED[why]) for state, why in found.spared.items()],
            "least": _short(LEAST),
            "list_url": self.page_url("changelist"),
            "statistics_url": self._statistics_url(request, bound),
            "media": self.media + Media(css={"all": ["statemachine_fields/machine.css"]}),
        }
        return self.render_page(request, "machine.html", context)

    def _list_url(self, bound: Binding[Any], state: str, **filters: str) -> str:
        """Return the address of the list of a state's rows."""
        return f"{self.page_url('changelist')}?{urlencode({f'{bound.names.status}__exact': state, **filters})}"

    # How long rows stay

    def _chart(self, bound: Binding[Any], durations: Durations) -> SafeString:
        tones = self.tones(bound)
        bars = [
            Bar(
                label=bound.label_of(state),
                tone=f"smf-tone-{tones[state]}" if state in tones else "smf-undeclared",
                median=stay.median.total_seconds(),
                p95=stay.p95.total_seconds(),
            )
            for state, stay in durations.states.items()
        ]
        title, description = _("How long rows stay in each state"), _("The table beside it has the same numbers.")
        return mark_safe(draw_bars(bars, title=title, description=description))  # noqa: S308 - draw_bars() escapes

    def _stay_lines(self, bound: Binding[Any], durations: Durations) -> list[dict[str, str]]:
        return [
            {
                "badge": badge(bound, state, self.tones(bound)),
                "count": grouped(stay.count),
                "median": _short(stay.median),
                "p95": _short(stay.p95),
            }
            for state, stay in durations.states.items()
        ]

    # Which moves they make

    def _move_lines(self, bound: Binding[Any], moves: Mapping[Edge, int], durations: Durations) -> list[dict[str, Any]]:
        """Return the moves, the most used first, and those that are declared and that nobody made after them.

        A move without a source is how a row began. The median is how long rows were in the state before, if that is known
        of any.
        """
        tones, waits = self.tones(bound), durations.edges
        declared = [(source, target) for source in bound.graph.states for target in bound.graph.targets(source)]
        known = dict.fromkeys([*declared, *sorted(moves)])
        return [
            {
                "source": badge(bound, source, tones) if source else "",
                "target": badge(bound, target, tones),
                "count": grouped(moves.get((source, target), 0)),
                "median": _short(waits[source, target].median) if (source, target) in waits else "",
                "is_used": (source, target) in moves,
                "is_declared": not source or bound.graph.allows(source, target),
            }
            for source, target in sorted(known, key=lambda edge: -moves.get(edge, 0))
        ]

    # Which are stuck

    def _stuck_group(self, bound: Binding[Any], stuck: Stuck) -> dict[str, Any]:
        """Return the oldest rows of one state, and the way to all of them."""
        before = {f"{bound.names.changed_at}__lt": stuck.entered_before.isoformat()}
        return {
            "badge": badge(bound, stuck.state, self.tones(bound)),
            "why": WHY_STUCK[stuck.rule] % {"time": _short(stuck.limit)},
            "rows": [self._stuck_row(bound, row) for row in stuck.rows],
            "more": counted(stuck.more, self.count_limit) if stuck.more else "",
            "url": self._list_url(bound, stuck.state, **(before if stuck.rule is not Rule.JAMMED else {})),
        }

    def _stuck_row(self, bound: Binding[Any], row: Any) -> dict[str, str]:
        entered_at = getattr(row, bound.names.changed_at)
        return {
            "name": Truncator(as_text(str(row))).chars(80) or str(row.pk),
            "url": self.row_url("change", row),
            "age": time_tag(entered_at, in_words(since(entered_at))),
            "schedule": (schedule_line(bound, row) or "") if bound.is_timed else "",
            "error": one_line(getattr(row, bound.names.error), 160) if bound.is_timed else "",
        }

    # What workers did

    def _statistics_url(self, request: HttpRequest, bound: Binding[Any]) -> str:
        """Return the address of the machine's run statistics, if there are some that the user may see."""
        if not bound.is_timed or not apps.is_installed(WORKER_APP):
            return ""
        model, site = apps.get_model(RUN_STATISTICS), self.admin_site
        if not site.is_registered(model) or not site.get_model_admin(model).has_view_or_change_permission(request):
            return ""
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
        return f"{reverse(name, current_app=site.name)}?{urlencode({'machine': str(bound)})}"


def read_days(request: HttpRequest) -> int:
    """Return how many days are asked for. Nonsense is the usual number."""
    text = request.GET.get(DAYS, "")
    return next((days for days in WINDOWS if text == str(days)), USUAL)


def window_name(days: int) -> str:
    if days == 1:
        return pgettext("state machine", "24 hours")
    return ngettext("%(number)d day", "%(number)d days", days) % {"number": days}


def count_moves(bound: Binding[Any], since: dt.datetime, using: str) -> dict[Edge, int]:
    """Return how often each move was made from an instant on, first moves of rows too. One query."""
    records = records_since(all_rows(bound.transition_model, using), since)
    counted = records.order_by().values_list("from_status", "to_status").annotate(number=Count("*"))
    return {(source, target): number for source, target, number in counted}


def _short(duration: dt.timedelta) -> str:
    return short(duration.total_seconds())
