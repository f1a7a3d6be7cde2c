"""Races, with real connections: exactly one of those who want a move gets it, and the others learn the truth."""

from __future__ import annotations

import itertools
import pickle
import random
import threading

import pytest
from django.db import OperationalError, connection, transaction

from lab.models import Parcel, Stamped
from statemachine_fields import ConcurrentTransition, InvalidStateTransition, UnknownState
from tests.patience import PATIENCE
from tests.together import together

pytestmark = pytest.mark.django_db(transaction=True)

POSTGRESQL = connection.vendor == "postgresql"
only_postgresql = pytest.mark.skipif(not POSTGRESQL, reason="written in PostgreSQL's terms")


class TestExpected:
    @pytest.mark.parametrize("expected", ["NEW", 0])
    def test_met_moves_the_row(self, row, expected):
        assert row.states.transition_to("DONE", expected=expected).sequence == 1

    @pytest.mark.parametrize("expected", ["NEW", 0])
    def test_not_met_refuses_a_second_look(self, row, expected):
        stale = Stamped.objects.get()
        row.states.transition_to("DONE")
        with pytest.raises(ConcurrentTransition) as caught:
            stale.states.transition_to("NEW" if expected == 0 else "DONE", expected=expected)
        assert (caught.value.status, caught.value.sequence, caught.value.expected) == ("DONE", 1, expected)
        assert stale.status == "NEW"
        assert row.states.history.count() == 1

    def test_by_number_sees_a_row_that_came_back(self, row):
        """A → B → A: the status is as expected, and yet things have happened."""
        stale = Stamped.objects.get()
        row.states.transition_to("DONE")
        row.states.transition_to("NEW")
        with pytest.raises(ConcurrentTransition, match="expected at sequence 0 and is in 'NEW' at sequence 2"):
            stale.states.transition_to("DONE", expected=0)
        assert stale.states.transition_to("DONE", expected="NEW").sequence == 3

    @pytest.mark.parametrize(
        ("to", "expected", "error"),
        [("NEW", "NEW", InvalidStateTransition), ("DONE", "NWE", UnknownState)],
        ids=["has no such move", "is no state"],
    )
    def test_that_makes_no_sense_is_refused(self, row, to, expected, error):
        with pytest.raises(error):
            row.states.transition_to(to, expected=expected)

    def test_works_for_an_instance_that_has_not_loaded_its_status(self, row):
        assert Stamped.objects.only("name").get().states.transition_to("DONE", expected=0).sequence == 1

    def test_error_survives_pickling_and_leaves_the_transaction_usable(self, row):
        with transaction.atomic():
            with pytest.raises(ConcurrentTransition) as caught:
                row.states.transition_to("DONE", expected=7)
            row.states.transition_to("DONE")
        twin = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
        assert (str(twin), vars(twin)) == (str(caught.value), vars(caught.value))


