"""What rows wait for, in words and in numbers: events by their names, children by how many of them are where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import models, router
from django.db.models import Count
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from statemachine_fields.admin.base import MachineAdmin
from statemachine_fields.admin.display import badge, counted
from statemachine_fields.db.counting import count_each
from statemachine_fields.drawing.ranks import Move
from statemachine_fields.drawing.tones import tones_of
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.relations import WrongJoin, resolve
from statemachine_fields.schedule.children import Children
from statemachine_fields.schedule.waiting import Event, Until

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite
    from django.http import HttpRequest

    from statemachine_fields.machine.joins import Join

#: The name under which all children are counted, beside those of each state.
ALL = ""


# In words


def waits_for(bound: Binding[Any], state: str, until: Until, *, brief: bool = False) -> str:
    """Say that rows of a state wait, and what for, in the language of the reader.

    :param brief: for a line of a list.
    """
    return _("Waits for %(what)s") % {"what": awaited_words(bound, state, until, brief=brief)}


def awaited_words(bound: Binding[Any], state: str, until: Until, *, brief: bool = False) -> str:
    """Name what rows of a state wait for."""
    match until:
        case Event(names=names):
            return one_of(names) if brief else _("the event %(names)s") % {"names": one_of(names)}
        case Children(need=need):
            facts = {"children": _children_name(bound, state, until), "number": need}
            if need == "all":
                return _("all of its %(children)s") % facts
            return (_("one of its %(children)s") if need == "any" else _("%(number)d of its %(children)s")) % facts
    return str(until)


def one_of(names: Sequence[str]) -> str:
    """Return names of which one is meant."""
    *others, last = names
    return _("%(others)s or %(last)s") % {"others": ", ".join(others), "last": last} if others else last


def _children_name(bound: Binding[Any], state: str, until: Children) -> str:
    join = find_join(bound, state)
    return until.relation if join is None else str(join.model._meta.verbose_name_plural)


def find_join(bound: Binding[Any], state: str) -> Join | None:
    """Return the relation by which children of a state are found; None if it is declared wrongly, of which a check tells."""
    try:
        return resolve(bound, state)
    except WrongJoin:
        return None


def wait_lines(bound: Binding[Any]) -> dict[str, list[str]]:
    """Return a line for the box of each state that waits for something."""
    awaited = {state: each.until for state, each in bound.graph.states.items() if each.until is not None}
    return {state: [waits_for(bound, state, until, brief=True)] for state, until in awaited.items()}


def wait_moves(bound: Binding[Any]) -> dict[Move, str]:
    """Return what makes each move that happens by itself when what rows wait for has happened."""
    found: dict[Move, str] = {}
    for state, each in bound.graph.states.items():
        for target in each.until.targets if each.until is not None else ():
            found[state, target] = _move_words(each.until, target)
    return found


def _move_words(until: Until | None, target: str) -> str:
    match until:
        case Event(moves=moves):
            return one_of([name for name, to in moves.items() if to == target])
        case Children(then=then):
            return pgettext("children", "done") if target == then else pgettext("children", "not enough")
    return until.words_for(target) if until is not None else ""


# In numbers


@dataclass(frozen=True, slots=True)
class ChildState:
    """One state that children of a row are in: how many, and where they are listed."""

    badge: str
    number: str
    url: str


@dataclass(frozen=True, slots=True)
class ChildrenReading:
    """The children of a row by one relation: how many there are in each state, and what that comes to."""

    name: str
    words: str
    bar: str
    states: tuple[ChildState, ...]
    parked: str
    parked_url: str
    url: str
    #: Whether the row waits for them now.
    is_awaited: bool


class ChildrenReader:
    """Reads how many children one row has in each state, counted up to a limit, and as much as a user may know of them."""

    def __init__(self, site: AdminSite, request: HttpRequest, limit: int) -> None:
        self.site = site
        self.request = request
        self.limit = limit

    def read(self, bound: Binding[Any], instance: models.Model) -> list[ChildrenReading]:
        """Return the children of each relation that a state of the machine waits for. Two queries for each, or one if nothing is
        under way; nothing is said of a relation by which there are none, unless the row waits for them."""
        state = getattr(instance, bound.names.status)
        readings = [self._read(join, instance, is_awaited=join.state == state) for join in _joins(bound, state)]
        return [reading for reading in readings if reading.states or reading.is_awaited]

    def _read(self, join: Join, instance: models.Model, *, is_awaited: bool) -> ChildrenReading:
        value, status = join.value_of(instance), join.child.names.status
        rows = join.children(router.db_for_read(join.model, instance=instance))
        rows = rows.filter(**{join.field.name: value}).order_by()
        by_state = {state: rows.filter(**{status: state}) for state in join.child.graph.states}
        counts = count_each({ALL: rows, **by_state}, self.limit)
        total = counts.pop(ALL)
        failed = sum(counts[state] for state in join.until.failed)
        done = sum(counts[state] for state in join.succeeded)
        # Of more than are counted, those in states that nobody declares are not told apart.
        undeclared = max(total - sum(counts.values()), 0) if total <= self.limit else 0
        under_way = sum(counts[state] for state in join.live) + undeclared
        parked = self._parked(join, rows) if under_way else 0
        children = self._list_url(join, value)
        tones = self._tones(join)
        order = [state for state in (*join.succeeded, *join.until.failed, *join.live) if counts[state]]
        return ChildrenReading(
            name=capfirst(str(join.model._meta.verbose_name_plural)),
            words=self._words(total, done, failed, under_way),
            bar=draw_shares([(tones[state], counts[state]) for state in order]),
            states=tuple(
                ChildState(
                    badge(join.child, state, tones),
                    counted(counts[state], self.limit),
                    children(**{f"{status}__exact": state}),
                )
                for state in order
            ),
            parked=_("%(number)s of them parked") % {"number": counted(parked, self.limit)} if parked else "",
            parked_url=children(**_parked_lookups(join)) if parked else "",
            url=children(),
            is_awaited=is_awaited,
        )

    def _parked(self, join: Join, rows: models.QuerySet[Any]) -> int:
        """Return how many are parked of those under way, as many of which are looked at as are counted."""
        if not join.child.is_timed:
            return 0
        # By the states that they are in, which an index finds: "not in a terminal state" would pass all that are finished.
        some = rows.filter(**{f"{join.child.names.status}__in": join.live})[: self.limit + 1]
        parked: int = some.aggregate(parked=Count("pk", filter=join.child.parked_condition()))["parked"]
        return parked

    def _tones(self, join: Join) -> Mapping[str, str]:
        """Return the colours of the children's states, as on their own pages."""
        own = self.site.get_model_admin(join.model) if self.site.is_registered(join.model) else None
        return own.tones(join.child) if isinstance(own, MachineAdmin) else tones_of(join.child.graph, {})

    def _words(self, total: int, done: int, failed: int, under_way: int) -> str:
        if not total:
            return pgettext("children", "there are none")
        parts = [
            (total, _("%(number)s in all")),
            (done, _("%(number)s done")),
            (failed, _("%(number)s failed")),
            (under_way, _("%(number)s under way")),
        ]
        return ", ".join(text % {"number": counted(number, self.limit)} for number, text in parts if number)

    def _list_url(self, join: Join, value: Any) -> Any:
        """Return a function for the address of the list of children, for those who may see it; it gives nothing to others."""
        model = join.model
        if not self.site.is_registered(model):
            return lambda **_filters: ""
        if not self.site.get_model_admin(model).has_view_or_change_permission(self.request):
            return lambda **_filters: ""
        opts = model._meta
        page = reverse(f"admin:{opts.app_label}_{opts.model_name}_changelist", current_app=self.site.name)
        return lambda **filters: f"{page}?{urlencode({f'{join.field.name}__exact': value, **filters})}"


