"""What became of a leased row: a class for each outcome, which knows how it is written, reported and counted.

A new outcome is a class here, and whatever makes it in `verdicts.py` or `executor.py`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from django.dispatch import Signal

from statemachine_fields.machine.listeners import is_heard
from statemachine_fields.signals import handler_failed, outcome_dropped, row_parked, rows_deleted
from statemachine_fields.worker.attempts import is_failed_try
from statemachine_fields.worker.digest import Digest, cause_of
from statemachine_fields.worker.reporting import send
from statemachine_fields.worker.writing import (
    CONFIRM,
    DELETE,
    ENTER,
    ENTER_ALONE,
    ENTER_DUE,
    ENTER_EACH,
    ENTER_TRIED,
    RELEASE,
    STAY,
    STAY_ALONE,
    STAY_EACH,
    UNCLAIM,
    Write,
)

if TYPE_CHECKING:
    from statemachine_fields.worker.lease import Lane, Lease
    from statemachine_fields.worker.updates import UpdateGroup


@dataclass(slots=True, eq=False)
class RowOutcome:
    """What is to be written of one leased row."""

    #: What it is called in log lines for programs, and what it is counted as, if not as that.
    kind: ClassVar[str]
    counted_as: ClassVar[str | None] = None
    #: What people call it.
    words: ClassVar[str] = "outcome"
    #: How it is written.
    write: ClassVar[Write]
    #: Whether there is always something to report; else only if there was an error.
    is_news: ClassVar[bool] = False
    #: Whether it leaves a record, which tells afterwards that it was written.
    is_recorded: ClassVar[bool] = False
    #: Whether it is only what an instance says, which may not know that a transaction was undone.
    is_hearsay: ClassVar[bool] = False

    lease: Lease
    _: KW_ONLY
    failures: int = 0
    error: str = ""
    exception: BaseException | None = None
    #: Values for other fields of the row, and how those are written that set the same ones; None if each row is by itself.
    update: Mapping[str, Any] | None = None
    group: UpdateGroup | None = None
    #: What this one stands for, which the database would not have.
    instead_of: RowOutcome | None = None
    #: Whether it was sent before, over a connection that broke: it may have been written.
    is_repeated: bool = False
    #: Whether it is known what became of it.
    is_reported: bool = False
    #: The lease under which the row goes on, if it does.
    following: Lease | None = None
    #: Whether its row was to sleep, and is due at once: more has come into its inbox than was seen.
    is_woken: bool = False
    #: How often it could not be written, and when to try again, by the monotonic clock.
    tries: int = 0
    again_at: float = 0.0

    def __str__(self) -> str:
        return self.words

    @property
    def due_in(self) -> float | None:
        """In how many seconds its row is due where it is then; None for never, or not soon."""
        return None

    @property
    def due_state(self) -> str | None:
        """The state that it is due in then; None if that is not known."""
        return self.lease.status

    @property
    def queue(self) -> str | None:
        """What its row has in its queue column, if the machine has one and that is known."""
        name, row = self.lease.lane.bound.queue_name, vars(self.lease.instance) if self.lease.instance else {}
        known = self.update if self.update and name in self.update else row
        return (known[name] or "") if name in known else None

    def way(self, is_watched: bool) -> Write:
        """Return how it is written.

        :param is_watched: whether moves of its machine run code of the project's.
        """
        return self.write

    def report(self, digest: Digest) -> None:
        """Log it and send its signal. It stands by now."""

    def log_fields(self) -> dict[str, Any]:
        """Return what a log line about it is about, for programs."""
        fields = self.lease.log_fields | {"outcome": self.kind}
        return fields | {"error": self.error} if self.error else fields

    def _log(self, digest: Digest, level: int, text: str, *facts: object) -> None:
        """Log a line that starts with the row and its state, and ends with what went wrong."""
        lease = self.lease
        cause = (text, str(lease.lane), lease.status, cause_of(self.exception, self.error))
        values = (lease.label, lease.status, *facts, self.error)
        digest.log(cause, level, text, *values, error=self.exception, fields=self.log_fields())

    def log_fate(
        self, digest: Digest, level: int, text: str, *facts: object, cause: object, raised: Any = None, **fields: Any
    ) -> None:
        """Log a line that starts with the row, the outcome and its state, about what becomes of the outcome itself."""
        lease = self.lease
        kind = (text, str(lease.lane), lease.status, self.kind, cause)
        values, known = (lease.label, self, lease.status, *facts), self.log_fields()
        digest.log(kind, level, f"%s: its %s in state %r {text}", *values, error=raised, fields=known | fields)

    def _send(self, signal: Signal, **facts: Any) -> None:
        lane = self.lease.lane
        if is_heard(signal, lane.bound.model):
            send(signal, lane.bound.model, machine=lane.bound.face, using=lane.using, **facts)

    def _send_failure(self) -> None:
        facts = {"error": self.error, "failures": self.failures, "exception": self.exception}
        self._send(handler_failed, instance=self.lease.instance, **facts)


@dataclass(slots=True, eq=False)
class Transitioned(RowOutcome):
    """The row moves to another state."""

    kind = "moved"
    is_recorded = True

    _: KW_ONLY
    to_status: str
    #: In how many seconds it is due there; None for never.
    delay: float | None = None
    metadata: Mapping[str, Any] | None = None
    written_metadata: str = "{}"
    record_id: uuid.UUID | None = None
    #: The numbers of the events that it takes.
    take: tuple[int, ...] = ()
    #: Whether the policy wants the move, not the handler.
    is_by_policy: bool = False
    #: Whether it was sent as a move after which the row is still held.
    was_sent_ahead: bool = False

    def __str__(self) -> str:
        return f"move to {self.to_status!r}"

    @property
    def seen(self) -> int | None:
        """How many of the row's events were looked at, if it waits for some where it goes: none, if nobody had to look."""
        awaits, awaited = self.to_status in self.lease.lane.bound.awaited_names, self.lease.awaited
        return None if not awaits else 0 if awaited is None else awaited.seen or 0

    @property
    def due_in(self) -> float | None:
        return 0.0 if self.is_woken else self.delay if self.following is None else None

    @property
    def due_state(self) -> str | None:
        return self.to_status

    def way(self, is_watched: bool) -> Write:
        if is_watched:
            return ENTER_ALONE
        if self.is_by_policy and is_failed_try(self):
            return ENTER_EACH if self.update else ENTER_TRIED
        goes_on = self.delay == 0 and self.lease.lane.runs_ahead
        if self.update:
            return ENTER_EACH if self.group is None else self.group.enter_due if goes_on else self.group.enter
        return ENTER_DUE if goes_on else ENTER

    def report(self, digest: Digest) -> None:
        """Report a move that was made because the row failed for good."""
        self._log(digest, logging.ERROR, "%s failed in state %r for good and was moved to %r. %s", self.to_status)
        self._send_failure()

    def log_fields(self) -> dict[str, Any]:
        return super(Transitioned, self).log_fields() | {"to_state": self.to_status}


