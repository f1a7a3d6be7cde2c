"""The threads of a process that write outcomes: what can be written together, what runs code of the user's, and what is
deleted, each on a connection of its own, so that none waits for another."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from django.db import connections

from statemachine_fields.machine.listeners import needs_each_row
from statemachine_fields.worker.backoff import FIRST_WAIT, Backoff
from statemachine_fields.worker.buffer import Outbox
from statemachine_fields.worker.commit import Committer, ConnectionLost
from statemachine_fields.worker.connections import OwnConnections
from statemachine_fields.worker.digest import Digest
from statemachine_fields.worker.inflight import InFlight
from statemachine_fields.worker.lanes import Lane
from statemachine_fields.worker.outcomes import Kind, Verdict
from statemachine_fields.worker.writing import groups_of

logger = logging.getLogger("statemachine_fields.worker")

#: How long a row waits at most whose outcome cannot be written, and while the process stops.
LONGEST_WAIT, LONGEST_WAIT_AT_THE_END = 10.0, 0.2
#: How often to ask whether the moves of a model run code of the user's: receivers may come and go.
ASK_AGAIN_AFTER = 1.0


class CommitLoop:
    """Writes what comes into its outbox, and tries again what could not be written."""

    def __init__(
        self,
        role: str,
        committer: Committer,
        inflight: InFlight,
        own: OwnConnections,
        aliases: Iterable[str],
        size: int,
        longest_wait: float = LONGEST_WAIT,
    ) -> None:
        self.longest_wait = min(LONGEST_WAIT, longest_wait)
        self.role = role
        self.committer = committer
        self.inflight = inflight
        self.own = own
        self.outbox = Outbox(size)
        self.is_ending = False
        #: Called with what was written, and again and again while there is nothing to write.
        self.on_written: Callable[[list[Verdict]], None] = lambda verdicts: None
        self.on_idle: Callable[[], None] = lambda: None
        self._later: list[Verdict] = []
        digest = committer.events.digest
        self._reconnects = {alias: Reconnect(role, alias, digest) for alias in aliases}

    def __len__(self) -> int:
        return len(self.outbox) + len(self._later)

    def run(self) -> None:
        self.own.use(self._reconnects, self.role)
        while True:
            verdicts = self.outbox.take(self._timeout()) + self._due_again()
            for group, members in groups_of(verdicts).items():
                lane = group[0]
                reconnect = self._reconnects[lane.using]
                try:
                    again = self.committer.write_group(group, members) if reconnect.is_over else members
                except ConnectionLost as error:
                    again = [verdict for verdict in (*members, *error.again) if not verdict.is_told]
                    again = list({id(verdict): verdict for verdict in again}.values())
                    reconnect.lost(error)
                else:
                    if reconnect.is_over:
                        reconnect.found()
                self._finish(members, again, reconnect)
            self.on_idle()

    def _timeout(self) -> float:
        if not self._later:
            return 0.5
        return min(max(min(verdict.again_at for verdict in self._later) - time.monotonic(), 0.001), 0.5)

    def _due_again(self) -> list[Verdict]:
        if not self._later:
            return []
        now = time.monotonic()
        latest = now + LONGEST_WAIT_AT_THE_END if self.is_ending else float("inf")
        due: list[Verdict] = []
        later: list[Verdict] = []
        for verdict in self._later:
            (due if verdict.again_at <= now or verdict.again_at > latest else later).append(verdict)
        self._later = later
        return due

    def _finish(self, members: list[Verdict], again: list[Verdict], reconnect: Reconnect) -> None:
        longest = LONGEST_WAIT_AT_THE_END if self.is_ending else self.longest_wait
        for verdict in again:
            wait = max(min(FIRST_WAIT * 2**verdict.tries, longest), min(reconnect.left, longest))
            verdict.again_at = time.monotonic() + wait
        self._later += again
        waiting = {id(verdict.lease) for verdict in again}
        self.inflight.let_go(verdict.lease for verdict in members if id(verdict.lease) not in waiting)
        self.on_written(members)


class Reconnect(Backoff):
    """How long to wait for a database that is away, and what is said of it."""

    def __init__(self, role: str, alias: str, digest: Digest) -> None:
        super().__init__(most=5.0, first=0.1)
        self.role, self.alias, self.digest = role, alias, digest

    def lost(self, error: BaseException) -> None:
        """Close what is broken, and say so now and then."""
        self.failed()
        with suppress(Exception):
            connections[self.alias].close()
        self.digest.log(
            ("away", self.role, self.alias),
            logging.WARNING,
            "The %s has no database and tries again (%s): %s",
            self.role,
            self.alias,
            str(error).strip(),
        )

    def found(self) -> None:
        """The database has answered."""
        if self.failures:
            logger.info("The %s has its database again (%s).", self.role, self.alias)
        self.succeeded()


class Ways:
    """Which thread writes a verdict."""

    def __init__(self, quick: CommitLoop, slow: CommitLoop, deleting: CommitLoop, lanes: Iterable[Lane]) -> None:
        self.quick, self.slow, self.deleting = quick, slow, deleting
        #: The lanes whose moves run code of the user's.
        self._slow_lanes: set[Lane] = set()
        self._lanes = list(lanes)
        self._asked_at = 0.0
        self.tick()

    def tick(self) -> None:
        """Ask now and then which moves run code of the user's: receivers come and go."""
        if time.monotonic() - self._asked_at > ASK_AGAIN_AFTER or not self._asked_at:
            self._slow_lanes = {lane for lane in self._lanes if needs_each_row(lane.bound)}
            self._asked_at = time.monotonic()

    def post(self, verdict: Verdict) -> None:
        """Have a verdict written."""
        if verdict.kind is Kind.DELETED:
            self.deleting.outbox.add(verdict)
        elif verdict.kind is Kind.MOVED and (verdict.update or verdict.lease.lane in self._slow_lanes):
            self.slow.outbox.add(verdict)
        else:
            self.quick.outbox.add(verdict)

    def flush(self) -> None:
        for loop in (self.quick, self.slow, self.deleting):
            loop.outbox.flush()

    def hurry(self) -> None:
        """Wait no longer than a moment with what could not be written: the process ends."""
        for loop in (self.quick, self.slow, self.deleting):
            loop.is_ending = True
        self.flush()
