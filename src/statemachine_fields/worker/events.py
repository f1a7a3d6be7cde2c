"""What happened, told three ways: counted, logged for operators, and sent as signals."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.dispatch import Signal

from statemachine_fields.machine.listeners import is_heard
from statemachine_fields.signals import handler_failed, outcome_dropped, row_parked, rows_deleted
from statemachine_fields.worker.digest import Digest, cause_of
from statemachine_fields.worker.outcomes import Kind, Verdict

logger = logging.getLogger("statemachine_fields.worker")

#: What was counted, by machine, state and kind: how often, and how many seconds handlers took.
Counts = dict[tuple[str, str, str], tuple[int, float]]


def add_to(counts: Counts, key: tuple[str, str, str], number: int, seconds: float) -> None:
    before, spent = counts.get(key, (0, 0.0))
    counts[key] = before + number, spent + seconds


class Events:
    """Tells of verdicts, and counts by machine and state until somebody takes the counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counts = {}
        #: Since the start, by kind.
        self.total: Counter[str] = Counter()
        #: What all threads of a process log goes through one, which knows what was said a moment ago.
        self.digest = Digest(logger)

    def count(self, machine: str, state: str, kind: str, number: int = 1, seconds: float = 0.0) -> None:
        with self._lock:
            add_to(self._counts, (machine, state, kind), number, seconds)
            self.total[kind] += number

    def take_counts(self) -> Counts:
        """Return what was counted since the last time."""
        with self._lock:
            taken, self._counts = self._counts, {}
        return taken

    def put_back(self, counts: Counts) -> None:
        """Keep counts that could not be written."""
        with self._lock:
            for key, (number, seconds) in counts.items():
                add_to(self._counts, key, number, seconds)

    def written(self, verdicts: Sequence[Verdict]) -> None:
        """Tell of verdicts of one lane that the database has."""
        counts: Counts = {}
        machine = str(verdicts[0].lease.lane)
        for verdict in verdicts:
            verdict.is_told = True
            add_to(counts, (machine, verdict.lease.status, verdict.kind), 1, verdict.lease.seconds)
        for key, (number, seconds) in counts.items():
            self.count(*key, number, seconds)
        for verdict in verdicts:
            if verdict.kind in _TELL and (verdict.kind is not Kind.MOVED or verdict.error):
                _TELL[verdict.kind](self.digest, verdict)

    def dropped(self, verdict: Verdict) -> None:
        verdict.is_told = True
        lease = verdict.lease
        self.count(str(lease.lane), lease.status, Kind.DROPPED, seconds=lease.seconds)
        self.digest.log(
            ("dropped", str(lease.lane), lease.status, verdict.kind),
            logging.WARNING,
            "%s: its %s in state %r came too late and was dropped. The lease (token %d) had ended, or somebody moved or "
            "released the row.",
            lease.label,
            verdict.words,
            lease.status,
            lease.token,
            fields=_fields(verdict) | {"outcome": str(Kind.DROPPED)},
        )
        _send(outcome_dropped, verdict, outcome=verdict.words)

    def set_aside(self, verdict: Verdict, why: str, error: BaseException | None = None) -> None:
        """Tell of a row of which nothing can be written at the moment. It is tried again, after longer and longer waits."""
        lease = verdict.lease
        self.digest.log(
            ("set aside", str(lease.lane), lease.status, verdict.kind, cause_of(error, why)),
            logging.WARNING,
            "%s: its %s in state %r cannot be written now and is tried again later. %s",
            lease.label,
            verdict.words,
            lease.status,
            why,
            fields=_fields(verdict) | {"error": why},
        )

    def raised_after_commit(self, verdict: Verdict, error: BaseException) -> None:
        """Tell of code that was to run after a commit and raised. What was committed stands."""
        lease = verdict.lease
        self.digest.log(
            ("on_commit", str(lease.lane), lease.status, cause_of(error)),
            logging.ERROR,
            "%s: its %s in state %r is committed, and what was to run after that raised.",
            lease.label,
            verdict.words,
            lease.status,
            error=error,
            fields=_fields(verdict),
        )


