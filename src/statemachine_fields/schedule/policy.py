"""When a row is due, and what becomes of one that fails. Pure Python: seconds in, seconds out.

`Policy` is what a `State` says; `Schedule` is what that comes to on one class, whose handlers are known. Every time is
counted from an instant that the database knows: when the row entered its state, or when the outcome is written.
"""

from __future__ import annotations

import datetime
import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from statemachine_fields.schedule.waiting import Until

if TYPE_CHECKING:
    from statemachine_fields.schedule.handlers import Handler

Seconds: TypeAlias = "float | datetime.timedelta"

DURATIONS = ("start_after", "retry_after", "timeout_after", "time_limit", "delete_after")

#: What makes a machine timed: each needs the clock's columns.
TIMED = (*DURATIONS, "backoff", "max_attempts", "error_to", "until")

#: What is only for states that have a handler.
FOR_HANDLERS = ("start_after", "retry_after", "backoff", "max_attempts", "time_limit")

#: What a state cannot say that waits for something, and why.
NOT_WHILE_WAITING = {
    "external": "workers move its rows when it has happened",
    "start_after": "its rows are due when it has happened, and not after a time",
    "delete_after": "rows that wait are not to vanish; use timeout_after and timeout_to",
}

DEFAULT_QUEUE = "default"

#: How long a row waits for its next try if its state does not say.
RETRY_AFTER = 60.0
#: However often a row has failed, it does not wait longer than this, or than `retry_after` if that is more.
LONGEST_BACKOFF = 24 * 60 * 60.0
#: The longest duration, in years: the time that it leads to must have a place in every database's calendar.
LONGEST_YEARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a state may say about time. Durations are seconds or `timedelta`.

    :param start_after: how long after a row enters the state its handler is first run. At once if not given.
    :param retry_after: how long to wait between two tries. One minute if not given.
    :param backoff: the factor by which that wait grows with every failure, up to a day.
    :param max_attempts: how many tries may fail before the row is moved to `error_to`, or parked. No limit if not given.
    :param error_to: where a row goes whose tries are used up, or that keeps killing its worker.
    :param timeout_after: how long a row may stay. It is then tried once more, and moved to `timeout_to` if that did not
        move it.
    :param time_limit: how long the handler may run before it is stopped, which counts as a failure.
    :param delete_after: how long after a row enters the state it is deleted.
    :param until: what rows wait for in the state, as `Event("paid")`. Until then nothing is due but the time-out, and
        `retry_after` is for tries that failed.
    :param external: that someone else moves rows out of this state. Time-outs and deletion still apply.
    :param queue: which workers serve the state; the machine's queue if not given.
    :param priority: of several states with due rows, the one with the highest number is served first.
    """

    start_after: Seconds | None = None
    retry_after: Seconds | None = None
    backoff: float | None = None
    max_attempts: int | None = None
    error_to: str | None = None
    timeout_after: Seconds | None = None
    timeout_to: str | None = None
    time_limit: Seconds | None = None
    delete_after: Seconds | None = None
    until: Until | None = None
    external: bool = False
    queue: str | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        for name in DURATIONS:
            seconds_of(getattr(self, name), name)
        if self.time_limit is not None and not seconds_of(self.time_limit, "time_limit"):
            raise ValueError("time_limit must be more than 0.")
        if self.backoff is not None and not (_is_number(self.backoff) and 1 <= self.backoff < math.inf):
            raise ValueError(f"backoff must be a factor of at least 1, got {self.backoff!r}.")
        if self.max_attempts is not None and (not _is_whole(self.max_attempts) or self.max_attempts < 1):
            raise ValueError(f"max_attempts must be a whole number of at least 1, got {self.max_attempts!r}.")
        if not _is_whole(self.priority) or abs(self.priority) >= 2**31:
            raise ValueError(f"priority must be a whole number of at most 32 bits, got {self.priority!r}.")
        if not isinstance(self.external, bool):
            raise ValueError(f"external must be True or False, got {self.external!r}.")
        if self.queue is not None and not is_queue_name(self.queue):
            raise ValueError(f"queue must be a name without spaces or '=', got {self.queue!r}.")
        if (self.timeout_after is None) != (self.timeout_to is None):
            raise ValueError("timeout_after and timeout_to go together: say how long, and where to then.")
        if self.until is not None:
            self._check_until(self.until)
        if self.external and (wrong := self.for_handlers()):
            raise ValueError(
                f"A state that is external has no handler, so {' and '.join(wrong)} would mean nothing. Remove one of them."
            )

    def _check_until(self, until: Until) -> None:
        if not isinstance(until, Until):
            raise ValueError(f'until must be what rows wait for, as Event("paid"), got {until!r}.')
        for option, why in NOT_WHILE_WAITING.items():
            if getattr(self, option) not in (None, False):
                raise ValueError(f"A state with until={until!r} cannot have {option}: {why}.")

    @property
    def is_timed(self) -> bool:
        """Whether the state needs the clock's columns."""
        return any(getattr(self, name) is not None for name in TIMED)

    def for_handlers(self) -> list[str]:
        """Return the options given that only a handler heeds, or a move that may fail without one."""
        return [name for name in FOR_HANDLERS if getattr(self, name) is not None]


