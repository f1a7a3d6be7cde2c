"""`Order.states`: what the class face tells, and the first records it writes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from django.db import connection, models
from django.test.utils import CaptureQueriesContext
from django.utils import translation

import statemachine_fields
from lab.models import (
    Car,
    Invoice,
    Kept,
    Logged,
    Parcel,
    Project,
    Protected,
    Reasoned,
    Stamped,
    Ticket,
    Unindexed,
    Vehicle,
)
from statemachine_fields import BoundMachine, StateMachineAccessor, StateTransition
from statemachine_fields.machine.binding import Binding

pytestmark = pytest.mark.django_db


def shown(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


class TestClassFace:
    def test_is_one_object_for_each_machine(self):
        assert isinstance(Invoice.states, BoundMachine)
        assert Invoice.states is Invoice.states
        assert str(Invoice.payment) == "lab.Invoice.payment"
        assert repr(Invoice.payment) == "<BoundMachine lab.Invoice.payment>"

    def test_shows_what_the_reference_page_lists_and_nothing_else(self):
        page = (Path(__file__).parents[2] / "docs/reference/machine.md").read_text()
        listed = re.search(r"BoundMachine\(\)\n +:members: ([\w,\s]+?)\n +:", page)
        assert listed is not None
        assert shown(Invoice.states) == {name.strip() for name in listed[1].split(",")}

    def test_of_a_row_shows_what_is_described_and_nothing_else(self):
        described = {
            name for name in shown(StateMachineAccessor) if inspect.getdoc(getattr(StateMachineAccessor, name))
        }
        assert shown(Invoice().states) == described

    def test_knows_its_model_and_its_name_there(self):
        assert (Invoice.payment.model, Invoice.payment.accessor) == (Invoice, "payment")
        assert Car.states.model is Vehicle

    def test_terminal_states(self):
        assert Invoice.payment.terminal_states == ("REFUNDED",)
        assert Project.flow.terminal_states == ()

    def test_labels_follow_the_active_language(self):
        with translation.override("de"):
            assert Ticket.states.states[1] == ("monday", "Montag")
            assert Ticket(status="monday").states.display == "Montag"
        assert Ticket(status="monday").states.display == "Monday"

    def test_a_state_object_may_leave_its_label_out(self):
        assert Parcel.states.states[0] == ("IN_TRANSIT", "In transit")

    def test_repr_of_a_row(self):
        assert repr(Project(pk=3).flow) == "<lab.Project.flow of lab.Project pk=3: PLAN>"

    def test_the_accessor_is_safe_in_templates(self):
        from django.template import Context, Template

        project = Project.objects.create()
        text = Template("{{ p.flow.current }} {{ p.flow.display }} {{ p.flow.transition_to }}").render(
            Context({"p": project})
        )
        assert text == "PLAN Plan "


class TestOptions:
    def test_field_names_the_column_and_what_follows_it(self):
        assert [field.name for field in Project._meta.fields] == ["id", "phase", "phase_sequence", "phase_changed_at"]
        assert Project.flow.transition_model.__name__ == "ProjectPhaseStateTransition"
        project = Project.objects.create()
        project.flow.transition_to("BUILD")
        assert project.phase_transitions.get().to_status == "BUILD"

    def test_the_status_column_is_as_long_as_asked(self):
        for name in ("status", "from_status", "to_status"):
            model = Unindexed if name == "status" else Unindexed.states.transition_model
            assert model._meta.get_field(name).max_length == 8

    def test_the_index_may_be_left_out(self):
        assert Unindexed._meta.indexes == []

    def test_there_is_one_plain_index(self):
        with connection.cursor() as cursor:
            constraints = connection.introspection.get_constraints(cursor, Kept._meta.db_table)
        indexes = [c for c in constraints.values() if c["index"] and c["columns"] == ["status"]]
        assert len(indexes) == 1

    def test_the_audit_table_has_its_key_and_one_unique_index(self):
        with connection.cursor() as cursor:
            constraints = connection.introspection.get_constraints(
                cursor, Protected.states.transition_model._meta.db_table
            )
        indexed = sorted(c["columns"] for c in constraints.values() if c["primary_key"] or c["unique"] or c["index"])
        assert [columns for columns in indexed if columns] == [["id"], ["instance_id", "sequence"]]

    def test_kept_history_has_no_constraint(self):
        field = Kept.states.transition_model._meta.get_field("instance")
        assert (field.null, field.db_constraint, field.remote_field.on_delete) == (True, False, models.DO_NOTHING)

    def test_the_fields_of_a_transition_base_join_the_audit_table(self):
        names = {field.name for field in Reasoned.states.transition_model._meta.get_fields()}
        assert {"actor", "reason", "sequence", "instance"} <= names


class TestStateTransition:
    def test_is_the_base_of_every_audit_model(self):
        assert issubclass(Kept.states.transition_model, StateTransition)
        assert StateTransition._meta.abstract

    def test_can_be_subscripted_in_annotations(self):
        assert StateTransition[Kept] is StateTransition

    def test_reads_well(self):
        record = Kept.objects.create().states.transition_to("DONE")
        assert str(record) == "NEW → DONE"

    def test_can_be_deleted_through_a_queryset_and_the_gap_shows(self):
        row = Kept.objects.create()
        for state in ("DONE", "NEW", "DONE"):
            row.states.transition_to(state)
        row.states.history.filter(sequence=3).delete()
        assert row.states.transition_to("NEW").sequence == 4

    def test_a_name_that_does_not_exist_is_an_attribute_error(self):
        with pytest.raises(AttributeError, match="has no attribute 'StateTransitions'"):
            statemachine_fields.StateTransitions  # noqa: B018


class TestRecordInitial:
    def test_a_new_row_gets_its_first_record(self):
        row = Logged.objects.create(status="DONE")
        record = row.states.history.get()
        assert (record.from_status, record.to_status, record.sequence) == ("", "DONE", 1)
        assert record.transitioned_at == row.status_changed_at
        assert (row.status_sequence, Logged.objects.get().status_sequence) == (1, 1)
        assert str(record) == "· → DONE"

    def test_moves_count_on_from_there(self):
        row = Logged.objects.create()
        assert row.states.transition_to("DONE").sequence == 2

    def test_later_saves_record_nothing(self):
        row = Logged.objects.create()
        row.save()
        Logged.objects.get().save()
        Logged.objects.update_or_create(pk=row.pk, defaults={"name": "b"})
        assert row.states.history.count() == 1

    def test_a_row_with_a_key_of_its_own(self):
        Logged(pk=9).save()
        assert Logged.objects.get().states.history.count() == 1
        Logged(pk=9, name="again").save()
        assert Logged.objects.get().states.history.count() == 1

    def test_a_clone_gets_one_too(self):
        row = Logged.objects.create()
        row.states.transition_to("DONE")
        row.pk = None
        row.save()
        assert [t.to_status for t in row.states.history] == ["DONE"]

    def test_row_and_record_are_one_transaction(self, transactional_db, monkeypatch):
        def broken(*args, **kwargs):
            raise RuntimeError("killed")

        monkeypatch.setattr(Binding, "record_first", broken)
        with pytest.raises(RuntimeError):
            Logged.objects.create()
        assert not Logged.objects.exists()

    def test_models_without_it_pay_nothing(self, django_assert_num_queries):
        with django_assert_num_queries(2):
            Stamped.objects.create()
            Kept.objects.create()  # whose key is new, so nothing can have been kept of it

    def test_rows_of_bulk_create_are_recorded_on_demand(self):
        Logged.objects.bulk_create([Logged(status="DONE"), Logged()])
        moved = Logged.objects.create()
        assert Logged.states.record_initial(Logged.objects.all()) == 2
        assert Logged.states.record_initial(Logged.objects.all()) == 0
        for row in Logged.objects.all():
            assert [t.to_status for t in row.states.history] == [row.status]
        assert moved.states.history.count() == 1

    def test_in_batches_of_bounded_size(self):
        Kept.objects.bulk_create([Kept() for _ in range(25)])
        with CaptureQueriesContext(connection) as queries:
            assert Kept.states.record_initial(Kept.objects.all(), batch_size=10) == 25
        inserts = [query["sql"] for query in queries if query["sql"].startswith("INSERT")]
        assert len(inserts) == 3
        assert Kept.states.transition_model.objects.count() == 25

    def test_of_any_kind_of_queryset(self):
        Kept.objects.bulk_create([Kept() for _ in range(6)])
        assert Kept.states.record_initial(Kept.objects.order_by("-pk")[:2]) == 2
        assert Kept.states.record_initial(Kept.objects.distinct().reverse(), batch_size=3) == 4
        assert Kept.states.transition_model.objects.count() == 6

    def test_writes_to_where_the_router_says(self, django_assert_num_queries, settings):
        Kept.objects.bulk_create([Kept()])
        settings.DATABASE_ROUTERS = [type("Reader", (), {"db_for_read": lambda *_, **__: "nowhere"})()]
        assert Kept.states.record_initial(Kept.objects.all()) == 1

    def test_of_a_filtered_queryset(self):
        Kept.objects.bulk_create([Kept(), Kept(status="DONE")])
        assert Kept.states.record_initial(Kept.objects.filter(status="DONE")) == 1
        assert Kept.objects.get(status="NEW").states.history.count() == 0
