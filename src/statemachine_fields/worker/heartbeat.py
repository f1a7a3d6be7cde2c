"""The heartbeat of a process: extends its leases, and adds its counts to the statistics.

It has a thread and a connection of its own, so that neither a slow handler nor a slow commit can keep it from beating.
"""

from __future__ import annotations

import threading
import time

from django.db import DatabaseError, InterfaceError

from statemachine_fields.worker.connections import Patience, introduce
from statemachine_fields.worker.lanes import Lane
from statemachine_fields.worker.lease import Lease, now
from statemachine_fields.worker.runner import Runner
from statemachine_fields.worker.statistics import delete_old_statistics, write_statistics

#: Seconds between two looks at the clock.
TICK = 0.1
#: A lease is extended so many times before it would run out.
BEATS_PER_LEASE = 3
STATISTICS_EVERY = 5.0
OLD_STATISTICS_EVERY = 3600.0


class Heartbeat:
    """Runs until its runner has stopped."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.ended = threading.Event()
        self.lease_seconds = runner.options.lease_seconds
        self._beat_at = time.monotonic() + self.lease_seconds / BEATS_PER_LEASE
        self._statistics_at = time.monotonic() + STATISTICS_EVERY
        self._old_statistics_at = time.monotonic()
        self._patience = Patience("heartbeat", self.ended)

    def run(self) -> None:
        for using in {lane.using for lane in self.runner.lanes}:
            try:
                introduce(using, "heartbeat")
            except (DatabaseError, InterfaceError) as error:
                self._patience.after(error)
        while not self.ended.wait(TICK):
            try:
                self._beat()
                self._count()
            except (DatabaseError, InterfaceError) as error:
                self._patience.after(error)
            else:
                self._patience.over()

    def _beat(self) -> None:
        """Extend every lease that is old enough, in one statement for each machine."""
        if time.monotonic() < self._beat_at:
            return
        young = now() + self.lease_seconds * (1 - 1 / (2 * BEATS_PER_LEASE))
        by_lane: dict[Lane, list[Lease]] = {}
        for lease in list(self.runner.held):
            if not lease.is_lost and not lease.is_stopped and lease.trusted_until < young:
                by_lane.setdefault(lease.lane, []).append(lease)
        for lane, leases in by_lane.items():
            self._beat_lane(lane, leases)
        self._beat_at = time.monotonic() + self.lease_seconds / BEATS_PER_LEASE

    def _beat_lane(self, lane: Lane, leases: list[Lease]) -> None:
        keys, tokens = [lease.key for lease in leases], [lease.token for lease in leases]
        asked_at = now()  # before the database counts, so that ours ends first
        table, connection = lane.bound.table, lane.connection
        extended = lane.leases.beat(connection, table, keys, tokens, self.lease_seconds)
        for lease in leases:
            if lease.key in extended:
                lease.trusted_until = asked_at + self.lease_seconds
        missing = [lease for lease in leases if lease.key not in extended]
        if not missing:
            return
        # Locked by somebody at the moment, which may be its own handler's transaction, or lost.
        held = lane.leases.held(connection, table, [each.key for each in missing], [each.token for each in missing])
        for lease in missing:
            if lease.key not in held and lease in self.runner.held:
                lease.is_lost = True

    def _count(self) -> None:
        moment = time.monotonic()
        if moment >= self._statistics_at:
            self._statistics_at = moment + STATISTICS_EVERY
            write_statistics(self.runner.events)
        if moment >= self._old_statistics_at:
            self._old_statistics_at = moment + OLD_STATISTICS_EVERY
            delete_old_statistics()
