"""When a process claims, and how much: enough that no thread waits, no more than it can soon run.

What is claimed is taken from other workers and has to be run again if this one dies, so a lane is claimed for a second or
so of work: a few rows where handlers are slow, a full batch where they are quick. Rows that a worker may have died of
are claimed one at a time: if it was theirs to blame, nobody shares it, and if not, they are done.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

#: A claim that was used up within this many seconds was too small; one that lasted longer than the other was too large.
TOO_SOON, TOO_LATE = 0.5, 2.0
#: Seconds between two looks for rows that were left behind, while there are none.
SUSPECTS_EVERY = 5.0


@dataclass(slots=True, eq=False)
class Appetite:
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

    def __post_init__(self) -> None:
        self.least = min(self.least, self.most)
        self.size = min(self.least * 2, self.most)

    def room(self, waiting: int) -> int:
        """Return how many rows to claim while so many wait: none until half of them are gone."""
        return self.size - waiting if waiting <= self.size // 2 else 0

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

    def wants_suspects(self) -> bool:
        """Say whether to look for rows that were left behind. A new process has others to run first: if it dies of one, as
        those before it did, it has done something until then."""
        if self.suspects_left or (self.was_empty and not self.has_looked_for_suspects):
            return True
        return time.monotonic() - self.suspects_at >= SUSPECTS_EVERY

    def claimed_suspects(self, got: int) -> None:
        self.has_looked_for_suspects = True
        self.suspects_at = time.monotonic()
        self.suspects_left = got > 0
