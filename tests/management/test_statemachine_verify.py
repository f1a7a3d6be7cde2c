"""`statemachine_verify`: what damage is found under which code, and that nothing else is."""

from __future__ import annotations

import datetime
import gc
import json
import re
import threading
import tracemalloc
from contextlib import contextmanager
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from lab.models import Car, Hooked, Invoice, Kept, Logged, Parcel, Project, Protected, Reasoned, Stamped, Vehicle
from shop.models import Order
from statemachine_fields.machine.findings import CODES, ERROR
from statemachine_fields.machine.verify import Verifier
from tests.docs.pages import DOCS
from tests.patience import PATIENCE

pytestmark = pytest.mark.django_db


class Terminal(StringIO):
    def isatty(self):
        return True


def run(*arguments, **options):
    """Return what the command printed, and the error it ended with or None."""
    out, failure = StringIO(), None
    try:
        call_command("statemachine_verify", *arguments, stdout=out, **options)
    except CommandError as error:
        failure = error
    return out.getvalue(), failure


def document(*arguments, **options):
    return json.loads(run(*arguments, "--format", "json", **options)[0])


def found(*arguments, **options):
    """Return the findings as (row, code)."""
    return [(finding["pk"], finding["code"]) for finding in document(*arguments, **options)["findings"]]


def message(*arguments):
    [finding] = document(*arguments)["findings"]
    return finding["message"]


def sql(text, *params):
    """Write past the machine, as somebody with a database client does."""
    with connection.cursor() as cursor:
        cursor.execute(text, params)


def damage(row, **columns):
    """Overwrite columns of a row."""
    changes = ", ".join(f"{column} = %s" for column in columns)
    key = row._meta.pk.get_db_prep_value(row.pk, connection)
    sql(f"UPDATE {row._meta.db_table} SET {changes} WHERE {row._meta.pk.column} = %s", *columns.values(), key)


def as_stored(time):
    return connection.ops.adapt_datetimefield_value(time)


def apart(rows):
    """Set the times of some rows and their records so that each row moved after the one before it."""
    start = timezone.now() - datetime.timedelta(days=1)
    for place, record in enumerate(record for row in rows for record in row.states.history.order_by("sequence")):
        at = start + datetime.timedelta(minutes=place)
        record.instance.states.history.filter(pk=record.pk).update(transitioned_at=at)
        damage(record.instance, status_changed_at=as_stored(at))


def swap(rows, number):
    """Give each of two rows a record of the other's."""
    [first, second] = rows
    ids = [row.states.history.get(sequence=number).pk for row in rows]
    records = Stamped.states.transition_model.objects
    records.filter(pk=ids[0]).update(sequence=-number)  # past the unique index
    records.filter(pk=ids[1]).update(instance=first)
    records.filter(pk=ids[0]).update(instance=second, sequence=number)


def records_of(row, *numbers):
    return row.states.history.filter(sequence__in=numbers)


def walked(model, *states, **values):
    """Return a new row that moved through the states."""
    return move(model, model.objects.create(**values).pk, *states)


@pytest.fixture
def row():
    """A row with four records, among others that are in order."""
    before, row, after = (walked(Stamped, "DONE", "NEW", "DONE", "NEW") for _ in range(3))
    yield row
    others = {before.pk, after.pk}
    assert not [finding for finding in found("lab.Stamped") if finding[0] in others]


