"""Operations for migrations: renaming a state in rows, records and statistics, beside those who move the rows; and room in
the pages of a table."""

from __future__ import annotations

import datetime
import threading
from functools import cache
from types import SimpleNamespace

import pytest
from django.db import connection, connections, migrations, models, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.optimizer import MigrationOptimizer
from django.db.migrations.state import ModelState, ProjectState
from django.db.migrations.writer import OperationWriter
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.models import Car, Consignment, Invoice, Kept, Parcel, Shipment, Stamped, Vehicle
from statemachine_fields import StateMachineError
from statemachine_fields.machine import rename as module
from statemachine_fields.machine.rename import Renamer
from statemachine_fields.machine.verify import Verifier
from statemachine_fields.operations import RenameState, SetFillfactor, _note_model
from statemachine_fields.worker.models import RunStatistics
from statemachine_fields.worker.outcomes import Transitioned
from statemachine_fields.worker.writing import enter
from tests.patience import PATIENCE
from tests.scratch import ScratchProject
from tests.together import together
from tests.worker.rows import claim_one, columns_of, lane_of, let_lease_run_out, locked, not_mariadb, only_postgresql

pytestmark = pytest.mark.django_db(transaction=True)

NOTES = _note_model()._meta.db_table


@cache
def project():
    """The models as the migrations know them."""
    return MigrationLoader(None).project_state()


def rename(model, old, new, *, atomic=False, backwards=False, using="default", **options):
    operation = RenameState(model, old, new, **options)
    with connections[using].schema_editor(atomic=atomic) as editor:
        run = operation.database_backwards if backwards else operation.database_forwards
        run("lab", editor, project(), project())


def tables(*bound_machines):
    """Return all that the tables of machines hold."""
    bound_machines = bound_machines or (Consignment.states,)
    both = [model for bound in bound_machines for model in (bound.model, bound.transition_model)]
    return [list(model._base_manager.order_by("pk").values()) for model in both]


def renamed(found, old, new):
    """Return the same with another name for a state."""
    columns = ("status", "from_status", "to_status")
    return [
        [{name: new if name in columns and value == old else value for name, value in row.items()} for row in table]
        for table in found
    ]


def findings(bound=Consignment.states._meta):
    """Return what is wrong with rows and records, other than that a state or a move is not declared."""
    found = Verifier(bound).findings()
    return [finding for finding in found if finding.code not in ("state-undeclared", "move-undeclared")]


def row_in(*path, **values):
    """Return a row that has come along a path of states."""
    row = Consignment.objects.create(**values)
    for state in path:
        row.states.force_transition_to(state, reason="for the test")
    return row


@pytest.fixture
def impatient(monkeypatch):
    """Look again at once for rows that are held."""
    monkeypatch.setattr(module, "POLL_SECONDS", 0)


@pytest.fixture
def polls(monkeypatch):
    """Let a test do something when the rename waits: a function to be set."""
    polls = SimpleNamespace(then=lambda: None, count=0)

    def sleep(_seconds):
        polls.count += 1
        polls.then()

    monkeypatch.setattr(module.time, "sleep", sleep)
    return polls


@pytest.fixture(params=[False, True], ids=["batches", "atomic"])
def atomic(request):
    return request.param


