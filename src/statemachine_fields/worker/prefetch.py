"""How much to claim of a lane, how much of it may wait to be written, and when to look at it again. Pure Python: seconds in, numbers
out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from statemachine_fields.schedule.wakeups import ASK_AGAIN_AFTER

#: A claim that was used up within this many seconds was too small; one that lasted longer than the other was too large.
TOO_SOON, TOO_LATE = 0.5, 2.0
#: How many times as large the next one is, and where it was used up within a moment.
LARGER, MUCH_LARGER, AT_ONCE = 2, 4, 0.05
#: How long a row that was claimed ahead is to wait for a handler's end, at most, by how long those before it ran.
AHEAD_SECONDS = 0.1
#: How much the last handler's time counts for how long they run.
WEIGHT = 0.3
#: How many groups may be there of rows that have run and are not yet written, and how many rows for each thread.
GROUPS_UNWRITTEN, UNWRITTEN_EACH = 4, 2
#: After how many seconds it means nothing more how long rows took to write: other ones may be written otherwise.
FORGOTTEN_AFTER = 2.0
#: How many suspects at most are claimed together.
MOST_SUSPECTS = 256

#: Where rows keep coming, a look every so many seconds takes many at once; and how many looks may follow each other sooner.
PACE, BURST = 0.02, 10
#: How many seconds after the time that a row is due it is looked for: a moment before, and it would not be.
MARGIN = 0.0005


@dataclass(slots=True, eq=False)
class Prefetch:
    """How much to claim of one lane."""

    least: int
    most: int
    size: int = 0
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

    def stalled(self) -> None:
        """Learn from handlers that do not end and keep rows waiting: claim nothing ahead until others have, and then few."""
        self.mean = max(self.mean or 0.0, 2 * AHEAD_SECONDS)
        self.size = self.least

    def room(self, waiting: int, free: int) -> int:
        """Return how many rows to claim while so many wait: none until half of them are gone.

        :param free: how many handlers could begin at once.
        """
        size = self.most_ahead(free)
        return size - waiting if waiting <= size // 2 else 0

    def most_ahead(self, free: int) -> int:
        """Return how many rows are to wait at most."""
        ahead = 0.0
        if self.mean is not None and self.mean <= AHEAD_SECONDS:  # else a thread that waits for a claim loses little
            ahead = self.least * AHEAD_SECONDS / max(self.mean, 1e-6)
        return int(min(self.size, max(free, ahead)))

    def claimed(self, asked: int, got: int) -> None:
        """Learn from a claim."""
        now = time.monotonic()
        if self.has_grown:  # this claim fills what was added, at once: it says nothing of how soon rows are used up
            self.has_grown = False
        elif self.was_full:
            lasted = now - self.claimed_at
            if lasted < TOO_SOON:
                self.has_grown = self.size < self.most
                self.size = min(self.size * (MUCH_LARGER if lasted < AT_ONCE else LARGER), self.most)
            elif lasted > TOO_LATE:
                self.size = max(self.size // 2, self.least)
        self.was_full, self.was_empty = got == asked, not got
        self.claimed_at = now

    def went_on(self) -> None:
        """Learn from rows that went on without being claimed: of what is used up so soon there can be more."""
        if self.was_full and time.monotonic() - self.claimed_at < TOO_SOON:
            self.size = min(self.size * 2, self.most)

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


@dataclass(slots=True, eq=False)
class WritePace:
    """How many rows of one lane may have run and wait for one thread to write them. Nobody else can have those, and they have to run
    again if this process dies."""

    least: int
    most: int
    #: Whether each row takes its time; else many take hardly longer than few.
    one_by_one: bool = False
    #: How long it takes to write a row, of late, in seconds.
    mean: float | None = None
    wrote_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.most = max(self.most, self.least)

    def wrote(self, rows: int, seconds: float) -> None:
        """Learn from rows that were written."""
        each = seconds / rows
        self.mean = each if self.mean is None else self.mean + (each - self.mean) * WEIGHT
        self.wrote_at = time.monotonic()

    def room(self, unwritten: int, *, is_sure: bool = False) -> int:
        """Return how many rows may come to those that wait: none until half of them are gone.

        :param is_sure: that those which come now will wait here, though none has of late.
        """
        size = self.most
        if self.one_by_one and (is_sure or unwritten or time.monotonic() - self.wrote_at < FORGOTTEN_AFTER):
            soon = 0 if self.mean is None else int(AHEAD_SECONDS / max(self.mean, 1e-6))
            size = min(max(self.least, soon), self.most)
        return size - unwritten if unwritten <= size // 2 else 0


@dataclass(slots=True, eq=False)
class LookTimer:
    """When to look at one lane again: at once while there may be more, when the next row is due, when it is said that one is,
    and now and then all the same."""

    poll: float
    #: When to look, by the monotonic clock.
    at: float = 0.0
    #: Whether it is the clock that says so, and not somebody who knows of a row: then a question that locks nothing comes first.
    asks_first: bool = False
    #: Whether rows keep coming, so that it is looked for them in a rhythm and nobody need say more.
    is_paced: bool = False
    #: When to look again because some may not have said what they should.
    _again_at: float = float("inf")
    #: Up to when looks are used up, each taking its pace.
    _used_until: float = 0.0
    #: For when others have wanted a look since the last one began: what it found may not have what they speak of.
    _wanted_at: float = float("inf")

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.at

    @property
    def left(self) -> float:
        return max(self.at - time.monotonic(), 0.0)

    # What other threads say.

    def now(self) -> None:
        """Look at once: there are or may be rows."""
        self._want(0.0)

    def ring(self) -> None:
        """Hear that a row is due."""
        if not self.is_paced:  # else it is looked for soon
            self._want(0.0)

    def due_in(self, seconds: float) -> None:
        """Hear that a row will be due."""
        self._want(time.monotonic() + seconds + MARGIN)

    def gate(self) -> None:
        """Hear that from now on it is said if a row is due, by all but those who were told a moment ago that nobody listens."""
        self._again_at = time.monotonic() + ASK_AGAIN_AFTER + MARGIN
        self.asks_first = True
        self._want(0.0, asks_first=True)

    def _want(self, at: float, *, asks_first: bool = False) -> None:
        self._wanted_at = min(
            self._wanted_at, at
        )  # first, so that who sets the timer at this moment sees it or is overruled
        if at < self.at:
            self.at, self.asks_first = at, asks_first

    # What comes of a look.

    def begin(self) -> None:
        """Begin a look, which sees all that was spoken of until now."""
        self._wanted_at = float("inf")

    def looked(self) -> bool:
        """Count a look that found less than it asked for, and say whether rows keep coming."""
        now = time.monotonic()
        self._used_until = max(self._used_until, now) + PACE
        return self._used_until - now > PACE * BURST

    def pace(self) -> None:
        """Look again in a moment, to take many at once."""
        self.at, self.asks_first, self.is_paced = time.monotonic() + PACE, False, True

    def go_on(self) -> None:
        """Look again at once: there may be more."""
        self.at, self.asks_first = 0.0, False

    def sleep(self, seconds: float | None) -> None:
        """Look again when the next row is due, as far as that is known, or else after the usual time.

        :param seconds: in how many seconds that is; None for never.
        """
        now = time.monotonic()
        at, self.is_paced, self.asks_first = now + self.poll, False, True
        if self._again_at < at:
            at, self._again_at = max(self._again_at, now), float("inf")
        self.at = at
        if seconds is not None and now + seconds + MARGIN < at:
            self.at, self.asks_first = now + seconds + MARGIN, False
        if self._wanted_at < self.at:
            self.at, self.asks_first = self._wanted_at, False
