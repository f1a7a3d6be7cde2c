"""Corners where several features meet, each of which was wrong once."""

from __future__ import annotations

import copy
import datetime
import pickle
import zoneinfo

import pytest
from django.db import IntegrityError, connection, connections, models, transaction
from django.db.models import F, Q, Window
from django.db.models.functions import RowNumber
from django.db.models.signals import post_save
from django.test.utils import isolate_apps
from django.utils import timezone

from lab.models import Audited, Defaulting, Document, Invoice, Kept, Logged, Stamped, Stamping
from statemachine_fields import StateMachine, TransitionBlocked
from statemachine_fields.signals import post_transition, transition_committed
from tests.declared import lab_model

pytestmark = pytest.mark.django_db

only_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="written in PostgreSQL's terms")


def history(row) -> list[tuple[int, str, str]]:
    return list(row.states.history.order_by("sequence").values_list("sequence", "from_status", "to_status"))


class TestBulkOverJoins:
    def moved_twice(self) -> models.QuerySet[Stamped]:
        """A row that a join finds twice, and one that it finds once."""
        row, other = Stamped.objects.create(), Stamped.objects.create()
        for state in ("DONE", "NEW"):
            row.states.transition_to(state)
        other.states.transition_to("DONE")
        other.states.transition_to("NEW")
        return Stamped.objects.filter(status_transitions__sequence__in=[1, 2])

    def test_a_row_that_is_found_twice_moves_once(self):
        result = Stamped.states.bulk_transition(self.moved_twice(), "DONE")
        assert (result.moved, result.refused) == (2, 0)

    def test_and_is_refused_once(self):
        Stamped.states.bulk_transition(queryset := self.moved_twice(), "FAILED")
        result = Stamped.states.bulk_transition(queryset, "DONE")
        assert (result.moved, result.refused) == (0, 2)

    def test_and_moves_once_row_by_row(self, connect):
        queryset = self.moved_twice()
        connect(post_transition, lambda **kwargs: None, Stamped)
        result = Stamped.states.bulk_transition(queryset, "DONE")
        assert (result.moved, result.refused) == (2, 0)

    def test_first_records_over_an_outer_join(self):
        Logged.objects.bulk_create([Logged(), Logged(owner=Kept.objects.create())])
        rows = Logged.objects.filter(Q(owner__status="NEW") | Q(owner=None))
        assert Logged.states.record_initial(rows) == 2

    def test_over_a_window(self):
        Stamped.objects.bulk_create([Stamped(name="a"), Stamped(name="a"), Stamped(name="b")])
        numbered = Stamped.objects.annotate(n=Window(RowNumber(), partition_by="name", order_by="pk"))
        assert Stamped.states.bulk_transition(numbered.filter(n=1), "DONE").moved == 2

    @only_postgresql
    @pytest.mark.parametrize("batch_size", [1, 10])
    def test_over_the_first_of_each(self, batch_size):
        Stamped.objects.bulk_create([Stamped(name=name) for name in "aabbcc"])
        first = Stamped.objects.filter(status="NEW").order_by("name", "-pk").distinct("name")
        expected = [row.pk for row in first]
        assert Stamped.states.bulk_transition(first, "DONE", batch_size=batch_size).moved == 3
        assert sorted(Stamped.objects.filter(status="DONE").values_list("pk", flat=True)) == sorted(expected)

    @pytest.mark.django_db(transaction=True)
    def test_a_queryset_that_locks_already(self):
        Stamped.objects.create()
        assert Stamped.states.bulk_transition(Stamped.objects.select_for_update(), "DONE").moved == 1


