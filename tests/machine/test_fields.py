"""Columns that only the machine writes: what `save()` and everything around it may and may not do."""

from __future__ import annotations

import copy
import json
import pickle

import django
import pytest
from django.core import serializers
from django.core.management import call_command
from django.db import connection, models, transaction
from django.db.models import F
from django.forms import modelform_factory

from lab.models import Car, Invoice, Parcel, RacingCar, Stamped, Ticket, Vehicle
from statemachine_fields import UnknownState, UnrecordedStatusChange

pytestmark = pytest.mark.django_db


def stored(row: models.Model, name: str = "status") -> object:
    return type(row)._base_manager.values_list(name, flat=True).get(pk=row.pk)


@pytest.fixture
def stale(row: Stamped) -> Stamped:
    """An instance that has not seen that its row moved."""
    stale = Stamped.objects.get(pk=row.pk)
    row.states.transition_to("DONE")
    return stale


class TestStaleSave:
    def test_keeps_what_the_database_has(self, stale):
        stale.name = "b"
        stale.save()
        assert (stored(stale), stored(stale, "name"), stored(stale, "status_sequence")) == ("DONE", "b", 1)

    def test_can_be_repeated(self, stale):
        stale.save()
        stale.save()
        assert stored(stale) == "DONE"

    def test_keeps_it_even_if_the_columns_are_named(self, stale):
        stale.save(update_fields=["name", "status", "status_sequence", "status_changed_at"])
        assert (stored(stale), stored(stale, "status_sequence")) == ("DONE", 1)
        assert stored(stale, "status_changed_at") == Stamped.objects.get().states.history.get().transitioned_at

    def test_is_one_statement(self, stale, django_assert_num_queries):
        with django_assert_num_queries(1):
            stale.save()

    def test_does_not_touch_the_instance(self, stale):
        stale.save()
        assert stale.status == "NEW"

    def test_through_a_multi_table_child(self):
        car = Car.objects.create()
        stale = Car.objects.get()
        car.states.transition_to("MOVING")
        stale.doors = 2
        stale.save()
        assert (stored(car), stored(car, "doors")) == ("MOVING", 2)

    def test_through_a_proxy(self):
        car = Car.objects.create()
        stale = RacingCar.objects.get()
        car.states.transition_to("MOVING")
        stale.save()
        assert stored(car) == "MOVING"

    def test_of_one_of_two_machines(self):
        invoice = Invoice.objects.create()
        stale = Invoice.objects.get()
        invoice.payment.transition_to("PAID")
        stale.states.transition_to("SENT")
        stale.save()
        assert (stored(invoice), stored(invoice, "payment_status")) == ("SENT", "PAID")


