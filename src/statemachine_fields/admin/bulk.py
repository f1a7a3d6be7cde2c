"""Moving many rows by hand: an action for each state, and a page that says what it would do before it does."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import ValidationError
from django.db import connections, models, transaction
from django.db.models import Count, Max
from django.http import HttpRequest, HttpResponse
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from statemachine_fields.admin.base import Action, MachineAdmin, read_number, reason_lines
from statemachine_fields.admin.display import badge, grouped, not_declared
from statemachine_fields.admin.transition import NoteForm, move_to
from statemachine_fields.db.batches import database_of
from statemachine_fields.db.clock import MICROSECOND, read_instant
from statemachine_fields.db.rows import all_rows
from statemachine_fields.exceptions import StateMachineError
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.forms import form_class, writes_the_row
from statemachine_fields.machine.graph import Transition

#: How many rows are asked one by one whether they can move, where that depends on the row.
ASKED = 1000
#: How many rows are moved and logged in one transaction.
TOGETHER = 500


@dataclass(slots=True)
class BulkPreview:
    """What a move of many rows would do."""

    total: int = 0
    can: int = 0
    #: Rows that are only asked when they are moved, because there are so many.
    unknown: int = 0
    #: How many cannot, by the reason.
    cannot: Counter[str] = field(default_factory=Counter)

    @property
    def reasons(self) -> list[tuple[str, int]]:
        return self.cannot.most_common()


@dataclass(slots=True)
class BulkOutcome:
    """What it did."""

    moved: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    #: Rows that were changed or deleted since they were seen.
    changed: int = 0
    #: What stopped it half way.
    errors: list[str] = field(default_factory=list)

    def all_refused(self) -> Counter[str]:
        """Return how many rows were not moved, by the reason."""
        changed = {_("Changed or deleted since you saw the list."): self.changed} if self.changed else {}
        return self.refused + Counter(changed)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a person was shown: rows that had changed before an instant, and how many there were."""

    before: dt.datetime | None
    total: int


