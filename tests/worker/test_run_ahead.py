"""A row that enters a state in which it is due at once goes on under the claim that it has, in one statement."""

from __future__ import annotations

import threading
from collections import Counter

import psycopg
import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from lab.models import Handover, Mark, Relay
from lab.models.ahead import STEPS
from statemachine_fields import StateMachine
from statemachine_fields.signals import leases_claimed, post_transition
from statemachine_fields.testing import drain
from statemachine_fields.worker.ahead import MOST_STEPS, RunAhead
from statemachine_fields.worker.atomic import run_atomic
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.claiming import ClaimLoop
from statemachine_fields.worker.commit import CommitLoop, Committer
from statemachine_fields.worker.connections import OwnConnections
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.heartbeat import Heartbeat
from statemachine_fields.worker.inflight import Buffer, InFlight
from statemachine_fields.worker.lease import Lane, lanes_of
from statemachine_fields.worker.models import RunStatistics
from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.outcome_events import Events
from statemachine_fields.worker.outcomes import Released
from statemachine_fields.worker.writing import ConnectionLost
from tests.worker.rows import about, claim, columns_of, locked, not_mariadb, only_postgresql, seconds_until, set_clock
from tests.worker.test_statemachine_worker import run as run_command

pytestmark = [pytest.mark.django_db(transaction=True), not_mariadb]


class Process:
    """The parts of a worker process that a row passes, without their threads: each step is taken when a test says so."""

    def __init__(self, model=Relay, queues=None, **options):
        self.lanes = lanes_of([model.states._meta], queues)
        self.events, self.stopping = Events(), threading.Event()
        self.executor = HandlerExecutor(max_crashes=5, stop=self.stopping)
        self.inflight = InFlight(Buffer(self.lanes, {}))
        self.claimer = Claimer("me:1", 60, self.events.digest, self.stopping)
        self.ahead = RunAhead(self.lanes, self.claimer, self.inflight, self.events, self.stopping)
        self.committer = Committer(self.executor, self.events, self.ahead)
        self.options = WorkerOptions(machines=(), **{"threads": 50, **options})
        self.claiming = ClaimLoop(
            self.lanes, self.options, self.claimer, self.inflight, OwnConnections(60), self.events, self.stopping
        )
        self.loop = CommitLoop("committer", self.committer, self.inflight, OwnConnections(60), ["default"], 100)
        self.loop.on_written = self.claiming.on_written
        self.late = []
        self.ahead.on_late = self.late.extend
        self.ahead.on_taken = self.claiming.on_ahead
        #: The tries, in order: state, key and token.
        self.tries = []

    def claim(self):
        for lane in self.lanes:
            self.claiming._claim_lane(lane)

    def take(self):
        """Take all that waits."""
        taken = []
        while (lease := self.inflight.buffer._next(False) or self.inflight.buffer._next(True)) is not None:
            taken.append(lease)
        return taken

    def outcome_of(self, lease):
        self.tries.append((lease.status, lease.key, lease.token))
        return self.executor.run(lease)

    def write(self, outcomes):
        """Write as the committer's thread does, and return what is to be tried again."""
        again = []
        for lane, write, members in self.committer.grouped(outcomes):
            left = self.committer.write_group(lane, write, members)
            self.loop._finish(members, left, self.loop._reconnects[lane.using])
            again += left
        return again

    def step(self):
        """Run what waits, and write what comes of it."""
        return self.write([self.outcome_of(lease) for lease in self.take()])

    @property
    def states(self):
        """The states of the tries, in order."""
        return [state for state, _key, _token in self.tries]


@pytest.fixture
def process():
    return Process()


@pytest.fixture
def lose(monkeypatch):
    """Lose the answer to a verb of a lane, once, after the database has done it or before."""

    def install(verb, *, written=True):
        real = getattr(Lane, verb)

        def once(*args, **kwargs):
            monkeypatch.setattr(Lane, verb, real)
            if written:
                real(*args, **kwargs)
            connection.connection.close()
            error = OperationalError("server closed the connection unexpectedly")
            raise error from psycopg.OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(Lane, verb, once)

    yield install
    connection.close()


