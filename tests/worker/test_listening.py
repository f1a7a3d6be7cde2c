"""The listener holds a gate while a process has nothing to do, passes on what it hears, and knows if it hears nothing."""

from __future__ import annotations

import multiprocessing
import os
import struct
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from django.db import connection, connections

from lab.models import Chore, Lot
from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.schedule.wakeups import gate_of
from statemachine_fields.worker import listening as module
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.claiming import ClaimLoop
from statemachine_fields.worker.connections import OwnConnections
from statemachine_fields.worker.digest import Digest
from statemachine_fields.worker.ear import Ear
from statemachine_fields.worker.inflight import Buffer, InFlight
from statemachine_fields.worker.listening import DatabaseListener
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.wires import HINT, Hint, Wire, Wires
from tests.patience import PATIENCE, eventually
from tests.sessions import sessions
from tests.worker.rows import lane_of, only_postgresql

SLOT = 1
LISTENER = "statemachine_worker listener"
DUE, GATE, BEGUN, ENDED = Hint.DUE, Hint.GATE, Hint.BEGUN, Hint.ENDED


@pytest.fixture
def lanes():
    return [lane_of(Lot), lane_of(Chore)]


@pytest.fixture
def wires():
    return Wires.lay(multiprocessing, 2, ["default"])


class TestWires:
    def test_a_message_arrives_whole_and_in_order(self, wires):
        for place in range(500):
            wires.hint(Hint.DUE, place)
        heard = []
        while len(heard) < 500:
            heard += wires.to_slots[SLOT].receive()
        assert heard == [(Hint.DUE, place) for place in range(500)]

    def test_nobody_waits_for_one_who_does_not_read(self):
        wire = Wire.of(multiprocessing, HINT)
        for _ in range(100_000):
            wire.send(Hint.DUE, 0)
        assert len(os.read(wire.reader.fileno(), 2**20)) % struct.calcsize(HINT) == 0

    def test_nor_for_one_who_is_gone(self):
        wire = Wire.of(multiprocessing, HINT)
        wire.reader.close()
        wire.send(Hint.DUE, 0)
        assert not wire.writer.closed


class TestEar:
    @pytest.fixture
    def claiming(self, lanes, events):
        options = WorkerOptions(machines=())
        inflight = InFlight(Buffer(lanes, {}))
        return ClaimLoop(lanes, options, Claimer("me:1", 60), inflight, OwnConnections(60), events, threading.Event())

    @pytest.fixture
    def ear(self, claiming, wires):
        for timer in claiming.timers.values():
            timer.sleep(None)
        return Ear(wires, SLOT, claiming, claiming.stopping)

    def test_tells_what_has_changed_and_all_of_it_at_first(self, ear, wires, lanes):
        ear.tell([lanes[1]])
        ear.tell([lanes[1]])
        ear.tell(lanes)
        ear.tell([])
        told = list(wires.to_listener["default"].receive())
        assert told == [(SLOT, 0, False), (SLOT, 1, True), (SLOT, 0, True), (SLOT, 0, False), (SLOT, 1, False)]

    def test_tells_again_to_a_listener_that_has_just_begun(self, ear, wires, lanes):
        ear.tell(lanes)
        ear._hear(BEGUN, lanes[1])
        ear.tell(lanes)
        assert [*wires.to_listener["default"].receive()][2:] == [(SLOT, 1, True)]

    def test_tells_nothing_of_a_process_that_stops(self, ear, wires, lanes, claiming):
        claiming.stopping.set()
        ear.tell(lanes)
        wires.to_listener["default"].send(9, 9, True)
        assert list(wires.to_listener["default"].receive()) == [(9, 9, True)]

    def test_leaves_what_comes_after_that_to_the_process_in_its_place(self, ear, wires, claiming):
        claiming.stopping.set()
        wires.hint(DUE, 1)
        ear.wait(PATIENCE)
        assert list(wires.to_slots[SLOT].receive()) == [(DUE, 1)]

    @pytest.mark.parametrize("hint", [DUE, GATE])
    def test_has_the_claimer_look_at_the_lane_that_is_named(self, hint, ear, wires, claiming, lanes):
        wires.hint(hint, 1)
        ear.wait(PATIENCE)
        assert [claiming.timers[lane].is_over for lane in lanes] == [False, True]

    def test_hears_while_it_waits(self, ear, wires, claiming, lanes):
        hearing = threading.Thread(target=ear.wait, args=(10 * PATIENCE,))
        hearing.start()
        wires.hint(DUE, 1)
        hearing.join(PATIENCE)
        assert not hearing.is_alive()
        assert claiming.timers[lanes[1]].is_over

    def test_is_woken_by_what_its_own_process_wants(self, ear, claiming):
        hearing = threading.Thread(target=ear.wait, args=(10 * PATIENCE,))
        hearing.start()
        claiming.inflight.wake.set()
        hearing.join(PATIENCE)
        assert not hearing.is_alive()

    def test_knows_whether_somebody_listens(self, ear, claiming, lanes):
        ear._hear(BEGUN, lanes[0])
        assert claiming.listened == {"default"}
        ear._hear(ENDED, lanes[0])
        assert claiming.listened == set()


