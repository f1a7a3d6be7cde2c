"""The status as a badge, and the clock in words, wherever a list or a form names their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.admin.views.main import ChangeList
from django.db import models
from django.http import HttpRequest
from django.utils.text import format_lazy
from django.utils.translation import pgettext_lazy

from statemachine_fields.admin.badges import badge
from statemachine_fields.admin.base import MachineAdmin
from statemachine_fields.admin.clocks import clock_line
from statemachine_fields.admin.filters import StateFilter
from statemachine_fields.machine.binding import Binding

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

Column = Callable[[Any], str | None]


class MachineColumns(MachineAdmin):
    """Shows what a machine's columns mean, where they are named as fields. None can be edited."""

    @cached_property
    def _columns(self) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for bound in self.machines.values():
            columns[bound.names.status] = self._column(bound, bound.names.status, self._badge, bound.field.verbose_name)
            if bound.is_timed:
                columns[bound.names.next_at] = self._column(
                    bound,
                    bound.names.next_at,
                    clock_line,
                    self._heading(bound, pgettext_lazy("state machine", "what is next")),
                )
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
