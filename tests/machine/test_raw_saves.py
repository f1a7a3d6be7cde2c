"""Raw saves: fixtures, and libraries that bring back an earlier version of a row by deserialising it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.core import serializers
from django.db import models, transaction

from lab.models import Audited, Invoice, Logged, Petition, Ping, RacingCar, Stamped, Vehicle
from statemachine_fields.machine.registry import machines_of
from statemachine_fields.machine.verify import Verifier
from tests.worker.rows import set_clock

pytestmark = pytest.mark.django_db

WARNING = (
    "lab.Stamped pk={pk}: a raw save, as by loaddata or by a library that keeps versions of rows, holds 'status' as of "
    "transition 1, and the row has had 4. So its machine's columns were left alone: it stays in 'NEW'. All other fields were "
    "written. To bring its state back too, move it with force_transition_to()."
)


def version_of(row: models.Model) -> str:
    """Return what a library keeps of a row to bring it back later."""
    row.refresh_from_db()
    return str(serializers.serialize("json", [row]))


def revert(version: str) -> models.Model:
    (loaded,) = serializers.deserialize("json", version)
    loaded.save()
    return loaded.object


def stored(row: models.Model, *columns: str) -> dict[str, Any]:
    """Return what the database has in the columns of the row's machines, or in those named."""
    machines = machines_of(type(row)).values()
    names = columns or tuple(column for bound in machines for column in bound.columns)
    return type(row)._default_manager.values(*names).get(pk=row.pk)


def damage(row: models.Model) -> list[str]:
    return [
        finding.code
        for bound in machines_of(type(row)).values()
        for finding in Verifier(bound, using="default").findings()
    ]


class TestAnEarlierVersion:
    @pytest.fixture
    def row(self) -> Stamped:
        row = Stamped.objects.create(name="a")
        row.states.transition_to("DONE")
        return row

    @pytest.fixture
    def version(self, row: Stamped) -> str:
        """Return the row as of transition 1; it has had 4."""
        version = version_of(row)
        row.states.transition_to("NEW")
        row.states.transition_to("DONE")
        row.states.transition_to("NEW")
        Stamped.objects.filter(pk=row.pk).update(name="b")
        return version

    def test_leaves_the_machines_columns_alone(self, row, version):
        before = stored(row)
        revert(version)
        assert stored(row) == before
        assert stored(row, "name") == {"name": "a"}
        assert damage(row) == []

    def test_gives_an_instance_that_says_what_the_row_does(self, row, version):
        reverted = revert(version)
        assert {name: getattr(reverted, name) for name in stored(row)} == stored(row)
        reverted.save()

    def test_may_be_moved_on(self, row, version):
        reverted = revert(version)
        reverted.states.transition_to("FAILED")
        assert [each.sequence for each in row.states.history] == [5, 4, 3, 2, 1]

    def test_is_told_in_the_log(self, row, version, caplog):
        with caplog.at_level(logging.WARNING, logger="statemachine_fields.machine"):
            revert(version)
        assert [record.message for record in caplog.records] == [WARNING.format(pk=row.pk)]

    def test_does_not_reset_the_clock(self):
        row = Ping.objects.create()
        version = version_of(row)
        row.states.transition_to(*Ping.states.transitions[row.status][:1])
        before = stored(row)
        revert(version)
        assert stored(row) == before

    @pytest.mark.parametrize(
        "since",
        [{"lease_token": 5, "lease_owner": "w"}, {"lease_token": 2, "attempts": 1}],
        ids=["held by a worker", "tried"],
    )
    def test_does_not_undo_what_workers_did_since(self, since):
        row = Ping.objects.create()
        version = version_of(row)
        set_clock(row, **since)
        revert(version)
        written = {f"status_{name}": value for name, value in since.items()}
        assert stored(row, *written) == written

    def test_is_judged_for_each_machine(self):
        invoice = Invoice.objects.create()
        invoice.states.transition_to("SENT")
        version = version_of(invoice).replace('"DUE"', '"PAID"')
        invoice.payment.transition_to("PAID")
        invoice.payment.transition_to("REFUNDED")
        revert(version.replace('"number": ""', '"number": "7"'))
        assert stored(invoice, "status", "payment_status", "number") == {
            "status": "SENT",
            "payment_status": "REFUNDED",
            "number": "7",
        }
        assert damage(invoice) == []

    def test_from_before_the_machine_was_there(self, row, version):
        old = version.replace('"status": "DONE", "status_sequence": 1, ', "").replace(
            '"status_changed_at"', '"ignored"'
        )
        before = stored(row)
        for loaded in serializers.deserialize("json", old, ignorenonexistent=True):
            loaded.save()
        assert stored(row) == before

    def test_that_writes_other_fields_only_is_no_concern(self, row, version, caplog):
        (loaded,) = serializers.deserialize("json", version)
        models.Model.save_base(loaded.object, raw=True, update_fields=["name"])
        assert (stored(row, "name"), caplog.records) == ({"name": "a"}, [])

    def test_of_a_child_writes_the_childs_table_alone(self):
        car = RacingCar.objects.create()
        version = version_of(car)
        (target, *_rest) = car.states.get_valid_transitions()
        car.states.transition_to(target)
        before = stored(car, *Vehicle.states._meta.columns)
        revert(version)
        assert stored(car, *Vehicle.states._meta.columns) == before


