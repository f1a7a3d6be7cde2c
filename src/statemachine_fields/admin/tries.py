"""Tries that did not move their row: on the page of the row, in its story, and read-only pages of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db import models
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, pgettext_lazy

from statemachine_fields.admin.display import as_text, badge, in_words, local, one_line, time_tag
from statemachine_fields.admin.records import StateTransitionAdmin
from statemachine_fields.machine.binding import Binding

#: The colour of what came of a try.
TONES = {"waited": "gray", "failed": "amber", "parked": "red", "crashed": "pink"}
#: How many tries a page of the story reads at most, the newest first.
MOST_IN_STORY = 200


@dataclass(frozen=True, slots=True)
class TryEntry:
    """One try: when, in which state, by whom, how long it took, what came of it and why."""

    number: int
    when: str
    state: str
    outcome: str
    tone: str
    took: str
    worker: str
    error: str
    traceback: str


def tries_of(bound: Binding[Any], instance: models.Model, tones: Mapping[str, str], length: int) -> list[TryEntry]:
    """Return the newest tries of a row, if they are kept."""
    if not bound.records_attempts:
        return []
    return [_entry(bound, each, tones) for each in getattr(instance, bound.accessor).attempts[:length]]


def tries_after(
    bound: Binding[Any], instance: models.Model, tones: Mapping[str, str], moves: Iterable[int]
) -> dict[int, tuple[TryEntry, ...]]:
    """Return tries by the move that they came after, which is how the story has them: one query for a page."""
    if not bound.records_attempts:
        return {}
    found: dict[int, list[TryEntry]] = {}
    kept = getattr(instance, bound.accessor).attempts.filter(sequence__in=list(moves))
    for each in kept[:MOST_IN_STORY]:
        found.setdefault(each.sequence, []).append(_entry(bound, each, tones))
    return {number: tuple(entries) for number, entries in found.items()}


def _entry(bound: Binding[Any], attempt: Any, tones: Mapping[str, str]) -> TryEntry:
    return TryEntry(
        number=attempt.number,
        when=time_tag(attempt.ended_at),
        state=badge(bound, attempt.state, tones),
        outcome=str(attempt.get_outcome_display()),
        tone=TONES.get(attempt.outcome, "gray"),
        took="" if attempt.seconds is None else in_words(timedelta(seconds=attempt.seconds)),
        worker=as_text(attempt.worker),
        error=as_text(attempt.error),
        traceback=as_text(attempt.traceback),
    )


class StateAttemptAdmin(StateTransitionAdmin):
    """Show the tries of a machine to those who have the `view` permission of their model, and let nobody change them."""

    list_display = ["when", "row", "number", "state", "outcome", "took", "worker", "error_line"]
    list_filter = ["outcome", "state"]
    counter = "number"
    search_help_text = _("Finds the tries of one row by its complete primary key.")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        shown = [
            "row_in_full",
            "number",
            "sequence",
            "state",
            "outcome",
            "worker",
            "claimed_at",
            "started_at",
            "ended_at",
        ]
        return self.fields or [*shown, "took", "pretty_error", "pretty_traceback", "id"]

    def count_line(self, number: int) -> str:
        return ngettext("%(number)d try", "%(number)d tries", number) % {"number": number}

    @admin.display(description=pgettext_lazy("state machine", "when"))
    def when(self, record: Any) -> str:
        time = local(record.ended_at)
        return format_html('<time datetime="{}">{}</time>', time.isoformat(), f"{time:%Y-%m-%d %H:%M:%S}")

    @admin.display(description=pgettext_lazy("try", "took"))
    def took(self, record: Any) -> str:
        if record.seconds is None:
            return self.get_empty_value_display()
        return in_words(timedelta(seconds=record.seconds))

    @admin.display(description=pgettext_lazy("try", "error"))
    def error_line(self, record: Any) -> str:
        return one_line(record.error, 100)

    @admin.display(description=pgettext_lazy("try", "error"))
    def pretty_error(self, record: Any) -> str:
        return format_html("<pre>{}</pre>", record.error) if record.error else self.get_empty_value_display()

    @admin.display(description=pgettext_lazy("try", "traceback"))
    def pretty_traceback(self, record: Any) -> str:
        return format_html("<pre>{}</pre>", record.traceback) if record.traceback else self.get_empty_value_display()
