"""Moving one row by hand: what a button leads to, what is asked first, and what is said afterwards."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models, router, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from statemachine_fields.admin.base import MachineAdmin, read_number
from statemachine_fields.admin.display import badge, in_words, since, who
from statemachine_fields.exceptions import (
    ConcurrentTransition,
    InvalidStateTransition,
    RowMissing,
    StateMachineError,
    TransitionBlocked,
)
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.context import described
from statemachine_fields.machine.forms import form_class, writes_the_row
from statemachine_fields.machine.graph import Transition

NOTE_LENGTH = 1000


class NoteForm(forms.Form):
    """What is asked where a transition declares no form of its own."""

    note = forms.CharField(
        label=pgettext_lazy("state machine", "Note"),
        required=False,
        max_length=NOTE_LENGTH,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text=gettext_lazy("Kept with the record of the move."),
    )


def move_to(bound: Binding[Any], state: str) -> str:
    return _("Move to %(state)s") % {"state": bound.label_of(state)}


def button_text(bound: Binding[Any], transition: Transition) -> str:
    return str(transition.label) or move_to(bound, transition.to)


class TransitionRequest:
    """One request to move one row: what the person saw, what they want, and what came of it."""

    def __init__(
        self, model_admin: MachineAdmin, request: HttpRequest, bound: Binding[Any], instance: models.Model
    ) -> None:
        self.model_admin = model_admin
        self.request = request
        self.bound = bound
        self.instance = instance
        self.states = getattr(instance, bound.accessor)
        #: What the row is called. A form of its fields changes the instance, also if it is refused.
        self.label = str(instance)
        self.source: str = self.states.current
        self.sequence: int = getattr(instance, bound.names.sequence)
        # With an underscore, so that fields of a transition's own form may have any name.
        sent = request.POST if request.method == "POST" else request.GET
        self.target = sent.get("_to", "")
        self.transition = bound.graph.transition(self.source, self.target)
        self.expected = read_number(sent.get("_expected", ""), -1, digits=18)
        self.note = sent.get("_note", "")
        self.form_class = form_class(self.transition) or NoteForm

    @property
    def is_stale(self) -> bool:
        """Whether the row has moved since the person saw it, so that they decided about something else."""
        return self.expected != self.sequence

    @property
    def is_overtaken(self) -> bool:
        """Whether what the person saw is a state that the row has left."""
        return 0 <= self.expected < self.sequence

    @property
    def is_declared(self) -> bool:
        return self.bound.graph.allows(self.source, self.target)

    @property
    def is_by_hand(self) -> bool:
        """Whether people make this move: a move of the system's own has no button, and nobody else's request does."""
        return self.transition.button

    @property
    def asks_first(self) -> bool:
        return bool(self.transition.confirm) or self.transition.form is not None

    @property
    def is_confirmed(self) -> bool:
        return "_confirm" in self.request.POST

    @property
    def is_answered(self) -> bool:
        """Whether people were asked something, or typed a note of themselves: then that is where they are told."""
        return self.is_confirmed or bool(self.note)

    @property
    def is_typed(self) -> bool:
        """Whether something would be lost if it were not shown again. A mere "yes" to a row that is another by now is not."""
        return bool(self.note) or (self.is_confirmed and self.form(filled_in=True).has_changed())

    # Its form

    def form(self, *, filled_in: bool) -> forms.BaseForm:
        """Return the form of the transition: as it was sent, or as it is first shown."""
        if filled_in and not self.asks_first:
            return NoteForm({"note": self.request.POST.get("note", self.note)})
        arguments: dict[str, Any] = {}
        if writes_the_row(self.form_class):
            arguments["instance"] = self.instance
        elif self.note and not filled_in:
            arguments["initial"] = {"note": self.note}
        if filled_in:
            return self.form_class(self.request.POST, self.request.FILES, **arguments)
        return self.form_class(**arguments)

    def refused_form(self, reasons: list[str]) -> forms.BaseForm:
        """Return the form with what was filled in, and why the row was not moved."""
        form = self.form(filled_in=True)
        form.full_clean()
        form.add_error(None, [capfirst(reason) for reason in reasons])
        return form

    def ask_for_files_again(self, form: forms.BaseForm) -> None:
        """Say on a form that is shown again which files it has lost: a browser sends a file, and takes none back."""
        lost = [name for name in form.fields if form.is_bound and form.add_prefix(name) in self.request.FILES]
        for name in lost:
            if not form.has_error(name):
                form.add_error(name, _("Choose the file again: it was not kept."))

    def carried_note(self, form: forms.BaseForm) -> str:
        """Return the note that was typed beside the button, if the form has no place for it."""
        return "" if "note" in form.fields and not writes_the_row(form) else self.note[:NOTE_LENGTH]

    # The move

    def make(self, form: forms.BaseForm) -> Exception | None:
        """Move the row and log it, both or neither. Say that it is done, or return why it is not."""
        names = {"row": self.label, "from": self.bound.label_of(self.source), "to": self.bound.label_of(self.target)}
        try:
            with transaction.atomic(using=router.db_for_write(type(self.instance), instance=self.instance)):
                arguments = self._arguments(form)
                self.states.transition_to(self.target, expected=self.expected, user=self.request.user, **arguments)
                if isinstance(form, forms.BaseModelForm):
                    form._save_m2m()  # type: ignore[attr-defined]
                log = _("Moved from %(from)s to %(to)s.") % names
                self.model_admin.log_change(self.request, self.instance, log)
        except (StateMachineError, ValidationError) as error:
            return error
        self.say(_("“%(row)s” was moved from %(from)s to %(to)s.") % names, messages.SUCCESS)
        return None

    def _arguments(self, form: forms.BaseForm) -> dict[str, Any]:
        arguments = self.model_admin.get_transition_arguments(
            self.request, self.instance, self.bound.face, self.target, form
        )
        if note := self.carried_note(form):
            arguments["metadata"] = {"note": note, **arguments.get("metadata", {})}
        # A file is stored before the move is judged: better none for a move that is refused.
        if arguments.get("update") and (blockers := self.states.blockers(self.target, self.request.user)):
            targets = list(self.bound.graph.targets(self.source))
            raise TransitionBlocked(str(self.instance), self.source, self.target, targets, blockers)
        return arguments

    # What is said

    def say(self, text: str, level: int) -> None:
        self.model_admin.message_user(self.request, text, level)

    def say_not_moved(self, why: str, level: int = messages.ERROR) -> None:
        self.say(_("“%(row)s” was not moved: %(why)s") % {"row": self.label, "why": why}, level)

    def say_too_late(self, why: str) -> None:
        """Say who was faster; that it is done, if it was this person themselves who pressed twice."""
        if why:
            self.say_not_moved(why, messages.WARNING)
        else:
            names = {"row": self.label, "to": self.bound.label_of(self.target)}
            self.say(_("You have moved “%(row)s” to %(to)s already.") % names, messages.INFO)

    def why_too_late(self) -> str:
        """Return who was faster; nothing if it was this person themselves, whose last move is the one that is asked for."""
        last = self.states.history.first()
        if last is None:
            return _("it is not as you saw it any more. Look at it again.")
        actor = last.metadata.get("actor") if isinstance(last.metadata, dict) else None
        if last.to_status == self.target and self._is_own(actor):
            return ""
        names = {
            "who": who(actor) if actor else pgettext("state machine", "somebody else"),
            "to": self.bound.label_of(last.to_status),
            "time": in_words(since(last.transitioned_at)),
        }
        text = _(
            "%(who)s moved it to %(to)s %(time)s ago, after you had opened the page. Look at it again, and decide."
        )
        return text % names

    def _is_own(self, actor: Any) -> bool:
        own = described(self.request.user)
        return isinstance(actor, dict) and all(str(actor.get(name)) == str(own[name]) for name in ("model", "pk"))

    def no_such_move(self, source: str, target: str) -> str:
        names = {"from": self.bound.label_of(source), "to": self.bound.label_of(target)}
        return _("there is no move from %(from)s to %(to)s.") % names

    def reasons(self, error: Exception) -> list[str]:
        """Return in plain words what is against the move."""
        match error:
            case ConcurrentTransition():
                return [_("the database was busy with the same row. Try again.")]
            case TransitionBlocked(blockers=blockers):
                return [str(blocker) for blocker in blockers]
            case InvalidStateTransition():
                return [self.no_such_move(error.from_status, error.to_status)]
            case RowMissing():
                return [_("it has been deleted meanwhile.")]
            case ValidationError():
                return list(error.messages)
        return [str(error)]


class TransitionPages(MachineAdmin):
    """Makes the move of a button, after a page that asks where the transition wants one."""

    def get_urls(self) -> list[URLPattern]:
        return [self.row_path("move", self.transition_view), *super().get_urls()]

    def transition_view(self, request: HttpRequest, object_id: str, accessor: str) -> HttpResponse:
        """Move one row, after asking what the transition wants to know. By POST only."""
        bound, obj = self.row_to_move(request, object_id, accessor)
        back = HttpResponseRedirect(self.back_to_row(request, obj))
        move = TransitionRequest(self, request, bound, obj)
        if not (move.is_by_hand or move.is_overtaken):
            raise PermissionDenied
        if request.method != "POST":
            return self.refuse_method(request, obj)
        if move.target not in bound.graph:
            move.say_not_moved(_("there is no such state."))
            return back
        if move.is_stale:
            return self._too_late(move) or back
        if not move.is_declared:
            move.say_not_moved(move.no_such_move(move.source, move.target))
            return back
        filled_in = move.is_confirmed or not move.asks_first
        form = move.form(filled_in=filled_in)
        if not (filled_in and form.is_valid()):
            return self._ask(move, form)
        error = move.make(form)
        if error is None:
            return back
        # The row as it is now, without what the form wrote into the instance.
        return self._refused(move, error, self.get_object(request, unquote(object_id))) or back

    def _refused(self, move: TransitionRequest, error: Exception, row: Any) -> HttpResponse | None:
        """Show what was filled in again with the reason on it, or say it if there is nothing to show."""
        again = TransitionRequest(self, move.request, move.bound, row) if row is not None else None
        if again and isinstance(error, ConcurrentTransition) and error.status is not None:  # somebody else has moved it
            return self._too_late(again)
        if not (again and move.is_answered):
            lost = isinstance(error, ConcurrentTransition)
            move.say_not_moved(" ".join(move.reasons(error)), messages.WARNING if lost else messages.ERROR)
            return None
        return self._ask(again, again.refused_form(move.reasons(error)), is_refused=True)

    def _too_late(self, move: TransitionRequest) -> HttpResponse | None:
        """Let people who typed something decide anew about the row as it is now, if the move is still there."""
        why = move.why_too_late()
        if not (why and move.is_typed and move.is_declared and move.is_by_hand):
            move.say_too_late(why)
            return None
        move.expected = move.sequence
        return self._ask(move, move.refused_form([why]), is_refused=True)

    def _ask(self, move: TransitionRequest, form: Any, *, is_refused: bool = False) -> HttpResponse:
        bound, obj, confirm = move.bound, move.instance, move.transition.confirm
        move.ask_for_files_again(form)
        context = {
            "title": button_text(bound, move.transition),
            "subtitle": move.label,
            "object": obj,
            "row_name": move.label,
            "is_refused": is_refused,
            "question": "" if isinstance(confirm, bool) else str(confirm),
            "button": button_text(bound, move.transition) if move.transition.form else _("Yes, I’m sure"),
            "source": badge(bound, move.source, self.tones(bound)),
            "target": badge(bound, move.target, self.tones(bound)),
            "move": move,
            "note": move.carried_note(form),
            **self.form_context(form),
            "action": self.row_url("move", obj, bound.accessor),
            "back_url": self.back_to_row(move.request, obj),
        }
        return self.render_page(move.request, "move.html", context)
