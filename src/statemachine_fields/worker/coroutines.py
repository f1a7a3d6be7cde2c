"""Handlers that are coroutines: an event loop in a thread of its own, and threads in which they use the ORM.

Django's connections belong to threads. So that no coroutine ever meets a transaction of another, each has a thread to
itself from its first synchronous call to its end, out of a bounded number. Only one that has nothing open, and no call
under way, gives its thread up while others wait for one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections

from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.worker.connections import tidy_after_handler
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.lease import Lease
from statemachine_fields.worker.outcomes import Released, RowOutcome

logger = logging.getLogger("statemachine_fields.worker")

#: After how many seconds without an answer the loop is taken to be blocked.
BLOCKED_AFTER = 0.5


class EventLoop:
    """Runs coroutines. Whatever one of them does to the loop, the others go on."""

    def __init__(self, executor: HandlerExecutor, most: int, threads: int) -> None:
        self.executor = executor
        self.tasks: dict[Lease, asyncio.Task[RowOutcome]] = {}
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(TidyingExecutor(thread_name_prefix="statemachine call"))
        self._room = threading.BoundedSemaphore(most)
        self._threads = CoroutineThreads(threads)
        self._answered = threading.Event()
        self._answered.set()
        self._asked_at = time.monotonic()

    def run(self) -> None:
        """Run for ever: a handler may stop the loop, or end a task of its own with `sys.exit()`."""
        while True:
            try:
                self._loop.run_forever()
            except BaseException:
                if self._loop.is_closed():
                    raise
                logger.exception("A task of a handler raised this out of the event loop of process %d.", os.getpid())

    def has_room(self, timeout: float) -> bool:
        """Wait until another coroutine may be started, but not for long."""
        return self._room.acquire(timeout=timeout)

    def give_up_room(self) -> None:
        self._room.release()

    def start(self, lease: Lease, finish: Callable[[Lease, RowOutcome | None], None]) -> None:
        """Run a row's handler in the room that was waited for, and pass on what came of it."""

        def begin() -> None:
            self.tasks[lease] = task = self._loop.create_task(self._run(lease))
            task.add_done_callback(done)

        def done(task: asyncio.Task[RowOutcome]) -> None:
            self.give_up_room()
            self.tasks.pop(lease, None)
            if not task.cancelled() and task.exception() is None:
                finish(lease, task.result())
            elif lease.is_stopped:  # because its time was up, which the watch has said
                finish(lease, None)
            else:  # code that we do not know has cancelled it again and again
                finish(lease, Released(lease, error="Its task was cancelled by other code."))

        self._loop.call_soon_threadsafe(begin)

    async def _run(self, lease: Lease) -> RowOutcome:
        context, executor = ThreadSensitiveContext(), CoroutineExecutor(self._threads)
        SyncToAsync.context_to_thread_executor[context] = executor
        SyncToAsync.thread_sensitive_context.set(context)  # of this task, which has a context of its own
        try:
            return await self.executor.arun(lease)
        except BaseException as error:
            if lease.is_stopped:
                raise
            return await self.executor.ajudge_error(lease, error)  # cancelled while it was judged
        finally:
            # What it waited for may still block its thread: then it does not end, either.
            ended = asyncio.wrap_future(executor.finish())
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # that may still be to come, and it has its answer
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            while not ended.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(ended)

    def is_blocked(self) -> bool:
        """Say whether nothing on the loop can run because one coroutine does not let go. To be asked again and again."""
        if self._answered.is_set():
            self._answered.clear()
            self._asked_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._answered.set)
            return False
        return time.monotonic() - self._asked_at > BLOCKED_AFTER

    def blocked_by(self) -> Lease | None:
        """Return the row whose coroutine runs at this moment."""
        current = asyncio.current_task(self._loop)
        return next((lease for lease, task in list(self.tasks.items()) if task is current), None)

    def cancel(self, lease: Lease) -> bool:
        """Ask a coroutine to end, if there is one. It is running until it has."""
        task = self.tasks.get(lease)
        if task is None:
            return False
        self._loop.call_soon_threadsafe(task.cancel)
        return True