@pytest.fixture
def heard():
    """Who is told of claims: the keys of each."""
    told = []

    def receive(sender, keys, **kwargs):
        told.append(sorted(keys))

    leases_claimed.connect(receive, sender=Relay)
    yield told
    leases_claimed.disconnect(receive, sender=Relay)


def create(number=1, **script):
    return [Relay.objects.create(script=script) for _ in range(number)]


def recorded(row):
    return [record.to_status for record in row.states.history.order_by("sequence")]


class TestDeclaration:
    def declare(self, **options):
        return StateMachine(states=[("A", "A"), ("B", "B")], initial="A", transitions={"A": ["B"]}, **options)

    def test_it_is_off_by_default(self):
        assert not self.declare().run_ahead

    @pytest.mark.parametrize("wrong", [None, 1, "yes"])
    def test_it_is_true_or_false(self, wrong):
        with pytest.raises(ValueError, match="run_ahead must be True or False"):
            self.declare(run_ahead=wrong)


class TestGoingOn:
    def test_a_row_goes_through_its_states_under_one_claim(self, process):
        (row,) = create()
        process.claim()
        for _ in STEPS:
            process.step()
        assert process.states == [*STEPS]
        assert columns_of(row).status == "END"
        assert recorded(row) == [*STEPS[1:], "END"]
        assert not process.inflight.held

    def test_each_step_has_the_next_token(self, process):
        (row,) = create()
        process.claim()
        for _ in STEPS:
            process.step()
        assert [token for _state, _key, token in process.tries] == [1, 2, 3, 4, 5]
        assert columns_of(row).lease_token == 6

    @only_postgresql
    def test_each_step_is_one_statement_however_many_rows_go(self, process):
        create(30)
        process.claim()
        for _ in STEPS:
            with CaptureQueriesContext(connection) as statements:
                process.step()
            assert len(statements) == 1, [statement["sql"] for statement in statements]
        assert Counter(process.states) == dict.fromkeys(STEPS, 30)
        assert not Relay.objects.exclude(status="END").exists()

    def test_the_row_is_as_a_claim_leaves_it(self, process):
        (row,) = create()
        process.claim()
        Relay.objects.update(note="meanwhile")
        process.step()
        found = columns_of(row)
        assert (found.status, found.lease_owner, found.lease_token, found.attempts) == ("TWO", "me:1", 2, 2)
        assert (found.failures, found.crashes, found.error, found.next_at_pinned) == (0, 0, "", False)
        assert seconds_until(found.lease_expires_at) == about(60)
        assert seconds_until(found.claimed_at) == about(0)
        assert seconds_until(found.next_at) == about(0)

    def test_a_handler_gets_the_row_as_it_is_in_the_database(self, process):
        create(ONE="change")
        process.claim()
        (before,) = process.take()
        process.write([process.outcome_of(before)])
        (lease,) = process.take()
        assert before.instance.note == "in memory"
        assert lease.instance is not before.instance
        assert (lease.instance.note, lease.instance.status, lease.instance.status_sequence) == ("ONE", "TWO", 1)
        assert lease.instance._state.db == "default"
        assert not lease.instance._state.adding

    def test_a_move_with_an_update_goes_on_with_what_it_wrote(self, process):
        create(ONE="update")
        process.claim()
        process.step()
        (lease,) = process.take()
        assert (lease.status, lease.instance.note, lease.step) == ("TWO", "ONE", 2)

    def test_a_handler_sees_a_first_try_of_its_own(self, process):
        (row,) = create()
        process.claim()
        (first,) = process.take()
        first.failures, first.conflicts = 1, 2
        process.write([process.outcome_of(first)])
        (lease,) = process.take()
        _method, (ctx,) = process.executor.begin(lease)
        assert (ctx.attempt, ctx.token, lease.conflicts, lease.crashes) == (1, 2, 0, 0)
        assert ctx.entered_at == columns_of(row).changed_at
        assert lease.age == pytest.approx(0, abs=5)

    def test_rows_that_go_on_come_before_those_that_have_not_begun(self, process):
        first, second = create(2)
        process.claim()
        one, other = process.take()
        assert (one.key, other.key) == (first.pk, second.pk)
        process.inflight.buffer.put(other.lane, [other])
        process.write([process.outcome_of(one)])
        assert [lease.key for lease in process.take()] == [first.pk, second.pk]

    def test_they_keep_their_order_among_themselves(self, process):
        rows = create(3)
        process.claim()
        process.step()
        assert [lease.key for lease in process.take()] == [row.pk for row in rows]

    def test_a_move_that_the_policy_wants_goes_on_too(self, process, monkeypatch):
        """A row that failed for good, and whose state for that has a handler."""
        monkeypatch.setattr(Relay.states._meta.schedules["ONE"].__class__, "is_last_attempt", lambda *args: True)
        create(ONE="raise")
        process.claim()
        (lease,) = process.take()
        outcome = process.executor._move_by_policy(lease, "TWO", {}, "no luck", 1, None)
        process.write([outcome])
        process.step()
        assert process.states == ["TWO"]

    def test_it_ends_after_ten_steps_and_the_row_is_due_for_anybody(self, process):
        (row,) = create(FIVE="ONE")
        process.claim()
        for _ in range(MOST_STEPS + 5):
            process.step()
        assert len(process.tries) == MOST_STEPS == 10
        found = columns_of(row)
        assert (found.status, found.lease_owner, found.lease_expires_at) == ("ONE", "", None)
        assert seconds_until(found.next_at) == about(0)
        assert len(claim(process.lanes[0], owner="another")) == 1

    def test_a_row_that_cannot_be_read_takes_no_other_along(self, process):
        bad, good = create(1, ONE="break") + create(1)
        process.claim()
        process.step()
        bad_lease, good_lease = sorted(process.take(), key=lambda lease: lease.key)
        assert "broken" in str(bad_lease.load_error)
        assert (bad_lease.status, bad_lease.token, bad_lease.step) == ("TWO", 2, 2)
        process.write([process.outcome_of(lease) for lease in (bad_lease, good_lease)])
        assert columns_of(good).status == "THREE"
        found = columns_of(bad)
        assert (found.status, found.next_at, found.lease_owner) == ("TWO", None, "")
        assert "could not be loaded" in found.error

    def test_drain_comes_to_the_same(self):
        (row,) = create()
        tally = drain(Relay)
        assert (tally.moved, columns_of(row).status) == (5, "END")
        assert recorded(row) == [*STEPS[1:], "END"]