class TestFirstRecords:
    def test_a_receiver_may_save_and_move_a_new_row(self, connect):
        def on_creation(instance, created, **kwargs):
            if created:
                instance.save()
                instance.states.transition_to("DONE")

        connect(post_save, on_creation, Logged)
        row = Logged.objects.create()
        assert history(row) == [(1, "", "NEW"), (2, "NEW", "DONE")]
        assert row.status == "DONE"

    def test_a_receiver_sees_the_first_record(self, connect):
        seen = []
        connect(post_save, lambda instance, **kwargs: seen.append(history(instance)), Logged)
        Logged.objects.create()
        assert seen == [[(1, "", "NEW")]]

    def test_an_insert_that_failed_leaves_an_instance_that_can_be_cleaned(self):
        Stamped.objects.create(pk=1)
        twin = Stamped(pk=1, name="x")
        with pytest.raises(IntegrityError), transaction.atomic():
            twin.save(force_insert=True)
        twin.full_clean(exclude=["id"], validate_unique=False)


class TestUpdate:
    def test_with_an_object_that_is_not_saved_is_refused(self):
        row = Logged.objects.create()
        with pytest.raises(ValueError, match="unsaved related object"):
            row.states.transition_to("DONE", update={"owner": Kept()})
        row.refresh_from_db()
        assert (row.status, row.owner) == ("NEW", None)

    def test_with_an_object_that_is(self):
        row, owner = Logged.objects.create(), Kept.objects.create()
        row.states.transition_to("DONE", update={"owner": owner})
        assert Logged.objects.get().owner == owner

    def test_that_fails_gives_the_former_object_back(self):
        first, second = Kept.objects.create(), Kept.objects.create()
        row = Logged.objects.create(owner=first, status="DONE")
        with pytest.raises(Exception, match="cannot move"):
            row.states.transition_to("DONE", update={"owner": second})
        assert (row.owner_id, row.owner) == (first.pk, first)


class TestNesting:
    def test_a_move_from_a_save_receiver_is_where_the_instance_ends(self, connect):
        def go_on(instance, **kwargs):
            if instance.status == "DONE":
                instance.states.transition_to("NEW")

        row = Audited.objects.create()
        connect(post_save, go_on, Audited)
        row.states.transition_to("DONE")
        assert (row.status, row.status_sequence) == ("NEW", 2)
        row.save()
        assert Audited.objects.get().status == "NEW"

    def test_commits_are_told_in_the_order_of_the_moves(self, connect, django_capture_on_commit_callbacks):
        def go_on(instance, to_status, **kwargs):
            if to_status == "DONE":
                instance.states.transition_to("NEW")

        told = []
        connect(post_transition, go_on, Stamped)
        connect(transition_committed, lambda to_status, **kwargs: told.append(to_status), Stamped)
        with django_capture_on_commit_callbacks(execute=True):
            Stamped.objects.create().states.transition_to("DONE")
        assert told == ["DONE", "NEW"]

    def test_an_error_puts_the_other_machine_back_too(self, connect):
        def spoil(instance, machine, **kwargs):
            if machine is Invoice.states:
                instance.payment.transition_to("PAID")
                raise RuntimeError

        invoice = Invoice.objects.create()
        connect(post_transition, spoil, Invoice)
        with pytest.raises(RuntimeError):
            invoice.states.transition_to("SENT")
        assert (invoice.status, invoice.payment_status, invoice.payment_sequence) == ("DRAFT", "DUE", 0)

    def test_a_receiver_of_the_audit_model_that_raises_leaves_the_transaction_usable(self, connect):
        def refuse(**kwargs):
            raise RuntimeError

        row = Stamped.objects.create()
        connect(post_save, refuse, Stamped.states.transition_model)
        with transaction.atomic():
            with pytest.raises(RuntimeError):
                row.states.transition_to("DONE")
            assert Stamped.objects.get().status == "NEW"


class TestRecordsThatFillThemselves:
    def test_what_is_returned_is_what_is_stored(self):
        row = Stamping.objects.create()
        record = row.states.transition_to("DONE")
        stored = row.states.history.get()
        assert (record.uid, record.at) == (stored.uid, stored.at)
        assert record.at is not None

    def test_the_database_may_fill_a_field(self):
        row = Defaulting.objects.create()
        row.states.transition_to("DONE")
        assert row.states.history.get().source == "web"
        row.states.transition_to("NEW", record={"source": "till"})
        assert row.states.history.first().source == "till"
        assert Defaulting.states.bulk_transition(Defaulting.objects.all(), "DONE").moved == 1


