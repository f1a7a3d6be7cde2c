"""Keys that at most one live row has."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core import serializers
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, models, transaction
from django.db.models import Value
from django.db.models.functions import Lower
from django.db.models.signals import post_save, pre_save
from django.forms import modelform_factory
from django.test.utils import CaptureQueriesContext

from lab.models import BulkOrder, Order, Parcel, Place, PlacedOrder, Quote, Reservation, Shipment, Twice
from statemachine_fields import DuplicateLiveRow, LiveKey, StateMachine, StateMachineError
from statemachine_fields.machine import live_keys
from statemachine_fields.machine.live_keys import BoundKey
from statemachine_fields.signals import transition_rejected
from tests.declared import lab_model

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "mysql", reason="it has no unique constraints for some of the rows"),
]

FLOW: dict[str, Any] = {
    "states": [("NEW", "New"), ("SENT", "Sent"), ("DONE", "Done"), ("LOST", "Lost")],
    "initial": "NEW",
    "transitions": {"NEW": ["SENT", "LOST"], "SENT": ["DONE", "LOST"]},
}
DAY = datetime.date(2026, 11, 18)


def ended(number: str = "A-17") -> Shipment:
    row = Shipment.objects.create(number=number)
    row.states.transition_to("LOST")
    return row


def statements(act: Any) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        act()
    return [query["sql"].split()[0] for query in queries]


# Creating


def test_a_second_live_row_is_refused_and_the_first_is_named():
    first = Shipment.objects.create(number="A-17")
    first.states.transition_to("SENT")

    with pytest.raises(DuplicateLiveRow) as caught:
        Shipment.objects.create(number="A-17")

    error = caught.value
    assert (error.pk, error.status, error.key) == (first.pk, "SENT", {"number": "A-17"})
    assert (error.label, error.model, error.machine) == ("lab.Shipment pk=None", "lab.Shipment", "states")
    assert str(error) == (
        f"lab.Shipment pk=None cannot be live with number='A-17': pk={first.pk} has it, which is live in 'SENT'. Use that row, "
        "as states.get_or_start() does, or end it first."
    )
    assert Shipment.objects.get() == first


def test_the_error_is_one_of_ours_and_an_integrity_error_and_survives_pickling():
    Shipment.objects.create(number="A-17")
    with pytest.raises(DuplicateLiveRow) as caught:
        Shipment.objects.create(number="A-17")

    assert isinstance(caught.value, StateMachineError)
    assert isinstance(caught.value, IntegrityError)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (str(again), vars(again)) == (str(caught.value), vars(caught.value))


def test_a_row_that_has_ended_gives_its_key_up():
    gone = ended()

    live = Shipment.objects.create(number="A-17")

    assert Shipment.objects.count() == 2
    assert Shipment.states.live(number="A-17") == live != gone


def test_rows_that_begin_at_their_end_need_no_key():
    Shipment.objects.create(number="A-17")

    Shipment.objects.create(number="A-17", status="DONE")

    assert Shipment.objects.count() == 2


def test_rows_without_a_value_have_no_key():
    for _ in range(2):
        Shipment.objects.create(number=None)

    assert Shipment.objects.count() == 2


def test_a_refused_row_leaves_the_transaction_usable_and_what_was_written_before():
    Shipment.objects.create(number="A-17")

    with transaction.atomic():
        before = Shipment.objects.create(number="A-18")
        with pytest.raises(DuplicateLiveRow):
            Shipment.objects.create(number="A-17")
        after = Shipment.objects.create(number="A-19")

    assert set(Shipment.objects.all()) >= {before, after}
    assert Shipment.objects.count() == 3


def test_a_refused_instance_can_be_saved_with_another_key():
    Shipment.objects.create(number="A-17")
    row = Shipment(number="A-17")
    with pytest.raises(DuplicateLiveRow):
        row.save()
    assert (row.pk, row._state.adding) == (None, True)

    row.number = "A-18"
    row.save()

    assert Shipment.states.live(number="A-18") == row
    assert row.states.transition_to("SENT").sequence == 1


def test_creating_takes_one_statement_in_a_transaction_as_out_of_one():
    assert statements(lambda: Shipment.objects.create(number="A-17")) == ["INSERT"]
    with transaction.atomic():
        assert statements(lambda: Shipment.objects.create(number="A-18")) == ["INSERT"]


def test_a_duplicate_takes_the_insert_and_a_look():
    Shipment.objects.create(number="A-17")

    def again() -> None:
        with pytest.raises(DuplicateLiveRow):
            Shipment.objects.create(number="A-17")

    assert statements(again) == ["INSERT", "SELECT"]
    with transaction.atomic():
        assert statements(again) == ["INSERT", "SELECT"]


def test_violations_of_other_constraints_are_djangos_own():
    Shipment.objects.create(number="A-17", code="x")
    ended("A-18")

    for number in ("A-19", "A-18"):
        with pytest.raises(IntegrityError) as caught, transaction.atomic():
            Shipment.objects.create(number=number, code="x")
        assert not isinstance(caught.value, DuplicateLiveRow)


def test_the_constraint_alone_refuses_what_comes_past_save():
    Shipment.objects.create(number="A-17")

    with pytest.raises(IntegrityError) as caught, transaction.atomic():
        Shipment.objects.bulk_create([Shipment(number="A-17")])
    assert not isinstance(caught.value, DuplicateLiveRow)
    with pytest.raises(IntegrityError), transaction.atomic():
        Shipment(number="A-17").save_base(raw=True)


def test_bulk_create_leaves_duplicates_out_where_it_is_told_to():
    Order.objects.create(number="A-17")

    Order.objects.bulk_create([Order(number="A-17"), Order(number="A-18")], ignore_conflicts=True)

    assert sorted(Order.objects.values_list("number", flat=True)) == ["A-17", "A-18"]


def test_post_save_is_sent_of_no_row_that_was_refused(heard):
    calls = heard(post_save, sender=Shipment)
    Shipment.objects.create(number="A-17")
    with pytest.raises(DuplicateLiveRow):
        Shipment.objects.create(number="A-17")

    assert len(calls) == 1


def test_a_duplicate_that_a_receiver_makes_is_its_own_affair(connect):
    """The row that was saved stands, as does the transaction."""
    Shipment.objects.create(number="A-17")

    def make_another(instance: Shipment, **_told: Any) -> None:
        if instance.number == "A-18":
            Shipment.objects.create(number="A-17")

    connect(post_save, make_another, Shipment)
    with transaction.atomic():
        with pytest.raises(DuplicateLiveRow):
            Shipment.objects.create(number="A-18")
        assert Shipment.objects.filter(number="A-18").exists()


def test_a_key_may_be_an_expression():
    row = Shipment.objects.create(number=Lower(Value("A-17")))
    row.refresh_from_db()
    assert row.number == "a-17"

    with pytest.raises(DuplicateLiveRow) as caught, transaction.atomic():
        Shipment.objects.create(number=Lower(Value("A-17")))

    assert caught.value.pk is None
    assert "could not be named" in str(caught.value)


@pytest.mark.parametrize("number", ["100%", "it's", "a\\b", "%s", "", "ü"])
def test_any_text_is_a_key(number):
    row = Shipment.objects.create(number=number)
    with pytest.raises(DuplicateLiveRow) as caught:
        Shipment.objects.create(number=number)
    assert caught.value.pk == row.pk
    assert Shipment.states.live(number=number) == row


def test_states_of_any_name_are_written_into_statements(isolated):
    states = ["50% new", "it's sent", "do\\ne", "%s"]
    model = lab_model(
        name="Odd",
        number=models.IntegerField(),
        states=StateMachine(
            states=[(state, state) for state in states],
            initial=states[0],
            transitions={states[0]: [states[1]], states[1]: states[2:]},
            unique_while_live=["number"],
        ),
    )
    with connection.schema_editor() as editor:
        editor.create_model(model)
        editor.create_model(model.states.transition_model)
    try:
        for state in states[2:]:
            row = model.objects.create(number=1)
            with pytest.raises(DuplicateLiveRow) as caught:
                model.objects.create(number=1)
            assert caught.value.pk == row.pk
            row.states.transition_to(states[1])
            row.states.transition_to(state)
        assert model.states.live(number=1) is None
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(model.states.transition_model)
            editor.delete_model(model)


# Changing keys


def test_a_save_that_gives_a_row_a_taken_key_is_refused_and_the_transaction_goes_on():
    first = Shipment.objects.create(number="A-17")
    other = Shipment.objects.create(number="A-18")

    with transaction.atomic():
        other.number = "A-17"
        with pytest.raises(DuplicateLiveRow) as caught:
            other.save()
        assert Shipment.objects.get(pk=other.pk).number == "A-18"

    assert (caught.value.pk, caught.value.label) == (first.pk, f"lab.Shipment pk={other.pk}")


def test_a_save_out_of_a_transaction_is_refused_as_well():
    Shipment.objects.create(number="A-17")
    other = Shipment.objects.create(number="A-18")
    other.number = "A-17"

    with pytest.raises(DuplicateLiveRow):
        other.save(update_fields=["number"])


def test_an_ended_row_may_have_any_key_and_its_other_errors_stay_what_they_are():
    Shipment.objects.create(number="A-17", code="x")
    gone = ended("A-18")
    gone.number, gone.code = "A-17", "x"

    with transaction.atomic(), pytest.raises(IntegrityError) as caught, transaction.atomic():
        gone.save()
    assert not isinstance(caught.value, DuplicateLiveRow)
    gone.code = None
    gone.save()
    assert Shipment.states.live(number="A-17") != gone


def test_a_save_of_other_fields_takes_no_savepoint():
    row = Shipment.objects.create(number="A-17")
    assert statements(row.save) == ["UPDATE"]
    with transaction.atomic():
        assert statements(lambda: row.save(update_fields=["note"])) == ["UPDATE"]
        assert statements(row.save) == ["SAVEPOINT", "UPDATE", "RELEASE"]


def test_an_instance_with_a_key_of_its_own_that_is_no_row_yet_is_refused_too():
    first = Shipment.objects.create(number="A-17")

    with transaction.atomic():
        with pytest.raises(DuplicateLiveRow) as caught:
            Shipment(pk=first.pk + 1, number="A-17").save()
        assert Shipment.objects.count() == 1
    assert caught.value.pk == first.pk


# Moves


def test_a_forced_move_back_to_life_is_refused_if_another_row_has_the_key(heard):
    calls = heard(transition_rejected, sender=Shipment)
    gone = ended()
    live = Shipment.objects.create(number="A-17")

    with transaction.atomic():
        with pytest.raises(DuplicateLiveRow) as caught:
            gone.states.force_transition_to("SENT", reason="found")
        assert Shipment.objects.get(pk=gone.pk).status == "LOST"

    assert caught.value.pk == live.pk
    assert (gone.status, gone.states.history.count()) == ("LOST", 1)
    assert [call["error"] for call in calls] == [caught.value]


def test_a_forced_move_back_to_life_takes_the_key():
    gone = ended()
    gone.states.force_transition_to("SENT", reason="found")

    with pytest.raises(DuplicateLiveRow):
        Shipment.objects.create(number="A-17")


def test_a_move_that_also_gives_another_key_is_refused_and_the_instance_is_as_it_was():
    first = Shipment.objects.create(number="A-17")
    other = Shipment.objects.create(number="A-18")

    with transaction.atomic():
        with pytest.raises(DuplicateLiveRow) as caught:
            other.states.transition_to("SENT", update={"number": "A-17"})
        other.states.transition_to("LOST", update={"number": "A-17"})  # where it needs none

    assert caught.value.pk == first.pk
    assert Shipment.objects.get(pk=other.pk).number == "A-17"


@pytest.mark.parametrize("load", [lambda rows: rows.defer("number"), lambda rows: rows], ids=["not loaded", "unsaved"])
def test_the_key_that_a_move_would_take_is_that_of_the_row(load):
    gone = ended()
    holder = Shipment.objects.create(number="A-17")
    row = load(Shipment.objects).get(pk=gone.pk)
    if "number" in vars(row):
        row.number = "B-1"  # which no move writes

    with pytest.raises(DuplicateLiveRow) as caught:
        row.states.force_transition_to("NEW", reason="a test")

    assert (caught.value.pk, caught.value.key) == (holder.pk, {"number": "A-17"})


def test_moves_that_take_no_key_are_as_cheap_as_ever():
    keyed, plain = Shipment.objects.create(number="A-17"), Parcel.objects.create()
    with transaction.atomic():
        found = statements(lambda: keyed.states.transition_to("SENT"))
        expected = statements(lambda: plain.states.transition_to(Parcel.states.transitions[Parcel.states.initial][0]))
    assert found == expected
    assert "SAVEPOINT" not in found


def test_bulk_transition_refuses_the_row_that_would_have_anothers_key_and_moves_the_rest(connect):
    Shipment.objects.create(number="A-17")
    rows = [Shipment.objects.create(number=number) for number in ("B-1", "B-2", "B-3")]

    def rename(instance: Shipment, update_fields: Any, **_told: Any) -> None:
        if instance.number == "B-2" and update_fields:
            Shipment.objects.filter(pk=instance.pk).update(number="A-17")

    connect(pre_save, rename, Shipment)
    result = Shipment.states.bulk_transition(Shipment.objects.filter(number__startswith="B"), "SENT")

    assert result.moved == 2
    (refusal,) = result.refusals
    assert (refusal.pk, refusal.status) == (rows[1].pk, "NEW")
    assert refusal.reason == (  # the row has another number than the receiver tried to give it
        f"lab.Shipment pk={rows[1].pk} cannot be live with number='B-2': another live row has it, which could not be named: it has "
        "ended since, or cannot be seen from here. Use that row, as states.get_or_start() does, or end it first."
    )


# Finding and starting


def test_live_finds_the_row_or_none():
    assert Shipment.states.live(number="A-17") is None
    row = Shipment.objects.create(number="A-17")
    assert Shipment.states.live(number="A-17") == row
    row.states.transition_to("LOST")
    assert Shipment.states.live(number="A-17") is None
    assert async_to_sync(Shipment.states.alive)(number="A-17") is None


def test_get_or_start_finds_or_makes():
    row, created = Shipment.states.get_or_start(number="A-17", defaults={"note": lambda: "called", "code": "x"})
    assert (created, row.number, row.note, row.code) == (True, "A-17", "called", "x")

    again, created = Shipment.states.get_or_start(number="A-17", defaults={"note": "other"})
    assert (created, again, again.note) == (False, row, "called")

    row.states.transition_to("LOST")
    new, created = async_to_sync(Shipment.states.aget_or_start)(number="A-17")
    assert created
    assert new != row


def test_get_or_start_takes_a_look_and_an_insert():
    assert statements(lambda: Shipment.states.get_or_start(number="A-17")) == ["SELECT", "INSERT"]
    with transaction.atomic():
        assert statements(lambda: Shipment.states.get_or_start(number="A-18")) == ["SELECT", "INSERT"]
        assert statements(lambda: Shipment.states.get_or_start(number="A-17")) == ["SELECT"]


def test_get_or_start_is_a_save_with_all_that_belongs_to_it():
    place = Place.objects.create()
    row, created = Reservation.states.get_or_start(place=place, day=DAY)

    assert created
    assert row.states.history.get().sequence == 1
    assert Reservation.states.get_or_start(place_id=place.pk, day=DAY) == (row, False)


def test_a_row_that_ends_before_it_is_looked_for_is_no_longer_in_the_way(monkeypatch):
    first = Shipment.objects.create(number="A-17")
    holder = BoundKey.holder

    def too_late(self: Any, *args: Any) -> Any:
        Shipment.objects.filter(status="NEW").get().states.transition_to("LOST")
        return holder(self, *args)

    monkeypatch.setattr(BoundKey, "holder", too_late)
    with transaction.atomic():
        second = Shipment.objects.create(number="A-17")

    assert Shipment.states.live(number="A-17") == second != first


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_get_or_start_goes_on_while_rows_come_and_go(monkeypatch, turns):
    """Each time that it has found none somebody takes the key, and has ended when it looks again."""
    refuse_ended, error = BoundKey._refuse_ended, BoundKey.error
    came: list[Any] = []

    def too_late(self: Any, row: Any) -> None:
        refuse_ended(self, row)
        if len(came) < turns:
            came.extend(Shipment.objects.bulk_create([Shipment(number="A-17")]))

    def gone_again(self: Any, *args: Any) -> Any:
        came[-1].states.transition_to("LOST")
        return error(self, *args)

    monkeypatch.setattr(BoundKey, "_refuse_ended", too_late)
    monkeypatch.setattr(BoundKey, "error", gone_again)
    row, created = Shipment.states.get_or_start(number="A-17")

    assert created
    assert Shipment.states.live(number="A-17") == row
    assert Shipment.objects.count() == turns + 1


def test_get_or_start_finds_the_row_of_whoever_came_first(monkeypatch):
    refuse_ended = BoundKey._refuse_ended
    came: list[Any] = []

    def too_late(self: Any, row: Any) -> None:
        refuse_ended(self, row)
        came.extend(Shipment.objects.bulk_create([Shipment(number="A-17")]))

    monkeypatch.setattr(BoundKey, "_refuse_ended", too_late)
    with transaction.atomic():
        found = Shipment.states.get_or_start(number="A-17")
    assert found == (came[0], False)

    assert Shipment.objects.get() == came[0]


def test_it_gives_up_after_some_turns_on_a_row_that_it_cannot_see(monkeypatch):
    Shipment.objects.create(number="A-17")
    monkeypatch.setattr(live_keys, "first_of", lambda rows: None)

    with transaction.atomic():
        with pytest.raises(DuplicateLiveRow) as caught:
            Shipment.states.get_or_start(number="A-17")
        assert Shipment.objects.count() == 1
    assert caught.value.pk is None


def test_what_a_save_of_its_own_wrote_is_undone_where_get_or_start_was_too_late(monkeypatch):
    row = Quote.objects.create(number="A-17")
    assert Place.objects.count() == 1
    first_of, looks = live_keys.first_of, []

    def blind_once(rows: Any) -> Any:
        looks.append(rows)
        return None if len(looks) == 1 else first_of(rows)

    monkeypatch.setattr(live_keys, "first_of", blind_once)
    assert Quote.states.get_or_start(number="A-17") == (row, False)
    assert Place.objects.count() == 1


@pytest.mark.parametrize(
    ("given", "named"),
    [({}, "none of it"), ({"numbr": 1}, "numbr="), ({"number": 1, "note": 2}, "number=, note="), ({"pk": 1}, "pk=")],
)
def test_all_of_the_key_and_nothing_else_is_to_be_given(given, named):
    for method in (Shipment.states.live, Shipment.states.get_or_start):
        with pytest.raises(TypeError, match=f"takes the key, number=, all of it and nothing else, got {named}"):
            method(**given)
    with pytest.raises(TypeError, match="place=, day="):
        Reservation.states.live(place=1, place_id=1)


def test_none_is_no_key():
    for method in (Shipment.states.live, Shipment.states.get_or_start):
        with pytest.raises(ValueError, match="a row without a value has no key"):
            method(number=None)


def test_a_row_that_would_not_be_live_is_not_started():
    with pytest.raises(ValueError, match="would make a row in 'DONE', which is not live"):
        Shipment.states.get_or_start(number="A-17", defaults={"status": "DONE"})
    assert not Shipment.objects.exists()


def test_a_machine_without_a_key_says_so():
    from lab.models import Ticket

    for method in (Ticket.states.live, Ticket.states.get_or_start):
        with pytest.raises(StateMachineError, match="has no key: say which fields are one"):
            method(title="x")


def test_djangos_own_get_or_create_meets_a_duplicate_as_it_meets_any(monkeypatch):
    """It catches `IntegrityError`, and looks again."""
    row = Shipment.objects.create(number="A-17")
    get, looks = models.QuerySet.get, []

    def blind_once(self: Any, *args: Any, **kwargs: Any) -> Any:
        looks.append(kwargs)
        if len(looks) == 1:
            raise self.model.DoesNotExist
        return get(self, *args, **kwargs)

    monkeypatch.setattr(models.QuerySet, "get", blind_once)
    assert Shipment.objects.get_or_create(number="A-17") == (row, False)


# Shapes of models


def test_a_terminal_state_may_keep_the_key_and_a_key_may_have_several_fields():
    place, other = Place.objects.create(), Place.objects.create()
    row = Reservation.objects.create(place=place, day=DAY)
    Reservation.objects.create(place=other, day=DAY)
    row.states.transition_to("SENT")
    row.states.transition_to("DONE")

    with transaction.atomic():
        with pytest.raises(DuplicateLiveRow) as caught:
            Reservation.objects.create(place=place, day=DAY)
        assert Reservation.objects.count() == 2
    assert caught.value.key == {"place": place.pk, "day": DAY}
    assert (caught.value.pk, caught.value.status) == (row.pk, "DONE")
    assert Reservation.states.live(place=place, day=DAY) == row

    row.states.force_transition_to("LOST", reason="a test")
    Reservation.objects.create(place=place, day=DAY)


def test_a_uuid_key_that_save_makes_is_refused_as_well():
    place = Place.objects.create()
    Reservation.objects.create(place=place, day=DAY)

    with transaction.atomic():
        with pytest.raises(DuplicateLiveRow):
            Reservation(place=place, day=DAY).save()
        assert Reservation.objects.count() == 1


def test_each_class_of_an_abstract_base_has_keys_of_its_own():
    Order.objects.create(number="A-17")
    Quote.objects.create(number="A-17")
    names = {model._meta.constraints[0].name for model in (Order, Quote)}
    assert len(names) == 2
    with pytest.raises(DuplicateLiveRow):
        Quote.objects.create(number="A-17")


def test_a_multi_table_child_shares_the_keys_of_its_parent():
    parent = Order.objects.create(number="A-17")
    child = BulkOrder.objects.create(number="A-18", size=3)

    with transaction.atomic():
        with pytest.raises(DuplicateLiveRow) as caught:
            BulkOrder.objects.create(number="A-17")
        child.number = "A-17"
        with pytest.raises(DuplicateLiveRow):
            child.save()
        assert (Order.objects.count(), BulkOrder.objects.count()) == (2, 1)
    assert caught.value.pk == parent.pk
    assert BulkOrder.states.live(number="A-18") == Order.objects.get(pk=child.pk)


def test_a_refused_row_of_a_child_leaves_no_parent_behind():
    PlacedOrder.objects.create(number="A-17")

    for block in (transaction.atomic, transaction.atomic):
        with block():
            with pytest.raises(DuplicateLiveRow):
                PlacedOrder.objects.create(number="A-17")
            assert Place.objects.count() == 1
    with pytest.raises(DuplicateLiveRow):
        PlacedOrder.objects.create(number="A-17")
    assert Place.objects.count() == 1


def test_two_machines_have_two_keys():
    first = Twice.objects.create(left=1, right=1)

    with transaction.atomic():
        with pytest.raises(DuplicateLiveRow) as left:
            Twice.objects.create(left=1, right=2)
        with pytest.raises(DuplicateLiveRow) as right:
            Twice.objects.create(left=2, right=1)
        assert Twice.objects.count() == 1
    assert (left.value.machine, left.value.key) == ("states", {"left": 1})
    assert (right.value.machine, right.value.key) == ("others", {"right": 1})
    assert right.value.pk == first.pk
    first.others.transition_to("LOST")
    assert Twice.others.get_or_start(right=1, defaults={"left": 2})[1]
    with pytest.raises(DuplicateLiveRow):
        Twice.others.get_or_start(right=3, defaults={"left": 1})


def test_a_proxy_shares_the_key(isolated):
    class Express(Shipment):
        class Meta:
            proxy = True
            app_label = "lab"

    row = Express.objects.create(number="A-17")
    with transaction.atomic(), pytest.raises(DuplicateLiveRow):
        Express.objects.create(number="A-17")
    assert Express.states.live(number="A-17").pk == row.pk


def test_a_child_or_a_proxy_starts_rows_of_the_model_that_has_the_machine():
    row, created = BulkOrder.states.get_or_start(number="A-17")
    assert (type(row), created, BulkOrder.objects.count()) == (Order, True, 0)


# Elsewhere


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_each_database_has_keys_of_its_own():
    row, created = Shipment.states.get_or_start(number="A-17", using="other")
    assert (created, row._state.db) == (True, "other")
    assert Shipment.states.live(number="A-17") is None
    assert Shipment.states.live(number="A-17", using="other") == row
    assert Shipment.states.get_or_start(number="A-17", using="other") == (row, False)
    assert Shipment.states.get_or_start(number="A-17")[1]

    with transaction.atomic(using="other"):
        with pytest.raises(DuplicateLiveRow) as caught:
            Shipment(number="A-17").save(using="other")
        assert caught.value.pk == row.pk
        assert Shipment.objects.using("other").count() == 1

    row.states.transition_to("LOST")
    assert Shipment.states.live(number="A-17", using="other") is None
    assert Shipment.states.live(number="A-17")
    live = Shipment.objects.using("other").create(number="A-17")
    with transaction.atomic(using="other"), pytest.raises(DuplicateLiveRow) as caught:
        row.states.force_transition_to("NEW", reason="a test")
    assert caught.value.pk == live.pk


def test_blocks_within_blocks_go_on_after_a_duplicate():
    Shipment.objects.create(number="A-17")
    with transaction.atomic():
        for block in ({}, {"savepoint": False}):
            with transaction.atomic(**block):
                with pytest.raises(DuplicateLiveRow):
                    Shipment.objects.create(number="A-17")
                assert not Shipment.states.get_or_start(number="A-17")[1]
        with pytest.raises(DuplicateLiveRow), transaction.atomic():
            Shipment.objects.create(number="A-17")
        Shipment.objects.create(number="A-18")
    assert Shipment.objects.count() == 2


def test_a_transaction_that_was_to_be_undone_before_is_undone():
    Shipment.objects.create(number="A-17")
    with transaction.atomic():
        Shipment.objects.create(number="A-18")
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            Shipment.objects.create(number="A-17")
    assert Shipment.objects.count() == 1


def test_a_copy_needs_a_key_of_its_own():
    row = Shipment.objects.create(number="A-17")
    row.pk, row._state.adding = None, True
    with transaction.atomic():
        with pytest.raises(DuplicateLiveRow):
            row.save()
        row.number = "A-18"
        row.save()
    assert Shipment.objects.count() == 2


def test_update_or_create_is_refused_and_the_transaction_goes_on():
    Shipment.objects.create(number="A-17")
    other = Shipment.objects.create(number="A-18")
    with transaction.atomic():
        for given in ({"pk": other.pk}, {"code": "new"}):
            with pytest.raises(DuplicateLiveRow):
                Shipment.objects.update_or_create(**given, defaults={"number": "A-17"})
        assert Shipment.objects.count() == 2


def test_fixtures_load_rows_that_have_ended_beside_the_live_one():
    ended()
    live = Shipment.objects.create(number="A-17")
    data = serializers.serialize("json", Shipment.objects.all())
    Shipment.objects.all().delete()
    for loaded in serializers.deserialize("json", data):
        loaded.save()
    assert Shipment.states.live(number="A-17") == live


# Forms


def test_a_form_tells_of_a_duplicate_under_the_field():
    Shipment.objects.create(number="A-17")
    form = modelform_factory(Shipment, fields=["number"])({"number": "A-17"})

    assert not form.is_valid()
    assert form.errors == {"number": ["Shipment with this Number already exists."]}


def test_a_form_lets_a_key_be_used_again_and_a_row_keep_its_own():
    gone = ended()
    form = modelform_factory(Shipment, fields=["number"])
    assert form({"number": "A-17"}).is_valid()
    live = Shipment.objects.create(number="A-17")
    assert form({"number": "A-17"}, instance=live).is_valid()
    assert form({"number": "A-17"}, instance=gone).is_valid()


def test_full_clean_tells_of_a_key_of_several_fields():
    place = Place.objects.create()
    Reservation.objects.create(place=place, day=DAY)

    with pytest.raises(ValidationError) as caught:
        Reservation(place=place, day=DAY).full_clean()

    assert caught.value.message_dict == {"__all__": ["Reservation with this Place and Day already exists."]}


# Declarations


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("number", "must be a list of names of fields, or a LiveKey, got 'number'"),
        (5, "must be a list of names of fields"),
        ([], "needs at least one field"),
        ([""], "consists of names of fields of the model, got ''"),
        (["place__name"], "consists of names of fields"),
        (["number", "number"], "names the field 'number' twice"),
        (["defaults"], "is an argument of get_or_start"),
    ],
)
def test_wrong_keys_are_refused_where_they_are_declared(given, message):
    with pytest.raises(ValueError, match=message):
        StateMachine(**FLOW, unique_while_live=given)


def test_wrong_states_are_refused_where_they_are_declared():
    with pytest.raises(ValueError, match="also names 'DOEN', not in states. Declared: NEW, SENT, DONE, LOST"):
        StateMachine(**FLOW, unique_while_live=LiveKey("number", also=["DOEN"]))
    with pytest.raises(ValueError, match="also names 'SENT', which is not terminal"):
        StateMachine(**FLOW, unique_while_live=LiveKey("number", also=["SENT"]))
    with pytest.raises(ValueError, match="no state gives it up that also= does not name"):
        StateMachine(**FLOW, unique_while_live=LiveKey("number", also=["DONE", "LOST"]))
    with pytest.raises(ValueError, match="also must be a list of states, got 'DONE'"):
        LiveKey("number", also="DONE")
    with pytest.raises(ValueError, match="none is terminal"):
        StateMachine(
            states=[("A", "A"), ("B", "B")],
            initial="A",
            transitions={"A": ["B"], "B": ["A"]},
            unique_while_live=["number"],
        )


def test_a_key_shows_what_it_is():
    assert repr(LiveKey("a", "b", also=["DONE"])) == "LiveKey('a', 'b', also=['DONE'])"
    assert repr(LiveKey("a")) == "LiveKey('a')"


def test_what_is_not_declared_is_not_there(isolated):
    model = lab_model(states=StateMachine(**FLOW))
    assert model._meta.constraints == []
    assert model._do_insert is models.Model._do_insert
