"""Moving many rows by hand: an action for each state, and a page that says what it would do before it does."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import ValidationError
from django.db import connections, models, transaction
from django.db.models import Count, Max
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from statemachine_fields.admin.badges import not_declared
from statemachine_fields.admin.moves import NoteForm
from statemachine_fields.db.batches import database_of
from statemachine_fields.db.clock import read_instant
from statemachine_fields.db.rows import all_rows
from statemachine_fields.exceptions import StateMachineError
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.forms import form_class, writes_the_row

if TYPE_CHECKING:
    from django.http import HttpRequest

    from statemachine_fields.admin.pages import RowPages

#: How many rows are asked one by one whether they can move, where that depends on the row.
ASKED = 1000
#: How many rows are moved and logged in one transaction.
TOGETHER = 500

MICROSECOND = dt.timedelta(microseconds=1)


@dataclass(slots=True)
class Preview:
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
class Outcome:
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


class BulkMove:
    """The move of the rows that a person selected to one state."""

    def __init__(
        self,
        model_admin: RowPages,
        request: HttpRequest,
        bound: Binding[Any],
        target: str,
        queryset: models.QuerySet[Any],
        seen: Seen | None = None,
    ) -> None:
        self.model_admin = model_admin
        self.request = request
        self.bound = bound
        self.target = target
        self.model: type[models.Model] = queryset.model
        self.using = database_of(queryset)
        self.queryset = queryset.order_by()
        self.status = bound.names.status
        #: What the person was shown, if they have been.
        self.seen = seen
        self.form_class: type[forms.BaseForm] = NoteForm
        #: States that rows are moved from here, and those whose form has to be filled in for each row.
        self.sources: list[str] = []
        self.singly: list[str] = []
        #: How many rows are in each state, and when the last of them changed.
        self.numbers: dict[str, int] = {}
        self.seen_at: dt.datetime | None = None
        self._look()

    def _look(self) -> None:
        changed_at = self.bound.names.changed_at
        # By key, as the queryset may join and group in its own way.
        rows = self._rows.filter(pk__in=self.queryset.using(self.using).values("pk"))
        counted = self._unchanged(rows).values(self.status).annotate(number=Count("pk"), last=Max(changed_at))
        order = list(self.bound.graph.states)
        for found in sorted(counted, key=lambda found: _place(found[self.status], order)):
            self.numbers[found[self.status]] = found["number"]
            self.seen_at = max(filter(None, [self.seen_at, found["last"]]), default=None)
        self._choose_sources()

    @property
    def _rows(self) -> models.QuerySet[Any]:
        return all_rows(self.model, self.using).order_by()

    @property
    def total(self) -> int:
        return sum(self.numbers.values())

    def preview(self) -> Preview:
        """Return how many rows can move, and why the others cannot. One query if that depends on the row, else none."""
        preview = Preview(total=self.total)
        for state, number in self.numbers.items():
            if state not in self.sources:
                preview.cannot[self._why_not_from(state)] += number
        movable = sum(self.numbers[state] for state in self.sources)
        if self._depends_on_the_row():
            self._ask_rows(preview, movable)
        else:
            preview.can = movable
        return preview

    @property
    def is_dangerous(self) -> bool:
        """Whether the move ends badly for some of the rows."""
        return any(self.bound.graph.transition(state, self.target).danger for state in self.sources)

    def _is_by_hand(self, state: str) -> bool:
        return self.bound.graph.transition(state, self.target).button

    def _why_not_from(self, state: str) -> str:
        """Say why no row of a state is moved from here."""
        if not self.bound.graph.allows(state, self.target):
            return self._no_move_from(state)
        return self._asks_for_details if self._is_by_hand(state) else self._is_the_systems

    def _no_move_from(self, state: str) -> str:
        if state not in self.bound.graph:
            return not_declared(self.bound, state)
        names = {"from": self.bound.label_of(state), "to": self.bound.label_of(self.target)}
        return _("There is no move from %(from)s to %(to)s.") % names

    def _choose_sources(self) -> None:
        """Find the states to move rows from, and the form to ask for all of them: one that they share, and that is not
        about the fields of a single row."""
        allowed = [
            state for state in self.numbers if self.bound.graph.allows(state, self.target) and self._is_by_hand(state)
        ]
        wanted = {state: form_class(self.bound.graph.transition(state, self.target)) for state in allowed}
        kinds = set(wanted.values())
        shared = kinds.pop() if len(kinds) == 1 else None
        if shared is not None and not writes_the_row(shared):
            self.form_class = shared
            self.sources = allowed
        else:
            self.sources = [state for state, form in wanted.items() if form is None]
            self.singly = [state for state, form in wanted.items() if form is not None]

    def _depends_on_the_row(self) -> bool:
        asked = [self.bound.graph.transition(state, self.target).permission for state in self.sources]
        user: Any = self.request.user
        guarded = any(targets is None or self.target in targets for targets in self.bound.guards.values())
        return (
            guarded
            or self.model_admin.asks_for_each_row()
            or any(callable(each) or not user.has_perm(each) for each in asked if each is not None)
        )

    def _ask_rows(self, preview: Preview, movable: int) -> None:
        chosen = {"pk__in": self.queryset.using(self.using).values("pk"), f"{self.status}__in": self.sources}
        rows = self._rows.filter(**chosen).order_by("pk")[:ASKED]
        asked = 0
        for row in rows:
            asked += 1
            current = getattr(row, self.status)
            reasons = [str(each) for each in self.bound.judge.blockers(row, current, self.target, self.request.user)]
            if not self.model_admin.has_move_permission(self.request, row):
                reasons = [self._not_allowed]
            if reasons:
                preview.cannot[" ".join(reasons)] += 1
            else:
                preview.can += 1
        preview.unknown = max(movable - asked, 0)

    def run(self, form: forms.BaseForm) -> Outcome:
        """Move and log the rows that have not changed since they were seen, a transaction for every few hundred."""
        outcome = Outcome()
        arguments = self.model_admin.get_transition_arguments(self.request, None, self.bound.face, self.target, form)
        keys = list(dict.fromkeys(self.queryset.using(self.using).values_list("pk", flat=True)))
        if self.seen is not None:
            outcome.changed = max(self.seen.total - len(keys), 0)  # gone, or no longer in the list
        for start in range(0, len(keys), TOGETHER):
            part = keys[start : start + TOGETHER]
            try:
                self._move(part, arguments, outcome)
            except (StateMachineError, ValidationError) as error:
                outcome.errors = list(error.messages) if isinstance(error, ValidationError) else [str(error)]
                break
        return outcome

    def _move(self, keys: list[Any], arguments: dict[str, Any], outcome: Outcome) -> None:
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

    def _may_go(self, row: Any, outcome: Outcome) -> bool:
        """Say whether a row is moved from here, or why not."""
        state = getattr(row, self.status)
        if state in self.singly or not self._is_by_hand(state):
            outcome.refused[self._why_not_from(state)] += 1
        elif not self.model_admin.has_move_permission(self.request, row):
            outcome.refused[self._not_allowed] += 1
        else:
            return True
        return False

    @property
    def _asks_for_details(self) -> str:
        return _("The move asks for details of each row. Make it on the row's own page.")

    @property
    def _is_the_systems(self) -> str:
        return _("The system makes this move, not people.")

    @property
    def _not_allowed(self) -> str:
        return _("You do not have the permission for this move.")

    def _unchanged(self, rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
        if self.seen is None or self.seen.before is None:
            return rows
        return rows.filter(**{f"{self.bound.names.changed_at}__lt": self.seen.before})

    def _log(self, rows: list[Any]) -> None:
        message = _("Moved to %(to)s.") % {"to": self.bound.label_of(self.target)}
        if rows:
            user: Any = self.request.user
            LogEntry.objects.log_actions(user.pk, rows, CHANGE, message)


def _place(state: str, order: list[str]) -> int:
    """Return where a state was declared; after all others if it is not."""
    return order.index(state) if state in order else len(order)


def read_seen(request: HttpRequest) -> Seen:
    """Read what the page said that the person has confirmed. Nonsense is nothing."""
    total = request.POST.get("_total", "")
    try:
        at = parse_datetime(request.POST.get("_seen_at", ""))
        # Not "at or before": SQLite compares texts, and a whole second has several.
        before = None if at is None or not 1970 < at.year < 9000 else read_instant(at, "_seen_at") + MICROSECOND
    except ValueError:
        before = None
    return Seen(before, int(total) if total.isascii() and total.isdigit() and len(total) < 10 else 0)