@dataclass(frozen=True, slots=True)
class Schedule:
    """What time means to the rows of one state, in seconds."""

    state: str
    handler: Handler | None
    queue: str
    priority: int
    start_after: float
    retry_after: float
    backoff: float
    max_attempts: int | None
    error_to: str | None
    timeout_after: float | None
    timeout_to: str | None
    time_limit: float | None
    delete_after: float | None
    #: What decides on exceptions of the handler.
    on_error: Handler | None = None
    until: Until | None = None

    @classmethod
    def of(
        cls, state: str, policy: Policy, handler: Handler | None, queue: str, on_error: Handler | None = None
    ) -> Schedule:
        retry_after = seconds_of(policy.retry_after, "retry_after")
        return cls(
            state=state,
            handler=handler,
            queue=policy.queue or queue,
            priority=policy.priority,
            start_after=seconds_of(policy.start_after, "start_after") or 0.0,
            retry_after=RETRY_AFTER if retry_after is None else retry_after,
            backoff=policy.backoff or 1.0,
            max_attempts=policy.max_attempts,
            error_to=policy.error_to,
            timeout_after=seconds_of(policy.timeout_after, "timeout_after"),
            timeout_to=policy.timeout_to,
            time_limit=seconds_of(policy.time_limit, "time_limit"),
            delete_after=seconds_of(policy.delete_after, "delete_after"),
            on_error=None if handler is None else on_error,
            until=policy.until,
        )

    @property
    def runs(self) -> bool:
        """Whether rows of this state are ever due."""
        return self.handler is not None or self.until is not None or self.horizon is not None

    @property
    def is_async(self) -> bool:
        """Whether its handler is a coroutine."""
        return self.handler is not None and self.handler.is_async

    @property
    def acts(self) -> bool:
        """Whether a worker does something with a row that is due here, before its time is up: run its handler, or move it because
        what it waited for has happened."""
        return self.handler is not None or self.until is not None

    @property
    def may_sleep(self) -> bool:
        """Whether a row that nothing is wrong with may have no time at all: it waits, for however long."""
        return self.until is not None and self.horizon is None

    @property
    def horizon(self) -> float | None:
        """After how long in the state something happens to a row whatever its handler does."""
        return _earliest(self.timeout_after, self.delete_after)

    def entry_delay(self, after: float | None = None) -> float | None:
        """Return how long after entering the state a row is due; None for never, or not before something happens.

        :param after: what a `Move` said instead of `start_after`.
        """
        start = self.start_after if after is None else after
        is_due = self.handler is not None if self.until is None else self.until.looks_every is not None
        return _earliest(start if is_due else None, self.horizon)

    @property
    def wait_delay(self) -> float | None:
        """How long a row waits whose handler said "not yet"; None until what it waits for happens once more."""
        return self.retry_after if self.until is None else self.until.looks_every

    @property
    def longest_delay(self) -> float:
        """How long a row waits between two tries at most, however often it has failed."""
        return max(LONGEST_BACKOFF, self.retry_after) if self.backoff > 1 and self.retry_after else self.retry_after

    def retry_delay(self, failures: int, jitter: float = 0.0) -> float:
        """Return how long to wait after the nth failure. `jitter` is a share of it to add, so that rows that failed
        together do not come back together."""
        if failures < 1 or self.backoff == 1.0 or not self.retry_after:
            return self.retry_after
        most = self.longest_delay
        try:
            grown = self.retry_after * float(self.backoff) ** (failures - 1)
        except OverflowError:  # as of 1000 failures with a factor of 10
            return most
        return min(grown * (1 + jitter), most)

    def is_timed_out(self, age: float) -> bool:
        return self.timeout_after is not None and age >= self.timeout_after

    def is_to_be_deleted(self, age: float) -> bool:
        return self.delete_after is not None and age >= self.delete_after

    def is_last_attempt(self, failures: int) -> bool:
        """Say whether a row that has failed this often has used up its tries."""
        return self.max_attempts is not None and failures >= self.max_attempts


def seconds_of(duration: Seconds | None, name: str) -> float | None:
    """Return a duration in seconds, or raise ValueError."""
    if duration is None:
        return None
    if isinstance(duration, datetime.timedelta):
        seconds = duration.total_seconds()
    elif _is_number(duration):
        seconds = float(duration)
    else:
        raise ValueError(f"{name} must be seconds or a timedelta, got {duration!r}.")
    if not 0 <= seconds <= datetime.timedelta(days=LONGEST_YEARS * 366).total_seconds():
        raise ValueError(f"{name} must not be negative, nor longer than {LONGEST_YEARS} years, got {duration!r}.")
    return seconds


def plain(state: str) -> str:
    """Return the bare string behind an enum member, so that databases and JSON see text."""
    return str(state.value) if isinstance(state, enum.Enum) else state


def is_queue_name(name: object) -> bool:
    return isinstance(name, str) and bool(name) and not any(sign.isspace() or sign == "=" for sign in name)


def _earliest(*delays: float | None) -> float | None:
    return min((delay for delay in delays if delay is not None), default=None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
