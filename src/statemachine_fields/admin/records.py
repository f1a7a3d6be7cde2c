"""Read-only pages for audit models.

Written for tables of millions of records: no page counts, sorts or joins them, and none asks more for more records.
"""

from __future__ import annotations

import datetime as dt
from math import ceil
from typing import TYPE_CHECKING, Any, TypeAlias

from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.core.paginator import EmptyPage, InvalidPage, Page, PageNotAnInteger, Paginator
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import get_language_bidi, ngettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from statemachine_fields.admin.display import as_json, local, one_line
from statemachine_fields.machine.descriptor import RECORD_FIELDS
from statemachine_fields.machine.questions import records_since

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db import models
    from django.http import HttpRequest
    from django.utils.functional import _StrPromise

    Record: TypeAlias = Any  # a StateTransition, with what only the classes built from it have, as `instance_id`
    RecordAdmin: TypeAlias = admin.ModelAdmin[Record]
    RecordPaginator: TypeAlias = Paginator[Record]
else:
    RecordAdmin, RecordPaginator = admin.ModelAdmin, Paginator

__all__ = ["StateTransitionAdmin", "TransitionPaginator", "WhenFilter"]

#: Lookups by which a list goes on where the pages end.
EDGES = ("id__lt", "sequence__lt", "number__lt")