@only_postgresql
@pytest.mark.django_db(transaction=True)
class TestListener:
    @pytest.fixture
    def listener(self, lanes, wires, monkeypatch):
        """A listener in a thread, which ends with the test."""
        listener = DatabaseListener("default", lanes, wires, OwnConnections(60), Digest(module.logger))
        ended = threading.Event()

        def sleep(seconds):
            if ended.wait(seconds):
                connections.close_all()
                raise SystemExit

        def run():
            with suppress(SystemExit):
                listener.run()

        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
        thread = threading.Thread(target=run, daemon=True)
        yield listener, thread.start
        ended.set()
        self.break_connections()
        thread.join(PATIENCE)
        assert not thread.is_alive()

    def break_connections(self):
        with connection.cursor() as cursor:
            for pid in sessions(LISTENER):
                cursor.execute("SELECT pg_terminate_backend(%s)", [pid])

    def heard(self, wires, *wanted, least=1):
        """Wait for hints of some kinds, and for so many, and return those for the first of the slots."""
        heard = []
        while len(heard) < least or not {Hint(what) for what, _place in heard}.issuperset(wanted):
            heard += wires.to_slots[0].receive()
        return [(Hint(what), place) for what, place in heard]

    def is_held(self, lane):
        connection.ensure_connection()
        return bool(dialect_for(connection).notify(connection, [gate_of(lane.bound, lane.queue)]))

    def test_says_that_it_has_begun_and_holds_no_gate_unasked(self, listener, wires, lanes):
        listening, start = listener
        start()
        assert self.heard(wires, BEGUN, least=2) == [(BEGUN, 0), (BEGUN, 1)]
        assert listening.trouble is None
        assert not any(self.is_held(lane) for lane in lanes)

    def test_holds_the_gate_of_a_lane_while_any_process_is_idle_there(self, listener, wires, lanes):
        _listening, start = listener
        start()
        tell = wires.to_listener["default"].send
        tell(0, 1, True)
        tell(1, 1, True)
        assert (GATE, 1) in self.heard(wires, BEGUN, GATE)
        assert (self.is_held(lanes[0]), self.is_held(lanes[1])) == (False, True)
        tell(0, 1, False)
        tell(0, 0, True)
        assert (GATE, 0) in self.heard(wires, GATE), "all that was told before is done"
        assert self.is_held(lanes[1])
        tell(1, 1, False)
        eventually(lambda: not self.is_held(lanes[1]), "nobody is idle there")

    def test_passes_on_that_a_row_is_due(self, listener, wires, lanes):
        _listening, start = listener
        start()
        wires.to_listener["default"].send(0, 1, True)
        self.heard(wires, GATE)
        assert self.is_held(lanes[1])  # which says that a row is due
        assert self.heard(wires, DUE) == [(DUE, 1)]

    def test_says_when_its_connection_breaks_and_begins_anew(self, listener, wires, lanes, monkeypatch):
        _listening, start = listener
        start()
        wires.to_listener["default"].send(0, 1, True)
        self.heard(wires, GATE)
        self.break_connections()
        assert [what for what, _place in self.heard(wires, ENDED, GATE)] == [ENDED, ENDED, BEGUN, BEGUN, GATE]

    def test_knows_that_messages_do_not_arrive(self, listener, monkeypatch, caplog):
        caplog.set_level("INFO")
        monkeypatch.setattr(module, "HEARD_WITHIN", 0.2)
        monkeypatch.setattr(dialect_for(connection), "send", lambda *args: None, raising=False)
        listening, start = listener
        start()
        eventually(lambda: "do not arrive" in (listening.trouble or ""), "it has given up")
        eventually(lambda: "Wake-ups do not work on database 'default'" in caplog.text, "and says so")
        eventually(lambda: not sessions(LISTENER), "it leaves no connection that listens")
