"""Many rows at once: each recorded, judged under its lock, in few statements, whatever else touches them."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, models, transaction
from django.db.models import Count
from django.test.utils import CaptureQueriesContext

from lab.models import Audited, Car, Document, Hooked, Invoice, Parcel, RacingCar, Reasoned, Stamped, Vehicle
from statemachine_fields import UnknownState, transition_context
from statemachine_fields.machine.bulk import Refusal
from statemachine_fields.signals import post_transition
from tests.patience import PATIENCE
from tests.sessions import wait_until_blocked
from tests.together import together

pytestmark = pytest.mark.django_db

POSTGRESQL = connection.vendor == "postgresql"


def rows(count: int, status: str = "NEW") -> models.QuerySet[Stamped]:
    Stamped.objects.bulk_create(Stamped(status=status, name=str(number)) for number in range(count))
    return Stamped.objects.all()


class TestMoving:
    def test_moves_and_records_every_row(self):
        result = Stamped.states.bulk_transition(rows(7), "DONE", metadata={"by": "cron"})
        assert (result.moved, result.refused, result.refusals) == (7, 0, [])
        for row in Stamped.objects.all():
            record = row.states.history.get()
            assert (row.status, row.status_sequence) == ("DONE", 1)
            assert (record.from_status, record.to_status, record.sequence) == ("NEW", "DONE", 1)
            assert record.metadata == {"by": "cron"}
            assert record.transitioned_at == row.status_changed_at

    def test_refuses_with_the_reason_what_may_not_move(self):
        rows(2)
        failed = Stamped.objects.create(status="FAILED")
        result = Stamped.states.bulk_transition(Stamped.objects.all(), "DONE")
        assert result.moved == 2
        assert result.refusals == [Refusal(failed.pk, "FAILED", "There is no move from Failed to Done.")]
        assert failed.states.history.count() == 0

    def test_goes_through_all_batches(self):
        result = Stamped.states.bulk_transition(rows(25), "DONE", batch_size=10)
        assert result.moved == 25
        assert Stamped.objects.filter(status="DONE").count() == 25
        assert Stamped.states.transition_model.objects.count() == 25

    def test_a_last_batch_that_is_full_ends_it_too(self):
        assert Stamped.states.bulk_transition(rows(20), "DONE", batch_size=10).moved == 20

    def test_of_nothing_does_nothing(self):
        assert Stamped.states.bulk_transition(Stamped.objects.none(), "DONE").moved == 0
        assert Stamped.states.bulk_transition(Stamped.objects.filter(name="x"), "DONE").moved == 0

    def test_moves_only_the_rows_of_the_queryset(self):
        rows(4)
        assert Stamped.states.bulk_transition(Stamped.objects.filter(name__in=["1", "2"]), "DONE").moved == 2
        assert sorted(Stamped.objects.filter(status="DONE").values_list("name", flat=True)) == ["1", "2"]

    def test_rows_in_different_states_keep_their_own_past(self):
        parcels = [Parcel.objects.create(status=status) for status in ("IN_TRANSIT", "SCANNED")]
        assert Parcel.states.bulk_transition(Parcel.objects.all(), "SCANNED").moved == 2
        assert [p.states.history.get().from_status for p in parcels] == ["IN_TRANSIT", "SCANNED"]

    def test_auto_now_fields_are_written(self):
        row = Stamped.objects.create()
        Stamped.states.bulk_transition(Stamped.objects.all(), "DONE")
        assert Stamped.objects.get().modified > row.modified

    def test_auto_now_fields_are_written_as_they_store_their_values(self, monkeypatch):
        class YearField(models.DateTimeField):
            def get_db_prep_value(self, value, connection, prepared=False):
                return super().get_db_prep_value(value.replace(month=1, day=1), connection, prepared)

        row = Stamped.objects.create()
        Stamped.objects.update(modified=row.modified.replace(year=2001))
        monkeypatch.setattr(Stamped._meta.get_field("modified"), "__class__", YearField)
        Stamped.states.bulk_transition(Stamped.objects.all(), "DONE")
        stored = Stamped.objects.get().modified
        assert (stored.year, stored.month, stored.day) == (row.modified.year, 1, 1)

    def test_the_second_machine_of_a_model(self):
        Invoice.objects.bulk_create([Invoice(), Invoice()])
        assert Invoice.payment.bulk_transition(Invoice.objects.all(), "PAID").moved == 2
        assert Invoice.payment.transition_model.objects.count() == 2
        assert set(Invoice.objects.values_list("status", "payment_status")) == {("DRAFT", "PAID")}

    @pytest.mark.parametrize("model", [Car, RacingCar, Vehicle])
    def test_multi_table_children_and_proxies(self, model):
        for _ in range(3):
            Car.objects.create()
        assert Car.states.bulk_transition(model.objects.all(), "MOVING").moved == 3
        assert Vehicle.states.transition_model.objects.count() == 3

    def test_audit_ids_ascend_and_are_version_7(self):
        Stamped.states.bulk_transition(rows(30), "DONE", batch_size=10)
        ids = list(Stamped.states.transition_model.objects.order_by("instance_id").values_list("id", flat=True))
        assert ids == sorted(ids)
        assert {made.version for made in ids} == {7}

    def test_the_context_is_recorded(self):
        with transition_context(actor="cron"):
            Stamped.states.bulk_transition(rows(1), "DONE")
        assert Stamped.objects.get().states.history.get().metadata == {"actor": "cron"}

    def test_the_user_is_recorded_in_as_few_statements(self, django_user_model, django_assert_num_queries):
        user = django_user_model.objects.create_superuser("ada")
        queryset = rows(3)
        with CaptureQueriesContext(connection) as without:
            Stamped.states.bulk_transition(queryset.filter(name="0"), "DONE")
        with django_assert_num_queries(len(without)):
            assert Stamped.states.bulk_transition(queryset, "DONE", {"why": "x"}, user=user).moved == 2
        records = Stamped.states.transition_model.objects.filter(metadata__why="x")
        assert [record.metadata["actor"]["text"] for record in records] == ["ada", "ada"]

    def test_under_an_event_loop(self, transactional_db):
        rows(3)

        async def main():
            try:
                return await Stamped.states.abulk_transition(Stamped.objects.all(), "DONE")
            finally:
                await sync_to_async(connections.close_all)()

        assert asyncio.run(main()).moved == 3


class TestQuerysets:
    @pytest.mark.parametrize(
        "choose",
        [
            lambda all_rows: all_rows.order_by("-name")[:3],
            lambda all_rows: all_rows.filter(status_transitions__isnull=True).distinct(),
            lambda all_rows: all_rows.annotate(moves=Count("status_transitions")).filter(moves=0),
            lambda all_rows: all_rows.filter(name__lt="5") | all_rows.filter(name__gt="5"),
            lambda all_rows: all_rows.filter(name="1").union(all_rows.filter(name="2")),
            lambda all_rows: all_rows.only("name").defer("status"),
            lambda all_rows: all_rows.exclude(name="3").reverse(),
        ],
        ids=["sliced", "distinct", "grouped", "or", "union", "deferred", "reversed"],
    )
    def test_of_any_kind_are_taken(self, choose):
        queryset = choose(rows(9))
        expected = len(queryset)
        assert Stamped.states.bulk_transition(queryset, "DONE", batch_size=4).moved == expected
        assert Stamped.objects.filter(status="DONE").count() == expected

    def test_a_manager_stands_for_all_rows(self):
        rows(2)
        assert Stamped.states.bulk_transition(Stamped.objects, "DONE").moved == 2

    @pytest.mark.parametrize(
        ("queryset", "words"),
        [
            (Audited.objects.all(), r"lab\.Stamped\.states is a machine of lab\.Stamped, got lab\.Audited"),
            ([], "needs a queryset, got list"),
            (Stamped.objects.values("pk"), "needs a queryset of rows"),
        ],
        ids=["of another model", "of no kind", "of values"],
    )
    def test_that_are_none_of_its_rows_are_refused(self, queryset, words):
        with pytest.raises(TypeError, match=words):
            Stamped.states.bulk_transition(queryset, "DONE")

    @pytest.mark.django_db(databases=["default", "other"])
    def test_of_another_database_stay_there(self):
        Stamped.objects.using("other").create()
        with CaptureQueriesContext(connections["default"]) as queries:
            assert Stamped.states.bulk_transition(Stamped.objects.using("other"), "DONE").moved == 1
        assert len(queries) == 0
        assert Stamped.states.transition_model.objects.using("other").count() == 1


class TestBadInput:
    def test_an_unknown_state(self):
        with pytest.raises(UnknownState):
            Stamped.states.bulk_transition(rows(1), "DNOE")

    def test_metadata_that_cannot_be_stored(self):
        with pytest.raises(TypeError, match="metadata"):
            Stamped.states.bulk_transition(rows(1), "DONE", metadata={"x": object()})
        assert Stamped.objects.get().status == "NEW"

    def test_a_batch_of_nothing(self):
        with pytest.raises(ValueError, match="batch_size must be at least 1"):
            Stamped.states.bulk_transition(rows(1), "DONE", batch_size=0)


class TestStatements:
    def count(self, number: int) -> int:
        queryset = rows(number)
        with CaptureQueriesContext(connection) as queries:
            Stamped.states.bulk_transition(queryset, "DONE", batch_size=400)
        return len(queries)

    def test_are_as_many_for_few_rows_as_for_many(self):
        assert self.count(3) == self.count(100)

    def test_on_postgresql_a_batch_is_one(self):
        if not POSTGRESQL:
            pytest.skip("other databases need a transaction of several statements")
        assert self.count(300) == 1


class TestOneByOne:
    def test_guards_are_asked(self):
        Document.objects.create(words=3)
        empty = Document.objects.create()
        result = Document.states.bulk_transition(Document.objects.all(), "REVIEW")
        assert (result.moved, result.refusals) == (1, [Refusal(empty.pk, "DRAFT", "There is no text.")])

    def test_permissions_that_depend_on_the_row_are_asked_of_each(self, django_user_model):
        user = django_user_model.objects.create_user("ada")
        own, other = (Document.objects.create(words=3, author=author) for author in ("ada", "bob"))
        result = Document.states.bulk_transition(Document.objects.all(), "REVIEW", user=user)
        assert result.moved == 1
        assert result.refusals == [Refusal(other.pk, "DRAFT", "You do not have the permission for this move.")]
        assert own.states.history.get().metadata["actor"]["text"] == "ada"

    def test_a_permission_that_the_user_lacks_refuses_all(self, django_user_model):
        user = django_user_model.objects.create_user("ada")
        Document.objects.create(words=3, status="REVIEW")
        assert Document.states.bulk_transition(Document.objects.all(), "PUBLISHED", user=user).refused == 1

    def test_own_saves_run(self):
        Hooked.objects.create()
        assert Hooked.states.bulk_transition(Hooked.objects.all(), "DONE").moved == 1
        assert Hooked.objects.get().saves == 2

    def test_receivers_are_told(self, heard):
        rows(3)
        told = heard(post_transition, sender=Stamped)
        assert Stamped.states.bulk_transition(Stamped.objects.all(), "DONE", batch_size=2).moved == 3
        assert len(told) == 3

    def test_fields_of_a_transition_base_get_their_defaults(self):
        Reasoned.objects.create()
        assert Reasoned.states.bulk_transition(Reasoned.objects.all(), "DONE").moved == 1
        assert Reasoned.objects.get().states.history.get().reason == "none given"

    def test_fields_of_a_transition_base_get_what_is_given(self):
        Reasoned.objects.create()
        Reasoned.states.bulk_transition(Reasoned.objects.all(), "DONE", record={"reason": "it was time"})
        assert Reasoned.objects.get().states.history.get().reason == "it was time"
        with pytest.raises(TypeError, match="record= names reson"):
            Reasoned.states.bulk_transition(Reasoned.objects.all(), "DONE", record={"reson": "x"})

    def test_what_may_not_move_is_refused(self):
        hooked = Hooked.objects.create(status="DONE")
        result = Hooked.states.bulk_transition(Hooked.objects.all(), "DONE")
        assert result.refusals == [Refusal(hooked.pk, "DONE", "There is no move from Done to Done.")]


@pytest.mark.django_db(transaction=True)
class TestConcurrency:
    def test_a_row_that_moves_meanwhile_is_judged_where_it_then_is(self):
        if not POSTGRESQL:
            pytest.skip("how to see that somebody waits for a lock is written for PostgreSQL")
        rows(3)
        first = Stamped.objects.order_by("pk").first()
        results = []
        with transaction.atomic():
            first.states.transition_to("FAILED")
            thread = threading.Thread(target=self.bulk, args=(results,))
            thread.start()
            wait_until_blocked()
        thread.join(PATIENCE)
        (result,) = results
        assert (result.moved, [refusal.pk for refusal in result.refusals]) == (2, [first.pk])
        assert [t.to_status for t in first.states.history] == ["FAILED"]

    def test_a_row_that_no_longer_matches_the_filter_once_it_is_locked_stays(self):
        if not POSTGRESQL:
            pytest.skip("how to see that somebody waits for a lock is written for PostgreSQL")
        row = rows(1).get()
        results = []
        with transaction.atomic():
            Stamped.objects.update(name="taken")
            thread = threading.Thread(target=self.bulk, args=(results, Stamped.objects.filter(name="0")))
            thread.start()
            wait_until_blocked()
        thread.join(PATIENCE)
        assert (results[0].moved, results[0].refused, row.states.history.count()) == (0, 0, 0)

    def test_no_row_of_a_batch_changes_while_the_guards_of_another_are_asked(self, monkeypatch):
        if not POSTGRESQL:
            pytest.skip("elsewhere one lock holds the whole database")
        Document.objects.bulk_create(Document(words=3) for _ in range(2))
        free = []

        def look():
            with transaction.atomic():
                free.append(len(Document.objects.select_for_update(skip_locked=True)))
            connection.close()

        def has_text(document):
            thread = threading.Thread(target=look)
            thread.start()
            thread.join(PATIENCE)

        monkeypatch.setattr(Document, "has_text", has_text)
        assert Document.states.bulk_transition(Document.objects.all(), "REVIEW").moved == 2
        assert free == [0, 0]

    def test_two_at_once_move_every_row_once_and_do_not_deadlock(self):
        rows(300)
        results = []
        together(*[lambda: self.bulk(results)] * 3)
        assert sum(result.moved for result in results) == 300
        assert Stamped.states.transition_model.objects.count() == 300

    def bulk(self, results, queryset=None):
        queryset = Stamped.objects.all() if queryset is None else queryset
        try:
            results.append(Stamped.states.bulk_transition(queryset, "DONE", batch_size=50))
        finally:
            connections.close_all()

    def test_an_error_keeps_the_batches_before_it(self):
        rows(25)

        def broken(execute, sql, params, many, context):
            if "INSERT" in sql and Stamped.states.transition_model.objects.count() >= 20:
                raise RuntimeError("power cut")
            return execute(sql, params, many, context)

        with pytest.raises(RuntimeError), connection.execute_wrapper(broken):
            Stamped.states.bulk_transition(Stamped.objects.all(), "DONE", batch_size=10)
        assert Stamped.objects.filter(status="DONE").count() == 20
        assert Stamped.states.transition_model.objects.count() == 20


def test_memory_does_not_grow_with_the_number_of_rows():
    def peak(count: int) -> int:
        queryset = rows(count)
        tracemalloc.start()
        Stamped.states.bulk_transition(queryset, "DONE", batch_size=400)
        _now, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        Stamped.objects.all().delete()
        return most

    peak(400)
    assert peak(4000) < 2 * peak(400) + 100_000  # a row that moved leaves nothing behind
