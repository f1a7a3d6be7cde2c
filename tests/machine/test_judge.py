"""A person, a batch, a worker and the admin get one answer about one move."""

from __future__ import annotations

import dataclasses
import re

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission

from shop.models import Order
from statemachine_fields import State, StateMachineError, Transition
from statemachine_fields.machine.graph import build_graph
from statemachine_fields.testing import drain
from tests.admin.browsing import messages_of, press
from tests.settings import SMF_DB

pytestmark = pytest.mark.django_db

PERMISSION = r"You do not have the permission for this move\."

#: Where a move leads, and what is said against it; nothing is where it may be made.
CASES = {
    "a move that nothing stands against": ("PENDING", None),
    "one that the graph does not have": ("SHIPPED", "(?i)move from '?paid'? to '?shipped'?"),
    "one that a guard refuses": ("RETURNED", "What costs less than 20 is not taken back."),
    "one that needs a permission": ("PACKED", PERMISSION),
    "one that needs a permission for the row": ("CANCELLED", PERMISSION),
    "one into a retired state": ("DELIVERED", "'DELIVERED' is retired|no move from Paid to Delivered"),
    "one into a state that is not declared": ("NOWHERE", "no (such )?state"),
}


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Let orders have a move of every kind out of one state."""
    bound = Order.states._meta
    declared = dict(bound.graph.states)
    declared["DELIVERED"] = dataclasses.replace(declared["DELIVERED"], retired=True)
    declared |= {state: State(state) for state in ("PENDING", "SHIPPED")}  # which lead to no other by themselves
    own = Transition("CANCELLED", permission=lambda order, user: order.customer == user.get_username())
    moves = ["PENDING", "RETURNED", Transition("PACKED", permission="shop.add_order"), own]
    monkeypatch.setattr(bound, "graph", build_graph(declared.values(), "PENDING", {"PAID": moves}, 50))


@pytest.fixture
def user(client):
    user = get_user_model().objects.create_user("ada", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_order", "change_order"]))
    client.force_login(user)
    return user


@pytest.fixture
def row(user):
    return Order.objects.create(customer="eve", total=1, status="PAID")


# Each way makes the move, and returns what it is told.


def by_hand(row, user):
    def move(to):
        try:
            row.states.transition_to(to, user=user)
        except StateMachineError as error:
            return str(error)
        return ""

    return move


@pytest.fixture
def by_person(row, user):
    return by_hand(row, user)


@pytest.fixture
def by_program(row):
    return by_hand(row, None)


@pytest.fixture
def by_batch(row, user):
    def move(to):
        try:
            result = Order.states.bulk_transition(Order.objects.all(), to, user=user)
        except StateMachineError as error:
            return str(error)
        return "".join(refusal.reason for refusal in result.refusals)

    return move


@pytest.fixture
def by_admin(row, client):
    return lambda to: " ".join(messages_of(press(client, row, to=to)))


@pytest.fixture
def by_worker(row, monkeypatch):
    def move(to):
        monkeypatch.setattr(Order, "pack", lambda self: to)
        monkeypatch.setattr(Order, "ship", lambda self: None)
        drain(Order)
        return Order.objects.get().status_error

    return move


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", ["by_person", "by_batch", "by_admin"])
def test_whoever_moves_a_row_for_somebody_gets_one_answer(request, row, user, way, case):
    to, reason = CASES[case]
    assert row.states.can_transition_to(to, user) is (reason is None)
    answer = request.getfixturevalue(way)(to)
    row.refresh_from_db()
    if reason is None:
        assert row.status == to
    else:
        assert re.search(reason, answer)
        assert (row.status, row.status_sequence) == ("PAID", 0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", ["by_program", "by_worker"])
def test_whoever_moves_a_row_for_nobody_is_asked_for_no_permission(request, row, way, case):
    if way == "by_worker" and SMF_DB == "mariadb":
        pytest.skip("workers run on PostgreSQL and SQLite")
    to, reason = CASES[case]
    reason = None if reason == PERMISSION else reason
    assert row.states.can_transition_to(to) is (reason is None)
    answer = request.getfixturevalue(way)(to)
    row.refresh_from_db()
    if reason is None:
        assert (row.status, answer) == (to, "")
    else:
        assert re.search(reason, answer)
        assert (row.status, row.status_sequence) == ("PAID", 0)


@pytest.mark.parametrize("way", ["by_person", "by_batch", "by_admin"])
@pytest.mark.parametrize("to", ["PACKED", "CANCELLED"])
def test_who_has_the_permission_may_move_the_row(request, row, user, way, to):
    user.user_permissions.add(*Permission.objects.filter(codename="add_order"))
    Order.objects.update(customer="ada")
    row.refresh_from_db()
    vars(user).pop("_user_perm_cache", None)
    vars(user).pop("_perm_cache", None)
    request.getfixturevalue(way)(to)
    row.refresh_from_db()
    assert row.status == to
