"""The parent of the worker processes: starts them, watches them, replaces them, and stops them. Has no connection.

A process that dies is replaced at once, and the new one takes back what the old one held. A process that says nothing for
too long, because something in it never lets go of the interpreter, is killed and replaced.
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

from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.process import DONE, RECYCLED, Report, run_process

logger = logging.getLogger("statemachine_fields.worker")

#: How long a process may say nothing.
SILENCE = 30.0
LIVENESS_EVERY = 1.0
STATUS_EVERY = 10.0
#: A process that dies sooner than this after its start is replaced later and later, up to the longest wait: to one that
#: came so far as to work some row was most likely the end, and the other rows should not have to wait for long.
TOO_YOUNG, LONGEST_WAIT, LONGEST_WAIT_OF_ROWS = 5.0, 30.0, 1.0
#: A process that is to stop is told again after this long.
TELL_AGAIN_AFTER = 1.0


@dataclass(slots=True, eq=False)
class Child:
    """One worker process, as its supervisor sees it."""

    process: Any
    pipe: Connection
    started_at: float
    heard_at: float
    owner: str | None = None
    total: dict[str, float] = field(default_factory=dict)
    held: int = 0
    running: int = 0
    is_replaced: bool = False

    @property
    def pid(self) -> int:
        return int(self.process.pid)


class Supervisor:
    """Keeps a number of worker processes running."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        # The parent has no threads, so forking is safe, and quick; where the system says otherwise, start afresh.
        self.context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self.children: list[Child] = []
        self.gone: Counter[str] = Counter()
        self.signals = 0
        self.is_stopping = False
        self.deaths = 0
        self.starts: list[tuple[float, str | None]] = []
        self.status_at = self.liveness_at = self.told_at = 0.0
        self.watched_at = time.monotonic()
        self.last_total: tuple[float, float] = (time.monotonic(), 0.0)

    def run(self) -> int:
        """Run until told to stop, or until nothing is left to do; return the exit code."""
        self._catch_signals()
        until = time.monotonic() + self.options.run_for if self.options.run_for else None
        for number in range(self.options.processes):
            self._start(None, is_first=number == 0)
        while self.children or self.starts:
            self._listen()
            self._reap()
            self._start_those_due()
            self._watch()
            self._show()
            if until is not None and time.monotonic() >= until:
                until = None
                self._stop(f"{self.options.run_for:g} seconds are over")
        self._liveness(ended=True)
        self._say()
        return 0 if self.signals < 2 else 1

    def _catch_signals(self) -> None:
        def caught(number: int, frame: Any) -> None:
            self.signals += 1

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, caught)

    def _start(self, predecessor: str | None, *, is_first: bool = False) -> None:
        connections.close_all()
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(  # type: ignore[attr-defined]  # of every kind of context
            target=run_process, args=(self.options, theirs, predecessor, is_first)
        )
        process.start()
        theirs.close()
        now = time.monotonic()
        self.children.append(Child(process, ours, now, now))

    def _start_those_due(self) -> None:
        now = time.monotonic()
        due = [predecessor for at, predecessor in self.starts if at <= now]
        self.starts = [(at, predecessor) for at, predecessor in self.starts if at > now]
        for predecessor in due:
            self._start(predecessor)

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
                report: Report = child.pipe.recv()
                child.heard_at = time.monotonic()
                child.owner, child.total = report.owner, report.total
                child.held, child.running = report.held, report.running
                if report.recycling and not child.is_replaced and not self.is_stopping:
                    child.is_replaced = True
                    self._start(None)

    def _reap(self) -> None:
        for child in list(self.children):
            if child.process.is_alive():
                continue
            self._hear(child)
            self.children.remove(child)
            self.gone.update(child.total)
            code = child.process.exitcode
            child.pipe.close()
            child.process.close()
            self._replace(child, code)

    def _replace(self, child: Child, code: int) -> None:
        if code == DONE:
            if not self.is_stopping and not self.options.once:
                self.starts.append((time.monotonic(), None))
            return
        if code == RECYCLED:
            self.deaths = 0
            if not child.is_replaced and not self.is_stopping:
                self.starts.append((time.monotonic(), None))
            return
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self.is_stopping:
            logger.warning("A worker process died of %s while it stopped. Its leases will run out.", cause)
            return
        young = time.monotonic() - child.started_at < TOO_YOUNG
        self.deaths = self.deaths + 1 if young else 0
        longest = LONGEST_WAIT if child.owner is None else LONGEST_WAIT_OF_ROWS
        pause = min(0.5 * 2**self.deaths, longest) if self.deaths > 1 else 0.0
        when = f"in {pause:.0f} s" if pause else "at once"
        logger.error("A worker process (%s) died of %s. Another is started %s.", child.owner or "new", cause, when)
        if not child.is_replaced:
            self.starts.append((time.monotonic() + pause, child.owner))

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
        if ended:
            path.unlink(missing_ok=True)
        elif self.children and all(now - child.heard_at < SILENCE / 2 for child in self.children):
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            fresh.write_text(f"{time.time():.0f}\n")
            fresh.replace(path)

    def _say(self) -> None:
        """Say in one line what was done, how fast, and what is in hand."""
        total: Counter[str] = Counter(self.gone)
        for child in self.children:
            total.update(child.total)
        now, moved = time.monotonic(), total["moved"] + total["settled_itself"]
        since, before = self.last_total
        rate = (moved - before) / max(now - since, 0.001)
        self.last_total = (now, moved)
        counts = [f"{moved:,.0f} moved", f"{rate:,.0f}/s"]
        counts += [f"{total[what]:,.0f} {what}" for what in SHOWN if total[what]]
        running = sum(child.running for child in self.children)
        held = sum(child.held for child in self.children)
        processes = f"{len(self.children)} process{'' if len(self.children) == 1 else 'es'}"
        logger.info("%s", " · ".join([processes, *counts, f"{running:,} running, {held:,} held"]))


#: The counts of the status line besides the moves.
SHOWN = ("waited", "failed", "parked", "recovered", "released", "dropped", "deleted")
