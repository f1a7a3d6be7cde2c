"""Rows that wait for events, and the workers that run them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from lab.models import AsyncPetition, AtomicPetition, Leg, LongPetition, Petition, Reading, SavedPetition, SwiftPetition
from statemachine_fields import Delivery
from statemachine_fields.testing import drain
from statemachine_fields.worker import Move, Spawn
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.outcome_events import Events
from statemachine_fields.worker.outcomes import Failed, Transitioned, Waited
from tests.worker.rows import about, claim, claim_one, columns_of, lane_of, not_mariadb, seconds_until

pytestmark = [pytest.mark.django_db, not_mariadb]

DAY = 24 * 60 * 60
KINDS = [Petition, AtomicPetition, AsyncPetition, SavedPetition, SwiftPetition]

each_kind = pytest.mark.parametrize("model", KINDS, ids=lambda model: model.__name__)


def petition(status="OPEN", model=Petition, **script):
    row = model.objects.create(script=script)
    row.states.force_transition_to(status, reason="for the test")
    return row


def status_of(row):
    return columns_of(row).status


def taken(row):
    return [(event.number, event.taken_by) for event in row.states.events]


def readings(row):
    name = f"{row._meta.model_name} {row.pk}"
    return [each.numbers for each in Reading.objects.filter(petition=name).order_by("pk")]


class Hands:
    """A worker whose steps a test takes by itself, so that something may happen between them."""

    def __init__(self, model=Petition):
        self.lane = lane_of(model)
        self.executor = HandlerExecutor(max_crashes=5, jitter=0)
        self.events = Events()
        self.committer = Committer(self.executor, self.events)

    def claim(self):
        return claim_one(self.lane)

    def run(self, lease):
        return self.executor.run(lease)

    def commit(self, *outcomes):
        assert self.committer.commit(outcomes) == []


@each_kind
class TestHandlers:
    def test_get_what_came_in_order_and_their_move_takes_it(self, model):
        row = petition(model=model, marks=True)
        for name in ("letter", "denied", "call"):
            row.states.deliver(name)
        drain(model)

        assert status_of(row) == "DENIED"  # by way of HEARD, which was waiting for what OPEN was not
        assert readings(row) == [[1, 3]]
        heard, denied = row.states.history.order_by("sequence")[1:]
        assert (heard.to_status, heard.metadata, denied.metadata) == ("HEARD", {"read": [1, 3]}, {"event": "denied"})
        assert taken(row) == [(1, heard.sequence), (2, denied.sequence), (3, heard.sequence)]

    def test_are_not_run_before_something_has_happened(self, model):
        row = petition(model=model, marks=True)
        row.states.run_at()
        drain(model)

        assert (status_of(row), readings(row)) == ("OPEN", [])
        assert seconds_until(columns_of(row).next_at) == about(3 * DAY)

    def test_that_say_not_yet_are_asked_again_when_more_has_come(self, model):
        row = petition(model=model, marks=True, needs=2)
        row.states.deliver("letter")
        drain(model)

        assert (status_of(row), readings(row), taken(row)) == ("OPEN", [[1]], [(1, None)])
        assert seconds_until(columns_of(row).next_at) == about(3 * DAY)
        row.states.deliver("call")
        drain(model)
        assert (status_of(row), readings(row)) == ("HEARD", [[1], [1, 2]])

    def test_may_take_less_than_they_were_handed(self, model):
        row = petition(model=model, take=[2])
        for _ in range(2):
            row.states.deliver("letter")
        drain(model)

        moves = [(each.from_status, each.to_status) for each in row.states.history.order_by("sequence")]
        assert moves[1:] == [("OPEN", "HEARD"), ("HEARD", "OPEN")]  # where the letter was awaited that was left
        assert taken(row) == [(1, 3), (2, 2)]

    def test_may_make_children_and_take_less_than_they_were_handed(self, model, monkeypatch):
        def play(self, ctx):
            return Spawn("HEARD", [Leg(number=event.number) for event in ctx.events[1:]], take=ctx.events[1:])

        monkeypatch.setattr(model, "play", play)
        row = petition(model=model)
        for name in ("letter", "call", "denied"):
            row.states.deliver(name)
        drain(model)

        # The letter is awaited in HEARD, and so brings the row back, and then nothing is left that could move it.
        moves = [(each.from_status, each.to_status) for each in row.states.history.order_by("sequence")]
        assert moves[1:] == [("OPEN", "HEARD"), ("HEARD", "OPEN")]
        assert taken(row) == [(1, 3), (2, 2), (3, None)]
        assert [leg.number for leg in Leg.objects.all()] == [2]

    def test_that_fail_are_tried_again_by_policy_and_take_nothing(self, model):
        row = petition(model=model, raises=True)
        row.states.deliver("letter")
        drain(model, collapse_time=False)

        columns = columns_of(row)
        assert (columns.status, columns.failures, "illegible" in columns.error) == ("OPEN", 1, True)
        assert (seconds_until(columns.next_at), taken(row)) == (about(60), [(1, None)])

    def test_write_other_fields_with_the_move(self, model):
        row = petition(model=model, notes=True)
        row.states.deliver("letter")
        drain(model)
        row.refresh_from_db()

        assert (row.note, row.status, taken(row)) == ("letter", "HEARD", [(1, 2)])


class TestMappings:
    def test_the_first_that_came_moves_the_row_and_the_others_stay(self):
        row = petition("HEARD")
        for name in ("call", "court.granted", "denied"):
            row.states.deliver(name)
        drain(Petition)

        assert (status_of(row), taken(row)) == ("GRANTED", [(1, None), (2, 2), (3, None)])

    def test_what_does_not_concern_the_state_moves_nothing(self):
        row = petition("HEARD")
        row.states.deliver("call")
        row.states.run_at()

        assert drain(Petition).moved == 0
        assert columns_of(row).next_at is None

    def test_children_are_moved_as_their_parents_are(self):
        row = LongPetition.objects.create(script={"marks": True})
        row.states.transition_to("OPEN")
        row.states.deliver("letter")
        drain(Petition)

        assert Petition.objects.get(pk=row.pk).status == "HEARD"


class TestTimeOuts:
    def test_move_a_row_for_which_nothing_came(self):
        row = petition(marks=True)
        drain(Petition, timeouts=True)

        assert (status_of(row), readings(row)) == ("DENIED", [])

    def test_come_after_what_came_before_them(self):
        row = petition()
        row.states.deliver("letter")
        drain(Petition, timeouts=True)

        assert status_of(row) == "HEARD"

    def test_leave_what_came_too_late_where_it_is(self):
        row, hands = petition(), Hands()
        row.states.run_at()
        lease = hands.claim()
        lease.age = 3 * DAY
        outcome = hands.run(lease)
        assert (type(outcome), outcome.to_status) == (Transitioned, "DENIED")
        assert row.states.deliver("letter") is Delivery.KEPT  # it is held
        hands.commit(outcome)

        assert (status_of(row), taken(row)) == ("DENIED", [(1, None)])

    def test_are_let_pass_by_time(self):
        row = petition()
        drain(Petition, at=timedelta(days=2))
        assert status_of(row) == "OPEN"
        drain(Petition, at=timedelta(days=4))
        assert status_of(row) == "DENIED"


class TestWhatComesWhileARowIsHeld:
    @pytest.mark.parametrize("way", ["not yet", "woken for nothing"])
    def test_wakes_it_when_it_is_let_go(self, way):
        row, hands = petition(needs=2), Hands()
        row.states.deliver("letter") if way == "not yet" else row.states.run_at()
        lease = hands.claim()
        outcome = hands.run(lease)
        assert (type(outcome), outcome.delay) == (Waited, None)
        row.states.deliver("letter")
        hands.commit(outcome)

        assert Petition.states.due().filter(pk=row.pk).exists()
        assert (outcome.is_woken, outcome.due_in) == (True, 0.0)

    def test_wakes_it_where_it_goes(self):
        row, hands = petition(), Hands()
        row.states.deliver("letter")
        lease = hands.claim()
        outcome = hands.run(lease)
        row.states.deliver("denied")
        hands.commit(outcome)

        assert (status_of(row), outcome.due_in) == ("HEARD", 0.0)
        assert Petition.states.due().filter(pk=row.pk).exists()

    def test_does_not_hurry_what_failed(self):
        row, hands = petition(raises=True), Hands()
        row.states.deliver("letter")
        outcome = hands.run(hands.claim())
        row.states.deliver("letter")
        hands.commit(outcome)

        assert isinstance(outcome, Failed)
        assert seconds_until(columns_of(row).next_at) == about(60)

    def test_what_was_seen_does_not_wake_it_again(self):
        row, hands = petition(needs=5), Hands()
        row.states.deliver("letter")
        outcome = hands.run(hands.claim())
        hands.commit(outcome)

        assert not Petition.states.due().exists()
        assert (outcome.is_woken, outcome.due_in) == (False, None)

    def test_is_taken_by_nobody_whose_lease_has_ended(self):
        row, hands = petition(), Hands()
        row.states.deliver("letter")
        late = hands.run(hands.claim())
        Petition.objects.get(pk=row.pk).states.release()
        hands.commit(late)

        assert (status_of(row), taken(row)) == ("OPEN", [(1, None)])
        drain(Petition)
        assert (status_of(row), taken(row)) == ("HEARD", [(1, 2)])

    def test_is_not_taken_by_a_move_that_the_policy_makes(self):
        row, hands = petition(needs=9), Hands()
        row.states.deliver("letter")
        lease = hands.claim()
        lease.age = 3 * DAY
        outcome = hands.run(lease)
        hands.commit(outcome)

        assert (status_of(row), taken(row)) == ("DENIED", [(1, None)])

    def test_parking_keeps_it_and_resuming_runs_it(self):
        row = petition(raises=True)
        row.states.deliver("letter")
        drain(Petition)
        assert columns_of(row).next_at is None
        assert row.states.deliver("call") is Delivery.KEPT

        Petition.objects.filter(pk=row.pk).update(script={})
        row.refresh_from_db()
        assert row.states.resume()
        drain(Petition)
        assert (status_of(row), taken(row)) == ("HEARD", [(1, 2), (2, 2)])


class TestBatches:
    def test_one_question_finds_the_events_of_all(self):
        rows = [petition() for _ in range(5)]
        for row in rows:
            row.states.deliver("letter")
        lane = lane_of(Petition)
        with CaptureQueriesContext(connection) as queries:
            leases = claim(lane)
        asked = [query["sql"] for query in queries if 'FROM "lab_petitionstateevent"' in query["sql"]]

        assert [[event.instance_id for event in lease.awaited.events] for lease in leases] == [
            [lease.key] for lease in leases
        ]
        assert len(asked) == 1

    def test_moves_that_take_and_moves_that_do_not_go_together(self):
        hands = Hands()
        taking, not_taking = petition(), petition(take=[])
        for row in (taking, not_taking):
            row.states.deliver("call")
        leases = claim(hands.lane)
        hands.commit(*[hands.run(lease) for lease in leases])

        assert [status_of(row) for row in (taking, not_taking)] == ["HEARD", "HEARD"]
        assert (taken(taking), taken(not_taking)) == ([(1, 2)], [(1, None)])

    def test_wrong_takes_are_failures(self):
        row, hands = petition(), Hands()
        row.states.deliver("letter")
        other = petition()
        other.states.deliver("letter")
        other.states.deliver("letter")
        foreign = other.states.events.last()
        lease = next(lease for lease in claim(hands.lane) if lease.key == row.pk)

        outcome = hands.executor.judged(lease, Move("HEARD", take=[foreign]))
        assert (type(outcome), "was not handed" in outcome.error) == (Failed, True)

    def test_to_wait_in_a_state_that_waits_is_a_failure(self):
        row, hands = petition(), Hands()
        row.states.deliver("letter")
        outcome = hands.executor.judged(hands.claim(), Move("HEARD", after=5))
        assert (type(outcome), "means nothing" in outcome.error) == (Failed, True)


class TestDrain:
    def test_runs_a_row_again_that_another_sent_something(self, monkeypatch):
        waits, sends = petition(needs=2), petition()
        waits.states.deliver("letter")
        sends.states.deliver("letter")
        play = Petition.play

        def played(self, ctx):
            if self.pk == sends.pk:
                waits.states.deliver("letter")
            return play(self, ctx)

        monkeypatch.setattr(Petition, "play", played)
        drain(Petition)
        assert (status_of(waits), status_of(sends)) == ("HEARD", "HEARD")

    def test_leaves_sleepers_asleep(self):
        petition()
        petition("HEARD")
        assert drain(Petition).tries == 0

    def test_that_lets_time_pass_wakes_who_sends_to_itself(self, monkeypatch):
        row = petition(needs=3)
        play = Petition.play

        def played(self, ctx):
            if len(ctx.events) < 3:
                Petition.objects.get(pk=self.pk).states.deliver("letter")
            return play(self, ctx)

        monkeypatch.setattr(Petition, "play", played)
        row.states.deliver("letter")
        drain(Petition, at=timedelta(hours=1))
        assert status_of(row) == "HEARD"


def test_a_handler_that_moves_its_row_itself_takes_nothing(monkeypatch):
    row = petition()
    row.states.deliver("letter")

    def play(self, ctx):
        self.states.transition_to("DRAFT")

    monkeypatch.setattr(Petition, "play", play)
    drain(Petition)
    assert (status_of(row), taken(row)) == ("DRAFT", [(1, None)])


def test_in_a_test_case_nothing_has_to_be_committed():
    row = petition()
    with transaction.atomic():
        row.states.deliver("letter")
        drain(Petition)
    assert status_of(row) == "HEARD"
