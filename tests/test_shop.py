"""The shop of the demo: its handlers, and what people can do with its orders in the admin."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from shop import world
from shop.models import Order
from statemachine_fields.testing import assert_history, drain
from statemachine_fields.worker.models import RunStatistics

pytestmark = pytest.mark.django_db


@pytest.fixture
def kind_world(monkeypatch):
    """Everyone pays, and every parcel arrives."""
    monkeypatch.setattr(world.random, "random", lambda: 0.35)


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


def test_a_busy_carrier_parks_the_order_until_somebody_resumes_it(order, monkeypatch, admin_client):
    monkeypatch.setattr(world.random, "random", lambda: 0.1)
    assert drain(Order).parked == 1
    page = admin_client.get(reverse("admin:shop_order_changelist"))
    assert "takes no bookings" in page.content.decode()
    assert "parked" in page.content.decode()
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
    RunStatistics.objects.create(machine="shop.Order.states", state="PAID", period="2026-11-16T10:00Z", moved=7)
    url = reverse("admin:statemachine_worker_runstatistics_changelist")

    page = admin_client.get(url)
    assert "shop.Order.states" in page.content.decode()
    assert admin_client.get(reverse("admin:statemachine_worker_runstatistics_add")).status_code == 403
    client.force_login(User.objects.create_user("visitor", is_staff=True))
    assert client.get(url).status_code == 403
