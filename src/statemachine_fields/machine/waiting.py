"""Waiting for a row to reach a state: what is refused, the first look, and how the answer comes.

After the first look, by the caller, the process's watcher looks, on a connection of its own. Where the caller's connection is
the only one that sees the rows, as within the transaction of a `TestCase`, the caller goes on looking.
"""

from __future__ import annotations

import asyncio
import time
from concurrent import futures
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, connections, models, router
from django.db.transaction import TransactionManagementError

from statemachine_fields.db.own import is_seen_by_others
from statemachine_fields.db.rows import row_label
from statemachine_fields.exceptions import RowMissing, WaitTimeout
from statemachine_fields.machine.arrivals import Waiter, look
from statemachine_fields.machine.watcher import LIMITS, TICK, watched
from statemachine_fields.schedule.policy import plain, seconds_of

if TYPE_CHECKING:
    from statemachine_fields.machine.audit import StateTransition
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.schedule.policy import Seconds

M = TypeVar("M", bound=models.Model)


def wait_for(bound: Binding[M], instance: M, states: tuple[str, ...], timeout: Seconds | None) -> StateTransition[M]:
    """Wait in this thread."""
    wait = Wait(bound, instance, states, timeout)
    wait.begin()
    if wait.is_watched:
        with watched(wait.waiter, wait.using) as watcher:
            while not wait.is_over:
                futures.wait([wait.waiter.future], wait.time_left(LIMITS.statement))
                watcher.hang_up_if_silent()
        wait.look_for_the_last_time()
    while not wait.is_over:
        time.sleep(wait.time_left(TICK))
        wait.look()
    return wait.record()


async def await_for(
    bound: Binding[M],
    instance: M,
    states: tuple[str, ...],
    timeout: Seconds | None,  # noqa: ASYNC109 - the error that ends it says where the row is
) -> StateTransition[M]:
    """Wait without a thread: the watcher wakes the event loop."""
    wait = Wait(bound, instance, states, timeout)
    await sync_to_async(wait.begin)()
    if wait.is_watched:
        with watched(wait.waiter, wait.using) as watcher:
            future = asyncio.wrap_future(wait.waiter.future)
            try:
                while not wait.is_over:
                    await asyncio.wait([future], timeout=wait.time_left(LIMITS.statement))
                    watcher.hang_up_if_silent()
            finally:
                future.cancel()
        if wait.is_unanswered:
            await sync_to_async(wait.look_for_the_last_time)()
    while not wait.is_over:
        await asyncio.sleep(wait.time_left(TICK))
        await sync_to_async(wait.look)()
    return wait.record()


class Wait(Generic[M]):
    """One wait for one row, as the caller sees it."""

    def __init__(self, bound: Binding[M], instance: M, states: tuple[str, ...], timeout: Seconds | None) -> None:
        self.bound = bound
        self.instance = instance
        self.label = row_label(instance)
        self.seconds = seconds_of(timeout, "timeout")
        self.ends_at = None if self.seconds is None else time.monotonic() + self.seconds
        if not states:
            raise ValueError(f"{self.label}: wait_for() needs at least one state to wait for.")
        if not all(isinstance(state, str) for state in states):
            raise TypeError(f"{self.label}: wait_for() takes states one by one, as wait_for('A', 'B'), got {states!r}.")
        for state in states:
            bound.judge.require_state(state, self.label)
        if instance._state.adding or instance.pk is None:
            raise RowMissing(self.label, saved=False)
        self.using = router.db_for_write(type(instance), instance=instance)
        self.states = [plain(state) for state in states]
        self.waiter = self._new_waiter()
        #: Whether the watcher looks, and not the caller.
        self.is_watched = False

    def begin(self) -> None:
        """Refuse to wait where nothing can be waited for, and look for the first time."""
        connection = connections[self.using]
        blocks = connection.atomic_blocks
        is_tested = bool(blocks) and all(getattr(block, "_from_testcase", False) for block in blocks)
        if not is_tested and (connection.in_atomic_block or not connection.get_autocommit()):
            raise TransactionManagementError(
                f"{self.label}: wait_for() cannot be used inside a transaction. While yours is open it may hold the very row "
                "that others are to move, and they see nothing of what you have written. Wait after the atomic() block; in a "
                "view with ATOMIC_REQUESTS, put @transaction.non_atomic_requests on it."
            )
        self.look()
        self.is_watched = not (is_tested or self.waiter.future.done()) and is_seen_by_others(connection)

    def _new_waiter(self) -> Waiter:
        bound, seen = self.bound, vars(self.instance).get(self.bound.names.sequence)
        return Waiter(bound, bound.key_of(self.instance), self.label, self.states, seen, self.using)

    @property
    def is_unanswered(self) -> bool:
        return not self.waiter.future.done() or self.waiter.future.cancelled()

    def look(self) -> None:
        look(self.bound, [self.waiter], self.using)

    @property
    def is_over(self) -> bool:
        """Whether there is an answer, or no more time."""
        if self.waiter.future.done():
            return True
        return self.ends_at is not None and time.monotonic() >= self.ends_at

    def time_left(self, most: float) -> float:
        return most if self.ends_at is None else min(max(self.ends_at - time.monotonic(), 0.0), most)

    def look_for_the_last_time(self) -> None:
        """Look once more if the time is up: where many wait, it may be a while since anybody has."""
        if self.is_unanswered:
            status, self.waiter = self.waiter.status, self._new_waiter()  # the watcher may still look for the other
            self.waiter.status = status
            with suppress(OperationalError, InterfaceError):  # then nobody could have
                self.look()

    def record(self) -> StateTransition[M]:
        """Return the record that was waited for, or raise the error that came in its place; or that the time is up."""
        if self.is_unanswered:
            raise WaitTimeout(self.label, self.waiter.states, self.waiter.status, self.seconds or 0.0)
        arrival = self.waiter.future.result()
        values = deepcopy(arrival.values)  # others may wait for the same
        if not arrival.is_recorded:
            return self.bound.load_record(self.instance, self.using, values, None, adding=True)
        audit: Any = self.bound.transition_model
        record: StateTransition[M] = audit.from_db(self.using, list(values), list(values.values()))
        record._state.fields_cache["instance"] = self.instance
        return record
