"""What cannot be claimed keeps nothing else from being claimed, and no claim is left behind unheard."""

from __future__ import annotations

import threading

import psycopg
import pytest
from django.db import OperationalError, connection

from lab.models import Chore, Lot
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.claiming import ClaimLoop
from statemachine_fields.worker.connections import OwnConnections
from statemachine_fields.worker.inflight import Buffer, InFlight
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.outcomes import Transitioned
from tests.worker.rows import claim, columns_of, in_seconds, lease_on, let_lease_run_out, only_postgresql, set_clock

pytestmark = [pytest.mark.django_db(transaction=True), only_postgresql]

REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this row'; END $$;
    CREATE TRIGGER refuse BEFORE UPDATE ON lab_lot FOR EACH ROW WHEN (OLD.amount = 13) EXECUTE FUNCTION refuse()"""


def execute(text):
    with connection.cursor() as cursor:
        cursor.execute(text)


@pytest.fixture
def make(lots, chores, events):
    def make(lanes=(lots, chores), **facts):
        lanes = [*lanes]
        options = WorkerOptions(machines=(), **{"threads": 50, **facts})
        return ClaimLoop(
            lanes,
            options,
            Claimer("me:1", 60, events.digest),
            InFlight(Buffer(lanes, {})),
            OwnConnections(60),
            events,
            threading.Event(),
        )

    return make


@pytest.fixture
def loop(make):
    return make()


@pytest.fixture
def refused():
    """Lots of 13 cannot be written."""
    execute(REFUSE)
    yield
    execute("DROP TRIGGER IF EXISTS refuse ON lab_lot; DROP FUNCTION refuse()")


def lots_of(*amounts):
    return [Lot.objects.create(amount=amount) for amount in amounts]


def keys(loop):
    return sorted(lease.key for lease in loop.inflight.held)


def test_what_other_queues_run_takes_nothing_from_the_limit_of_a_queue(make, lots, chores):
    loop = make(threads=4, queues={"chores": 1, "default": 2})
    loop.inflight.running.update(lease_on(lots, key) for key in (1, 2))
    assert (loop._free(chores), loop._free(lots)) == (1, 0)
    loop.inflight.running.add(lease_on(chores, 3))
    assert loop._free(chores) == 0


def test_no_queue_has_more_than_there_are_threads(make, lots, chores):
    loop = make(threads=2, queues={"chores": 2, "default": 2})
    loop.inflight.running.update(lease_on(lots, key) for key in (1, 2))
    assert loop._free(chores) == 0


class TestRest:
    @pytest.fixture
    def slept(self, loop, lots, chores):
        """How long it would have slept. There is no room for lots, and nothing to do with chores for a long time."""
        loop.inflight.running.update(lease_on(lots, key) for key in range(loop.options.threads))
        loop.timers[chores].sleep(None)
        slept = []
        loop.wait = slept.append
        return slept

    def test_ends_when_a_row_is_due_for_which_there_was_no_room_before(self, loop, lots, slept):
        """Who makes room says so only to one who is late."""
        loop.timers[lots].sleep(0.2)
        loop._rest()
        assert slept == [pytest.approx(0.2, abs=0.1)]

    def test_does_not_end_at_once_while_there_is_none(self, loop, lots, slept):
        loop.timers[lots].go_on()
        loop._rest()
        assert slept == [pytest.approx(loop.options.poll_seconds, abs=0.1)]

    @pytest.mark.parametrize("is_behind_another", [False, True])
    def test_ends_with_a_coroutine_unless_another_row_is_there_to_begin(self, is_behind_another, make, pings):
        loop = make(lanes=[pings])
        if is_behind_another:
            loop.inflight.buffer.put(pings, [lease_on(pings, 2)])
        loop.on_ran(lease_on(pings, 1))
        assert loop.inflight.wake.is_set() is not is_behind_another

    def test_goes_on_when_a_thread_has_run_a_row(self, loop, lots):
        """It asks for the next by itself."""
        loop.on_ran(lease_on(lots))
        assert not loop.inflight.wake.is_set()


class TestRowsThatAreNotYetWritten:
    @pytest.fixture
    def room(self, loop):
        """How many more may come to those, which a test may change."""
        room = {"rows": 0}
        loop.room_to_write = lambda lane: room["rows"]
        return room

    def test_keep_more_of_their_lane_from_being_claimed(self, loop, lots, room):
        lots_of(1, 2, 3)
        assert loop._claim_lane(lots) == 0
        room["rows"] = 2
        assert loop._claim_lane(lots) == 2

    def test_let_the_claimer_go_on_when_there_are_few(self, loop, lots, chores, room):
        lots_of(1)
        loop._claim_lane(lots)
        written = [Transitioned(lease_on(lots), to_status="SOLD")]
        loop.on_written(written)
        assert not loop.inflight.wake.is_set(), "still too many"
        room["rows"] = 1
        loop.on_written([Transitioned(lease_on(chores), to_status="DONE")])
        assert not loop.inflight.wake.is_set(), "of another lane, of which nothing was kept from being claimed"
        loop.on_written(written)
        assert loop.inflight.wake.is_set()


class TestBadRow:
    def test_does_not_keep_its_neighbours_from_being_claimed(self, loop, lots, refused, caplog):
        rows = lots_of(1, 1, 13, 1, 13, 1, 1)
        assert loop._claim_lane(lots) == 5
        assert keys(loop) == [row.pk for row in rows if row.amount == 1]
        assert loop.inflight.buffer.waiting(lots) == 5
        named = [row for row in rows if f"lab.Lot pk={row.pk} cannot be claimed and is set aside" in caplog.text]
        assert [row.amount for row in named] == [13], "one of the two, as the cause is the same"
        caplog.clear()
        loop.events.digest.flush(everything=True)
        assert "1 more like this" in caplog.text

    def test_is_set_aside_and_not_met_by_the_next_claim(self, loop, lots, refused, monkeypatch):
        lots_of(1, 13, 1)
        loop._claim_lane(lots)
        (late,) = lots_of(1)

        def fail(*args):
            raise AssertionError("The bad row was met again.")

        monkeypatch.setattr(type(lots), "candidates", fail)
        assert loop._claim_lane(lots) == 1
        assert late.pk in keys(loop)

    def test_is_tried_again_after_a_while(self, loop, lots, refused):
        (bad,) = lots_of(13)
        assert loop._claim_lane(lots) == 0
        execute("DROP TRIGGER refuse ON lab_lot")
        loop._claim_lane(lots)
        assert keys(loop) == []
        loop.claimer.aside[lots][bad.pk].until = 0.0
        loop._claim_lane(lots)
        assert (keys(loop), loop.claimer.aside[lots]) == ([bad.pk], {})

    def test_that_is_still_bad_is_left_alone_for_longer(self, loop, lots, refused):
        (bad,) = lots_of(13)
        loop._claim_lane(lots)
        backoff = loop.claimer.aside[lots][bad.pk]
        first = backoff.left
        backoff.until = 0.0
        loop._claim_lane(lots)
        assert backoff.left > first

    def test_is_one_of_many_only_if_others_can_be_claimed(self, loop, lots, monkeypatch, caplog):
        """What fails for all rows is no row's fault, if it is somebody in the way."""
        lots_of(1, 1, 1)

        def fail(*args):
            error = OperationalError("lock timeout")
            raise error from psycopg.errors.LockNotAvailable("lock timeout")

        monkeypatch.setattr(type(lots), "claim", fail)
        assert loop._claim_lane(lots) == 0
        assert loop.claimer.aside[lots] == {}
        assert "Rows of lab.Lot.states in queue 'default' cannot be claimed now" in caplog.text


