"""The reference page, line by line and in its order: each section of the page is a class here."""

from __future__ import annotations

import datetime
import uuid

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, models, transaction
from django.test.utils import CaptureQueriesContext

from reference.models import (  # type: ignore[attr-defined]  # audit models are made at run time
    Order,
    OrderStateTransition,
    TaskExecution,
    TaskExecutionStateTransition,
)
from statemachine_fields import InvalidStateTransition, StateMachine, StateMachineError
from statemachine_fields.machine.audit import StateTransition

pytestmark = pytest.mark.django_db


def stored_status(row):
    return type(row)._base_manager.values_list("status", flat=True).get(pk=row.pk)


class TestOverview:
    def test_enforces_allowed_transitions_at_runtime(self):
        with pytest.raises(InvalidStateTransition):
            Order.objects.create().states.transition_to("DELIVERED")

    def test_each_model_has_its_own_transition_table(self):
        assert OrderStateTransition._meta.db_table == "reference_orderstatetransition"
        assert TaskExecutionStateTransition._meta.db_table == "reference_taskexecutionstatetransition"

    def test_records_all_state_changes_with_timestamp_and_metadata(self):
        order = Order.objects.create()
        order.states.transition_to("CONFIRMED", metadata={"by": "phone"})
        record = OrderStateTransition.objects.get()
        assert record.transitioned_at is not None
        assert record.metadata == {"by": "phone"}

    def test_all_operations_are_behind_one_accessor(self):
        assert {name for name in vars(Order) if "transition" in name} == {"status_transitions"}
        assert {"current", "display", "is_terminal", "history", "transition_to"} <= set(dir(Order().states))


class TestDefiningAStateMachine:
    def test_creates_a_status_char_field_with_the_choices(self):
        field = Order._meta.get_field("status")
        assert isinstance(field, models.CharField)
        assert field.choices == [
            ("PENDING", "Pending"),
            ("CONFIRMED", "Confirmed"),
            ("SHIPPED", "Shipped"),
            ("DELIVERED", "Delivered"),
            ("CANCELLED", "Cancelled"),
        ]
        assert Order(status="SHIPPED").get_status_display() == "Shipped"

    def test_creates_a_transition_model(self):
        assert issubclass(OrderStateTransition, StateTransition)
        assert OrderStateTransition.__name__ == "OrderStateTransition"
        assert OrderStateTransition._meta.app_label == "reference"

    def test_creates_the_states_accessor(self):
        assert Order().states.current == "PENDING"


class TestTransitioningStates:
    def test_starts_in_the_initial_state(self):
        order = Order.objects.create()
        assert order.status == "PENDING"
        assert order.states.current == "PENDING"
        assert stored_status(order) == "PENDING"

    def test_transitions_to_a_new_state(self):
        order = Order.objects.create()
        order.states.transition_to("CONFIRMED")
        assert order.status == "CONFIRMED"
        assert stored_status(order) == "CONFIRMED"

    def test_stores_metadata(self):
        order = Order.objects.create()
        order.states.transition_to("CONFIRMED")
        order.states.transition_to("SHIPPED", metadata={"carrier": "DHL", "tracking": "12345"})
        assert order.states.history.first().metadata == {"carrier": "DHL", "tracking": "12345"}


class TestCheckingTransitions:
    def test_can_transition_to_says_whether_a_transition_is_allowed(self):
        order = Order.objects.create(status="CONFIRMED")
        assert order.states.can_transition_to("SHIPPED") is True
        assert order.states.can_transition_to("DELIVERED") is False
        assert order.states.can_transition_to("NONSENSE") is False

    def test_get_valid_transitions_lists_them_in_the_order_declared(self):
        assert Order(status="CONFIRMED").states.get_valid_transitions() == ["SHIPPED", "CANCELLED"]

    def test_get_valid_transitions_returns_a_copy(self):
        Order().states.get_valid_transitions().clear()
        assert Order().states.get_valid_transitions() == ["CONFIRMED", "CANCELLED"]

    @pytest.mark.parametrize("state", ["PENDING", "CONFIRMED", "SHIPPED", "DELIVERED", "CANCELLED"])
    def test_terminal_states_have_no_outbound_transitions_and_others_have(self, state):
        assert Order(status=state).states.is_terminal is (state in ("DELIVERED", "CANCELLED"))


