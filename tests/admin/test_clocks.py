"""The clocks of timed machines in the admin: what they say, and run now, release and resume, beside a live worker."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry

from shop.models import Order
from statemachine_fields.testing import drain
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.outcomes import Kind, Verdict
from tests.admin.browsing import messages_of, page, text_of, words_of
from tests.worker.rows import claim_one, columns_of, in_seconds, lane_of, not_mariadb, set_clock

pytestmark = [pytest.mark.django_db, not_mariadb]


@pytest.fixture
def order():
    return Order.objects.create(customer="Ada", total=10)


def wind(client, order, verb, **fields):
    data = {"verb": verb, "token": order.status_lease_token, **fields}
    return client.post(page(Order, "clock", order.pk, "states"), data, follow=True)


def verbs(response):
    content = response.content.decode()
    return [verb for verb in ("run_now", "release", "resume") if f'name="verb" value="{verb}"' in content]


def look(client, order):
    return client.get(page(Order, "change", order.pk))


def park(order):
    set_clock(order, next_at=None, error="<b>The carrier</b> is busy.", failures=3)


def test_a_row_that_waits_says_for_how_long(admin_client, order):
    set_clock(order, next_at=in_seconds(7300))

    response = look(admin_client, order)

    assert "Clock: in 2 hours, 1 minute" in words_of(response)
    assert verbs(response) == ["run_now"]


def test_a_row_that_runs_says_where_and_until_when(admin_client, order):
    set_clock(order, next_at=in_seconds(-5))
    claim_one(lane_of(Order), owner="web-1:4711")

    response = look(admin_client, order)

    assert "Clock: running" in words_of(response)
    assert "Worker web-1:4711" in words_of(response)
    assert "Lease ends in" in words_of(response)
    assert verbs(response) == ["release"]


def test_a_row_that_was_left_says_so(admin_client, order):
    set_clock(order, lease_owner="web-1:4711", lease_expires_at=in_seconds(-60))

    assert "Clock: left by its worker" in words_of(look(admin_client, order))


def test_a_parked_row_shows_its_error_as_text(admin_client, order):
    park(order)

    response = look(admin_client, order)

    assert "Clock: parked" in words_of(response)
    assert "<b>The carrier</b> is busy." in text_of(response)
    assert "<b>The carrier</b>" not in response.content.decode()
    assert "Failed attempts 3" in words_of(response)
    assert verbs(response) == ["resume"]


def test_a_row_in_a_state_without_a_clock_has_no_verbs(admin_client, order):
    order.states.force_transition_to("DELIVERED", reason="for the test")

    response = look(admin_client, order)

    assert "Clock: nothing is due" in words_of(response)
    assert verbs(response) == []


def test_run_now_makes_the_row_due(admin_client, order):
    set_clock(order, next_at=in_seconds(7300))

    response = wind(admin_client, order, "run_now")

    assert messages_of(response) == [f"“{order}” is due now."]
    assert list(Order.states.due()) == [order]
    assert LogEntry.objects.get().change_message == "Run now"


def test_run_now_leaves_a_running_row_to_its_worker(admin_client, order):
    set_clock(order, next_at=in_seconds(-5))
    lease = claim_one(lane_of(Order))
    before = columns_of(order)

    response = wind(admin_client, order, "run_now")

    assert messages_of(response) == [f"“{order}” was left alone: A worker is running it."]
    assert columns_of(order) == before
    assert not LogEntry.objects.exists()
    assert lease.is_trusted


def test_release_takes_the_row_away_and_the_worker_is_not_heard(admin_client, order, committer):
    set_clock(order, next_at=in_seconds(-5))
    lease = claim_one(lane_of(Order))
    order.refresh_from_db()

    response = wind(admin_client, order, "release")
    committer.commit([Verdict(lease, Kind.MOVED, to_status="PAID")])

    assert "was taken away from its worker" in messages_of(response)[0]
    order.refresh_from_db()
    assert (order.status, order.status_lease_owner) == ("PENDING", "")


def test_release_is_about_the_worker_that_was_seen(admin_client, order):
    set_clock(order, next_at=in_seconds(-5))
    claim_one(lane_of(Order))
    order.refresh_from_db()
    order.states.release()
    seen = order.status_lease_token - 1
    claim_one(lane_of(Order), owner="another:1")

    response = wind(admin_client, order, "release", token=seen)

    assert "does not run it any more" in messages_of(response)[0]
    assert columns_of(order).lease_owner == "another:1"


def test_resume_puts_a_parked_row_back(admin_client, order):
    park(order)

    response = wind(admin_client, order, "resume")

    assert "was resumed" in messages_of(response)[0]
    assert columns_of(order).failures == 0


def test_resume_of_a_row_that_somebody_resumed_is_said(admin_client, order):
    park(order)
    Order.objects.get().states.resume()

    assert "not parked any more" in messages_of(wind(admin_client, order, "resume"))[0]


def test_nonsense_is_refused(admin_client, order):
    assert messages_of(wind(admin_client, order, "explode")) == ["There is nothing of that name to do with a row."]


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("run_now", ["Run now: 2 rows.", "1 row was left alone: A worker is running it."]),
        ("release", ["Release: 1 row.", "2 rows were left alone: There was nothing to do."]),
        ("resume", ["Resume: 1 row.", "2 rows were left alone: There was nothing to do."]),
    ],
)
def test_many_rows_are_wound_at_once(admin_client, order, verb, said):
    set_clock(order, next_at=in_seconds(7300))
    leased, parked = (Order.objects.create(customer="Grace", total=1) for _ in range(2))
    park(parked)
    set_clock(leased, next_at=in_seconds(-5))
    claim_one(lane_of(Order))
    data = {"action": f"states_{verb}", "_selected_action": [order.pk, leased.pk, parked.pk]}

    response = admin_client.post(page(Order), data, follow=True)

    assert messages_of(response) == said
    assert LogEntry.objects.count() == int(said[0].split()[-2])


def test_too_many_rows_are_left_alone(admin_client, order, monkeypatch):
    monkeypatch.setattr("shop.admin.OrderAdmin.bulk_limit", 1)
    Order.objects.create(customer="Grace", total=1)
    data = {"action": "states_run_now", "_selected_action": ["1"], "select_across": "1"}

    response = admin_client.post(page(Order), data, follow=True)

    assert "more than 1 rows" in messages_of(response)[0]
    assert not Order.states.due().exists()


def test_the_list_says_what_the_clock_says(admin_client, order):
    park(order)

    assert "parked" in text_of(admin_client.get(page(Order)))


def test_what_a_worker_did_is_told_in_the_story(admin_client, order, monkeypatch):
    monkeypatch.setattr("shop.world.has_paid", lambda order: True)
    drain(Order)

    assert "Packed" in text_of(look(admin_client, order))


@pytest.fixture
def committer():
    from statemachine_fields.worker.attempt import Attempts
    from statemachine_fields.worker.events import Events

    return Committer(Attempts(max_crashes=5), Events())
