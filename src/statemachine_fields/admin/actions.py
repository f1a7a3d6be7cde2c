"""The actions of the list: move many rows, and wind the clocks of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, AdminForm
from django.db import models, router, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.formats import number_format
from django.utils.functional import lazy
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from statemachine_fields.admin.badges import badge
from statemachine_fields.admin.bulk import BulkMove, Outcome, read_seen
from statemachine_fields.admin.clocks import VERBS, Verb, why_left
from statemachine_fields.admin.pages import RowPages
from statemachine_fields.exceptions import StateMachineError
from statemachine_fields.machine.binding import Binding

Action = Callable[[Any, HttpRequest, models.QuerySet[Any]], HttpResponse | None]


class MachineActions(RowPages):
    """Adds "Move to …" for each state that a move leads to, and what can be done with clocks."""

    #: How many rows one action moves at most, so that no request lasts for minutes.
    bulk_limit = 10_000

    def __init__(self, model: type[models.Model], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        if self.actions is not None:  # which is how a model admin says that it wants none
            ours = [action for bound in self.machines.values() for action in self._actions_of(bound)]
            self.actions = [*self.actions, *ours]

    def _actions_of(self, bound: Binding[Any]) -> list[Action]:
        edges = [(source, target) for source in bound.graph.edges for target in bound.graph.targets(source)]
        targets = {target for source, target in edges if bound.graph.transition(source, target).button}
        moves = [self._mover(bound, state) for state in bound.graph.states if state in targets]
        return moves + ([self._winder(bound, verb) for verb in VERBS.values()] if bound.is_timed else [])

    def _action(self, bound: Binding[Any], name: str, text: Callable[[], str], run: Action) -> Action:
        def describe() -> str:  # when it is shown, in the language of the reader
            prefix = f"{capfirst(self.name_of(bound))}: " if len(self.machines) > 1 else ""
            return f"{prefix}{text()}".replace("%", "%%")  # Django formats it once more

        run.__name__ = f"{bound.accessor}_{name}"
        described: Action = admin.action(permissions=["move"], description=lazy(describe, str)())(run)
        return described

    # Moves

    def _mover(self, bound: Binding[Any], state: str) -> Action:
        def text() -> str:
            return _("Move to %(state)s") % {"state": bound.label_of(state)}

        def run(_admin: Any, request: HttpRequest, queryset: models.QuerySet[Any]) -> HttpResponse | None:
            return self._move_rows(request, bound, state, queryset)

        return self._action(bound, f"move_to_{state}", text, run)

    def _move_rows(
        self, request: HttpRequest, bound: Binding[Any], state: str, queryset: models.QuerySet[Any]
    ) -> HttpResponse | None:
        filled_in = "_confirm" in request.POST
        move = BulkMove(self, request, bound, state, queryset, read_seen(request) if filled_in else None)
        form = move.form_class(request.POST, request.FILES) if filled_in else move.form_class()
        if not filled_in or not form.is_valid() or move.total > self.bulk_limit:
            return self._ask_for_many(request, move, form)
        outcome = move.run(form)
        if not outcome.moved and form.has_changed():  # what was typed is lost otherwise
            form.add_error(None, self._why_none_moved(outcome))
            return self._ask_for_many(request, move, form, is_refused=True)
        self._report(request, outcome, bound.label_of(state))
        return None

    def _why_none_moved(self, outcome: Outcome) -> list[str]:
        refused = outcome.all_refused()
        said = [f"{number_format(number, force_grouping=True)} × {why}" for why, number in refused.most_common()]
        return [*said, *outcome.errors]

    def _ask_for_many(
        self, request: HttpRequest, move: BulkMove, form: Any, *, is_refused: bool = False
    ) -> HttpResponse:
        bound, state = move.bound, move.target
        is_too_much = move.total > self.bulk_limit
        across = request.POST.get("select_across") == "1"
        selected = request.POST.getlist(ACTION_CHECKBOX_NAME)
        context = {
            "title": _("Move to %(state)s") % {"state": bound.label_of(state)},
            "subtitle": None,
            "target": badge(bound, state, self.tones(bound)),
            "is_dangerous": move.is_dangerous,
            "is_refused": is_refused,
            "preview": None if is_too_much else move.preview(),
            "seen_total": move.seen.total if move.seen else move.total,
            "total": number_format(move.total, force_grouping=True),
            "limit": number_format(self.bulk_limit, force_grouping=True),
            "seen_at": request.POST.get("_seen_at") or (move.seen_at.isoformat() if move.seen_at else ""),
            "adminform": AdminForm(form, [(None, {"fields": list(form.fields)})], {}, model_admin=self),
            "form": form,
            "media": self.media + form.media,
            "action_name": f"{bound.accessor}_move_to_{state}",
            "checkbox": ACTION_CHECKBOX_NAME,
            "selected": selected[:1] if across else selected,
            "across": across,
            "back_url": request.get_full_path(),
        }
        return self.render_page(request, "move_many.html", context)

    def _report(self, request: HttpRequest, outcome: Outcome, state: str) -> None:
        if outcome.moved:
            text = ngettext(
                "%(number)s row was moved to %(state)s.", "%(number)s rows were moved to %(state)s.", outcome.moved
            )
            names = {"number": number_format(outcome.moved, force_grouping=True), "state": state}
            self.message_user(request, text % names, messages.SUCCESS)
        if refused := outcome.all_refused():
            number = refused.total()
            text = ngettext("%(number)s row was not moved: %(why)s", "%(number)s rows were not moved: %(why)s", number)
            self._say_reasons(request, text, refused)
        if outcome.errors:
            text = _("The move stopped there, and can be repeated: %(why)s") % {"why": " ".join(outcome.errors)}
            self.message_user(request, text, messages.ERROR)

    def _say_reasons(self, request: HttpRequest, text: str, reasons: Counter[str]) -> None:
        """Say for how many rows nothing was done and why, in one message: each reason with its number, if there are
        several."""
        found = [(number_format(number, force_grouping=True), why) for why, number in reasons.most_common()]
        why = found[0][1] if len(found) == 1 else " ".join(f"{number} × {why}" for number, why in found)
        number = number_format(reasons.total(), force_grouping=True)
        self.message_user(request, text % {"number": number, "why": why}, messages.WARNING)

    # Clocks

    def _winder(self, bound: Binding[Any], verb: Verb) -> Action:
        def run(_admin: Any, request: HttpRequest, queryset: models.QuerySet[Any]) -> HttpResponse | None:
            self._wind(request, bound, verb, queryset)
            return None

        return self._action(bound, verb.name, lambda: str(verb.label), run)

    def _wind(self, request: HttpRequest, bound: Binding[Any], verb: Verb, queryset: models.QuerySet[Any]) -> None:
        done, left = 0, Counter[str]()
        rows = list(queryset.order_by("pk")[: self.bulk_limit + 1])
        if len(rows) > self.bulk_limit:
            limit = number_format(self.bulk_limit, force_grouping=True)
            text = _("You have selected more than %(limit)s rows, which is too much at once. Nothing was done.")
            self.message_user(request, text % {"limit": limit}, messages.ERROR)
            return
        for row in rows:
            if not self.has_move_permission(request, row):
                left[_("You do not have the permission for it.")] += 1
                continue
            try:
                with transaction.atomic(using=router.db_for_write(type(row), instance=row)):
                    if verb.run(bound, getattr(row, bound.accessor)):
                        self.log_change(request, row, str(verb.label))
                        done += 1
                    else:
                        left[str(verb.nothing)] += 1
            except StateMachineError as error:
                left[why_left(error)] += 1
        if done:
            text = ngettext("%(verb)s: %(number)s row.", "%(verb)s: %(number)s rows.", done)
            names = {"verb": verb.label, "number": number_format(done, force_grouping=True)}
            self.message_user(request, text % names, messages.SUCCESS)
        if left:
            number = left.total()
            text = ngettext(
                "%(number)s row was left alone: %(why)s", "%(number)s rows were left alone: %(why)s", number
            )
            self._say_reasons(request, text, left)
