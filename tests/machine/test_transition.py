"""The write path: judged by the row, both or neither, and nothing left behind by a move that failed."""

from __future__ import annotations

import datetime
import decimal
import logging
import pickle
import uuid

import pytest
from django.db import DatabaseError, connection, connections, models, transaction
from django.db.models.signals import post_save, pre_save
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from lab.models import Audited, Car, Derived, Hooked, Invoice, Kept, Lazy, Parcel, Reasoned, Stamped, Ticket
from statemachine_fields import InvalidStateTransition, RowMissing, StateMachineError, UnknownState

pytestmark = pytest.mark.django_db


def stored(row: models.Model, name: str = "status") -> object:
    return type(row)._base_manager.values_list(name, flat=True).get(pk=row.pk)


def memory(row: models.Model) -> dict[str, object]:
    return {**{name: value for name, value in vars(row).items() if name != "_state"}, **vars(row._state)}


@pytest.fixture
def receivers(connect):
    """Connect receivers to `Audited`."""
    return lambda signal, receiver: connect(signal, receiver, Audited)


def nested(levels):
    """Return a dict with so many levels of dicts and lists."""
    metadata = {}
    for level in range(levels - 2, -1, -1):
        metadata = [metadata] if level % 2 else {"a": metadata}
    return metadata


class TestJudgedByTheRow:
    def test_a_stale_instance_moves_from_where_the_row_is(self, row):
        stale = Stamped.objects.get()
        row.states.transition_to("DONE")
        record = stale.states.transition_to("NEW")
        assert (record.from_status, record.sequence) == ("DONE", 2)
        assert (stale.status, stale.status_sequence) == ("NEW", 2)

    def test_a_stale_instance_is_refused_with_the_real_status(self, row):
        stale = Stamped.objects.get()
        row.states.transition_to("DONE")
        with pytest.raises(InvalidStateTransition) as caught:
            stale.states.transition_to("FAILED")
        assert (caught.value.from_status, caught.value.allowed) == ("DONE", ["NEW"])
        assert stale.status == "NEW"
        assert row.states.history.count() == 1

    def test_an_assigned_status_does_not_count(self, row):
        row.status = "DONE"
        with pytest.raises(InvalidStateTransition):
            row.states.transition_to("NEW")

    def test_a_status_that_is_no_longer_declared_has_no_moves(self, row):
        with connection.cursor() as cursor:
            cursor.execute("UPDATE lab_stamped SET status = 'GONE'")
        with pytest.raises(InvalidStateTransition) as caught:
            row.states.transition_to("DONE")
        assert caught.value.from_status == "GONE"

    def test_a_state_may_be_entered_again(self):
        parcel = Parcel.objects.create(status="SCANNED")
        records = [parcel.states.transition_to("SCANNED") for _ in range(3)]
        assert [record.sequence for record in records] == [1, 2, 3]
        assert parcel.states.history.count() == 3

    def test_an_enum_member_is_a_target(self):
        ticket = Ticket.objects.create()
        record = ticket.states.transition_to(Ticket.Status.CLOSED)
        assert type(record.to_status) is str
        assert type(ticket.status) is str
        assert stored(ticket) == "closed"


