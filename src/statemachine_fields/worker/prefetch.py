"""When a process claims, and how much: enough that no thread waits, no more than it can soon run.

What is claimed is taken from other workers and has to be run again if this one dies, so no row is claimed that would wait
for more than a moment: none ahead where handlers are slow, a full batch where they are quick. Rows that a worker may have died of
are claimed few at a time, at first one: if it was theirs to blame, few share it, and if not, they are soon done.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

#: A claim that was used up within this many seconds was too small; one that lasted longer than the other was too large.
TOO_SOON, TOO_LATE = 0.5, 2.0
#: How long a row that was claimed ahead is to wait for a handler's end, at most, by how long those before it ran.
AHEAD_SECONDS = 0.25
#: How much the last handler's time counts for how long they run.
WEIGHT = 0.3
#: How many suspects at most are claimed together.
MOST_SUSPECTS = 256


@dataclass(slots=True, eq=False)
class Prefetch:
    """How much to claim of one lane."""

    least: int
    most: int
    size: int = 0
    #: Whether the last claim found less than it asked for, so that the next look can wait for the poll.
    exhausted: bool = False
    claimed_at: float = 0.0
    was_full: bool = False
    was_empty: bool = False
    has_grown: bool = False
    suspects_at: float = field(default_factory=time.monotonic)
    suspects_left: bool = False
    has_looked_for_suspects: bool = False
    #: How many suspects to claim together: more each time that nobody has died of some.
    suspects: int = 1
    #: How long handlers run, of late, in seconds; None while none has ended.
    mean: float | None = None

    def __post_init__(self) -> None:
        self.least = min(self.least, self.most)
        self.size = min(self.least * 2, self.most)

    def ran(self, seconds: float) -> None:
        """Learn from a handler that has ended."""
        self.mean = seconds if self.mean is None else self.mean + (seconds - self.mean) * WEIGHT

    def room(self, waiting: int, free: int) -> int:
        """Return how many rows to claim while so many wait: none until half of them are gone.

        :param free: how many handlers could begin at once.
        """
        ahead = 0.0 if self.mean is None else self.least * AHEAD_SECONDS / max(self.mean, 1e-6)
        size = int(min(self.size, max(free, ahead)))
        return size - waiting if waiting <= size // 2 else 0

    def claimed(self, asked: int, got: int) -> None:
        """Learn from a claim."""
        now = time.monotonic()
        if self.has_grown:  # this claim fills what was added, at once: it says nothing of how soon rows are used up
            self.has_grown = False
        elif self.was_full:
            lasted = now - self.claimed_at
            if lasted < TOO_SOON:
                self.has_grown = self.size < self.most
                self.size = min(self.size * 2, self.most)
            elif lasted > TOO_LATE:
                self.size = max(self.size // 2, self.least)
        self.was_full, self.was_empty = got == asked, not got
        self.exhausted = got < asked
        self.claimed_at = now

    def wants_suspects(self, every: float) -> bool:
        """Say whether to look for rows that were left behind. A new process has others to run first: if it dies of one, as
        those before it did, it has done something until then."""
        if self.suspects_left or (self.was_empty and not self.has_looked_for_suspects):
            return True
        return time.monotonic() - self.suspects_at >= every

    def claimed_suspects(self, got: int) -> None:
        if self.suspects_left:  # those of the last time have an outcome by now
            self.suspects = min(self.suspects * 2, MOST_SUSPECTS)
        self.has_looked_for_suspects = True
        self.suspects_at = time.monotonic()
        self.suspects_left = got > 0
