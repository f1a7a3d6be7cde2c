"""What people see of states, times and facts: badges, graphs, numbers and words. The same on every page."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import Truncator, capfirst
from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from statemachine_fields.db.counting import count_each, count_each_and_find
from statemachine_fields.drawing.svg import PAGE_WIDTH, Marks, draw_svg
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.graph import StateGraph

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin
    from django.db import models
    from django.http import HttpRequest

MINUTE = dt.timedelta(minutes=1)
#: What a phone has between our margins, and what is still readable when it is made to fit a page.
PHONE = 340
SHRUNK = 1500
#: Width and height of a drawing.
VIEW_BOX = re.compile(r'viewBox="\S+ \S+ (\S+) (\S+)"')
#: Where the counts of a request are kept, as several parts of a page show them.
CACHE = "_statemachine_counts"


# States


def badge(bound: Binding[Any], state: str, tones: Mapping[str, str]) -> str:
    """Return a state's label on its colour. A state that is not declared says so to those who point at it."""
    if state in tones:
        return format_html('<span class="smf-badge smf-tone-{}">{}</span>', tones[state], bound.label_of(state))
    return format_html('<span class="smf-badge smf-undeclared" title="{}">{}</span>', not_declared(bound, state), state)


def not_declared(bound: Binding[Any], state: str) -> str:
    names = {"state": state, "model": capfirst(str(bound.model._meta.verbose_name))}
    return _("%(state)s is not a state that %(model)s declares.") % names


def draw_graph(graph: StateGraph, marks: Marks, title: str, *, flat: bool = False) -> SafeString:
    """Return the graph for a page whose width nobody knows: drawn for a wide one and a narrow one, of which one is shown.

    :param flat: draw it from left to right where it is readable at all, as there are rows below that people came for.
    """
    wide = _first_that_fits(graph, marks, title, SHRUNK if flat else PAGE_WIDTH, lambda width, height: width > height)
    narrow = _first_that_fits(graph, marks, title, PHONE, lambda width, height: width <= PHONE)
    if wide == narrow:  # upright on any page; a phone shows it in its own size, too
        return format_html('<div class="smf-any-page">{}</div>', wide)
    return format_html('<div class="smf-wide-page">{}</div><div class="smf-phone">{}</div>', wide, narrow)


def _first_that_fits(
    graph: StateGraph, marks: Marks, title: str, page: int, fits: Callable[[float, float], bool]
) -> SafeString:
    """Draw the graph with all there is to say, or with less of it so that it fits: the page says the rest elsewhere. What fits in
    no case is drawn with all of it."""
    drawings = []
    for less in (marks, replace(marks, says={}), replace(marks, says={}, lines={})):
        drawings.append(draw_svg(graph, less, title=title, embedded=True, page=page))
        found = VIEW_BOX.search(drawings[-1])
        if not (marks.says or marks.lines) or found is None or fits(float(found[1]), float(found[2])):
            return mark_safe(drawings[-1])  # noqa: S308 - draw_svg() escapes whatever is in labels
    return mark_safe(drawings[0])  # noqa: S308


def undeclared_line(bound: Binding[Any], marks: Marks) -> SafeString:
    """Return a line for the foot of a graph with the states that have a note and are not declared, if there are some."""
    strays = [state for state in marks.notes if state not in bound.graph]
    shown = ((marks.links[state], badge(bound, state, {}), marks.notes[state]) for state in strays)
    links = format_html_join(" ", '<a href="{}">{}</a> {}', shown)
    return (
        format_html('<p class="smf-strays">{} {}</p>', _("In states that are not declared:"), links) if links else links
    )


# Numbers


def count_states(model_admin: ModelAdmin[Any], request: HttpRequest, bound: Binding[Any], limit: int) -> dict[str, int]:
    """Return how many rows that the user may see are in each state; `limit` and one for more than `limit`.

    First the declared states, and after them others that there are such rows in. One query, and one more if there are.
    """
    cache: dict[str, dict[str, int]] = vars(request).setdefault(CACHE, {})
    if str(bound) not in cache:
        rows = model_admin.get_queryset(request).order_by()

        def by_state(states: Iterable[str]) -> dict[str, models.QuerySet[Any]]:
            return {state: rows.filter(**{bound.names.status: state}) for state in states}

        counts, others = count_each_and_find(by_state(bound.graph.states), limit, bound.questions.other_values())
        if others:
            undeclared = count_each(by_state(others), limit)
            counts |= {state: number for state, number in undeclared.items() if number}
        cache[str(bound)] = counts
    return cache[str(bound)]


def grouped(number: int) -> str:
    """Return a number as people write it: `1,204`."""
    return number_format(number, force_grouping=True)


def counted(count: int, limit: int) -> str:
    """Return a count as it is written: `1,204`, or `10,000+`."""
    return f"{grouped(limit)}+" if count > limit else grouped(count)


# Times


def local(time: dt.datetime) -> dt.datetime:
    return timezone.localtime(time) if timezone.is_aware(time) else time


def time_tag(time: dt.datetime, text: str = "") -> str:
    """Return an instant as HTML: in words if there are some, and exactly to those who point at it or whose reader asks."""
    moment = local(time)
    full = f"{moment:%Y-%m-%d %H:%M:%S %Z}".strip()
    shown = text or date_format(moment, "DATETIME_FORMAT")
    return format_html('<time datetime="{}" title="{}" dir="auto">{}</time>', moment.isoformat(), full, shown)


def day(time: dt.datetime) -> str:
    """Return a day as people write it, with its year if that is another one."""
    moment = local(time)
    this_year = local(timezone.now()).year == moment.year
    return date_format(moment, "MONTH_DAY_FORMAT" if this_year else "DATE_FORMAT")


def in_words(duration: dt.timedelta) -> str:
    """Return how long something took: in its two largest units, in seconds below a minute."""
    if duration >= MINUTE:
        start = dt.datetime(2001, 1, 1)  # noqa: DTZ001 - any day does
        return timesince(start, start + duration)
    seconds = max(duration.total_seconds(), 0.0)
    if seconds < 1:
        return _("%(number)d ms") % {"number": round(seconds * 1000)}
    whole = int(seconds)
    return ngettext("%(number)d second", "%(number)d seconds", whole) % {"number": whole}


def since(time: dt.datetime) -> dt.timedelta:
    """Return how long ago an instant was, never less than nothing: two clocks may differ."""
    return max(timezone.now() - time, dt.timedelta(0))


# Facts


def as_json(value: Any, indent: int | None = None) -> str:
    return as_text(json.dumps(value, ensure_ascii=False, indent=indent))


def as_text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()  # JSON may hold half a surrogate pair, a page may not


def one_line(text: str, longest: int) -> str:
    return Truncator(" ".join(as_text(text).split())).chars(longest)


def who(actor: Any) -> str:
    """Return the name of whom a record says that they moved the row: see `transition_context()`."""
    if isinstance(actor, dict) and "text" in actor:
        return as_text(str(actor["text"]))
    return as_text(actor) if isinstance(actor, str) else as_json(actor)
