"""The parent of the worker processes: starts them, watches them, replaces them, and stops them. Has no connection.

A process that dies is replaced at once, and the new one takes back what the old one held. A process that says nothing for
too long, because something in it never lets go of the interpreter, is killed and replaced. Whether a process has died or
ended in good order is what it says itself, not its exit code.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from django.db import connections

from statemachine_fields.worker.digest import Digest
from statemachine_fields.worker.listener import Listener
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.process import Orders, Pipes, ProcessReport, run_process

logger = logging.getLogger("statemachine_fields.worker")
digest = Digest(logger)

#: How long a process may say nothing.
SILENCE = 30.0
LIVENESS_EVERY = 1.0
STATUS_EVERY = 10.0
#: A process that dies sooner than this after its start is replaced later and later, up to the longest wait: to one that
#: came so far as to work some row was most likely the end, and the other rows should not have to wait for long.
TOO_YOUNG, LONGEST_WAIT, LONGEST_WAIT_OF_ROWS = 5.0, 30.0, 1.0
#: A process that is to stop is told again after this long.
TELL_AGAIN_AFTER = 1.0
#: How many processes that are being replaced may take as long as their handlers do, for each that works. Then the oldest
#: of them has to hurry.
MOST_LINGERING = 3


@dataclass(slots=True, eq=False)
class Child:
    """One worker process, as its supervisor sees it."""

    process: Any
    pipe: Connection
    orders_pipe: Connection
    #: The place among the processes that it has, with those that it replaces.
    slot: int
    started_at: float
    heard_at: float
    report: ProcessReport | None = None
    is_replaced: bool = False
    orders: Orders = field(default_factory=Orders)

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    @property
    def owner(self) -> str | None:
        return None if self.report is None else self.report.owner

    @property
    def has_ended(self) -> bool:
        """Whether it said itself that it has stopped in good order. Code of the user's can end a process with any code."""
        return self.report is not None and self.report.ended

    def give(self, orders: Orders) -> None:
        """Tell it what it does not know yet."""
        if orders != self.orders:
            with contextlib.suppress(OSError):
                self.orders_pipe.send(orders)
            self.orders = orders


@dataclass(frozen=True, slots=True)
class Start:
    """A process that is to be started."""

    at: float
    slot: int
    #: The name of a process that died, whose rows are to be taken back.
    predecessor: str | None = None