class TestRenaming:
    @pytest.fixture
    def rows(self):
        """In the state, through it, never there, and there without a history."""
        rows = [
            row_in("PACKED"),
            row_in("PACKED", "SENT"),
            row_in("PACKED", "OPEN", "PACKED"),
            row_in("LOST"),
            row_in(),
        ]
        text = "UPDATE lab_consignment SET status = 'PACKED' WHERE id = %s"
        with connection.cursor() as cursor:
            cursor.execute(text, [rows[-1].pk])
        return rows

    @pytest.mark.parametrize("batch_size", [1, 2, 1000])
    def test_changes_rows_and_both_ends_of_records_and_nothing_else(self, rows, atomic, batch_size):
        before = tables()
        rename("consignment", "PACKED", "BOXED", atomic=atomic, batch_size=batch_size)
        assert tables() == renamed(before, "PACKED", "BOXED") != before
        assert findings() == []

    def test_is_undone_by_reversing_it(self, rows, atomic):
        before = tables()
        rename("Consignment", "PACKED", "BOXED", atomic=atomic)
        rename("Consignment", "PACKED", "BOXED", atomic=atomic, backwards=True)
        assert tables() == before

    def test_done_twice_is_done_once(self, rows, atomic):
        rename("consignment", "PACKED", "BOXED", atomic=atomic)
        after = tables()
        with CaptureQueriesContext(connection) as queries:
            rename("consignment", "PACKED", "BOXED", atomic=atomic)
        assert tables() == after
        assert not [query["sql"] for query in queries if query["sql"].startswith(("UPDATE", "INSERT", "CREATE"))]

    def test_leaves_no_note_behind(self, rows, atomic):
        rename("consignment", "PACKED", "BOXED", atomic=atomic)
        assert NOTES not in connection.introspection.table_names()

    def test_takes_members_of_enumerations(self, rows):
        class Status(models.TextChoices):
            PACKED = "PACKED"
            BOXED = "BOXED"

        rename("consignment", Status.PACKED, Status.BOXED)
        assert not Consignment.objects.filter(status="PACKED").exists()

    def test_of_keys_that_are_no_numbers(self):
        for _ in range(5):
            Parcel.objects.create().states.transition_to("SCANNED").instance.states.transition_to("SCANNED")
        before = tables(Parcel.states._meta)
        rename("parcel", "SCANNED", "SEEN", batch_size=2)
        assert tables(Parcel.states._meta) == renamed(before, "SCANNED", "SEEN")

    def test_of_one_machine_leaves_the_other_alone(self):
        invoice = Invoice.objects.create()
        invoice.states.transition_to("SENT")
        invoice.payment.transition_to("PAID")
        before = tables(Invoice.states._meta)[1]
        rename("invoice", "PAID", "SETTLED", field="payment_status", machine="payment")
        invoice.refresh_from_db()
        assert (invoice.status, invoice.payment_status) == ("SENT", "SETTLED")
        assert invoice.payment.history.get().to_status == "SETTLED"
        assert tables(Invoice.states._meta)[1] == before

    def test_of_a_multi_table_child_is_that_of_its_parent(self):
        car, vehicle = Car.objects.create(), Vehicle.objects.create()
        for row in (car, vehicle):
            row.states.transition_to("MOVING")
        rename("car", "MOVING", "DRIVING")
        assert set(Vehicle.objects.values_list("status", flat=True)) == {"DRIVING"}
        assert set(Vehicle.states.transition_model.objects.values_list("to_status", flat=True)) == {"DRIVING"}

    def test_reaches_the_history_of_rows_that_are_gone(self):
        row = Kept.objects.create()
        row.states.transition_to("DONE")
        Kept.objects.create().states.transition_to("DONE")
        row.delete()
        unknown = Kept.states.transition_model.objects.first()
        Kept.states.transition_model.objects.filter(pk=unknown.pk).update(instance=None)
        rename("kept", "DONE", "OVER")
        assert set(Kept.states.transition_model.objects.values_list("to_status", flat=True)) == {"OVER"}

    @pytest.mark.django_db(transaction=True, databases=["default", "other"])
    def test_is_of_the_database_that_is_migrated(self):
        for alias in ("default", "other"):
            Stamped.objects.using(alias).create().states.transition_to("DONE")
        rename("stamped", "DONE", "OVER", using="other")
        assert [Stamped.objects.using(alias).get().status for alias in ("default", "other")] == ["DONE", "OVER"]

    def test_is_left_out_where_the_router_says_so(self, settings):
        class Elsewhere:
            def allow_migrate(self, db, app_label, model_name=None, **hints):
                return model_name != "stamped"

        Stamped.objects.create().states.transition_to("DONE")
        settings.DATABASE_ROUTERS = [Elsewhere()]
        rename("stamped", "DONE", "OVER")
        assert Stamped.objects.get().status == "DONE"


class TestTargetInUse:
    @pytest.fixture(params=["row", "from", "to"])
    def used(self, request):
        """Where the new value is already."""
        match request.param:
            case "row":
                return row_in("BOXED")
            case _:
                row = row_in("BOXED", "SENT")
                row.states.history.filter(sequence=1 if request.param == "from" else 2).delete()
                return row

    def test_is_refused_and_nothing_is_changed(self, used, atomic):
        row_in("PACKED")
        before = tables()
        with pytest.raises(StateMachineError, match=r"'PACKED' → 'BOXED': rows or records have 'BOXED' already"):
            rename("consignment", "PACKED", "BOXED", atomic=atomic)
        assert tables() == before
        assert NOTES not in connection.introspection.table_names()

    def test_is_refused_in_reverse_too(self, used):
        row_in("PACKED")
        with pytest.raises(StateMachineError, match="have 'PACKED' already"):
            rename("consignment", "PACKED", "BOXED", backwards=True)

    def test_is_allowed_if_asked_for(self, used, atomic):
        row_in("PACKED")
        before = tables()
        rename("consignment", "PACKED", "BOXED", target_in_use=True, atomic=atomic)
        assert tables() == renamed(before, "PACKED", "BOXED")

    def test_is_no_matter_where_nothing_is_to_be_renamed(self, used, atomic):
        rename("consignment", "PACKED", "BOXED", atomic=atomic)


class CutOff(Exception):
    """The migration was killed."""


@pytest.fixture
def cut_off(monkeypatch):
    """Cut renames off after some batches of rows."""
    original = Renamer._rename_batch

    def after(batches):
        left = [batches]

        def rename_batch(self, rows):
            if not left[0]:
                raise CutOff
            left[0] -= 1
            return original(self, rows)

        monkeypatch.setattr(Renamer, "_rename_batch", rename_batch)

    yield after
    monkeypatch.undo()