class BulkRequest:
    """One request to move the rows that a person selected to one state."""

    def __init__(
        self,
        model_admin: MachineAdmin,
        request: HttpRequest,
        bound: Binding[Any],
        target: str,
        queryset: models.QuerySet[Any],
    ) -> None:
        self.model_admin = model_admin
        self.request = request
        self.bound = bound
        self.target = target
        self.model: type[models.Model] = queryset.model
        self.using = database_of(queryset)
        self.queryset = queryset.order_by().using(self.using)
        self.status = bound.names.status
        self.is_confirmed = "_confirm" in request.POST
        #: What the person was shown, if they have been.
        self.seen = read_seen(request) if self.is_confirmed else None
        self.form_class: type[forms.BaseForm] = NoteForm
        #: States that rows are moved from here, and those whose form has to be filled in for each row.
        self.sources: list[str] = []
        self.singly: list[str] = []
        #: How many rows are in each state, and when the last of them changed.
        self.numbers: dict[str, int] = {}
        self.seen_at: dt.datetime | None = None
        self._look()
        self._choose_sources()

    def _look(self) -> None:
        # By key, as the queryset may join and group in its own way.
        rows = self._unchanged(self._rows.filter(pk__in=self.queryset.values("pk")))
        counted = rows.values(self.status).annotate(number=Count("pk"), last=Max(self.bound.names.changed_at))
        order = {state: place for place, state in enumerate(self.bound.graph.states)}
        for found in sorted(counted, key=lambda found: order.get(found[self.status], len(order))):
            self.numbers[found[self.status]] = found["number"]
            self.seen_at = max(filter(None, [self.seen_at, found["last"]]), default=None)

    def _choose_sources(self) -> None:
        """Find the states to move rows from, and the form to ask for all of them: one that they share, and that is not
        about the fields of a single row."""
        graph = self.bound.graph
        allowed = [state for state in self.numbers if graph.allows(state, self.target) and self._from(state).button]
        wanted = {state: form_class(self._from(state)) for state in allowed}
        kinds = set(wanted.values())
        shared = kinds.pop() if len(kinds) == 1 else None
        if shared is not None and not writes_the_row(shared):
            self.form_class = shared
            self.sources = allowed
        else:
            self.sources = [state for state, form in wanted.items() if form is None]
            self.singly = [state for state, form in wanted.items() if form is not None]

    @property
    def _rows(self) -> models.QuerySet[Any]:
        return all_rows(self.model, self.using).order_by()

    def _unchanged(self, rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
        if self.seen is None or self.seen.before is None:
            return rows
        return rows.filter(**{f"{self.bound.names.changed_at}__lt": self.seen.before})

    def _from(self, state: str) -> Transition:
        return self.bound.graph.transition(state, self.target)

    @property
    def total(self) -> int:
        return sum(self.numbers.values())

    @property
    def is_dangerous(self) -> bool:
        """Whether the move ends badly for some of the rows."""
        return any(self._from(state).danger for state in self.sources)

    # What it would do

    def preview(self) -> BulkPreview:
        """Return how many rows can move, and why the others cannot. One query if that depends on the row, else none."""
        preview = BulkPreview(total=self.total)
        for state, number in self.numbers.items():
            if state not in self.sources:
                preview.cannot[self._why_not_from(state)] += number
        movable = sum(self.numbers[state] for state in self.sources)
        if self._depends_on_the_row():
            self._ask_rows(preview, movable)
        else:
            preview.can = movable
        return preview

    def _depends_on_the_row(self) -> bool:
        guarded = any(targets is None or self.target in targets for targets in self.bound.guards.values())
        return (
            guarded
            or self.model_admin.asks_for_each_row()
            or self.bound.judge.is_permitted_by_row(self.sources, self.target, self.request.user)
        )

    def _ask_rows(self, preview: BulkPreview, movable: int) -> None:
        chosen = {"pk__in": self.queryset.values("pk"), f"{self.status}__in": self.sources}
        asked = 0
        for row in self._rows.filter(**chosen).order_by("pk")[:ASKED]:
            asked += 1
            states = getattr(row, self.bound.accessor)
            reasons = [str(blocker) for blocker in states.blockers(self.target, self.request.user)]
            if not self.model_admin.has_move_permission(self.request, row):
                reasons = [self._not_allowed]
            if reasons:
                preview.cannot[" ".join(reasons)] += 1
            else:
                preview.can += 1
        preview.unknown = max(movable - asked, 0)

    # Doing it

    def run(self, form: forms.BaseForm) -> BulkOutcome:
        """Move and log the rows that have not changed since they were seen, a transaction for every few hundred."""
        outcome = BulkOutcome()
        arguments = self.model_admin.get_transition_arguments(self.request, None, self.bound.face, self.target, form)
        keys = list(dict.fromkeys(self.queryset.values_list("pk", flat=True)))
        if self.seen is not None:
            outcome.changed = max(self.seen.total - len(keys), 0)  # gone, or no longer in the list
        for start in range(0, len(keys), TOGETHER):
            try:
                self._move(keys[start : start + TOGETHER], arguments, outcome)
            except (StateMachineError, ValidationError) as error:
                outcome.errors = list(error.messages) if isinstance(error, ValidationError) else [str(error)]
                break
        return outcome

    def _move(self, keys: list[Any], arguments: dict[str, Any], outcome: BulkOutcome) -> None:
        features = connections[self.using].features
        with transaction.atomic(using=self.using):
            rows = self._unchanged(self._rows.filter(pk__in=keys)).order_by("pk")
            locked = rows.select_for_update(no_key=features.has_select_for_no_key_update)
            found = {row.pk: row for row in locked}  # they stay so until the end, and are what is logged
            going = [key for key, row in found.items() if self._may_go(row, outcome)]
            result = self.bound.face.bulk_transition(
                self._rows.filter(pk__in=going), self.target, user=self.request.user, **arguments
            )
            refused = {refusal.pk for refusal in result.refusals}
            self._log([found[key] for key in going if key not in refused])
        outcome.moved += result.moved
        outcome.changed += len(keys) - len(found)
        for refusal in result.refusals:
            is_legal = self.bound.graph.allows(refusal.status, self.target)
            outcome.refused[refusal.reason if is_legal else self._no_move_from(refusal.status)] += 1

    def _may_go(self, row: Any, outcome: BulkOutcome) -> bool:
        """Say whether a row is moved from here, or why not."""
        state = getattr(row, self.status)
        if state in self.singly or not self._from(state).button:
            outcome.refused[self._why_not_from(state)] += 1
        elif not self.model_admin.has_move_permission(self.request, row):
            outcome.refused[self._not_allowed] += 1
        else:
            return True
        return False

    def _log(self, rows: list[Any]) -> None:
        message = _("Moved to %(to)s.") % {"to": self.bound.label_of(self.target)}
        if rows:
            user: Any = self.request.user
            LogEntry.objects.log_actions(user.pk, rows, CHANGE, message)

    # Why not

    def _why_not_from(self, state: str) -> str:
        """Say why no row of a state is moved from here."""
        if not self.bound.graph.allows(state, self.target):
            return self._no_move_from(state)
        if self._from(state).button:
            return _("The move asks for details of each row. Make it on the row's own page.")
        return _("The system makes this move, not people.")

    def _no_move_from(self, state: str) -> str:
        if state not in self.bound.graph:
            return not_declared(self.bound, state)
        return self.bound.judge.no_transition(state, self.target).message

    @property
    def _not_allowed(self) -> str:
        return _("You do not have the permission for this move.")


def read_seen(request: HttpRequest) -> Seen:
    """Read what the page said that the person has confirmed. Nonsense is nothing."""
    try:
        at = parse_datetime(request.POST.get("_seen_at", ""))
        # Not "at or before": SQLite compares texts, and a whole second has several.
        before = None if at is None or not 1970 < at.year < 9000 else read_instant(at, "_seen_at") + MICROSECOND
    except ValueError:
        before = None
    return Seen(before, read_number(request.POST.get("_total", ""), 0))


class BulkTransitions(MachineAdmin):
    """Adds "Move to …" for each state that a move by hand leads to."""

    def machine_actions(self, bound: Binding[Any]) -> list[Action]:
        edges = [(source, target) for source in bound.graph.edges for target in bound.graph.targets(source)]
        targets = {target for source, target in edges if bound.graph.transition(source, target).button}
        ours = [self._mover(bound, state) for state in bound.graph.states if state in targets]
        return [*ours, *super().machine_actions(bound)]

    def _mover(self, bound: Binding[Any], state: str) -> Action:
        def run(_admin: Any, request: HttpRequest, queryset: models.QuerySet[Any]) -> HttpResponse | None:
            return self._move_rows(BulkRequest(self, request, bound, state, queryset))

        return self.machine_action(bound, f"move_to_{state}", lambda: move_to(bound, state), run)

    def _move_rows(self, move: BulkRequest) -> HttpResponse | None:
        form = move.form_class(move.request.POST, move.request.FILES) if move.is_confirmed else move.form_class()
        if not move.is_confirmed or not form.is_valid() or move.total > self.bulk_limit:
            return self._ask_for_many(move, form)
        outcome = move.run(form)
        if not outcome.moved and form.has_changed():  # what was typed is lost otherwise
            form.add_error(None, [*reason_lines(outcome.all_refused()), *outcome.errors])
            return self._ask_for_many(move, form, is_refused=True)
        self._report(move, outcome)
        return None

    def _ask_for_many(self, move: BulkRequest, form: Any, *, is_refused: bool = False) -> HttpResponse:
        bound, state, request = move.bound, move.target, move.request
        across = request.POST.get("select_across") == "1"
        selected = request.POST.getlist(ACTION_CHECKBOX_NAME)
        context = {
            "title": move_to(bound, state),
            "subtitle": None,
            "target": badge(bound, state, self.tones(bound)),
            "is_dangerous": move.is_dangerous,
            "is_refused": is_refused,
            "preview": None if move.total > self.bulk_limit else move.preview(),
            "seen_total": move.seen.total if move.seen else move.total,
            "total": grouped(move.total),
            "limit": grouped(self.bulk_limit),
            "seen_at": request.POST.get("_seen_at") or (move.seen_at.isoformat() if move.seen_at else ""),
            **self.form_context(form),
            "action_name": f"{bound.accessor}_move_to_{state}",
            "checkbox": ACTION_CHECKBOX_NAME,
            "selected": selected[:1] if across else selected,
            "across": across,
            "back_url": request.get_full_path(),
        }
        return self.render_page(request, "move_many.html", context)

    def _report(self, move: BulkRequest, outcome: BulkOutcome) -> None:
        if moved := outcome.moved:
            text = ngettext("%(number)s row was moved to %(state)s.", "%(number)s rows were moved to %(state)s.", moved)
            names = {"number": grouped(moved), "state": move.bound.label_of(move.target)}
            self.message_user(move.request, text % names, messages.SUCCESS)
        if refused := outcome.all_refused():
            number = refused.total()
            text = ngettext("%(number)s row was not moved: %(why)s", "%(number)s rows were not moved: %(why)s", number)
            self.say_reasons(move.request, text, refused)
        if outcome.errors:
            text = _("The move stopped there, and can be repeated: %(why)s") % {"why": " ".join(outcome.errors)}
            self.message_user(move.request, text, messages.ERROR)
