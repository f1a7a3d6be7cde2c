"""Events of rows: on the page of the row, in its story, and read-only pages of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db import models
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, pgettext_lazy

from statemachine_fields.admin.display import as_json, as_text, counted, local, one_line, time_tag
from statemachine_fields.admin.records import StateTransitionAdmin, WhenFilter
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.registry import machines_of

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

#: How many events a page of the story reads at most; and among how many of the row's newest it looks for them, as no index has what
#: each move took.
MOST_IN_STORY = 200
LOOKED_AT = 10_000
#: How long a payload may be to stand on the line of its event; and how much of a longer one is shown below it. All of it is on the
#: event's own page.
SHORT = 60
LONGEST = 10_000


@dataclass(frozen=True, slots=True)
class EventEntry:
    """One event: when it came, what it is called and says, and which move took it, if one has."""

    number: int
    when: str
    name: str
    payload: str
    is_block: bool
    dedup_key: str
    taken_by: int | None


@dataclass(frozen=True, slots=True)
class NewestEvents:
    """The newest events of a row, how many it has got, and how many of them no move has taken."""

    entries: tuple[EventEntry, ...]
    total: int
    untaken: str

    @property
    def has_more(self) -> bool:
        return self.total > len(self.entries)


def newest_events(bound: Binding[Any], instance: models.Model, length: int, limit: int) -> NewestEvents:
    """Return the newest events of a row. Two queries, or none if it has got none."""
    total = _number_of(bound, instance)
    if not total:
        return NewestEvents((), 0, "")
    events = getattr(instance, bound.accessor).events
    untaken = events.filter(taken_by=None)[: limit + 1].count()
    newest = events.order_by("-number")[:length]
    return NewestEvents(tuple(map(_entry, newest)), total, counted(untaken, limit) if untaken else "")


def events_taken(
    bound: Binding[Any], instance: models.Model, moves: Iterable[int]
) -> dict[int, tuple[EventEntry, ...]]:
    """Return the events that moves took, by the number of the move: one query for a page, or none if the row has got none."""
    total = _number_of(bound, instance)
    if not total:
        return {}
    found: dict[int, list[EventEntry]] = {}
    events = getattr(instance, bound.accessor).events.filter(number__gt=total - LOOKED_AT, taken_by__in=list(moves))
    for event in reversed(events.order_by("-number")[:MOST_IN_STORY]):
        found.setdefault(event.taken_by, []).append(_entry(event))
    return {number: tuple(entries) for number, entries in found.items()}


def _number_of(bound: Binding[Any], instance: models.Model) -> int:
    """Return how many events a row has got, which its column says."""
    if bound.event_model is None:
        return 0
    number: int = getattr(instance, bound.names.inbox)
    return number


def _entry(event: Any) -> EventEntry:
    is_empty = event.payload in ({}, None)
    payload = "" if is_empty else as_json(event.payload)
    is_block = len(payload) > SHORT
    return EventEntry(
        number=event.number,
        when=time_tag(event.delivered_at),
        name=as_text(event.name),
        payload=Truncator(as_json(event.payload, indent=2)).chars(LONGEST) if is_block else payload,
        is_block=is_block,
        dedup_key=as_text(event.dedup_key or ""),
        taken_by=event.taken_by,
    )


# Pages of their own


class DeliveredFilter(WhenFilter):
    """Offer recent periods in which events were delivered."""

    field = "delivered_at"


class NameFilter(admin.SimpleListFilter):
    """Offer the names that the machine knows. Those of the table nobody asks for: that would read all of it."""

    title = pgettext_lazy("event", "name")
    parameter_name = "name"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, str]]:
        rows: Any = model_admin.model._meta.get_field("instance").related_model
        bounds = [bound for bound in machines_of(rows).values() if bound.event_model is model_admin.model]
        return [(name, name) for bound in bounds for name in bound.event_names]

    def queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> models.QuerySet[Any]:
        return queryset.filter(name=self.value()) if self.value() else queryset


class TakenFilter(admin.SimpleListFilter):
    """Tell the events that a move has taken from those that none has."""

    title = pgettext_lazy("event", "taken")
    parameter_name = "taken"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, _StrPromise]]:
        return [("no", pgettext_lazy("event", "Not yet")), ("yes", pgettext_lazy("event", "By a move"))]

    def queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> models.QuerySet[Any]:
        if self.value() in ("yes", "no"):
            return queryset.filter(taken_by__isnull=self.value() == "no")
        return queryset


class StateEventAdmin(StateTransitionAdmin):
    """Show the events of a machine to those who have the `view` permission of their model, and let nobody change them.

    They are delivered on the page of their row, by those who have the `add` permission.
    """

    list_display = ["when", "row", "number", "name", "payload_line", "dedup_key", "taken"]
    list_filter = [DeliveredFilter, NameFilter, TakenFilter]
    counter = "number"
    search_help_text = _("Finds the events of one row by its complete primary key.")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        shown = ["exact_time", "row_in_full", "number", "name", "pretty_payload", "dedup_key", "taken", "id"]
        return self.fields or shown

    def count_line(self, number: int) -> str:
        return ngettext("%(counter)s event", "%(counter)s events", number) % {"counter": number}

    @admin.display(description=pgettext_lazy("state machine", "when"))
    def when(self, record: Any) -> str:
        time = local(record.delivered_at)
        return format_html('<time datetime="{}">{}</time>', time.isoformat(), f"{time:%Y-%m-%d %H:%M:%S}")

    @admin.display(description=pgettext_lazy("state machine", "when"))
    def exact_time(self, record: Any) -> str:
        return f"{local(record.delivered_at):%Y-%m-%d %H:%M:%S.%f %Z}"

    @admin.display(description=pgettext_lazy("event", "taken"))
    def taken(self, record: Any) -> str:
        if record.taken_by is None:
            return str(pgettext_lazy("event", "Not yet"))
        return _("by move %(number)d") % {"number": record.taken_by}

    @admin.display(description=pgettext_lazy("event", "payload"))
    def payload_line(self, record: Any) -> str:
        return "" if record.payload == {} else one_line(as_json(record.payload), 100)

    @admin.display(description=pgettext_lazy("event", "payload"))
    def pretty_payload(self, record: Any) -> str:
        return format_html("<pre>{}</pre>", as_json(record.payload, indent=2))
