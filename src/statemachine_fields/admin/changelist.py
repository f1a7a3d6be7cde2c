"""The list of rows: the status as a badge, the schedule in words, the filter by state, and the graph above it all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.admin.views.main import ChangeList
from django.db import models
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import pgettext_lazy

from statemachine_fields.admin.base import COUNT_LIMIT, MachineAdmin, show_in
from statemachine_fields.admin.display import badge, count_states, counted
from statemachine_fields.admin.schedule import schedule_line
from statemachine_fields.machine.binding import Binding

if TYPE_CHECKING:
    from django.contrib.admin.filters import _ListFilterChoices
    from django.utils.functional import _StrPromise

Column = Callable[[Any], str | None]


class StateFilter(admin.ChoicesFieldListFilter):
    """Offer the declared states, each with its number of rows, which is counted up to a limit, and others that there are
    rows in.

    What other filters leave of them is what Django's own "Show counts" is for.
    """

    def __init__(
        self,
        field: Any,
        request: HttpRequest,
        params: dict[str, Any],
        model: type[models.Model],
        model_admin: admin.ModelAdmin[Any],
        field_path: str,
    ) -> None:
        super().__init__(field, request, params, model, model_admin, field_path)
        self.request = request
        self.model_admin = model_admin
        self.limit: int = getattr(model_admin, "count_limit", COUNT_LIMIT)

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many rows there are in each state; nothing for the state of another model's row. Asked for when shown."""
        field: Any = self.field
        if field.bound is None or self.field_path != field.name:
            return {}
        return count_states(self.model_admin, self.request, field.bound, self.limit)

    @cached_property
    def undeclared(self) -> list[str]:
        """States that rows are in although they are not declared."""
        declared = {value for value, _label in self.field.flatchoices}
        return [state for state in self.counts if state not in declared]

    def get_facet_counts(self, pk_attname: str, filtered_qs: models.QuerySet[Any]) -> dict[str, Any]:
        ours = {
            f"undeclared{place}__c": Count(pk_attname, filter=Q(**{self.field_path: state}))
            for place, state in enumerate(self.undeclared)
        }
        return {**super().get_facet_counts(pk_attname, filtered_qs), **ours}

    def get_facet_queryset(self, changelist: ChangeList) -> dict[str, int]:
        self.facets: dict[str, int] = super().get_facet_queryset(changelist)
        return self.facets

    def choices(self, changelist: ChangeList) -> Iterator[_ListFilterChoices]:
        yield from self._declared_choices(changelist)
        lookup: Any = self.lookup_kwarg
        for place, state in enumerate(self.undeclared):
            limited = counted(self.counts[state], self.limit)
            number = self.facets[f"undeclared{place}__c"] if changelist.add_facets else limited
            name = _("%(state)s, not declared") % {"state": state}
            yield {
                "selected": state in (self.lookup_val or ()),
                "query_string": changelist.get_query_string({lookup: state}, [self.lookup_kwarg_isnull]),
                "display": f"{name} ({number})",
            }

    def _declared_choices(self, changelist: ChangeList) -> Iterator[_ListFilterChoices]:
        states = ["", *(value for value, _label in self.field.flatchoices)]  # the first choice is all of them
        for state, choice in zip(states, super().choices(changelist), strict=True):
            if not changelist.add_facets and state in self.counts:
                choice["display"] = f"{choice['display']} ({counted(self.counts[state], self.limit)})"
            yield choice


