"""The shop of the demo: its handlers, its past, and what people can do with its orders in the admin."""

from __future__ import annotations

import itertools
from datetime import timedelta
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.urls import reverse
from django.utils import timezone

from shop import history, world
from shop.models import Order, OrderStateEvent, OrderStateTransition, Parcel, ParcelStateAttempt, ParcelStateEvent
from shop.running import DONE, call_back, drop_done, hear_from_bank, hear_from_carriers, take_order
from statemachine_fields.testing import assert_history, drain
from statemachine_fields.worker.models import RunStatistics

pytestmark = pytest.mark.django_db

PAID = ("paid", {"amount": "310.00", "method": "card"})
DELIVERED = ("delivered", {"signed_by": "a neighbour"})


@pytest.fixture
def kind_world(monkeypatch):
    """Everyone pays, everything is there, and every parcel arrives."""
    numbers = itertools.count(1)
    monkeypatch.setattr(world, "news_of_payment", lambda order: PAID)
    monkeypatch.setattr(world, "is_packed", lambda order: True)
    monkeypatch.setattr(world, "problem_with_address", lambda order: "")
    monkeypatch.setattr(world, "book_carrier", lambda parcel: ("DHL", f"{next(numbers):08d}"))
    monkeypatch.setattr(world, "news_of_parcel", lambda parcel: DELIVERED)


@pytest.fixture
def order():
    return Order.objects.create(customer="Ada", total=310)


@pytest.fixture
def lines():
    return []


@pytest.fixture
def say(lines):
    return lambda who, line: lines.append(f"{who} {line}")


def test_an_order_finds_its_way(order, kind_world, say, lines):
    drain()
    assert_history(order)  # nobody asks, and it waits

    hear_from_bank(say)
    drain()
    assert_history(order, "PENDING", "PAID", "PACKED", "SHIPPED")
    assert [parcel.tracking for parcel in order.parcels.order_by("pk")] == ["00000001", "00000002", "00000003"]

    hear_from_carriers(say)
    drain()
    assert_history(order, "PENDING", "PAID", "PACKED", "SHIPPED", "DELIVERED")
    for parcel in order.parcels.all():
        assert_history(parcel, "READY", "ON_THE_ROAD", "DELIVERED")
        assert parcel.states.events.get().payload == DELIVERED[1]
    paid, *_others, delivered = order.states.history.order_by("sequence")
    assert (paid.metadata["event"], delivered.metadata["children"]) == ("paid", {"DELIVERED": 3})
    payment = order.states.events.get()
    assert (payment.payload, payment.taken_by) == (PAID[1], 1)
    assert f"{order}: paid, 310.00, card (woken)" in lines[0]


def test_an_order_whose_payment_is_refused_is_cancelled(order, say):
    call_back(order, ("refused", {"reason": "insufficient funds"}), "bank", say)
    drain()

    assert_history(order, "PENDING", "CANCELLED")


def test_an_order_that_nobody_pays_is_cancelled(order):
    drain(timeouts=True)

    assert_history(order, "PENDING", "CANCELLED")


def test_a_payment_that_is_told_twice_counts_once(order, kind_world, say, lines, monkeypatch):
    monkeypatch.setattr("shop.running.random.random", lambda: 0.0)  # every call is repeated
    hear_from_bank(say)

    assert "(woken)" in lines[0]
    assert "(duplicate)" in lines[1]
    assert order.states.events.count() == 1
    drain()
    assert_history(order, "PENDING", "PAID", "PACKED", "SHIPPED")


def test_a_call_for_an_order_that_was_cancelled_meanwhile_is_no_error(order, say, lines):
    Order.objects.get().states.transition_to("CANCELLED")
    call_back(order, PAID, "bank", say)

    assert "(refused)" in lines[0]


def shipped(order, say):
    hear_from_bank(say)
    drain()
    order.refresh_from_db()
    return list(order.parcels.order_by("pk"))


