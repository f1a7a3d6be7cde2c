"""The threads of a process that run handlers, and the one that hands rows to its event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from statemachine_fields.worker.atomic import run_atomic
from statemachine_fields.worker.connections import tidy_after_handler, used
from statemachine_fields.worker.coroutines import EventLoop
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.inflight import InFlight
from statemachine_fields.worker.lease import Lease
from statemachine_fields.worker.outcome_events import Events
from statemachine_fields.worker.outcomes import Conflicted, Released, RowOutcome


@dataclass(eq=False)
class RunLoop:
    """Takes rows that are claimed, runs their handlers, and hands on what came of them."""

    executor: HandlerExecutor
    events: Events
    inflight: InFlight
    loop: EventLoop
    stopping: threading.Event
    #: Has an outcome written.
    post: Callable[[RowOutcome], None]
    #: Called with a row whose handler has ended, and with one whose outcome was written with what its handler did.
    on_ran: Callable[[Lease], None] = lambda lease: None
    on_written: Callable[[Lease], None] = lambda lease: None

    def run(self) -> None:
        """Run handlers in the calling thread."""
        while (lease := self.inflight.buffer.take()) is not None:
            if not self._begin(lease):
                continue
            handler = lease.schedule.handler
            if handler is not None and handler.atomic:
                outcome = run_atomic(self.executor, self.events, lease)
            else:
                outcome = self.executor.run(lease)
            if used.aliases:
                tidy_after_handler(is_suspect=lease.is_stopped)
            self._finish(lease, outcome)

    def dispatch(self) -> None:
        """Hand rows to the event loop, as many at once as it may have."""
        while (lease := self.inflight.buffer.take(is_async=True)) is not None:
            while not self.loop.has_room(timeout=0.1):
                if self.stopping.is_set():
                    self.give_back([lease])
                    break
            else:
                if self._begin(lease):
                    self.loop.start(lease, self._finish)
                else:
                    self.loop.give_up_room()

    def _begin(self, lease: Lease) -> bool:
        """Say whether a row is still ours to run, and remember that it runs."""
        self.inflight.running.add(lease)  # before it is asked whether we stop, so that one of the two sees the other
        if lease.is_trusted and not self.stopping.is_set():
            return True
        self._end(lease)
        self.give_back([lease])  # it waited too long, and somebody else may have it by now; or we stop
        return False

    def _end(self, lease: Lease) -> None:
        self.inflight.running.discard(lease)
        self.inflight.buffer.finished(lease)

    def _finish(self, lease: Lease, outcome: RowOutcome | None) -> None:
        self._end(lease)
        self.on_ran(lease)
        if lease.is_stopped:
            return  # its time was up, and that is what is written
        if outcome is None:  # written already, with what the handler did
            self.inflight.let_go([lease])
            self.on_written(lease)
        elif not isinstance(outcome, Conflicted):
            self.post(outcome)
        elif self.stopping.is_set():
            self.give_back([lease])
        else:
            self.inflight.run_again(lease, outcome.delay)

    def give_back(self, leases: Iterable[Lease], error: str = "") -> None:
        """Release rows, but for those that another is known to have by now."""
        for lease in leases:
            if lease.is_lost:
                self.inflight.let_go([lease])
            else:
                self.post(Released(lease, error=error))