class TestErrors:
    def test_of_an_invalid_move_says_what_is_allowed_and_what_to_do(self, row):
        row.states.transition_to("FAILED")
        with pytest.raises(InvalidStateTransition) as caught:
            row.states.transition_to("DONE")
        assert str(caught.value) == (
            f"lab.Stamped pk={row.pk} cannot move from 'FAILED' to 'DONE'. "
            "Allowed from here: nothing, the state is terminal. "
            "Add the edge to `transitions`, or reload the row if another process moved it."
        )

    @pytest.mark.parametrize("wrong", ["DNOE", "done"], ids=["misspelt", "in the wrong case"])
    def test_of_an_unknown_state_guesses(self, row, wrong):
        with pytest.raises(UnknownState, match=rf"has no state '{wrong}'.*Did you mean 'DONE'\?"):
            row.states.transition_to(wrong)

    def test_of_a_row_that_was_never_saved(self):
        with pytest.raises(RowMissing) as caught:
            Stamped().states.transition_to("DONE")
        assert str(caught.value) == (
            "lab.Stamped pk=None has not been saved, so there is no row to move. Call save() first."
        )
        with pytest.raises(RowMissing, match="has not been saved"):
            Stamped(pk=5).states.transition_to("DONE")

    def test_of_a_row_that_is_gone(self, row):
        Stamped.objects.filter(pk=row.pk).delete()
        with pytest.raises(RowMissing) as caught:
            row.states.transition_to("DONE")
        assert str(caught.value) == (
            f"lab.Stamped pk={row.pk} no longer exists: its row was deleted by someone else. Nothing was recorded."
        )
        assert row.status == "NEW"

    def test_survive_pickling(self, row):
        for error in (
            InvalidStateTransition("x pk=1", "A", "B", ["C"]),
            UnknownState("x pk=1", "B", ["A"], "A", []),
            RowMissing("x pk=1", saved=True),
        ):
            twin = pickle.loads(pickle.dumps(error))  # noqa: S301
            assert (str(twin), vars(twin)) == (str(error), vars(error))
            assert isinstance(twin, StateMachineError)

    def test_caught_inside_a_transaction_leave_it_usable(self, row):
        with transaction.atomic():
            with pytest.raises(InvalidStateTransition):
                row.states.transition_to("NEW")
            row.states.transition_to("DONE")
        assert stored(row) == "DONE"


class TestWhatIsWritten:
    def test_status_counter_and_time_agree_with_the_record(self, row):
        record = row.states.transition_to("DONE")
        row.refresh_from_db()
        assert (row.status_sequence, row.status_changed_at) == (record.sequence, record.transitioned_at)

    def test_the_instance_needs_no_reload(self, row):
        row.states.transition_to("DONE")
        loaded = Stamped.objects.get()
        assert {name: value for name, value in vars(row).items() if name != "_state"} == {
            name: value for name, value in vars(loaded).items() if name != "_state"
        }

    def test_auto_now_fields_are_written(self, row):
        before = row.modified
        row.states.transition_to("DONE")
        assert row.modified > before
        assert stored(row, "modified") == row.modified

    def test_other_unsaved_changes_stay_unsaved(self, row):
        row.name = "b"
        row.states.transition_to("DONE")
        assert stored(row, "name") == "a"
        assert row.name == "b"

    def test_times_never_run_backwards_and_ids_ascend(self, row):
        for _ in range(5):
            row.states.transition_to("DONE")
            row.states.transition_to("NEW")
        times = list(row.states.history.values_list("transitioned_at", flat=True))
        assert times == sorted(times, reverse=True)
        by_id = list(Stamped.states.transition_model.objects.values_list("sequence", flat=True))
        assert by_id == list(range(10, 0, -1))

    def test_two_machines_move_apart(self):
        invoice = Invoice.objects.create()
        invoice.states.transition_to("SENT")
        invoice.payment.transition_to("PAID")
        invoice.payment.transition_to("REFUNDED")
        assert (invoice.status, invoice.payment_status) == ("SENT", "REFUNDED")
        assert (invoice.status_sequence, invoice.payment_sequence) == (1, 2)
        assert [t.to_status for t in invoice.payment.history] == ["REFUNDED", "PAID"]
        assert [t.to_status for t in invoice.states.history] == ["SENT"]

    def test_a_multi_table_child_moves_its_parents_row(self):
        car = Car.objects.create()
        before = car.modified, car.serviced
        record = car.states.transition_to("MOVING")
        car.refresh_from_db()
        assert record.instance == car
        assert (car.status, car.status_sequence) == ("MOVING", 1)
        assert car.modified > before[0]
        assert car.serviced > before[1]

    def test_record_gives_values_to_the_fields_of_the_transition_base(self, django_user_model):
        user = django_user_model.objects.create(username="ada")
        row = Reasoned.objects.create()
        row.states.transition_to("DONE", record={"actor": user, "reason": "asked to"})
        row.states.transition_to("NEW")
        last, first = row.states.history
        assert (first.actor, first.reason) == (user, "asked to")
        assert (last.actor, last.reason) == (None, "none given")

    def test_record_refuses_other_fields(self, row):
        with pytest.raises(TypeError, match=r"record= names sequence, but transition_base adds actor, reason\."):
            Reasoned.objects.create().states.transition_to("DONE", record={"sequence": 7})
        with pytest.raises(TypeError, match=r"record= names reason, but transition_base adds nothing\."):
            row.states.transition_to("DONE", record={"reason": "x"})