class TestTheOrdinaryWay:
    def ends_its_lease(self, process, row, status="TWO"):
        process.claim()
        process.step()
        found = columns_of(row)
        assert (found.status, found.lease_owner, found.lease_expires_at) == (status, "", None)
        assert not process.take()
        assert not process.inflight.held

    def test_is_for_moves_with_an_update_that_the_database_computes(self, process):
        (row,) = create(ONE="compute")
        self.ends_its_lease(process, row)
        row.refresh_from_db()
        assert row.note == "TWO"  # which is where it was by then

    def test_is_for_moves_of_the_handlers_own(self, process):
        (row,) = create(ONE="itself")
        self.ends_its_lease(process, row)

    def test_is_for_moves_after_a_while(self, process):
        (row,) = create(ONE={"after": 60})
        self.ends_its_lease(process, row)

    def test_is_for_moves_into_a_state_without_a_handler(self, process):
        (row,) = create(ONE="END")
        self.ends_its_lease(process, row, "END")

    def test_is_for_machines_that_somebody_listens_to(self, process):
        (row,) = create()
        told = []

        def receive(sender, transition, **kwargs):
            told.append(transition.to_status)

        post_transition.connect(receive, sender=Relay)
        try:
            self.ends_its_lease(process, row)
        finally:
            post_transition.disconnect(receive, sender=Relay)
        assert told == ["TWO"]

    def test_is_for_a_process_that_stops(self, process):
        (row,) = create()
        process.claim()
        process.stopping.set()
        process.step()
        assert columns_of(row).lease_owner == ""
        assert not process.inflight.held

    def test_is_for_rows_for_which_there_is_no_room(self, process):
        create(3)
        process.claim()
        process.ahead.room = lambda lane: 2
        process.step()
        assert len(process.take()) == 2
        assert Relay.objects.filter(status="TWO", status_lease_owner="").count() == 1

    def test_is_for_what_was_moved_by_a_handler_that_is_atomic(self):
        process = Process(Handover)
        row = Handover.objects.create()
        set_clock(row, status="ATOMIC")
        process.claim()
        (lease,) = process.take()
        assert run_atomic(process.executor, process.events, lease) is None
        assert (columns_of(row).status, columns_of(row).lease_owner) == ("THEN", "")


