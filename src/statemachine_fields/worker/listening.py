"""The listener: a process beside the worker processes that hears of rows that have become due, and passes it on.

For each database it has one connection, never out of a pool, and a thread. While a process has nothing to do in a lane, the
listener holds the gate of that lane, so that whoever makes a row due says so. What it does is all for speed: each process looks by
itself now and then, whatever becomes of the listener.

Whether messages arrive is found out when it connects, by one that is sent over another connection. Behind a pooler that hands
connections from client to client, LISTEN seems to work, and hears nothing of others; nor may a lock be left there that lasts.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from contextlib import closing
from multiprocessing.connection import wait
from typing import Any

import django
from django.db import DatabaseError, InterfaceError, connections

from statemachine_fields.db.dialect import LEFT
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.process import name_process
from statemachine_fields.worker.wires import Hint, Wires, is_writable

logger = logging.getLogger("statemachine_fields.worker")

#: How long a message may take that shows whether messages arrive.
HEARD_WITHIN = 5.0
#: How long to poll before it is tried again whether messages arrive, where they do not.
TRY_AGAIN_AFTER = 60.0
#: How often to ask a server whether it is still there, that has nothing to say.
ASK_EVERY = 30.0
#: How often to try a gate that another listener holds. It says so when it leaves it, unless it dies.
TRY_GATES_EVERY = 5.0
#: How often the process looks after itself.
TICK = 0.5

#: What the message begins with that shows whether messages arrive.
TRIAL = "trial "


def run_listener(options: WorkerOptions, wires: Wires, pipe: Any, supervisor: int) -> None:
    """Listen until told to stop.

    :param pipe: where to report what is in use for each database: nothing, or why it is not heard.
    :param supervisor: the process that this one must not outlive for long.
    """
    name_process("listener")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # it holds nothing that would not end with it
    django.setup()
    from statemachine_fields.worker.connections import OwnConnections
    from statemachine_fields.worker.digest import Digest
    from statemachine_fields.worker.lease import lanes_for

    lanes, own, digest = lanes_for(options), OwnConnections(options.lease_seconds), Digest(logger)
    listeners = [DatabaseListener(alias, lanes, wires, own, digest) for alias in wires.to_listener]
    for listener in listeners:
        threading.Thread(target=listener.run, name="statemachine listener", daemon=True).start()
    while os.getppid() == supervisor:
        own.hang_up_on_the_silent()
        digest.flush()
        if is_writable(pipe):
            pipe.send({listener.alias: listener.trouble for listener in listeners})
        time.sleep(TICK)
    os._exit(0)


class DatabaseListener:
    """Listens to one database."""

    def __init__(self, alias: str, lanes: list[Any], wires: Wires, own: Any, digest: Any) -> None:
        from statemachine_fields.worker.connections import Reconnect

        self.alias = alias
        self.wires = wires
        self.own = own
        self.digest = digest
        #: Why it is not listened; None if it is.
        self.trouble: str | None = "not yet connected"
        #: The gates of the lanes, by their places; and which processes have nothing to do in each lane, by slot.
        self.gates: dict[int, set[int]] = {place: lane.gates for place, lane in enumerate(lanes) if lane.using == alias}
        self.idle: dict[int, set[int]] = {place: set() for place in self.gates}
        self.held: set[int] = set()
        self._reconnect = Reconnect("listener", alias, digest)
        self._ask_at = 0.0
        #: When to try a gate again that another listener holds.
        self._try_at: dict[int, float] = {}

    def run(self) -> None:
        """Listen for ever, on one connection after another."""
        while True:
            pause = TRY_AGAIN_AFTER
            try:
                self.own.use([self.alias], "listener")
                if self._connect():
                    self._listen()
            except (DatabaseError, InterfaceError, OSError) as error:
                self._reconnect.lost(error)
                self.trouble, pause = "no connection", self._reconnect.left
            except Exception as error:  # noqa: BLE001 - whatever it is: without a listener all goes on, but more slowly
                self._reconnect.failed()
                self.trouble, pause = "an error", max(self._reconnect.left, 1.0)
                text = "The listener of database %r met an error, and begins anew."
                self.digest.log(("listener", self.alias), logging.ERROR, text, self.alias, error=error)
            self._end()
            time.sleep(pause)

    @property
    def connection(self) -> Any:
        return connections[self.alias]

    def _connect(self) -> bool:
        """Listen on a new connection, and say whether messages arrive there."""
        from statemachine_fields.db.dialect import dialect_for
        from statemachine_fields.db.own import own_connection

        connection = self.connection
        connection.ensure_connection()
        self.dialect = dialect_for(connection)
        if not connection.is_direct:
            return self._give_up("a pooler is in between")
        self.inbox = self.dialect.listen(connection)
        word = TRIAL + secrets.token_hex(8)
        with closing(own_connection(self.alias, "listener's other", self.own.limits)) as other:
            self.dialect.send(other, word)
        until = time.monotonic() + HEARD_WITHIN
        while (left := until - time.monotonic()) > 0:
            if word in self.inbox.take():
                return True
            wait([self.inbox], left)
        return self._give_up("messages from other connections do not arrive")

    def _give_up(self, why: str) -> bool:
        if why != self.trouble:
            logger.info(
                "Wake-ups do not work on database %r: %s. Workers look for due rows by themselves. To be woken, give the "
                "worker a connection to the server itself, and else set STATEMACHINE_FIELDS['WAKE_UPS'] to False.",
                self.alias,
                why,
            )
        self.trouble = why
        return False

    def _listen(self) -> None:
        """Pass on what is heard until the connection breaks."""
        self._reconnect.found()
        self.trouble, self._ask_at = None, time.monotonic() + ASK_EVERY
        self._try_at.clear()
        self._hint(Hint.BEGUN, self.gates)
        wire = self.wires.to_listener[self.alias]
        while True:
            until = min([self._ask_at, *[self._try_at.get(gate, 0.0) for gate in self._missing()]])
            timeout = max(until - time.monotonic(), 0.0)
            ready: list[Any] = wait([self.inbox, wire.reader], timeout)
            if self.inbox in ready or not ready:
                self._pass_on(self.inbox.take())
            if wire.reader in ready:
                for slot, place, is_idle in wire.receive():
                    if is_idle and not self.idle[place]:
                        for gate in self.gates[place]:
                            self._try_at.pop(gate, None)
                    (self.idle[place].add if is_idle else self.idle[place].discard)(slot)
            if time.monotonic() >= self._ask_at:
                self._ask_at = time.monotonic() + ASK_EVERY
                self.connection.cursor().execute("SELECT 1")
            self._set_gates()

    def _pass_on(self, messages: list[str]) -> None:
        for message in dict.fromkeys(messages):
            if message.startswith(LEFT):
                self._try_at.pop(int(message.removeprefix(LEFT)), None)
            elif not message.startswith(TRIAL):
                self._hint(Hint.DUE, [place for place, gates in self.gates.items() if int(message) in gates])

    def _missing(self) -> set[int]:
        """Return the gates that should be held and are not."""
        return self._wanted() - self.held

    def _wanted(self) -> set[int]:
        return {gate for place, slots in self.idle.items() if slots for gate in self.gates[place]}

    def _set_gates(self) -> None:
        """Hold the gates of the lanes in which a process has nothing to do, and no others."""
        if needless := self.held - self._wanted():
            self.dialect.leave_gates(self.connection, needless)
            self.held -= needless
        now = time.monotonic()
        if tried := [gate for gate in self._missing() if self._try_at.get(gate, 0.0) <= now]:
            self._try_at |= dict.fromkeys(tried, now + TRY_GATES_EVERY)
            taken = self.dialect.take_gates(self.connection, tried)
            self.held |= taken
            # What was committed before that nobody has told us of: each process has to look once more.
            self._hint(Hint.GATE, [place for place, gates in self.gates.items() if gates & taken])

    def _end(self) -> None:
        """Leave nothing on a connection that is not listened to."""
        self.held = set()
        self._hint(Hint.ENDED, self.gates)
        self.connection.close()

    def _hint(self, what: Hint, places: Any) -> None:
        for place in places:
            self.wires.hint(what, place)