class TestContainment:
    @pytest.fixture
    def broken(self):
        """A machine without its table."""
        execute("ALTER TABLE lab_chore RENAME TO lab_chore_gone")
        yield
        execute("ALTER TABLE lab_chore_gone RENAME TO lab_chore")

    def test_a_lane_that_cannot_be_claimed_is_told_of_and_left_for_a_while(self, loop, chores, broken, caplog):
        assert loop._claim_lane(chores) == 0
        assert "Rows of lab.Chore.states in queue 'chores' cannot be claimed now" in caplog.text
        assert not loop._is_open(chores)

    def test_it_does_not_hold_up_another(self, loop, lots, chores, broken):
        lots_of(1, 1)
        assert [loop._claim_lane(lane) for lane in (chores, lots, chores)] == [0, 2, 0]

    def test_it_is_served_again_when_it_can_be(self, loop, chores):
        execute("ALTER TABLE lab_chore RENAME TO lab_chore_gone")
        try:
            loop._claim_lane(chores)
        finally:
            execute("ALTER TABLE lab_chore_gone RENAME TO lab_chore")
        Chore.objects.create()
        loop._troubles[chores].until = 0.0
        assert loop._claim_lane(chores) == 1
        assert loop._troubles[chores].failures == 0


class TestSuspects:
    def left(self, number, crashes=0):
        rows = lots_of(*[1] * number)
        for row in rows:
            set_clock(row, crashes=crashes)
        return rows

    @pytest.mark.parametrize(
        ("crashes", "taken"), [(1, 3), (2, 1)], ids=["one died, some at a time", "more died, one at a time"]
    )
    def test_that_workers_died_of_are_claimed_a_few_at_a_time(self, crashes, taken, loop, lots):
        self.left(5, crashes=crashes)
        assert loop._take_suspects(lots, 3) == taken

    def test_that_fewer_died_of_come_first(self, loop, lots):
        self.left(2, crashes=2)
        once = self.left(2, crashes=1)
        assert loop._take_suspects(lots, 5) == 2
        assert keys(loop) == [row.pk for row in once]

    def test_that_fewer_died_of_come_first_also_among_the_worst(self, loop, lots):
        ((_worst,), (better,)) = (self.left(1, crashes=3), self.left(1, crashes=2))
        loop._take_suspects(lots, 5)
        assert keys(loop) == [better.pk]

    def test_are_claimed_alone_where_the_next_death_is_the_last(self, make, lots):
        loop = make(max_crashes=2)
        self.left(5, crashes=1)
        loop.prefetches[lots].suspects = 8
        loop.prefetches[lots].was_empty = True
        assert loop._claim_lane(lots) == 1

    def test_are_not_claimed_while_others_have_no_outcome(self, loop, lots):
        self.left(5, crashes=1)
        loop.prefetches[lots].was_empty = True
        assert loop._claim_lane(lots) == 1
        loop.prefetches[lots].was_empty = loop.prefetches[lots].suspects_left = True
        assert loop._claim_lane(lots) == 0

    def test_whose_lease_ran_out_are_found(self, loop, lots):
        rows = lots_of(1, 1)
        claim(lots, owner="gone:1")
        for row in rows:
            let_lease_run_out(row)
        assert loop._take_suspects(lots, 5) == 2
        assert [columns_of(row).crashes for row in rows] == [1, 1]
        assert loop.events.total["recovered"] == 2