def _log(digest: Digest, level: int, verdict: Verdict, text: str, *facts: object) -> None:
    """Log what became of a row: the text starts with the row and its state, and ends with what went wrong."""
    lease = verdict.lease
    kind = (text, str(lease.lane), lease.status, cause_of(verdict.exception, verdict.error))
    said = (lease.label, lease.status, *facts, verdict.error)
    digest.log(kind, level, text, *said, error=verdict.exception, fields=_fields(verdict))


def _fields(verdict: Verdict) -> dict[str, Any]:
    """Return what a line about a verdict is about, for programs."""
    fields = verdict.lease.log_fields | {"outcome": str(verdict.kind)}
    if verdict.error:
        fields["error"] = verdict.error
    if verdict.to_status:
        fields["to_state"] = verdict.to_status
    if verdict.kind is Kind.FAILED:
        fields["retry_seconds"] = verdict.delay
    return fields


def _tell_failure(digest: Digest, verdict: Verdict) -> None:
    text = "%s failed in state %r, attempt %d; next try in %.0f s. %s"
    _log(digest, logging.WARNING, verdict, text, verdict.failures, verdict.delay or 0.0)
    _send_failure(verdict)


def _tell_move(digest: Digest, verdict: Verdict) -> None:
    """Tell of a move that was made because the row failed for good."""
    _log(digest, logging.ERROR, verdict, "%s failed in state %r for good and was moved to %r. %s", verdict.to_status)
    _send_failure(verdict)


def _tell_parked(digest: Digest, verdict: Verdict) -> None:
    _log(digest, logging.ERROR, verdict, "%s is parked in state %r until somebody calls resume() or moves it. %s")
    _send(row_parked, verdict, error=verdict.error)


def _tell_released(digest: Digest, verdict: Verdict) -> None:
    if verdict.error:
        _log(digest, logging.WARNING, verdict, "%s was given back in state %r. %s")


def _tell_deleted(digest: Digest, verdict: Verdict) -> None:
    lease = verdict.lease
    text = "%s was deleted: its time in state %r was up."
    kind, said = ("deleted", str(lease.lane), lease.status), (lease.label, lease.status)
    digest.log(kind, logging.INFO, text, *said, fields=_fields(verdict))
    if is_heard(rows_deleted, lease.lane.bound.model):
        machine, using = lease.lane.bound, lease.lane.using
        send(rows_deleted, machine.model, machine=machine.face, using=using, keys=[lease.key], state=lease.status)


def _tell_itself(digest: Digest, verdict: Verdict) -> None:
    if verdict.error:
        _log(digest, logging.WARNING, verdict, "%s: its handler moved it from %r and then raised. The move stands. %s")


_TELL = {
    Kind.FAILED: _tell_failure,
    Kind.MOVED: _tell_move,
    Kind.PARKED: _tell_parked,
    Kind.RELEASED: _tell_released,
    Kind.DELETED: _tell_deleted,
    Kind.SETTLED_ITSELF: _tell_itself,
}


def _send_failure(verdict: Verdict) -> None:
    facts = {"error": verdict.error, "failures": verdict.failures, "exception": verdict.exception}
    _send(handler_failed, verdict, **facts)


def _send(signal: Signal, verdict: Verdict, **facts: Any) -> None:
    lane = verdict.lease.lane
    if is_heard(signal, lane.bound.model):
        send(
            signal,
            lane.bound.model,
            machine=lane.bound.face,
            using=lane.using,
            instance=verdict.lease.instance,
            **facts,
        )


def send(signal: Signal, sender: Any, **facts: Any) -> None:
    """Send a signal. Whatever a receiver raises, what it was told has happened."""
    try:
        signal.send_robust(sender, **facts)
    except BaseException:
        logger.exception("A receiver of a signal of %s raised this, and those after it were not called.", sender)