class TestAssignment:
    @pytest.mark.parametrize("options", [{}, {"update_fields": ["status"]}, {"force_update": True}])
    def test_and_save_raises_and_writes_nothing(self, row, options):
        row.status = "DONE"
        row.name = "b"
        with pytest.raises(UnrecordedStatusChange) as caught:
            row.save(**options)
        assert str(caught.value) == (
            f"lab.Stamped pk={row.pk}: 'status' was assigned 'DONE', which would be a move without a record. "
            "Use `.states.transition_to('DONE')`, or refresh_from_db() to drop the assignment. Nothing was saved."
        )
        assert (caught.value.field, caught.value.was, caught.value.now) == ("status", "NEW", "DONE")
        assert (stored(row), stored(row, "name")) == ("NEW", "a")

    def test_can_be_taken_back(self, row):
        row.status = "DONE"
        row.status = "NEW"
        row.name = "b"
        row.save()
        assert stored(row, "name") == "b"

    def test_does_not_matter_to_a_save_of_other_fields(self, row):
        row.status = "DONE"
        row.name = "b"
        row.save(update_fields=["name"])
        assert (stored(row), stored(row, "name")) == ("NEW", "b")

    def test_is_dropped_by_refresh_from_db(self, row):
        row.status = "DONE"
        row.refresh_from_db()
        row.save()
        assert row.status == "NEW"

    def test_is_not_dropped_by_a_refresh_of_other_fields(self, row):
        row.status = "DONE"
        row.refresh_from_db(fields=["name"])
        with pytest.raises(UnrecordedStatusChange):
            row.save()

    def test_is_overruled_by_a_transition(self, row):
        row.status = "FAILED"
        row.states.transition_to("DONE")
        row.save()
        assert (row.status, stored(row)) == ("DONE", "DONE")

    def test_of_an_expression_raises(self, row):
        row.status = F("name")
        with pytest.raises(UnrecordedStatusChange):
            row.save()

    def test_to_a_deferred_column_raises(self, row):
        deferred = Stamped.objects.defer("status").get()
        deferred.status = "DONE"
        with pytest.raises(UnrecordedStatusChange):
            deferred.save()

    def test_through_update_or_create_raises(self, row):
        with pytest.raises(UnrecordedStatusChange):
            Stamped.objects.update_or_create(pk=row.pk, defaults={"status": "DONE"})
        assert Stamped.objects.update_or_create(pk=row.pk, defaults={"name": "b"})[0].name == "b"

    def test_through_a_multi_table_child_raises(self):
        car = Car.objects.create()
        car.status = "MOVING"
        with pytest.raises(UnrecordedStatusChange):
            car.save()
        car.refresh_from_db()
        car.fuel_state = "EMPTY"
        with pytest.raises(UnrecordedStatusChange, match=r"Use `\.fuel\.transition_to"):
            car.save()

    def test_survives_pickling_and_copying(self, row):
        row.status = "DONE"
        for twin in (pickle.loads(pickle.dumps(row)), copy.copy(row), copy.deepcopy(row)):  # noqa: S301
            with pytest.raises(UnrecordedStatusChange):
                twin.save()

    def test_on_a_copy_leaves_the_original_alone(self, row):
        for twin in (copy.copy(row), copy.deepcopy(row), pickle.loads(pickle.dumps(row))):  # noqa: S301
            twin.status = "DONE"
        row.save()
        assert stored(row) == "NEW"

    def test_error_survives_pickling(self, row):
        row.status = "DONE"
        with pytest.raises(UnrecordedStatusChange) as caught:
            row.save()
        twin = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
        assert (str(twin), twin.__dict__) == (str(caught.value), caught.value.__dict__)

    def test_caught_inside_a_transaction_leaves_it_usable(self, row):
        with transaction.atomic():
            row.status = "DONE"
            with pytest.raises(UnrecordedStatusChange):
                row.save()
            Stamped.objects.update(name="still works")
        assert stored(row, "name") == "still works"