class TestDamage:
    """Each kind is planted and found, under its code and no other."""

    @pytest.mark.parametrize(
        ("harm", "code", "said"),
        [
            ({"counter": 5}, "counter-ahead", "The counter is 5, but the latest record is number 4. Restore"),
            ({"counter": 9}, "counter-ahead", "The counter is 9, but the latest record is number 4. Restore"),
            ({"gone": [3, 4]}, "counter-ahead", "The counter is 4, but the latest record is number 2. Restore"),
            ({"gone": [1, 2, 3, 4]}, "counter-ahead", "The counter is 4, but there is no record."),
            ({"counter": 3}, "counter-behind", "The counter is 3, but "),
            ({"counter": 0}, "counter-behind", "The counter is 0, but "),
        ],
        ids=["ahead", "far ahead", "the tail is missing", "all records are gone", "a record too many", "counts none"],
    )
    def test_counter_that_is_not_that_of_the_records(self, row, harm, code, said):
        records_of(row, *harm.get("gone", [])).delete()
        damage(row, status_sequence=harm.get("counter", 4))
        assert found("lab.Stamped") == [(row.pk, code)]
        assert message("lab.Stamped").startswith(said)

    @pytest.mark.parametrize(
        ("numbers", "named"), [([2], "2"), ([2, 3], "2 to 3"), ([1], "1"), ([1, 3], "1; 3"), ([1, 2, 3], "1 to 3")]
    )
    def test_gap_is_named(self, row, numbers, named):
        records_of(row, *numbers).delete()
        assert found("lab.Stamped") == [(row.pk, "records-missing")]
        assert message("lab.Stamped").startswith(f"Missing records: {named}. Restore")

    def test_many_gaps_are_not_all_named(self):
        row = walked(Stamped, *["DONE", "NEW"] * 5)
        row.states.history.filter(sequence__in=[1, 3, 5, 7, 9]).delete()
        assert message("lab.Stamped").startswith("Missing records: 1; 3; 5; .... Restore")

    @pytest.mark.parametrize("number", [0, -1])
    def test_number_that_cannot_be(self, row, number):
        sql(f"UPDATE {table()} SET sequence = %s WHERE instance_id = %s AND sequence = 1", number, row.pk)
        assert dict(found("lab.Stamped")).keys() == {row.pk}
        assert {code for _pk, code in found("lab.Stamped")} >= {"number-invalid"}

    def test_broken_chain(self, row):
        records_of(row, 3).update(from_status="FAILED", to_status="DONE")
        assert found("lab.Stamped") == [(row.pk, "chain-broken"), (row.pk, "move-undeclared")]

    def test_only_the_first_record_may_come_from_nowhere(self, row):
        records_of(row, 3).update(from_status="")
        assert (row.pk, "chain-broken") in found("lab.Stamped")
        assert (
            "record 3 says that the row came from '', record 2 that it went to 'NEW'"
            in (document("lab.Stamped")["findings"][0]["message"])
        )

    def test_status_that_was_written_past_the_machine(self, row):
        damage(row, status="FAILED")
        assert found("lab.Stamped") == [(row.pk, "status-mismatch")]
        assert message("lab.Stamped").startswith("The status is 'FAILED', but record 4 says 'NEW'. ")

    def test_time_that_was_written_past_the_machine(self, row):
        damage(row, status_changed_at=as_stored(timezone.now() - datetime.timedelta(days=3)))
        assert found("lab.Stamped") == [(row.pk, "time-mismatch")]
        assert re.match(r"The row says that it moved at .*, record 4 at .*\. One of the times", message("lab.Stamped"))

    def test_latest_records_swapped_between_rows(self):
        rows = [walked(Stamped, "DONE", "NEW") for _ in range(2)]
        apart(rows)
        swap(rows, 2)
        assert found("lab.Stamped") == [
            (rows[0].pk, "time-mismatch"),
            (rows[1].pk, "record-misplaced"),
            (rows[1].pk, "time-mismatch"),
        ]

    def test_histories_swapped_between_rows(self):
        rows = [walked(Stamped, "DONE", "NEW") for _ in range(2)]
        apart(rows)
        for number in (1, 2):
            swap(rows, number)
        assert found("lab.Stamped") == [(row.pk, "time-mismatch") for row in rows]

    def test_records_swapped_between_rows(self):
        rows = [walked(Stamped, "DONE", "NEW", "DONE", "NEW") for _ in range(2)]
        apart(rows)
        swap(rows, 2)
        assert found("lab.Stamped") == [(row.pk, "record-misplaced") for row in rows]
        [first, second] = [finding["message"] for finding in document("lab.Stamped")["findings"]]
        assert first.startswith("Both the time and the id of a record are older than those before it: record 3 is of ")
        assert second.startswith("Both the time and the id of a record are older than those before it: record 2 is of ")

    def test_records_that_changed_places(self, row):
        apart([row])
        for old, new in ((1, -1), (3, 1), (-1, 3)):
            sql(f"UPDATE {table()} SET sequence = %s WHERE instance_id = %s AND sequence = %s", new, row.pk, old)
        assert found("lab.Stamped") == [(row.pk, "record-misplaced")]

    def test_row_in_a_state_that_is_not_declared(self, row):
        damage(row, status="LOST")
        records_of(row, 4).update(to_status="LOST")
        assert found("lab.Stamped") == [(row.pk, "status-undeclared"), (row.pk, "state-undeclared")]
        assert run("lab.Stamped")[0].startswith(
            f"error lab.Stamped.states pk={row.pk} status-undeclared: The row is in 'LOST', which is not declared. No move "
        )

    def test_row_without_records_in_a_state_that_is_not_declared(self):
        row = Stamped.objects.create()
        damage(row, status="LOST")
        assert found("lab.Stamped") == [(row.pk, "status-undeclared")]
        assert str(run("lab.Stamped")[1]) == "1 error and 0 warnings."

    def test_save_false_that_was_never_saved(self):
        row = Stamped.objects.create()
        with transaction.atomic():
            row.states.transition_to("DONE", save=False)
        assert found("lab.Stamped") == [(row.pk, "status-mismatch")]

    @pytest.mark.parametrize("others", [0, 1])
    def test_records_whose_row_is_gone(self, others):
        row = walked(Logged, "DONE")
        for _ in range(others):
            Logged.objects.create()
        with unchecked_constraints():
            sql(f"DELETE FROM {Logged._meta.db_table} WHERE id = %s", row.pk)
            assert found("lab.Logged") == [(row.pk, "row-missing")]
            assert message("lab.Logged").startswith("There is no row, but the latest record is number 2. ")
            Logged.states.transition_model.objects.filter(instance_id=row.pk).delete()

    def test_each_row_counts_once_for_each_code(self, row):
        other = walked(Stamped, "DONE", "NEW")
        for damaged in (row, other):
            damage(damaged, status_sequence=7)
        records_of(row, 1).delete()
        assert found("lab.Stamped") == [
            (row.pk, "records-missing"),
            (row.pk, "counter-ahead"),
            (other.pk, "counter-ahead"),
        ]