class TestMetadata:
    def test_takes_what_djangos_encoder_takes(self, row):
        moment = datetime.datetime(2026, 5, 17, 8, 30, tzinfo=datetime.UTC)
        key = uuid.UUID(int=7)
        record = row.states.transition_to(
            "DONE", {"at": moment, "price": decimal.Decimal("9.90"), "key": key, "pair": (1, 2), "deep": {"a": [None]}}
        )
        expected = {
            "at": "2026-05-17T08:30:00Z",
            "price": "9.90",
            "key": str(key),
            "pair": [1, 2],
            "deep": {"a": [None]},
        }
        assert record.metadata == expected
        assert row.states.history.get().metadata == expected

    def test_is_copied(self, row):
        metadata = {"list": [1]}
        record = row.states.transition_to("DONE", metadata)
        metadata["list"].append(2)
        assert record.metadata == {"list": [1]}

    @pytest.mark.parametrize(
        ("metadata", "message"),
        [
            ({"x": object()}, "metadata cannot be written as JSON: Object of type object is not JSON serializable"),
            ({"x": float("nan")}, "metadata cannot be written as JSON: Out of range float values"),
            ({"x": "a\x00b"}, "metadata holds a NUL character"),
            ({"x": "\ud800"}, "metadata cannot be written as JSON: 'utf-8' codec"),
            ({"x": "\\\x00"}, "metadata holds a NUL character"),
            ({("a", "b"): 1}, "metadata cannot be written as JSON: keys must be"),
            (nested(201), "metadata is nested more than 200 levels deep"),
            (nested(100_000), "metadata is nested more than 200 levels deep"),
            (["a"], "metadata must be a dict, got list"),
            ("", "metadata must be a dict, got str"),
        ],
    )
    def test_that_cannot_be_stored_is_refused_before_anything_is_written(self, row, metadata, message):
        with pytest.raises(TypeError, match=message):
            row.states.transition_to("DONE", metadata)
        assert (stored(row), row.status, row.states.history.count()) == ("NEW", "NEW", 0)

    def test_that_is_deep_is_read_back(self, row):
        deep = nested(200)
        row.states.transition_to("DONE", deep)
        assert row.states.history.get().metadata == deep

    def test_that_only_looks_deep_is_taken(self, row):
        wide = {"text": "[{" * 500, "list": [[], {}] * 500, "quote": '\\"[' * 300}
        assert row.states.transition_to("DONE", wide).metadata == wide

    def test_with_a_backslash_is_not_taken_for_a_nul(self, row):
        assert row.states.transition_to("DONE", {"path": "\\u0000"}).metadata == {"path": "\\u0000"}