@dataclass(slots=True, eq=False)
class Stayed(RowOutcome):
    """The row stays in its state, and its lease ends."""

    _: KW_ONLY
    #: In how many seconds it is due; with None only its horizon counts.
    delay: float | None = None

    def way(self, is_watched: bool) -> Write:
        if not self.update:
            return STAY
        if is_watched:
            return STAY_ALONE
        return STAY_EACH if self.group is None else self.group.stay

    @property
    def due_in(self) -> float | None:
        return 0.0 if self.is_woken else self.delay

    @property
    def seen(self) -> int | None:
        """How many of the row's events were looked at, if it is to sleep until there are more."""
        return None

    @property
    def horizon(self) -> float | None:
        """The seconds after its entry when the row is due at the latest."""
        return self.lease.schedule.horizon


@dataclass(slots=True, eq=False)
class Waited(Stayed):
    """Not yet: the handler is asked again."""

    kind, words = "waited", "not yet"

    @property
    def seen(self) -> int | None:
        return None if self.lease.awaited is None else self.lease.awaited.seen


@dataclass(slots=True, eq=False)
class Failed(Stayed):
    """The try is counted as a failure, and there is another."""

    kind, words, is_news = "failed", "failure", True

    def report(self, digest: Digest) -> None:
        text = "%s failed in state %r, attempt %d; next try in %.0f s. %s"
        self._log(digest, logging.WARNING, text, self.failures, self.delay or 0.0)
        self._send_failure()

    def log_fields(self) -> dict[str, Any]:
        return super(Failed, self).log_fields() | {"retry_seconds": self.delay}


@dataclass(slots=True, eq=False)
class Parked(Stayed):
    """Nothing is ever due again, until somebody sees to it."""

    kind, words, is_news = "parked", "parking", True

    @property
    def horizon(self) -> float | None:
        return None

    #: What is said of it.
    text: ClassVar[str] = "%s is parked in state %r until somebody calls resume() or moves it. %s"

    def report(self, digest: Digest) -> None:
        self._log(digest, logging.ERROR, self.text)
        self._send(row_parked, instance=self.lease.instance, error=self.error)


