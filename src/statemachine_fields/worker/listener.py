"""The listener, as its supervisor sees it: started beside the worker processes, replaced if it dies, and never waited for."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import Any

from statemachine_fields.conf import settings
from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.worker.connections import Backoff
from statemachine_fields.worker.lease import lanes_for
from statemachine_fields.worker.listening import run_listener
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.wires import Wires

logger = logging.getLogger("statemachine_fields.worker")

#: How long it may say nothing.
SILENCE = 30.0


class Listener:
    """Keeps one listener running, if there is anything to listen to."""

    def __init__(self, context: Any, options: WorkerOptions) -> None:
        self.context = context
        self.options = options
        self.wires: Wires | None = None
        listens = {lane.using: dialect_for(lane.connection).can_listen for lane in lanes_for(options)}
        self._aliases = set(listens)
        if settings().WAKE_UPS and not options.once and any(listens.values()):
            self.wires = Wires.lay(context, options.processes, [alias for alias in listens if listens[alias]])
        self._process: Any = None
        self._pipe: Any = None
        self._heard_at = 0.0
        self._backoff = Backoff(most=30.0, first=0.5)
        #: Why a database is not listened to; None if it is.
        self._troubles: dict[str, str | None] = {}

    def tick(self, close_connections: Any) -> None:
        """Start it, hear it, and replace it if it has died or fallen silent.

        :param close_connections: leaves no connection to a process that is forked.
        """
        if self.wires is None:
            return
        if self._process is None:
            if self._backoff.is_over:
                close_connections()
                self._start(self.wires)
            return
        with contextlib.suppress(EOFError, OSError):
            while self._pipe.poll():
                self._troubles = self._pipe.recv()
                self._heard_at = time.monotonic()
        if time.monotonic() - self._heard_at > SILENCE:
            logger.error("The listener (process %d) has been silent for too long and is killed.", self._process.pid)
            self._process.kill()
        if not self._process.is_alive():
            self._backoff.failed()
            text = "The listener died (exit code %s). Workers poll until another is there, in %.1f s."
            logger.warning(text, self._process.exitcode, self._backoff.left)
            self._forget()

    def _start(self, wires: Wires) -> None:
        ours, theirs = self.context.Pipe(duplex=False)
        self._process = self.context.Process(target=run_listener, args=(self.options, wires, theirs, os.getpid()))
        self._process.start()
        theirs.close()
        self._pipe, self._heard_at = ours, time.monotonic()

    def stop(self) -> None:
        """End it now: it holds nothing that would not end with it."""
        self.wires = None
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._forget()

    def _forget(self) -> None:
        self._process.close()
        self._pipe.close()
        self._process, self._troubles = None, {}

    @property
    def words(self) -> str:
        """How workers hear of rows that become due."""
        polled = {alias for alias in self._aliases if self._troubles.get(alias, "") is not None}
        if not polled:
            return "woken by NOTIFY"
        polling = f"polling every {self.options.poll_seconds:g} s"
        if polled == self._aliases:
            return polling
        return f"woken by NOTIFY, {polling} on {', '.join(sorted(polled))}"
