"""Every door through which a program could write a machine's column: each is shut, or does no harm."""

from __future__ import annotations

import copy

import pytest
from django.core import serializers
from django.db import connection, models, transaction
from django.db.models import Case, F, Value, When
from django.forms import modelform_factory
from django.test.utils import isolate_apps
from rest_framework import serializers as drf

from lab.models import Car, Invoice, Logged, Stamped
from statemachine_fields import UnknownState, UnrecordedStatusChange
from statemachine_fields.db.fields import MachineColumn

pytestmark = pytest.mark.django_db

COLUMNS = ["status", "status_sequence", "status_changed_at"]


def stored(row: models.Model) -> tuple[object, ...]:
    return Stamped.objects.values_list("status", "status_sequence", "name").get(pk=row.pk)


def upsert(rows, *fields):
    target = {"unique_fields": ["id"]} if connection.features.supports_update_conflicts_with_target else {}
    Stamped.objects.bulk_create(rows, update_conflicts=True, update_fields=fields, **target)


class TestQueries:
    @pytest.mark.parametrize("value", ["DONE", F("name"), Value("DONE"), Case(When(pk=1, then=Value("DONE")))])
    def test_update_is_refused(self, row, value):
        with pytest.raises(UnrecordedStatusChange) as caught, transaction.atomic():
            Stamped.objects.update(status=value, name="b")
        assert str(caught.value) == (
            "lab.Stamped: a query would write 'status', which only the machine 'states' writes, and leave no record. "
            "Use bulk_transition() for many rows, or transition_to() for one. Nothing was written."
        )
        assert stored(row) == ("NEW", 0, "a")

    @pytest.mark.parametrize("changes", [{"status_sequence": 5}, {"status_changed_at": None}])
    def test_update_of_the_other_columns_is_refused(self, row, changes):
        with pytest.raises(UnrecordedStatusChange), transaction.atomic():
            Stamped.objects.update(**changes)

    def test_update_of_other_fields_is_not_our_business(self, row):
        assert Stamped.objects.filter(status="NEW").update(name=F("status")) == 1
        assert stored(row) == ("NEW", 0, "NEW")

    @pytest.mark.parametrize("column", COLUMNS)
    def test_bulk_update_is_refused(self, row, column):
        row.status = "DONE"
        with pytest.raises(UnrecordedStatusChange), transaction.atomic():
            Stamped.objects.bulk_update([row], [column])
        assert stored(row)[:2] == ("NEW", 0)

    def test_an_upsert_of_other_fields_goes_on_working(self, row):
        upsert([Stamped(pk=row.pk, status="DONE", name="b"), Stamped(name="c")], "name")
        assert stored(row) == ("NEW", 0, "b")

    def test_update_or_create_is_refused(self, row):
        with pytest.raises(UnrecordedStatusChange):
            Stamped.objects.update_or_create(pk=row.pk, defaults={"status": "DONE"})
        Stamped.objects.update_or_create(pk=row.pk, defaults={"name": "b"})
        made, created = Stamped.objects.update_or_create(name="new", defaults={"status": "DONE"})
        assert (created, stored(made)) == (True, ("DONE", 0, "new"))

    def test_a_second_machine_has_doors_of_its_own(self):
        invoice = Invoice.objects.create()
        with pytest.raises(UnrecordedStatusChange, match="only the machine 'payment' writes"), transaction.atomic():
            Invoice.objects.update(payment_status="PAID")
        assert Invoice.objects.get(pk=invoice.pk).payment_status == "DUE"

    def test_a_multi_table_child_does_not_open_its_parents(self):
        Car.objects.create()
        with pytest.raises(UnrecordedStatusChange), transaction.atomic():
            Car.objects.update(status="MOVING")


class TestInstancesMadeByHand:
    """With the key of a row that exists, and saved: Django updates the row."""

    def test_do_not_move_the_row(self, row):
        row.states.transition_to("DONE")
        with pytest.raises(UnrecordedStatusChange) as caught:
            Stamped(pk=row.pk, status="FAILED", name="b").save()
        assert (caught.value.was, caught.value.now) == ("DONE", "FAILED")
        assert stored(row) == ("DONE", 1, "a")

    def test_learn_where_the_row_is_if_they_did_not_say(self, row):
        row.states.transition_to("DONE")
        twin = Stamped(pk=row.pk, name="b")
        twin.save()
        assert (twin.status, twin.status_sequence, twin.status_changed_at) == ("DONE", 1, row.status_changed_at)
        assert stored(row) == ("DONE", 1, "b")

    def test_that_are_new_after_all_are_inserted(self):
        made = Stamped(pk=55, status="DONE")
        made.save()
        assert (made.status, stored(made)) == ("DONE", ("DONE", 0, ""))