class TestExpected:
    @pytest.mark.parametrize("expected", [1.5, ("NEW",), ["NEW"], object(), True, False])
    def test_of_another_kind_is_refused(self, expected):
        row = Stamped.objects.create()
        with pytest.raises(TypeError, match="expected must be a state or a number of transitions"):
            row.states.transition_to("DONE", expected=expected)
        assert Stamped.objects.get().status == "NEW"

    def test_guards_are_asked_of_the_row_as_it_is(self):
        document = Document.objects.create(words=3)
        stale = Document.objects.get()
        document.states.transition_to("REVIEW")
        stale.approved = False
        with pytest.raises(TransitionBlocked):
            stale.states.transition_to("PUBLISHED", expected="REVIEW")


@pytest.mark.django_db(transaction=True)
class TestConnections:
    def test_a_receiver_waits_for_a_commit_made_by_hand(self, connect):
        row = Stamped.objects.create()
        told = []
        connect(transition_committed, lambda **kwargs: told.append(kwargs["to_status"]), Stamped)
        transaction.set_autocommit(False)
        try:
            row.states.transition_to("DONE")
            transaction.commit()
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)
        assert (row.status, Stamped.objects.get().status) == ("DONE", "DONE")

    @only_postgresql
    def test_an_altered_table_does_not_block_a_connection(self, caplog):
        row = Stamped.objects.create()
        row.states.transition_to("DONE")
        other = connections["default"].copy()
        audit = Stamped.states.transition_model._meta.db_table
        try:
            with other.cursor() as cursor:
                cursor.execute(f"ALTER TABLE {audit} ALTER sequence TYPE bigint")
                cursor.execute("ALTER TABLE lab_stamped ALTER status_sequence TYPE bigint")
            for state in ("NEW", "DONE", "NEW"):
                row.states.transition_to(state)
        finally:
            with other.cursor() as cursor:
                cursor.execute(f"ALTER TABLE {audit} ALTER sequence TYPE integer")
                cursor.execute("ALTER TABLE lab_stamped ALTER status_sequence TYPE integer")
            other.close()
            connection.close()
        assert row.states.history.count() == 4
        assert "after a table was altered" not in caplog.text  # each result is cast, so that the plans still fit


@pytest.mark.skipif(connection.vendor == "postgresql", reason="PostgreSQL keeps instants, not local times")
def test_times_are_right_in_a_database_that_keeps_local_time(monkeypatch):
    there = connections["default"]
    monkeypatch.setitem(vars(there), "timezone", zoneinfo.ZoneInfo("America/New_York"))
    monkeypatch.setitem(vars(there), "timezone_name", "America/New_York")
    row = Stamped.objects.create()
    record = row.states.transition_to("DONE")
    row.refresh_from_db()
    assert abs(timezone.now() - record.transitioned_at) < datetime.timedelta(minutes=1)
    assert record.transitioned_at == row.status_changed_at == row.states.history.get().transitioned_at
    Stamped.states.bulk_transition(Stamped.objects.all(), "NEW")
    assert abs(timezone.now() - row.states.history.first().transitioned_at) < datetime.timedelta(minutes=1)
    assert row.states.status_at(timezone.now()) == "NEW"


class TestSmallThings:
    def test_machines_and_rows_can_be_pickled_and_copied(self):
        row = Stamped.objects.create()
        assert pickle.loads(pickle.dumps(Stamped.states)) is Stamped.states  # noqa: S301
        assert copy.deepcopy(Stamped.states) is Stamped.states
        assert pickle.loads(pickle.dumps(row.states)).current == "NEW"  # noqa: S301

    @isolate_apps("lab")
    def test_an_index_that_the_model_declares_itself_is_enough(self):
        indexes = [models.Index(fields=["status"])]
        order = lab_model(states=StateMachine([("A", "A")], "A", {}), meta={"indexes": indexes})
        assert [index.fields for index in order._meta.indexes] == [["status"]]

    def test_an_expression_in_update_is_read_back(self):
        row = Stamped.objects.create(name="a")
        row.states.transition_to("DONE", update={"name": F("status")})
        assert row.name == "DONE"
