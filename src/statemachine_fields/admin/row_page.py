"""The page of a row with its machines: the state, the buttons, the schedule, the graph, and what happened to the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from statemachine_fields.admin.base import MachineAdmin, read_number, show_in
from statemachine_fields.admin.delivery import DeliverForm
from statemachine_fields.admin.display import (
    as_json,
    as_text,
    badge,
    draw_graph,
    in_words,
    not_declared,
    since,
    time_tag,
    who,
)
from statemachine_fields.admin.events import EventEntry, events_taken, newest_events
from statemachine_fields.admin.schedule import ScheduleReading
from statemachine_fields.admin.transition import button_text
from statemachine_fields.admin.tries import TryEntry, tries_after, tries_of
from statemachine_fields.admin.waiting import ChildrenReader, wait_lines, wait_moves
from statemachine_fields.drawing.svg import Marks
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.forms import form_class, writes_the_row

#: How many moves back the path on the graph of a row goes.
PATH_LENGTH = 1000
#: The parameter of a page of the story: the number of the move after the first one that it shows.
BEFORE = "before"


# The buttons


@dataclass(frozen=True, slots=True)
class TransitionButton:
    """A move out of the row's state, what it is called, and why it cannot be made now."""

    state: str
    label: str
    reasons: tuple[str, ...]
    is_dangerous: bool


def buttons_for(bound: Binding[Any], instance: models.Model, user: Any) -> list[TransitionButton]:
    """Return a button for each move out of the row's state that is made by hand, in the order declared, the dangerous ones
    after the others."""
    states = getattr(instance, bound.accessor)
    buttons = []
    for target in bound.graph.targets(states.current):
        transition = bound.graph.transition(states.current, target)
        if not transition.button:
            continue
        blockers = states.blockers(target, user)
        if writes_the_row(form_class(transition)):  # guards are asked once it is filled in
            blockers = [blocker for blocker in blockers if blocker.code == "permission"]
        reasons = tuple(str(each) for each in blockers)
        buttons.append(TransitionButton(target, button_text(bound, transition), reasons, transition.danger))
    return sorted(buttons, key=lambda button: button.is_dangerous)


def why_no_button(bound: Binding[Any], state: str) -> str:
    """Say why there is nothing to press for a row in a state."""
    if bound.graph.is_terminal(state):
        return pgettext("state machine", "This is an end: no move leads out of it.")
    return _("No move out of this state is made by hand.")


def why_undeclared(bound: Binding[Any], state: str) -> str:
    """Say what is wrong with a row whose state is not declared, and the ways out."""
    if state in bound.graph:
        return ""
    advice = _(
        "No move leads out of it, and no worker takes the row. Declare the state again, or let a program move the row with "
        "force_transition_to()."
    )
    return f"{not_declared(bound, state)} {advice}"


# The story


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a record: a word or a line, or JSON over several lines."""

    name: str
    value: str
    is_block: bool

    @classmethod
    def of(cls, name: str, value: Any) -> Fact:
        if isinstance(value, dict) and value.keys() == {"model", "pk", "text"}:
            return cls(as_text(name), who(value), False)
        if isinstance(value, dict | list) and value:
            return cls(as_text(name), as_json(value, indent=2), True)
        text = (as_text(value) or "–") if isinstance(value, str) else as_json(value)
        return cls(as_text(name), text, "\n" in text)


@dataclass(frozen=True, slots=True)
class StoryEntry:
    """One move: when, from where to where, by whom, with which facts, and how long the row then stayed."""

    number: int
    when: str
    source: str
    target: str
    stayed: str
    is_last: bool
    actor: str
    facts: tuple[Fact, ...]
    #: The tries that followed and moved the row no further, the newest first.
    tries: tuple[TryEntry, ...] = ()
    #: The events that the move took, in the order in which they came.
    events: tuple[EventEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Story:
    """One page of a row's history, the newest move first, and the queries of the pages around it."""

    entries: tuple[StoryEntry, ...]
    total: int
    newest: str = ""
    newer: str = ""
    older: str = ""
    oldest: str = ""


class StoryReader:
    """Reads pages of the history of one row. The number of a move finds it, so no page costs more than another."""

    def __init__(self, bound: Binding[Any], instance: models.Model, tones: Mapping[str, str], length: int) -> None:
        self.bound = bound
        self.instance = instance
        self.tones = tones
        self.length = length
        self.latest: int = getattr(instance, bound.names.sequence)
        self.earlier = 0

    def read(self, before: int | None = None) -> Story:
        """Return the moves with a smaller number than `before`, or the newest. One query, and one more where history may
        be of a row that had the key before."""
        records = getattr(self.instance, self.bound.accessor).history
        if self.bound.keeps_history:
            first = records.order_by("sequence").values_list("sequence", flat=True).first()
            self.earlier = self.latest if first is None else first - 1
        total = max(self.latest - self.earlier, 0)
        if before is not None:
            records = records.filter(sequence__lte=before)  # with the move that ended the first stay of the page
        found = list(records[: self.length + 2])
        after = found.pop(0) if before is not None and found and found[0].sequence == before else None
        page, has_more = found[: self.length], len(found) > self.length
        if not page:
            return Story((), total)
        first, last = page[0].sequence, page[-1].sequence
        is_first_page = first >= self.latest
        numbers = [record.sequence for record in page]
        tries = tries_after(self.bound, self.instance, self.tones, numbers)
        events = events_taken(self.bound, self.instance, numbers)
        return Story(
            entries=tuple(
                self._entry(record, later, tries.get(record.sequence, ()), events.get(record.sequence, ()))
                for record, later in zip(page, [after, *page], strict=False)
            ),
            total=total,
            newest="" if is_first_page else "?",
            newer="" if is_first_page else self._query(first + self.length + 1),
            older=self._query(last) if has_more else "",
            oldest=self._query(self.earlier + self.length + 1) if has_more else "",
        )

    def _query(self, before: int) -> str:
        return f"?{BEFORE}={before}" if before <= self.latest else "?"

    def _entry(
        self, record: Any, later: Any, tries: tuple[TryEntry, ...], events: tuple[EventEntry, ...]
    ) -> StoryEntry:
        facts = record.metadata if isinstance(record.metadata, dict) else {"": record.metadata}
        is_last = record.sequence >= self.latest
        stay = later.transitioned_at - record.transitioned_at if later is not None else since(record.transitioned_at)
        return StoryEntry(
            number=record.sequence,
            when=time_tag(record.transitioned_at),
            source=badge(self.bound, record.from_status, self.tones) if record.from_status else "",
            target=badge(self.bound, record.to_status, self.tones),
            stayed=in_words(stay) if later is not None or is_last else "",
            is_last=is_last,
            actor=who(facts["actor"]) if facts.get("actor") else "",
            facts=tuple(Fact.of(name, value) for name, value in facts.items() if name != "actor" or not value),
            tries=tries,
            events=events,
        )


