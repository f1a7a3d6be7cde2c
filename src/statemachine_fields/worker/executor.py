"""One try at one row: what is to be done with it, and what its handler's answer comes to."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import async_to_sync, sync_to_async

from statemachine_fields.db.dialect import is_connection_error
from statemachine_fields.schedule.policy import plain
from statemachine_fields.worker.answers import Move, Park, Retry, TryAgainLater
from statemachine_fields.worker.awaited import Awaited
from statemachine_fields.worker.errors import described, shortened
from statemachine_fields.worker.handler_context import HandlerContext
from statemachine_fields.worker.lease import Lease
from statemachine_fields.worker.outcomes import (
    Conflicted,
    Deleted,
    RowOutcome,
    Transitioned,
    TransitionedItself,
    Waited,
)
from statemachine_fields.worker.verdicts import AWAY_SECONDS, Verdicts

#: How often an atomic handler is run again because somebody else was in its way, before that counts as a failure, and how
#: long it waits: twice as long each time.
MOST_CONFLICTS, CONFLICT_SECONDS = 4, 0.05


T = TypeVar("T")


@dataclass(slots=True)
class HandlerExecutor(Verdicts):
    """Runs handlers, and says what their answers come to. Holds no row and no connection, so that all threads share one."""

    def without_handler(self, lease: Lease) -> RowOutcome | None:
        """Return what becomes of a row that needs no handler to be run; None if it does."""
        schedule = lease.schedule
        if lease.load_error is not None:
            return self._park(lease, f"The row could not be loaded: {described(lease.load_error)}", lease.load_error)
        if lease.crashes >= self.max_crashes:
            reason = f"Given up: {lease.crashes} workers died while they ran this row, or vanished. {lease.error}"
            return self._give_up(lease, reason, None, lease.failures, {"crashes": lease.crashes})
        if schedule.delete_after is not None and (self.fires_deletions or schedule.is_to_be_deleted(lease.age)):
            return Deleted(lease)
        if lease.awaited is not None and lease.awaited.has_happened:
            return self._happened(lease, lease.awaited)
        if schedule.handler is not None and lease.awaited is None:
            return None
        if self._is_timed_out(lease):
            return self._time_out(lease)
        return Waited(lease, failures=lease.failures)

    def _happened(self, lease: Lease, awaited: Awaited) -> RowOutcome | None:
        """Return what becomes of a row now that it has what it waited for; None if its handler is to be run."""
        if lease.schedule.handler is not None and not awaited.goes_by_itself:
            return None
        if why := awaited.parks:
            return self._park(lease, why, None)
        return self._move(lease, awaited.move())

    def begin(self, lease: Lease) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Start the time of a try, and return its handler and what to call it with."""
        handler = lease.schedule.handler
        assert handler is not None  # noqa: S101 - without_handler() has seen to it
        limit = lease.schedule.time_limit or self.time_limit
        now = lease.started_at = time.monotonic()
        lease.deadline = None if limit is None else now + limit
        method = getattr(lease.instance, handler.name)
        return method, ((HandlerContext(lease, self.stop),) if handler.wants_context else ())

    def run(self, lease: Lease) -> RowOutcome:
        """Do what is to be done with the row, in this thread, and say what becomes of it."""
        try:
            outcome = self.without_handler(lease)
            if outcome is not None:
                return outcome
            method, arguments = self.begin(lease)
            return self.judge(lease, method(*arguments))
        except BaseException as error:  # noqa: BLE001 - of the handler, or of what is wrong with its answer
            return self.judge_error(lease, error)

    async def arun(self, lease: Lease) -> RowOutcome:
        """As `run()`, for a handler that is a coroutine function."""
        try:
            outcome = self.without_handler(lease)
            if outcome is not None:
                return outcome
            method, arguments = self.begin(lease)
            answer = await method(*arguments)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and lease.is_stopped:
                raise
            return await self.ajudge_error(lease, error)
        try:
            return await self.ajudge(self.judge, lease, answer)
        except BaseException as error:  # noqa: BLE001 - as in judged()
            return await self.ajudge_error(lease, error)

    async def ajudge(self, judge: Callable[[Lease, Any], T], lease: Lease, answer: Any) -> T:
        """Judge on the loop, unless the database is asked: by guards, or whether it is there, or by what decides on errors."""
        is_error = isinstance(answer, BaseException)
        if lease.lane.bound.guards or (is_error and (lease.schedule.on_error or is_connection_error(answer))):
            return await sync_to_async(judge)(lease, answer)
        return judge(lease, answer)

    async def ajudge_error(self, lease: Lease, error: BaseException) -> RowOutcome:
        """As `judge_error()`. What decides on errors is awaited on the loop if it is a coroutine function."""
        decides = lease.schedule.on_error
        if decides is None or not decides.is_async:
            return await self.ajudge(self.judge_error, lease, error)
        self._end(lease)
        outcome = await self.ajudge(self._excused, lease, error)
        if outcome is not None:
            return outcome
        try:
            answer = await getattr(lease.instance, decides.name)(HandlerContext(lease, self.stop), error)
        except BaseException as other:
            if isinstance(other, asyncio.CancelledError) and lease.is_stopped:
                raise
            return await self.ajudge(partial(self._failed_deciding, error), lease, other)
        return await self.ajudge(partial(self._decided, error), lease, answer)

    def judged(self, lease: Lease, answer: object) -> RowOutcome:
        """Return what a handler's answer comes to. What is wrong with it counts as a failure of the handler."""
        try:
            return self.judge(lease, answer)
        except BaseException as error:  # noqa: BLE001 - of a guard, or in the words of an object that was returned
            return self.judge_error(lease, error)

    def judge(self, lease: Lease, answer: object) -> RowOutcome:
        """Return what a handler's answer comes to. What is wrong with it is raised, as if the handler had."""
        self._end(lease)
        if self._has_moved_itself(lease):
            if answer is None:
                return TransitionedItself(lease)
            raise TypeError(f"The handler moved the row itself and returned {answer!r} as well. Return None then.")
        if answer is None:
            return self._wait(lease, None)
        if isinstance(answer, str):
            delays = lease.lane.plain_moves.get(lease.status)
            if delays is not None and answer in delays:  # nothing to be asked or checked
                return Transitioned(
                    lease, delay=delays[answer], to_status=answer if type(answer) is str else plain(answer)
                )
            return self._move(lease, Move(answer))
        if isinstance(answer, Move):
            return self._move(lease, answer)
        if isinstance(answer, Retry):
            return self._retry(lease, answer)
        if isinstance(answer, Park):
            return self._park_as_asked(lease, answer)
        raise TypeError(
            f"The handler returned {answer!r}. It must return a state, None for not yet, a Move, a Spawn, a Retry or a Park."
        )

    def judge_error(self, lease: Lease, error: BaseException) -> RowOutcome:
        """Return what an exception of a handler comes to."""
        self._end(lease)
        try:
            return self._excused(lease, error) or self._decide(lease, error)
        except BaseException:  # noqa: BLE001 - of the exception's own making, or of what is left of the instance
            return self._fail(lease, described(error), error, None)

    def _decide(self, lease: Lease, error: BaseException) -> RowOutcome:
        """Ask what decides on errors, if there is such a thing, and else the policy."""
        decides = lease.schedule.on_error
        if decides is None or lease.started_at is None:
            return self._fail(lease, described(error), error, None)
        method = getattr(lease.instance, decides.name)
        try:
            call = async_to_sync(method) if decides.is_async else method
            answer = call(HandlerContext(lease, self.stop), error)
        except BaseException as other:  # noqa: BLE001 - code of the user's
            return self._failed_deciding(error, lease, other)
        return self._decided(error, lease, answer)

    def _decided(self, error: BaseException, lease: Lease, answer: object) -> RowOutcome:
        """Return what the answer of what decides on errors comes to. None leaves the error to the policy."""
        self._end(lease)
        try:
            if answer is None and not self._has_moved_itself(lease):
                return self._fail(lease, described(error), error, None)
            if isinstance(answer, Retry) and answer.error == "":
                answer = replace(answer, error=error)
            return self.judge(lease, answer)
        except BaseException as other:  # noqa: BLE001 - as in judged()
            return self._failed_deciding(error, lease, other)

    def _failed_deciding(self, error: BaseException, lease: Lease, other: BaseException) -> RowOutcome:
        """Return what becomes of a row when what decides on errors raises: not yet, if that is what it says, else a failure."""
        self._end(lease)
        if other is not error and other.__context__ is None:
            other.__context__ = error
        if (outcome := self._excused(lease, other)) is not None:
            return outcome
        name = "" if lease.schedule.on_error is None else lease.schedule.on_error.name
        text = "" if other is error else f"\n{name}(), which decides on errors, raised {described(other)}"
        return self._fail(lease, f"{described(error)}{text}", other, None)

    def not_moved(self, outcome: RowOutcome) -> RowOutcome:
        """Return what becomes of a row that its handler moved in a transaction which was then undone."""
        if outcome.exception is not None:
            lease, error = outcome.lease, outcome.exception
            return self._excused(lease, error, has_moved=False) or self._fail(lease, described(error), error, None)
        return self._wait(outcome.lease, None)

    def _excused(self, lease: Lease, error: BaseException, *, has_moved: bool | None = None) -> RowOutcome | None:
        """Return what becomes of a row whose handler has raised what is no failure; None if it is one.

        :param has_moved: whether the handler moved the row before, if not its instance is to say so.
        """
        if self._has_moved_itself(lease) if has_moved is None else has_moved:
            # The move stands, and the row is no longer ours to fail.
            return TransitionedItself(lease, error=described(error), exception=error)
        if isinstance(error, TryAgainLater):
            return self._wait(lease, error.after)
        if is_connection_error(error) and self._is_forgiven(lease, self.diagnose(lease.lane.using)):
            # Not the row's fault, so no failure, but no reason to hurry either.
            outcome = self._wait(lease, min(lease.schedule.retry_after, AWAY_SECONDS))
            if isinstance(outcome, Waited):
                outcome.error, outcome.exception = shortened(described(error)), error
            return outcome
        return None

    def judge_conflict(self, lease: Lease, error: BaseException) -> RowOutcome:
        """Return what becomes of a row whose atomic handler was undone because somebody else was in its way: nothing is
        wrong with it, so that it is run again a few times; but what is always in the way is a failure."""
        if lease.conflicts >= MOST_CONFLICTS:
            return self.judge_error(lease, error)
        lease.conflicts += 1
        delay = CONFLICT_SECONDS * 2**lease.conflicts * random.uniform(0.5, 1.0)  # noqa: S311 - to meet less often
        return Conflicted(lease, delay=delay, error=shortened(described(error)), exception=error)

    def time_is_up(self, lease: Lease) -> RowOutcome:
        """Return what becomes of a row whose handler was stopped."""
        began = lease.started_at or time.monotonic()
        lease.seconds = time.monotonic() - began
        error = "Stopped: the handler blocked the event loop."
        if lease.deadline is not None and time.monotonic() >= lease.deadline:
            error = f"Stopped: the handler ran longer than its time limit of {lease.deadline - began:g} s."
        return self._fail(lease, error, None, None)

    def refuse(self, outcome: RowOutcome, error: BaseException) -> RowOutcome:
        """Return what becomes of a row whose outcome could not be written."""
        lease, text = outcome.lease, f"The {outcome} could not be written. {described(error)}"
        if outcome.update or (isinstance(outcome, Transitioned) and not outcome.is_by_policy):
            other = self._fail(lease, text, error, None)  # without what the handler wanted written
        else:
            text = f"{outcome.error}\n{text}" if outcome.error else text
            other = self._park(lease, text, error, max(outcome.failures, lease.failures))
        other.instead_of = outcome.instead_of or outcome
        return other

    def _end(self, lease: Lease) -> None:
        if lease.started_at is not None:
            lease.seconds = time.monotonic() - lease.started_at

    def _has_moved_itself(self, lease: Lease) -> bool:
        """Say whether the instance knows of a move since the row was claimed, if it still is that row."""
        instance, bound = lease.instance, lease.lane.bound
        if instance is None or vars(instance).get(bound.names.sequence, lease.sequence) == lease.sequence:
            return False
        return bool(bound.key_of(instance) == lease.key)