class TestLanes:
    def test_a_row_goes_on_in_another_lane_of_the_process(self):
        process = Process(Handover)
        row = Handover.objects.create()
        process.claim()
        process.step()
        (lease,) = process.take()
        assert (lease.lane.queue, lease.status) == ("other", "QUEUE")
        process.write([process.outcome_of(lease)])
        (loop,) = [lane for lane in process.lanes if "LOOP" in lane.schedules]
        assert process.inflight.buffer._rows[True][loop], "and from there to the event loop of its own"
        assert columns_of(row).status == "LOOP"

    def test_a_state_that_is_served_elsewhere_is_left_to_who_serves_it(self):
        process = Process(Handover, queues=["default"])
        row = Handover.objects.create()
        process.claim()
        process.step()
        assert (columns_of(row).status, columns_of(row).lease_owner) == ("QUEUE", "")
        assert not process.inflight.held

    def test_the_limit_of_a_queue_holds(self):
        process = Process(Handover)
        process.inflight.buffer._limits = {"other": 1}
        Handover.objects.bulk_create([Handover() for _ in range(3)])
        process.claim()
        process.step()
        assert len(process.take()) == 1
        assert process.inflight.buffer.waiting(process.lanes[1]) == 2


class TestRoom:
    """How many rows may go on before others have a better chance to run them soon."""

    @pytest.fixture
    def claiming(self, process):
        return process.claiming

    def test_rows_of_quick_handlers_go_on_though_as_many_wait(self, claiming, process):
        lane = process.lanes[0]
        claiming.prefetches[lane].ran(0.0001)
        claiming.prefetches[lane].size = 100
        assert claiming.room_ahead(lane) == 200

    @pytest.mark.parametrize(("was_full", "size"), [(True, 200), (False, 100)])
    def test_more_is_claimed_where_all_that_was_claimed_has_soon_gone_on(self, claiming, process, was_full, size):
        create()
        process.claim()
        prefetch = claiming.prefetches[process.lanes[0]]
        prefetch.size, prefetch.was_full = 100, was_full
        process.step()
        assert prefetch.size == size

    def test_rows_of_slow_handlers_go_on_only_where_they_soon_can(self, process):
        process = Process(threads=4)
        lane, claiming = process.lanes[0], process.claiming
        claiming.prefetches[lane].ran(60.0)
        create(3)
        leases = claim(lane)
        process.inflight.running.update(leases)
        assert claiming.room_ahead(lane) == 2
        process.inflight.buffer.put(lane, leases)
        assert claiming.room_ahead(lane) == -1


