"""One try at one row: what is to be done with it, and what its handler's answer comes to."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asgiref.sync import sync_to_async
from django.core.serializers.json import DjangoJSONEncoder
from django.db import InterfaceError, OperationalError

from statemachine_fields.db.dialect import sqlstate
from statemachine_fields.exceptions import InvalidStateTransition, TransitionBlocked, UnknownState
from statemachine_fields.machine.graph import plain
from statemachine_fields.machine.guards import find_blockers
from statemachine_fields.machine.metadata import read_metadata
from statemachine_fields.machine.policy import seconds_of
from statemachine_fields.machine.updates import read_update
from statemachine_fields.worker.lease import HandlerContext, Lease
from statemachine_fields.worker.outcomes import Kind, Move, Retry, TryAgainLater, Verdict

#: How much of an error is kept on the row.
LONGEST_ERROR = 4000
#: How long to wait with a row whose handler found a database away.
AWAY_SECONDS = 5.0
#: How much longer a failed row waits at random, where the wait grows.
JITTER = 0.1


class TimeLimitExceeded(Exception):
    """A handler was stopped because its time was up."""


@dataclass(slots=True)
class Attempts:
    """How tries are made and judged. Holds no row and no connection, so that all threads share one."""

    max_crashes: int
    time_limit: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    #: For tests: treat time-outs and deletions as due whatever the clock says.
    fires_timeouts: bool = False
    fires_deletions: bool = False

    def without_handler(self, lease: Lease) -> Verdict | None:
        """Return what becomes of a row that needs no handler to be run; None if it does."""
        clock = lease.clock
        if lease.load_error is not None:
            return self._park(lease, f"The row could not be loaded: {described(lease.load_error)}", lease.load_error)
        if lease.crashes >= self.max_crashes:
            reason = f"Given up: {lease.crashes} workers died while they ran this row, or vanished. {lease.error}"
            return self._give_up(lease, reason, None, lease.failures, {"crashes": lease.crashes})
        if self._is_to_be_deleted(lease):
            return Verdict(lease, Kind.DELETED)
        if clock.handler is not None:
            return None
        if self._is_timed_out(lease):
            return self._time_out(lease)
        return Verdict(lease, Kind.WAITED, failures=lease.failures)

    def begin(self, lease: Lease) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Start the time of a try, and return its handler and what to call it with."""
        handler = lease.clock.handler
        assert handler is not None  # noqa: S101 - without_handler() has seen to it
        limit = lease.clock.time_limit or self.time_limit
        now = lease.started_at = time.monotonic()
        lease.deadline = None if limit is None else now + limit
        method = getattr(lease.instance, handler.name)
        return method, ((HandlerContext(lease, self.stop),) if handler.wants_context else ())

    def run(self, lease: Lease) -> Verdict:
        """Do what is to be done with the row, in this thread, and say what becomes of it."""
        verdict = self.without_handler(lease)
        if verdict is not None:
            return verdict
        method, arguments = self.begin(lease)
        try:
            answer = method(*arguments)
        except SystemExit as error:
            return self.judge_error(lease, exited(error))
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            return self.judge_error(lease, error)
        return self._judged(lease, answer)

    async def arun(self, lease: Lease) -> Verdict:
        """As `run()`, for a handler that is a coroutine function."""
        verdict = self.without_handler(lease)
        if verdict is not None:
            return verdict
        method, arguments = self.begin(lease)
        try:
            answer = await method(*arguments)
        except asyncio.CancelledError:
            if lease.is_stopped:
                # What it waited for may still block the thread that all coroutines share: then we do not end, either.
                await sync_to_async(_do_nothing)()
                raise
            return await self._ajudge(self.judge_error, lease, RuntimeError("The handler was cancelled by other code."))
        except SystemExit as error:
            return await self._ajudge(self.judge_error, lease, exited(error))
        except Exception as error:  # noqa: BLE001
            return await self._ajudge(self.judge_error, lease, error)
        return await self._ajudge(self._judged, lease, answer)

    async def _ajudge(self, judge: Callable[[Lease, Any], Verdict], lease: Lease, answer: Any) -> Verdict:
        """Judge on the loop, unless guards are asked, which may want the database."""
        if lease.lane.bound.guards:
            return await sync_to_async(judge)(lease, answer)
        return judge(lease, answer)

    def _judged(self, lease: Lease, answer: object) -> Verdict:
        try:
            return self.judge(lease, answer)
        except Exception as error:  # noqa: BLE001 - what is wrong with an answer counts as a failure of the handler
            return self.judge_error(lease, error)

    def judge(self, lease: Lease, answer: object) -> Verdict:
        """Return what a handler's answer comes to. What is wrong with it is raised, as if the handler had."""
        self._end(lease)
        if self._has_moved_itself(lease):
            if answer is None:
                return Verdict(lease, Kind.SETTLED_ITSELF)
            raise TypeError(f"The handler moved the row itself and returned {answer!r} as well. Return None then.")
        if answer is None:
            return self._wait(lease, None)
        if isinstance(answer, str):
            delays = lease.lane.plain_moves.get(lease.status)
            if delays is not None and answer in delays:  # nothing to be asked or checked
                return Verdict(lease, Kind.MOVED, delay=delays[answer], to_status=plain(answer))
            return self._move(lease, Move(answer))
        if isinstance(answer, Move):
            return self._move(lease, answer)
        if isinstance(answer, Retry):
            return self._fail(lease, answer.error or "The handler asked for a retry.", None, answer.after)
        raise TypeError(
            f"The handler returned {answer!r}. It must return a state, None for not yet, a Move or a Retry."
        )

    def judge_error(self, lease: Lease, error: Exception) -> Verdict:
        """Return what an exception of a handler comes to."""
        self._end(lease)
        if self._has_moved_itself(lease):  # the move stands, and the row is no longer ours to fail
            return Verdict(lease, Kind.SETTLED_ITSELF, error=described(error), exception=error)
        return self._judge_error(lease, error)

    def not_moved(self, verdict: Verdict) -> Verdict:
        """Return what becomes of a row that its handler moved in a transaction which was then undone."""
        if isinstance(verdict.exception, Exception):
            return self._judge_error(verdict.lease, verdict.exception)
        return self._wait(verdict.lease, None)

    def _judge_error(self, lease: Lease, error: Exception) -> Verdict:
        if isinstance(error, TryAgainLater):
            return self._wait(lease, error.after)
        if isinstance(error, OperationalError | InterfaceError) and is_connection_lost(error):
            # Some database is away: not the row's fault, so no failure, but no reason to hurry either.
            delay = min(lease.clock.retry_after, AWAY_SECONDS)
            text = shortened(described(error))
            return Verdict(lease, Kind.WAITED, delay=delay, failures=lease.failures, error=text, exception=error)
        return self._fail(lease, described(error), error, None)

    def time_is_up(self, lease: Lease) -> Verdict:
        """Return what becomes of a row whose handler was stopped."""
        began, deadline = lease.started_at or 0.0, lease.deadline or 0.0
        lease.seconds = time.monotonic() - began
        error = f"Stopped: the handler ran longer than its time limit of {deadline - began:g} s."
        return self._fail(lease, error, None, None)

    def refuse(self, verdict: Verdict, error: Exception) -> Verdict:
        """Return what becomes of a row whose outcome could not be written."""
        lease, text = verdict.lease, f"The {verdict.words} could not be written. {described(error)}"
        if verdict.kind is Kind.MOVED and not verdict.is_by_policy:
            return self._fail(lease, text, error, None)
        text = f"{verdict.error}\n{text}" if verdict.error else text
        return self._park(lease, text, error, max(verdict.failures, lease.failures))

    def _end(self, lease: Lease) -> None:
        if lease.started_at is not None:
            lease.seconds = time.monotonic() - lease.started_at

    def _has_moved_itself(self, lease: Lease) -> bool:
        return vars(lease.instance).get(lease.lane.bound.names.sequence) != lease.sequence

    def _is_timed_out(self, lease: Lease) -> bool:
        clock = lease.clock
        return clock.is_timed_out(lease.age) or (self.fires_timeouts and clock.timeout_to is not None)

    def _is_to_be_deleted(self, lease: Lease) -> bool:
        clock = lease.clock
        return clock.is_to_be_deleted(lease.age) or (self.fires_deletions and clock.delete_after is not None)

    def _wait(self, lease: Lease, after: Any) -> Verdict:
        if self._is_timed_out(lease):
            return self._time_out(lease)
        delay = seconds_of(after, "after")
        delay = lease.clock.retry_after if delay is None else delay
        return Verdict(lease, Kind.WAITED, delay=delay, failures=lease.failures)

    def _move(self, lease: Lease, move: Move) -> Verdict:
        bound, to_status = lease.lane.bound, plain(move.state)
        if to_status not in bound.graph:
            raise UnknownState(lease.label, to_status, list(bound.graph.states), lease.status)
        allowed = bound.graph.targets(lease.status)
        if to_status not in allowed:
            raise InvalidStateTransition(lease.label, lease.status, to_status, allowed)
        if bound.guards and (blockers := find_blockers(bound, self._row(lease), lease.status, to_status)):
            raise TransitionBlocked(lease.label, lease.status, to_status, allowed, blockers)
        if move.update:
            read_update(bound.model, move.update)
        return Verdict(
            lease,
            Kind.MOVED,
            to_status=to_status,
            delay=bound.entry_delay(to_status, seconds_of(move.after, "after")),
            update=move.update,
            metadata=move.metadata,
            written_metadata=read_metadata(move.metadata),
        )

    def _row(self, lease: Lease) -> Any:
        return lease.instance

    def _time_out(self, lease: Lease, error: str = "") -> Verdict:
        clock = lease.clock
        assert clock.timeout_to is not None  # noqa: S101 - it is there with timeout_after
        facts = {"timeout_after": clock.timeout_after, **({"error": error} if error else {})}
        why = error or f"The row was in {lease.status!r} for longer than it may be."
        return self._move_by_policy(lease, clock.timeout_to, facts, why, lease.failures, None)

    def _fail(self, lease: Lease, error: str, exception: BaseException | None, after: Any) -> Verdict:
        clock, failures = lease.clock, lease.failures + 1
        error = shortened(error)
        if self._is_timed_out(lease):
            return self._time_out(lease, error)
        if clock.is_last_attempt(failures):
            return self._give_up(lease, error, exception, failures, {"attempts": failures})
        delay = seconds_of(after, "after")
        if delay is None:
            delay = clock.retry_delay(failures, random.random() * JITTER)  # noqa: S311 - to spread rows, not to hide
        return Verdict(lease, Kind.FAILED, delay=delay, failures=failures, error=error, exception=exception)

    def _give_up(
        self, lease: Lease, error: str, exception: BaseException | None, failures: int, facts: Mapping[str, Any]
    ) -> Verdict:
        """Move the row to where the policy wants those that failed, or park it."""
        error_to = lease.clock.error_to
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
    ) -> Verdict:
        try:
            verdict = self._move(lease, Move(to_status, metadata=json.loads(json.dumps(facts, cls=DjangoJSONEncoder))))
        except Exception as error:  # noqa: BLE001 - a guard that is against it, or that raises
            text = f"{why}\nThe row could not be moved to {to_status!r}. {described(error)}"
            return self._park(lease, text, exception or error, failures)
        verdict.error, verdict.exception, verdict.failures = str(facts.get("error", "")), exception, failures
        verdict.is_by_policy = True
        return verdict

    def _park(self, lease: Lease, error: str, exception: BaseException | None, failures: int | None = None) -> Verdict:
        failures = lease.failures if failures is None else failures
        return Verdict(lease, Kind.PARKED, failures=failures, error=shortened(error), exception=exception)


def exited(error: SystemExit) -> RuntimeError:
    """Return what is said of a handler that meant to end a script, and must not end a worker."""
    return RuntimeError(f"The handler called sys.exit({error.code!r}).")


def _do_nothing() -> None:
    pass


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def shortened(error: str) -> str:
    """Return an error as a text column can keep it."""
    error = error.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    return error if len(error) <= LONGEST_ERROR else f"{error[: LONGEST_ERROR - 1]}…"


def is_connection_lost(error: Exception) -> bool:
    """Say whether the database itself is away or cannot work, which is not the row's fault.

    PostgreSQL gives other errors a code. Class 08 is a broken connection, 57P a server that shuts down, 53 one that is out
    of resources, 25006 one that has become read-only.
    """
    cause = error.__cause__
    if not type(cause).__module__.startswith("psycopg"):
        return False
    code = sqlstate(error) or ""
    return not code or code.startswith(("57P", "08", "53", "25006"))
