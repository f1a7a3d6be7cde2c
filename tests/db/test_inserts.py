"""The time that rows of one `bulk_create()` share, and how it gets into them."""

from __future__ import annotations

import copy
import datetime
import pickle
import threading
from contextlib import contextmanager

import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, NotSupportedError, connection, connections, models, transaction
from django.test.utils import CaptureQueriesContext, isolate_apps
from django.utils import timezone

from lab.models import ByHand, Chore, Coupon, Lot
from statemachine_fields import State, StateMachine, StateMachineError
from statemachine_fields.db.inserts import CALL
from tests.declared import lab_model
from tests.patience import PATIENCE

pytestmark = pytest.mark.django_db

POSTGRESQL = connection.vendor == "postgresql"
only_postgresql = pytest.mark.skipif(not POSTGRESQL, reason="only PostgreSQL takes a column as an array")

CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
DAY = datetime.timedelta(days=1)
#: Far from any clock that is right.
ELSEWHEN = datetime.datetime(2031, 5, 4, 3, 2, 1, 654321, tzinfo=datetime.UTC)


@contextmanager
def statements(using="default"):
    """Collect the statements that are sent meanwhile, without those that open and close a transaction."""
    found: list[str] = []
    with CaptureQueriesContext(connections[using]) as queries:
        yield found
    found += [each["sql"] for each in queries if each["sql"] not in ("BEGIN", "COMMIT")]


@contextmanager
def clock_set_to(when, using="default"):
    """Let the database's clock say something else. Python's goes on."""

    def say(execute, sql, params, many, context):
        return execute(sql.replace("clock_timestamp()", f"'{when.isoformat()}'::timestamptz"), params, many, context)

    with connections[using].execute_wrapper(say):
        yield


def lots(*states, **values):
    return [Lot(status=state, **values) for state in states]


def stored(model, using="default"):
    return list(model.objects.using(using).order_by("pk"))


def times(row):
    return row.status_changed_at, row.status_next_at