class TidyingExecutor(ThreadPoolExecutor):
    """Threads that anybody may use, and that keep nothing from one call to the next."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(_tidily, partial(call, *args, **kwargs))


def _tidily(call: Callable[[], Any]) -> Any:
    try:
        return call()
    finally:
        tidy_after_handler()


class CoroutineThreads:
    """A bounded number of threads, each lent to one coroutine at a time."""

    def __init__(self, most: int) -> None:
        self.lock = threading.Lock()
        self._most = most
        self._made = 0
        self._idle: list[ThreadPoolExecutor] = []
        self._waiting: deque[CoroutineExecutor] = deque()
        self._borrowers: set[CoroutineExecutor] = set()

    def lend(self, borrower: CoroutineExecutor) -> ThreadPoolExecutor | None:
        """Return a thread, or remember that one is waited for. The caller has the lock."""
        thread = self._find()
        if thread is None:
            self._waiting.append(borrower)
        else:
            self._borrowers.add(borrower)
        return thread

    def _find(self) -> ThreadPoolExecutor | None:
        if self._idle:
            return self._idle.pop()
        if self._made < self._most:
            self._made += 1
            return ThreadPoolExecutor(max_workers=1, thread_name_prefix="statemachine coroutine")
        for borrower in self._borrowers:
            if borrower.can_do_without:
                self._borrowers.discard(borrower)
                thread, borrower.thread = borrower.thread, None
                if thread is not None:
                    thread.submit(tidy_after_handler)  # before all that the next one does
                return thread
        return None

    def take_back(self, thread: ThreadPoolExecutor, borrower: CoroutineExecutor) -> None:
        """Lend a thread to who waits longest, or keep it. The caller has the lock."""
        self._borrowers.discard(borrower)
        if not self._waiting:
            self._idle.append(thread)
            return
        waiting = self._waiting.popleft()
        self._borrowers.add(waiting)
        waiting.begin(thread)

    def is_wanted(self) -> bool:
        return bool(self._waiting)


class CoroutineExecutor(Executor):
    """Where the synchronous calls of one coroutine run, one after the other."""

    def __init__(self, threads: CoroutineThreads) -> None:
        self.thread: ThreadPoolExecutor | None = None
        self._threads = threads
        self._has_asked = False
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._under_way = 0
        #: Whether something is open in the thread that only this coroutine may meet.
        self._is_bound = False
        self._is_over = False

    @property
    def can_do_without(self) -> bool:
        return not self._under_way and not self._is_bound

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._is_over:
            raise RuntimeError("The handler has ended, and so has what its tasks may do in its thread.")
        return self._add(partial(call, *args, **kwargs))

    def finish(self) -> Future[None]:
        """Leave the thread to others, as clean as it was, once all calls are done."""
        self._is_over = True
        if self.thread is None and not self._has_asked:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._add(_leave_thread)

    def _add(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._threads.lock:
            self._under_way += 1
            self._calls.append((future, call))
            if self.thread is None and not self._has_asked:
                self._has_asked = True
                if (thread := self._threads.lend(self)) is not None:
                    self.begin(thread)
            elif self.thread is not None:
                self.thread.submit(self._run_next)
        return future

    def begin(self, thread: ThreadPoolExecutor) -> None:
        """Run in a thread what has waited for one."""
        self.thread, self._has_asked = thread, False
        for _ in range(len(self._calls)):
            thread.submit(self._run_next)

    def _run_next(self) -> None:
        future, call = self._calls.popleft()
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - for who waits for it
            future.set_exception(error)
        finally:
            is_last = call is _leave_thread
            self._is_bound = not is_last and _is_anything_open()
            with self._threads.lock:
                self._under_way -= 1
                is_free = is_last or (self._threads.is_wanted() and not self._is_bound)
                if is_free and self.thread is not None and not self._under_way:
                    thread, self.thread = self.thread, None
                    if not is_last:
                        thread.submit(tidy_after_handler)  # before all that the next one does
                    self._threads.take_back(thread, self)


#: Where it is remembered, on Django's connection, how many cursors of others it has had.
CURSORS = "statemachine_fields_cursors"


def _leave_thread() -> None:
    tidy_after_handler()
    for connection in connections.all(initialized_only=True):
        setattr(connection, CURSORS, _cursors_of(connection))


def _is_anything_open() -> bool:
    """Say whether the thread has a transaction, or may have a cursor, that is not over."""
    return any(_is_open(connection) for connection in connections.all(initialized_only=True))


def _is_open(connection: Any) -> bool:
    if connection.connection is None:
        return False
    if connection.in_atomic_block or not connection.autocommit or connection.errors_occurred:
        return True  # of errors it is still to be found out what is behind them
    if not hasattr(connection, "_named_cursor_idx") or _cursors_of(connection) > getattr(connection, CURSORS, 0):
        return True  # where cursors are not counted there may be one, too
    dialect = dialect_for(connection)
    return not dialect.is_clean(connection) and not dialect.is_broken(connection)  # BEGIN, past Django


def _cursors_of(connection: Any) -> int:
    cursors: int = getattr(connection, "_named_cursor_idx", 0)
    return cursors