def _joins(bound: Binding[Any], state: str) -> list[Join]:
    """Return the joins of a machine, the one of a state first: of several by one relation, the first."""
    states = sorted(bound.joined_states, key=lambda each: each != state)
    found: dict[Any, Join] = {}
    for each in states:
        if (join := find_join(bound, each)) is not None:
            found.setdefault((join.field, join.child), join)
    return list(found.values())


def _parked_lookups(join: Join) -> Mapping[str, str]:
    """Return what `parked_condition()` says as parameters of a list, which can say no "not"."""
    names = join.child.names
    return {
        f"{names.status}__in": ",".join(join.live),
        f"{names.next_at}__isnull": "True",
        f"{names.lease_expires_at}__isnull": "True",
        f"{names.error}__gt": "",
    }


def draw_shares(shares: Iterable[tuple[str, int]]) -> str:
    """Return a bar with a part for each share, in its tone. Those who do not see it have the numbers beside it."""
    parts = [(tone, number) for tone, number in shares if number]
    total = sum(number for _tone, number in parts)
    if not total:
        return ""
    places, x = [], 0.0
    for tone, number in parts:
        width = 100 * number / total
        places.append((tone, f"{x:.2f}", f"{width:.2f}"))
        x += width
    shapes = format_html_join("", '<rect class="smf-tone-{}" x="{}" width="{}" height="1"/>', places)
    return format_html(
        '<svg class="smf-shares" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">{}</svg>', shapes
    )