class TestDrift:
    """The data is whole, and the declaration or a clock is another one: warnings."""

    def test_records_of_states_that_are_not_declared(self, row):
        records_of(row, 1).update(to_status="LOST")
        records_of(row, 2).update(from_status="LOST")
        assert found("lab.Stamped") == [(row.pk, "state-undeclared")]
        assert "record 1 has 'LOST'; record 2 has 'LOST'" in message("lab.Stamped")

    def test_first_record_in_a_state_that_is_not_declared(self):
        row = Logged.objects.create()
        damage(row, status="LOST")
        row.states.history.update(to_status="LOST")
        assert found("lab.Logged") == [(row.pk, "status-undeclared"), (row.pk, "state-undeclared")]

    def test_move_that_is_not_declared(self):
        row = walked(Stamped, "DONE", "NEW")
        records_of(row, 1).update(to_status="FAILED")
        records_of(row, 2).update(from_status="FAILED")
        assert found("lab.Stamped") == [(row.pk, "move-undeclared")]
        assert "record 2 from 'FAILED' to 'NEW'" in message("lab.Stamped")

    @pytest.mark.parametrize("metadata", [{"forced": False}, {"forced": "yes"}, {"other": True}])
    def test_only_true_says_that_a_move_was_forced(self, metadata):
        row = walked(Stamped, "FAILED")
        row.states.force_transition_to("NEW", reason="retry")
        assert found("lab.Stamped") == []
        row.states.history.update(metadata=metadata)
        assert found("lab.Stamped") == [(row.pk, "move-undeclared")]

    def test_time_that_runs_backwards(self, row):
        records_of(row, 3).update(transitioned_at=timezone.now() - datetime.timedelta(days=1))
        assert found("lab.Stamped") == [(row.pk, "time-backwards")]

    def test_times_may_tie(self, row):
        row.states.history.update(transitioned_at=row.status_changed_at)
        assert found("lab.Stamped") == []

    def test_times_may_lose_what_is_below_a_millisecond(self, row):
        """As in a fixture of rows without their records."""
        damage(row, status_changed_at=as_stored(row.status_changed_at.replace(microsecond=500_000)))
        records_of(row, 4).update(transitioned_at=row.status_changed_at.replace(microsecond=500_999))
        records_of(row, 1, 2, 3).update(transitioned_at=row.status_changed_at.replace(microsecond=0))
        assert found("lab.Stamped") == []

    @pytest.mark.parametrize("moves", [[], ["DONE", "NEW"]])
    def test_time_in_the_future(self, moves):
        row = walked(Stamped, *moves)
        later = timezone.now() + datetime.timedelta(hours=1)
        damage(row, status_changed_at=as_stored(later))
        records_of(row, len(moves)).update(transitioned_at=later)
        assert found("lab.Stamped") == [(row.pk, "time-future")]


