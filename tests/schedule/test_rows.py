"""Timed machines: the columns of the clock, what moves them, and what people may do with it."""

from __future__ import annotations

import copy
import datetime
import json
import pickle
import zoneinfo

import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.core import serializers
from django.core.management import call_command
from django.db import IntegrityError, connection, connections, models, transaction
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.state import ModelState, ProjectState
from django.db.models import F
from django.test.utils import CaptureQueriesContext, isolate_apps
from django.utils import timezone

from lab.models import ByHand, ByWorker, Chore, Lot, Payment, Sensor, Stamped, Ticking
from statemachine_fields import (
    ConcurrentTransition,
    InvalidStateTransition,
    RowMissing,
    State,
    StateMachine,
    StateMachineError,
    UnrecordedStatusChange,
)
from statemachine_fields.db.columns import FEATURES
from statemachine_fields.exceptions import RowLeased
from statemachine_fields.worker.claim import Claimer
from tests.declared import lab_model
from tests.together import together
from tests.worker.rows import in_seconds, lane_of, set_clock

pytestmark = pytest.mark.django_db

POSTGRESQL = connection.vendor == "postgresql"

DAY = 24 * 60 * 60.0
#: How long after it was due a test may look.
SOON = 20


def clock_of(row):
    """Return the columns of a row's clock as the database has them, without their prefix."""
    names = type(row).states._meta.names
    values = type(row)._base_manager.filter(pk=row.pk).values(*names.schedule).get()
    return {name: values[getattr(names, name)] for name in FEATURES["schedule"]}


def free(token, next_at, claimed_at=None, attempts=0):
    """Return the clock of a row that nobody holds and that has not failed."""
    nobody = {"lease_owner": "", "lease_expires_at": None, "lease_token": token}
    tried = {"claimed_at": claimed_at, "attempts": attempts}
    return {"next_at": next_at, "next_at_pinned": False, **nobody, **tried, "failures": 0, "crashes": 0, "error": ""}


def write(row, **columns):
    """Write columns of the machine as somebody with its own wrapper can."""
    set_clock(row, **columns)
    row.refresh_from_db()


def lease(row, owner="worker-1", seconds=60.0):
    """Let a worker claim the row, and bring the instance up to that."""
    [taken] = [each for each in Claimer(owner, seconds).claim(lane_of(type(row)), 100) if each.key == row.pk]
    row.refresh_from_db()
    return taken


def saved(row):
    row.save()
    return row


def assigned(row, **values):
    for name, value in values.items():
        setattr(row, name, value)
    return row


def is_in(next_at, seconds):
    """Say whether a time is that far ahead, give or take what a test takes."""
    return next_at is not None and abs((next_at - timezone.now()).total_seconds() - seconds) < SOON


def assert_as_stored(row, but=()):
    """Assert that the instance is what the database has."""
    stored = type(row)._base_manager.get(pk=row.pk)
    names = {field.attname for field in row._meta.concrete_fields} - {*but}
    assert {name: getattr(row, name) for name in names} == {name: getattr(stored, name) for name in names}


@pytest.fixture
def chore():
    return Chore.objects.create()


@pytest.fixture
def worn():
    """A row that a worker holds, that has failed before, and that other workers have died of."""
    row = Chore.objects.create()
    taken = lease(row)
    write(row, failures=2, crashes=1, error="no luck")
    assert row.status_lease_owner == "worker-1"
    return row, taken.token


class TestColumns:
    def test_only_timed_machines_have_them(self):
        names = {field.name for field in Stamped._meta.fields}
        assert not names & set(Stamped.states._meta.names.schedule)
        assert Stamped.states._meta.names.schedule == Chore.states._meta.names.schedule
        assert set(Chore.states._meta.names.schedule) <= {field.name for field in Chore._meta.fields}

    def test_follow_the_name_of_the_status(self):
        with isolate_apps("lab"):
            order = lab_model(states=StateMachine([State("A", delete_after=1)], "A", {}, field="payment_status"))
        assert [field.name for field in order._meta.fields][1:] == [
            "payment_status",
            "payment_sequence",
            "payment_changed_at",
            "payment_next_at",
            "payment_next_at_pinned",
            "payment_lease_owner",
            "payment_lease_expires_at",
            "payment_lease_token",
            "payment_claimed_at",
            "payment_attempts",
            "payment_failures",
            "payment_crashes",
            "payment_error",
        ]

    def test_are_not_editable(self):
        assert not any(Chore._meta.get_field(name).editable for name in Chore.states._meta.columns)

    def test_a_child_of_a_plain_machine_may_have_them_alone(self):
        assert not ByHand.states._meta.is_timed
        assert "status_next_at" in {field.name for field in ByWorker._meta.fields}
        assert "status_next_at" not in {field.name for field in ByHand._meta.fields}

    def test_one_index_finds_what_is_due_and_one_what_a_worker_may_have_died_of(self):
        due, suspects = [index for index in Chore._meta.indexes if "status_next_at" in index.fields]
        assert due.fields == ["status", "status_next_at"]
        assert due.condition is None
        assert suspects.fields == ["status_crashes", "status_next_at"]
        assert suspects.condition == models.Q(status_crashes__gt=0)
        assert not [each for each in Chore._meta.indexes if "status_lease_expires_at" in each.fields]

    def test_each_can_be_added_to_a_large_table_at_once(self):
        for name in Chore.states._meta.names.schedule:
            field = Chore._meta.get_field(name)
            assert field.null or field.has_db_default(), name

    def test_a_machine_cannot_be_called_like_one(self):
        with isolate_apps("lab"), pytest.raises(ValueError, match="a column of it would have the same name"):
            lab_model(status_error=StateMachine([State("A", delete_after=1)], "A", {}))

    def test_two_timed_machines_on_a_model_have_their_own(self):
        states = StateMachine([State("A", delete_after=1)], "A", {})
        other = StateMachine([State("A", delete_after=1)], "A", {}, field="other_status")
        with isolate_apps("lab"):
            order = lab_model(states=states, other=other)
        assert len({*order.states._meta.columns, *order.other._meta.columns}) == 26
        assert len({index.name for index in order._meta.indexes}) == 4