@dataclass(slots=True, eq=False)
class ParkedByHandler(Parked):
    """The same, because the handler wants it."""

    text = "%s was parked by its handler in state %r until somebody calls resume() or moves it. %s"


@dataclass(slots=True, eq=False)
class Released(RowOutcome):
    """The row is given back as it was."""

    kind, words = "released", "release"

    @property
    def due_in(self) -> float | None:
        return 0.0

    def way(self, is_watched: bool) -> Write:
        return UNCLAIM if self.lease.started_at is None else RELEASE  # which was a try, or none

    def report(self, digest: Digest) -> None:
        self._log(digest, logging.WARNING, "%s was given back in state %r. %s")


def given_back(
    lane: Lane, write: Write, outcomes: Iterable[RowOutcome]
) -> Iterator[tuple[Lane, Write, list[RowOutcome]]]:
    """Yield what gives rows back whose outcomes there is no time to write. Those that may have been written already are sent again."""
    error = "The worker stopped before what came of it was written."
    parts: dict[Write, list[RowOutcome]] = {write: [], RELEASE: []}
    for outcome in outcomes:
        is_to_stay = outcome.is_repeated or isinstance(outcome, Released)
        parts[write if is_to_stay else RELEASE].append(outcome if is_to_stay else Released(outcome.lease, error=error))
    yield from [(lane, write, part) for write, part in parts.items() if part]


@dataclass(slots=True, eq=False)
class Deleted(RowOutcome):
    """The row's time is up."""

    kind, words, is_news, write = "deleted", "deletion", True, DELETE

    def report(self, digest: Digest) -> None:
        lease = self.lease
        cause, text = ("deleted", str(lease.lane), lease.status), "%s was deleted: its time in state %r was up."
        digest.log(cause, logging.INFO, text, lease.label, lease.status, fields=self.log_fields())
        self._send(rows_deleted, keys=[lease.key], state=lease.status)


@dataclass(slots=True, eq=False)
class TransitionedItself(RowOutcome):
    """The handler has moved the row already, by its instance's account."""

    kind, words, write = "settled_itself", "move of its own", CONFIRM
    counted_as = Transitioned.kind
    is_recorded = is_hearsay = True

    @property
    def due_in(self) -> float | None:
        return 0.0

    @property
    def due_state(self) -> str | None:
        return None

    def report(self, digest: Digest) -> None:
        text = "%s: its handler moved it from %r and then raised. The move stands. %s"
        self._log(digest, logging.WARNING, text)


@dataclass(slots=True, eq=False)
class Dropped(RowOutcome):
    """The outcome came too late: the row is no longer ours. Never written."""

    kind = "dropped"

    def report(self, digest: Digest) -> None:
        late = self.instead_of or self
        text = "came too late and was dropped. The lease (token %d) had ended, or somebody moved or released the row."
        late.log_fate(digest, logging.WARNING, text, self.lease.token, cause=None, outcome=self.kind)
        self._send(outcome_dropped, instance=self.lease.instance, outcome=str(late))


@dataclass(slots=True, eq=False)
class Conflicted(RowOutcome):
    """An atomic handler met somebody else's lock or change, and was undone. Never written: it is run again."""

    kind, words = "conflict", "conflict"

    _: KW_ONLY
    delay: float = 0.0


def grouped(outcomes: Iterable[RowOutcome]) -> Iterator[tuple[Lane, Write, list[RowOutcome]]]:
    """Sort outcomes by what can be written together, and how."""
    groups: dict[tuple[Lane, Write], list[RowOutcome]] = {}
    watched: dict[Lane, bool] = {}
    last: tuple[Lane, Write] | None = None
    members: list[RowOutcome] = []
    for outcome in outcomes:
        lane = outcome.lease.lane
        if lane not in watched:
            watched[lane] = lane.is_watched
        write = outcome.way(watched[lane])
        if last is None or lane is not last[0] or write is not last[1]:  # most are written as the one before
            last = lane, write
            members = groups.setdefault(last, [])
        members.append(outcome)
    for (lane, write), members in groups.items():
        left = members
        while left:
            # Different rows: a process may have taken its own row again, and the answer names rows, not tries.
            rows, left = left, []
            if len({outcome.lease.key for outcome in rows}) < len(rows):
                first: dict[Any, RowOutcome] = {}
                left = [outcome for outcome in rows if first.setdefault(outcome.lease.key, outcome) is not outcome]
                rows = list(first.values())
            most = write.most or len(rows)
            for start in range(0, len(rows), most):
                yield lane, write, rows[start : start + most]
