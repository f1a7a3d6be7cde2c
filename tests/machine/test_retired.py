"""A retired state: rows may leave it, and none may enter it."""

from __future__ import annotations

import pickle

import pytest
from django.core import serializers
from django.db import transaction
from django.test.utils import isolate_apps

from lab.models import Consignment
from statemachine_fields import InvalidStateTransition, RetiredState, State, StateMachine
from statemachine_fields.checks import unreachable_states
from statemachine_fields.machine.graph import build_graph
from statemachine_fields.machine.verify import Verifier
from statemachine_fields.testing import drain
from tests.declared import lab_model
from tests.settings import SMF_DB

STATES = [("A", "A"), State("OLD", "Old", retired=True), ("B", "B"), ("C", "C")]
needs_worker = pytest.mark.skipif(SMF_DB == "mariadb", reason="workers run on PostgreSQL and SQLite")


def declare(states=STATES, initial="A", transitions=None):
    return build_graph(states, initial, transitions or {}, 50)


class TestDeclaration:
    @pytest.mark.parametrize(
        ("declaration", "message"),
        [
            ({"initial": "OLD"}, "Initial state 'OLD' is retired"),
            ({"transitions": {"A": ["B", "OLD"]}}, "Transition target 'OLD' of 'A' is retired"),
            ({"transitions": {"OLD": ["OLD"]}}, "Transition target 'OLD' of 'OLD' is retired"),
            ({"states": [State("A", error_to="OLD"), *STATES[1:]]}, "error_to of 'A' is 'OLD', which is retired"),
            (
                {"states": [State("A", timeout_after=1, timeout_to="OLD"), *STATES[1:]]},
                "timeout_to of 'A' is 'OLD', which is retired",
            ),
        ],
    )
    def test_leads_into_no_retired_state(self, declaration, message):
        with pytest.raises(ValueError, match=f"{message}: rows may leave it and none may enter it"):
            declare(**declaration)

    @pytest.mark.parametrize("wrong", ["yes", None, 1])
    def test_says_so_with_a_truth_value(self, wrong):
        with pytest.raises(ValueError, match="retired must be True or False"):
            State("OLD", retired=wrong)

    def test_may_lead_out_of_one(self):
        graph = declare(transitions={"A": ["B"], "OLD": ["B"]})
        assert graph.targets("OLD") == ("B",)
        assert graph.retired_states == ("OLD",)

    def test_needs_no_way_into_it_nor_another_way_to_where_it_leads(self):
        graph = declare(transitions={"A": ["B"], "OLD": ["C"]})
        assert graph.unreachable_states() == ()

    @isolate_apps("lab")
    def test_is_no_finding_of_the_checks(self):
        order = lab_model(states=StateMachine(STATES, "A", {"A": ["B", "C"], "OLD": ["B"]}))
        assert list(unreachable_states(order.states._meta)) == []

    def test_makes_no_migration(self):
        assert "retired" not in str(Consignment._meta.get_field("status").deconstruct())


@pytest.mark.django_db(transaction=True)
class TestRows:
    @pytest.fixture
    def row(self):
        return Consignment.objects.create()

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Consignment.objects.create(status="PACKED"),
            lambda: Consignment(status="PACKED").save(),
            lambda: Consignment(pk=7, status="PACKED").save(),
            lambda: Consignment.objects.get_or_create(name="x", defaults={"status": "PACKED"}),
            lambda: Consignment.objects.bulk_create([Consignment(), Consignment(status="PACKED")]),
        ],
    )
    def test_none_begins_there(self, make):
        with pytest.raises(RetiredState, match=r"lab.Consignment.states: 'PACKED' is retired.*A new row begins in"):
            make()
        assert not Consignment.objects.exists()

    def test_none_moves_there(self, row):
        with transaction.atomic():
            with pytest.raises(RetiredState) as caught:
                row.states.transition_to("PACKED")
            row.states.transition_to("BOXED")  # the transaction goes on
        error = caught.value
        assert isinstance(error, InvalidStateTransition)
        assert (error.from_status, error.to_status, error.allowed) == ("OPEN", "PACKED", ["BOXED", "SENT"])
        assert "Allowed from here: BOXED, SENT" in str(error)
        twin = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (str(twin), vars(twin)) == (str(error), vars(error))
        assert not row.states.can_transition_to("PACKED")

    def test_none_of_many_moves_there(self, row):
        with pytest.raises(RetiredState, match="'PACKED' is retired"):
            Consignment.states.bulk_transition(Consignment.objects.all(), "PACKED")
        row.refresh_from_db()
        assert row.status == "OPEN"

    def test_one_that_is_there_may_leave_and_be_saved(self, row):
        row.states.force_transition_to("PACKED", reason="was there before")
        row.name = "changed"
        row.save()
        assert row.states.display == "Packed"
        assert row.states.get_valid_transitions() == ["SENT", "LOST", "OPEN"]
        row.states.transition_to("SENT")
        assert [record.to_status for record in row.states.history] == ["SENT", "PACKED"]

    def test_many_that_are_there_may_leave(self, row):
        row.states.force_transition_to("PACKED", reason="was there before")
        assert Consignment.states.bulk_transition(Consignment.states.in_state("PACKED"), "SENT").moved == 1

    def test_people_may_force_one_there_with_a_reason(self, row):
        record = row.states.force_transition_to("PACKED", reason="the carrier's list says so")
        assert (record.to_status, record.metadata["forced"]) == ("PACKED", True)

    def test_a_fixture_brings_one_there(self, row):
        row.states.force_transition_to("PACKED", reason="was there before")
        text = serializers.serialize("json", [row])
        Consignment.objects.all().delete()
        for loaded in serializers.deserialize("json", text):
            loaded.save()
        assert Consignment.objects.get().status == "PACKED"

    @needs_worker
    def test_workers_go_on_serving_those_that_are_there(self, row):
        row.states.force_transition_to("PACKED", reason="was there before")
        drain(Consignment)
        row.refresh_from_db()
        assert row.status == "SENT"

    @needs_worker
    def test_time_goes_on_for_those_that_are_there(self):
        row = Consignment.objects.create(waits=True)
        row.states.force_transition_to("PACKED", reason="was there before")
        drain(Consignment, timeouts=True)
        row.refresh_from_db()
        assert row.status == "LOST"

    @needs_worker
    def test_a_handler_may_not_name_it(self, row):
        from statemachine_fields.worker.executor import HandlerExecutor
        from tests.worker.rows import lane_of, lease_on

        lease = lease_on(lane_of(Consignment), status="BOXED")
        with pytest.raises(RetiredState, match="Allowed from here: SENT, LOST, OPEN"):
            HandlerExecutor(max_crashes=5).judge(lease, "PACKED")

    def test_moves_of_its_time_are_no_finding(self, row):
        """They cannot be declared any more, so that there would be nothing to do about it."""
        row.states.force_transition_to("BOXED", reason="for the test")
        row.states.force_transition_to("PACKED", reason="for the test")
        row.states.force_transition_to("BOXED", reason="for the test")
        row.states.force_transition_to("OPEN", reason="for the test")
        row.states.force_transition_to("LOST", reason="for the test")
        row.states.history.update(metadata={})
        (finding,) = Verifier(Consignment.states._meta).findings()
        assert finding.what == "Moves that are not declared: record 5 from 'OPEN' to 'LOST'."