def test_a_lost_parcel_loses_the_order_and_calls_the_others_back(order, kind_world, say):
    first, second, third = shipped(order, say)
    first.states.deliver(*DELIVERED)
    second.states.deliver("lost", {"last_seen": "Leipzig"})
    drain()

    assert_history(order, "PENDING", "PAID", "PACKED", "SHIPPED", "LOST")
    assert_history(third, "READY", "ON_THE_ROAD", "RECALLED")


def test_who_wants_back_what_is_on_the_road_has_it_recalled(order, kind_world, say):
    parcels = shipped(order, say)
    order.states.transition_to("RETURNED")
    drain()

    for parcel in parcels:
        assert_history(parcel, "READY", "ON_THE_ROAD", "RECALLED")


def test_a_busy_carrier_parks_a_parcel_which_holds_its_order_up(order, kind_world, say, monkeypatch, admin_client):
    def book_carrier(parcel):
        if parcel.pk == max(order.parcels.values_list("pk", flat=True)):
            raise world.carrier_is_busy("DHL")
        return "UPS", f"{parcel.pk}"

    with monkeypatch.context() as changed:
        changed.setattr(world, "book_carrier", book_carrier)
        *_others, parked = shipped(order, say)
    hear_from_carriers(say)
    drain()
    assert_history(order, "PENDING", "PAID", "PACKED", "SHIPPED")
    assert list(Parcel.states.parked()) == [parked]
    tries = parked.states.attempts.order_by("number")
    assert [each.outcome for each in tries] == ["failed", "failed", "parked"]
    verified = StringIO()
    call_command("statemachine_verify", "shop", stdout=verified)
    assert f"shop.Order.states pk={order.pk} children-parked" in verified.getvalue()
    url = reverse("admin:shop_parcel_changelist")
    page = admin_client.get(url).content.decode()
    assert "Parked: DHL takes no bookings" in page
    assert "shop/refresh.js" in page

    admin_client.post(url, {"action": "states_resume", "_selected_action": [parked.pk]})
    drain()
    hear_from_carriers(say)
    drain()

    assert_history(order, "PENDING", "PAID", "PACKED", "SHIPPED", "DELIVERED")


def test_a_wrong_address_parks_the_order_until_somebody_resumes_it(order, kind_world, say, monkeypatch, admin_client):
    with monkeypatch.context() as changed:
        changed.setattr(world, "problem_with_address", lambda order: world.PROBLEMS[0])
        assert not shipped(order, say)
    url = reverse("admin:shop_order_changelist")
    assert "Parked: The address has no" in admin_client.get(url).content.decode()

    admin_client.post(url, {"action": "states_resume", "_selected_action": [order.pk]})
    drain()

    assert order.parcels.count() == 3


def test_a_carrier_may_give_a_number_again_once_the_parcel_is_there(kind_world, order, say, monkeypatch):
    monkeypatch.setattr(world, "weigh", lambda order: [1])
    monkeypatch.setattr(world, "book_carrier", lambda parcel: ("DHL", "7"))
    (first,) = shipped(order, say)
    other = Order.objects.create(customer="Alan", total=310)
    assert [parcel.status for parcel in shipped(other, say)] == ["READY"]

    first.states.deliver(*DELIVERED)
    drain()
    Parcel.states.parked().get().states.resume()
    drain()

    assert Parcel.states.live(carrier="DHL", tracking="7").order == other


@pytest.mark.parametrize("state", [state for state, _label in Parcel.states.states])
def test_the_admin_shows_parcels_in_every_state(order, state, admin_client):
    parcel = Parcel.objects.create(order=order, weight=1, status=state)

    assert admin_client.get(reverse("admin:shop_parcel_changelist")).status_code == 200
    assert admin_client.get(reverse("admin:shop_parcel_change", args=[parcel.pk])).status_code == 200