class TransitionPaginator(RecordPaginator):
    """Page through records without counting them: a page reads one record more than it shows.

    `count` and `num_pages` speak of what has been seen by then. A database walks over all that an OFFSET skips, so the
    pages end after `max_rows`; `cut_short` says that there are more records.
    """

    max_rows = 10_000
    seen = 0
    cut_short = False

    @property
    def max_pages(self) -> int:
        return max(1, self.max_rows // self.per_page)

    @property
    def count(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.seen

    @property
    def num_pages(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return max(1, ceil(self.seen / self.per_page))

    def validate_number(self, number: float | str) -> int:
        try:
            page = int(number)
        except (TypeError, ValueError):
            raise PageNotAnInteger(self.error_messages["invalid_page"]) from None
        if not 1 <= page <= self.max_pages:
            raise EmptyPage(self.error_messages["min_page" if page < 1 else "no_results"])
        return page

    def page(self, number: int | str) -> Page[Record]:
        number = self.validate_number(number)
        bottom = (number - 1) * self.per_page
        records = list(self.object_list[bottom : bottom + self.per_page + 1])
        if not records and number > 1:
            raise EmptyPage(self.error_messages["no_results"])
        self.seen = min(bottom + len(records), self.max_pages * self.per_page)
        self.cut_short = number == self.max_pages and len(records) > self.per_page
        return Page(records[: self.per_page], number, self)

    def get_page(self, number: float | str | None) -> Page[Record]:
        try:
            return self.page(self.validate_number(number or 1))
        except InvalidPage:
            return self.page(1)


class TransitionChangeList(ChangeList):
    """List the most recent record first, whatever `?o=` asks for: the key is the one order that an index serves."""

    model_admin: StateTransitionAdmin  # pyright: ignore[reportIncompatibleVariableOverride]
    page: Page[Record]

    def get_ordering(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> list[Any]:
        return ["-pk"]

    def get_results(self, request: HttpRequest) -> None:
        self.paginator = self.model_admin.get_paginator(request, self.queryset, self.list_per_page)
        try:
            self.page = self.paginator.page(self.page_num)
        except InvalidPage as error:
            raise IncorrectLookupParameters from error
        self.result_list = list(self.page)
        self.model_admin.link_rows(request, self.result_list)
        # Equal, so that neither the search form nor the action bar prints a total that nobody knows.
        self.result_count = self.full_result_count = len(self.result_list)
        self.show_full_result_count = False
        self.show_admin_actions = True
        self.can_show_all = False
        self.multi_page = self.page.has_other_pages()
        # The search form repeats the parameters. A search is for all records, also from a page of older ones.
        self.params = {name: value for name, value in self.params.items() if name not in EDGES}

    def get_query_string(self, new_params: dict[str, Any] | None = None, remove: Iterable[str] | None = None) -> str:
        stays = PAGE_VAR in (new_params or {})  # only the pager stays among older records
        return super().get_query_string(new_params, [*(remove or ()), *(() if stays else EDGES)])

    def page_range(self) -> list[str | int]:
        return list(self.paginator.get_elided_page_range(self.page_num))

    def newest_url(self) -> str:
        return self.get_query_string() if any(edge in self.filter_params for edge in EDGES) else ""

    def previous_url(self) -> str:
        return self.get_query_string({PAGE_VAR: self.page_num - 1}) if self.page.has_previous() else ""

    def next_url(self) -> str:
        """Return the link to the next page; after the last one allowed, to the list of what is older than it shows."""
        if self.page.has_next():
            return self.get_query_string({PAGE_VAR: self.page_num + 1})
        if not self.paginator.cut_short:
            return ""
        last: Record = self.result_list[-1]
        counter = self.model_admin.counter
        searched = {f"{counter}__lt": getattr(last, counter)}
        return self.get_query_string(searched if self.query.strip() else {"id__lt": last.pk})

    def count_line(self) -> str:
        return self.model_admin.count_line(self.result_count)


class WhenFilter(admin.SimpleListFilter):
    """Offer recent periods, found by the key, which ascends with time."""

    title = pgettext_lazy("state machine", "when")
    parameter_name = "when"
    #: The field that says when.
    field = "transitioned_at"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, _StrPromise]]:
        return [
            ("today", _("Today")),
            ("week", _("Past 7 days")),
            ("month", _("This month")),
            ("year", _("This year")),
        ]

    def queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> models.QuerySet[Any]:
        today = local(timezone.now()).replace(hour=0, minute=0, second=0, microsecond=0)
        match self.value():
            case "today":
                since = today
            case "week":
                since = today - dt.timedelta(days=7)
            case "month":
                since = today.replace(day=1)
            case "year":
                since = today.replace(month=1, day=1)
            case _:
                return queryset
        return records_since(queryset, since, self.field)


class StateTransitionAdmin(RecordAdmin):
    """Show the records of a machine to those who have the audit model's `view` permission, and let nobody change them.

    History goes with its row: the admin pages of other models may delete records by cascade, for those who may delete
    the row.
    """

    list_display = ["when", "row", "move", "sequence", "metadata_line"]
    list_filter = [WhenFilter, "to_status", "from_status"]
    list_per_page = 100
    sortable_by = ()
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    #: The field that counts the records of one row.
    counter = "sequence"
    search_fields = ["=instance__pk"]
    search_help_text = _("Finds the history of one row by its complete primary key.")
    actions = None
    paginator = TransitionPaginator
    change_list_template = "admin/statemachine_fields/change_list.html"
    change_form_template = "admin/statemachine_fields/change_form.html"

    class Media:
        css = {"all": ["statemachine_fields/admin.css"]}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return TransitionChangeList

    def get_fields(self, request: HttpRequest, obj: Record | None = None) -> Any:
        opts = self.model._meta
        added = [field.name for field in (*opts.fields, *opts.many_to_many) if field.name not in RECORD_FIELDS]
        shown = ["exact_time", "row_in_full", "from_state", "to_state", "sequence", "pretty_metadata", *added, "id"]
        return self.fields or shown

    # What may be done

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Record | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Record | None = None) -> bool:
        """Refuse on our own pages. On those of another model, ask as for the row, which takes its history along.

        Django asks this for each record that a deletion cascades to, and refuses the whole of it on one no.
        """
        if obj is None or not self._is_page_of_another_model(request):
            return False
        row_admin = self._row_admin()
        return row_admin is None or row_admin.has_delete_permission(request, obj.instance)

    def _is_page_of_another_model(self, request: HttpRequest) -> bool:
        page = (request.resolver_match and request.resolver_match.url_name) or ""
        own = f"{self.opts.app_label}_{self.opts.model_name}_"
        return page.endswith(("_delete", "_changelist", "_change")) and not page.startswith(own)

    # Search

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[Record], search_term: str
    ) -> tuple[models.QuerySet[Record], bool]:
        """Find the records of one row, in the order of the index that finds them."""
        term = search_term.strip()
        if not term:
            return queryset, False
        key: Any = self._row_model._meta.pk
        while key.is_relation:  # the key of a multi-table child
            key = key.target_field
        try:
            value = key.clean(term, None)
        except (ValidationError, ValueError, TypeError, ArithmeticError):
            self.message_user(request, _("That is not a valid primary key, so no row can have it."), messages.WARNING)
            return queryset.none(), False
        return queryset.filter(instance=value).order_by(f"-{self.counter}"), False

    def count_line(self, number: int) -> str:
        """Say how many records a list has that are all on one page."""
        return ngettext("%(counter)s transition", "%(counter)s transitions", number) % {"counter": number}

    # The row

    @property
    def _row_model(self) -> type[models.Model]:
        model: type[models.Model] = self.model._meta.get_field("instance").related_model
        return model

    def _row_admin(self) -> admin.ModelAdmin[Any] | None:
        site, model = self.admin_site, self._row_model
        return site.get_model_admin(model) if site.is_registered(model) else None

    def link_rows(self, request: HttpRequest, records: Iterable[Record]) -> None:
        """Give each record the address of its row, if the user may see the pages of rows."""
        row_admin = self._row_admin()
        if row_admin is None or not row_admin.has_view_or_change_permission(request):
            return
        page = f"admin:{row_admin.opts.app_label}_{row_admin.opts.model_name}_change"
        for record in records:
            record._row_url = reverse(page, args=[quote(record.instance_id)], current_app=self.admin_site.name)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Record | None:
        record = super().get_object(request, object_id, from_field)
        if record is not None:
            self.link_rows(request, [record])
        return record

    def _row_name(self, record: Record) -> str:
        # Not str(record.instance): that is a query for each record, and more if __str__ follows relations.
        return f"{capfirst(str(self._row_model._meta.verbose_name))} {record.instance_id}"

    @admin.display(description=pgettext_lazy("state machine", "row"))
    def row(self, record: Record) -> str:
        return _linked(record, self._row_name(record))

    @admin.display(description=pgettext_lazy("state machine", "row"))
    def row_in_full(self, record: Record) -> str:
        try:
            instance = record.instance
        except ObjectDoesNotExist:  # history_on_delete=DO_NOTHING
            return _("%(row)s (deleted)") % {"row": self._row_name(record)}
        return _linked(record, str(instance))

    # Columns and fields

    @admin.display(description=pgettext_lazy("state machine", "when"))
    def when(self, record: Record) -> str:
        time = local(record.transitioned_at)
        return format_html('<time datetime="{}">{}</time>', time.isoformat(), f"{time:%Y-%m-%d %H:%M:%S}")

    @admin.display(description=pgettext_lazy("state machine", "when"))
    def exact_time(self, record: Record) -> str:
        return f"{local(record.transitioned_at):%Y-%m-%d %H:%M:%S.%f %Z}"

    @admin.display(description=pgettext_lazy("state machine", "move"))
    def move(self, record: Record) -> str:
        source = record.get_from_status_display() or self.get_empty_value_display()
        arrow = "←" if get_language_bidi() else "→"  # no browser turns it round
        return format_html("<bdi>{}</bdi> {} <bdi>{}</bdi>", source, arrow, record.get_to_status_display())

    @admin.display(description=pgettext_lazy("state machine", "from status"))
    def from_state(self, record: Record) -> str:
        return _label_and_value(record.get_from_status_display(), record.from_status) or self.get_empty_value_display()

    @admin.display(description=pgettext_lazy("state machine", "to status"))
    def to_state(self, record: Record) -> str:
        return _label_and_value(record.get_to_status_display(), record.to_status)

    @admin.display(description=pgettext_lazy("state machine", "metadata"))
    def metadata_line(self, record: Record) -> str:
        facts = record.metadata.items() if isinstance(record.metadata, dict) else [("", record.metadata)]
        shown = [f"{name}={value if isinstance(value, str) else as_json(value)}" for name, value in facts]
        return one_line(", ".join(shown), 100)

    @admin.display(description=pgettext_lazy("state machine", "metadata"))
    def pretty_metadata(self, record: Record) -> str:
        return format_html("<pre>{}</pre>", as_json(record.metadata, indent=2))


def _linked(record: Record, text: str) -> str:
    url = getattr(record, "_row_url", None)
    return format_html('<a href="{}">{}</a>', url, text) if url else text


def _label_and_value(label: str, value: str) -> str:
    return value if label == value else f"{label} ({value})"