class TestUnheard:
    """The answer to a claim is lost: its rows are leased, and nobody runs them."""

    @pytest.fixture
    def unheard(self, loop, lots, break_after):
        """A loop that has one row in hand, and another that it does not know of."""
        known = lots_of(1)[0]
        loop._claim_lane(lots)
        unknown = lots_of(1)[0]
        break_after("claim", written=True)
        assert loop._claim_lane(lots) == 0
        loop._reconnects["default"].until = 0.0
        return loop, known, unknown

    def test_rows_are_remembered(self, unheard, lots):
        loop, _known, unknown = unheard
        assert loop.unheard == [lots]
        connection.close()
        assert columns_of(unknown).lease_owner == "me:1"

    def test_rows_are_given_back_without_a_crash_and_claimed_again(self, unheard, lots):
        loop, known, unknown = unheard
        assert loop._claim_lane(lots) == 1
        assert keys(loop) == [known.pk, unknown.pk]
        assert columns_of(unknown).crashes == 0

    def test_rows_that_are_known_are_kept(self, unheard, lots):
        loop, known, _unknown = unheard
        before = columns_of(known).lease_token
        loop._claim_lane(lots)
        assert columns_of(known).lease_token == before

    def test_rows_are_given_back_before_the_end(self, unheard, lots):
        loop, known, unknown = unheard
        loop._unheard[lots] = 0.0
        loop.end()
        assert (loop.ended.is_set(), loop.unheard) == (True, [])
        assert columns_of(unknown).lease_owner == ""
        assert columns_of(known).lease_owner == "me:1"

    def test_the_server_may_still_be_at_it_for_a_while(self, unheard, lots):
        loop, _known, _unknown = unheard
        loop._claim_lane(lots)
        assert loop.unheard == [lots]


def test_rows_that_come_while_the_process_stops_are_given_back(loop, lots):
    late = []
    loop.on_late = late.extend
    loop.inflight.close()
    lots_of(1, 1)
    loop._claim_lane(lots)
    assert len(late) == 2


def test_rows_of_a_process_that_died_are_taken_back_at_once(lots, make):
    rows = lots_of(1, 1)
    claim(lots, owner="dead:1")
    loop = make()
    loop.predecessor, loop._bereaved = "dead:1", {lots}
    loop.prefetches[lots].was_empty = True
    loop._claim_lane(lots)
    assert [columns_of(row).crashes for row in rows] == [1, 1]
    assert [columns_of(row).lease_owner for row in rows].count("dead:1") == 0


def test_later_rows_are_left_alone(loop, lots):
    (row,) = lots_of(1)
    set_clock(row, next_at=in_seconds(60))
    assert loop._claim_lane(lots) == 0