class Supervisor:
    """Keeps a number of worker processes running."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        # The parent has no threads, so forking is safe, and quick; where the system says otherwise, start afresh.
        self.context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self.children: list[Child] = []
        self.listener = Listener(self.context, options)
        self.gone: Counter[str] = Counter()
        self.signals = 0
        self.is_stopping = False
        self.deaths = 0
        self.starts: list[Start] = []
        self.exit_code = 0
        self.status_at = self.liveness_at = self.told_at = 0.0
        self.watched_at = time.monotonic()
        self.last_total: tuple[float, float] = (time.monotonic(), 0.0)

    def run(self) -> int:
        """Run until told to stop, or until nothing is left to do; return the exit code."""
        self._catch_signals()
        until = time.monotonic() + self.options.run_for if self.options.run_for else None
        for slot in range(self.options.processes):
            self._start(Start(0.0, slot), is_first=slot == 0)
        while self.children or self.starts:
            try:
                self._listen()
                self._reap()
                self._start_those_due()
                self.listener.tick(self._close_connections)
                self._watch()
                self._give_orders()
                self._show()
            except Exception:
                # Without us nobody would stop the processes, nor replace them: so in good order, as long as we can.
                logger.critical("The supervisor of the worker met an error.", exc_info=True)
                self.exit_code = 1
                if not self.is_stopping:
                    self._stop("its supervisor met an error")
            if until is not None and time.monotonic() >= until:
                until = None
                self._stop(f"{self.options.run_for:g} seconds are over")
        self.listener.stop()
        self._liveness(ended=True)
        self._say()
        return self.exit_code if self.signals < 2 else 1

    def _catch_signals(self) -> None:
        def caught(number: int, frame: Any) -> None:
            self.signals += 1

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, caught)

    def _start(self, start: Start, *, is_first: bool = False) -> None:
        self._close_connections()
        ours, theirs = self.context.Pipe(duplex=False)
        theirs_to_hear, ours_to_tell = self.context.Pipe(duplex=False)
        orders = Orders(self._running_in(start.slot))
        process = self.context.Process(  # type: ignore[attr-defined]  # of every kind of context
            target=run_process,
            args=(
                self.options,
                Pipes(theirs, theirs_to_hear, self.listener.wires),
                os.getpid(),
                start.slot,
                start.predecessor,
                is_first,
                orders,
            ),
        )
        process.start()
        theirs.close()
        theirs_to_hear.close()
        now = time.monotonic()
        self.children.append(Child(process, ours, ours_to_tell, start.slot, now, now, orders=orders))

    def _close_connections(self) -> None:
        """Leave no connection to the processes, which would share it: neither ours nor one of a pool."""
        for connection in connections.all(initialized_only=True):
            connection.close()
        for connection in connections.all():
            close_pool = getattr(connection, "close_pool", None)
            if close_pool is not None:
                close_pool()

    def _start_those_due(self) -> None:
        now = time.monotonic()
        due = [start for start in self.starts if start.at <= now]
        self.starts = [start for start in self.starts if start.at > now]
        for start in due:
            self._start(start)

    def _listen(self) -> None:
        """Wait a moment for something to happen, and hear what the processes say."""
        sources = [*[child.pipe for child in self.children], *[child.process.sentinel for child in self.children]]
        with contextlib.suppress(InterruptedError):
            wait(sources, timeout=0.2)
        for child in self.children:
            self._hear(child)
        if self.signals and not self.is_stopping:
            self._stop("told to by a signal")
        elif self.signals > 1 and self.is_stopping:
            self._end_now()

    def _hear(self, child: Child) -> None:
        with contextlib.suppress(EOFError, OSError):
            while child.pipe.poll():
                report: ProcessReport = child.pipe.recv()
                child.report, child.heard_at = report, time.monotonic()
                if report.recycling and not child.is_replaced and not self.is_stopping:
                    child.is_replaced = True
                    self._start(Start(0.0, child.slot))

    def _running_in(self, slot: int) -> dict[str, int]:
        """Return how many rows of each queue run in processes that are being replaced."""
        running: Counter[str] = Counter()
        for child in self.children:
            if child.slot == slot and child.is_replaced and child.report is not None:
                running.update(child.report.running)
        return dict(running)

    def _give_orders(self) -> None:
        """Let processes know what still runs in those that they take the place of, and end what takes too long."""
        for slot in {child.slot for child in self.children}:
            here = [child for child in self.children if child.slot == slot]
            lingering = [child for child in here if child.is_replaced]
            for child in lingering[: max(len(lingering) - MOST_LINGERING, 0)]:
                child.give(Orders(hurry=True))
            if self.options.queues:
                running = self._running_in(slot)
                for child in here:
                    if not child.is_replaced:
                        child.give(Orders(running))

    def _reap(self) -> None:
        for child in list(self.children):
            if child.process.is_alive():
                continue
            self._hear(child)
            self.children.remove(child)
            code = child.process.exitcode
            child.pipe.close()
            child.orders_pipe.close()
            child.process.close()
            if child.report is not None:
                self.gone.update(child.report.total)
                if child.report.left and (self.is_stopping or not child.report.recycling):
                    self.exit_code = 1
            self._replace(child, code)

    def _replace(self, child: Child, code: int) -> None:
        """Start another in the place of a process that has gone, unless there is one, or none is wanted."""
        if child.has_ended:
            self.deaths = 0
            is_wanted = not self.is_stopping and not child.is_replaced
            if is_wanted and (child.report is None or child.report.recycling or not self.options.once):
                self.starts.append(Start(time.monotonic(), child.slot))
            return
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self.is_stopping:
            if child.owner is not None:  # else it was told before it had begun
                logger.warning("A worker process died of %s while it stopped. Its leases will run out.", cause)
                self.exit_code = 1
            return
        young = time.monotonic() - child.started_at < TOO_YOUNG
        self.deaths = self.deaths + 1 if young else 0
        longest = LONGEST_WAIT if child.owner is None else LONGEST_WAIT_OF_ROWS
        pause = min(0.5 * 2**self.deaths, longest) if self.deaths > 1 else 0.0
        when = f"in {pause:.0f} s" if pause else "at once"
        logger.error("A worker process (%s) died of %s. Another is started %s.", child.owner or "new", cause, when)
        # Where there is another already, which knows nothing of the death, its rows are taken back when leases run out.
        if not child.is_replaced:
            self.starts.append(Start(time.monotonic() + pause, child.slot, child.owner))

    def _watch(self) -> None:
        """Kill a process that has not been heard for too long: something in it never lets go of the interpreter."""
        now = time.monotonic()
        was_away, self.watched_at = now - self.watched_at > SILENCE / 3, now
        for child in self.children:
            if was_away:  # it was us who did not listen: somebody stopped the supervisor, or the whole host
                child.heard_at = now
            silent = now - child.heard_at
            if silent > max(SILENCE, self.options.lease_seconds / 2):
                logger.error("Worker process %d has been silent for %.0f s and is killed.", child.pid, silent)
                child.heard_at = now
                child.process.kill()
        if self.is_stopping and now - self.told_at > TELL_AGAIN_AFTER:
            self._tell_to_stop()  # a process that had just been forked could not hear it

    def _stop(self, reason: str) -> None:
        self.is_stopping = True
        self.listener.stop()
        self.starts.clear()
        logger.info("The worker stops: %s. It waits for running handlers; two signals end it now.", reason)
        self._tell_to_stop()

    def _tell_to_stop(self) -> None:
        self.told_at = time.monotonic()
        for child in self.children:
            self._signal(child, signal.SIGTERM)

    def _end_now(self) -> None:
        self.signals = 2
        logger.warning("Told again: the worker ends now. Leases that are open will run out.")
        for child in self.children:
            self._signal(child, signal.SIGKILL)
        for child in self.children:
            child.process.join()

    def _signal(self, child: Child, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)

    def _show(self) -> None:
        now = time.monotonic()
        if now - self.liveness_at >= LIVENESS_EVERY:
            self.liveness_at = now
            self._liveness()
        if now - self.status_at >= STATUS_EVERY:
            self.status_at = now
            self._say()

    def _liveness(self, *, ended: bool = False) -> None:
        """Write the time into a file, as long as every process was heard of lately."""
        if self.options.liveness_file is None:
            return
        now = time.monotonic()
        path = Path(self.options.liveness_file)
        try:
            if ended:
                path.unlink(missing_ok=True)
            elif self.children and all(now - child.heard_at < SILENCE / 2 for child in self.children):
                fresh = path.with_name(f".{path.name}.{os.getpid()}")
                fresh.write_text(f"{time.time():.0f}\n")
                fresh.replace(path)
        except OSError as error:  # whoever reads it will take us for dead, and be right to look
            digest.log("liveness", logging.ERROR, "The liveness file cannot be written: %s", error)

    def _say(self) -> None:
        """Say in one line what was done, how fast, and what is in hand."""
        reports = [child.report for child in self.children if child.report is not None]
        total: Counter[str] = Counter(self.gone)
        for report in reports:
            total.update(report.total)
        now, moved = time.monotonic(), total["moved"]
        since, before = self.last_total
        rate = (moved - before) / max(now - since, 0.001)
        self.last_total = (now, moved)
        counts = [f"{moved:,.0f} moved", f"{rate:,.0f}/s"]
        counts += [f"{total[what]:,.0f} {what}" for what in SHOWN if total[what]]
        running = sum(sum(report.running.values()) for report in reports)
        held = sum(report.held for report in reports)
        processes = f"{len(self.children)} process{'' if len(self.children) == 1 else 'es'}"
        is_waiting = not (self.is_stopping or self.options.once)  # for rows that become due
        words = [f"{running:,} running, {held:,} held", *([self.listener.words] if is_waiting else [])]
        logger.info("%s", " · ".join([processes, *counts, *words]))


#: The counts of the status line besides the moves.
SHOWN = ("waited", "failed", "parked", "recovered", "released", "dropped", "deleted")
