"""Rows that wait for children: who is a child, when it is decided, and who looks after a commit."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from django.db import connection, models, transaction
from django.db.models.expressions import Col
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, given, settings, strategies

from lab.models import ByLeg, Caravan, Depot, Expedition, Leg, Pallet, Sled, Twig
from statemachine_fields.db.rows import all_rows
from statemachine_fields.machine.joins import Join
from statemachine_fields.machine.parents import joins_of_child
from statemachine_fields.machine.relations import resolve
from statemachine_fields.machine.verify_joins import join_findings
from statemachine_fields.schedule.children import Decision
from statemachine_fields.testing import assert_history, assert_state, drain
from tests.worker.rows import only_postgresql

pytestmark = pytest.mark.django_db(transaction=True)


def expedition(state: str = "WALKING", *legs: str, **given: Any) -> Any:
    """Make one that sleeps in a state, with legs in these."""
    row = Expedition.objects.create(**given)
    Leg.objects.bulk_create([Leg(expedition=row, status=status, number=number) for number, status in enumerate(legs)])
    row.states.transition_to(state)
    asleep(row)
    return row


def asleep(*rows: models.Model, accessor: str = "states") -> None:
    """Let rows sleep, as a worker does that has counted in vain."""
    for row in rows:
        bound = getattr(type(row), accessor)._meta
        with connection.cursor() as cursor:
            table, key = bound.model._meta.db_table, bound.model._meta.pk.column
            cursor.execute(f"UPDATE {table} SET {bound.names.next_at} = NULL WHERE {key} = %s", [bound.key_of(row)])


def is_woken(row: models.Model, accessor: str = "states") -> bool:
    bound = getattr(type(row), accessor)._meta
    return getattr(all_rows(type(row)).get(pk=row.pk), bound.names.next_at) is not None


def join_of(model: Any, state: str, accessor: str = "states") -> Join:
    return resolve(getattr(model, accessor)._meta, state)


AN_HOUR_AGO = timezone.now() - datetime.timedelta(hours=1)

DECISIONS = [
    ("WALKING", [], True),
    ("WALKING", ["ARRIVED"], True),
    ("WALKING", ["ARRIVED", "OPEN"], False),
    ("WALKING", ["LOST", "OPEN"], True),
    ("WALKING", ["CALLED_OFF", "HELD"], False),
    ("WALKING", ["CALLED_OFF", "ARRIVED"], True),
    ("RACING", [], True),
    ("RACING", ["OPEN", "LOST"], False),
    ("RACING", ["OPEN", "ARRIVED"], True),
    ("RACING", ["LOST", "CALLED_OFF"], True),
    ("SOME", ["ARRIVED", "ARRIVED", "OPEN"], False),
    ("SOME", ["ARRIVED", "ARRIVED", "ARRIVED", "OPEN"], True),
    ("SOME", ["ARRIVED", "LOST", "OPEN", "OPEN"], False),
    ("SOME", ["ARRIVED", "LOST", "OPEN"], True),
    ("SOME", [], True),
]


@pytest.mark.parametrize(("state", "legs", "is_decided"), DECISIONS)
def test_the_database_and_python_agree_on_what_is_decided(state: str, legs: list[str], is_decided: bool) -> None:
    row, other = expedition(state, *legs), expedition(state, "OPEN", "OPEN", "OPEN")
    join = join_of(Expedition, state)
    counts = join.counts([row.pk, other.pk], "default")
    assert counts[row.pk].decision.name != "WAITS" if is_decided else counts[row.pk].decision.name == "WAITS"
    assert set(join.ready("default").values_list("pk", flat=True)) == ({row.pk} if is_decided else set())
    assert counts[row.pk].total == len(legs)


def test_a_child_in_a_state_that_nobody_declares_is_unfinished() -> None:
    row = expedition("WALKING", "ARRIVED", "ARRIVED")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE lab_leg SET status = 'ODD' WHERE number = 0")
    assert not join_of(Expedition, "WALKING").ready("default").exists()
    assert join_of(Expedition, "WALKING").counts([row.pk], "default")[row.pk].unfinished == 1


class TestWhoLooks:
    def test_a_move_in_the_foreground(self) -> None:
        row = expedition("WALKING", "OPEN", "OPEN")
        first, second = row.legs.all()
        first.states.transition_to("ARRIVED")
        assert not is_woken(row)
        second.states.transition_to("ARRIVED")
        assert is_woken(row)

    def test_a_move_in_a_transaction_looks_after_it(self) -> None:
        row = expedition("WALKING", "OPEN", "OPEN")
        with transaction.atomic():
            for leg in row.legs.all():
                leg.states.transition_to("ARRIVED")
            assert not is_woken(row)
        assert is_woken(row)

    def test_a_move_that_is_undone_wakes_nobody(self) -> None:
        row = expedition("WALKING", "OPEN")
        with transaction.atomic():
            row.legs.get().states.transition_to("ARRIVED")
            transaction.set_rollback(True)
        assert not is_woken(row)

    def test_a_forced_move(self) -> None:
        row = expedition("WALKING", "HELD")
        row.legs.get().states.force_transition_to("CALLED_OFF", reason="storm")
        assert is_woken(row)

    def test_a_deferred_foreign_key_is_asked_for(self) -> None:
        row = expedition("WALKING", "OPEN")
        Leg.objects.defer("expedition").get().states.transition_to("ARRIVED")
        assert is_woken(row)

    def test_many_moves_at_once(self) -> None:
        rows = [expedition("WALKING", "OPEN", "OPEN") for _ in range(3)]
        other = expedition("WALKING", "OPEN", "HELD")
        Leg.states.bulk_transition(Leg.objects.all(), "CALLED_OFF", batch_size=4)
        assert [is_woken(row) for row in (*rows, other)] == [True, True, True, False]

    def test_many_moves_one_by_one(self) -> None:
        depot = Depot.objects.create(code="D")
        for _ in range(2):
            Pallet.objects.create(depot=depot)
        depot.states.transition_to("CLOSING")
        asleep(depot)
        Pallet.look.bulk_transition(Pallet.objects.all(), "FINE")
        assert is_woken(depot)

    def test_the_end_of_a_child_by_deletion(self) -> None:
        row = expedition("WALKING", "OPEN", "ARRIVED")
        row.legs.get(status="OPEN").delete()
        assert is_woken(row)

    @pytest.mark.parametrize(
        "delete", [lambda rows: rows.get().delete(), lambda rows: rows.delete()], ids=["one", "many"]
    )
    def test_the_deletion_by_way_of_a_proxy(self, delete: Any) -> None:
        row = expedition("WALKING", "OPEN", "ARRIVED")
        delete(ByLeg.objects.filter(status="OPEN"))
        assert is_woken(row)

    def test_the_deletion_of_many(self) -> None:
        row, other = expedition("WALKING", "OPEN", "OPEN"), expedition("WALKING", "OPEN", "HELD")
        Leg.objects.filter(status="OPEN").delete()
        assert (is_woken(row), is_woken(other)) == (True, False)

    def test_a_child_that_is_made_in_a_terminal_state(self) -> None:
        row = expedition("RACING", "OPEN")
        Leg.objects.create(expedition=row, status="ARRIVED")
        assert is_woken(row)

    def test_nobody_for_a_child_without_a_parent(self) -> None:
        leg = Leg.objects.create()
        with CaptureQueriesContext(connection) as queries:
            leg.states.transition_to("ARRIVED")
        assert not [query for query in queries if "lab_expedition" in query["sql"]]

    def test_nobody_while_the_child_goes_on(self) -> None:
        row = expedition("WALKING", "OPEN")
        leg = row.legs.get()
        with CaptureQueriesContext(connection) as queries:
            leg.states.transition_to("HELD")
        assert not [query for query in queries if "lab_expedition" in query["sql"]]


class TestShapes:
    def test_a_foreign_key_to_the_same_model(self) -> None:
        root = Twig.objects.create(depth=2)
        drain(Twig)
        assert Twig.objects.count() == 7
        assert set(Twig.objects.values_list("status", flat=True)) == {"GROWN"}
        assert_history(root, "BUD", "GROWING", "GROWN")
        assert Twig.states.transition_model.objects.filter(from_status="").count() == 7

    def test_a_foreign_key_to_another_field_and_one_of_several_machines(self) -> None:
        depot = Depot.objects.create(code="D")
        fine, broken = Pallet.objects.create(depot=depot), Pallet.objects.create(depot=depot)
        depot.states.transition_to("CLOSING")
        drain(Depot)
        fine.states.transition_to("EMPTY")
        assert not is_woken(depot)
        fine.look.transition_to("FINE")
        assert not is_woken(depot)
        broken.look.transition_to("FINE")
        assert is_woken(depot)
        drain(Depot)
        assert_state(depot, "CLOSED")

    def test_multi_table_children_on_both_sides(self) -> None:
        caravan = Caravan.objects.create(code="C")
        sleds = [Sled.objects.create(caravan=caravan, outcome="") for _ in range(2)]
        caravan.crossing.transition_to("CROSSING")
        drain(Caravan)
        assert not is_woken(caravan, "crossing")
        sleds[0].states.transition_to("ARRIVED")
        Leg.objects.get(pk=sleds[1].pk).states.transition_to("LOST")
        assert is_woken(caravan, "crossing")
        drain(Caravan)
        assert_state(caravan, "STRANDED", machine="crossing")

    def test_a_multi_table_child_waits_as_its_parent_does(self) -> None:
        caravan = Caravan.objects.create(code="C")
        pallet = Pallet.objects.create(depot=caravan)
        caravan.states.transition_to("CLOSING")
        drain(Depot)
        pallet.look.transition_to("BROKEN")
        drain(Depot)
        assert_state(caravan, "OPEN")

    @only_postgresql
    def test_a_table_whose_name_has_its_schema_in_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ended, left = expedition("WALKING", "ARRIVED", "OPEN"), expedition("WALKING", "OPEN")
        name = f'"public"."{Expedition._meta.db_table}"'
        monkeypatch.setattr(Expedition._meta, "db_table", name)
        for field in Expedition._meta.concrete_fields:
            monkeypatch.setitem(vars(field), "cached_col", Col(name, field))
        left.states.transition_to("LATE")
        ended.legs.get(status="OPEN").states.transition_to("ARRIVED")
        drain(Expedition)
        assert_state(ended, "HOME")
        assert_state(left.legs.get(), "CALLED_OFF")

    def test_machines_that_are_nobodys_children_look_for_nobody(self) -> None:
        assert joins_of_child(Expedition.states._meta) == ()
        assert [str(join) for join in joins_of_child(Leg.states._meta)][:1] == ["lab.Expedition.states in 'WALKING'"]
        assert [str(join) for join in joins_of_child(Pallet.look._meta)] == ["lab.Depot.states in 'CLOSING'"]
        assert joins_of_child(Pallet.states._meta) == ()


class TestVerify:
    """I7: a row at rest waits for something that has not happened."""

    def findings(self) -> list[tuple[Any, str]]:
        return [(found.pk, found.code) for found in join_findings(Expedition.states._meta, "default")]

    def age(self, *models_: Any) -> None:
        for model in models_:
            with connection.cursor() as cursor:
                cursor.execute(f"UPDATE {model._meta.db_table} SET status_changed_at = %s", [AN_HOUR_AGO])
            audit = model.states.transition_model._meta.db_table
            with connection.cursor() as cursor:
                cursor.execute(f"UPDATE {audit} SET transitioned_at = %s", [AN_HOUR_AGO])

    def test_a_parent_asleep_beside_what_is_decided(self) -> None:
        row, other = expedition("WALKING", "ARRIVED"), expedition("WALKING", "OPEN")
        assert self.findings() == []  # somebody may be about to look
        self.age(Expedition, Leg)
        assert self.findings() == [(row.pk, "children-decided")]
        other.legs.get().delete()
        assert is_woken(other)
        assert self.findings() == [(row.pk, "children-decided")]

    def test_a_child_that_is_parked(self) -> None:
        row = expedition("WALKING", "OPEN", "ARRIVED")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE lab_leg SET status_next_at = NULL, status_error = 'no luck' WHERE number = 0")
        (found,) = join_findings(Expedition.states._meta, "default")
        assert (found.pk, found.code, found.severity) == (row.pk, "children-parked", "warning")
        assert found.what == "The row waits in 'WALKING' for all of its legs, of which 1 is parked."

    def test_children_that_nobody_cancels(self) -> None:
        row = expedition("WALKING", "OPEN")
        row.states.transition_to("LATE")
        assert self.findings() == []
        self.age(Expedition, Leg)
        assert self.findings() == [(row.pk, "children-left")]


@given(
    state=strategies.sampled_from(["WALKING", "RACING", "SOME"]),
    families=strategies.lists(
        strategies.lists(strategies.sampled_from(["OPEN", "HELD", "ARRIVED", "LOST", "CALLED_OFF"]), max_size=5),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_children_there_are_the_database_and_python_agree(state: str, families: list[list[str]]) -> None:
    Expedition.objects.all().delete()
    rows = [expedition(state, *legs) for legs in families]
    join = join_of(Expedition, state)
    counts = join.counts([row.pk for row in rows], "default")
    decided = {row.pk for row in rows if counts[row.pk].decision is not Decision.WAITS}
    assert set(join.ready("default").values_list("pk", flat=True)) == decided
    looked = join.look("default")
    assert set(looked.woken) == decided
    assert {row.pk for row in rows if is_woken(row)} == decided
    assert join.look("default") == type(looked)()
