"""The shop of the demo: its handlers, its past, and what people can do with its orders in the admin."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.urls import reverse
from django.utils import timezone

from shop import history, world
from shop.models import Order, OrderStateTransition
from shop.running import DONE, drop_done, take_order
from statemachine_fields.testing import assert_history, drain
from statemachine_fields.worker.models import RunStatistics

pytestmark = pytest.mark.django_db


@pytest.fixture
def kind_world(monkeypatch):
    """Everyone pays, everything is there, and every parcel arrives."""
    monkeypatch.setattr(world, "has_paid", lambda order: True)
    monkeypatch.setattr(world, "is_packed", lambda order: True)
    monkeypatch.setattr(world, "book_carrier", lambda order: ("DHL", "00000001"))
    monkeypatch.setattr(world, "where_is", lambda order: "DELIVERED")


@pytest.fixture
def order():
    return Order.objects.create(customer="Ada", total=10)


def test_an_order_finds_its_way(order, kind_world):
    drain(Order)

    assert_history(order, "PENDING", "PAID", "PACKED", "SHIPPED", "DELIVERED")
    order.refresh_from_db()
    assert order.tracking == order.states.history.get(to_status="SHIPPED").metadata["tracking"]


def test_an_order_that_nobody_pays_is_cancelled(order, monkeypatch):
    monkeypatch.setattr(world, "has_paid", lambda order: False)
    drain(Order, timeouts=True)

    assert_history(order, "PENDING", "CANCELLED")


def test_a_busy_carrier_parks_the_order_until_somebody_resumes_it(order, kind_world, monkeypatch, admin_client):
    def book_carrier(order):
        raise world.carrier_is_busy("DHL")

    monkeypatch.setattr(world, "book_carrier", book_carrier)
    assert drain(Order).parked == 1
    page = admin_client.get(reverse("admin:shop_order_changelist"))
    assert "takes no bookings" in page.content.decode()
    assert "Parked: DHL" in page.content.decode()
    assert "shop/refresh.js" in page.content.decode()

    url = reverse("admin:shop_order_changelist")
    admin_client.post(url, {"action": "states_resume", "_selected_action": [order.pk]})

    assert list(Order.states.due()) == [order]


@pytest.mark.parametrize("state", [state for state, _label in Order.states.states])
def test_the_admin_shows_orders_in_every_state(state, admin_client):
    order = Order.objects.create(customer="Ada", total=10, status=state)

    assert admin_client.get(reverse("admin:shop_order_changelist")).status_code == 200
    assert admin_client.get(reverse("admin:shop_order_change", args=[order.pk])).status_code == 200


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
    call_command("statemachine_verify", "shop.Order", strict=True, stdout=said)

    assert "400 rows" in said.getvalue()
    assert "0 errors, 0 warnings" in said.getvalue()
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


def test_the_past_of_the_shop_looks_like_one(past):
    count = {state: Order.objects.filter(status=state).count() for state, _label in Order.states.states}
    assert count["DELIVERED"] > 200
    assert all(count[state] > 0 for state in count)
    assert Order.states.parked().exists()
    assert Order.objects.earliest("created_at").created_at < timezone.now() - timedelta(weeks=3)

    stays = Order.states.durations().states
    assert timedelta(hours=1) < stays["PAID"].median < timedelta(hours=6)
    assert timedelta(seconds=20) < stays["PACKED"].median < timedelta(minutes=5)
    assert timedelta(hours=20) < stays["SHIPPED"].median < timedelta(days=2)
    assert timedelta(days=1) < stays["DELIVERED"].median < timedelta(days=10)


def test_orders_of_the_past_are_due_when_the_machine_would_have_them(past):
    soon = timezone.now() + timedelta(minutes=5)
    for order in Order.objects.all():
        clock, next_at = Order.states._meta.schedules[order.status], order.status_next_at
        is_parked = next_at is None and order.status_failures == clock.max_attempts
        if clock.entry_delay() is None or is_parked:
            assert next_at is None
        elif clock.handler is None:
            assert next_at == order.status_changed_at + timedelta(seconds=clock.horizon)
        else:
            assert order.status_changed_at < next_at < soon
        assert bool(order.status_error) == (order.status_failures > 0)
    assert Order.objects.filter(status="PENDING", status_changed_at__lt=timezone.now() - timedelta(days=2)).count() == 0


def test_a_past_that_cannot_be_written_is_not_written_in_part(monkeypatch):
    stories = iter([True, True, False])
    story = history.Imagination.story

    def imagine(imagination):
        made = story(imagination)
        made.customer = "Ada" if next(stories) else None
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