class TestBooks:
    """What is held, counted and told meanwhile."""

    def test_there_is_no_moment_in_which_a_row_is_not_held(self, process, monkeypatch):
        create()
        process.claim()
        seen = []
        real = process.inflight.let_go
        monkeypatch.setattr(
            process.inflight, "let_go", lambda leases: (seen.append({*process.inflight.held}), real(leases))[1]
        )
        process.step()
        (held,) = seen
        assert sorted(lease.token for lease in held) == [1, 2]
        assert [lease.token for lease in process.inflight.held] == [2]

    def test_the_new_lease_is_held_before_anybody_can_take_it(self, process, monkeypatch):
        create()
        process.claim()
        real, held = process.inflight.buffer.put, []

        def put(lane, leases, **options):
            held.append({*leases} <= process.inflight.held)
            return real(lane, leases, **options)

        monkeypatch.setattr(process.inflight.buffer, "put", put)
        process.step()
        assert held == [True]

    def test_a_heartbeat_between_two_steps_extends_the_new_lease_and_loses_no_row(self, process):
        (row,) = create()
        process.claim()
        (old,) = process.inflight.held
        process.step()
        (new,) = process.inflight.held
        process.inflight.held.add(old)  # as if it had been collected a moment ago
        heartbeat = Heartbeat("default", process.inflight, OwnConnections(60), 600, process.events.digest)
        heartbeat._beat_lane(old.lane, [old])
        assert old.is_lost
        assert not new.is_lost
        heartbeat._beat_lane(new.lane, [new])
        assert new.is_trusted
        assert seconds_until(columns_of(row).lease_expires_at) == about(600)

    def test_what_goes_on_is_not_given_back_as_unheard(self, process):
        """A claim whose answer was lost: what is leased to us and unknown goes back."""
        (row,) = create()
        process.claim()
        process.step()
        process.claiming._unheard[process.lanes[0]] = 0.0
        process.claiming._give_back_unheard(process.lanes[0])
        assert columns_of(row).lease_owner == "me:1"

    def test_they_are_counted_as_claimed(self, process):
        create(3)
        process.claim()
        for _ in STEPS:
            process.step()
        counts = {
            (state, kind): number for (_machine, state, kind), (number, _) in process.events.take_counts().items()
        }
        assert counts == {(state, kind): 3 for state in STEPS for kind in ("claimed", "moved")}
        assert process.claiming.taken_rows == 15

    def test_they_count_for_max_rows(self):
        process = Process(max_rows=3)
        create()
        process.claim()
        process.step()
        assert not process.claiming._is_full()
        process.inflight.wake.clear()
        process.step()
        assert process.claiming._is_full()
        assert process.inflight.wake.is_set(), "so that the claimer sees it"

    def test_they_are_told_as_claims_are(self, process, heard):
        rows = create(2)
        process.claim()
        process.step()
        keys = [row.pk for row in rows]
        assert heard == [keys, keys]

    def test_the_claimer_is_not_woken_for_what_goes_on(self, process):
        create()
        process.claim()
        process.inflight.wake.clear()
        process.step()
        assert not process.inflight.wake.is_set()

    def test_rows_that_come_when_the_buffer_is_closed_are_given_back_and_were_no_tries(self, process):
        (row,) = create()
        process.claim()
        (lease,) = process.take()
        outcome = process.outcome_of(lease)
        process.inflight.close()
        process.write([outcome])
        (late,) = process.late
        assert {late} == process.inflight.held
        process.write([Released(late)])
        found = columns_of(row)
        assert (found.status, found.lease_owner, found.attempts, found.crashes) == ("TWO", "", 1, 0)
        assert not process.inflight.held


class TestFences:
    """What the old token still says is not heard."""

    @pytest.mark.parametrize("verb", ["beat", "release", "unclaim", "held", "lock"])
    def test_an_old_token_is_worth_nothing(self, process, verb):
        (row,) = create()
        process.claim()
        process.step()
        before, lane = columns_of(row), process.lanes[0]
        answers = {
            "lock": lambda token: lane.lock(row.pk, token),
            "beat": lambda token: lane.beat([row.pk], [token], 60),
        }
        ask = answers.get(verb, lambda token: getattr(lane, verb)([row.pk], [token]))
        assert not ask(1)
        assert columns_of(row) == before
        assert ask(2)

    def test_the_same_move_once_more_is_not_heard(self, process):
        """All that differs by then is the token."""
        (row,) = create()
        process.claim()
        (lease,) = process.take()
        outcome = process.outcome_of(lease)
        process.write([outcome])
        set_clock(row, status="ONE")  # as if it had come back there
        before = columns_of(row)
        outcome.record_id = None
        process.write([outcome])
        assert columns_of(row) == before
        assert process.events.total["dropped"] == 1

    def test_a_row_that_is_in_another_state_is_left_there(self, process):
        """Put there past the machine, which leaves the lease as it is."""
        (row,) = create()
        process.claim()
        (lease,) = process.take()
        outcome = process.outcome_of(lease)
        set_clock(row, status="FOUR")
        assert process.write([outcome]) == [outcome]
        assert (columns_of(row).status, columns_of(row).lease_token) == ("FOUR", 1)
        assert not process.take()

    def test_a_lease_of_a_try_that_was_undone_is_not_handed_on(self, process):
        """Its token is the one that the row has after an ordinary move, when nobody holds it."""
        create()
        process.claim()
        (lease,) = process.take()
        outcome = process.outcome_of(lease)
        outcome.following = lease
        process.stopping.set()
        process.write([outcome])
        assert not process.take()
        assert not process.inflight.held

    def test_the_move_of_a_lease_that_was_lost_takes_nothing(self, process):
        (row,) = create()
        process.claim()
        (lease,) = process.take()
        outcome = process.outcome_of(lease)
        row.refresh_from_db()
        row.states.transition_to("FAILED")
        process.write([outcome])
        assert columns_of(row).status == "FAILED"
        assert process.events.total["dropped"] == 1
        assert not process.inflight.held