class TestCutOff:
    def test_goes_on_where_it_was(self, cut_off):
        for _ in range(5):
            row_in("PACKED", "OPEN", "PACKED")
        before = tables()
        cut_off(2)
        with pytest.raises(CutOff):
            rename("consignment", "PACKED", "BOXED", batch_size=1)
        assert Consignment.states.in_state("BOXED").count() == 2
        assert findings() == []
        cut_off(99)
        rename("consignment", "PACKED", "BOXED", batch_size=1)
        assert tables() == renamed(before, "PACKED", "BOXED")
        assert NOTES not in connection.introspection.table_names()

    def test_does_not_speak_for_another_rename(self, cut_off):
        row_in("PACKED"), row_in("LOST")
        cut_off(1)
        with pytest.raises(CutOff):
            rename("consignment", "PACKED", "BOXED", batch_size=1)
        with pytest.raises(StateMachineError, match="have 'BOXED' already"):
            rename("consignment", "LOST", "BOXED")
        cut_off(99)
        rename("consignment", "PACKED", "BOXED")
        assert NOTES not in connection.introspection.table_names()

    def test_in_one_transaction_leaves_all_as_it_was(self, cut_off):
        row_in("PACKED"), row_in("PACKED")
        before = tables()
        cut_off(1)
        with pytest.raises(CutOff):
            rename("consignment", "PACKED", "BOXED", batch_size=1, atomic=True)
        assert tables() == before
        assert NOTES not in connection.introspection.table_names()

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        paths=st.lists(st.lists(st.sampled_from(["PACKED", "SENT", "OPEN"]), max_size=4), max_size=5),
        steps=st.lists(st.tuples(st.booleans(), st.none() | st.integers(0, 4)), min_size=1, max_size=4),
        batch_size=st.integers(1, 3),
    )
    def test_never_shows_a_broken_history_nor_loses_anything(self, cut_off, paths, steps, batch_size):
        Consignment.objects.all().delete()
        for path in paths:
            row_in(*path)
        before = tables()
        after = renamed(before, "PACKED", "BOXED")
        for backwards, batches in steps:
            cut_off(99 if batches is None else batches)
            try:
                rename("consignment", "PACKED", "BOXED", batch_size=batch_size, backwards=backwards, target_in_use=True)
            except CutOff:
                assert renamed(tables(), "PACKED", "BOXED") == after
            else:
                assert tables() == (before if backwards else after)
            assert findings() == []