class TestCleanData:
    @pytest.fixture(autouse=True, params=[1, 2, 2000])
    def batch_size(self, request):
        """However the batches fall."""
        return request.param

    def assert_clean(self, label, batch_size, rows, records):
        [machine] = document(label, batch_size=batch_size)["machines"]
        assert machine == {"machine": label, "rows": rows, "records": records, "errors": 0, "warnings": 0}

    def test_no_rows(self, batch_size):
        self.assert_clean("lab.Stamped.states", batch_size, 0, 0)

    def test_rows_that_never_moved_and_rows_that_did(self, batch_size):
        walked(Stamped, status="FAILED")
        walked(Stamped, "DONE", "NEW", "FAILED")
        walked(Stamped)
        walked(Stamped, *["DONE", "NEW"] * 10)
        walked(Stamped, "DONE")
        self.assert_clean("lab.Stamped.states", batch_size, 5, 24)

    def test_initial_states_that_are_recorded(self, batch_size):
        walked(Logged, "DONE")
        Logged.objects.bulk_create([Logged(status="DONE"), Logged(), Logged()])
        Logged.states.record_initial(Logged.objects.exclude(pk=Logged.objects.latest("pk").pk))
        self.assert_clean("lab.Logged.states", batch_size, 4, 4)

    def test_save_false_and_a_model_with_its_own_save(self, batch_size):
        for model in (Stamped, Hooked):
            row = model.objects.create()
            with transaction.atomic():
                row.states.transition_to("DONE", save=False)
                row.save()
            row.states.transition_to("NEW")
            self.assert_clean(f"lab.{model.__name__}.states", batch_size, 1, 2)

    def test_forced_moves(self, batch_size):
        row = walked(Stamped, "FAILED")
        row.states.force_transition_to("NEW", reason="retry")
        row.states.force_transition_to("NEW", reason="again")
        self.assert_clean("lab.Stamped.states", batch_size, 1, 3)

    def test_two_machines(self, batch_size):
        for moves in (0, 1, 2):
            invoice = Invoice.objects.create()
            for state in ("PAID", "REFUNDED")[:moves]:
                invoice.payment.transition_to(state)
            if moves == 1:
                invoice.states.transition_to("SENT")
        self.assert_clean("lab.Invoice.payment", batch_size, 3, 3)
        self.assert_clean("lab.Invoice.states", batch_size, 3, 1)

    def test_keys_that_are_uuids(self, batch_size):
        for _ in range(7):
            walked(Parcel, "SCANNED", "SCANNED", "LOST")
        self.assert_clean("lab.Parcel.states", batch_size, 7, 21)

    def test_multi_table_child(self, batch_size):
        Vehicle.objects.create().states.transition_to("MOVING")
        for _ in range(3):
            car = Car.objects.create()
            car.states.transition_to("MOVING")
            car.fuel.transition_to("EMPTY")
            car.fuel.transition_to("FULL")
        self.assert_clean("lab.Vehicle.states", batch_size, 4, 4)
        self.assert_clean("lab.Car.fuel", batch_size, 3, 6)

    def test_history_that_outlives_its_row(self, batch_size):
        rows = [walked(Kept, "DONE", "NEW") for _ in range(4)]
        rows[0].delete()
        rows[2].delete()
        rows[3].delete()
        self.assert_clean("lab.Kept.states", batch_size, 1, 8)

    def test_column_of_another_name_and_an_audit_table_with_more_columns(self, batch_size):
        Project.objects.create().flow.transition_to("BUILD")
        walked(Reasoned, "DONE", "NEW")
        self.assert_clean("lab.Project.flow", batch_size, 1, 1)
        self.assert_clean("lab.Reasoned.states", batch_size, 1, 2)