class TestSaveFalse:
    def test_is_refused_outside_a_transaction(self, transactional_db):
        row = Stamped.objects.create()
        with pytest.raises(TransactionManagementError, match=r"Wrap both in transaction\.atomic\(\)"):
            row.states.transition_to("DONE", save=False)
        assert (row.status, row.states.history.count()) == ("NEW", 0)

    def test_writes_counter_and_time_with_the_record(self, row):
        with transaction.atomic():
            record = row.states.transition_to("DONE", save=False)
            assert (stored(row), stored(row, "status_sequence")) == ("NEW", 1)
            assert stored(row, "status_changed_at") == record.transitioned_at
            row.name = "b"
            row.save(update_fields=["name", "status"])
        assert (stored(row), stored(row, "name")) == ("DONE", "b")

    def test_may_be_saved_twice(self, row):
        with transaction.atomic():
            row.states.transition_to("DONE", save=False)
            row.save()
            row.save()
        row.save()
        assert (row.status, stored(row), stored(row, "status_sequence")) == ("DONE", "DONE", 1)

    def test_followed_by_further_moves(self, row):
        with transaction.atomic():
            row.states.transition_to("DONE", save=False)
            row.save()
            row.states.transition_to("NEW", save=False)
            row.save()
            row.states.transition_to("FAILED")
        assert [t.to_status for t in row.states.history] == ["FAILED", "NEW", "DONE"]
        assert stored(row) == "FAILED"

    def test_rolled_back_to_a_savepoint_is_not_saved_later(self, row):
        with transaction.atomic():
            with pytest.raises(KeyError), transaction.atomic():
                row.states.transition_to("DONE", save=False)
                raise KeyError
            row.save()
        assert (stored(row), stored(row, "status_sequence"), row.states.history.count()) == ("NEW", 0, 0)

    def test_does_not_undo_a_later_move_of_someone_else(self, row):
        with transaction.atomic():
            row.states.transition_to("DONE", save=False)
            row.save()
        Stamped.objects.get().states.transition_to("NEW")
        row.save()
        assert stored(row) == "NEW"

    def test_does_not_take_the_record_of_someone_else_for_its_own(self, row):
        with transaction.atomic():
            with pytest.raises(KeyError), transaction.atomic():
                row.states.transition_to("DONE", save=False)
                raise KeyError
            Stamped.objects.get().states.transition_to("FAILED")
            row.save()
        assert stored(row) == "FAILED"

    def test_then_assigning_another_status_raises(self, row):
        from statemachine_fields import UnrecordedStatusChange

        with transaction.atomic():
            row.states.transition_to("DONE", save=False)
            row.status = "FAILED"
            with pytest.raises(UnrecordedStatusChange):
                row.save()

    @pytest.mark.parametrize("is_saved", [False, True], ids=["never saved", "saved"])
    def test_that_is_never_saved_is_logged_on_commit(self, row, is_saved, caplog, django_capture_on_commit_callbacks):
        with caplog.at_level(logging.ERROR, "statemachine_fields"), django_capture_on_commit_callbacks(execute=True):
            row.states.transition_to("DONE", save=False)
            if is_saved:
                row.save()
        never = (
            f"lab.Stamped pk={row.pk}: the move to 'DONE' was recorded with save=False and never saved, so the row is "
            "still in its old state and transition 1 has no effect. "
            "Call save() in the same transaction as transition_to()."
        )
        assert caplog.messages == ([] if is_saved else [never])


class TestModelsWithCodeOfTheirOwn:
    def test_own_save_runs_and_writes_the_status(self):
        row = Hooked.objects.create()
        row.name = "unsaved"
        record = row.states.transition_to("DONE")
        row.refresh_from_db()
        assert (row.status, row.status_sequence, row.saves, row.name) == ("DONE", 1, 2, "")
        assert row.states.history.get() == record

    def test_own_save_that_raises_undoes_everything_and_leaves_the_transaction_usable(self):
        row = Hooked.objects.create()
        before = memory(row)
        with transaction.atomic():
            with pytest.raises(ValueError, match="does not fail"):
                row.states.transition_to("FAILED")
            assert row.states.history.count() == 0
        assert memory(row) == before
        assert (stored(row), stored(row, "status_sequence")) == ("NEW", 0)

    def test_own_save_that_does_not_save_is_an_error(self):
        row = Lazy.objects.create()
        with pytest.raises(
            StateMachineError, match=r"save\(\) returned without saving, so the move to 'DONE' was undone"
        ):
            row.states.transition_to("DONE")
        assert (stored(row), row.status, row.states.history.count()) == ("NEW", "NEW", 0)

    def test_generated_columns_are_as_save_leaves_them(self):
        row, twin = Derived.objects.create(), Derived.objects.create()
        row.states.transition_to("DONE")
        with transaction.atomic():
            twin.states.transition_to("DONE", save=False)
            twin.save(update_fields=["status"])
        assert vars(row).get("is_open") == vars(twin).get("is_open")
        assert set(Derived.objects.values_list("status", "is_open")) == {("DONE", 0)}

    def test_receivers_see_the_new_status_and_the_fields_being_written(self, receivers):
        seen = []

        def receiver(signal, instance, update_fields, **kwargs):
            seen.append((instance.status, sorted(update_fields), instance.states.history.count()))

        row = Audited.objects.create()
        receivers(pre_save, receiver)
        receivers(post_save, receiver)
        row.states.transition_to("DONE")
        assert seen == [("DONE", ["status"], 1)] * 2
        assert stored(row) == "DONE"

    def test_a_receiver_that_raises_undoes_the_move(self, receivers):
        def receiver(**kwargs):
            raise RuntimeError("no")

        row = Audited.objects.create()
        receivers(post_save, receiver)
        with pytest.raises(RuntimeError):
            row.states.transition_to("DONE")
        assert (stored(row), row.status, row.states.history.count()) == ("NEW", "NEW", 0)


