"""The heartbeat of a process: extends its leases.

Each database has a thread and a connection of its own, which do nothing else, so that neither a slow handler nor a slow
commit can keep it from beating, nor another database; and nothing that it waits for lasts long.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import DatabaseError, InterfaceError

from statemachine_fields.db.dialect import is_connection_error
from statemachine_fields.worker.connections import OwnConnections, Reconnect, is_same
from statemachine_fields.worker.digest import Digest, cause_of
from statemachine_fields.worker.inflight import InFlight
from statemachine_fields.worker.lease import Lane, Lease, now

#: Seconds between two looks at the clock.
TICK = 0.1
#: A lease is extended so many times before it would run out.
BEATS_PER_LEASE = 3


@dataclass(eq=False)
class Heartbeat:
    """Extends the leases of one database, until its process has stopped."""

    alias: str
    inflight: InFlight
    own: OwnConnections
    lease_seconds: float
    digest: Digest

    def __post_init__(self) -> None:
        self.ended = threading.Event()
        self._beat_at = time.monotonic() + self.lease_seconds / BEATS_PER_LEASE
        self._reconnect = Reconnect("heartbeat", self.alias, self.digest)
        self._failing: set[Lane] = set()

    def run(self) -> None:
        self.own.use([self.alias], "heartbeat")
        while not self.ended.wait(TICK):
            try:
                self._beat()
            except (DatabaseError, InterfaceError) as error:
                self._reconnect.lost(error)
                self._beat_at = time.monotonic() + self._reconnect.left
            except Exception as error:  # noqa: BLE001 - whatever it is: a process without a heartbeat loses its rows
                text = "The heartbeat of process %d met an error, and goes on."
                self.digest.log(("heartbeat", cause_of(error)), logging.ERROR, text, os.getpid(), error=error)

    def _beat(self) -> None:
        """Extend every lease that is old enough, in one statement for each machine."""
        if time.monotonic() < self._beat_at:
            return
        young = now() + self.lease_seconds * (1 - 1 / (2 * BEATS_PER_LEASE))
        by_lane: dict[Lane, list[Lease]] = {}
        for lease in list(self.inflight.held):
            is_ours = lease.lane.using == self.alias and not lease.is_lost and not lease.is_stopped
            if is_ours and lease.trusted_until < young:
                by_lane.setdefault(lease.lane, []).append(lease)
        wait = self.lease_seconds / BEATS_PER_LEASE
        for lane in sorted(by_lane, key=self._failing.__contains__):  # those that cannot be extended, last
            if self._extend(lane, by_lane[lane], time.monotonic() + self.own.limits.statement):
                self._failing.discard(lane)
            else:
                self._failing.add(lane)
                wait = self.lease_seconds / BEATS_PER_LEASE / 4  # soon again: there is little time left
        if by_lane:
            self._reconnect.found()
        self._beat_at = time.monotonic() + wait

    def _extend(self, lane: Lane, leases: Sequence[Lease], until: float) -> bool:
        """Extend the leases of a lane. A row that cannot be written must not cost its neighbours theirs.

        :param until: when to give up for now.
        :returns: whether all of them could be asked for.
        """
        driver = lane.connection.connection
        try:
            self._beat_lane(lane, leases)
        except (DatabaseError, InterfaceError) as error:
            if is_connection_error(error) and not is_same(lane.connection, driver):
                raise
            text = "The leases of %d rows of %s cannot be extended now, %s among them: %s"
            values = len(leases), lane, leases[0].label, str(error).strip()
            self.digest.log(("beat", str(lane), cause_of(error)), logging.WARNING, text, *values)
            half = len(leases) // 2
            for part in (leases[:half], leases[half:]) if half else ():
                if time.monotonic() < until:
                    self._extend(lane, part, until)
            return False
        return True

    def _beat_lane(self, lane: Lane, leases: Sequence[Lease]) -> None:
        keys, tokens = [lease.key for lease in leases], [lease.token for lease in leases]
        asked_at = now()  # before the database counts, so that ours ends first
        extended = lane.beat(keys, tokens, self.lease_seconds)
        for lease in leases:
            if lease.key in extended:
                lease.trusted_until = asked_at + self.lease_seconds
        missing = [lease for lease in leases if lease.key not in extended]
        if not missing:
            return
        # Locked by somebody at the moment, which may be its own handler's transaction, or lost.
        held = lane.held([each.key for each in missing], [each.token for each in missing])
        for lease in missing:
            if lease.key not in held and lease in self.inflight.held:
                lease.is_lost = True