class TestLoading:
    def test_refresh_from_db_shows_the_new_status_and_leaves_no_trace(self, stale):
        stale.refresh_from_db()
        assert stale.status == "DONE"
        stale.save()

    def test_refresh_of_single_fields(self, stale):
        stale.refresh_from_db(fields=["status"])
        assert (stale.status, stale.status_sequence) == ("DONE", 0)
        stale.refresh_from_db(None, ["status_sequence"])
        assert stale.status_sequence == 1
        stale.save()

    def test_refresh_from_a_queryset(self, stale):
        stale.refresh_from_db(from_queryset=Stamped.objects.select_for_update())
        assert stale.status == "DONE"
        stale.save()

    @pytest.mark.parametrize("queryset", [Stamped.objects.only("name"), Stamped.objects.defer("status")])
    def test_deferred_columns_load_on_demand(self, row, queryset, django_assert_num_queries):
        loaded = queryset.get()
        loaded.name = "b"
        loaded.save()
        with django_assert_num_queries(1):
            assert loaded.status == "NEW"
            assert loaded.states.current == "NEW"
        loaded.save()
        assert stored(row, "name") == "b"

    def test_a_row_loaded_without_its_status_can_move(self, row):
        loaded = Stamped.objects.only("pk").get()
        loaded.states.transition_to("DONE")
        assert stored(row) == "DONE"

    def test_deleting_the_attribute_loads_it_again(self, stale):
        del stale.status
        assert stale.status == "DONE"
        stale.save()

    @pytest.mark.skipif(django.VERSION < (6, 1), reason="fetch modes came with Django 6.1")
    def test_fetching_the_deferred_column_of_peers(self, row, django_assert_num_queries):
        Stamped.objects.create()
        rows = list(Stamped.objects.only("name").fetch_mode(models.FETCH_PEERS))
        with django_assert_num_queries(1):
            assert [loaded.status for loaded in rows] == ["NEW", "NEW"]
        for loaded in rows:
            loaded.save()

    def test_values_and_filters(self, row):
        assert list(Stamped.objects.filter(status="NEW").values_list("status", flat=True)) == ["NEW"]

    def test_full_clean_and_display(self, row):
        row.full_clean()
        assert row.get_status_display() == "New"

    def test_a_status_that_is_no_longer_declared_loads_and_saves(self, row):
        with connection.cursor() as cursor:
            cursor.execute("UPDATE lab_stamped SET status = 'GONE'")
        row.refresh_from_db()
        row.save()
        assert (row.states.current, row.states.display) == ("GONE", "GONE")
        assert row.states.get_valid_transitions() == []


class TestInserting:
    @pytest.mark.parametrize("status", ["NEW", "DONE", "FAILED"])
    def test_a_row_may_start_in_any_declared_state(self, status):
        assert stored(Stamped.objects.create(status=status)) == status

    def test_an_undeclared_state_is_refused(self):
        with pytest.raises(UnknownState) as caught:
            Stamped.objects.create(status="DNOE")
        assert str(caught.value) == (
            "lab.Stamped.states has no state 'DNOE'. Declared: NEW, DONE, FAILED. Did you mean 'DONE'?"
        )
        assert not Stamped.objects.exists()

    @pytest.mark.parametrize("status", [None, 3, F("name")])
    def test_what_is_no_state_at_all_is_refused(self, status):
        with pytest.raises(UnknownState):
            Stamped.objects.create(status=status)

    def test_an_enum_member_is_stored_as_its_value(self):
        ticket = Ticket.objects.create(status=Ticket.Status.CLOSED)
        assert stored(ticket) == "closed"
        assert ticket.status == Ticket.Status.CLOSED

    def test_the_other_columns_are_computed_whatever_is_passed(self):
        row = Stamped.objects.create(status_sequence=9)
        assert (row.status_sequence, stored(row, "status_sequence")) == (0, 0)
        assert row.status_changed_at == stored(row, "status_changed_at")

    def test_a_clone_starts_a_history_of_its_own(self, row):
        row.states.transition_to("DONE")
        original, first_change = row.pk, row.status_changed_at
        row.pk = None
        row.save()
        assert row.pk != original
        assert (stored(row), stored(row, "status_sequence"), row.status_sequence) == ("DONE", 0, 0)
        assert row.status_changed_at >= first_change
        row.name = "b"
        row.save()
        assert not row.states.history.exists()

    def test_a_clone_may_be_given_another_state(self, row):
        row.pk = None
        row.status = "DONE"
        row.save()
        row.save()
        assert stored(row) == "DONE"

    def test_a_key_of_ones_own(self):
        row = Stamped(pk=77, status="DONE")
        row.save()
        assert stored(row) == "DONE"
        parcel = Parcel.objects.create(status="LOST")
        assert stored(parcel) == "LOST"

    def test_force_insert(self):
        Stamped(pk=78, status="DONE").save(force_insert=True)
        assert Stamped.objects.get(pk=78).status == "DONE"

    def test_bulk_create(self):
        rows = Stamped.objects.bulk_create([Stamped(status="DONE", status_sequence=5), Stamped()])
        assert sorted(Stamped.objects.values_list("status", "status_sequence")) == [("DONE", 0), ("NEW", 0)]
        assert len(rows) == 2
        with pytest.raises(UnknownState):
            Stamped.objects.bulk_create([Stamped(status="NONSENSE")])

    def test_get_or_create(self):
        row, created = Stamped.objects.get_or_create(name="x", defaults={"status": "DONE"})
        assert (created, stored(row)) == (True, "DONE")

    def test_the_database_fills_the_columns_for_programs_that_do_not_know_them(self):
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO lab_stamped (name, modified) VALUES ('raw', '2026-01-01 00:00:00')")
        row = Stamped.objects.get()
        assert (row.status, row.status_sequence) == ("NEW", 0)
        assert row.status_changed_at is not None