class TestForms:
    def test_a_model_form_cannot_name_the_status(self, row):
        from django.core.exceptions import FieldError

        with pytest.raises(FieldError, match="non-editable"):
            modelform_factory(Stamped, fields=["status"])

    def test_a_model_form_of_everything_leaves_it_out(self, row):
        stale = Stamped.objects.get()
        row.states.transition_to("DONE")
        form = modelform_factory(Stamped, fields="__all__")({"name": "b", "status": "FAILED"}, instance=stale)
        assert form.is_valid()
        form.save()
        assert stored(row) == ("DONE", 1, "b")

    def test_the_admin_form_cannot_move_a_row(self, admin_client):
        from shop.models import Order

        order = Order.objects.create(customer="Ada", total=1)
        stale = Order.objects.get()
        url = f"/admin/shop/order/{order.pk}/change/"
        assert admin_client.get(url).status_code == 200
        stale.states.transition_to("PAID")
        data = {"customer": "Bob", "total": "2.00", "status": "CANCELLED", "status_sequence": "9", "_save": "Save"}
        assert admin_client.post(url, data).status_code == 302
        order.refresh_from_db()
        assert (order.customer, order.status, order.status_sequence) == ("Bob", "PAID", 1)


class StampedSerializer(drf.ModelSerializer):  # type: ignore[misc]
    class Meta:
        model = Stamped
        fields = "__all__"


class WritableSerializer(drf.ModelSerializer):  # type: ignore[misc]
    status = drf.CharField()

    class Meta:
        model = Stamped
        fields = ["name", "status"]


class TestRestFramework:
    def test_a_model_serializer_reads_the_columns_and_never_writes_them(self, row):
        stale = Stamped.objects.get()
        row.states.transition_to("DONE")
        serializer = StampedSerializer(stale, data={"name": "b", "status": "FAILED"})
        assert serializer.is_valid(), serializer.errors
        serializer.save()
        assert stored(row) == ("DONE", 1, "b")
        assert StampedSerializer(Stamped.objects.get()).data["status"] == "DONE"

    def test_save_with_a_status_is_refused(self, row):
        serializer = StampedSerializer(row, data={"name": "b"})
        assert serializer.is_valid()
        with pytest.raises(UnrecordedStatusChange):
            serializer.save(status="DONE")
        assert stored(row) == ("NEW", 0, "a")

    def test_a_field_that_was_made_writable_is_refused(self, row):
        serializer = WritableSerializer(row, data={"name": "b", "status": "DONE"})
        assert serializer.is_valid()
        with pytest.raises(UnrecordedStatusChange):
            serializer.save()

    def test_creating_in_a_state_works(self):
        serializer = WritableSerializer(data={"name": "b", "status": "DONE"})
        assert serializer.is_valid()
        assert stored(serializer.save()) == ("DONE", 0, "b")
        serializer = WritableSerializer(data={"name": "b", "status": "NONSENSE"})
        assert serializer.is_valid()
        with pytest.raises(UnknownState):
            serializer.save()


class TestWhatStaysOpen:
    def test_fixtures_insert_and_overwrite(self, row):
        for text in ('"NEW"', '"DONE"'):
            data = (
                serializers.serialize("json", [row])
                .replace('"NEW"', text)
                .replace('"status_sequence": 0', '"status_sequence": 4')
            )
            for loaded in serializers.deserialize("json", data):
                loaded.save()
                assert loaded.object.status in ("NEW", "DONE")
                assert loaded.object.status_sequence == 4
        assert stored(row) == ("DONE", 4, "a")

    def test_fixtures_of_recorded_models_bring_no_record(self):
        row = Logged.objects.create()
        (loaded,) = serializers.deserialize("json", serializers.serialize("json", [row]))
        loaded.save()
        assert row.states.history.count() == 1

    @pytest.mark.django_db(transaction=True)
    @isolate_apps("lab")
    def test_copies_of_the_columns_in_another_librarys_table_are_plain(self):
        """As libraries that keep a history of whole rows make them."""
        body = {field.name: copy.copy(field) for field in Stamped._meta.fields if isinstance(field, MachineColumn)}
        for field in body.values():
            vars(field).pop("cached_col", None)  # they copy before the first query
        body |= {
            "__module__": __name__,
            "Meta": type("Meta", (), {"app_label": "lab", "db_table": "lab_historicalstamped"}),
        }
        historical = type("HistoricalStamped", (models.Model,), body)
        assert not hasattr(historical, "states")
        with connection.schema_editor() as editor:
            editor.create_model(historical)
        try:
            row = Stamped.objects.create()
            row.states.transition_to("DONE")
            past = historical.objects.create(
                status=row.status, status_sequence=row.status_sequence, status_changed_at=row.status_changed_at
            )
            past.refresh_from_db()
            assert (past.status, past.status_sequence, past.status_changed_at) == ("DONE", 1, row.status_changed_at)
            past.status = "ANYTHING"
            past.save()
            historical.objects.update(status="ELSE")
            assert historical.objects.get().status == "ELSE"
        finally:
            with connection.schema_editor() as editor:
                editor.delete_model(historical)
        assert Stamped.states._meta.field.bound is Stamped.states._meta

    def test_an_upsert_that_names_the_status(self, row):
        """Django compiles it without asking the field, except in ways that make every `bulk_create()` slower."""
        upsert([Stamped(pk=row.pk, status="DONE", name="b")], "name", "status")
        assert stored(row) == ("DONE", 0, "b")

    def test_raw_sql(self, row):
        with connection.cursor() as cursor:
            cursor.execute("UPDATE lab_stamped SET status = 'DONE'")
        row.refresh_from_db()
        assert row.status == "DONE"
