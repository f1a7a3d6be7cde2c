"""What was done when, and how often."""

from __future__ import annotations

import threading
import time
from collections import Counter


class Timeline:
    """Notes of many threads, in seconds since the beginning."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.began = time.monotonic()
        self.notes: list[tuple[float, str]] = []
        self.counts: Counter[str] = Counter()
        #: What is on now.
        self.on: dict[str, float] = {}

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def note(self, text: str) -> None:
        with self._lock:
            self.notes.append((self.now, text))

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    def begin(self, name: str, what: str) -> None:
        with self._lock:
            self.on[name] = self.now
            self.notes.append((self.now, f"{name}: {what}"))

    def end(self, name: str) -> None:
        with self._lock:
            since = self.on.pop(name, None)
            if since is not None:
                self.notes.append((self.now, f"{name}: over after {self.now - since:.1f} s"))

    def text(self) -> str:
        with self._lock:
            return "\n".join(f"{at:7.2f}  {what}" for at, what in sorted(self.notes))