class TestOtherDoors:
    def test_bulk_update_of_other_fields(self, stale):
        stale.name = "b"
        Stamped.objects.bulk_update([stale], ["name"])
        assert (stored(stale), stored(stale, "name")) == ("DONE", "b")

    def test_a_model_form_leaves_the_columns_out(self, stale):
        form_class = modelform_factory(Stamped, fields="__all__")
        assert list(form_class.base_fields) == ["name"]
        form_class({"name": "b"}, instance=stale).save()
        assert (stored(stale), stored(stale, "name")) == ("DONE", "b")

    def test_fixtures_bring_rows_and_history_as_they_were(self, row, tmp_path):
        row.states.transition_to("DONE", metadata={"by": "x"})
        Stamped.objects.create(status="FAILED")
        fixture = tmp_path / "rows.json"
        call_command("dumpdata", "lab.Stamped", "lab.StampedStateTransition", output=str(fixture), verbosity=0)
        before = [list(model.objects.order_by("pk").values()) for model in (Stamped, Stamped.states.transition_model)]
        Stamped.objects.all().delete()
        call_command("loaddata", str(fixture), verbosity=0)
        after = [list(model.objects.order_by("pk").values()) for model in (Stamped, Stamped.states.transition_model)]
        # JSON keeps milliseconds
        assert json.dumps(before, default=_to_text) == json.dumps(after, default=_to_text)
        assert after[1][0]["metadata"] == {"by": "x"}

    def test_a_fixture_overwrites_an_existing_row(self, row):
        text = serializers.serialize("json", [row]).replace('"NEW"', '"DONE"')
        for loaded in serializers.deserialize("json", text):
            loaded.save()
        assert stored(row) == "DONE"

    def test_pickled_and_copied_rows_save(self, stale):
        for twin in (pickle.loads(pickle.dumps(stale)), copy.copy(stale), copy.deepcopy(stale)):  # noqa: S301
            twin.save()
        assert stored(stale) == "DONE"

    def test_the_machine_itself_cannot_be_assigned(self, row):
        with pytest.raises(AttributeError, match=r"lab\.Stamped\.states is the state machine and cannot be assigned"):
            row.states = "DONE"

    def test_select_related_and_prefetch_of_history(self, row, django_assert_num_queries):
        row.states.transition_to("DONE")
        with django_assert_num_queries(2):
            loaded = Stamped.objects.prefetch_related("status_transitions").get()
            assert [t.to_status for t in loaded.status_transitions.all()] == ["DONE"]

    def test_filtering_across_the_history(self, row):
        row.states.transition_to("DONE")
        Stamped.objects.create()
        assert Stamped.objects.get(status_transitions__to_status="DONE") == row

    def test_a_parent_instance_and_its_child_are_one_row(self):
        car = Car.objects.create()
        vehicle = Vehicle.objects.get()
        vehicle.states.transition_to("MOVING")
        car.refresh_from_db()
        assert car.status == "MOVING"


def _to_text(value: object) -> str:
    return value.isoformat(timespec="milliseconds") if hasattr(value, "isoformat") else str(value)