class TestWhatIsCopied:
    def test_a_new_row_as_it_was(self, django_assert_num_queries):
        row = Stamped.objects.create()
        row.states.transition_to("DONE")
        version, before = version_of(row), stored(row)
        Stamped.objects.filter(pk=row.pk).delete()
        with django_assert_num_queries(2):  # as without a machine
            reverted = revert(version)
        after = stored(row)
        assert (after["status"], after["status_sequence"]) == ("DONE", 1)
        assert abs((after["status_changed_at"] - before["status_changed_at"]).total_seconds()) < 0.001
        assert reverted.status_changed_at == after["status_changed_at"]

    def test_a_new_row_without_a_time(self):
        row = Audited(pk=77)
        models.Model.save_base(row, raw=True)
        assert stored(row)["status_changed_at"] == row.status_changed_at

    def test_a_row_without_a_time_over_one_that_exists(self):
        row = Audited.objects.create()
        twin = Audited(pk=row.pk, status="DONE", status_sequence=2)
        models.Model.save_base(twin, raw=True)
        assert stored(row)["status"] == "DONE"
        assert stored(row)["status_changed_at"] == twin.status_changed_at

    def test_a_row_whose_counter_is_not_behind(self, caplog):
        row = Logged.objects.create()
        version = version_of(row)
        for ahead in (version, version.replace('"status_sequence": 1', '"status_sequence": 4').replace("NEW", "DONE")):
            revert(ahead)
        assert stored(row, "status", "status_sequence") == {"status": "DONE", "status_sequence": 4}
        assert caplog.records == []

    @pytest.mark.django_db(transaction=True)
    def test_a_move_in_between_is_not_taken_for_an_earlier_version(self, caplog):
        """The row is read back in the transaction that wrote it, so that nobody can have moved it."""
        row = Stamped.objects.create()
        blocks: list[bool] = []

        def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            if "lab_stamped" in sql:
                blocks.append(context["connection"].in_atomic_block)
            return execute(sql, params, many, context)

        with transaction.get_connection().execute_wrapper(watch):
            revert(version_of(row))
        assert blocks[-2:] == [True, True]


@pytest.mark.django_db
class TestEvents:
    def test_an_earlier_version_takes_back_no_event_that_came_since(self):
        row = Petition.objects.create()
        row.states.transition_to("HEARD")
        version = version_of(Petition.objects.get())
        row.states.deliver("denied")
        revert(version)

        assert stored(row)["status_inbox"] == 1
        assert stored(row)["status_next_at"] is not None

    def test_rows_and_their_events_load_as_they_were(self):
        row = Petition.objects.create()
        row.states.transition_to("HEARD")
        row.states.deliver("denied", {"a": 1}, dedup_key="x")
        copies = [
            version_of(each) for each in (Petition.objects.get(), row.states.history.get(), row.states.events.get())
        ]
        row.delete()
        for copy in copies:
            revert(copy)

        found = Petition.objects.get()
        assert (found.status_inbox, found.states.events.get().payload) == (1, {"a": 1})
