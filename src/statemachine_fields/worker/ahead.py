"""Run-ahead: a row that enters a state in which it is due at once goes on under the claim that it has.

The move and the next claim are one statement, and a new token: what is still under way of the old lease is heard no more. The
row is read anew, as by a claim, and run before those that have not begun. It is held without a gap: the new lease is known before
the old one is let go.

A lost answer leaves open whether the row is ours. The move has a record with an id of its own: if there is one, and the row is held
with the next token and under our name, it goes on; if there is one and it is not held so, that was it; and if there is none, the
move is sent again, with the old token.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from django.db import DatabaseError, InterfaceError

from statemachine_fields.db.claims import Claimed
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.inflight import InFlight, step_aside
from statemachine_fields.worker.lease import Lane, Lease, now
from statemachine_fields.worker.outcome_events import Events
from statemachine_fields.worker.outcomes import RowOutcome, Transitioned
from statemachine_fields.worker.writing import ADVANCERS, ConnectionLost, Write, entries, has_record, row_of

#: How many handlers run in a row under one claim, at most. Then the lease ends, and the row is due at once, for anybody.
MOST_STEPS = 10


@dataclass(eq=False)
class RunAhead:
    """Moves rows that go on, and hands them on, for one process."""

    lanes: InitVar[Iterable[Lane]]
    claimer: Claimer
    inflight: InFlight
    events: Events
    stopping: threading.Event

    def __post_init__(self, lanes: Iterable[Lane]) -> None:
        self.write = Write(self.enter, has_record, ADVANCERS[0])
        #: Where rows may go on: lanes of the same machine and database, by the states in them that have a handler.
        self._targets: dict[Lane, dict[str, list[Lane]]] = {}
        lanes = [lane for lane in lanes if lane.runs_ahead]
        for lane in lanes:
            targets = self._targets[lane] = {}
            for other in lanes:
                for state, schedule in other.schedules.items() if other.is_of(lane) else ():
                    if schedule.acts:
                        targets.setdefault(state, []).append(other)
        #: Says how many more rows may go on in a lane.
        self.room: Callable[[Lane], int] = lambda lane: sys.maxsize
        #: Called with rows that go on, and with those that come too late for that, because the process stops.
        self.on_taken: Callable[[list[Lease]], None] = lambda leases: None
        self.on_late: Callable[[list[Lease]], None] = lambda leases: None

    def split(self, lane: Lane, outcomes: Sequence[Any]) -> tuple[list[RowOutcome], list[RowOutcome]]:
        """Return those of some moves into states where rows are due at once after which they go on, and the others."""
        going: list[RowOutcome] = []
        others: list[RowOutcome] = []
        is_stopping = self.stopping.is_set()
        room: dict[Lane, int] = {}
        for outcome in outcomes:
            target = None if is_stopping else self._target(lane, outcome)
            if target is not None and outcome.lease.step < MOST_STEPS:
                if target not in room:
                    room[target] = self.room(target)
                room[target] -= 1
                if room[target] >= 0:
                    going.append(outcome)
                    continue
            others.append(outcome)
        return going, others

    def _target(self, lane: Lane, outcome: Transitioned) -> Lane | None:
        """Return the lane that a row is in after a move, if this process has it."""
        for other in self._targets.get(lane, {}).get(outcome.to_status, ()):
            if other.levels is None or other.serves(outcome.to_status, outcome.queue):
                return other
        return None

    def enter(self, lane: Lane, outcomes: Sequence[Transitioned]) -> set[Any]:
        """Move rows and take them anew, in one statement."""
        rows, others = entries(lane, outcomes)
        rows["lease_owner"] = [self.claimer.owner] * len(outcomes)
        rows["lease_expires_at"] = [self.claimer.lease_seconds] * len(outcomes)
        for outcome in outcomes:
            outcome.was_sent_ahead = True
        asked_at = now()  # before the database counts, so that ours ends first
        found = lane.enter_claimed(rows, others)
        self._load(lane, outcomes, found, asked_at)
        return {*found}

    def adopt(self, lane: Lane, outcomes: Sequence[Transitioned]) -> set[Transitioned]:
        """Find the leases of rows whose moves have a record, and extend them; return what cannot be told now, because somebody
        has the row locked."""
        rows = {
            "key": [outcome.lease.key for outcome in outcomes],
            "was_lease_token": [outcome.lease.token + 1 for outcome in outcomes],
            "was_lease_owner": [self.claimer.owner] * len(outcomes),
            "lease_expires_at": [self.claimer.lease_seconds] * len(outcomes),
        }
        asked_at = now()
        found = lane.adopt(rows)
        self._load(lane, outcomes, found, asked_at)
        return {each for each in outcomes if each.lease.key not in found and self._is_held(each)}

    def _is_held(self, outcome: Transitioned) -> bool:
        names = outcome.lease.lane.bound.names
        held = {names.lease_token: outcome.lease.token + 1, names.lease_owner: self.claimer.owner}
        return row_of(outcome.lease).filter(**held).exists()

    def _load(
        self, lane: Lane, outcomes: Sequence[Transitioned], found: Mapping[Any, Claimed], asked_at: float
    ) -> None:
        """Give each outcome the lease under which its row goes on."""
        parts: dict[Lane, list[Claimed]] = {}
        for outcome in outcomes:
            if (claimed := found.get(outcome.lease.key)) is not None:
                parts.setdefault(self._target(lane, outcome) or lane, []).append(claimed)
        leases: dict[Any, Lease] = {}
        try:
            for target, rows in parts.items():
                loaded = self.claimer.load(target, rows, asked_at + self.claimer.lease_seconds)
                leases |= {lease.key: lease for lease in loaded}
        except (DatabaseError, InterfaceError) as error:
            for outcome in outcomes:
                outcome.is_repeated = True  # they are written, and have to be found out
            raise ConnectionLost(str(error)) from error
        for outcome in outcomes:
            outcome.following = leases.get(outcome.lease.key)
            if outcome.following is not None:
                outcome.following.step = outcome.lease.step + 1

    def hand_on(self, leases: list[Lease]) -> None:
        """Have rows run that go on, before those that have not begun. Their moves are committed."""
        self.inflight.took(leases)
        self.on_taken(leases)
        parts: dict[Lane, list[Lease]] = {}
        for lease in leases:
            parts.setdefault(lease.lane, []).append(lease)
        for lane, part in parts.items():
            for state, number in Counter(lease.status for lease in part).items():
                self.events.count(str(lane), state, "claimed", number)
            self.claimer.report(lane, part)
            self.on_late(self.inflight.buffer.put(lane, part, in_front=True))
        step_aside(len(leases))