class MachineColumns(MachineAdmin):
    """Shows what a machine's columns mean, where they are named as fields. None can be edited."""

    @cached_property
    def _columns(self) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for bound in self.machines.values():
            names = bound.names
            columns[names.status] = self._column(bound, names.status, self._badge, bound.field.verbose_name)
            if bound.is_timed:
                heading = self._heading(bound, pgettext_lazy("state machine", "what is next"))
                columns[names.next_at] = self._column(bound, names.next_at, schedule_line, heading)
        return columns

    def _heading(self, bound: Binding[Any], text: _StrPromise) -> _StrPromise:
        """Return what a column is called: with the name of the machine, if there are several."""
        if len(self.machines) == 1:
            return text
        return format_lazy("{machine}: {text}", machine=bound.field.verbose_name, text=text)

    def _column(
        self,
        bound: Binding[Any],
        name: str,
        show: Callable[[Binding[Any], models.Model], str | None],
        description: str | _StrPromise,
    ) -> Column:
        def column(row: models.Model) -> str | None:
            return show(bound, row)

        column.__name__ = name
        column.short_description = description  # type: ignore[attr-defined]
        column.admin_order_field = name  # type: ignore[attr-defined]
        return column

    def _badge(self, bound: Binding[Any], row: models.Model) -> str:
        return badge(bound, getattr(row, bound.names.status), self.tones(bound))

    def _shown(self, names: Iterable[Any]) -> list[Any]:
        return [self._shown_one(name) for name in names]

    def _shown_one(self, name: Any) -> Any:
        if isinstance(name, list | tuple):
            return tuple(self._shown(name))
        return self._columns.get(name, name) if isinstance(name, str) else name

    # Lists. What people override says names; what is shown is put in their place after that.

    def get_list_display(self, request: HttpRequest) -> Any:
        names = super().get_list_display(request)
        if list(names) == ["__str__"]:  # nobody has chosen yet
            statuses = [bound.names.status for bound in self.machines.values()]
            return (*names, *statuses) if isinstance(names, tuple) else [*names, *statuses]
        return names

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        changelist: Any = super().get_changelist_instance(request)
        for attribute in ("list_display", "list_display_links", "sortable_by"):
            if names := getattr(changelist, attribute):
                setattr(changelist, attribute, self._shown(names))
        found: ChangeList = changelist
        return found

    def get_list_filter(self, request: HttpRequest) -> Any:
        names = super().get_list_filter(request)
        statuses = {bound.names.status for bound in self.machines.values()}
        shown = [(each, StateFilter) if isinstance(each, str) and each in statuses else each for each in names]
        return tuple(shown) if isinstance(names, tuple) else shown

    # Forms

    def get_readonly_fields(self, request: HttpRequest, obj: models.Model | None = None) -> Any:
        """Add the columns of machines that the form names: Django refuses to show what is neither edited nor here."""
        given = super().get_readonly_fields(request, obj)
        declared: Any = self.fieldsets or [(None, {"fields": self.fields or ()})]
        ours = {column for bound in self.machines.values() for column in bound.columns}
        named = [name for name in flatten_fieldsets(declared) if name in ours and name not in given]
        return (*given, *named) if isinstance(given, tuple) else [*given, *named]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        adminform: Any = context["adminform"]
        adminform.readonly_fields = self._shown(adminform.readonly_fields)
        adminform.fieldsets = [
            (name, {**options, "fields": self._shown(options["fields"])}) for name, options in adminform.fieldsets
        ]
        return super().render_change_form(request, context, *args, **kwargs)


class MachineLists(MachineAdmin):
    """Draws the machines above the list, each state a link to its rows."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        response: HttpResponse = super().changelist_view(request, extra_context)
        changelist = (getattr(response, "context_data", None) or {}).get("cl")
        if changelist is not None and IS_POPUP_VAR not in request.GET:  # else it is what an action shows, or a popup
            overviews = [self._overview(request, bound, changelist) for bound in self.machines.values()]
            show_in(response, "rows.html", {"machine_overviews": overviews})
        return response

    def _overview(self, request: HttpRequest, bound: Binding[Any], changelist: Any) -> dict[str, str]:
        lookup = f"{bound.names.status}__exact"

        def link(state: str) -> str:
            return str(changelist.get_query_string({lookup: state}, ["p"]))

        return {
            "name": self.name_of(bound),
            "graph": self.counted_graph(request, bound, link, current=request.GET.get(lookup), flat=True),
            "machine_url": self.page_url("machine", bound.accessor),
        }
