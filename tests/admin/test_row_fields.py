"""What the admin shows of rows that say their queue and priority."""

from __future__ import annotations

import pytest

from lab.models import Dispatch, Sorted, Wish
from shop.models import Order
from tests.admin.browsing import look, words_of
from tests.worker.rows import not_mariadb, set_clock

pytestmark = [pytest.mark.django_db, not_mariadb]


@pytest.mark.parametrize(
    ("model", "values", "status", "said"),
    [
        (Dispatch, {"queue": "mail", "priority": -7}, "NEW", "Queue mail Priority -7"),
        (Dispatch, {}, "NEW", "Queue general Priority 0"),
        (Dispatch, {}, "PACKED", "Queue packing Priority 0"),
        (Wish, {"queue": None, "priority": None}, "PACKED", "Queue packing Priority 0"),
        (Sorted, {"queue": "mail"}, "NEW", "Queue mail"),
    ],
)
def test_a_row_says_in_which_queue_it_is_and_how_urgent(admin_client, model, values, status, said):
    row = model.objects.create(**values)
    set_clock(row, status=status)
    assert said in words_of(look(admin_client, row))


def test_a_row_that_no_worker_serves_is_in_no_queue(admin_client):
    assert "Queue general" not in words_of(look(admin_client, Dispatch.objects.create(status="DONE")))


def test_nor_is_it_said_where_the_states_say_it(admin_client):
    assert "Queue " not in words_of(look(admin_client, Order.objects.create(customer="Ada", total=10)))
