"""What happened to one row, as a timeline: read a page at a time, however long it is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import models
from django.http import HttpRequest

from statemachine_fields.admin.badges import badge
from statemachine_fields.admin.wording import as_json, as_text, in_words, since, time_tag, who
from statemachine_fields.machine.binding import Binding

#: The parameter of a page: the number of the move after the first one that it shows.
BEFORE = "before"


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a record: a word or a line, or JSON over several lines."""

    name: str
    value: str
    is_block: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One move: when, from where to where, by whom, with which facts, and how long the row then stayed."""

    number: int
    when: str
    source: str
    target: str
    stayed: str
    is_last: bool
    actor: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """One page of a row's history, the newest move first, and the queries of the pages around it."""

    entries: tuple[Entry, ...]
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

    @property
    def total(self) -> int:
        return max(self.latest - self.earlier, 0)

    def read(self, before: int | None = None) -> Story:
        """Return the moves with a smaller number than `before`, or the newest. One query, and one more where history may
        be of a row that had the key before."""
        records = getattr(self.instance, self.bound.accessor).history
        if self.bound.keeps_history:
            first = records.order_by("sequence").values_list("sequence", flat=True).first()
            self.earlier = self.latest if first is None else first - 1
        if before is not None:
            records = records.filter(sequence__lte=before)  # with the move that ended the first stay of the page
        found = list(records[: self.length + 2])
        after = found.pop(0) if before is not None and found and found[0].sequence == before else None
        page, has_more = found[: self.length], len(found) > self.length
        if not page:
            return Story((), self.total)
        first, last = page[0].sequence, page[-1].sequence
        is_first_page = first >= self.latest
        return Story(
            entries=tuple(self._entries(page, after)),
            total=self.total,
            newest="" if is_first_page else "?",
            newer="" if is_first_page else self._query(first + self.length + 1),
            older=self._query(last) if has_more else "",
            oldest=self._query(self.earlier + self.length + 1) if has_more else "",
        )

    def _query(self, before: int) -> str:
        return f"?{BEFORE}={before}" if before <= self.latest else "?"

    def _entries(self, page: list[Any], after: Any) -> list[Entry]:
        entries = []
        left_at: dt.datetime | None = after.transitioned_at if after is not None else None
        for record in page:
            entries.append(self._entry(record, left_at))
            left_at = record.transitioned_at
        return entries

    def _entry(self, record: Any, left_at: dt.datetime | None) -> Entry:
        facts = record.metadata if isinstance(record.metadata, dict) else {"": record.metadata}
        is_last = record.sequence >= self.latest
        stay = since(record.transitioned_at) if left_at is None else left_at - record.transitioned_at
        return Entry(
            number=record.sequence,
            when=time_tag(record.transitioned_at),
            source=badge(self.bound, record.from_status, self.tones) if record.from_status else "",
            target=badge(self.bound, record.to_status, self.tones),
            stayed=in_words(stay) if left_at is not None or is_last else "",
            is_last=is_last,
            actor=who(facts["actor"]) if facts.get("actor") else "",
            facts=tuple(_fact(name, value) for name, value in facts.items() if name != "actor" or not value),
        )


def read_before(request: HttpRequest) -> int | None:
    """Return which page is asked for. Nonsense is the first."""
    text = request.GET.get(BEFORE, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _fact(name: str, value: Any) -> Fact:
    if isinstance(value, dict) and value.keys() == {"model", "pk", "text"}:
        return Fact(as_text(name), who(value), False)
    if isinstance(value, dict | list) and value:
        return Fact(as_text(name), as_json(value, indent=2), True)
    text = (as_text(value) or "–") if isinstance(value, str) else as_json(value)
    return Fact(as_text(name), text, "\n" in text)