def test_history_that_outlives_its_row_is_verified_too():
    row = walked(Kept, "DONE", "NEW", "DONE")
    key = row.pk
    row.delete()
    Kept.states.transition_model.objects.filter(instance_id=key, sequence=2).delete()

    assert found("lab.Kept") == [(key, "records-missing")]


def test_damage_is_found_wherever_it_falls_in_the_batches():
    rows = [walked(Parcel, "SCANNED", "LOST") for _ in range(9)]
    for row in rows:
        damage(row, status="IN_TRANSIT")

    for size in (1, 2, 3, 4, 9, 10):
        assert sorted(found("lab.Parcel", batch_size=size)) == sorted((str(row.pk), "status-mismatch") for row in rows)


def test_damage_in_a_child_table():
    car = Car.objects.create()
    car.fuel.transition_to("EMPTY")
    sql(f"UPDATE {Car._meta.db_table} SET fuel_state = 'FULL'")

    assert found("lab.Car", "lab.Vehicle") == [(car.pk, "status-mismatch")]


class TestWhileRowsMove:
    """Somebody commits between the read of the rows and the read of their records."""

    pytestmark = pytest.mark.django_db(transaction=True)

    @contextmanager
    def between_the_reads(self, model, act, pages=1):
        """Act on a connection of another thread before the first reads of the audit table; give the statements."""
        statements, left = [], [pages]

        def wrapper(execute, query, params, many, context):
            statements.append(query)
            if model.states.transition_model._meta.db_table in query and left[0]:
                left[0] -= 1
                in_another_thread(act)
            return execute(query, params, many, context)

        with connection.execute_wrapper(wrapper):
            yield statements
        assert not left[0]

    def verify(self, model, act, batch_size=2000, pages=1):
        """Return the findings, and how many rows were read again."""
        with self.between_the_reads(model, act, pages) as statements:
            findings = list(Verifier(model.states._meta, batch_size=batch_size).findings())
        return [finding.code for finding in findings], sum("LEFT OUTER JOIN" in text for text in statements)

    @pytest.mark.parametrize(
        ("before", "moves"),
        [(["DONE", "NEW"], ["DONE"]), (["DONE", "NEW"], ["DONE", "NEW", "DONE"]), ([], ["DONE"])],
        ids=["one move", "some moves", "the first move"],
    )
    def test_row_that_moves_is_not_reported(self, before, moves):
        row = walked(Stamped, *before)
        assert self.verify(Stamped, lambda: move(Stamped, row.pk, *moves)) == ([], 1)

    def test_row_that_is_deleted_is_not_reported(self):
        row = walked(Stamped, "DONE")
        assert self.verify(Stamped, lambda: Stamped.objects.get(pk=row.pk).delete()) == ([], 1)

    def test_row_that_is_new_is_not_reported(self):
        walked(Stamped, "DONE")
        assert self.verify(Stamped, lambda: walked(Stamped, "DONE")) == ([], 1)

    def test_row_that_keeps_moving_through_the_pages_of_its_history_is_not_reported(self):
        row = walked(Stamped, "DONE", "NEW")
        codes, read_again = self.verify(Stamped, lambda: move(Stamped, row.pk, "DONE", "NEW"), batch_size=1, pages=6)
        assert codes == []
        assert read_again > 1

    def test_damage_of_a_row_that_moves_is_reported(self):
        row = walked(Stamped, "DONE", "NEW")
        records_of(row, 1).delete()
        assert self.verify(Stamped, lambda: move(Stamped, row.pk, "DONE")) == (["records-missing"], 1)

    def test_move_that_has_not_committed_is_neither_waited_for_nor_reported(self):
        row = walked(Stamped, "DONE")
        damage(row, status="NEW")
        moved, verified = threading.Event(), threading.Event()

        def hold():
            with transaction.atomic():
                move(Stamped, row.pk, "FAILED")
                moved.set()
                assert verified.wait(PATIENCE)

        holder = threading.Thread(target=closing(hold))
        holder.start()
        try:
            assert moved.wait(PATIENCE)
            assert found("lab.Stamped") == [(row.pk, "status-mismatch")]
        finally:
            verified.set()
            holder.join(PATIENCE)