@not_mariadb
class TestLeasedRows:
    def test_are_left_until_their_worker_is_done_whose_outcome_counts(self, polls):
        row, other = row_in("PACKED"), row_in("PACKED", waits=True)
        lease = claim_one(lane_of(Consignment))
        assert lease.key == row.pk

        def commit():
            assert columns_of(row).status == "PACKED"
            assert columns_of(other).status == "BOXED"
            assert findings() == []
            assert enter(lease.lane, [Transitioned(lease, to_status="SENT")]) == {row.pk}

        polls.then = commit
        rename("consignment", "PACKED", "BOXED")
        assert polls.count == 1
        assert [(record.from_status, record.to_status) for record in row.states.history] == [
            ("BOXED", "SENT"),
            ("OPEN", "BOXED"),
        ]
        assert findings() == []

    def test_do_not_lose_their_history_meanwhile(self, polls):
        """The records of a leased row are renamed with it, not before."""
        row = row_in("PACKED", "OPEN", "PACKED")
        claim_one(lane_of(Consignment))
        before = tables()
        with pytest.raises(StateMachineError):
            rename("consignment", "PACKED", "BOXED", wait=0)
        assert tables() == before
        assert row.states.history.filter(from_status="PACKED").exists()

    def test_elsewhere_are_in_nobodys_way(self, polls):
        row = row_in("PACKED", "BOXED")
        claim_one(lane_of(Consignment))
        held = columns_of(row)
        rename("consignment", "PACKED", "CRATED")
        assert columns_of(row) == held
        assert polls.count == 0
        assert row.states.history.filter(to_status="CRATED").count() == 1

    def test_that_stay_leased_end_it_with_an_error_that_says_which(self, polls):
        held, free = row_in("PACKED"), row_in("PACKED", waits=True)
        claim_one(lane_of(Consignment), owner="somebody:7")
        with pytest.raises(StateMachineError) as caught:
            rename("consignment", "PACKED", "BOXED", wait=0.01)
        message = str(caught.value)
        assert (
            f"1 rows are held by workers or by other transactions, and for 0.01 s nobody let go of one, the first of them pk={held.pk}"
            in message
        )
        assert "which 'somebody:7' has leased until" in message
        assert "1 rows and 1 records were renamed, and the next run goes on from there" in message
        assert (columns_of(held).status, columns_of(free).status) == ("PACKED", "BOXED")
        held.refresh_from_db()
        held.states.release()
        rename("consignment", "PACKED", "BOXED")
        assert columns_of(held).status == "BOXED"

    def test_in_one_transaction_are_waited_for_where_others_can_write(self, polls):
        row = row_in("PACKED")
        lease = claim_one(lane_of(Consignment))

        def commit():
            together(lambda: enter(lease.lane, [Transitioned(lease, to_status="SENT")]))

        polls.then = commit
        if connection.features.has_select_for_update:
            rename("consignment", "PACKED", "BOXED", atomic=True)
            assert (polls.count, columns_of(row).status) == (1, "SENT")
        else:
            with pytest.raises(StateMachineError, match="cannot be let go of meanwhile.* Nothing was renamed"):
                rename("consignment", "PACKED", "BOXED", atomic=True)
            assert polls.count == 0

    def test_whose_lease_ran_out_are_free(self, polls):
        row = row_in("PACKED")
        claim_one(lane_of(Consignment))
        let_lease_run_out(row)
        before = columns_of(row)
        rename("consignment", "PACKED", "BOXED")
        assert vars(columns_of(row)) == {**vars(before), "status": "BOXED"}

    @only_postgresql
    def test_and_locked_ones_hold_up_no_others(self, polls):
        held, free = row_in("PACKED"), row_in("PACKED")
        with locked(held), pytest.raises(StateMachineError, match="held by workers or by other transactions"):
            rename("consignment", "PACKED", "BOXED", wait=0.01)
        assert (columns_of(held).status, columns_of(free).status) == ("PACKED", "BOXED")

    def test_are_told_of_while_they_are_waited_for(self, polls, monkeypatch, caplog):
        monkeypatch.setattr(module, "TELL_EVERY", 0)
        row = row_in("PACKED")
        claim_one(lane_of(Consignment))
        polls.then = lambda: let_lease_run_out(row)
        with caplog.at_level("INFO", "statemachine_fields.machine"):
            rename("consignment", "PACKED", "BOXED")
        assert "lab.Consignment.status: 'PACKED' → 'BOXED' waits for rows that are held: 0 rows" in caplog.text

    def test_are_told_of_without_a_log(self, polls, monkeypatch, capsys):
        monkeypatch.setattr(module, "TELL_EVERY", 0)
        monkeypatch.setattr(module.logger, "hasHandlers", lambda: False)
        row_in("PACKED")
        rename("consignment", "PACKED", "BOXED")
        assert "'PACKED' → 'BOXED' goes on: 1 rows and 1 records so far." in capsys.readouterr().err


class TestMovingRows:
    def test_that_enter_the_state_meanwhile_are_renamed_too(self, monkeypatch):
        row_in("PACKED")
        late, later = row_in(), row_in()
        original = Renamer._rename_histories

        def rename_histories(self):
            monkeypatch.setattr(Renamer, "_rename_histories", original)
            late.states.force_transition_to("PACKED", reason="by code that was deployed before")
            original(self)
            assert columns_of(late).status == late.states.history.get().to_status == "PACKED"  # both, or neither
            later.states.force_transition_to("PACKED", reason="by code that was deployed before")

        monkeypatch.setattr(Renamer, "_rename_histories", rename_histories)
        rename("consignment", "PACKED", "BOXED")
        assert [columns_of(row).status for row in (late, later)] == ["BOXED", "BOXED"]
        assert findings() == []

    def test_that_never_end_to_enter_it_are_an_error(self, monkeypatch):
        row_in("PACKED")
        monkeypatch.setattr(Renamer, "_rename_histories", lambda self: row_in("PACKED"))
        with pytest.raises(StateMachineError, match=r"rows enter 'PACKED' as fast as it is renamed.*is retired"):
            rename("consignment", "PACKED", "BOXED", target_in_use=True)

    def test_from_an_instance_that_was_loaded_before_move_on_from_the_new_name(self):
        row = row_in("PACKED")
        rename("consignment", "PACKED", "BOXED")
        record = row.states.transition_to("SENT")
        assert (record.from_status, record.sequence) == ("BOXED", 2)
        assert findings() == []

    @only_postgresql
    def test_race_with_it_and_each_history_stays_whole(self, impatient):
        rows = [row_in("PACKED") for _ in range(30)]
        stop = threading.Event()
        seen = []

        def move(mine):
            while not stop.is_set():
                for row in mine:
                    fresh = Consignment.objects.get(pk=row.pk)
                    if fresh.status == "OPEN":
                        fresh.states.force_transition_to("PACKED", reason="old code")
                    else:
                        fresh.states.transition_to("OPEN")

        def verify():
            while not stop.is_set():
                seen.extend(findings())

        def rename_twice():
            try:
                for _ in range(3):
                    rename("consignment", "PACKED", "BOXED", batch_size=4, target_in_use=True)
                    rename("consignment", "PACKED", "BOXED", batch_size=4, target_in_use=True, backwards=True)
            except StateMachineError as error:
                assert "as fast as it is renamed" in str(error)  # noqa: PT017
            finally:
                stop.set()

        results = together(lambda: move(rows[:10]), lambda: move(rows[10:20]), verify, rename_twice)
        assert results == [None] * 4
        assert seen == findings() == []
        rename("consignment", "PACKED", "BOXED", target_in_use=True)
        assert not Consignment.states.transition_model.objects.filter(
            models.Q(from_status="PACKED") | models.Q(to_status="PACKED")
        ).exists()

    @only_postgresql
    def test_in_a_transaction_that_is_not_committed_are_seen_afterwards(self, impatient):
        """A row that has left the state in a transaction that is open: its record is left until that ends."""
        row = row_in("PACKED")
        moved, may_commit = threading.Event(), threading.Event()

        def move():
            with transaction.atomic():
                Consignment.objects.get(pk=row.pk).states.transition_to("SENT")
                moved.set()
                assert may_commit.wait(PATIENCE)

        def run():
            assert moved.wait(PATIENCE)
            with pytest.raises(StateMachineError, match="held"):
                rename("consignment", "PACKED", "BOXED", wait=0.01)
            may_commit.set()

        assert together(move, run) == [None, None]
        assert findings() == []
        rename("consignment", "PACKED", "BOXED")
        assert [record.from_status for record in row.states.history] == ["BOXED", "OPEN"]


