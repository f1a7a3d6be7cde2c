"""Rows that say themselves in which queue they are and how urgent: claimed in exact order, by those who serve their queue."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from lab.models import Bundle, Dispatch, Handover, QuickDispatch, Sorted, Tour, Urgent, Wish
from statemachine_fields.db.claims import Left
from statemachine_fields.schedule.wakeups import gates_before
from statemachine_fields.testing import drain
from statemachine_fields.worker import levels as learning
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.lease import lanes_of
from tests.worker.rows import Clock, columns_of, in_seconds, let_lease_run_out, not_mariadb, only_postgresql, set_clock
from tests.worker.test_run_ahead import Process
from tests.worker.test_statemachine_worker import run as run_command

pytestmark = [pytest.mark.django_db(transaction=True), not_mariadb]

BOTH = pytest.mark.parametrize("model", [Dispatch, Wish])


def lanes(model, queues=None):
    return lanes_of([model.states._meta], queues)


def lane(model, *queues):
    (found,) = lanes(model, queues or None)
    return found


def take(served, limit=10, **options):
    """Claim, and return the keys in the order in which rows are to be run."""
    return [lease.key for lease in Claimer("me:1", 60).claim(served, limit, **options)]


def rows(model, *values):
    """Create rows, each due a second after the one before it, and all of them by now."""
    made = [model.objects.create(**each) for each in values]
    for place, row in enumerate(made):
        set_clock(row, next_at=in_seconds(place - len(made) - 1))
    return [row.pk for row in made]


class TestKindsOfHandlers:
    """Rows for threads that have no time are not claimed because an event loop has some, nor in front of its own."""

    def test_have_lanes_of_their_own(self):
        states = {(lane.queue, lane.is_async): lane.states for lane in lanes(Handover)}
        threads = ["THREAD", "ATOMIC", "THEN", "LATER"]
        assert states == {("default", False): threads, ("default", True): ["LOOP"], ("other", False): ["QUEUE"]}

    def test_share_one_where_few_may_run_at_once(self):
        """So that the most urgent do."""
        assert [lane.queue for lane in lanes(Handover, {"default": 2, "other": None})] == ["default", "other"]

    def test_share_one_where_rows_say_themselves_how_urgent_they_are(self):
        assert len(lanes(Urgent)) == len(lanes(Dispatch)) == 1


class TestOrder:
    @pytest.mark.parametrize("model", [Dispatch, Urgent, Wish])
    def test_the_most_urgent_row_comes_first_and_of_those_the_one_due_first(self, model):
        a, b, c, d = rows(model, {"priority": 0}, {"priority": 5}, {"priority": -3}, {"priority": 5})
        assert take(lane(model)) == [b, d, a, c]

    def test_a_claim_of_few_takes_the_most_urgent_ones_whatever_their_queue(self):
        values = [{"queue": queue, "priority": priority} for priority in (0, 1, 2) for queue in ("a", "b")]
        keys = rows(Dispatch, *values)
        assert take(lane(Dispatch), 1) == [keys[4]]
        assert take(lane(Dispatch), 2) == [keys[5], keys[2]]
        assert take(lane(Dispatch), 9) == [keys[3], keys[0], keys[1]]

    def test_time_decides_between_queues_and_states_of_one_priority(self):
        keys = rows(Dispatch, {"queue": "b"}, {"queue": "a"}, {"queue": "c"}, {"queue": "a"})
        set_clock(Dispatch(pk=keys[1]), status="PACKED")
        assert take(lane(Dispatch, "c", "a", "b"), 3) == keys[:3]

    def test_rows_of_the_future_wait_however_urgent(self):
        late, due = rows(Urgent, {"priority": 9}, {"priority": 1})
        set_clock(Urgent(pk=late), next_at=in_seconds(60))
        assert take(lane(Urgent)) == [due]

    def test_a_priority_is_changed_like_any_field(self):
        a, b = rows(Dispatch, {}, {})
        row = Dispatch.objects.get(pk=b)
        row.priority = 5
        row.save()
        assert take(lane(Dispatch)) == [b, a]

    def test_where_the_states_say_it_the_row_is_claimed_by_its_state(self):
        a, b, c = rows(Sorted, {"queue": "a"}, {"queue": "a"}, {"queue": "b"})
        set_clock(Sorted(pk=b), status="PACKED")
        set_clock(Sorted(pk=c), status="PACKED")
        assert take(lane(Sorted)) == [b, c, a]

    def test_and_in_a_queue(self):
        a, b, _c = rows(Sorted, {"queue": "a"}, {"queue": "a"}, {"queue": "b"})
        set_clock(Sorted(pk=b), status="PACKED")
        assert take(lane(Sorted, "a")) == [b, a]

    def test_more_levels_than_one_statement_asks_for_are_as_exact(self, monkeypatch):
        monkeypatch.setattr(learning, "MOST_TOGETHER", 2)
        keys = rows(Urgent, *[{"priority": priority} for priority in range(7)])
        assert take(lane(Urgent), 5) == keys[:1:-1]

    def test_no_priority_counts_as_0(self):
        a, b, c = rows(Wish, {"priority": -1}, {"priority": None}, {"priority": 0})
        assert take(lane(Wish)) == [b, c, a]

    def test_numbers_of_64_bits(self):
        a, b = rows(Wish, {"priority": -(2**63)}, {"priority": 2**63 - 1})
        assert take(lane(Wish)) == [b, a]


class TestQueues:
    @BOTH
    def test_a_worker_of_some_queues_takes_their_rows_only(self, model):
        a, _b, c = rows(
            model, {"queue": "a", "priority": 1}, {"queue": "b", "priority": 9}, {"queue": "c", "priority": 2}
        )
        assert take(lane(model, "a", "c")) == [c, a]

    @pytest.mark.parametrize(("model", "none"), [(Dispatch, ""), (Wish, ""), (Wish, None)])
    def test_a_row_that_names_none_is_in_that_of_its_state(self, model, none):
        new, packed = rows(model, {"queue": none, "priority": 0}, {"queue": none, "priority": 0})
        set_clock(model(pk=packed), status="PACKED")
        assert take(lane(model, "packing")) == [packed]
        assert take(lane(model, "other")) == []
        assert take(lane(model, model.states._meta.machine.queue)) == [new]

    def test_a_queue_that_the_row_names_counts_more_than_that_of_its_state(self):
        (key,) = rows(Dispatch, {"queue": "a"})
        set_clock(Dispatch(pk=key), status="PACKED")
        assert take(lane(Dispatch, "packing")) == []
        assert take(lane(Dispatch, "a")) == [key]

    def test_a_queue_with_a_limit_is_a_lane_of_its_own(self):
        found = lanes(Dispatch, {"a": 2, "b": None, "c": None})
        assert [each.queue for each in found] == ["a", "b, c"]

    def test_a_machine_without_the_field_has_a_lane_for_each_queue_as_ever(self):
        assert [each.queue for each in lanes(Urgent)] == ["default"]

    def test_rows_of_other_queues_that_are_due_keep_nobody_awake(self):
        rows(Dispatch, {"queue": "b"})
        assert lane(Dispatch).next_due().is_any
        assert not lane(Dispatch, "a").next_due().is_any

    @BOTH
    def test_the_next_row_of_the_queues_served_is_known(self, model):
        for queue, seconds in (("a", 30), ("b", 20), ("c", 10)):
            row = model.objects.create(queue=queue)
            set_clock(row, next_at=in_seconds(seconds))
        assert 15 < (lane(model, "a", "b").next_due().seconds or 0) <= 20
        assert 5 < (lane(model).next_due().seconds or 0) <= 10

    def test_a_due_row_hides_no_later_one(self):
        _first, second = rows(Dispatch, {"queue": "a"}, {"queue": "a"})
        set_clock(Dispatch(pk=second), next_at=in_seconds(30))
        due = lane(Dispatch, "a").next_due()
        assert due.is_any
        assert 25 < (due.seconds or 0) <= 30

    @BOTH
    def test_a_row_that_was_set_aside_is_left_alone_once_it_is_in_another_queue(self, model):
        """It is asked for by its key, and not by its level."""
        moved, kept = rows(model, {"queue": "b", "priority": 1}, {"queue": "a", "priority": 0})
        served, claimer = lane(model, "a"), Claimer("me:1", 60)
        wanted = replace(claimer.wanted(served, 5), keys=[moved, kept])
        assert [lease.key for lease in claimer.take(served, wanted)] == [kept]

    def test_any_text_is_a_queue(self):
        name = 'O\'Brien "&" {1,2}\\'
        (key,) = rows(Dispatch, {"queue": name})
        assert take(lane(Dispatch, name)) == [key]


class TestShapes:
    def test_a_multi_table_child_whose_columns_have_names_of_their_own(self):
        keys = rows(
            Tour, {"lane": "a", "urgency": 1, "name": "x"}, {"lane": "b", "urgency": 2}, {"lane": "a", "urgency": 3}
        )
        leases = Claimer("me:1", 60).claim(lane(Tour, "a"), 10)
        assert [lease.key for lease in leases] == [keys[2], keys[0]]
        assert leases[1].instance.name == "x"
        assert Bundle.objects.count() == 3

    def test_a_proxy_shares_the_machine(self):
        key = QuickDispatch.objects.create(queue="a", priority=3).pk
        assert take(lane(Dispatch, "a")) == [key]

    def test_drain_runs_rows_in_their_order(self):
        a, b, c = rows(Dispatch, {"priority": 0}, {"priority": 2, "queue": "x"}, {"priority": 1})
        drain(Dispatch)
        done = Dispatch.states.transition_model.objects.order_by("transitioned_at", "id")
        assert [record.instance_id for record in done] == [b, c, a]

    def test_drain_to_an_instant_too(self):
        made = [Urgent.objects.create(priority=priority).pk for priority in (0, 2, 1)]
        at = in_seconds(5)
        for key in made:
            set_clock(Urgent(pk=key), next_at=at)
        drain(Urgent, at=datetime.timedelta(seconds=60))
        done = Urgent.states.transition_model.objects.order_by("id")
        assert [record.instance_id for record in done] == [made[1], made[2], made[0]]


class TestSuspects:
    @BOTH
    def test_what_a_worker_left_behind_is_taken_back_from_behind_many_others(self, model):
        old = rows(model, *[{"priority": 0, "queue": "a"} for _ in range(40)])
        late = model.objects.create(priority=5, queue="a")
        assert take(lane(model), 1) == [late.pk]
        let_lease_run_out(late)
        assert lane(model).recover(Left()).rows == 1
        assert columns_of(late).crashes == 1
        assert take(lane(model), 50) == old

    @only_postgresql
    def test_only_those_of_the_queues_served(self):
        rows(Dispatch, {"queue": "a"}, {"queue": "b"})
        take(lane(Dispatch))
        for row in Dispatch.objects.all():
            let_lease_run_out(row)
        assert lane(Dispatch, "a").recover(Left()).rows == 1
        assert lane(Dispatch, "b").recover(Left()).rows == 1

    @BOTH
    def test_suspects_are_claimed_by_who_serves_them_the_most_urgent_first(self, model):
        a, b, c = rows(
            model, {"queue": "a", "priority": 1}, {"queue": "b", "priority": 9}, {"queue": "a", "priority": 2}
        )
        for key in (a, b, c):
            set_clock(model(pk=key), crashes=1)
        assert take(lane(model)) == []
        assert take(lane(model, "a"), suspects=True) == [c, a]
        assert take(lane(model), suspects=True) == [b]

    @BOTH
    def test_of_many_suspects_the_most_urgent_is_taken(self, model):
        keys = rows(model, *[{"queue": "a", "priority": priority} for priority in (0, 3, 1)])
        for key in keys:
            set_clock(model(pk=key), crashes=1)
        assert take(lane(model), 1, suspects=True) == [keys[1]]
        assert take(lane(model, "a"), 1, suspects=True) == [keys[2]]

    def test_what_a_dead_process_held_is_taken_back_whatever_is_known(self):
        served = lane(Urgent)
        take(served)
        rows(Urgent, {"priority": 7})
        Claimer("gone:1", 60).claim(lane(Urgent), 1)
        assert served.recover(Left(owner="gone:1")).rows == 1


class TestLearning:
    def test_a_new_level_is_claimed_at_once_by_who_has_nothing_else(self):
        served = lane(Urgent)
        assert take(served) == []
        for priority in (3, -8):
            keys = rows(Urgent, {"priority": priority})
            served.levels._took = 0.0
            assert take(served) == keys

    @only_postgresql
    def test_it_counts_within_a_second_where_others_are_due(self, monkeypatch):
        clock = Clock(monkeypatch, learning)
        served = lane(Urgent)
        low = rows(Urgent, {"priority": 1}, {"priority": 1}, {"priority": 1})
        assert take(served, 1) == low[:1]
        (high,) = rows(Urgent, {"priority": 2})
        assert take(served, 1) == [low[1]]
        clock.pass_by(learning.LEARN_EVERY)
        assert take(served, 1) == [high]

    @only_postgresql
    @pytest.mark.parametrize("known", [[], [{"priority": 1}]], ids=["nothing else is due", "another is due"])
    @pytest.mark.parametrize("queues", [(), ("default", "b")], ids=["all", "some"])
    def test_what_was_learnt_a_moment_ago_makes_nobody_sleep_past_a_new_level(self, monkeypatch, known, queues):
        """A row of a level that is not known yet is committed just after the levels were learnt, which took long."""
        clock = Clock(monkeypatch, learning)
        served = lane(Wish, *queues)
        keys = rows(Wish, *known)
        served.levels.learn(connection)
        served.levels._took = 0.2
        (new,) = rows(Wish, {"priority": 5})
        assert take(served) == keys
        assert not served.is_sure
        wait = served.next_due().seconds
        assert 0 <= wait <= 2.0
        clock.pass_by(wait)
        assert take(served) == [new]
        assert take(served) == []
        assert served.is_sure
        assert served.next_due().seconds is None

    @only_postgresql
    def test_what_takes_long_to_learn_is_learnt_less_often(self, monkeypatch):
        clock = Clock(monkeypatch, learning)
        served = lane(Urgent)
        low = rows(Urgent, {"priority": 1}, {"priority": 1}, {"priority": 1})
        assert take(served, 1) == low[:1]
        rows(Urgent, {"priority": 2})
        served.levels._took = 0.5
        clock.pass_by(49)
        assert take(served, 1) == [low[1]]

    @only_postgresql
    def test_a_claim_is_one_statement_while_all_are_known(self):
        served = lane(Urgent)
        rows(Urgent, *[{"priority": priority} for priority in range(5)])
        take(served, 1)
        with CaptureQueriesContext(connection) as queries:
            take(served, 1)
        assert len(queries) == 1

    @only_postgresql
    def test_a_level_that_is_used_no_more_is_forgotten(self):
        served = lane(Urgent)
        keys = rows(Urgent, {"priority": 1}, {"priority": 2})
        served.levels.learn(connection)
        assert len(served.levels.ranks) == 2
        Urgent.objects.get(pk=keys[0]).states.transition_to("DONE")
        served.levels.learn(connection)
        assert [[level.priority for level in rank] for rank in served.levels.ranks] == [[2]]


class TestGates:
    @pytest.mark.parametrize(
        ("queue", "queues", "meet"),
        [
            ("a", None, True),
            ("a", ("a", "b"), True),
            ("a", ("b",), False),
            ("", ("general",), True),  # that of the state
            ("", ("a",), False),
            (None, ("a",), True),  # of who does not know it
            (None, None, True),
        ],
    )
    def test_a_row_wakes_those_who_may_serve_it_and_no_others(self, queue, queues, meet):
        before = gates_before(Dispatch.states._meta, "NEW", queue)
        assert bool(before & lane(Dispatch, *queues or ()).gates) == meet

    def test_a_plain_machine_has_one_for_each_queue(self):
        assert gates_before(Urgent.states._meta, "NEW", None) == lane(Urgent).gates
        assert len(lane(Urgent).gates) == 1


class TestProcess:
    @only_postgresql
    def test_a_worker_that_is_to_stop_when_nothing_is_due_finds_out_first(self):
        process = Process(Dispatch, threads=1)
        (served,) = process.lanes
        served.levels.learn(connection)
        served.levels._took = 0.05
        Dispatch.objects.create(priority=5)
        process.claim()
        assert not process.inflight.held
        assert not process.claiming._is_looked_through()
        served.levels._took = 0.0
        process.claim()
        assert process.inflight.held

    @only_postgresql
    def test_a_look_by_the_clock_that_misses_a_new_level_is_soon_repeated(self):
        process = Process(Dispatch, threads=1)
        (served,) = process.lanes
        served.levels.learn(connection)
        served.levels._took = 0.05
        Dispatch.objects.create(priority=5)
        timer = process.claiming.timers[served]
        timer.poll, timer.asks_first = 300.0, True
        process.claiming._claim_lane(served)
        assert not process.inflight.held
        assert timer.left <= 0.5

    def test_a_row_goes_on_in_the_lane_of_its_queue(self):
        process = Process(Dispatch, {"a": 1, "packing": 1, "general": 1})
        Dispatch.objects.create(queue="a", steps=["PACKED"])
        Dispatch.objects.create(steps=["PACKED"])
        process.claim()
        process.step()
        assert sorted((lease.lane.queue, lease.status) for lease in process.inflight.held) == [
            ("a", "PACKED"),
            ("packing", "PACKED"),
        ]

    def test_a_row_whose_next_queue_is_not_served_is_free_again(self):
        process = Process(Dispatch, {"general": 1})
        row = Dispatch.objects.create(steps=["PACKED"])
        process.claim()
        process.step()
        assert not process.inflight.held
        assert columns_of(row).status == "PACKED"
        process.claim()
        assert not process.inflight.held

    def test_a_worker_of_some_queues_does_their_rows_and_knows_no_names_beforehand(self):
        ours, theirs = Dispatch.objects.create(queue="a"), Dispatch.objects.create(queue="b")
        run_command("lab.Dispatch", "--queue", "a=2", "--queue", "never-used", "--once")
        assert columns_of(ours).status == "DONE"
        assert columns_of(theirs).status == "NEW"

    def test_rows_are_run_in_the_order_of_their_claim(self):
        keys = rows(Dispatch, *[{"queue": "ab"[n % 2], "priority": n % 3} for n in range(12)])
        process = Process(Dispatch, threads=4)
        process.claim()
        assert [lease.key for lease in process.take()] == [keys[2], keys[5], keys[8], keys[11]]

    def test_a_worker_of_all_queues_serves_those_that_come_up(self):
        for n in range(12):
            Dispatch.objects.create(queue=f"q{n}", priority=n, steps=["PACKED"])
        run_command("lab.Dispatch", "--once")
        assert set(Dispatch.objects.values_list("status", flat=True)) == {"DONE"}

    @only_postgresql
    def test_what_a_killed_worker_held_is_taken_back_by_its_order(self):
        old = rows(Dispatch, *[{"queue": "a"} for _ in range(30)])
        urgent = Dispatch.objects.create(queue="a", priority=7)
        Claimer("gone:1", 60).claim(lane(Dispatch), 1)
        let_lease_run_out(urgent)
        process = Process(Dispatch, {"a": 1}, threads=1)
        process.claiming.prefetches[process.lanes[0]].suspects_left = True
        process.claim()
        assert urgent.pk in [lease.key for lease in process.take()]
        assert columns_of(Dispatch(pk=old[-1])).lease_owner == ""
