"""What a process tells and counts of outcomes, whichever of its threads wrote them."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence

from statemachine_fields.worker.digest import Digest, cause_of
from statemachine_fields.worker.outcomes import Dropped, RowOutcome
from statemachine_fields.worker.reporting import Counts

logger = logging.getLogger("statemachine_fields.worker")


class Events:
    """Reports outcomes, and counts by machine and state until somebody takes the counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counts = {}
        #: Since the start, by kind.
        self.total: Counter[str] = Counter()
        #: What all threads of a process log goes through one, which knows what it logged a moment ago.
        self.digest = Digest(logger)

    def count(self, machine: str, state: str, kind: str, number: int = 1, seconds: float = 0.0) -> None:
        with self._lock:
            self._add((machine, state, kind), number, seconds)
            self.total[kind] += number

    def _add(self, key: tuple[str, str, str], number: int, seconds: float) -> None:
        before, spent = self._counts.get(key, (0, 0.0))
        self._counts[key] = before + number, spent + seconds

    def take_counts(self) -> Counts:
        """Return what was counted since the last time."""
        with self._lock:
            taken, self._counts = self._counts, {}
        return taken

    def put_back(self, counts: Counts) -> None:
        """Keep counts that could not be written."""
        with self._lock:
            for key, (number, seconds) in counts.items():
                self._add(key, number, seconds)

    def committed(self, outcomes: Sequence[RowOutcome]) -> None:
        """Report outcomes of one lane that the database has."""
        machine = str(outcomes[0].lease.lane)
        for state, kind in {(outcome.lease.status, type(outcome)) for outcome in outcomes}:
            alike = [each for each in outcomes if each.lease.status == state and type(each) is kind]
            seconds = sum([outcome.lease.seconds for outcome in alike])
            self.count(machine, state, kind.counted_as or kind.kind, len(alike), seconds)
        for outcome in outcomes:
            outcome.is_reported = True
        for outcome in outcomes:
            if outcome.error or outcome.is_news:
                outcome.report(self.digest)

    def dropped(self, outcome: RowOutcome) -> None:
        outcome.is_reported = True
        lease = outcome.lease
        self.count(str(lease.lane), lease.status, Dropped.kind, seconds=lease.seconds)
        Dropped(lease, instead_of=outcome).report(self.digest)

    def deferred(self, outcome: RowOutcome, why: str, error: BaseException | None = None) -> None:
        """Report a row of which nothing can be written at the moment. It is tried again, after longer and longer waits."""
        text, cause = "cannot be written now and is tried again later. %s", cause_of(error, why)
        outcome.log_fate(self.digest, logging.WARNING, text, why, cause=cause, error=why)

    def raised_after_commit(self, outcome: RowOutcome, error: BaseException) -> None:
        """Report code that was to run after a commit and raised. What was committed stands."""
        text = "is committed, and what was to run after that raised."
        outcome.log_fate(self.digest, logging.ERROR, text, cause=cause_of(error), raised=error)