class TestShortAndLongWay:
    """Our own statement, and `save(update_fields=...)` of a model that has receivers: nobody can tell the difference."""

    @pytest.fixture
    def long_way(self, heard):
        heard(post_save, sender=Stamped)

    def outcome(self, **options):
        """Move a row, and return what it and its record look like, in memory and stored."""
        row = Stamped.objects.create(name="a")
        row.name = "unsaved"
        before = row.modified, row.status_changed_at
        record = row.states.transition_to("DONE", **options)
        stored_row = Stamped.objects.get(pk=row.pk)
        found = {}
        for kind, instance in (("memory", row), ("stored", stored_row)):
            found[kind] = (
                instance.name,
                instance.status,
                instance.status_sequence,
                instance.modified > before[0],
                instance.status_changed_at == record.transitioned_at,
            )
        stored_record = row.states.history.get()
        for kind, instance in (("record", record), ("stored record", stored_record)):
            found[kind] = (instance.from_status, instance.to_status, instance.sequence, instance.metadata)
        found["equal"] = row.modified == stored_row.modified, vars(record).keys() - {"_state"}
        found["again"] = row.save(), Stamped.objects.get(pk=row.pk).status, row.states.can_transition_to("NEW")
        return found

    @pytest.mark.parametrize(
        "options", [{}, {"metadata": {"a": 1}}, {"update": {"name": "b"}}, {"expected": "NEW"}, {"expected": 0}]
    )
    def test_lead_to_the_same_place(self, options, request):
        short = self.outcome(**options)
        request.getfixturevalue("long_way")
        assert self.outcome(**options) == short


class TestAFailedCall:
    def test_leaves_the_instance_as_it_was(self, row):
        def broken(execute, sql, params, many, context):
            if "INSERT" in sql:
                raise DatabaseError("disk full")
            return execute(sql, params, many, context)

        row.name = "b"
        before = memory(row)
        with pytest.raises(DatabaseError), transaction.atomic(), connection.execute_wrapper(broken):
            row.states.transition_to("DONE")
        assert memory(row) == before
        assert (stored(row), stored(row, "status_sequence")) == ("NEW", 0)

    def test_leaves_no_move_without_a_record(self, row):
        """The unique index is the second guard: a counter that lies cannot make a second number 1."""
        row.states.transition_to("DONE")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE lab_stamped SET status_sequence = 0")
        with pytest.raises(DatabaseError), transaction.atomic():
            row.states.transition_to("NEW")
        assert (stored(row), row.status, row.states.history.count()) == ("DONE", "DONE", 1)


class TestHistory:
    def test_of_an_unsaved_row_is_empty(self, django_assert_num_queries):
        with django_assert_num_queries(0):
            assert list(Stamped().states.history) == []

    def test_goes_with_the_row(self, row):
        row.states.transition_to("DONE")
        row.delete()
        assert not Stamped.states.transition_model.objects.exists()

    def test_may_outlive_the_row(self):
        row = Kept.objects.create()
        row.states.transition_to("DONE")
        key = row.pk
        row.delete()
        record = Kept.states.transition_model.objects.select_related("instance").get()
        assert record.instance_id == key

    def test_may_protect_the_row(self):
        from lab.models import Protected

        row = Protected.objects.create()
        row.states.transition_to("DONE")
        with pytest.raises(models.ProtectedError):
            row.delete()


class TestOtherDatabase:
    pytestmark = pytest.mark.django_db(databases=["default", "other"])

    def test_everything_stays_on_the_rows_database(self):
        row = Stamped.objects.using("other").create()
        with CaptureQueriesContext(connections["default"]) as queries:
            row.states.transition_to("DONE")
            row.save()
            assert row.states.history.get().to_status == "DONE"
            with transaction.atomic("other"):
                row.states.transition_to("NEW", save=False)
                row.save()
            row.refresh_from_db()
            assert row.states.history.count() == 2
        assert len(queries) == 0
        assert row.status == "NEW"

    def test_a_row_of_another_database_is_not_confused_with_ours(self):
        ours = Stamped.objects.create(pk=1)
        theirs = Stamped.objects.using("other").create(pk=1, status="DONE")
        theirs.states.transition_to("NEW")
        assert stored(ours, "status_sequence") == 0
        assert not ours.states.history.exists()
