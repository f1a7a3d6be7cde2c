"""The schedule of a row in the admin: what it says, and run now, release and resume, beside a live worker."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone, translation

from shop.models import Order
from statemachine_fields.admin.display import day
from statemachine_fields.testing import drain
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.outcome_events import Events
from statemachine_fields.worker.outcomes import Transitioned
from tests.admin.browsing import act, look, messages_of, page, text_of, words_of
from tests.worker.rows import claim_one, columns_of, in_seconds, lane_of, not_mariadb, set_clock

pytestmark = [pytest.mark.django_db, not_mariadb]

MONTH = 30 * 24 * 3600

#: After which an order is cancelled.
TIMEOUT = 2 * 24 * 3600


@pytest.fixture
def order():
    return Order.objects.create(customer="Ada", total=10)


def command(client, order, verb, **fields):
    data = {"verb": verb, "token": order.status_lease_token, **fields}
    return client.post(page(Order, "clock", order.pk, "states"), data, follow=True)


def verbs(response):
    content = response.content.decode()
    return [verb for verb in ("run_now", "release", "resume") if f'name="verb" value="{verb}"' in content]


def park(order):
    set_clock(order, next_at=None, error="<b>The carrier</b> is busy.", failures=3)


def in_state(state, **columns):
    """Return an order that has just entered a state, with columns of its clock as they are given."""
    order = Order.objects.create(customer="Ada", total=10)
    set_clock(order, status=state, **columns)
    return order


@pytest.mark.parametrize(
    ("state", "columns", "said"),
    [
        ("PAID", {"next_at": 7300}, "Clock: Runs in 2 hours, 1 minute"),
        ("PAID", {"next_at": -1}, "Clock: Due now"),
        ("PAID", {"next_at": -305}, "Clock: Due for 5 minutes"),
        ("PAID", {"next_at": 301, "failures": 6}, "Clock: Tried again in 5 minutes, attempt 7"),
        ("PAID", {"next_at": -1, "failures": 6}, "Clock: Due to be tried again, attempt 7"),
        ("PACKED", {"next_at": -1, "failures": 2}, "Clock: Due to be tried again, 3 of 3 If that fails it is parked"),
        ("PENDING", {"changed_at": -35 - TIMEOUT, "next_at": -35}, "Clock: Times out now → Cancelled"),
        ("PENDING", {"lease_owner": "web-1:4711", "lease_expires_at": -60}, "Clock: Left by its worker"),
        ("CANCELLED", {"changed_at": 7300 - MONTH, "next_at": 7300}, "Clock: Deleted in 2 hours, 1 minute"),
        ("CANCELLED", {"changed_at": -MONTH - 60, "next_at": -60}, "Clock: Deleted as soon as a worker takes it"),
    ],
    ids=[
        "a row that waits",
        "a row that waits for a worker",
        "a row that has waited for one",
        "a new try without a limit",
        "a try without a limit that is due",
        "the last try",
        "a time-out that is over",
        "a row that was left",
        "a deletion of today",
        "a deletion that is overdue",
    ],
)
def test_a_row_says_what_comes_next(admin_client, state, columns, said):
    times = {name: in_seconds(value) if name.endswith("_at") else value for name, value in columns.items()}

    assert said in words_of(look(admin_client, in_state(state, **times)))


def test_a_row_that_waits_can_be_run_now(admin_client):
    assert verbs(look(admin_client, in_state("PAID", next_at=in_seconds(7300)))) == ["run_now"]


def test_a_time_that_somebody_set_says_so(admin_client):
    order = in_state("PAID", next_at=in_seconds(7300))
    assert "by hand" not in words_of(look(admin_client, order))
    order.refresh_from_db()
    order.states.run_at(in_seconds(7300))

    assert "Clock: Runs in 2 hours, 1 minute When it is due was set by hand" in words_of(look(admin_client, order))


def test_a_row_that_was_tried_says_how_often_and_when(admin_client):
    order = in_state("PAID", next_at=in_seconds(7300))
    assert "tried" not in words_of(look(admin_client, order))
    set_clock(order, attempts=12, claimed_at=in_seconds(-305))

    assert "Tries in its life 12 Last tried 5 minutes ago" in words_of(look(admin_client, order))


@pytest.fixture
def limited(monkeypatch):
    """An order that is packed, or cancelled when its time is up."""
    bound = Order.states._meta
    limited = replace(bound.schedules["PAID"], timeout_after=TIMEOUT, timeout_to="CANCELLED")
    monkeypatch.setattr(bound, "schedules", {**bound.schedules, "PAID": limited})
    return in_state("PAID")


def test_a_time_out_says_where_to(admin_client, limited):
    set_clock(limited, changed_at=in_seconds(25 - TIMEOUT), next_at=in_seconds(25))

    response = look(admin_client, limited)

    assert re.search(r"Clock: Times out in 2[345] seconds → Cancelled Before that one more try", words_of(response))
    assert verbs(response) == ["run_now"]


def test_a_try_before_a_time_out_says_both(admin_client, limited):
    set_clock(limited, changed_at=in_seconds(25 - TIMEOUT), next_at=in_seconds(5))

    assert re.search(
        r"Clock: Runs in [45] seconds At the latest Times out in 2[345] seconds → Cancelled",
        words_of(look(admin_client, limited)),
    )


def test_a_deletion_says_which_day(admin_client):
    order = in_state("CANCELLED", next_at=in_seconds(MONTH))
    said = f"Deleted on {day(in_seconds(MONTH))}"

    response = look(admin_client, order)

    assert f"Clock: {said}" in words_of(response)
    assert verbs(response) == []
    assert said in words_of(admin_client.get(page(Order)))


def test_a_day_has_its_year_if_that_is_another_one():
    today = timezone.now()

    assert str(today.year) not in day(today)
    assert str(today.year + 1) in day(today.replace(year=today.year + 1, day=1))


def test_a_new_try_says_which_it_is_and_of_how_many(admin_client):
    order = in_state("PACKED", next_at=in_seconds(301), failures=1, error="busy")

    response = look(admin_client, order)

    assert "Clock: Tried again in 5 minutes, 2 of 3" in words_of(response)
    assert "Tried again in 5 minutes, 2 of 3" in words_of(admin_client.get(page(Order)))
    assert "If that fails" not in words_of(response)


def test_what_comes_next_is_said_in_the_language_of_the_reader(admin_client):
    order = in_state("CANCELLED", next_at=in_seconds(MONTH))

    with translation.override("de"):
        assert f"Uhr: Wird am {day(in_seconds(MONTH))} gelöscht" in words_of(look(admin_client, order))
        set_clock(order, status="PACKED", next_at=in_seconds(301), failures=1)
        assert "Uhr: Neuer Versuch in 5 Minuten, 2 von 3" in words_of(look(admin_client, order))


def test_a_row_that_was_forgotten_says_what_to_do(admin_client):
    response = look(admin_client, in_state("PAID", next_at=None))

    assert "Clock: Nothing is due" in words_of(response)
    assert "statemachine_reschedule" in words_of(response)
    assert verbs(response) == ["run_now"]


def test_the_machine_page_says_of_stuck_rows_what_their_own_pages_say(admin_client):
    in_state("PACKED", next_at=in_seconds(-305), failures=1)

    assert "Due to be tried again, 2 of 3" in words_of(admin_client.get(page(Order, "machine", "states")))


def test_a_row_that_runs_says_where_and_until_when(admin_client, order):
    set_clock(order, changed_at=in_seconds(25 - TIMEOUT), next_at=in_seconds(-5))
    claim_one(lane_of(Order), owner="web-1:4711")

    response = look(admin_client, order)

    assert "Clock: Held by web-1:4711" in words_of(response)
    assert "Worker web-1:4711" in words_of(response)
    assert "Lease ends in" in words_of(response)
    assert re.search(r"At the latest Times out in 2\d seconds → Cancelled", words_of(response))
    assert verbs(response) == ["release"]


def test_a_parked_row_shows_its_error_as_text(admin_client, order):
    park(order)

    response = look(admin_client, order)

    assert "Clock: Parked: <b>The carrier</b> is busy." in words_of(response)
    assert "<b>The carrier</b> is busy." in text_of(response)
    assert "<b>The carrier</b>" not in response.content.decode()
    assert "Failed attempts 3" in words_of(response)
    assert verbs(response) == ["resume"]


def test_a_row_in_a_state_without_a_clock_has_no_verbs(admin_client, order):
    order.states.force_transition_to("DELIVERED", reason="for the test")

    response = look(admin_client, order)

    assert "Clock: Nothing is due" in words_of(response)
    assert verbs(response) == []


def test_run_now_makes_the_row_due(admin_client, order):
    set_clock(order, next_at=in_seconds(7300))

    response = command(admin_client, order, "run_now")

    assert messages_of(response) == [f"“{order}” is due now."]
    assert list(Order.states.due()) == [order]
    assert LogEntry.objects.get().change_message == "Run now"


def test_run_now_is_only_for_states_where_something_runs(admin_client):
    order = in_state("CANCELLED", next_at=in_seconds(7300))
    before = columns_of(order)

    response = command(admin_client, order, "run_now")

    assert messages_of(response) == [f"“{order}” was left alone: its state has no handler to run."]
    response = act(admin_client, [order], "states_run_now")
    assert messages_of(response) == ["1 row was left alone: There is no handler to run in its state."]
    assert columns_of(order) == before
    assert not LogEntry.objects.exists()


def test_run_now_leaves_a_running_row_to_its_worker(admin_client, order):
    set_clock(order, next_at=in_seconds(-5))
    lease = claim_one(lane_of(Order))
    before = columns_of(order)

    response = command(admin_client, order, "run_now")

    assert messages_of(response) == [f"“{order}” was left alone: A worker is running it."]
    assert columns_of(order) == before
    assert not LogEntry.objects.exists()
    assert lease.is_trusted


def test_release_takes_the_row_away_and_the_worker_is_not_heard(admin_client, order):
    set_clock(order, next_at=in_seconds(-5))
    lease = claim_one(lane_of(Order))
    order.refresh_from_db()

    response = command(admin_client, order, "release")
    Committer(HandlerExecutor(max_crashes=5), Events()).commit([Transitioned(lease, to_status="PAID")])

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

    response = command(admin_client, order, "release", token=seen)

    assert "does not run it any more" in messages_of(response)[0]
    assert columns_of(order).lease_owner == "another:1"


def test_resume_puts_a_parked_row_back(admin_client, order):
    park(order)

    response = command(admin_client, order, "resume")

    assert "was resumed" in messages_of(response)[0]
    assert columns_of(order).failures == 0


def test_resume_of_a_row_that_somebody_resumed_is_said(admin_client, order):
    park(order)
    Order.objects.get().states.resume()

    assert "not parked any more" in messages_of(command(admin_client, order, "resume"))[0]


def test_nonsense_is_refused(admin_client, order):
    assert messages_of(command(admin_client, order, "explode")) == ["There is nothing of that name to do with a row."]


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

    response = act(admin_client, [order, leased, parked], f"states_{verb}")

    assert messages_of(response) == said
    assert LogEntry.objects.count() == int(said[0].split()[-2])


def test_too_many_rows_are_left_alone(admin_client, order, monkeypatch):
    monkeypatch.setattr("shop.admin.OrderAdmin.bulk_limit", 1)
    Order.objects.create(customer="Grace", total=1)

    response = act(admin_client, [order], "states_run_now", select_across="1")

    assert "more than 1 rows" in messages_of(response)[0]
    assert not Order.states.due().exists()


def test_the_list_says_what_the_clock_says(admin_client, order):
    park(order)

    content = admin_client.get(page(Order)).content.decode()

    said = (
        '<span title="&lt;b&gt;The carrier&lt;/b&gt; is busy.">Parked: &lt;b&gt;The carrier&lt;/b&gt; is busy.</span>'
    )
    assert said in content


def test_the_list_cuts_a_long_error_short(admin_client, order):
    set_clock(order, next_at=None, error="x" * 200)

    assert f"Parked: {'x' * 29}…" in text_of(admin_client.get(page(Order)))


def test_what_a_worker_did_is_told_in_the_story(admin_client, order, monkeypatch):
    monkeypatch.setattr("shop.world.is_packed", lambda order: True)
    order.states.deliver("paid")
    drain(Order)

    assert "Packed" in text_of(look(admin_client, order))
