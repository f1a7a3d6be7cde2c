"""Moving one row by hand: which buttons there are, what is asked first, and what is said afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import models, router, transaction
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from statemachine_fields.admin.badges import not_declared
from statemachine_fields.admin.wording import in_words, since, who
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

if TYPE_CHECKING:
    from django.http import HttpRequest

    from statemachine_fields.admin.pages import RowPages


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


@dataclass(frozen=True, slots=True)
class Choice:
    """A button: a move out of the row's state, what it is called, and why it cannot be made now."""

    state: str
    label: str
    reasons: tuple[str, ...]
    is_dangerous: bool


def choices_for(bound: Binding[Any], instance: models.Model, user: Any) -> list[Choice]:
    """Return a button for each move out of the row's state that is made by hand, in the order declared, the dangerous ones
    after the others."""
    states = getattr(instance, bound.accessor)
    choices = []
    for target in bound.graph.targets(states.current):
        transition = bound.graph.transition(states.current, target)
        if not transition.button:
            continue
        blockers = states.blockers(target, user)
        if writes_the_row(form_class(transition)):  # guards are asked once it is filled in
            blockers = [blocker for blocker in blockers if blocker.code == "permission"]
        reasons = tuple(str(each) for each in blockers)
        choices.append(Choice(target, button_text(bound, transition), reasons, transition.danger))
    return sorted(choices, key=lambda choice: choice.is_dangerous)


def why_no_button(bound: Binding[Any], state: str) -> str:
    """Say why there is nothing to press for a row in a state."""
    if bound.graph.is_terminal(state):
        return pgettext("state machine", "This is an end: no move leads out of it.")
    return _("No move out of this state is made by hand.")


def button_text(bound: Binding[Any], transition: Transition) -> str:
    return str(transition.label) or _("Move to %(state)s") % {"state": bound.label_of(transition.to)}


def what_to_do_with_a_stray(bound: Binding[Any], state: str) -> str:
    """Say what is wrong with a row whose state is not declared, and the ways out."""
    advice = _(
        "No move leads out of it, and no worker takes the row. Declare the state again, or let a program move the row with "
        "force_transition_to()."
    )
    return f"{not_declared(bound, state)} {advice}"