@pytest.mark.parametrize("state", [state for state, _label in Order.states.states])
def test_the_admin_shows_orders_in_every_state(state, admin_client):
    order = Order.objects.create(customer="Ada", total=10, status=state)

    assert admin_client.get(reverse("admin:shop_order_changelist")).status_code == 200
    assert admin_client.get(reverse("admin:shop_order_change", args=[order.pk])).status_code == 200


def test_somebody_may_say_in_the_admin_what_the_bank_has_not_said(order, admin_client):
    url = reverse("admin:shop_order_change", args=[order.pk]).replace("change/", "deliver/states/")
    admin_client.post(url, {"name": "refused", "payload": '{"reason": "by phone"}'})
    drain()

    assert_history(order, "PENDING", "CANCELLED")
    page = admin_client.get(reverse("admin:shop_orderstateevent_changelist"))
    assert "by phone" in page.content.decode()


def test_run_statistics_are_for_reading(admin_client, client):
    RunStatistics.objects.create(machine="shop.Order.states", state="PAID", period="2026-11-16T10:00Z", kind="moved")
    url = reverse("admin:statemachine_worker_runstatistics_changelist")

    page = admin_client.get(url)
    assert "shop.Order.states" in page.content.decode()
    assert admin_client.get(reverse("admin:statemachine_worker_runstatistics_add")).status_code == 403
    client.force_login(User.objects.create_user("visitor", is_staff=True))
    assert client.get(url).status_code == 403


@pytest.fixture
def past():
    """A shop that has been there for some weeks. The same each time, as far as the time of day allows."""
    history.write(400, people=User.objects.create_superuser("grace"), seed=1815)


def test_the_past_of_the_shop_is_what_its_machine_could_have_made(past):
    said = StringIO()
    call_command("statemachine_verify", "shop", strict=True, stdout=said)

    assert "shop.Order.states: 400 rows" in said.getvalue()
    assert said.getvalue().count("0 errors, 0 warnings") == 2
    records = OrderStateTransition.objects.order_by("id").values_list("transitioned_at", flat=True)
    assert list(records) == sorted(records)  # keys sort by time, which is what durations and lists go by
    assert max(records) <= timezone.now()
    for order in Order.objects.filter(status="RETURNED"):
        assert order.is_worth_returning() is True
    grace = User.objects.get(username="grace")
    made = Order.objects.create(customer="Ada", total=25).states.transition_to("CANCELLED", user=grace)
    actors = OrderStateTransition.objects.filter(from_status="DELIVERED").values_list("metadata__actor", flat=True)
    assert len(actors) > 0
    assert all(actor == made.metadata["actor"] for actor in actors)
    assert not OrderStateTransition.objects.filter(metadata__remark="").exists()  # a form leaves out what is empty


def test_what_the_past_heard_and_tried_fits_what_moved(past):
    for name, to in (("paid", "PAID"), ("refused", "CANCELLED")):
        records = OrderStateTransition.objects.filter(metadata__event=name)
        assert set(records.values_list("to_status", flat=True)) == {to}
        takers = OrderStateEvent.objects.filter(name=name, taken_by__isnull=False)
        assert set(takers.values_list("instance", "taken_by")) == set(records.values_list("instance", "sequence"))
    kept = OrderStateEvent.objects.filter(taken_by=None)
    assert kept.exists()  # some pay twice
    assert set(kept.values_list("name", flat=True)) == {"paid"}
    assert not ParcelStateEvent.objects.filter(taken_by=None).exists()
    assert {"failed", "parked"} == set(ParcelStateAttempt.objects.values_list("outcome", flat=True))
    for parcel in Parcel.objects.exclude(status="RECALLED").prefetch_related("status_transitions", "status_tries"):
        numbers = [record.metadata["try"]["number"] for record in parcel.status_transitions.all()]
        numbers += [each.number for each in parcel.status_tries.all()]
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_orders_of_the_past_are_where_their_parcels_let_them_be(past):
    for order in Order.objects.prefetch_related("parcels"):
        found = {parcel.status for parcel in order.parcels.all()}
        match order.status:
            case "PENDING" | "PAID" | "PACKED" | "CANCELLED":
                assert not found
            case "SHIPPED":
                assert found & {"READY", "ON_THE_ROAD"}
                assert found <= {"READY", "ON_THE_ROAD", "DELIVERED"}
            case "DELIVERED":
                assert found == {"DELIVERED"}
            case "LOST":
                assert "LOST" in found
                assert found <= {"LOST", "DELIVERED", "RECALLED"}
            case "RETURNED":
                assert found <= {"DELIVERED", "RECALLED"}
    assert Parcel.objects.filter(status="RECALLED").exists()
    recalled = Parcel.states.transition_model.objects.filter(to_status="RECALLED").select_related("instance")
    for record in recalled:
        assert record.metadata["cancelled_by"] == f"shop.Order pk={record.instance.order_id}"