@only_postgresql
class TestStatements:
    @pytest.mark.parametrize("model", [Lot, ByHand])
    def test_are_a_look_at_the_clock_and_an_insert_of_arrays(self, model):
        with statements() as sent:
            model.objects.bulk_create([model(), model(), model()])
        assert sent[0] == CLOCK
        assert [text.split()[0] for text in sent] == ["SELECT", "INSERT"]
        assert "SELECT * FROM UNNEST(" in sent[1]
        assert "clock_timestamp()" not in sent[1]

    def test_of_a_row_alone_are_the_insert(self):
        with statements() as sent:
            (row,) = Lot.objects.bulk_create([Lot()])
        assert len(sent) == 1
        assert "clock_timestamp()" in sent[0]
        assert times(row) == times(Lot.objects.get())

    def test_of_calls_of_a_row_each_are_their_inserts(self):
        with statements() as sent:
            for _ in range(3):
                Lot.objects.bulk_create([Lot()])
        assert [text.split()[0] for text in sent] == ["INSERT"] * 3

    def test_of_a_save_are_the_insert(self):
        with statements() as sent:
            Lot.objects.create()
            Lot().save()
        assert [text.split()[0] for text in sent] == ["INSERT"] * 2
        assert "clock_timestamp()" in sent[0]

    def test_of_many_batches_ask_the_clock_once(self):
        with statements() as sent:
            rows = Lot.objects.bulk_create(lots(*["OPEN"] * 7), batch_size=3)
        assert [text.split()[0] for text in sent] == ["SELECT", "INSERT", "INSERT", "INSERT"]
        assert len({times(row) for row in rows}) == 1

    def test_of_rows_with_and_without_a_key_ask_the_clock_once(self):
        with statements() as sent:
            rows = Lot.objects.bulk_create([Lot(pk=1001), Lot(), Lot(pk=1002), Lot()], batch_size=1)
        assert [text.split()[0] for text in sent] == ["SELECT", *["INSERT"] * 4]
        assert len({times(row) for row in rows}) == 1

    def test_each_call_asks_the_clock_anew(self):
        with transaction.atomic(), transaction.atomic(savepoint=False):
            first = Lot.objects.bulk_create(lots("OPEN", "OPEN"))
            second = Lot.objects.bulk_create(lots("OPEN", "OPEN"))
        assert first[0].status_changed_at < second[0].status_changed_at

    def test_in_a_transaction_it_is_the_time_of_the_call(self):
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(0.01), now()")
                (_, began) = cursor.fetchone()
            (row, _) = Lot.objects.bulk_create(lots("OPEN", "OPEN"))
        assert row.status_changed_at - began >= datetime.timedelta(seconds=0.01)

    def test_a_call_that_was_refused_leaves_no_time_behind(self):
        with pytest.raises(StateMachineError), transaction.atomic():
            Lot.objects.bulk_create(lots("OPEN", "NOWHERE"))
        with clock_set_to(ELSEWHEN):
            rows = Lot.objects.bulk_create(lots("OPEN", "OPEN"))
        assert {row.status_changed_at for row in rows} == {ELSEWHEN}

    def test_a_call_that_came_to_no_row_leaves_no_time_behind(self):
        Lot()._prepare_related_fields_for_save(operation_name="bulk_create")
        with clock_set_to(ELSEWHEN):
            rows = Lot.objects.bulk_create(lots("OPEN", "OPEN"))
        assert {row.status_changed_at for row in rows} == {ELSEWHEN}

    def test_a_call_that_failed_leaves_no_time_behind(self):
        made = [Coupon(code="a"), Coupon(code="a")]
        with pytest.raises(IntegrityError), transaction.atomic():
            Coupon.objects.bulk_create(made)
        made[1].code = "b"
        with clock_set_to(ELSEWHEN):
            rows = Coupon.objects.bulk_create(made)
        assert {row.status_changed_at for row in rows} == {ELSEWHEN}

    def test_instances_that_no_call_has_prepared_have_times_of_their_own(self):
        fields = [field for field in Lot._meta.concrete_fields if not field.primary_key]
        with statements() as sent:
            Lot._base_manager._insert(lots("OPEN", "OPEN"), fields=fields, using="default")
        assert [text.split()[0] for text in sent] == ["INSERT"]
        assert all(row.status_next_at >= row.status_changed_at for row in stored(Lot))

    def test_a_save_of_what_a_call_has_inserted_has_its_own_time(self):
        (row, _) = Lot.objects.bulk_create(lots("OPEN", "OPEN"))
        row.pk, row._state.adding = None, True
        with clock_set_to(ELSEWHEN):
            row.save()
        assert row.status_next_at == ELSEWHEN
        assert Lot.objects.get(pk=row.pk).status_next_at == ELSEWHEN


@only_postgresql
class TestTheClock:
    def test_is_that_of_the_database(self):
        with clock_set_to(ELSEWHEN):
            rows = Lot.objects.bulk_create(lots("OPEN", "SOLD", "VOID"))
        expected = [(ELSEWHEN, ELSEWHEN), (ELSEWHEN, ELSEWHEN + DAY), (ELSEWHEN, None)]
        assert [times(row) for row in rows] == expected
        assert [times(row) for row in stored(Lot)] == expected

    @pytest.mark.django_db(databases=["default", "other"])
    def test_is_that_of_the_database_that_is_written(self):
        with clock_set_to(ELSEWHEN, "other"), statements() as here, statements("other") as there:
            rows = Lot.objects.using("other").bulk_create(lots("OPEN", "OPEN"))
        assert here == []
        assert len(there) == 2
        assert {times(row) for row in rows} == {(ELSEWHEN, ELSEWHEN)}
        assert [times(row) for row in stored(Lot, "other")] == [(ELSEWHEN, ELSEWHEN)] * 2
        assert {row._state.db for row in rows} == {"other"}

    @pytest.mark.parametrize(
        "when",
        [
            datetime.datetime(2026, 10, 24, 23, 30, tzinfo=datetime.UTC),  # a day of 25 hours follows
            datetime.datetime(2026, 10, 25, 0, 30, tzinfo=datetime.UTC),  # 02:30 for the first time
            datetime.datetime(2026, 10, 25, 1, 30, tzinfo=datetime.UTC),  # 02:30 again
        ],
        ids=["before", "first", "second"],
    )
    def test_is_right_without_time_zones_when_the_hour_comes_twice(self, settings, when):
        settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
        given = datetime.datetime(2026, 12, 24, 18)  # noqa: DTZ001 - as the project's are
        with clock_set_to(when):
            rows = Lot.objects.bulk_create([*lots("OPEN", "SOLD"), Lot(status_next_at=given)])
        assert not any(timezone.is_aware(row.status_changed_at) for row in rows)
        assert [times(row) for row in rows] == [times(row) for row in stored(Lot)]
        settings.USE_TZ, settings.TIME_ZONE = True, "UTC"
        pinned = datetime.datetime(2026, 12, 24, 17, tzinfo=datetime.UTC)
        assert [times(row) for row in stored(Lot)] == [(when, when), (when, when + DAY), (when, pinned)]

    @pytest.mark.parametrize("when", ["2026-10-25T02:30", "2026-03-29T02:30", "2026-07-01T02:30"])
    def test_without_time_zones_a_given_time_is_that_which_a_save_writes(self, settings, when):
        settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
        naive = datetime.datetime.fromisoformat(when)
        saved = Lot.objects.create(status_next_at=naive)
        rows = Lot.objects.bulk_create([Lot(), Lot(status_next_at=naive)])
        settings.USE_TZ, settings.TIME_ZONE = True, "UTC"
        found = Lot.objects.in_bulk()
        assert found[saved.pk].status_next_at == found[rows[1].pk].status_next_at

    def test_is_right_for_another_time_zone(self, settings):
        settings.TIME_ZONE = "Asia/Tokyo"
        with timezone.override("America/New_York"), clock_set_to(ELSEWHEN):
            rows = Lot.objects.bulk_create(lots("OPEN", "SOLD"))
        assert [times(row) for row in rows] == [(ELSEWHEN, ELSEWHEN), (ELSEWHEN, ELSEWHEN + DAY)]