class TestStatistics:
    HOUR = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)

    def count(self, state, machine="lab.Consignment.states", hour=HOUR, **counts):
        for kind, (number, seconds) in counts.items():
            RunStatistics.objects.create(
                machine=machine, state=state, period=hour, kind=kind, count=number, seconds=seconds
            )

    def counted(self):
        rows = RunStatistics.objects.order_by("machine", "state", "period", "kind")
        return list(rows.values_list("machine", "state", "period__hour", "kind", "count", "seconds"))

    def test_are_counted_under_the_new_name_with_what_is_there(self, atomic):
        later = self.HOUR + datetime.timedelta(hours=1)
        self.count("PACKED", claimed=(3, 0.0), failed=(1, 0.25), moved=(2, 1.5))
        self.count("BOXED", claimed=(4, 0.0), moved=(4, 0.5), parked=(5, 0.75))
        self.count("PACKED", hour=later, claimed=(7, 0.0))
        self.count("PACKED", machine="lab.Chore.states", claimed=(9, 0.0))
        rename("consignment", "PACKED", "BOXED", atomic=atomic)
        assert self.counted() == [
            ("lab.Chore.states", "PACKED", 12, "claimed", 9, 0.0),
            ("lab.Consignment.states", "BOXED", 12, "claimed", 7, 0.0),
            ("lab.Consignment.states", "BOXED", 12, "failed", 1, 0.25),
            ("lab.Consignment.states", "BOXED", 12, "moved", 6, 2.0),
            ("lab.Consignment.states", "BOXED", 12, "parked", 5, 0.75),
            ("lab.Consignment.states", "BOXED", 13, "claimed", 7, 0.0),
        ]

    def test_are_named_after_the_machine(self):
        self.count("PAID", machine="lab.Invoice.payment", claimed=(1, 0.0))
        rename("invoice", "PAID", "SETTLED", field="payment_status", machine="payment")
        assert self.counted() == [("lab.Invoice.payment", "SETTLED", 12, "claimed", 1, 0.0)]

    def test_of_a_table_that_is_not_there_are_none(self, monkeypatch):
        row_in("PACKED")
        names = connection.introspection.table_names
        left_out = RunStatistics._meta.db_table
        monkeypatch.setattr(
            type(connection.introspection),
            "table_names",
            lambda self, cursor=None: [n for n in names(cursor) if n != left_out],
        )
        self.count("PACKED", claimed=(1, 0.0))
        rename("consignment", "PACKED", "BOXED")
        assert self.counted()[0][1] == "PACKED"


class TestWrongOperations:
    @pytest.mark.parametrize(
        ("arguments", "options", "message"),
        [
            (("PACKED", "PACKED"), {}, "old and new are both 'PACKED'"),
            (("", "BOXED"), {}, "old must be the value of a state, got ''"),
            (("PACKED", None), {}, "new must be the value of a state, got None"),
            (("PACKED", "BOXED"), {"batch_size": 0}, "batch_size must be at least 1, got 0"),
            (("PACKED", "BOXED"), {"wait": -1}, "wait must not be negative"),
        ],
    )
    def test_are_refused_when_the_migration_is_loaded(self, arguments, options, message):
        with pytest.raises(ValueError, match=message):
            RenameState("consignment", *arguments, **options)

    @pytest.mark.parametrize(
        ("new", "options", "message"),
        [
            ("BOXED", {"field": "state"}, r"lab.Consignment has no field 'state'.*field="),
            ("BOXED", {"field": "name"}, "nothing records the moves of lab.Consignment.name"),
            ("X" * 51, {}, r"has 51 characters, and lab.Consignment.status takes 50"),
        ],
        ids=["no field", "no machine", "a name that does not fit"],
    )
    def test_that_the_database_cannot_do_are_refused(self, new, options, message):
        row_in("PACKED")
        with pytest.raises(StateMachineError, match=message):
            rename("consignment", "PACKED", new, **options)