class RowMove:
    """One request to move one row: what the person saw, what they want, and what came of it."""

    def __init__(
        self,
        model_admin: RowPages,
        request: HttpRequest,
        bound: Binding[Any],
        instance: models.Model,
    ) -> None:
        self.model_admin = model_admin
        self.request = request
        self.bound = bound
        self.instance = instance
        self.states = getattr(instance, bound.accessor)
        #: What the row is called. A form of its fields changes the instance, also if it is refused.
        self.label = str(instance)
        self.source: str = self.states.current
        # With an underscore, so that fields of a transition's own form may have any name.
        said = request.POST if request.method == "POST" else request.GET
        self.target = said.get("_to", "")
        self.transition = bound.graph.transition(self.source, self.target)
        self.expected = read_number(said.get("_expected", ""))
        self.note = said.get("_note", "")
        self.form_class = form_class(self.transition) or NoteForm

    @property
    def is_stale(self) -> bool:
        """Whether the row has moved since the person saw it, so that they decided about something else."""
        sequence: int = getattr(self.instance, self.bound.names.sequence)
        return self.expected != sequence

    @property
    def is_overtaken(self) -> bool:
        """Whether what the person saw is a state that the row has left."""
        sequence: int = getattr(self.instance, self.bound.names.sequence)
        return 0 <= self.expected < sequence

    @property
    def is_possible(self) -> bool:
        return self.bound.graph.allows(self.source, self.target)

    @property
    def is_by_hand(self) -> bool:
        """Whether people make this move: a move of the system's own has no button, and nobody else's request does."""
        return self.transition.button

    @property
    def asks_first(self) -> bool:
        return bool(self.transition.confirm) or self.transition.form is not None

    @property
    def question(self) -> str:
        confirm = self.transition.confirm
        return "" if isinstance(confirm, bool) else str(confirm)

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

    @property
    def is_answered(self) -> bool:
        """Whether people were asked something, or typed a note of themselves: then that is where they are told."""
        return "_confirm" in self.request.POST or bool(self.note)

    @property
    def is_typed(self) -> bool:
        """Whether something would be lost if it were not shown again. A mere "yes" to a row that is another by now is not."""
        return bool(self.note) or ("_confirm" in self.request.POST and self.form(filled_in=True).has_changed())

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

    def make(self, form: forms.BaseForm) -> Exception | None:
        """Move the row and log it, both or neither. Say that it is done, or return why it is not."""
        try:
            with transaction.atomic(using=router.db_for_write(type(self.instance), instance=self.instance)):
                arguments = self._arguments(form)
                self.states.transition_to(self.target, expected=self.expected, user=self.request.user, **arguments)
                if isinstance(form, forms.BaseModelForm):
                    form._save_m2m()  # type: ignore[attr-defined]
                self.model_admin.log_change(
                    self.request, self.instance, moved_message(self.bound, self.source, self.target)
                )
        except (StateMachineError, ValidationError) as error:
            return error
        names = {"row": self.label, "from": self.bound.label_of(self.source), "to": self.bound.label_of(self.target)}
        self._say(_("“%(row)s” was moved from %(from)s to %(to)s.") % names, messages.SUCCESS)
        return None

    def _arguments(self, form: forms.BaseForm) -> dict[str, Any]:
        arguments = self.model_admin.get_transition_arguments(
            self.request, self.instance, self.bound.face, self.target, form
        )
        if note := self.carried_note(form):
            arguments["metadata"] = {"note": note, **arguments.get("metadata", {})}
        if arguments.get(
            "update"
        ):  # a file is stored before the move is judged: better none for a move that is refused
            blockers = self.states.blockers(self.target, self.request.user)
            if blockers:
                targets = list(self.bound.graph.targets(self.source))
                raise TransitionBlocked(str(self.instance), self.source, self.target, targets, blockers)
        return arguments

    def say_why_not(self, error: Exception) -> None:
        """Say in plain words why the row was not moved."""
        lost = isinstance(error, ConcurrentTransition)
        why = " ".join(self.reasons(error))
        self._say(_not_moved(self.label, why), messages.WARNING if lost else messages.ERROR)

    def say_too_late(self) -> None:
        """Say who was faster; that it is done, if it was this person themselves who pressed twice."""
        last = self.states.history.first()
        if self._is_done(last):
            names = {"row": self.label, "to": self.bound.label_of(self.target)}
            self._say(_("You have moved “%(row)s” to %(to)s already.") % names, messages.INFO)
        else:
            self._say(_not_moved(self.label, self._who_was_faster(last)), messages.WARNING)

    def why_too_late(self) -> str:
        """Return who was faster; nothing if it was this person themselves."""
        last = self.states.history.first()
        return "" if self._is_done(last) else self._who_was_faster(last)

    def _is_done(self, last: Any) -> bool:
        """Say whether the last move of the row is the one that is asked for, made by the same person."""
        return last is not None and last.to_status == self.target and self._is_own(_actor(last))

    def _is_own(self, actor: Any) -> bool:
        own = described(self.request.user)
        return isinstance(actor, dict) and all(str(actor.get(name)) == str(own[name]) for name in ("model", "pk"))

    def say_no_such_state(self) -> None:
        self._say(_not_moved(self.label, _("there is no such state.")), messages.ERROR)

    def say_no_such_move(self) -> None:
        self._say(_not_moved(self.label, self._no_such_move(self.source, self.target)), messages.ERROR)

    def _no_such_move(self, source: str, target: str) -> str:
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
                return [self._no_such_move(error.from_status, error.to_status)]
            case RowMissing():
                return [_("it has been deleted meanwhile.")]
            case ValidationError():
                return list(error.messages)
        return [str(error)]

    def _who_was_faster(self, last: Any) -> str:
        if last is None:
            return _("it is not as you saw it any more. Look at it again.")
        facts = {
            "who": who(actor) if (actor := _actor(last)) else pgettext("state machine", "somebody else"),
            "to": self.bound.label_of(last.to_status),
            "time": in_words(since(last.transitioned_at)),
        }
        return (
            _("%(who)s moved it to %(to)s %(time)s ago, after you had opened the page. Look at it again, and decide.")
            % facts
        )

    def _say(self, text: str, level: int) -> None:
        self.model_admin.message_user(self.request, text, level)


def is_too_late(error: Exception) -> bool:
    """Say whether a move was refused because somebody else has moved the row."""
    return isinstance(error, ConcurrentTransition) and error.status is not None


def _not_moved(label: str, why: str) -> str:
    return _("“%(row)s” was not moved: %(why)s") % {"row": label, "why": why}


def moved_message(bound: Binding[Any], source: str, target: str) -> str:
    """Return what the admin's log says of a move."""
    return _("Moved from %(from)s to %(to)s.") % {"from": bound.label_of(source), "to": bound.label_of(target)}


def _actor(record: Any) -> Any:
    return record.metadata.get("actor") if isinstance(record.metadata, dict) else None


def read_number(text: str) -> int:
    """Return a number that a form says it has seen; one that no row has if it says nonsense."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else -1
