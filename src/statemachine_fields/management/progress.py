"""What a command shows of itself while it goes through a table, and how it counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from django.core.management.base import OutputWrapper
from django.db import models

from statemachine_fields.machine.binding import Binding

#: Seconds between two states of the progress bar.
PROGRESS_EVERY = 0.1
BAR = 30


class Followed(Protocol):
    """Work on the rows of one machine."""

    bound: Binding[Any]
    #: How many were looked at.
    rows: int

    @property
    def rows_of(self) -> models.QuerySet[Any]:
        """All that there are."""
        ...


class Progress:
    """A bar on a terminal's standard error: one line, written over at most ten times a second."""

    def __init__(self, out: OutputWrapper, *, shown: bool) -> None:
        self.out = out
        self.shown = shown
        self.total = 0
        self.drawn_at = 0.0
        self.is_drawn = False

    @contextmanager
    def of(self, work: Followed) -> Iterator[None]:
        """Follow some work, and leave a clean line behind."""
        self.total = work.rows_of.count() if self.shown else 0  # a scan of its own, so only where somebody looks
        try:
            yield
        finally:
            self.clear()

    def show(self, work: Followed) -> None:
        if not self.shown or time.monotonic() - self.drawn_at < PROGRESS_EVERY:
            return
        total = max(self.total, work.rows, 1)  # rows may have come in since they were counted
        share = work.rows / total
        bar = ("#" * int(share * BAR)).ljust(BAR, ".")
        self._write(f"\r{work.bound} [{bar}] {share:4.0%} of {total:,} rows\x1b[K")
        self.drawn_at = time.monotonic()
        self.is_drawn = True

    def clear(self) -> None:
        if self.is_drawn:
            self._write("\r\x1b[K")
            self.is_drawn = False

    def _write(self, text: str) -> None:
        self.out.write(text, ending="")
        self.out.flush()


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