class TestCost:
    @pytest.mark.parametrize("rows", [20, 50])
    def test_a_batch_is_two_statements(self, rows):
        fill(rows)
        with CaptureQueriesContext(connection) as queries:
            assert not list(Verifier(Stamped.states._meta, batch_size=10).findings())
        assert len(queries) == 2 * (rows // 10 + 1)  # the last one finds that there are no more rows

    def test_warnings_cost_no_statement_more(self):
        fill(50)
        Stamped.states.transition_model.objects.update(from_status="LOST")
        with CaptureQueriesContext(connection) as queries:
            assert len(list(Verifier(Stamped.states._meta, batch_size=10).findings())) == 50
        assert len(queries) == 12

    def test_no_statement_skips_rows_by_offset(self):
        fill(30)
        with CaptureQueriesContext(connection) as queries:
            list(Verifier(Stamped.states._meta, batch_size=10).findings())
        assert not [query for query in queries if "OFFSET" in query["sql"]]

    def test_memory_does_not_grow_with_the_tables(self):
        fill(2_000)
        small = peak_memory(batch_size=1000)
        fill(18_000)
        assert peak_memory(batch_size=1000) < 1.2 * small

    def test_memory_does_not_grow_with_one_history(self):
        lengthen(row := Stamped.objects.create(), 2_000)
        small = peak_memory(batch_size=250)
        lengthen(row, 10_000)
        assert peak_memory(batch_size=250) < 1.2 * small


class TestCommand:
    def test_a_line_for_each_machine(self):
        walked(Stamped, "DONE", "NEW")
        walked(Logged)
        assert run("lab.Stamped", "lab.Logged") == (
            "lab.Stamped.states: 1 row, 2 records, 0 errors, 0 warnings\n"
            "lab.Logged.states: 1 row, 1 record, 0 errors, 0 warnings\n",
            None,
        )

    def test_thousands_are_separated(self):
        fill(1_234)
        assert run("lab.Stamped")[0].startswith("lab.Stamped.states: 1,234 rows, 1,234 records, ")

    def test_without_labels_every_machine_is_verified(self):
        names = [machine["machine"] for machine in document()["machines"]]
        assert {"shop.Order.states", "lab.Car.fuel", "lab.Vehicle.states", "lab.Invoice.payment"} <= set(names)
        assert len(names) == len(set(names))

    def test_unknown_label_is_refused(self):
        with pytest.raises(CommandError, match="Did you mean 'Stamped'"):
            call_command("statemachine_verify", "lab.Stampd")

    def test_a_line_for_each_finding(self, row):
        damage(row, status="DONE")
        out, failure = run("lab.Stamped")
        assert out.startswith(
            f"error lab.Stamped.states pk={row.pk} status-mismatch: The status is 'DONE', but record 4 says 'NEW'. "
        )
        assert out.endswith("\nlab.Stamped.states: 3 rows, 12 records, 1 error, 0 warnings\n")
        assert (str(failure), failure.returncode) == ("1 error and 0 warnings.", 1)

    def test_warnings_fail_only_if_strict(self, row):
        records_of(row, 1).update(from_status="LOST")
        out, failure = run("lab.Stamped")
        assert failure is None
        assert out.startswith(f"warning lab.Stamped.states pk={row.pk} state-undeclared: ")
        assert run("lab.Stamped", "--strict")[1].returncode == 1

    def test_strict_and_clean(self, row):
        assert run("lab.Stamped", "--strict")[1] is None

    @pytest.mark.parametrize(
        ("limit", "hidden"), [(0, "5 more findings"), (2, "3 more findings"), (4, "1 more finding")]
    )
    def test_limit_bounds_what_is_shown_and_not_what_is_counted(self, limit, hidden):
        fill(3)
        Stamped.states.transition_model.objects.all().delete()
        for row in Project.objects.bulk_create([Project(), Project()]):
            sql(f"UPDATE {Project._meta.db_table} SET phase_sequence = 1 WHERE id = %s", row.pk)
        out, failure = run("lab.Stamped", "lab.Project", "--limit", str(limit))
        assert len(re.findall("^error ", out, re.MULTILINE)) == limit
        assert "lab.Stamped.states: 3 rows, 0 records, 3 errors" in out
        assert "lab.Project.flow: 2 rows, 0 records, 2 errors" in out
        assert out.endswith(f"\n{hidden} not shown. Raise --limit to see more.\n")
        assert str(failure) == "5 errors and 0 warnings."

    def test_json(self):
        row = walked(Parcel, "SCANNED")
        damage(row, status="LOST")
        out, failure = run("lab.Parcel", "--format", "json", "--limit", "1")
        assert json.loads(out) == {
            "findings": [
                {
                    "machine": "lab.Parcel.states",
                    "pk": str(row.pk),
                    "severity": "error",
                    "code": "status-mismatch",
                    "message": f"The status is 'LOST', but record 1 says 'SCANNED'. {CODES['status-mismatch'].remedy}",
                }
            ],
            "hidden": 0,
            "machines": [{"machine": "lab.Parcel.states", "rows": 1, "records": 1, "errors": 1, "warnings": 0}],
        }
        assert failure.returncode == 1

    @pytest.mark.parametrize("option", [("--limit", "-1"), ("--batch-size", "0"), ("--database", "nowhere")])
    def test_options_out_of_range_are_refused(self, option):
        assert option[0] in str(run("lab.Stamped", *option)[1])

    @pytest.mark.django_db(databases=["default", "other"])
    def test_database_is_the_one_to_read(self):
        row = Order.objects.using("other").create(customer="Ada", total=1)
        row.states.transition_to("PAID")
        assert "shop.Order.states: 1 row, 1 record," in run("shop", "--database", "other")[0]
        assert "shop.Order.states: 0 rows, 0 records," in run("shop")[0]

    def test_database_without_the_tables_is_refused(self, settings):
        settings.DATABASE_ROUTERS = ["tests.management.test_statemachine_verify.Nowhere"]
        assert str(run("lab.Stamped")[1]) == "None of these machines has its table in the database 'default'."


class TestProgress:
    def progress(self, err, *arguments):
        call_command("statemachine_verify", "lab.Stamped", *arguments, stdout=StringIO(), stderr=err)
        return err.getvalue()

    def test_is_one_line_of_a_terminal_and_leaves_nothing(self):
        fill(100)
        shown = self.progress(Terminal(), "--batch-size", "10")
        assert shown.startswith("\rlab.Stamped.states [###...........................]  10% of 100 rows\x1b[K")
        assert "\n" not in shown
        assert shown.endswith("\r\x1b[K")

    def test_is_written_a_few_times_a_second(self, monkeypatch):
        monkeypatch.setattr("statemachine_fields.management.progress.PROGRESS_EVERY", 3600)
        fill(100)
        assert self.progress(Terminal(), "--batch-size", "10").count("lab.Stamped") <= 1

    def test_can_be_switched_off_and_is_for_terminals_only(self):
        fill(10)
        assert self.progress(Terminal(), "--no-progress") == self.progress(StringIO()) == ""


class TestCodes:
    def test_every_code_is_documented_with_its_severity(self):
        page = (DOCS / "howto/verify.md").read_text()
        documented = dict(re.findall(r"^\| `([a-z-]+)` +\| (\w+) +\|", page, re.MULTILINE))
        assert documented == {name: code.severity for name, code in CODES.items()}

    def test_damage_is_an_error(self):
        assert {name for name, code in CODES.items() if code.severity == ERROR} == {
            "attempt-misplaced",
            "attempt-number-invalid",
            "attempt-row-missing",
            "chain-broken",
            "counter-ahead",
            "counter-behind",
            "event-numbers",
            "event-taker-missing",
            "event-unseen",
            "number-invalid",
            "record-misplaced",
            "records-missing",
            "row-missing",
            "status-mismatch",
            "status-undeclared",
            "time-mismatch",
        }


class Nowhere:
    """A router that puts no table anywhere."""

    def allow_migrate(self, db, app_label, **hints):
        return False


def table(model=Stamped):
    return model.states.transition_model._meta.db_table


def move(model, pk, *states):
    row = model.objects.get(pk=pk)
    for state in states:
        row.states.transition_to(state)
    return row


def closing(act):
    """Return the function with the thread's connections closed behind it."""

    def run():
        try:
            act()
        finally:
            connections.close_all()

    return run


def in_another_thread(act):
    thread = threading.Thread(target=closing(act))
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def peak_memory(batch_size):
    """Return the most bytes that a verifier of clean rows holds at once.

    A queryset is garbage in cycles once it is done with. It is collected after each page, because when Python would do
    so is another matter; what was there before is frozen, because looking through it takes long.
    """

    def verify():
        assert not list(
            Verifier(Stamped.states._meta, batch_size=batch_size, on_page=lambda verifier: gc.collect()).findings()
        )

    gc.collect()
    gc.freeze()
    try:
        verify()  # loads what is loaded once
        tracemalloc.start()
        verify()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.unfreeze()


def fill(count):
    """Insert rows that moved once, quickly."""
    rows = Stamped.objects.bulk_create([Stamped(status="DONE") for _ in range(count)], batch_size=2000)
    if not connection.features.can_return_rows_from_bulk_insert:
        rows = Stamped.objects.filter(status_sequence=0)
    record = Stamped.states.transition_model
    now = timezone.now()
    record.objects.bulk_create(
        (
            record(instance_id=row.pk, from_status="NEW", to_status="DONE", sequence=1, transitioned_at=now)
            for row in rows
        ),
        batch_size=2000,
    )
    changes = "status_sequence = 1, status_changed_at = %s"
    sql(f"UPDATE {Stamped._meta.db_table} SET {changes} WHERE status_sequence = 0", as_stored(now))


def lengthen(row, count):
    """Add records to a history, quickly."""
    record, length = Stamped.states.transition_model, row.states.history.count()
    states, now = ("NEW", "DONE"), timezone.now()
    record.objects.bulk_create(
        (
            record(
                instance=row,
                from_status=states[n % 2],
                to_status=states[1 - n % 2],
                sequence=n + 1,
                transitioned_at=now,
            )
            for n in range(length, length + count)
        ),
        batch_size=2000,
    )
    damage(row, status_sequence=length + count, status_changed_at=as_stored(now))


@contextmanager
def unchecked_constraints():
    """Let a row be deleted from under its records, as a restore or a client with foreign keys off does."""
    if connection.vendor != "postgresql":
        with connection.constraint_checks_disabled():
            yield
        return
    sql("SET session_replication_role = replica")
    yield
    sql("SET session_replication_role = DEFAULT")


def test_protected_history_is_verified_like_any():
    row = walked(Protected, "DONE")
    damage(row, status="NEW")
    assert found("lab.Protected") == [(row.pk, "status-mismatch")]