# The pages


class RowPages(MachineAdmin):
    """Adds the machines to the page of a row, and a page for the whole story."""

    #: How many moves the page of a row shows, and how many a page of its story does.
    story_length = 5
    story_per_page = 50

    def get_urls(self) -> list[URLPattern]:
        return [self.row_path("story", self.story_view), *super().get_urls()]

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        response = super().render_change_form(request, context, add, change, form_url, obj)
        if change and obj is not None and not context.get("is_popup"):
            panels = [self._panel(request, bound, obj) for bound in self.machines.values()]
            show_in(response, "row.html", {"machine_panels": panels})
        return response

    def _panel(self, request: HttpRequest, bound: Binding[Any], obj: models.Model) -> dict[str, Any]:
        """Return what the page of a row shows of one machine."""
        state: str = getattr(obj, bound.names.status)
        changed_at = getattr(obj, bound.names.changed_at)
        can_move = self.has_move_permission(request, obj)
        return {
            "bound": bound,
            "name": self.name_of(bound),
            "badge": badge(bound, state, self.tones(bound)),
            "since": time_tag(changed_at),
            "duration": in_words(since(changed_at)),
            "sequence": getattr(obj, bound.names.sequence),
            "buttons": buttons_for(bound, obj, request.user) if can_move else [],
            "why_no_button": why_no_button(bound, state),
            "warning": why_undeclared(bound, state),
            "can_move": can_move,
            "move_url": self.row_url("move", obj, bound.accessor),
            "schedule": ScheduleReading(bound, obj) if bound.is_timed else None,
            "schedule_url": self.row_url("clock", obj, bound.accessor),
            "graph": self._graph(bound, obj, state),
            "story": StoryReader(bound, obj, self.tones(bound), self.story_length).read(),
            "story_url": self.row_url("story", obj, bound.accessor),
            "machine_url": self.page_url("machine", bound.accessor),
            "tries": tries_of(bound, obj, self.tones(bound), self.story_length),
            "tries_url": self.records_url(request, bound.tries_model, bound.key_of(obj)),
            "children": ChildrenReader(self.admin_site, request, self.count_limit).read(bound, obj),
            **self._events(request, bound, obj, state),
        }

    def _events(self, request: HttpRequest, bound: Binding[Any], obj: models.Model, state: str) -> dict[str, Any]:
        """Return what the page of a row shows of its events, of a machine that has some."""
        if bound.event_model is None:
            return {}
        takes_more = state in bound.graph and not bound.graph.is_terminal(state)
        may_deliver = takes_more and self.has_deliver_permission(request, bound.face, obj)
        return {
            "has_events": True,
            "events": newest_events(bound, obj, self.story_length, self.count_limit),
            "events_url": self.records_url(request, bound.event_model, bound.key_of(obj)),
            "deliver_form": DeliverForm(bound, state) if may_deliver else None,
            "deliver_url": self.row_url("deliver", obj, bound.accessor),
        }

    def _graph(self, bound: Binding[Any], obj: models.Model, state: str) -> SafeString:
        recent = list(getattr(obj, bound.accessor).history.values_list("from_status", "to_status")[:PATH_LENGTH])
        marks = Marks(
            current=state,
            path=list(dict.fromkeys(reversed(recent))),
            lines=wait_lines(bound),
            says=wait_moves(bound),
            tones=self.tones(bound),
        )
        return draw_graph(bound.graph, marks, self.title_of(bound))

    def story_view(self, request: HttpRequest, object_id: str, accessor: str) -> HttpResponse:
        """Show the whole history of one row, a page at a time."""
        bound, obj = self.machine_or_404(accessor), self.row_or_404(request, object_id)
        if not self.has_view_or_change_permission(request, obj):
            raise PermissionDenied
        before = read_number(request.GET.get(BEFORE, ""), None)
        number = getattr(obj, bound.names.sequence)
        context = {
            "title": pgettext("state machine", "Story"),
            "subtitle": str(obj),
            "object": obj,
            "name": self.name_of(bound),
            "story": StoryReader(bound, obj, self.tones(bound), self.story_per_page).read(before),
            "badge": badge(bound, getattr(obj, bound.names.status), self.tones(bound)),
            "moves": ngettext("%(number)d move", "%(number)d moves", number) % {"number": number},
            "back_url": self.back_to_row(request, obj),
        }
        return self.render_page(request, "story.html", context)
