"""Waits that grow while something does not work."""

from __future__ import annotations

import random
import time

FIRST_WAIT = 0.05


class Backoff:
    """How long to leave something alone: longer after each failure, and not all workers as long."""

    def __init__(self, most: float, first: float = FIRST_WAIT) -> None:
        self.first = min(first, most)
        self.most = most
        self.failures = 0
        self.until = 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    @property
    def left(self) -> float:
        """Seconds until it may be tried again."""
        return max(self.until - time.monotonic(), 0.0)

    def failed(self) -> None:
        wait = min(self.first * 2 ** min(self.failures, 30), self.most)
        self.failures += 1
        self.until = time.monotonic() + wait * random.uniform(0.6, 1.0)  # noqa: S311 - to spread workers, not to hide

    def succeeded(self) -> None:
        self.failures, self.until = 0, 0.0