class TestViewingHistory:
    @pytest.fixture
    def order(self):
        order = Order.objects.create()
        for state in ["CONFIRMED", "SHIPPED", "DELIVERED"]:
            order.states.transition_to(state, metadata={"note": state.lower()})
        return order

    def test_iterates_over_all_transitions_of_this_instance(self, order):
        Order.objects.create().states.transition_to("CANCELLED")
        seen = [(t.from_status, t.to_status, t.metadata) for t in order.states.history]
        assert seen == [
            ("SHIPPED", "DELIVERED", {"note": "delivered"}),
            ("CONFIRMED", "SHIPPED", {"note": "shipped"}),
            ("PENDING", "CONFIRMED", {"note": "confirmed"}),
        ]

    def test_first_is_the_most_recent(self, order):
        assert order.states.history.first().to_status == "DELIVERED"

    def test_count(self, order):
        assert order.states.history.count() == 3

    def test_is_newest_first_when_timestamps_tie(self, order):
        order.states.history.update(transitioned_at=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
        assert [t.to_status for t in order.states.history] == ["DELIVERED", "SHIPPED", "CONFIRMED"]


class TestConstructor:
    def test_takes_states_initial_and_transitions_by_position_or_keyword(self):
        by_position = StateMachine([("A", "A"), ("B", "B")], "A", {"A": ["B"]})
        by_keyword = StateMachine(states=[("A", "A"), ("B", "B")], initial="A", transitions={"A": ["B"]})
        assert by_position.graph == by_keyword.graph


class TestAccessorProperties:
    def test_current(self):
        assert Order(status="SHIPPED").states.current == "SHIPPED"

    def test_display(self):
        assert Order(status="SHIPPED").states.display == "Shipped"

    def test_history_is_a_queryset_ordered_by_most_recent_first(self):
        history = Order.objects.create().states.history
        assert isinstance(history, models.QuerySet)
        assert history.query.order_by == ("-sequence",)


class TestAccessorMethods:
    def test_can_transition_to_returns_a_bool(self):
        assert Order().states.can_transition_to("CONFIRMED") is True

    def test_get_valid_transitions_returns_a_list_of_strings(self):
        assert Order().states.get_valid_transitions() == ["CONFIRMED", "CANCELLED"]

    def test_transition_to_returns_the_transition(self):
        order = Order.objects.create()
        record = order.states.transition_to("CONFIRMED")
        assert isinstance(record, OrderStateTransition)
        assert record == OrderStateTransition.objects.get()


class TestTransitionToParameters:
    def test_the_target_can_be_given_by_name(self):
        order = Order.objects.create()
        order.states.transition_to(new_status="CONFIRMED", metadata=None, save=True)
        assert order.status == "CONFIRMED"

    def test_all_three_can_be_given_by_position(self):
        order = Order.objects.create()
        order.states.transition_to("CONFIRMED", {"by": "phone"}, True)
        assert order.states.history.get().metadata == {"by": "phone"}

    def test_metadata_is_an_empty_dict_by_default(self):
        assert Order.objects.create().states.transition_to("CONFIRMED").metadata == {}

    def test_save_false_updates_memory_and_record_but_not_the_row(self):
        order = Order.objects.create()
        with transaction.atomic():
            order.states.transition_to("CONFIRMED", save=False)
            assert order.status == "CONFIRMED"
            assert stored_status(order) == "PENDING"
            assert order.states.history.count() == 1
            order.save()
        assert stored_status(order) == "CONFIRMED"


class TestTransitionModelFields:
    @pytest.fixture
    def record(self):
        return Order.objects.create().states.transition_to("CONFIRMED", metadata={"a": 1})

    def test_id_is_a_uuid_primary_key(self, record):
        assert isinstance(record.id, uuid.UUID)
        assert record.pk == record.id

    def test_instance_is_a_foreign_key_to_the_parent_model(self, record):
        field = OrderStateTransition._meta.get_field("instance")
        assert isinstance(field, models.ForeignKey)
        assert field.related_model is Order
        assert record.instance == Order.objects.get()

    def test_from_status_and_to_status(self, record):
        assert (record.from_status, record.to_status) == ("PENDING", "CONFIRMED")
        for name in ("from_status", "to_status"):
            assert isinstance(OrderStateTransition._meta.get_field(name), models.CharField)

    def test_transitioned_at(self, record):
        age = datetime.datetime.now(datetime.UTC) - record.transitioned_at
        assert abs(age) < datetime.timedelta(minutes=1)

    def test_metadata_is_json_and_an_empty_dict_by_default(self, record):
        assert isinstance(OrderStateTransition._meta.get_field("metadata"), models.JSONField)
        assert OrderStateTransition().metadata == {}
        assert record.metadata == {"a": 1}

    def test_sequence_which_the_page_does_not_name_counts_from_one_and_is_unique_per_instance(self, record):
        assert record.sequence == 1
        twin = OrderStateTransition(instance=record.instance, sequence=1, transitioned_at=record.transitioned_at)
        with pytest.raises(IntegrityError), transaction.atomic():
            OrderStateTransition.objects.bulk_create([twin])

    def test_what_is_returned_is_what_the_database_has(self, record):
        stored = OrderStateTransition.objects.get()
        for field in OrderStateTransition._meta.concrete_fields:
            assert getattr(record, field.attname) == getattr(stored, field.attname), field.name


class TestInvalidStateTransition:
    @pytest.mark.parametrize("to", ["DELIVERED", "CONFIRMD"], ids=["no such move", "no such state"])
    def test_carries_from_status_to_status_and_allowed(self, to):
        with pytest.raises(InvalidStateTransition) as caught:
            Order.objects.create().states.transition_to(to)
        assert caught.value.from_status == "PENDING"
        assert caught.value.to_status == to
        assert caught.value.allowed == ["CONFIRMED", "CANCELLED"]

    def test_changes_nothing(self):
        order = Order.objects.create()
        with pytest.raises(InvalidStateTransition):
            order.states.transition_to("DELIVERED")
        assert order.status == "PENDING"
        assert stored_status(order) == "PENDING"
        assert not OrderStateTransition.objects.exists()


class TestConfigurationValidation:
    """The texts are compared as `str(error)`: what was declared is added as a note, which tracebacks show below."""

    @pytest.mark.parametrize(
        ("initial", "transitions", "message"),
        [
            ("INVALID", {}, "Initial state 'INVALID' not found in states"),
            ("A", {"INVALID": ["B"]}, "Transition source 'INVALID' not in states"),
            ("A", {"A": ["INVALID"]}, "Transition target 'INVALID' not in states"),
        ],
        ids=["initial state", "source", "target"],
    )
    def test_invalid_states_are_named(self, initial, transitions, message):
        with pytest.raises(ValueError, match="INVALID") as caught:
            StateMachine(states=[("A", "A"), ("B", "B")], initial=initial, transitions=transitions)
        assert str(caught.value) == message


class TestConvenienceMethodsWithAtomicTransactions:
    def test_mark_running_writes_all_fields_and_the_record(self):
        task = TaskExecution.objects.create()
        before = task.modified
        task.mark_running(metadata={"worker": 7})
        stored = TaskExecution.objects.get()
        assert stored.status == "RUNNING"
        assert stored.started_at == task.started_at
        assert stored.modified > before
        assert stored.states.history.get().metadata == {"worker": 7}

    def test_mark_failed_follows(self):
        task = TaskExecution.objects.create()
        task.mark_running()
        task.mark_failed("out of paper")
        stored = TaskExecution.objects.get()
        assert (stored.status, stored.error_message) == ("FAILED", "out of paper")
        assert [t.sequence for t in stored.states.history] == [2, 1]

    @pytest.mark.django_db(transaction=True)
    def test_if_the_save_fails_the_record_is_rolled_back(self):
        task = TaskExecution.objects.create()
        with pytest.raises(ValueError, match="nonsense"), transaction.atomic():
            task.states.transition_to("RUNNING", save=False)
            task.save(update_fields=["nonsense"])
        assert stored_status(task) == "READY"
        assert not TaskExecutionStateTransition.objects.exists()


class TestClassLevelConfiguration:
    def test_states(self):
        assert TaskExecution.states.states == [
            ("READY", "Ready"),
            ("RUNNING", "Running"),
            ("SUCCESSFUL", "Successful"),
            ("FAILED", "Failed"),
        ]

    def test_initial(self):
        assert TaskExecution.states.initial == "READY"

    def test_transitions(self):
        assert TaskExecution.states.transitions == {
            "READY": ["RUNNING", "FAILED"],
            "RUNNING": ["SUCCESSFUL", "FAILED"],
        }

    def test_transition_model(self):
        assert TaskExecution.states.transition_model is TaskExecutionStateTransition

    def test_nobody_can_change_the_graph_through_it(self):
        TaskExecution.states.states.clear()
        TaskExecution.states.transitions["READY"].clear()
        assert len(TaskExecution.states.states) == 4
        assert TaskExecution.states.transitions["READY"] == ["RUNNING", "FAILED"]


class TestMigrations:
    def test_makemigrations_is_clean_after_the_first_run(self, capsys):
        call_command("makemigrations", check=True, dry_run=True, verbosity=1)
        assert capsys.readouterr().out == "No changes detected\n"

    # What adding a machine to an existing model writes is in tests/machine/test_migrations.py.


class TestAdminIntegration:
    def test_the_audit_model_is_importable_from_the_models_module(self):
        from reference import admin
        from reference import models as reference_models

        assert reference_models.TaskExecutionStateTransition is TaskExecution.states.transition_model
        assert admin.TaskExecutionStateTransition is TaskExecution.states.transition_model

    def test_the_list_opens_and_filters_without_distinct(self, admin_client):
        task = TaskExecution.objects.create()
        task.mark_running()
        with CaptureQueriesContext(connection) as queries:
            page = admin_client.get("/admin/reference/taskexecutionstatetransition/?to_status__exact=RUNNING")
        assert page.status_code == 200
        assert str(task.states.history.get().pk) in page.content.decode()
        assert not [query for query in queries if "DISTINCT" in query["sql"]]

    def test_a_record_opens_and_saving_it_unchanged_is_harmless(self, admin_client):
        task = TaskExecution.objects.create()
        task.mark_running()
        record = task.states.history.get()
        url = f"/admin/reference/taskexecutionstatetransition/{record.pk}/change/"
        assert admin_client.get(url).status_code == 200
        assert admin_client.post(url, {"_save": "Save"}).status_code == 302
        assert list(task.states.history) == [record]

    def test_a_record_cannot_be_changed_or_added_by_code(self):
        record = Order.objects.create().states.transition_to("CONFIRMED")
        record.to_status = "SHIPPED"
        with pytest.raises(StateMachineError, match="cannot be changed"):
            record.save()
        with pytest.raises(StateMachineError, match="written by the machine alone"):
            OrderStateTransition.objects.create(instance=record.instance, to_status="SHIPPED")
