"""The graph of each machine above the list, with how many rows are in each state, each a link to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.admin.options import IS_POPUP_VAR
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from statemachine_fields.admin.badges import strays
from statemachine_fields.admin.base import MachineAdmin
from statemachine_fields.admin.counts import count_states, shown
from statemachine_fields.admin.filters import COUNT_LIMIT
from statemachine_fields.admin.graphs import draw_graph
from statemachine_fields.admin.templates import show_in
from statemachine_fields.drawing.svg import Marks
from statemachine_fields.machine.binding import Binding


@dataclass(frozen=True, slots=True)
class Overview:
    """What the list shows of one machine."""

    name: str
    graph: SafeString
    machine_url: str


class MachineLists(MachineAdmin):
    """Draws the machines above the list."""

    #: Up to how many rows of each state are counted.
    count_limit = COUNT_LIMIT

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        response: HttpResponse = super().changelist_view(request, extra_context)
        changelist = (getattr(response, "context_data", None) or {}).get("cl")
        if changelist is not None and IS_POPUP_VAR not in request.GET:  # else it is what an action shows, or a popup
            overviews = [self._overview(request, bound, changelist) for bound in self.machines.values()]
            show_in(response, "rows.html", {"machine_overviews": overviews})
        return response

    def _overview(self, request: HttpRequest, bound: Binding[Any], changelist: Any) -> Overview:
        counts = count_states(self, request, bound, self.count_limit)
        lookup = f"{bound.names.status}__exact"
        marks = Marks(
            current=request.GET.get(lookup),
            notes={state: shown(number, self.count_limit) for state, number in counts.items()},
            links={state: changelist.get_query_string({lookup: state}, ["p"]) for state in counts},
            tones=self.tones(bound),
        )
        graph = draw_graph(bound.graph, marks, self.title_of(bound), flat=True)
        others = strays(
            bound, [(state, marks.notes[state], marks.links[state]) for state in counts if state not in bound.graph]
        )
        return Overview(self.name_of(bound), graph + others, self.page_url("machine", bound.accessor))
