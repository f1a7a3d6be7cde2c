"""The ear of the claimer: hears from the listener where rows are due, and tells it where there is nothing to do.

The claimer itself waits for both, what its process wants and what the listener says: a thread in between would be one more to wake.
"""

from __future__ import annotations

import threading

from statemachine_fields.worker.claiming import ClaimLoop
from statemachine_fields.worker.lease import Lane
from statemachine_fields.worker.wires import Hint, Wires


class Ear:
    """One process's ends of the wires."""

    def __init__(self, wires: Wires, slot: int, claiming: ClaimLoop, stopping: threading.Event) -> None:
        self.wire = wires.to_slots[slot]
        self.slot = slot
        self.claiming = claiming
        self.stopping = stopping
        self._wires = {
            lane: wires.to_listener[lane.using] for lane in claiming.lanes if lane.using in wires.to_listener
        }
        self._places = {lane: place for place, lane in enumerate(claiming.lanes)}
        #: What was told last of each lane; of none at first, as who had the slot before may have told something else.
        self._told: dict[Lane, bool] = {}

    def wait(self, seconds: float) -> None:
        """Wait until the claimer is to look again, or the listener says something, and hear it. What comes when the process stops is
        for the one that takes its place, which has the same wire."""
        reader = self.wire.reader
        if reader in self.claiming.inflight.wake.wait(seconds, reader) and not self.stopping.is_set():
            for what, place in self.wire.receive():
                self._hear(Hint(what), self.claiming.lanes[place])

    def _hear(self, hint: Hint, lane: Lane) -> None:
        timer = self.claiming.timers[lane]
        if hint is Hint.DUE:
            timer.ring()
        elif hint is Hint.GATE:
            timer.gate()
        elif hint is Hint.BEGUN:
            self.claiming.listened.add(lane.using)
            self._told.pop(lane, None)
        else:
            self.claiming.listened.discard(lane.using)

    def tell(self, idle: list[Lane]) -> None:
        """Tell the listener what has changed: in which lanes rows could be taken and there are none."""
        if self.stopping.is_set():
            return
        for lane, wire in self._wires.items():
            is_idle = lane in idle
            if self._told.get(lane) is not is_idle:
                self._told[lane] = is_idle
                wire.send(self.slot, self._places[lane], is_idle)