@only_postgresql
class TestLostAnswers:
    """Whether a move was written is found out, and so is whether the row is ours."""

    @pytest.fixture
    def sent(self, process):
        """A row, and its outcome, which is to be written."""
        (row,) = create()
        process.claim()
        (lease,) = process.take()
        return row, process.outcome_of(lease)

    def write_again(self, process, outcome):
        with pytest.raises(ConnectionLost):
            process.write([outcome])
        connection.close()
        return process.write([outcome])

    def test_a_move_that_was_written_is_told_once_and_the_row_goes_on(self, process, sent, lose):
        row, outcome = sent
        lose("enter_claimed")
        assert self.write_again(process, outcome) == []
        (lease,) = process.take()
        assert {lease} == process.inflight.held
        assert (lease.status, lease.token, lease.step, lease.instance.status) == ("TWO", 2, 2, "TWO")
        assert lease.is_trusted
        process.write([process.outcome_of(lease)])
        assert recorded(row) == ["TWO", "THREE"]
        assert (process.events.total["moved"], process.events.total["dropped"]) == (2, 0)

    def test_a_move_that_was_not_written_is_sent_again_with_the_old_token(self, process, sent, lose):
        row, outcome = sent
        lose("enter_claimed", written=False)
        assert self.write_again(process, outcome) == []
        (lease,) = process.take()
        assert (lease.token, columns_of(row).lease_token) == (2, 2)
        assert recorded(row) == ["TWO"]
        assert process.events.total["moved"] == 1

    def test_a_row_that_somebody_has_released_since_does_not_go_on(self, process, sent, lose):
        row, outcome = sent
        lose("enter_claimed")
        with pytest.raises(ConnectionLost):
            process.write([outcome])
        connection.close()
        row.refresh_from_db()
        assert row.states.release()
        assert process.write([outcome]) == []
        assert not process.take()
        assert not process.inflight.held
        assert process.events.total["moved"] == 1
        assert columns_of(row).lease_token == 3

    def test_a_row_that_another_has_by_now_does_not_go_on(self, process, sent, lose):
        row, outcome = sent
        lose("enter_claimed")
        with pytest.raises(ConnectionLost):
            process.write([outcome])
        connection.close()
        row.refresh_from_db()
        row.states.release()
        claim(process.lanes[0], owner="another")
        assert process.write([outcome]) == []
        assert not process.take()
        assert columns_of(row).lease_owner == "another"

    def test_a_row_that_we_have_claimed_anew_is_not_run_twice(self, process, sent, lose):
        row, outcome = sent
        lose("enter_claimed")
        with pytest.raises(ConnectionLost):
            process.write([outcome])
        connection.close()
        row.refresh_from_db()
        row.states.release()
        process.claim()
        assert process.write([outcome]) == []
        (lease,) = process.take()
        assert (lease.token, lease.step) == (columns_of(row).lease_token, 1)

    def test_a_row_whose_lease_ended_with_its_move_does_not_go_on(self, process, sent, lose):
        """Sent twice: the first time it was not written, the second time the process stopped, and the answer was lost again."""
        row, outcome = sent
        lose("enter_claimed", written=False)
        with pytest.raises(ConnectionLost):
            process.write([outcome])
        connection.close()
        process.stopping.set()
        lose("enter")
        assert self.write_again(process, outcome) == []
        assert not process.late
        assert not process.take()
        assert process.events.total["moved"] == 1
        found = columns_of(row)
        assert (found.lease_token, found.lease_owner, found.lease_expires_at) == (2, "", None)

    def test_a_process_that_stops_meanwhile_gives_the_row_back(self, process, sent, lose):
        row, outcome = sent
        lose("enter_claimed")
        with pytest.raises(ConnectionLost):
            process.write([outcome])
        connection.close()
        process.stopping.set()
        process.inflight.close()
        assert process.write([outcome]) == []
        process.write([Released(lease) for lease in process.late])
        found = columns_of(row)
        assert (found.status, found.lease_owner, found.crashes, found.attempts) == ("TWO", "", 0, 1)
        assert not process.inflight.held
        assert process.events.total["moved"] == 1

    def test_a_row_that_somebody_has_locked_is_found_when_he_is_done(self, process, sent, lose):
        row, outcome = sent
        lose("enter_claimed")
        with pytest.raises(ConnectionLost):
            process.write([outcome])
        connection.close()
        with locked(row):
            assert process.write([outcome]) == [outcome]
            assert process.events.total["moved"] == 0
        assert {outcome.lease} == process.inflight.held
        assert process.write([outcome]) == []
        assert len(process.take()) == process.events.total["moved"] == 1

    def test_an_answer_that_is_lost_again_while_it_is_found_out(self, process, sent, lose):
        row, outcome = sent
        lose("enter_claimed")
        with pytest.raises(ConnectionLost):
            process.write([outcome])
        connection.close()
        lose("adopt")
        assert self.write_again(process, outcome) == []
        (lease,) = process.take()
        assert lease.token == columns_of(row).lease_token == 2
        assert process.events.total["moved"] == 1

    def test_what_waits_to_be_found_out_is_not_given_back_as_unheard(self, process, sent, lose):
        row, outcome = sent
        lose("enter_claimed")
        with pytest.raises(ConnectionLost):
            process.write([outcome])
        connection.close()
        process.claiming._unheard[process.lanes[0]] = 0.0
        process.claiming._give_back_unheard(process.lanes[0])
        assert columns_of(row).lease_owner == "me:1"
        process.write([outcome])
        assert len(process.take()) == 1

    @pytest.mark.parametrize("cause", [psycopg.OperationalError, psycopg.errors.OutOfMemory])
    def test_rows_that_were_written_and_could_not_be_loaded_are_found_out(self, process, sent, monkeypatch, cause):
        """As where a row has parts in other tables, which are read by a statement of its own."""
        row, outcome = sent
        real = process.claimer.load

        def load(*args):
            monkeypatch.setattr(process.claimer, "load", real)
            if cause is psycopg.OperationalError:
                connection.connection.close()
            raise OperationalError("gone") from cause("gone")

        monkeypatch.setattr(process.claimer, "load", load)
        assert self.write_again(process, outcome) == []
        assert len(process.take()) == process.events.total["moved"] == 1
        assert recorded(row) == ["TWO"]


