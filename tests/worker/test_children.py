"""Rows that wait for children, and those that make some, as workers run them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.signals import post_save, pre_save
from django.test.utils import CaptureQueriesContext

from lab.models import Chore, Depot, Expedition, Leg, Pallet, Twig
from statemachine_fields.db.clock import DatabaseClock
from statemachine_fields.machine.bulk import BulkTransitioner
from statemachine_fields.testing import assert_history, assert_state, drain
from statemachine_fields.worker import Spawn, cancelling
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.outcome_events import Events
from tests.machine.test_joins import expedition, is_woken
from tests.worker.rows import claim, claim_one, lane_of, not_mariadb
from tests.worker.test_statemachine_worker import run, statuses

pytestmark = [pytest.mark.django_db(transaction=True), not_mariadb]


def plan(to: str, *legs: str, **more: Any) -> Any:
    """Make an expedition whose handler sets out with legs that end so."""
    return Expedition.objects.create(plan={"to": to, "legs": [{"outcome": leg} for leg in legs], **more})


def executor() -> HandlerExecutor:
    return HandlerExecutor(max_crashes=5)


class TestJoining:
    @pytest.mark.parametrize(
        ("state", "legs", "end"),
        [
            ("WALKING", ["ARRIVED", "ARRIVED"], "HOME"),
            ("WALKING", [], "HOME"),
            ("WALKING", ["ARRIVED", "LOST"], "FAILED"),
            ("WALKING", ["ARRIVED", ""], "WALKING"),
            ("RACING", ["", "ARRIVED"], "HOME"),
            ("SOME", ["ARRIVED", "ARRIVED", "ARRIVED", ""], "HOME"),
            ("SOME", ["ARRIVED", "LOST", "LOST", ""], "FAILED"),
            ("JUDGED", ["ARRIVED", "LOST"], "FAILED"),
            ("JUDGED", ["ARRIVED", "ARRIVED"], "HOME"),
        ],
    )
    def test_drain_runs_children_and_then_their_parent(self, state: str, legs: list[str], end: str) -> None:
        row = plan(state, *legs)
        drain(Expedition, Leg)
        assert_state(row, end)
        assert row.legs.count() == len(legs)

    @pytest.mark.django_db(transaction=False)
    def test_drain_looks_itself_where_nothing_is_ever_committed(self) -> None:
        row = plan("WALKING", "", "")
        drain(Expedition, Leg)
        assert_state(row, "WALKING")
        for leg in row.legs.all():
            leg.states.transition_to("ARRIVED")
        drain(Expedition)
        assert_state(row, "HOME")

    def test_the_record_says_what_the_children_came_to(self) -> None:
        row = plan("WALKING", "ARRIVED", "LOST")
        drain(Expedition, Leg)
        assert row.states.history.first().metadata == {"children": {"ARRIVED": 1, "LOST": 1}}

    def test_a_handler_is_told_the_counts(self) -> None:
        row = plan("JUDGED", "ARRIVED", "LOST")
        drain(Expedition, Leg)
        assert row.states.history.first().metadata == {"total": 2, "failed": 1, "met": False}

    def test_what_can_no_longer_be_parks_the_row_where_nobody_says_where_to(self) -> None:
        row = expedition("RACING", "LOST", "CALLED_OFF")
        drain(Expedition)
        row.refresh_from_db()
        assert (row.status, row.status_next_at) == ("RACING", None)
        assert row.status_error == (
            "The row waits for any of its legs, and that can no longer be: 1 CALLED_OFF, 1 LOST."
        ) or row.status_error.endswith("1 LOST, 1 CALLED_OFF.")
        Leg.objects.create(expedition=row, status="ARRIVED")
        assert row.states.resume()
        drain(Expedition)
        assert_state(row, "HOME")

    def test_a_parked_child_is_unfinished(self) -> None:
        row = plan("WALKING", "raise", "ARRIVED")
        drain(Expedition, Leg)
        assert_state(row, "WALKING")
        leg = row.legs.get(outcome="raise")
        assert leg.status_next_at is None
        assert leg.status_error
        leg.states.transition_to("ARRIVED")
        drain(Expedition)
        assert_state(row, "HOME")

    def test_the_time_out_counts_while_it_waits(self) -> None:
        row = plan("TIMED", "")
        drain(Expedition, at=timedelta(minutes=59))
        assert_state(row, "TIMED")
        drain(Expedition, at=timedelta(minutes=61))
        assert_state(row, "LATE")

    def test_what_is_decided_wins_over_the_time_out(self) -> None:
        row = plan("TIMED", "")
        drain(Expedition)
        row.legs.get().states.transition_to("ARRIVED")
        drain(Expedition, timeouts=True)
        assert_state(row, "HOME")

    def test_a_handler_that_says_not_yet_is_asked_again_at_the_floor(self) -> None:
        row = expedition("JUDGED", "ARRIVED", plan={"judge": "none"})
        Expedition.objects.filter(pk=row.pk).update(status_next_at=DatabaseClock())
        lane = lane_of(Expedition)
        lease = claim_one(lane)
        outcome = executor().run(lease)
        assert (outcome.kind, outcome.delay) == ("waited", 30.0)  # type: ignore[attr-defined]

    def test_failures_have_their_own_time(self) -> None:
        row = expedition("JUDGED", "ARRIVED", plan={"judge": "fail"})
        Expedition.objects.filter(pk=row.pk).update(status_next_at=DatabaseClock())
        outcome = executor().run(claim_one(lane_of(Expedition)))
        assert (outcome.kind, outcome.delay) == ("failed", 5.0)  # type: ignore[attr-defined]

    def test_ctx_children_is_there_only_where_children_are_waited_for(self) -> None:
        from statemachine_fields.worker import HandlerContext

        Expedition.objects.create(plan={})
        with pytest.raises(AttributeError, match="until=Children"):
            HandlerContext(claim_one(lane_of(Expedition))).children  # noqa: B018

    def test_a_row_that_sleeps_on_is_looked_at_once_more(self) -> None:
        """A child that ends between the count and the sleep has found its parent held, and will not look again."""
        row = expedition("WALKING", "OPEN")
        Expedition.objects.filter(pk=row.pk).update(status_next_at=DatabaseClock())
        lease = claim_one(lane_of(Expedition))
        row.legs.get().states.transition_to("ARRIVED")
        outcome = executor().run(lease)
        Committer(executor(), Events()).commit([outcome])
        assert is_woken(row)

    def test_the_children_of_a_batch_are_counted_in_one_select(self) -> None:
        rows = [expedition("WALKING", "OPEN") for _ in range(5)]
        Expedition.objects.update(status_next_at=DatabaseClock())
        with CaptureQueriesContext(connection) as queries:
            leases = claim(lane_of(Expedition))
        assert len(leases) == len(rows)
        assert len([query for query in queries if "lab_leg" in query["sql"]]) == 1

    def test_a_parent_that_somebody_has_locked_is_passed_by(self) -> None:
        if connection.vendor == "sqlite":
            pytest.skip("SQLite has one lock for all rows")
        from tests.worker.rows import locked

        row = expedition("WALKING", "OPEN")
        leg = row.legs.get()
        with locked(row):
            leg.states.transition_to("ARRIVED")
        assert not is_woken(row)


class TestSpawn:
    def test_the_move_and_the_children_are_there_together(self) -> None:
        row = plan("WALKING", "", "")
        lease = claim_one(lane_of(Expedition))
        outcome = executor().run(lease)
        assert (outcome.kind, str(outcome)) == ("moved", "move to 'WALKING' with 2 children")
        Committer(executor(), Events()).commit([outcome])
        assert_history(row, "PLANNED", "WALKING")
        assert row.states.history.first().metadata == {"legs": 2}
        legs = list(row.legs.order_by("number"))
        assert [(leg.status, leg.status_sequence) for leg in legs] == [("OPEN", 0), ("OPEN", 0)]
        assert all(leg.status_next_at is not None for leg in legs)

    def test_a_late_outcome_makes_nothing(self) -> None:
        row = plan("WALKING", "", "")
        outcome = executor().run(claim_one(lane_of(Expedition)))
        row.states.transition_to("HOME")
        events = Events()
        Committer(executor(), events).commit([outcome])
        assert (events.total["dropped"], Leg.objects.count()) == (1, 0)
        assert_state(row, "HOME")

    def test_an_outcome_that_was_written_unheard_is_not_written_again(self) -> None:
        row = plan("WALKING", "", "")
        outcome = executor().run(claim_one(lane_of(Expedition)))
        Committer(executor(), Events()).commit([outcome])
        outcome.is_reported, outcome.is_repeated = False, True
        events = Events()
        Committer(executor(), events).commit([outcome])
        assert (events.total["moved"], row.legs.count()) == (1, 2)

    def test_a_child_that_cannot_be_made_fails_the_try_and_leaves_nothing(self) -> None:
        row = plan("WALKING", "", "")
        Expedition.objects.filter(pk=row.pk).update(plan={"to": "WALKING", "legs": [{}, {"number": None}]})
        events = Events()
        outcome = executor().run(claim_one(lane_of(Expedition)))
        Committer(executor(), events).commit([outcome])
        row.refresh_from_db()
        assert (row.status, row.status_failures, Leg.objects.count()) == ("PLANNED", 1, 0)
        assert row.status_error.startswith("The move to 'WALKING' with 2 children could not be written. IntegrityError")
        assert events.total["failed"] == 1

    def test_what_was_undone_can_be_made_again(self) -> None:
        """The instances are of the handler, and no try changes them."""
        row = plan("WALKING", "", "")
        outcome: Any = executor().run(claim_one(lane_of(Expedition)))
        committer = Committer(executor(), Events())
        with transaction.atomic():
            committer.commit([outcome])
            transaction.set_rollback(True)
        outcome.is_reported = False
        assert [(leg.pk, leg._state.adding) for leg in outcome.children] == [(None, True)] * 2
        committer.commit([outcome])
        assert row.legs.count() == 2

    def test_children_that_have_a_save_of_their_own_are_saved(self) -> None:
        from statemachine_fields.worker.spawning import make_children

        depot = Depot.objects.create(code="D")
        make_children([Pallet(depot=depot), Pallet(depot=depot)], "default")
        assert list(Pallet.objects.values_list("saved", flat=True)) == [1, 1]

    def test_receivers_hear_of_children(self) -> None:
        row, heard = plan("WALKING", "", ""), []

        def receiver(instance: Any, **kwargs: Any) -> None:
            heard.append(instance.pk)

        post_save.connect(receiver, sender=Leg)
        try:
            drain(Expedition)
        finally:
            post_save.disconnect(receiver, sender=Leg)
        assert sorted(heard) == sorted(row.legs.values_list("pk", flat=True))

    def test_ten_thousand_take_few_statements(self) -> None:
        row = Expedition.objects.create(plan={"to": "WALKING", "legs": [{"outcome": ""}] * 10_000})
        outcome = executor().run(claim_one(lane_of(Expedition)))
        with CaptureQueriesContext(connection) as queries:
            Committer(executor(), Events()).commit([outcome])
        assert row.legs.count() == 10_000
        if connection.vendor == "postgresql":
            assert len(queries) < 40

    def test_initial_records_are_written(self) -> None:
        root = Twig.objects.create(depth=1)
        drain(Twig)
        assert_state(root, "GROWN")
        firsts = Twig.states.transition_model.objects.filter(from_status="", sequence=1)
        assert firsts.count() == 3

    @pytest.mark.parametrize(
        ("children", "error"),
        [
            (lambda: [Leg.objects.create()], "is saved already"),
            (lambda: [models_without_machine()], "has none"),
        ],
    )
    def test_what_cannot_be_a_child_fails_the_try(self, children: Any, error: str) -> None:
        Expedition.objects.create(plan={})
        lease = claim_one(lane_of(Expedition))
        outcome = executor().judged(lease, Spawn("WALKING", children()))
        assert outcome.kind == "failed"
        assert error in outcome.error

    def test_children_of_another_database_are_refused(self, settings: Any) -> None:
        class Router:
            def db_for_write(self, model: Any, **hints: Any) -> str | None:
                return "elsewhere" if model is Leg else None

        settings.DATABASE_ROUTERS = [Router()]
        Expedition.objects.create(plan={})
        lease = claim_one(lane_of(Expedition))
        outcome = executor().judged(lease, Spawn("WALKING", [Leg()]))
        assert "'elsewhere': no transaction has both" in outcome.error

    def test_children_are_made_where_their_parent_is_whatever_routers_say(self, settings: Any) -> None:
        class Router:
            """One that knows one database, while the worker was told to serve another."""

            def db_for_write(self, model: Any, **hints: Any) -> str:
                return "elsewhere"

            def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool:
                return True

        row = plan("WALKING", "", "")
        lease = claim_one(lane_of(Expedition))
        settings.DATABASE_ROUTERS = [Router()]
        outcome = executor().run(lease)
        assert outcome.kind == "moved", outcome.error
        Committer(executor(), Events()).commit([outcome])
        settings.DATABASE_ROUTERS = []
        assert row.legs.using("default").count() == 2

    def test_a_spawn_says_what_it_makes(self) -> None:
        leg = Leg()
        assert Spawn("WALKING", (each for each in [leg]), metadata={"a": 1}).children == (leg,)
        for wrong in (leg, 3, "ab", [Chore]):
            with pytest.raises(TypeError):
                Spawn("WALKING", wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="twice"):
            Spawn("WALKING", [leg, leg])


def models_without_machine() -> Any:
    from lab.models import Run

    return Run()


class TestProcesses:
    """Real processes, as an operator starts them."""

    def test_once_ends_when_parents_have_moved_too(self) -> None:
        rows = [plan("WALKING", "ARRIVED", "ARRIVED") for _ in range(20)]
        log = run("lab.Expedition", "lab.Leg", "--once")
        assert statuses(Expedition) == {"HOME": len(rows)}, log
        assert Expedition.states.transition_model.objects.count() == 2 * len(rows)

    def test_once_finds_parents_that_somebody_forgot_to_look_for(self) -> None:
        row = expedition("WALKING", "ARRIVED")
        assert not is_woken(row)
        run("lab.Expedition", "--once")
        assert_state(row, "HOME")

    def test_a_worker_of_the_children_wakes_the_parent_for_others(self) -> None:
        row = expedition("WALKING", "OPEN", "OPEN")
        run("lab.Leg", "--once")
        assert is_woken(row)
        assert_state(row, "WALKING")


def is_marked() -> bool:
    return Expedition.objects.filter(status_cancels__gt=0).exists()


class TestCancelling:
    def test_unfinished_children_are_moved_when_the_parent_has_left(self) -> None:
        row = expedition("WALKING", "OPEN", "ARRIVED", "OPEN")
        row.states.transition_to("LATE")
        assert is_marked()
        drain(Expedition)
        assert statuses(Leg) == {"ARRIVED": 1, "CALLED_OFF": 2}
        assert not is_marked()
        (facts,) = Leg.states.transition_model.objects.order_by().values_list("metadata", flat=True).distinct()
        assert facts == {"cancelled_by": f"lab.Expedition pk={row.pk}", "left": "WALKING"}

    @pytest.mark.parametrize(
        "leave",
        [
            lambda row: row.states.force_transition_to("LATE", reason="storm"),
            lambda row: Expedition.states.bulk_transition(Expedition.objects.all(), "LATE"),
            lambda row: Leg.objects.filter(number=0).get().states.transition_to("LOST"),
        ],
        ids=["by force", "with others", "by a worker"],
    )
    def test_however_it_left(self, leave: Any) -> None:
        row = expedition("WALKING", "OPEN", "OPEN")
        leave(row)
        drain(Expedition)
        assert statuses(Leg)["OPEN"] == 0

    def test_others_are_left_alone(self) -> None:
        gone, stays, other = (expedition(state, "OPEN") for state in ("WALKING", "WALKING", "SOME"))
        gone.states.transition_to("LATE")
        other.states.force_transition_to("HOME", reason="no cancel_to there")
        drain(Expedition)
        assert {leg.expedition_id: leg.status for leg in Leg.objects.all()} == {
            gone.pk: "CALLED_OFF",
            stays.pk: "OPEN",
            other.pk: "OPEN",
        }

    def test_a_parent_that_has_come_back_keeps_its_children(self) -> None:
        row = expedition("WALKING", "OPEN")
        row.states.transition_to("PLANNED")
        row.states.transition_to("WALKING")
        drain(Expedition)
        assert statuses(Leg) == {"OPEN": 1}
        assert not is_marked()

    def test_a_child_that_cannot_be_moved_is_told_of_and_not_tried_for_ever(self, caplog: Any) -> None:
        row = expedition("WALKING", "HELD", "OPEN")
        row.states.transition_to("LATE")
        drain(Expedition)
        assert statuses(Leg) == {"HELD": 1, "CALLED_OFF": 1}
        assert not is_marked()
        assert "has left 'WALKING', and its child lab.Leg" in caplog.text

    def test_a_child_that_ends_meanwhile_is_not_told_of(self, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def end_first(*args: Any) -> Any:
            Leg.objects.get(number=0).states.transition_to("ARRIVED")
            return BulkTransitioner(*args)

        monkeypatch.setattr(cancelling, "BulkTransitioner", end_first)
        row = expedition("WALKING", "OPEN", "OPEN")
        row.states.transition_to("LATE")
        drain(Expedition)
        assert statuses(Leg) == {"ARRIVED": 1, "CALLED_OFF": 1}
        assert caplog.text == ""

    def test_the_late_outcome_of_a_cancelled_child_is_dropped(self) -> None:
        row = expedition("WALKING", "OPEN")
        lease = claim_one(lane_of(Leg))
        outcome = executor().run(lease)
        row.states.transition_to("LATE")
        drain(Expedition)
        events = Events()
        Committer(executor(), events).commit([outcome])
        assert events.total["dropped"] == 1
        assert statuses(Leg) == {"CALLED_OFF": 1}

    def test_more_than_a_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("statemachine_fields.worker.cancelling.BATCH", 3)
        row = expedition("WALKING", *["OPEN"] * 4, "HELD", *["OPEN"] * 4)
        row.states.transition_to("LATE")
        drain(Expedition)
        assert statuses(Leg) == {"HELD": 1, "CALLED_OFF": 8}

    def test_more_parents_than_are_asked_for_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("statemachine_fields.worker.cancelling.MOST", 2)
        for _ in range(5):
            expedition("WALKING", "OPEN").states.transition_to("LATE")
        drain(Expedition)
        assert statuses(Leg) == {"CALLED_OFF": 5}
        assert not is_marked()

    def test_a_child_whose_code_raises_hinders_nobody_else(self, caplog: Any, request: Any) -> None:
        rows = [expedition("WALKING", "OPEN", "OPEN", "OPEN") for _ in range(2)]
        poison = rows[0].legs.order_by("pk")[1]

        def refuse(instance: Leg, **kwargs: Any) -> None:
            if instance.pk == poison.pk and instance.status == "CALLED_OFF":
                raise ValueError("not this one")

        pre_save.connect(refuse, sender=Leg)
        request.addfinalizer(lambda: pre_save.disconnect(refuse, sender=Leg))
        for row in rows:
            row.states.transition_to("LATE")
        drain(Expedition)
        assert statuses(Leg) == {"OPEN": 1, "CALLED_OFF": 5}
        assert list(Expedition.objects.filter(status_cancels__gt=0)) == rows[:1]
        assert f"lab.Leg pk={poison.pk}: a row that its parent has left behind could not be cancelled" in caplog.text

        pre_save.disconnect(refuse, sender=Leg)
        drain(Expedition)
        assert statuses(Leg) == {"CALLED_OFF": 6}
        assert not is_marked()

    @pytest.mark.django_db(transaction=False)
    @pytest.mark.parametrize("options", [{}, {"at": timedelta(seconds=1)}], ids=["at once", "at a time"])
    def test_drain_goes_on_with_what_waits_for_a_cancelled_child(self, options: Any) -> None:
        row, other = expedition("WALKING", "OPEN"), expedition("GUIDED")
        Leg.objects.update(guided=other)
        row.states.transition_to("LATE")
        drain(Expedition, **options)
        assert_state(other, "HOME")

    def test_machines_without_cancel_to_have_no_such_column(self) -> None:
        assert "status_cancels" in Expedition.states._meta.columns
        assert "status_cancels" not in Twig.states._meta.columns

    def test_workers_cancel_after_a_move_in_the_foreground(self) -> None:
        row = expedition("WALKING", "OPEN")
        row.states.transition_to("LATE")
        run("lab.Expedition", "--once")
        assert statuses(Leg) == {"CALLED_OFF": 1}

    def test_children_of_a_state_in_which_the_parent_never_was_are_left_alone(self) -> None:
        row = expedition("WALKING", "OPEN")
        guided = Leg.objects.create(guided=row)
        row.states.transition_to("LATE")
        drain(Expedition)
        assert statuses(Leg) == {"OPEN": 1, "CALLED_OFF": 1}
        assert_state(guided, "OPEN")

    def test_children_that_were_made_after_the_parent_left_are_not_meant(self) -> None:
        row = expedition("WALKING", "OPEN")
        row.states.transition_to("PLANNED")
        later = Leg.objects.create(expedition=row)
        drain(Expedition)
        assert statuses(Leg) == {"OPEN": 1, "CALLED_OFF": 1}
        assert_state(later, "OPEN")

    def test_what_was_left_once_is_not_cancelled_again_because_of_another_state(self) -> None:
        row = expedition("WALKING", "OPEN")
        row.states.transition_to("PLANNED")
        drain(Expedition)
        assert statuses(Leg) == {"CALLED_OFF": 1}
        later = Leg.objects.create(expedition=row, guided=None)
        later.states.transition_to("HELD")
        later.states.force_transition_to("OPEN", reason="it has moved, so nobody knows when it was made")
        guided = Leg.objects.create(guided=row)
        row.states.transition_to("GUIDED")
        row.states.transition_to("HOME")
        drain(Expedition)
        assert_state(later, "OPEN")
        assert_state(guided, "CALLED_OFF")

    def test_children_of_the_next_state_are_not_cancelled_because_of_the_one_before(self) -> None:
        row = expedition("WALKING", "OPEN")
        old = row.legs.get()
        with transaction.atomic():
            row.states.force_transition_to("RACING", reason="and it waits for other legs there")
            new = Leg.objects.create(expedition=row)
        drain(Expedition)
        assert_state(old, "CALLED_OFF")
        assert_state(new, "OPEN")
        assert_state(row, "RACING")

    def test_a_child_that_has_moved_since_is_cancelled_unless_the_parent_waits_for_it_again(self) -> None:
        """Nobody knows when it was made."""
        gone, waits = expedition("WALKING", "HELD"), expedition("WALKING", "HELD")
        gone.states.transition_to("LATE")
        waits.states.force_transition_to("RACING", reason="test")
        for leg in Leg.objects.all():
            leg.states.force_transition_to("OPEN", reason="test")
        drain(Expedition)
        assert_state(gone.legs.get(), "CALLED_OFF")
        assert_state(waits.legs.get(), "OPEN")

    def test_a_child_that_moved_before_and_since_was_there(self) -> None:
        row = expedition("WALKING", "OPEN")
        leg = row.legs.get()
        leg.states.transition_to("HELD")
        row.states.force_transition_to("RACING", reason="test")
        leg.states.force_transition_to("OPEN", reason="test")
        drain(Expedition)
        assert_state(leg, "CALLED_OFF")

    def test_a_parent_that_comes_back_between_two_batches_loses_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What it left besides is still cancelled."""
        monkeypatch.setattr("statemachine_fields.worker.cancelling.BATCH", 1)
        row = expedition("WALKING", "OPEN", "OPEN")
        guided = [Leg.objects.create(guided=row) for _ in range(2)]
        row.states.force_transition_to("GUIDED", reason="test")
        row.states.force_transition_to("PLANNED", reason="test")
        batches = cancelling.Abandoned._cancel_some

        def come_back(self: Any) -> Any:
            found = batches(self)
            monkeypatch.setattr(cancelling.Abandoned, "_cancel_some", batches)
            row.states.force_transition_to("WALKING", reason="test")
            return found

        monkeypatch.setattr(cancelling.Abandoned, "_cancel_some", come_back)
        drain(Expedition)
        assert statuses(Leg)["CALLED_OFF"] == 3
        for leg in guided:
            assert_state(leg, "CALLED_OFF")
