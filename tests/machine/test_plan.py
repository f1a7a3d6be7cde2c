"""How a move is written is worked out once, and again for whatever changes it: who listens, what is patched, where it goes."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from typing import Any
from unittest import mock

import pytest
from django.db import connection, connections, models
from django.db.models.signals import post_init, post_save, pre_init, pre_save
from django.db.utils import ConnectionHandler
from django.test import TestCase
from django.test.utils import CaptureQueriesContext, override_settings
from django.utils import timezone

from lab.models import Audited, Car, Hooked, RacingCar, Stamped, Vehicle
from statemachine_fields.db import prepared
from statemachine_fields.machine import plan as plan_module
from statemachine_fields.machine.plan import MOST_PLANS, Plan, plan_for
from statemachine_fields.signals import post_transition, pre_transition, transition_committed
from tests.patience import PATIENCE

pytestmark = pytest.mark.django_db

POSTGRESQL = connection.vendor == "postgresql"
BOUND = Audited.states._meta
RECORD = BOUND.transition_model

#: Each signal that a move may have to send, of which class, and how a plan says that it has to.
HEARD = {
    "pre_save": (pre_save, Audited, "by_save"),
    "post_save": (post_save, Audited, "by_save"),
    "pre_save of the record": (pre_save, RECORD, "leaves_record"),
    "post_save of the record": (post_save, RECORD, "leaves_record"),
    "pre_init of the record": (pre_init, RECORD, "makes_record"),
    "post_init of the record": (post_init, RECORD, "makes_record"),
    "pre_transition": (pre_transition, Audited, "tells_before"),
    "post_transition": (post_transition, Audited, "tells_after"),
    "transition_committed": (transition_committed, Audited, "tells_committed"),
}


@pytest.fixture(autouse=True)
def no_plans():
    BOUND.plans.clear()
    yield
    BOUND.plans.clear()


@pytest.fixture
def row() -> Audited:
    return Audited.objects.create(name="a")


def move(row: Any) -> list[str]:
    """Move a row on, and return the statements of that."""
    with CaptureQueriesContext(connection) as queries, TestCase.captureOnCommitCallbacks(execute=True):
        row.states.transition_to("DONE" if row.states.current == "NEW" else "NEW")
    return [query["sql"].split()[0] for query in queries]


def concerns(model: Any = Audited) -> set[str]:
    """Return for whom a move of such a row would do more than write it, as its plan has it."""
    plan = plan_for(BOUND if model is Audited else model.states._meta, model, connection)
    found = {name for name in ("by_save", "tells_before", "tells_after", "tells_committed") if getattr(plan, name)}
    if not plan.records:
        found.add("leaves_record")
    if not plan.makes_records_plainly:
        found.add("makes_record")
    return found


def is_straight() -> bool:
    return plan_for(BOUND, Audited, connection).straight is not None


def expected(signal, concern: str, of_all: bool) -> set[str]:
    """Return whom a receiver concerns: one of all classes hears of the row and of its record."""
    return {"by_save", "leaves_record"} if of_all and signal in (pre_save, post_save) else {concern}


class Ear:
    """A receiver that counts what it hears of one class."""

    def __init__(self, model: type[models.Model]) -> None:
        self.model = model
        self.heard = 0

    def __call__(self, sender, **kwargs):
        self.heard += sender is self.model


@pytest.mark.parametrize("name", HEARD)
@pytest.mark.parametrize("of_all", [False, True], ids=["its sender", "all senders"])
class TestReceivers:
    def test_are_told_from_when_they_are_connected(self, row, connect, name, of_all):
        signal, sender, concern = HEARD[name]
        plain, ear = move(row), Ear(sender)
        assert concerns() == set()
        connect(signal, ear, None if of_all else sender)
        assert concerns() == expected(signal, concern, of_all)
        assert not is_straight()
        move(row)
        assert ear.heard == 1
        signal.disconnect(ear, sender=None if of_all else sender)
        assert move(row) == plain
        assert ear.heard == 1

    def test_that_are_gone_cost_nothing(self, row, name, of_all):
        signal, sender, concern = HEARD[name]
        ear = Ear(sender)
        signal.connect(ear, sender=None if of_all else sender)
        try:
            assert concerns() == expected(signal, concern, of_all)
            move(row)
        finally:
            signal.disconnect(ear, sender=None if of_all else sender)
        assert concerns() == set()
        assert is_straight() is POSTGRESQL

    def test_that_are_collected_are_gone(self, row, name, of_all):
        signal, sender, concern = HEARD[name]
        ear = Ear(sender)
        signal.connect(ear, sender=None if of_all else sender, weak=True)
        move(row)
        assert (concerns(), ear.heard) == (expected(signal, concern, of_all), 1)
        del ear
        gc.collect()
        assert concerns() == set()
        move(row)

    def test_that_go_while_a_plan_is_made_leave_none_that_is_deaf(self, row, connect, name, of_all, monkeypatch):
        signal, sender, _concern = HEARD[name]
        ear, of = Ear(sender), None if of_all else sender

        class Interrupted(Plan):
            def __init__(self, *args):
                signal.disconnect(ear, sender=of)
                super().__init__(*args)

        connect(signal, ear, of)
        with monkeypatch.context() as patch:
            patch.setattr(plan_module, "Plan", Interrupted)
            move(row)
        connect(signal, ear, of)
        ear.heard = 0
        move(row)
        assert ear.heard == 1


@pytest.mark.parametrize("name", HEARD)
def test_receivers_of_another_class_are_no_concern(connect, name):
    signal, sender, _concern = HEARD[name]
    connect(signal, Ear(Stamped), Stamped.states.transition_model if sender is RECORD else Stamped)
    assert concerns() == set()


class Lookalike:
    """What wraps a function and says that it is that function, as the proxies do that tools for monitoring patch in."""

    def __init__(self, wrapped) -> None:
        self.wrapped, self.calls = wrapped, 0

    def __eq__(self, other):
        return self.wrapped == other

    def __hash__(self):
        return hash(self.wrapped)

    def __get__(self, instance, owner):
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.wrapped(*args, **kwargs)


class TestPatchedMethods:
    @pytest.mark.parametrize("method", ["save", "save_base"])
    def test_are_called_while_they_are_patched(self, row, method):
        plain = move(row)
        with mock.patch.object(Audited, method, autospec=True, side_effect=getattr(models.Model, method)) as patched:
            move(row)
            assert patched.call_count == 1
            assert concerns() == {"by_save"}
        assert move(row) == plain
        assert concerns() == set()

    @pytest.mark.parametrize("method", ["save", "save_base"])
    def test_cost_nothing_when_they_are_restored(self, row, method):
        with mock.patch.object(Audited, method, autospec=True, side_effect=getattr(models.Model, method)):
            move(row)
        assert concerns() == set()

    def test_of_the_record_are_called_while_they_are_patched(self, row):
        move(row)
        with mock.patch.object(RECORD, "__init__", autospec=True, side_effect=models.Model.__init__) as patched:
            assert concerns() == {"makes_record"}
            move(row)
            assert patched.call_count == 1
        move(row)
        assert concerns() == set()

    def test_that_claim_to_be_what_they_wrap_are_called(self, row):
        move(row)
        with mock.patch.object(Audited, "save", Lookalike(models.Model.save)):
            assert concerns() == {"by_save"}
            patched = Audited.save
            move(row)
            assert patched.calls == 1
        assert concerns() == set()

    def test_that_have_no_hash_are_called(self, row):
        patched = Lookalike(models.Model.save)
        with mock.patch.object(Lookalike, "__hash__", None), mock.patch.object(Audited, "save", patched):
            move(row)
        assert patched.calls == 1

    def test_that_are_made_anew_whenever_they_are_asked_for_share_a_plan(self, row):
        with mock.patch.object(Audited, "save", functools.partialmethod(models.Model.save)):
            assert plan_for(BOUND, Audited, connection) is plan_for(BOUND, Audited, connection)

    def test_a_save_that_is_no_longer_its_own_is_not_called(self):
        row = Hooked.objects.create()
        move(row)
        assert row.saves == 2
        with mock.patch.object(Hooked, "save", models.Model.save):
            move(row)
        assert row.saves == 2
        move(row)
        assert row.saves == 3

    def test_again_and_again_share_a_plan(self):
        plans = set()
        for _ in range(MOST_PLANS):
            with mock.patch.object(Audited, "save"):
                plans.add(plan_for(BOUND, Audited, connection))
        assert len(plans) == 1


class TestSettings:
    @pytest.mark.skipif(not POSTGRESQL, reason="only PostgreSQL prepares")
    def test_whether_to_prepare_is_asked_for_each_move(self, row):
        real = prepared.PreparingCursor.execute
        with mock.patch.object(prepared.PreparingCursor, "execute", autospec=True) as execute:
            execute.side_effect = real
            for prepare, times in ((True, 1), (False, 1), ("auto", 2), (False, 2)):
                with override_settings(STATEMACHINE_FIELDS={"PREPARE": prepare}):
                    move(row)
                assert execute.call_count == times

    @pytest.mark.parametrize("model", [Audited, Stamped])
    def test_times_are_as_the_settings_are_at_the_move(self, model):
        row = model.objects.create()
        for overridden in ({"USE_TZ": True}, {"USE_TZ": False, "TIME_ZONE": "Asia/Tokyo"}, {"USE_TZ": False}, {}):
            with override_settings(**overridden):
                move(row)
                record = row.states.history.first()
                stored = model.objects.get()
                assert timezone.is_aware(row.status_changed_at) is overridden.get("USE_TZ", True)
                assert abs(timezone.now() - row.status_changed_at).total_seconds() < 60
                assert row.status_changed_at == stored.status_changed_at == record.transitioned_at
                assert getattr(row, "modified", None) == getattr(stored, "modified", None)


class TestDatabases:
    @pytest.mark.django_db(databases=["default", "other"])
    def test_each_row_moves_in_its_own(self):
        here, there = (Audited.objects.using(alias).create() for alias in ("default", "other"))
        for row in (here, there, here, there):
            move(row)
        for alias in ("default", "other"):
            assert Audited.objects.using(alias).get().status_sequence == 2
            assert RECORD.objects.using(alias).count() == 2

    @pytest.mark.parametrize("alias", ["elsewhere", "default"])
    def test_of_another_kind_have_plans_of_their_own(self, alias):
        entry = {"ENGINE": f"django.db.backends.{'sqlite3' if POSTGRESQL else 'postgresql'}", "NAME": "elsewhere"}
        elsewhere = ConnectionHandler({"default": entry, "elsewhere": entry})[alias]
        for _ in range(2):
            assert plan_for(BOUND, Audited, connection).is_alone is POSTGRESQL
            assert plan_for(BOUND, Audited, elsewhere).is_alone is not POSTGRESQL

    @pytest.mark.django_db(transaction=True)
    def test_connections_of_threads_that_have_ended_are_not_kept(self, row):
        kept = []

        def work():
            move_there = Audited.objects.get()
            move_there.states.transition_to("DONE")
            kept.append(weakref.ref(connections["default"]))
            connections.close_all()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(PATIENCE)
        del thread
        gc.collect()
        assert kept[0]() is None


class TestInheritance:
    def test_a_proxy_a_child_and_their_parent_are_told_apart(self, connect):
        ear = Ear(RacingCar)
        Vehicle.objects.create()
        Car.objects.create()
        bound = Vehicle.states._meta
        connect(post_save, ear, RacingCar)
        rows = [Vehicle.objects.first(), Car.objects.get(), RacingCar.objects.get()]
        for _ in range(2):
            assert [plan_for(bound, type(row), connection).by_save for row in rows] == [False, False, True]
            for row in rows:
                row.refresh_from_db()
                row.states.transition_to("MOVING" if row.states.current == "PARKED" else "PARKED")
        assert ear.heard == 2

    def test_each_refreshes_its_own_fields(self):
        bound = Vehicle.states._meta
        for _ in range(2):
            refreshed = {
                model: [field.name for field in plan_for(bound, model, connection).refreshed]
                for model in (Vehicle, Car, RacingCar)
            }
            assert refreshed == {
                Vehicle: ["modified"],
                Car: ["modified", "serviced"],
                RacingCar: ["modified", "serviced"],
            }

    def test_an_own_save_of_a_child_is_not_its_parents(self):
        bound = Vehicle.states._meta
        plan_for(bound, Vehicle, connection)
        with mock.patch.object(Car, "save"):
            by_save = [plan_for(bound, model, connection).by_save for model in (Vehicle, Car, RacingCar)]
        assert by_save == [False, True, True]


class TestOptions:
    def test_what_is_compared_and_left_out_is_told_apart(self):
        plans = {
            plan_for(BOUND, Audited, connection, save, compares)
            for save in (True, False)
            for compares in ((), ("sequence",), ("lease_token",), ("sequence", "lease_token"))
        }
        assert len(plans) == 8
        assert {(plan.moves, plan.by_save) for plan in plans} == {(True, False), (False, False)}

    def test_however_many_there_are_the_memory_is_bounded(self):
        for number in range(2 * MOST_PLANS):
            plan_for(BOUND, Audited, connection, True, ("sequence",) * number)
            assert 0 < len(BOUND.plans) <= MOST_PLANS