class TestMigrations:
    def test_record_plain_fields(self):
        state = ModelState.from_model(Chore)
        for name in Chore.states._meta.names.schedule:
            _name, path, _args, kwargs = state.fields[name].deconstruct()
            assert path.startswith("django.db.models."), path
            assert "machine" not in kwargs
        index = next(index for index in state.options["indexes"] if "status_next_at" in index.fields)
        assert index.deconstruct()[0] == "django.db.models.Index"

    def test_there_is_nothing_left_to_do(self):
        state = ProjectState.from_apps(apps)
        again = ProjectState.from_apps(apps)
        assert MigrationAutodetector(state, again)._detect_changes() == {}
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)

    def test_models_of_a_migration_are_plain(self):
        historical = ProjectState.from_apps(apps).apps.get_model("lab", "Chore")
        chore = historical.objects.create(status_next_at=in_seconds(5), status_error="copied")
        assert clock_of(Chore.objects.get(pk=chore.pk))["error"] == "copied"
        historical.objects.update(status_lease_token=7)
        assert Chore.objects.get().status_lease_token == 7


class TestNewRows:
    @pytest.mark.parametrize(
        ("status", "delay"), [("NEW", 0), ("DOING", 0), ("DONE", 365 * DAY), ("FAILED", None), ("HELD", None)]
    )
    def test_are_due_by_the_policy_of_their_state(self, status, delay):
        chore = Chore.objects.create(status=status)
        assert_as_stored(chore)
        assert clock_of(chore) == free(0, chore.status_next_at)
        assert chore.status_next_at is None if delay is None else is_in(chore.status_next_at, delay)

    def test_of_a_state_that_only_times_out_wait_for_that(self):
        ticking = Ticking.objects.create()
        assert is_in(ticking.status_next_at, 60)
        assert_as_stored(ticking)

    def test_go_by_the_clock_of_the_database(self, monkeypatch):
        now = timezone.now()
        monkeypatch.setattr(timezone, "now", lambda: now - datetime.timedelta(days=100))
        chore = Chore.objects.create(status="DONE")
        assert abs((chore.status_next_at - now).total_seconds() - 365 * DAY) < SOON

    def test_of_bulk_create_are_due_by_the_policy_of_their_state(self):
        states = ["NEW", "DONE", "HELD", "DOING", "FAILED"] * 3
        Chore.objects.bulk_create([Chore(status=status) for status in states])
        found = list(Chore.objects.order_by("pk"))
        assert [chore.status for chore in found] == states
        for chore in found:
            delay = {"NEW": 0, "DOING": 0, "DONE": 365 * DAY}.get(chore.status)
            assert chore.status_next_at is None if delay is None else is_in(chore.status_next_at, delay)
            assert clock_of(chore) == free(0, chore.status_next_at)

    def test_of_bulk_create_know_their_time_if_the_database_tells(self):
        chores = Chore.objects.bulk_create([Chore(), Chore(status="HELD")])
        if connection.features.can_return_rows_from_bulk_insert:
            for chore in chores:
                assert_as_stored(chore)

    def test_are_one_statement(self, django_assert_num_queries):
        with django_assert_num_queries(1):
            Chore.objects.create()
        with django_assert_num_queries(2 if connection.vendor == "postgresql" else 1):  # it asks the clock before
            Chore.objects.bulk_create([Chore() for _ in range(10)])

    def test_do_not_take_what_the_instance_holds(self):
        given = {
            "status_next_at_pinned": True,
            "status_lease_owner": "me",
            "status_lease_expires_at": in_seconds(5),
            "status_claimed_at": in_seconds(-5),
            "status_attempts": 7,
        }
        chore = Chore.objects.create(
            **given, status_lease_token=9, status_failures=3, status_crashes=2, status_error="copied"
        )
        assert is_in(chore.status_next_at, 0)
        assert clock_of(chore) == free(0, chore.status_next_at)
        assert_as_stored(chore)

    def test_that_copy_another_start_afresh(self, worn):
        row, token = worn
        row.pk, row._state.adding = None, True
        row.save()
        assert clock_of(row) == free(0, row.status_next_at)
        assert clock_of(Chore.objects.earliest("pk"))["lease_token"] == token

    @pytest.mark.parametrize(
        "make",
        [
            Chore.objects.create,
            lambda **given: Chore.objects.bulk_create([Chore(), Chore(**given)])[1],
            lambda **given: Chore.objects.get_or_create(name="a", defaults=given)[0],
            lambda **given: saved(Chore(**given)),
            lambda **given: saved(Chore(pk=7, **given)),
            lambda **given: saved(assigned(Chore(), **given)),
            lambda **given: saved(pickle.loads(pickle.dumps(Chore(**given)))),  # noqa: S301
            Sensor.objects.create,
            Ticking.objects.create,
        ],
        ids=["create", "bulk", "get_or_create", "save", "key", "assigned", "pickled", "child", "save()"],
    )
    def test_are_due_when_they_are_told(self, make):
        when = in_seconds(DAY)
        row = make(status_next_at=when)
        if row.pk is None:  # as after bulk_create() where the database does not tell
            row = Chore.objects.latest("pk")
        assert clock_of(row) == {**free(0, when), "next_at_pinned": True}
        assert_as_stored(row)

    def test_may_be_told_to_wait_or_to_have_waited(self):
        for seconds in (-DAY, 400 * DAY):
            chore = Chore.objects.create(status="DONE", status_next_at=in_seconds(seconds))
            assert is_in(chore.status_next_at, seconds)

    def test_that_are_told_nothing_go_by_the_policy(self):
        chore = Chore.objects.create(status="DONE", status_next_at=None)
        assert is_in(chore.status_next_at, 365 * DAY)
        assert not chore.status_next_at_pinned

    @pytest.mark.parametrize("make", [lambda row: row.save(), lambda row: Chore.objects.bulk_create([row])])
    @pytest.mark.parametrize(
        ("status", "when", "error", "words"),
        [
            (
                "HELD",
                in_seconds(5),
                StateMachineError,
                "is in 'HELD', where nothing is ever due.*Create the row in another",
            ),
            ("NEW", datetime.datetime(2030, 1, 1), ValueError, "status_next_at must be an aware datetime"),  # noqa: DTZ001
            ("NEW", "2030-01-01", TypeError, "status_next_at must be a datetime, got '2030-01-01'"),
        ],
    )
    def test_cannot_be_told_what_run_at_refuses(self, make, status, when, error, words):
        with pytest.raises(error, match=words), transaction.atomic():
            make(Chore(status=status, status_next_at=when))
        assert not Chore.objects.exists()

    @pytest.mark.django_db(transaction=True)
    def test_that_are_told_wrong_leave_the_transaction_usable(self):
        with transaction.atomic():
            with pytest.raises(StateMachineError):
                Chore.objects.create(status="HELD", status_next_at=in_seconds(5))
            Chore.objects.create()
        assert Chore.objects.count() == 1

    @pytest.mark.parametrize("recipe", ["adding", "key alone", "copy", "made by hand"])
    def test_that_copy_another_take_no_time_along(self, recipe):
        Chore.objects.create(status_next_at=in_seconds(DAY))
        original = Chore.objects.get()
        if recipe == "made by hand":
            values = {field.attname: getattr(original, field.attname) for field in Chore._meta.concrete_fields}
            row = Chore(**{**values, "id": None})
        else:
            row = copy.copy(original) if recipe == "copy" else original
            row.pk = None
            row._state.adding = recipe != "key alone" or row._state.adding
        row.save()
        assert Chore.objects.count() == 2
        assert clock_of(row) == free(0, row.status_next_at)
        assert is_in(row.status_next_at, 0)

    def test_that_copy_one_just_saved_take_no_time_along(self):
        row = Chore.objects.create(status_next_at=in_seconds(DAY))
        row.pk, row._state.adding = None, True
        Chore.objects.bulk_create([row])
        assert clock_of(Chore.objects.latest("pk")) == free(0, row.status_next_at)
        assert is_in(row.status_next_at, 0)

    def test_that_copy_one_loaded_in_part_take_no_time_along(self):
        Chore.objects.create(status_next_at=in_seconds(DAY))
        row = Chore.objects.defer("status_changed_at").get()
        row.pk, row._state.adding = None, True
        Chore.objects.bulk_create([row])
        assert is_in(Chore.objects.latest("pk").status_next_at, 0)

    def test_that_turn_out_to_exist_keep_the_time_that_they_have(self, chore):
        Chore(pk=chore.pk, status_next_at=in_seconds(DAY)).save()
        assert clock_of(chore) == free(0, chore.status_next_at)

    def test_that_could_not_be_inserted_are_told_still(self):
        when = in_seconds(DAY)
        row = Chore(pk=Chore.objects.create().pk, status_next_at=when)
        with pytest.raises(IntegrityError), transaction.atomic():
            row.save(force_insert=True)
        row.pk = None
        row.save()
        assert clock_of(row)["next_at"] == when

    def test_of_a_multi_table_child_are_due(self):
        sensor = Sensor.objects.create(name="a")
        assert is_in(sensor.status_next_at, 0)
        assert_as_stored(sensor)

    def test_of_get_or_create_and_update_or_create_are_due(self):
        one, _ = Chore.objects.get_or_create(name="a")
        two, _ = Chore.objects.update_or_create(name="b", defaults={"note": "c"})
        assert is_in(one.status_next_at, 0)
        assert is_in(two.status_next_at, 0)

    def test_that_turn_out_to_exist_are_what_the_database_has(self, worn):
        row, token = worn
        same = Chore(pk=row.pk, name="by hand")
        same.save()
        assert (same.status_lease_token, same.status_lease_owner, same.status_failures) == (token, "worker-1", 2)
        assert_as_stored(same)

    def test_of_fixtures_are_as_they_were(self, worn, tmp_path):
        row, _token = worn
        before, path = clock_of(row), tmp_path / "chores.json"
        call_command("dumpdata", "lab.Chore", output=str(path), verbosity=0)
        Chore.objects.all().delete()
        call_command("loaddata", str(path), verbosity=0)
        for times in ("next_at", "lease_expires_at", "claimed_at"):  # JSON has milliseconds
            before[times] = before[times].replace(microsecond=before[times].microsecond // 1000 * 1000)
        assert clock_of(row) == before

    def test_of_fixtures_from_before_the_clock_have_none(self):
        old = [{"model": "lab.chore", "pk": 1, "fields": {"status": "NEW", "script": {}}}]
        for each in serializers.deserialize("json", json.dumps(old)):
            each.save()
        assert clock_of(Chore.objects.get()) == free(0, None)


class TestOtherWriters:
    """Whoever is not the machine leaves the clock alone."""

    @pytest.mark.parametrize("options", [{}, {"force_update": True}, {"update_fields": ["name", "status_lease_owner"]}])
    def test_save_keeps_what_the_database_has(self, chore, options):
        stale = Chore.objects.get()
        lease(chore)
        write(chore, failures=1, crashes=1, error="no luck")
        before = clock_of(chore)
        stale.name = "b"
        stale.save(**options)
        assert clock_of(chore) == before
        assert Chore.objects.get().name == "b"

    def test_what_was_assigned_is_not_saved(self, chore):
        before = clock_of(chore)
        chore.status_next_at = None
        chore.status_lease_token = 100
        chore.status_error = "mine"
        chore.save()
        assert clock_of(chore) == before

    @pytest.mark.parametrize("column", FEATURES["schedule"])
    def test_update_is_refused(self, chore, column):
        before = clock_of(chore)
        for value in (before[column], None, F(f"status_{column}")):
            with pytest.raises(UnrecordedStatusChange), transaction.atomic():
                Chore.objects.update(**{f"status_{column}": value})
        assert clock_of(chore) == before

    def test_a_refusal_says_what_to_do(self, chore):
        with pytest.raises(UnrecordedStatusChange) as caught:
            Chore.objects.update(status_next_at=timezone.now())
        assert str(caught.value) == (
            "lab.Chore: a query would write 'status_next_at', which only the machine 'states' writes. Use run_at(), "
            "release() or resume() of the row. Nothing was written."
        )
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301

    def test_bulk_update_is_refused(self, chore):
        chore.status_next_at = None
        with pytest.raises(UnrecordedStatusChange):
            Chore.objects.bulk_update([chore], ["status_next_at"])

    def test_update_of_a_move_is_refused(self, chore):
        with pytest.raises(TypeError, match="update= names 'status_error', which only a machine writes"):
            chore.states.transition_to("DOING", update={"status_error": "mine"})

    def test_deferred_columns_are_loaded_when_asked_for(self, chore):
        lease(chore)
        deferred = Chore.objects.only("name").get()
        assert deferred.status_lease_owner == "worker-1"
        bare = Chore.objects.only("pk").get()
        bare.states.transition_to("DOING")
        assert_as_stored(bare)

    def test_instances_can_be_pickled_and_copied(self, worn):
        row, _token = worn
        for remade in (pickle.loads(pickle.dumps(row)), copy.copy(row), copy.deepcopy(row)):  # noqa: S301
            assert_as_stored(remade)


class TestMovesInTheForeground:
    """Every way to move a row ends its lease, and nothing of what was in the old state is left."""

    def moved(self, row, token, status, delay, attempts=1):
        stored = Chore.objects.get(pk=row.pk)
        assert stored.status == status
        assert stored.status_lease_token > token
        assert clock_of(row) == free(token + 1, stored.status_next_at, row.status_claimed_at, attempts)
        assert (row.status_claimed_at is None) == (attempts == 0)
        assert stored.status_next_at is None if delay is None else is_in(stored.status_next_at, delay)

    @pytest.mark.parametrize(("status", "delay"), [("DOING", 0), ("DONE", 365 * DAY), ("FAILED", None), ("HELD", None)])
    def test_transition_to(self, worn, status, delay):
        row, token = worn
        row.states.transition_to(status)
        self.moved(row, token, status, delay)
        assert_as_stored(row)

    def test_transition_to_by_a_stale_instance(self, chore):
        stale = Chore.objects.get()
        chore.states.transition_to("DOING")
        token = lease(chore).token
        stale.states.transition_to("DONE")
        self.moved(chore, token, "DONE", 365 * DAY)
        assert_as_stored(stale, but=["status_claimed_at", "status_attempts"])  # which a move does not write

    def test_transition_to_with_update(self, worn):
        row, token = worn
        row.states.transition_to("DONE", update={"name": F("note"), "note": "b"})
        self.moved(row, token, "DONE", 365 * DAY)
        assert_as_stored(row)

    def test_force_transition_to(self, worn):
        row, token = worn
        row.states.transition_to("DONE")
        row.states.force_transition_to("NEW", reason="again")
        self.moved(row, token + 1, "NEW", 0)
        assert_as_stored(row)

    def test_save_false(self, worn):
        row, token = worn
        with transaction.atomic():
            row.states.transition_to("DONE", save=False)
            row.save()
        self.moved(row, token, "DONE", 365 * DAY)
        assert_as_stored(row)

    def test_bulk_transition(self, worn):
        row, token = worn
        others = [Chore.objects.create(), Chore.objects.create(status="FAILED")]
        result = Chore.states.bulk_transition(Chore.objects.all(), "HELD")
        assert (result.moved, result.refused) == (2, 1)
        self.moved(row, token, "HELD", None)
        self.moved(others[0], 0, "HELD", None, attempts=0)
        assert clock_of(others[1])["lease_token"] == 0
        Chore.states.bulk_transition(Chore.objects.all(), "NEW")
        self.moved(row, token + 1, "NEW", 0)

    def test_bulk_transition_in_small_batches(self):
        Chore.objects.bulk_create([Chore() for _ in range(7)])
        Chore.states.bulk_transition(Chore.objects.all(), "DONE", batch_size=2)
        assert all(is_in(chore.status_next_at, 365 * DAY) for chore in Chore.objects.all())

    def test_bulk_transition_with_auto_now(self):
        lot = Lot.objects.create()
        Lot.states.bulk_transition(Lot.objects.all(), "SOLD")
        before, lot = lot.touched_at, Lot.objects.get()
        assert lot.touched_at > before
        assert is_in(lot.status_next_at, DAY)

    def test_model_with_a_save_of_its_own(self):
        row = Ticking.objects.create()
        write(row, next_at=in_seconds(-5))
        token = lease(row).token
        write(row, failures=1, error="no luck")
        row.states.transition_to("STALE")
        assert clock_of(row) == free(token + 1, row.status_next_at, row.status_claimed_at, attempts=1)
        assert is_in(row.status_next_at, DAY)
        assert_as_stored(row)
        Ticking.states.bulk_transition(Ticking.objects.all(), "GONE")
        assert is_in(Ticking.objects.get().status_next_at, 7 * DAY)

    def test_multi_table_child(self):
        row = Sensor.objects.create()
        token = lease(row).token
        row.states.transition_to("DONE")
        assert clock_of(row) == free(token + 1, None, row.status_claimed_at, attempts=1)
        assert_as_stored(row)

    def test_a_refusal_leaves_the_lease(self, worn):
        row, _token = worn
        before = clock_of(row)
        with pytest.raises(InvalidStateTransition):
            row.states.transition_to("NEW")
        with pytest.raises(ConcurrentTransition):
            row.states.transition_to("DOING", expected=5)
        assert clock_of(row) == before
        assert_as_stored(row)

    def test_what_is_rolled_back_leaves_the_lease(self, worn):
        row, _token = worn
        before = clock_of(row)

        class Never(Exception):
            pass

        with pytest.raises(Never), transaction.atomic():
            row.states.transition_to("DOING")
            raise Never
        assert clock_of(row) == before

    def test_the_worker_that_held_the_row_is_not_heard(self, worn):
        row, token = worn
        lane = lane_of(Chore)
        row.states.transition_to("DOING")
        for verb in (lane.held, lane.release):
            assert verb([row.pk], [token]) == set()
        assert lane.beat([row.pk], [token], 60) == set()

    def test_a_plain_machine_is_none_of_this(self):
        row = Stamped.objects.create()
        row.states.transition_to("DONE")
        assert not [name for name in vars(row) if name.startswith("status_lease")]


class TestRunAt:
    @pytest.mark.parametrize("seconds", [-5, 0, 3600, 10 * 365 * DAY])
    def test_makes_the_row_due_then(self, chore, seconds):
        when = in_seconds(seconds)
        chore.states.run_at(when)
        assert clock_of(chore)["next_at"] == when
        assert (Chore.states.due().first() == chore) == (seconds <= 0)
        assert_as_stored(chore)

    def test_makes_the_row_due_at_once_by_the_clock_of_the_database(self, chore, monkeypatch):
        chore.states.run_at(in_seconds(3600))
        monkeypatch.setattr("django.utils.timezone.now", lambda: pytest.fail("the program's clock"))
        chore.states.run_at()
        assert Chore.states.due().first() == chore

    def test_changes_nothing_else(self, chore):
        write(chore, failures=2, error="no luck")
        before = clock_of(chore)
        chore.states.run_at(when := in_seconds(60))
        assert clock_of(chore) == {**before, "next_at": when, "next_at_pinned": True}
        assert chore.states.history.count() == 0

    @pytest.mark.parametrize("when", [None, in_seconds(60)])
    def test_is_remembered_until_the_row_has_another_time(self, chore, when):
        chore.states.run_at(when)
        assert chore.status_next_at_pinned
        assert_as_stored(chore)
        chore.states.transition_to("DOING")
        assert not chore.status_next_at_pinned
        assert_as_stored(chore)

    def test_is_forgotten_when_the_row_is_resumed(self, chore):
        chore.states.run_at(in_seconds(60))
        write(chore, next_at=None, error="no luck")
        assert chore.states.resume()
        assert clock_of(chore) == free(0, chore.status_next_at)

    def test_serves_a_state_that_only_times_out(self):
        row = Ticking.objects.create()
        row.states.run_at(when := in_seconds(5))
        assert row.status_next_at == when

    def test_puts_a_parked_row_back(self, chore):
        write(chore, next_at=None, error="no luck")
        chore.states.run_at(in_seconds(-1))
        assert [*Chore.states.due()] == [chore]

    def test_of_a_leased_row_is_refused(self, worn):
        row, _token = worn
        before = clock_of(row)
        with pytest.raises(RowLeased) as caught:
            row.states.run_at(timezone.now())
        assert str(caught.value) == (
            f"lab.Chore pk={row.pk} is being run by worker-1, so run_at() left it alone. Wait for the outcome, or take "
            "the row away from the worker with release() first."
        )
        assert clock_of(row) == before
        assert (caught.value.owner, caught.value.action) == ("worker-1", "run_at")

    def test_of_a_row_that_was_leased_meanwhile_is_refused(self, chore):
        stale = Chore.objects.get()
        lease(chore)
        with pytest.raises(RowLeased):
            stale.states.run_at(timezone.now())
        assert_as_stored(stale)

    def test_of_a_row_whose_lease_ran_out_is_taken(self, worn):
        row, _token = worn
        write(row, lease_expires_at=in_seconds(-1))
        row.states.run_at(when := in_seconds(30))
        assert clock_of(row)["next_at"] == when

    @pytest.mark.parametrize("status", ["FAILED", "HELD"])
    def test_where_nothing_is_ever_due_is_refused(self, status):
        row = Chore.objects.create(status=status)
        with pytest.raises(StateMachineError, match=f"is in '{status}', where nothing is ever due: the state has no"):
            row.states.run_at(timezone.now())
        assert clock_of(row)["next_at"] is None

    def test_is_judged_by_the_row(self, chore):
        stale = Chore.objects.get()
        chore.states.transition_to("HELD")
        with pytest.raises(StateMachineError, match="is in 'HELD', where nothing is ever due"):
            stale.states.run_at(timezone.now())

    def test_of_an_unsaved_row_is_refused(self):
        with pytest.raises(RowMissing):
            Chore().states.run_at(timezone.now())

    def test_of_a_deleted_row_is_refused(self, chore):
        Chore.objects.all().delete()
        for verb in (lambda: chore.states.run_at(timezone.now()), chore.states.release, chore.states.resume):
            with pytest.raises(RowMissing):
                verb()

    def test_needs_an_aware_datetime(self, chore, settings):
        with pytest.raises(ValueError, match="^when must be an aware datetime"):
            chore.states.run_at(datetime.datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(TypeError, match="^when must be a datetime"):
            chore.states.run_at(60)

    @pytest.mark.parametrize("verb", [lambda row: row.states.run_at(timezone.now()), "release", "resume"])
    def test_of_a_plain_machine_is_refused(self, verb):
        row = Stamped.objects.create()
        with pytest.raises(
            StateMachineError, match="^lab.Stamped.states is not timed: no state has a handler or a pol"
        ):
            verb(row) if callable(verb) else getattr(row.states, verb)()


class TestRelease:
    def test_takes_the_row_away(self, worn):
        row, token = worn
        due, failures = row.status_next_at, row.status_failures
        assert row.states.release() is True
        clock = clock_of(row)
        assert (clock["lease_owner"], clock["lease_expires_at"], clock["lease_token"]) == ("", None, token + 1)
        assert (clock["next_at"], clock["failures"], clock["crashes"]) == (due, failures, 1)
        assert_as_stored(row)
        assert [*Chore.states.due()] == [row]

    def test_of_a_row_that_nobody_holds_does_nothing(self, chore):
        before = clock_of(chore)
        assert chore.states.release() is False
        assert clock_of(chore) == before

    def test_can_be_repeated(self, worn):
        row, _token = worn
        assert (row.states.release(), row.states.release()) == (True, False)

    def test_leaves_the_next_holder_alone(self, worn):
        row, token = worn
        stale = Chore.objects.get()
        row.states.release()
        [taken] = Claimer("worker-2", 60).claim(lane_of(Chore), 1, suspects=True)
        assert taken.token == token + 2
        assert stale.states.release() is False
        assert clock_of(row)["lease_owner"] == "worker-2"
        assert_as_stored(stale)

    def test_the_worker_is_not_heard_any_more(self, worn):
        row, token = worn
        row.states.release()
        assert lane_of(Chore).held([row.pk], [token]) == set()

    def test_of_a_multi_table_child(self):
        row = Sensor.objects.create()
        lease(row)
        assert row.states.release() is True
        assert_as_stored(row)


class TestResume:
    @pytest.fixture
    def parked(self, chore):
        write(chore, next_at=None, failures=3, crashes=2, error="no luck")
        return chore

    def test_puts_a_parked_row_back(self, parked):
        assert parked.states.resume() is True
        assert clock_of(parked) == free(0, parked.status_next_at)
        assert is_in(parked.status_next_at, 0)
        assert_as_stored(parked)
        assert not Chore.states.parked().exists()

    def test_of_another_row_does_nothing(self, chore):
        before = clock_of(chore)
        assert chore.states.resume() is False
        assert clock_of(chore) == before

    def test_is_judged_by_the_row(self, parked):
        stale = Chore.objects.get()
        assert parked.states.resume() is True
        lease(parked)
        assert stale.states.resume() is False
        assert_as_stored(stale)

    def test_where_nothing_is_ever_due_does_nothing(self):
        row = Chore.objects.create(status="HELD")
        write(row, error="left over")
        assert row.states.resume() is False


class TestQuestions:
    def test_due_are_those_that_a_worker_could_take(self):
        waiting, late, later, leased, lost, parked, held = (Chore.objects.create() for _ in range(7))
        write(waiting, next_at=in_seconds(60))
        write(late, next_at=in_seconds(-60))
        write(later, next_at=in_seconds(-30))
        write(leased, next_at=in_seconds(-90), lease_expires_at=in_seconds(60), lease_owner="w")
        write(lost, next_at=in_seconds(-45), lease_expires_at=in_seconds(-1), lease_owner="w")
        write(parked, next_at=None, error="no luck")
        held.states.transition_to("HELD")
        write(held, next_at=in_seconds(-60))
        assert [*Chore.states.due()] == [late, lost, later]
        assert [*Chore.states.leased()] == [leased]
        assert [*Chore.states.parked()] == [parked]

    def test_leased_are_ordered_by_the_end_of_the_lease(self):
        rows = [Chore.objects.create() for _ in range(3)]
        for row, seconds in zip(rows, (60, 20, 40), strict=True):
            write(row, lease_expires_at=in_seconds(seconds))
        assert [*Chore.states.leased()] == [rows[1], rows[2], rows[0]]

    def test_due_is_what_a_claim_takes(self):
        Chore.objects.bulk_create([Chore(status=status) for status in ("NEW", "DOING", "DONE", "FAILED", "HELD")])
        due = {chore.pk for chore in Chore.states.due()}
        assert {taken.key for taken in Claimer("worker-1", 60).claim(lane_of(Chore), 100)} == due
        assert not Chore.states.due().exists()
        assert Chore.states.leased().count() == 2

    def test_answers_chain(self, chore):
        assert Chore.states.due().filter(name="").count() == 1
        assert Chore.states.parked().filter(status="NEW").count() == 0

    def test_each_is_one_statement(self, chore, django_assert_num_queries):
        for question in (Chore.states.due, Chore.states.leased, Chore.states.parked):
            with django_assert_num_queries(1):
                list(question())

    @pytest.mark.parametrize("question", ["due", "leased", "parked"])
    def test_of_a_plain_machine_are_refused(self, question):
        with pytest.raises(StateMachineError, match="^lab.Stamped.states is not timed"):
            getattr(Stamped.states, question)()


@pytest.mark.django_db(transaction=True)
class TestAsync:
    def test_the_twins_do_the_same(self):
        async def play():
            row = await Chore.objects.acreate()
            await row.states.arun_at(in_seconds(60))
            assert is_in(row.status_next_at, 60)
            assert await row.states.arelease() is False
            assert await row.states.aresume() is False
            await row.states.atransition_to("HELD")
            with pytest.raises(StateMachineError):
                await row.states.arun_at(timezone.now())
            return row

        assert_as_stored(async_to_sync(play)())

    def test_the_others_say_yes_when_they_do_something(self):
        row, parked = Chore.objects.create(), Chore.objects.create()
        write(parked, next_at=None, error="no luck")
        lease(row)

        async def play():
            return await row.states.arelease(), await parked.states.aresume()

        assert async_to_sync(play)() == (True, True)


@pytest.mark.django_db(transaction=True)
class TestCost:
    INSIDE = ["WITH"] if POSTGRESQL else ["UPDATE", "INSERT", "SELECT"]
    PLAIN = INSIDE if POSTGRESQL else ["BEGIN", *INSIDE, "COMMIT"]

    def statements(self, act):
        with CaptureQueriesContext(connection) as queries:
            act()
        return [query["sql"].split()[0].upper() for query in queries]

    def test_a_move_is_one_statement_on_postgresql_and_one_short_transaction_elsewhere(self, chore):
        assert self.statements(lambda: chore.states.transition_to("DOING", {"a": 1})) == self.PLAIN
        assert self.statements(lambda: chore.states.transition_to("NEW", expected="DOING")) == self.PLAIN
        assert self.statements(lambda: chore.states.transition_to("DOING", update={"name": "b"})) == self.PLAIN

    def test_inside_a_transaction_it_has_no_savepoint(self, chore):
        with transaction.atomic():
            assert self.statements(lambda: chore.states.transition_to("DOING")) == self.INSIDE

    def test_verbs_are_an_update_and_a_look(self, chore):
        lease(chore)
        for verb in (chore.states.release, lambda: chore.states.run_at(timezone.now()), chore.states.resume):
            assert self.statements(verb) == ["UPDATE", "SELECT"]

    def test_bulk_is_a_constant_number(self):
        def statements():
            return len(self.statements(lambda: Chore.states.bulk_transition(Chore.objects.all(), "DOING")))

        Chore.objects.create()
        one = statements()
        Chore.states.bulk_transition(Chore.objects.all(), "NEW")
        Chore.objects.bulk_create([Chore() for _ in range(50)])
        assert statements() == one


@pytest.mark.django_db(transaction=True)
class TestRaces:
    def rows(self):
        """Give a race several rows, one after the other."""
        for _ in range(5):
            Chore.objects.all().delete()
            yield Chore.objects.create()

    def claim(self):
        return len(Claimer("worker-1", 60).claim(lane_of(Chore), 1))

    def test_of_a_claim_and_run_at_one_knows_of_the_other(self):
        for row in self.rows():
            later = in_seconds(3600)
            claimed, told = together(self.claim, lambda row=row, later=later: row.states.run_at(later))
            clock = clock_of(row)
            if claimed == 1 and isinstance(told, RowLeased):
                assert clock["next_at"] != later
            else:
                assert (claimed, told, clock["next_at"]) == (0, None, later)

    def test_of_two_releases_one_did_it(self):
        for row in self.rows():
            token = lease(row).token
            both = [Chore.objects.get(), Chore.objects.get()]
            assert sorted(together(*[each.states.release for each in both])) == [False, True]
            assert clock_of(row)["lease_token"] == token + 1

    def test_of_a_release_and_a_move_the_move_stands(self):
        for row in self.rows():
            lease(row)
            other = Chore.objects.get()
            together(row.states.release, lambda other=other: other.states.transition_to("DONE"))
            stored = Chore.objects.get()
            assert stored.status == "DONE"
            assert (stored.status_lease_owner, stored.status_lease_expires_at) == ("", None)
            assert is_in(stored.status_next_at, 365 * DAY)

    def test_a_lease_that_ends_in_between_is_no_reason_to_refuse(self, monkeypatch):
        """`run_at()` was in the way of a lease, and when it looks whose, there is none."""
        row = Chore.objects.create()
        taken = lease(row)
        lane = lane_of(Chore)
        released = []

        def release_first(execute, sql, params, many, context):
            if sql.startswith("SELECT") and not released:
                released.append(True)
                lane.release([row.pk], [taken.token])
            return execute(sql, params, many, context)

        later = in_seconds(3600)
        with connection.execute_wrapper(release_first):
            row.states.run_at(later)
        assert clock_of(row)["next_at"] == later


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL keeps instants, and MariaDB has no worker yet")
def test_times_are_right_in_a_database_that_keeps_local_time(monkeypatch):
    there = connections["default"]
    monkeypatch.setitem(vars(there), "timezone", zoneinfo.ZoneInfo("America/New_York"))
    monkeypatch.setitem(vars(there), "timezone_name", "America/New_York")
    row = Chore.objects.create()
    row.refresh_from_db()
    assert is_in(row.status_next_at, 0)
    assert [*Chore.states.due()] == [row]
    lease(row)
    assert [*Chore.states.leased()] == [row]
    row.states.transition_to("DONE")
    assert is_in(row.status_next_at, 365 * DAY)
    assert_as_stored(row)
    assert not Chore.states.stuck("DONE", 60).exists()


def test_a_handler_sees_a_row_as_django_loads_it(chore):
    taken = lease(chore)
    assert taken.instance == chore
    assert_as_stored(taken.instance)
    payment = Payment.objects.create()
    assert_as_stored(lease(payment).instance)
    sensor = Sensor.objects.create()
    assert_as_stored(lease(sensor).instance)