class TestRows:
    def test_have_times_by_their_states(self):
        given = timezone.now() + 3 * DAY
        before = timezone.now()
        rows = Lot.objects.bulk_create([*lots("OPEN", "SOLD", "VOID"), Lot(status_next_at=given)])
        assert [times(row) for row in rows] == [times(row) for row in stored(Lot)]
        opened, sold, void, pinned = rows
        moment = datetime.timedelta(seconds=1)
        assert abs(opened.status_next_at - opened.status_changed_at) < moment
        assert abs(sold.status_next_at - sold.status_changed_at - DAY) < moment
        assert void.status_next_at is None
        assert pinned.status_next_at == given
        assert [row.status_next_at_pinned for row in rows] == [False, False, False, True]
        assert all(before - moment < row.status_changed_at < timezone.now() + moment for row in rows)

    def test_that_are_all_due_never_or_given(self):
        void = Lot.objects.bulk_create(lots("VOID", "VOID"))
        given = [timezone.now() + DAY, timezone.now() + 2 * DAY]
        pinned = Lot.objects.bulk_create([Lot(status_next_at=when) for when in given])
        assert [row.status_next_at for row in [*void, *pinned]] == [None, None, *given]
        assert [times(row) for row in stored(Lot)] == [times(row) for row in [*void, *pinned]]

    def test_run_when_the_time_has_come(self):
        Lot.objects.bulk_create(lots("OPEN", "SOLD", "VOID", "OPEN"))
        assert [row.status for row in Lot.states.due()] == ["OPEN", "OPEN"]

    def test_that_exist_are_left_alone(self):
        (kept,) = Coupon.objects.bulk_create([Coupon(code="a")])
        with statements() as sent:
            made = Coupon.objects.bulk_create([Coupon(code="a"), Coupon(code="b")], ignore_conflicts=True)
        old, new = stored(Coupon)
        assert times(old) == times(kept)
        assert new.status_changed_at > old.status_changed_at
        assert [row.status_next_at for row in made] == [None, None]  # Django is told of neither
        assert not POSTGRESQL or "UNNEST" in sent[1]

    def test_that_exist_are_read_back_when_they_are_updated(self):
        if not connection.features.supports_update_conflicts_with_target:
            pytest.skip("names no columns")
        kept = Lot.objects.bulk_create(lots("OPEN", "OPEN"))
        made = [Lot(pk=kept[0].pk, amount=7), Lot(pk=kept[1].pk + 1000, amount=8)]
        with statements() as sent:
            Lot.objects.bulk_create(made, update_conflicts=True, update_fields=["amount"], unique_fields=["pk"])
        assert [times(row) for row in made] == [times(Lot.objects.get(pk=row.pk)) for row in made]
        assert times(made[0]) == times(kept[0])
        assert times(made[1]) > times(kept[0])
        assert Lot.objects.get(pk=kept[0].pk).amount == 7
        assert not POSTGRESQL or "UNNEST" in sent[1]

    @pytest.mark.django_db(transaction=True)
    def test_of_an_asynchronous_call(self):
        async def create():
            return await Lot.objects.abulk_create(lots("OPEN", "SOLD"))

        rows = async_to_sync(create)()
        assert [times(row) for row in rows] == [times(row) for row in stored(Lot)]
        if POSTGRESQL:
            assert rows[1].status_next_at - rows[0].status_next_at == DAY

    def test_of_copies_get_times_of_their_own(self):
        first = Lot.objects.bulk_create([Lot(status_next_at=timezone.now() + DAY), Lot()])
        copies = [copy.copy(row) for row in first]
        for row in copies:
            row.pk, row._state.adding = None, True
        second = Lot.objects.bulk_create(copies)
        assert [times(row) for row in [*first, *second]] == [times(row) for row in stored(Lot)]
        assert all(new.status_changed_at > old.status_changed_at for new, old in zip(second, first, strict=True))
        assert second[0].status_next_at < first[0].status_next_at

    def test_are_pickled_and_copied_without_the_call(self):
        (row, _) = Lot.objects.bulk_create(lots("OPEN", "OPEN"))
        assert b"statemachine_fields.db.inserts" not in pickle.dumps(row)
        for other in (pickle.loads(pickle.dumps(row)), copy.deepcopy(row)):  # noqa: S301 - it is ours
            assert vars(other._state)[CALL] is None
            assert times(other) == times(row)
            other.pk, other._state.adding = None, True
            (made, _) = Lot.objects.bulk_create([other, Lot()])
            assert made.status_changed_at > row.status_changed_at

    def test_of_what_is_in_several_tables_are_refused_by_django(self):
        from lab.models import Sensor

        with pytest.raises((ValueError, NotSupportedError), match="multi-table"):
            Sensor.objects.bulk_create([Sensor(), Sensor()])

    @only_postgresql
    @pytest.mark.django_db(transaction=True)
    def test_of_another_thread_are_not_of_the_call(self):
        sent: list[list[str]] = []

        def elsewhere():
            with statements() as found:
                Lot.objects.bulk_create([Lot()])
            sent.append(found)
            connections.close_all()

        Lot()._prepare_related_fields_for_save(operation_name="bulk_create")  # a call that is about to begin
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(PATIENCE)
        assert [text.split()[0] for text in sent[0]] == ["INSERT"]

    @pytest.mark.django_db(transaction=True)
    @isolate_apps("lab")
    def test_of_several_machines_share_a_time(self):
        def machine(seconds, field):
            states = [State("A", timeout_after=seconds, timeout_to="B"), ("B", "B")]
            return StateMachine(states, "A", {"A": ["B"]}, field=field)

        model = lab_model(
            name="Twofold",
            id=models.BigAutoField(primary_key=True),
            one=machine(60, "status"),
            two=machine(90, "phase"),
        )
        with connection.schema_editor() as editor:
            editor.create_model(model)
        try:
            with statements() as sent:
                rows = model.objects.bulk_create([model(), model(phase="B"), model()])
            found = stored(model)
        finally:
            with connection.schema_editor() as editor:
                editor.delete_model(model)
        names = ("status_changed_at", "status_next_at", "phase_changed_at", "phase_next_at")
        values = [[getattr(row, name) for name in names] for row in rows]
        assert values == [[getattr(row, name) for name in names] for row in found]
        assert [each[3] is None for each in values] == [False, True, False]
        if POSTGRESQL:
            assert [text.split()[0] for text in sent] == ["SELECT", "INSERT"]
            when = values[0][0]
            later = [when + datetime.timedelta(seconds=seconds) for seconds in (60, 90)]
            assert values[0] == [when, later[0], when, later[1]]


class TestOtherDatabases:
    @pytest.mark.skipif(POSTGRESQL, reason="has arrays")
    def test_compute_the_time_of_each_row(self):
        with statements() as sent:
            rows = Chore.objects.bulk_create([Chore(), Chore()])
        assert [text.split()[0] for text in sent] == ["INSERT"]
        assert [times(row) for row in rows if row.pk] == [times(row) for row in stored(Chore) if rows[0].pk]