class TestOneWinner:
    @pytest.mark.parametrize("writers", [2, 6])
    def test_for_each_edge(self, writers):
        row = Stamped.objects.create()
        instances = [Stamped.objects.get() for _ in range(writers)]
        for target, origin in [("DONE", "NEW"), ("NEW", "DONE"), ("FAILED", "NEW")]:
            results = together(*(lambda i=instance, t=target: i.states.transition_to(t) for instance in instances))
            winners = [result for result in results if not isinstance(result, Exception)]
            losers = [result for result in results if isinstance(result, InvalidStateTransition)]
            assert (len(winners), len(losers)) == (1, writers - 1), results
            assert winners[0].from_status == origin
            assert {loser.from_status for loser in losers} == {target}
        assert row.states.history.count() == 3

    def test_among_those_who_want_different_things(self):
        row = Stamped.objects.create()
        instances = [Stamped.objects.get() for _ in range(4)]
        targets = ["DONE", "FAILED", "DONE", "FAILED"]
        results = together(
            *(
                lambda i=i, t=t: i.states.transition_to(t, expected="NEW")
                for i, t in zip(instances, targets, strict=True)
            )
        )
        winners = [result for result in results if not isinstance(result, Exception)]
        assert len(winners) == 1
        assert sum(isinstance(result, ConcurrentTransition) for result in results) == 3
        row.refresh_from_db()
        assert row.status == winners[0].to_status

    def test_a_loser_inside_a_transaction_can_go_on(self):
        Stamped.objects.create(name="a")
        instances = [Stamped.objects.get() for _ in range(3)]

        def move(instance):
            with transaction.atomic():
                try:
                    instance.states.transition_to("DONE")
                except InvalidStateTransition:
                    Stamped.objects.create(name="lost")
                    return "lost"
            return "won"

        results = together(*(lambda i=instance: move(i) for instance in instances))
        assert sorted(map(str, results)) == ["lost", "lost", "won"]
        assert Stamped.objects.filter(name="lost").count() == 2

    def test_in_random_traffic_every_chain_is_unbroken(self):
        rows = [Stamped.objects.create().pk for _ in range(3)]
        states = ["NEW", "DONE"]

        def traffic(seed):
            chance = random.Random(seed)
            instances = {pk: Stamped.objects.get(pk=pk) for pk in rows}
            moved = 0
            for _ in range(40):
                instance = instances[chance.choice(rows)]
                try:
                    instance.states.transition_to(chance.choice(states))
                    moved += 1
                except InvalidStateTransition:
                    if chance.random() < 0.3:
                        instance.refresh_from_db()
            return moved

        results = together(*(lambda s=seed: traffic(s) for seed in range(4)))
        assert all(isinstance(result, int) for result in results), results
        assert sum(results) == Stamped.states.transition_model.objects.count()
        for row in Stamped.objects.all():
            history = list(row.states.history.order_by("sequence"))
            assert [record.sequence for record in history] == list(range(1, row.status_sequence + 1))
            assert [record.from_status for record in history] == [
                "NEW",
                *(record.to_status for record in history[:-1]),
            ]
            assert row.status == history[-1].to_status
            assert all(a.transitioned_at <= b.transitioned_at for a, b in itertools.pairwise(history))

    def test_a_save_beside_a_move_loses_neither(self):
        row = Stamped.objects.create(name="a")
        mover, saver = Stamped.objects.get(), Stamped.objects.get()

        def save():
            saver.name = "b"
            for _ in range(20):
                saver.save()

        results = together(lambda: mover.states.transition_to("DONE"), save)
        assert not [result for result in results if isinstance(result, Exception)]
        row.refresh_from_db()
        assert (row.status, row.name) == ("DONE", "b")

    def test_self_loops_all_succeed_and_count(self):
        parcel = Parcel.objects.create(status="SCANNED")
        instances = [Parcel.objects.get() for _ in range(5)]
        results = together(*(lambda i=instance: i.states.transition_to("SCANNED").sequence for instance in instances))
        assert sorted(results) == [1, 2, 3, 4, 5]
        assert parcel.states.history.count() == 5


class TestConflictsOfTheDatabase:
    @only_postgresql
    def test_a_lock_time_out_is_told_as_a_concurrent_transition(self):
        row = Stamped.objects.create()

        def impatient():
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '50ms'")
                Stamped.objects.get().states.transition_to("FAILED")

        with transaction.atomic():
            row.states.transition_to("DONE")
            (result,) = together(impatient)
        assert isinstance(result, ConcurrentTransition)
        assert "the database found a conflict" in str(result)
        assert isinstance(result.__cause__, OperationalError)

    @only_postgresql
    def test_a_serialisation_failure_is_told_as_a_concurrent_transition(self):
        Stamped.objects.create()
        with pytest.raises(ConcurrentTransition), transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            mine = Stamped.objects.get()
            together(lambda: Stamped.objects.get().states.transition_to("DONE"))
            mine.states.transition_to("FAILED")
        assert Stamped.objects.get().status == "DONE"

    @only_postgresql
    def test_a_deadlock_is_told_as_a_concurrent_transition(self):
        first, second = Stamped.objects.create(), Stamped.objects.create()
        met = threading.Barrier(2)

        def cross(one, two):
            with transaction.atomic():
                Stamped.objects.get(pk=one).states.transition_to("DONE")
                met.wait(PATIENCE)
                Stamped.objects.get(pk=two).states.transition_to("DONE", expected="NEW")

        results = together(lambda: cross(first.pk, second.pk), lambda: cross(second.pk, first.pk))
        assert sum(isinstance(result, ConcurrentTransition) for result in results) == 1
        assert sum(result is None for result in results) == 1

    def test_a_busy_sqlite_is_told_as_a_concurrent_transition(self):
        if connection.vendor != "sqlite":
            pytest.skip("only SQLite locks the whole database")
        row = Stamped.objects.create()

        def impatient():
            with connection.cursor() as cursor:
                cursor.execute("PRAGMA busy_timeout = 50")
            Stamped.objects.get().states.transition_to("FAILED")

        with transaction.atomic():
            row.states.transition_to("DONE")
            (result,) = together(impatient)
        assert isinstance(result, ConcurrentTransition | OperationalError)
