"""The page of a row with its machines, and the pages it leads to: moves, the clock, and the story."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.contrib.admin.helpers import AdminForm
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import models, router, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from statemachine_fields.admin.badges import badge
from statemachine_fields.admin.base import MachineAdmin
from statemachine_fields.admin.clocks import VERBS, Reading, read_clock, why_left
from statemachine_fields.admin.graphs import draw_graph
from statemachine_fields.admin.moves import (
    Choice,
    RowMove,
    button_text,
    choices_for,
    is_too_late,
    read_number,
    what_to_do_with_a_stray,
    why_no_button,
)
from statemachine_fields.admin.stories import Story, StoryReader, read_before
from statemachine_fields.admin.templates import show_in
from statemachine_fields.admin.wording import in_words, since, time_tag
from statemachine_fields.drawing.svg import Marks
from statemachine_fields.exceptions import StateMachineError
from statemachine_fields.machine.binding import Binding

#: How many moves back the path on the graph of a row goes.
PATH_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class Panel:
    """What the page of a row shows of one machine."""

    bound: Binding[Any]
    name: str
    badge: str
    since: str
    duration: str
    sequence: int
    choices: list[Choice]
    why_no_button: str
    #: What is wrong with the state that the row is in.
    warning: str
    can_move: bool
    move_url: str
    clock: Reading | None
    clock_url: str
    graph: SafeString
    story: Story
    story_url: str
    machine_url: str


class RowPages(MachineAdmin):
    """Adds the machines to the page of a row."""

    #: How many moves the page of a row shows, and how many a page of its story does.
    story_length = 5
    story_per_page = 50

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        wrap = self.admin_site.admin_view
        return [
            path("<path:object_id>/move/<str:accessor>/", wrap(self.move_view), name=f"{name}_move"),
            path("<path:object_id>/clock/<str:accessor>/", wrap(self.clock_view), name=f"{name}_clock"),
            path("<path:object_id>/story/<str:accessor>/", wrap(self.story_view), name=f"{name}_story"),
            *super().get_urls(),
        ]

    def has_move_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Say whether the user may move rows at all. Which moves, permissions on the transitions say."""
        return self.has_change_permission(request, obj)

    def asks_for_each_row(self) -> bool:
        """Say whether that may depend on the row."""
        own = type(self)
        return (
            own.has_move_permission is not RowPages.has_move_permission
            or own.has_change_permission is not ModelAdmin.has_change_permission
        )

    # The row

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

    def _panel(self, request: HttpRequest, bound: Binding[Any], obj: models.Model) -> Panel:
        state: str = getattr(obj, bound.names.status)
        changed_at = getattr(obj, bound.names.changed_at)
        can_move = self.has_move_permission(request, obj)
        tones = self.tones(bound)
        return Panel(
            bound=bound,
            name=self.name_of(bound),
            badge=badge(bound, state, tones),
            since=time_tag(changed_at),
            duration=in_words(since(changed_at)),
            sequence=getattr(obj, bound.names.sequence),
            choices=choices_for(bound, obj, request.user) if can_move else [],
            why_no_button=why_no_button(bound, state),
            warning="" if state in bound.graph else what_to_do_with_a_stray(bound, state),
            can_move=can_move,
            move_url=self.row_url("move", obj, bound.accessor),
            clock=read_clock(bound, obj) if bound.is_timed else None,
            clock_url=self.row_url("clock", obj, bound.accessor),
            graph=self._graph(bound, obj, state, tones),
            story=StoryReader(bound, obj, tones, self.story_length).read(),
            story_url=self.row_url("story", obj, bound.accessor),
            machine_url=self.page_url("machine", bound.accessor),
        )

    def _graph(self, bound: Binding[Any], obj: models.Model, state: str, tones: dict[str, str]) -> SafeString:
        recent = list(getattr(obj, bound.accessor).history.values_list("from_status", "to_status")[:PATH_LENGTH])
        marks = Marks(current=state, path=list(dict.fromkeys(reversed(recent))), tones=tones)
        return draw_graph(bound.graph, marks, self.title_of(bound))

    # Moving it

    def move_view(self, request: HttpRequest, object_id: str, accessor: str) -> HttpResponse:
        """Move one row, after asking what the transition wants to know. By POST only."""
        bound, obj = self._row_to_change(request, object_id, accessor)
        back = HttpResponseRedirect(self.back_to_row(request, obj))
        move = RowMove(self, request, bound, obj)
        if not (move.is_by_hand or move.is_overtaken):
            raise PermissionDenied
        if request.method != "POST":
            return self._refuse_method(request, obj)
        if move.target not in bound.graph:
            move.say_no_such_state()
            return back
        if move.is_stale:
            return self._too_late(request, move) or back
        if not move.is_possible:
            move.say_no_such_move()
            return back
        filled_in = "_confirm" in request.POST or not move.asks_first
        form = move.form(filled_in=filled_in)
        if not (filled_in and form.is_valid()):
            return self._ask(request, move, form)
        error = move.make(form)
        if error is None:
            return back
        # The row as it is now, without what the form wrote into the instance.
        return self._refused(request, move, error, self.get_object(request, unquote(object_id))) or back

    def _refused(self, request: HttpRequest, move: RowMove, error: Exception, row: Any) -> HttpResponse | None:
        """Show what was filled in again with the reason on it, or say it if there is nothing to show."""
        if row is None:
            move.say_why_not(error)
            return None
        again = RowMove(self, request, move.bound, row)
        if is_too_late(error):
            return self._too_late(request, again)
        if not move.is_answered:
            move.say_why_not(error)
            return None
        return self._ask(request, again, again.refused_form(move.reasons(error)), is_refused=True)

    def _too_late(self, request: HttpRequest, move: RowMove) -> HttpResponse | None:
        """Let people who typed something decide anew about the row as it is now, if the move is still there."""
        why = move.why_too_late()
        if not (why and move.is_typed and move.is_possible and move.is_by_hand):
            move.say_too_late()
            return None
        move.expected = getattr(move.instance, move.bound.names.sequence)
        return self._ask(request, move, move.refused_form([why]), is_refused=True)

    def _ask(self, request: HttpRequest, move: RowMove, form: Any, *, is_refused: bool = False) -> HttpResponse:
        bound, obj, tones = move.bound, move.instance, self.tones(move.bound)
        fields = [(None, {"fields": list(form.fields)})]
        move.ask_for_files_again(form)
        context = {
            "title": button_text(bound, move.transition),
            "subtitle": move.label,
            "object": obj,
            "row_name": move.label,
            "is_refused": is_refused,
            "question": move.question,
            "button": button_text(bound, move.transition) if move.transition.form else _("Yes, I’m sure"),
            "source": badge(bound, move.source, tones),
            "target": badge(bound, move.target, tones),
            "move": move,
            "note": move.carried_note(form),
            "form": form,
            "adminform": AdminForm(form, fields, {}, model_admin=self),
            "media": self.media + form.media,
            "action": self.row_url("move", obj, bound.accessor),
            "back_url": self.back_to_row(request, obj),
        }
        return self.render_page(request, "move.html", context)

    # Its clock

    def clock_view(self, request: HttpRequest, object_id: str, accessor: str) -> HttpResponse:
        """Run, release or resume one row. By POST only."""
        bound, obj = self._row_to_change(request, object_id, accessor)
        if request.method != "POST":
            return self._refuse_method(request, obj)
        back = HttpResponseRedirect(self.back_to_row(request, obj))
        verb = VERBS.get(request.POST.get("verb", ""))
        if verb is None or not bound.is_timed:
            self.message_user(request, _("There is nothing of that name to do with a row."), messages.ERROR)
            return back
        # What the person saw, and decided about.
        setattr(obj, bound.names.lease_token, read_number(request.POST.get("token", "")))
        try:
            with transaction.atomic(using=router.db_for_write(type(obj), instance=obj)):
                done = verb.run(bound, getattr(obj, bound.accessor))
                if done:
                    self.log_change(request, obj, str(verb.label))
        except StateMachineError as error:
            names = {"row": obj, "why": why_left(error)}
            self.message_user(request, _("“%(row)s” was left alone: %(why)s") % names, messages.ERROR)
            return back
        text = verb.done if done else verb.too_late
        self.message_user(request, text % {"row": obj}, messages.SUCCESS if done else messages.WARNING)
        return back

    # What happened to it

    def story_view(self, request: HttpRequest, object_id: str, accessor: str) -> HttpResponse:
        """Show the whole history of one row, a page at a time."""
        bound, obj = self.machine_or_404(accessor), self.row_or_404(request, object_id)
        if not self.has_view_or_change_permission(request, obj):
            raise PermissionDenied
        story = StoryReader(bound, obj, self.tones(bound), self.story_per_page).read(read_before(request))
        number = getattr(obj, bound.names.sequence)
        context = {
            "title": pgettext("state machine", "Story"),
            "subtitle": str(obj),
            "object": obj,
            "name": self.name_of(bound),
            "story": story,
            "badge": badge(bound, getattr(obj, bound.names.status), self.tones(bound)),
            "moves": ngettext("%(number)d move", "%(number)d moves", number) % {"number": number},
            "back_url": self.back_to_row(request, obj),
        }
        return self.render_page(request, "story.html", context)

    # All of them

    def _row_to_change(self, request: HttpRequest, object_id: str, accessor: str) -> tuple[Binding[Any], Any]:
        bound, obj = self.machine_or_404(accessor), self.row_or_404(request, object_id)
        if not self.has_move_permission(request, obj):
            raise PermissionDenied
        return bound, obj

    def _refuse_method(self, request: HttpRequest, obj: models.Model) -> HttpResponse:
        """Say that an address does nothing by itself: a link, a crawler or a reload must not move anything."""
        context = {"title": _("Nothing was done"), "object": obj, "back_url": self.back_to_row(request, obj)}
        response = self.render_page(request, "refused.html", context, status=405)
        response["Allow"] = "POST"
        return response
