"""What is to become of a row by the policy of its state, or by what its handler asked for: wait, move, fail, give up, park.

It decides, and runs nothing. What runs handlers is in `executor.py`.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

from statemachine_fields.db.dialect import is_connection_error
from statemachine_fields.machine.context import read_metadata
from statemachine_fields.schedule.policy import plain, seconds_of
from statemachine_fields.worker.answers import Move, Park, Retry, Spawn
from statemachine_fields.worker.connections import Trouble, diagnose
from statemachine_fields.worker.errors import described, in_words, shortened
from statemachine_fields.worker.lease import Lease
from statemachine_fields.worker.outcomes import Failed, Parked, ParkedByHandler, RowOutcome, Transitioned, Waited
from statemachine_fields.worker.spawning import Spawned, refuse_wrong_children
from statemachine_fields.worker.updates import group_of

#: How long to wait with a row whose handler found a database away.
AWAY_SECONDS = 5.0
#: How much longer a failed row waits at random, where the wait grows.
JITTER = 0.1
#: How often it is no failure that the connection of a handler was cut, and of how many rows that is remembered.
MOST_CUTS, MOST_CUT_ROWS = 10, 1000


@dataclass(slots=True)
class Verdicts:
    """Says what becomes of rows. Holds none of them, so that all threads share one."""

    max_crashes: int
    time_limit: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    #: For tests: treat time-outs and deletions as due whatever the clock says.
    fires_timeouts: bool = False
    fires_deletions: bool = False
    #: Also for tests, which want the same wait each time.
    jitter: float = JITTER
    #: Says what is behind an error that looks as if a database were away.
    diagnose: Callable[[str], Trouble] = diagnose
    #: How often the connection of a row's handler was cut, by machine, key and sequence.
    _cuts: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def _is_forgiven(self, lease: Lease, trouble: Trouble) -> bool:
        """Say whether a database is to blame and not the row: if it is away, or has cut the connection a few times."""
        if trouble is not Trouble.CUT:
            return trouble is Trouble.AWAY
        stay = (lease.lane, lease.key, lease.sequence)
        cuts = self._cuts.pop(stay, 0) + 1
        self._cuts[stay] = cuts
        if len(self._cuts) > MOST_CUT_ROWS:
            del self._cuts[next(iter(self._cuts))]
        return cuts <= MOST_CUTS

    def _is_timed_out(self, lease: Lease) -> bool:
        schedule = lease.schedule
        return schedule.is_timed_out(lease.age) or (self.fires_timeouts and schedule.timeout_to is not None)

    def _wait(self, lease: Lease, after: Any) -> RowOutcome:
        if self._is_timed_out(lease):
            return self._time_out(lease)
        delay = seconds_of(after, "after")
        delay = lease.schedule.wait_delay if delay is None else delay
        return Waited(lease, delay=delay, failures=lease.failures)

    def _move(self, lease: Lease, move: Move) -> Transitioned:
        bound, to_status = lease.lane.bound, plain(move.state)
        row: Any = lease.instance
        bound.judge.require_state(to_status, lease.label, lease.status)
        if refusal := bound.judge.refusal(lease.label, row, lease.status, to_status):
            raise refusal
        after, until = seconds_of(move.after, "after"), bound.schedules[to_status].until
        if after is not None and until is not None:
            raise ValueError(f"Move(after=...) means nothing in {to_status!r}, whose rows wait for {until}.")
        delay = bound.entry_delay(to_status, after)
        taken: tuple[int, ...] = ()
        if lease.awaited is not None:
            taken = lease.awaited.taken(move)
            if until is not None and lease.awaited.is_left_for(until, taken):
                delay = 0.0
        elif move.take:
            raise ValueError(f"Move(take=...) names events, and {lease.status!r} waits for none. Leave take out.")
        said: dict[str, Any] = {
            "to_status": to_status,
            "delay": delay,
            "take": taken,
            "update": move.update,
            "group": group_of(lease.lane, move.update) if move.update else None,
            "metadata": move.metadata,
            "written_metadata": read_metadata(move.metadata),
        }
        if isinstance(move, Spawn):
            refuse_wrong_children(lease, move.children)
            return Spawned(lease, children=move.children, **said)
        return Transitioned(lease, **said)

    def _retry(self, lease: Lease, retry: Retry) -> RowOutcome:
        group = group_of(lease.lane, retry.update) if retry.update else None
        text, error = in_words(retry.error)
        outcome = self._fail(lease, text or "The handler asked for a retry.", error, retry.after)
        outcome.update, outcome.group = retry.update, group
        return outcome

    def _park_as_asked(self, lease: Lease, park: Park) -> RowOutcome:
        reason, error = in_words(park.reason)
        reason = shortened(reason)
        if self._is_timed_out(lease):
            return self._time_out(lease, reason)
        return ParkedByHandler(lease, failures=lease.failures, error=reason, exception=error)

    def _time_out(self, lease: Lease, error: str = "") -> RowOutcome:
        schedule = lease.schedule
        assert schedule.timeout_to is not None  # noqa: S101 - it is there with timeout_after
        facts = {"timeout_after": schedule.timeout_after, **({"error": error} if error else {})}
        why = error or f"The row was in {lease.status!r} for longer than it may be."
        return self._move_by_policy(lease, schedule.timeout_to, facts, why, lease.failures, None)

    def _fail(self, lease: Lease, error: str, exception: BaseException | None, after: Any) -> RowOutcome:
        schedule, failures = lease.schedule, lease.failures + 1
        error = shortened(error)
        if self._is_timed_out(lease):
            return self._time_out(lease, error)
        if schedule.is_last_attempt(failures):
            return self._give_up(lease, error, exception, failures, {"attempts": failures})
        delay = seconds_of(after, "after")
        if delay is None:
            delay = schedule.retry_delay(failures, random.random() * self.jitter)  # noqa: S311 - to spread rows, not to hide
        return Failed(lease, delay=delay, failures=failures, error=error, exception=exception)

    def _give_up(
        self, lease: Lease, error: str, exception: BaseException | None, failures: int, facts: Mapping[str, Any]
    ) -> RowOutcome:
        """Move the row to where the policy wants those that failed, or park it."""
        error_to = lease.schedule.error_to
        if error_to is None:
            return self._park(lease, error, exception, failures)
        facts = {"error": shortened(error), **facts}
        return self._move_by_policy(lease, error_to, facts, shortened(error), failures, exception)

    def _move_by_policy(
        self,
        lease: Lease,
        to_status: str,
        facts: Mapping[str, Any],
        why: str,
        failures: int,
        exception: BaseException | None,
    ) -> RowOutcome:
        try:
            metadata = json.loads(json.dumps(facts, cls=DjangoJSONEncoder))
            outcome = self._move(lease, Move(to_status, metadata=metadata, take=()))
        except BaseException as error:  # noqa: BLE001 - a guard that is against it, or that raises
            if is_connection_error(error) and self._is_forgiven(lease, self.diagnose(lease.lane.using)):
                # It could not be asked. That is for now, and parking is for good.
                delay = min(lease.schedule.retry_after, AWAY_SECONDS)
                return Waited(lease, delay=delay, failures=lease.failures, error=shortened(why))
            text = f"{why}\nThe row could not be moved to {to_status!r}. {described(error)}"
            return self._park(lease, text, exception or error, failures)
        outcome.error, outcome.exception, outcome.failures = str(facts.get("error", "")), exception, failures
        outcome.is_by_policy = True
        return outcome

    def _park(self, lease: Lease, error: str, exception: BaseException | None, failures: int | None = None) -> Parked:
        failures = lease.failures if failures is None else failures
        return Parked(lease, failures=failures, error=shortened(error), exception=exception)