class TestInMigrations:
    def test_it_is_written_as_it_was_given(self):
        given = RenameState(
            "order", "OLD", "NEW", field="phase", target_in_use=True, wait=datetime.timedelta(minutes=1)
        )
        text, imports = OperationWriter(given, indentation=0).serialize()
        assert imports == {"import statemachine_fields.operations"}
        assert "".join(line.strip() for line in text.splitlines()) == (
            "statemachine_fields.operations.RenameState("
            "model_name='order',old='OLD',new='NEW',field='phase',target_in_use=True,wait=60.0,),"
        )
        plain, _imports = OperationWriter(RenameState("order", "OLD", "NEW"), indentation=0).serialize()
        assert "field" not in plain.replace("statemachine_fields", "")

    def test_it_says_what_it_does(self):
        operation = RenameState("order", "PAID", "SETTLED")
        assert operation.describe() == "Rename state PAID to SETTLED in status of order"
        assert operation.migration_name_fragment == "rename_paid_to_settled"

    def test_it_changes_no_state_of_the_project(self):
        state = project().clone()
        RenameState("consignment", "PACKED", "BOXED").state_forwards("lab", state)
        assert state.models == project().models


SHOP = """
    from django.db import models
    from statemachine_fields import StateMachine

    class Order(models.Model):
        states = StateMachine([("PENDING", "Pending"), ("PAID", "Paid")], "PENDING", {"PENDING": ["PAID"]})
"""
MIGRATION = """
    from django.db import migrations
    from statemachine_fields.operations import RenameState

    class Migration(migrations.Migration):
        dependencies = [("shop", "0001_initial")]
        operations = [RenameState("order", "PAID", "SETTLED")]
"""
STATES = "from shop.models import Order, OrderStateTransition as T; print(Order.objects.get().status, T.objects.get().to_status)"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A project without workers, with an order that is paid, and a migration that is not applied."""
    shop = ScratchProject(tmp_path_factory.mktemp("shop"))
    shop.write("shop/models.py", SHOP)
    shop.write("shop/migrations/__init__.py", "")
    shop.manage("makemigrations", "shop")
    shop.write("shop/migrations/0002_rename.py", MIGRATION)
    shop.manage("migrate", "-v0", "shop", "0001")
    shop.manage("shell", "-v0", "-c", "from shop.models import *; Order.objects.create().states.transition_to('PAID')")
    return shop


class TestInAProject:
    def states(self, shop):
        return shop.manage("shell", "-v0", "-c", STATES).strip()

    def test_migrate_renames_and_back(self, shop):
        assert "    Rename state PAID to SETTLED in status of order\n" in shop.manage("migrate", "--plan")
        shop.manage("migrate", "-v0", "shop")
        assert self.states(shop) == "SETTLED SETTLED"
        shop.manage("migrate", "-v0", "shop", "0001")
        assert self.states(shop) == "PAID PAID"
        assert shop.manage("makemigrations", "--check", "--dry-run") == "No changes detected\n"

    def test_sqlmigrate_says_that_it_cannot_be_written(self, shop):
        text = shop.manage("sqlmigrate", "shop", "0002")
        assert (
            "-- Rename state PAID to SETTLED in status of order\n--\n-- THIS OPERATION CANNOT BE WRITTEN AS SQL" in text
        )
        assert self.states(shop) == "PAID PAID"

    def test_fake_renames_nothing(self, shop):
        shop.manage("migrate", "-v0", "--fake", "shop")
        assert self.states(shop) == "PAID PAID"
        shop.manage("migrate", "-v0", "--fake", "shop", "0001")

    def test_it_survives_squashing(self, shop):
        shop.manage("squashmigrations", "--noinput", "--no-header", "-v0", "shop", "0002")
        text = shop.read("shop/migrations/*squashed*.py")
        assert "import statemachine_fields.operations" in text
        assert "statemachine_fields.operations.RenameState(" in text
        shop.manage("showmigrations", "shop")  # it can be imported
        for path in (shop.root / "shop/migrations").glob("*squashed*"):
            path.unlink()


def fill(operation, *, state=None, backwards=False, using="default", collect_sql=False):
    """Run an operation, and return what it would have sent, if that is all that is wanted."""
    state = state or project()
    with connections[using].schema_editor(collect_sql=collect_sql) as editor:
        run = operation.database_backwards if backwards else operation.database_forwards
        run("lab", editor, state, state)
    return editor.collected_sql if collect_sql else None


def fillfactor(table, using="default"):
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE oid = %s::regclass", [f'"{table}"'])
        (options,) = cursor.fetchone()
    return options


class TestFillfactor:
    @pytest.fixture(autouse=True)
    def _as_before(self):
        yield
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                for table in ("lab_stamped", "lab_vehicle", "lab_car"):
                    cursor.execute(f"ALTER TABLE {table} RESET (fillfactor)")

    @only_postgresql
    def test_is_set_and_reset(self):
        fill(SetFillfactor("Stamped", 50))
        assert fillfactor("lab_stamped") == ["fillfactor=50"]
        fill(SetFillfactor("Stamped", 50), backwards=True)
        assert fillfactor("lab_stamped") is None

    @only_postgresql
    def test_is_what_it_was_when_that_is_said(self):
        operation = SetFillfactor("stamped", 50, before=80)
        fill(operation)
        fill(operation, backwards=True)
        assert fillfactor("lab_stamped") == ["fillfactor=80"]

    @only_postgresql
    def test_leaves_other_parameters_alone(self):
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE lab_stamped SET (autovacuum_enabled = true)")
        try:
            fill(SetFillfactor("stamped", 50))
            assert fillfactor("lab_stamped") == ["autovacuum_enabled=true", "fillfactor=50"]
            fill(SetFillfactor("stamped", 50), backwards=True)
            assert fillfactor("lab_stamped") == ["autovacuum_enabled=true"]
        finally:
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE lab_stamped RESET (autovacuum_enabled)")

    @only_postgresql
    def test_is_of_the_models_own_table(self):
        fill(SetFillfactor("car", 60))
        assert (fillfactor("lab_car"), fillfactor("lab_vehicle")) == (["fillfactor=60"], None)

    @only_postgresql
    def test_of_a_proxy_is_of_the_table_that_it_shows(self):
        state = ProjectState()
        state.add_model(ModelState("lab", "Stamped", [("id", models.BigAutoField(primary_key=True))]))
        state.add_model(ModelState("lab", "Shown", [], options={"proxy": True}, bases=("lab.stamped",)))
        fill(SetFillfactor("Shown", 40), state=state)
        assert fillfactor("lab_stamped") == ["fillfactor=40"]

    @only_postgresql
    def test_is_shown_as_sql_with_names_quoted(self):
        options = {"db_table": "Odd table of 100 %"}
        state = ProjectState()
        state.add_model(ModelState("lab", "Odd", [("id", models.BigAutoField(primary_key=True))], options=options))
        operation, table = SetFillfactor("Odd", 50), '"Odd table of 100 %"'
        assert fill(operation, state=state, collect_sql=True) == [f"ALTER TABLE {table} SET (fillfactor = 50);"]
        undone = fill(operation, state=state, backwards=True, collect_sql=True)
        assert undone == [f"ALTER TABLE {table} RESET (fillfactor);"]
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(f"CREATE TABLE {table} (id bigint)")
            fill(operation, state=state)
            assert fillfactor(options["db_table"]) == ["fillfactor=50"]
            transaction.set_rollback(True)

    @only_postgresql
    @pytest.mark.django_db(transaction=True, databases=["default", "other"])
    def test_is_of_the_database_that_is_migrated(self):
        fill(SetFillfactor("stamped", 50), using="other")
        try:
            assert (fillfactor("lab_stamped"), fillfactor("lab_stamped", "other")) == (None, ["fillfactor=50"])
        finally:
            fill(SetFillfactor("stamped", 50), using="other", backwards=True)

    @only_postgresql
    def test_is_left_out_where_the_router_says_so(self, settings):
        class Elsewhere:
            def allow_migrate(self, db, app_label, model_name=None, **hints):
                return model_name != "stamped"

        settings.DATABASE_ROUTERS = [Elsewhere()]
        assert fill(SetFillfactor("stamped", 50), collect_sql=True) == []
        assert len(fill(SetFillfactor("car", 50), collect_sql=True)) == 1

    @only_postgresql
    def test_reads_and_writes_go_on_beside_it(self):
        row = Stamped.objects.create()
        with transaction.atomic():
            row.states.transition_to("DONE")
            together(lambda: fill(SetFillfactor("stamped", 50)))
        assert fillfactor("lab_stamped") == ["fillfactor=50"]

    @pytest.mark.skipif(connection.vendor == "postgresql", reason="which has it")
    def test_is_nothing_on_other_databases(self):
        with CaptureQueriesContext(connection) as queries:
            fill(SetFillfactor("stamped", 50))
            fill(SetFillfactor("stamped", 50), backwards=True)
        assert not [query for query in queries if "TABLE" in query["sql"]]

    @pytest.mark.parametrize("percent", [9, 101, 0, -50, 50.0, "50", None, True])
    def test_is_from_10_to_100(self, percent):
        with pytest.raises(ValueError, match="percent must be an integer from 10 to 100, got"):
            SetFillfactor("order", percent)
        if percent is not None:
            with pytest.raises(ValueError, match="before must be an integer from 10 to 100, got"):
                SetFillfactor("order", 50, before=percent)

    @pytest.mark.parametrize("percent", [10, 100])
    def test_may_be_the_least_and_the_most(self, percent):
        assert SetFillfactor("order", percent, before=percent).percent == percent

    def test_changes_nothing_in_the_state(self):
        state = project().clone()
        SetFillfactor("stamped", 50).state_forwards("lab", state)
        assert state == project()

    def test_is_described_and_named(self):
        operation = SetFillfactor("Order", 50)
        assert operation.describe() == "Fill pages of Order to 50 %"
        assert operation.migration_name_fragment == "order_fillfactor_50"
        assert operation.reversible
        assert operation.reduces_to_sql

    @pytest.mark.parametrize(
        ("operation", "text"),
        [
            (SetFillfactor("Order", 50), "SetFillfactor(\n    'Order',\n    50,\n),"),
            (
                SetFillfactor("Order", 50, before=90, elidable=True),
                "SetFillfactor(\n    'Order',\n    50,\n    before=90,\n    elidable=True,\n),",
            ),
        ],
    )
    def test_is_written_as_it_was_given(self, operation, text):
        written, _imports = OperationWriter(operation, indentation=0).serialize()
        assert written.replace("model_name=", "").replace("percent=", "").endswith(text)

    def test_squashing_keeps_the_last(self):
        operations = [
            SetFillfactor("Order", 50, before=90),
            migrations.AddField("Line", "note", models.TextField(default="")),
            SetFillfactor("order", 70, before=50),
        ]
        other, kept = MigrationOptimizer().optimize(operations, "shop")
        assert other is operations[1]
        assert kept.deconstruct() == ("SetFillfactor", ["order", 70], {"before": 90})

    def test_squashing_drops_it_with_its_model(self):
        made = migrations.CreateModel("Order", [("id", models.BigAutoField(primary_key=True))])
        operations = [made, SetFillfactor("Order", 50), migrations.DeleteModel("order")]
        assert MigrationOptimizer().optimize(operations, "shop") == []

    def test_squashing_drops_it_if_asked_to(self):
        made = migrations.CreateModel("Order", [("id", models.BigAutoField(primary_key=True))])
        assert MigrationOptimizer().optimize([made, SetFillfactor("Order", 50, elidable=True)], "shop") == [made]

    def test_squashing_leaves_it_behind_what_it_is_about(self):
        renamed = migrations.RenameModel("Order", "Purchase")
        operations = [SetFillfactor("Order", 50), renamed, SetFillfactor("Purchase", 60)]
        assert MigrationOptimizer().optimize(operations, "shop") == operations


@not_mariadb
class TestStatesThatAConstraintNames:
    """The condition of a live key names the states whose rows have given it up."""

    def test_are_not_renamed_under_it(self):
        before = Shipment.objects.create(number="A-17", status="LOST")
        Shipment.objects.create(number="A-17")
        with pytest.raises(
            StateMachineError, match="names the state 'LOST'. Put the operation between the RemoveConstraint"
        ):
            rename("Shipment", "LOST", "GONE")
        assert Shipment.objects.get(pk=before.pk).status == "LOST"

    def test_are_renamed_between_two_constraints(self):
        before = Shipment.objects.create(number="A-17", status="LOST")
        Shipment.objects.create(number="A-17")
        name = Shipment.states._meta.key.constraint.name
        renamed = models.UniqueConstraint(
            fields=["number"], name=name, condition=~models.Q(status__in=["DONE", "GONE"])
        )
        steps = [
            migrations.RemoveConstraint("Shipment", name),
            RenameState("Shipment", "LOST", "GONE"),
            migrations.AddConstraint("Shipment", renamed),
        ]
        states = [project().clone()]
        for step in steps:
            states.append(states[-1].clone())
            step.state_forwards("lab", states[-1])
        for number, step in enumerate(steps):
            with connection.schema_editor(atomic=False) as editor:
                step.database_forwards("lab", editor, states[number], states[number + 1])
        try:
            assert models.QuerySet(Shipment).filter(pk=before.pk, status="GONE").exists()
        finally:
            for number, step in reversed(list(enumerate(steps))):
                with connection.schema_editor(atomic=False) as editor:
                    step.database_backwards("lab", editor, states[number + 1], states[number])
        assert Shipment.objects.get(pk=before.pk).status == "LOST"

    def test_live_ones_are_renamed_as_any(self):
        row = Shipment.objects.create(number="A-17")
        rename("Shipment", "NEW", "FRESH")
        assert models.QuerySet(Shipment).filter(pk=row.pk, status="FRESH").exists()