def test_the_past_of_the_shop_looks_like_one(past):
    count = {state: Order.objects.filter(status=state).count() for state, _label in Order.states.states}
    assert count["DELIVERED"] > 200
    assert all(count[state] > 0 for state in count)
    assert Order.states.parked().exists()
    assert Order.objects.earliest("created_at").created_at < timezone.now() - timedelta(weeks=3)

    stays = Order.states.durations().states
    assert timedelta(hours=1) < stays["PAID"].median < timedelta(hours=6)
    assert timedelta(seconds=20) < stays["PACKED"].median < timedelta(minutes=5)
    assert timedelta(hours=20) < stays["SHIPPED"].median < timedelta(days=3)
    assert timedelta(days=1) < stays["DELIVERED"].median < timedelta(days=10)
    stays = Parcel.states.durations().states
    assert timedelta(hours=20) < stays["ON_THE_ROAD"].median < timedelta(days=2)


@pytest.mark.parametrize("model", [Order, Parcel])
def test_rows_of_the_past_are_due_when_the_machine_would_have_them(past, model):
    soon = timezone.now() + timedelta(minutes=5)
    for row in model.objects.all():
        schedule, next_at = model.states._meta.schedules[row.status], row.status_next_at
        if not schedule.runs or schedule.may_sleep or (row.status_error and not row.status_failures):
            assert next_at is None
        elif schedule.handler is None:
            assert next_at == row.status_changed_at + timedelta(seconds=schedule.horizon)
        else:
            assert row.status_changed_at < next_at < soon
    assert not any(parcel.status_failures > 2 for parcel in Parcel.objects.all())  # a parked one would be a warning
    assert Order.objects.filter(status="PENDING", status_changed_at__lt=timezone.now() - timedelta(days=2)).count() == 0


def test_a_past_that_cannot_be_written_is_not_written_in_part(monkeypatch):
    whole = iter([True, True, False])
    story = history.Imagination.story

    def imagine(imagination):
        made = story(imagination)
        made.fields["customer"] = "Ada" if next(whole) else None
        return made

    monkeypatch.setattr(history.Imagination, "story", imagine)
    with pytest.raises(Exception, match="customer"):
        history.write(3)

    assert not Order.objects.exists()


def test_a_new_order_takes_the_place_of_the_one_that_was_done_first(past):
    done = Order.objects.filter(status__in=DONE)
    first = done.earliest("status_changed_at")
    newest = Order.objects.latest("pk")

    take_order(limit=400)

    assert Order.objects.count() == 400
    assert not Order.objects.filter(pk=first.pk).exists()
    assert not OrderStateTransition.objects.filter(instance_id=first.pk).exists()
    assert Order.objects.latest("pk").pk > newest.pk


def test_orders_on_their_way_are_never_dropped(past):
    on_their_way = set(Order.objects.exclude(status__in=DONE).values_list("pk", flat=True))

    assert drop_done(1) == 400 - len(on_their_way)
    assert set(Order.objects.values_list("pk", flat=True)) == on_their_way

    take_order(limit=5)
    assert set(Order.objects.values_list("pk", flat=True)) == on_their_way