class TestCommand:
    """A real worker."""

    def test_once_ends_when_all_rows_have_gone_their_way(self):
        Relay.objects.bulk_create([Relay(script={"marks": True}) for _ in range(60)])
        run_command("lab.Relay", "--once")
        assert not Relay.objects.exclude(status="END").exists()
        assert not Relay.objects.exclude(status_lease_owner="", status_lease_expires_at=None).exists()
        assert Counter(Mark.objects.values_list("state", flat=True)) == dict.fromkeys(STEPS, 60)
        counts = Counter()
        for kind, number in RunStatistics.objects.values_list("kind", "count"):
            counts[kind] += number
        assert counts == {"claimed": 300, "moved": 300}

    def test_rows_go_on_in_threads_on_the_event_loop_and_in_transactions(self):
        Handover.objects.bulk_create([Handover() for _ in range(10)])
        run_command("lab.Handover", "--once")
        assert set(Handover.objects.values_list("status", "status_sequence")) == {("LATER", 5)}
        states = ["THREAD", "QUEUE", "LOOP", "ATOMIC", "THEN"]
        assert Counter(Mark.objects.values_list("state", flat=True)) == dict.fromkeys(states, 10)

    @pytest.mark.parametrize("most", [100, 20], ids=["as many as there are in all", "fewer"])
    def test_max_rows_counts_every_step(self, most):
        """Of fewer a process may take some more before it is replaced: how many is up to the machine."""
        Relay.objects.bulk_create([Relay() for _ in range(20)])
        log = run_command("lab.Relay", "--max-rows", str(most), "--threads", "1", "--once", BATCH_SIZE=10)
        assert "is being replaced: it has taken " in log
        assert not Relay.objects.exclude(status="END").exists()
