"""What counts as stuck on the page of a machine: a row that should have left its state and has not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from django.contrib.admin import site
from django.utils import timezone, translation

from lab.models import Dossier
from shop.models import Order
from statemachine_fields.db.expressions import MachineValue
from tests.admin.browsing import page, queries, staff, words_of
from tests.admin.test_machine_page import DAY, HOUR, link_of, look, make, order, stuck

pytestmark = pytest.mark.django_db


def set_clocks(rows, **columns):
    written = {f"status_{name}": MachineValue(value) for name, value in columns.items()}
    Order.objects.filter(pk__in=[row.pk for row in rows]).update(**written)


def spared(response):
    """Return what is said of the states that are not looked at."""
    found = re.search(r'<p class="smf-quiet smf-spared">(.*?)</p>', response.content.decode(), re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", "", found.group(1)).split()) if found else ""


def declare(monkeypatch, model, state, **policy):
    """Give a state of a model another policy."""
    graph, clocks = model.states._meta.graph, model.states._meta.schedules
    changed = replace(graph.states[state], **policy)
    monkeypatch.setattr(model.states._meta, "graph", replace(graph, states={**graph.states, state: changed}))
    clock = type(clocks[state]).of(state, changed, clocks[state].handler, "default")
    monkeypatch.setattr(model.states._meta, "schedules", {**clocks, state: clock})


def test_the_page_says_what_counts(admin_client):
    words = words_of(look(admin_client))

    assert "Rows that should have left their state and have not: there for longer than 95 of 100 were, and for" in words
    assert "5 min at least" in words


# States that others move rows out of


def test_an_external_state_without_a_time_out_is_spared(admin_client):
    order((90 * DAY, "SHIPPED", "DELIVERED"), count=10)
    order((HOUR, "SHIPPED", "DELIVERED"), (HOUR / 2, "DELIVERED", "RETURNED"), count=9)

    response = look(admin_client)

    assert stuck(response) == {}
    assert spared(response) == "Not looked at: Delivered (others move its rows, and it has no time-out)"


def test_an_external_state_is_stuck_when_its_time_out_is_over_and_not_before(admin_client, monkeypatch):
    declare(monkeypatch, Order, "DELIVERED", timeout_after=DAY, timeout_to="RETURNED")
    order((HOUR, "SHIPPED", "DELIVERED"), (HOUR / 2, "DELIVERED", "RETURNED"), count=9)
    order((23 * HOUR, "SHIPPED", "DELIVERED"))
    order((24 * HOUR + 4 * HOUR / 60, "SHIPPED", "DELIVERED"))  # a worker may be on its way
    (late,) = order((25 * HOUR, "SHIPPED", "DELIVERED"))

    response = look(admin_client)

    assert stuck(response) == {"Delivered": [str(late)]}
    assert "still there after their time-out of 1 d" in words_of(response)
    assert spared(response) == ""


# States that most rows stay in


@pytest.mark.parametrize(("stay", "is_spared"), [(4, True), (3, False)])
def test_a_state_that_fewer_than_half_leave_is_spared(admin_client, stay, is_spared):
    make(Dossier.states._meta, (2 * DAY, "OPEN", "LOST"), count=stay)
    make(Dossier.states._meta, (5 * HOUR, "OPEN", "LOST"), (3 * HOUR, "LOST", "OPEN"), count=3)

    response = look(admin_client, Dossier)

    assert len(stuck(response).get("Lost", [])) == (0 if is_spared else stay)
    assert ("Lost (fewer than half of its rows leave it)" in spared(response)) == is_spared
    assert ("Lost" in spared(response)) == is_spared


def test_rows_that_have_just_come_say_nothing_of_how_many_leave(admin_client):
    make(Dossier.states._meta, (HOUR, "OPEN", "LOST"), count=40)
    make(Dossier.states._meta, (5 * HOUR, "OPEN", "LOST"), (3 * HOUR, "LOST", "OPEN"))
    (late,) = make(Dossier.states._meta, (2 * DAY, "OPEN", "LOST"), title="Late")

    assert stuck(look(admin_client, Dossier))["Lost"] == [str(late)]


def test_rows_that_were_left_behind_long_ago_do_not_outvote_those_that_leave(admin_client):
    make(Dossier.states._meta, (60 * DAY, "OPEN", "LOST"), count=9)
    make(Dossier.states._meta, (5 * HOUR, "OPEN", "LOST"), (3 * HOUR, "LOST", "OPEN"))

    assert len(stuck(look(admin_client, Dossier))["Lost"]) == 5


def test_whether_rows_leave_does_not_depend_on_who_looks(client):
    make(Dossier.states._meta, (2 * DAY, "OPEN", "LOST"), count=4, team="blue")
    make(Dossier.states._meta, (2 * DAY, "OPEN", "LOST"), team="red")
    make(Dossier.states._meta, (5 * HOUR, "OPEN", "LOST"), (3 * HOUR, "LOST", "OPEN"), count=3, team="blue")

    assert stuck(look(staff(client, "view_dossier", username="red"), Dossier)) == {}


def test_more_rows_that_stay_than_are_counted_are_enough(admin_client, monkeypatch):
    monkeypatch.setattr(site.get_model_admin(Dossier), "count_limit", 2)
    make(Dossier.states._meta, (2 * DAY, "OPEN", "LOST"), count=9)
    make(Dossier.states._meta, (5 * HOUR, "OPEN", "LOST"), (3 * HOUR, "LOST", "OPEN"), count=5)

    assert stuck(look(admin_client, Dossier)) == {}


def test_nothing_is_said_of_a_state_that_nobody_has_stayed_in(admin_client):
    make(Dossier.states._meta, (HOUR, "OPEN", "LOST"))

    assert spared(look(admin_client, Dossier)) == ""


def test_a_state_that_nobody_leaves_is_spared(admin_client):
    make(Dossier.states._meta, (60 * DAY, "OPEN", "LOST"))

    response = look(admin_client, Dossier)

    assert stuck(response) == {}
    assert "Lost (fewer than half of its rows leave it)" in spared(response)


def test_moves_out_of_a_state_whose_stays_are_not_on_record_count(admin_client):
    make(Dossier.states._meta, (HOUR, "OPEN", "LOST"))  # how long it was open, nobody knows
    late, early = make(Dossier.states._meta, title="Late", count=2)
    Dossier.objects.filter(pk=late.pk).update(status_changed_at=MachineValue(timezone.now() - 8 * DAY))
    Dossier.objects.filter(pk=early.pk).update(status_changed_at=MachineValue(timezone.now() - 6 * DAY))

    response = look(admin_client, Dossier)

    assert stuck(response)["Open"] == ["Late"]
    assert "there for longer than 7 d" in words_of(response)
    assert stuck(look(admin_client, Dossier, days="30")) == {}


# States that a handler serves


def test_a_state_with_a_handler_that_rows_stay_in_shows_what_is_parked_or_not_run(admin_client):
    healthy, parked, overdue = order((30 * DAY, "PENDING", "PAID"), count=3)
    now = timezone.now()
    set_clocks([healthy], next_at=now + HOUR)
    set_clocks([parked], next_at=None, error="No carrier.")
    set_clocks([overdue], next_at=now - HOUR)

    response = look(admin_client)

    assert sorted(stuck(response)["Paid"]) == sorted(map(str, [parked, overdue]))
    assert "parked, or due for longer than 5 min" in words_of(response)
    assert spared(response) == "Not looked at: Delivered (others move its rows, and it has no time-out)"


def test_a_row_that_is_being_run_is_not_jammed(admin_client):
    rows = order((30 * DAY, "PENDING", "PAID"))
    now = timezone.now()
    set_clocks(rows, next_at=now - HOUR, lease_owner="web-1", lease_expires_at=now + HOUR)

    assert stuck(look(admin_client)) == {}


def test_a_row_whose_worker_left_it_long_ago_is(admin_client):
    rows = order((30 * DAY, "PENDING", "PAID"))
    hour_ago = timezone.now() - HOUR
    set_clocks(rows, next_at=hour_ago, lease_owner="web-1", lease_expires_at=hour_ago)

    assert stuck(look(admin_client)) == {"Paid": [str(rows[0])]}


def test_more_of_what_is_jammed_is_found_among_the_rows_of_the_state(admin_client):
    rows = order((30 * DAY, "PENDING", "PAID"), count=7)
    set_clocks(rows, next_at=None, error="No carrier.")

    response = look(admin_client)

    assert len(stuck(response)["Paid"]) == 5
    assert admin_client.get(link_of(response, "and 2 more")).context["cl"].result_count == 7


def test_a_state_may_wait_for_its_first_try(admin_client, monkeypatch):
    declare(monkeypatch, Order, "PAID", start_after=30 * DAY)
    order((5 * HOUR, "PENDING", "PAID"), (3 * HOUR, "PAID", "PACKED"))
    order((20 * DAY, "PENDING", "PAID"))
    (late,) = order((31 * DAY, "PENDING", "PAID"))

    assert stuck(look(admin_client)) == {"Paid": [str(late)]}


def test_a_time_out_is_a_limit_beside_a_handler(admin_client, monkeypatch):
    declare(monkeypatch, Order, "PENDING", timeout_after=25)
    (late,) = order((HOUR, "", "PENDING"))

    response = look(admin_client)

    assert stuck(response) == {"Pending": [str(late)]}
    assert "still there after their time-out of 25 s" in words_of(response)


# The floor


def test_nothing_is_stuck_within_minutes_however_fast_others_are(admin_client):
    millisecond = HOUR / 3_600_000
    order((HOUR, "PENDING", "PAID"), (HOUR - millisecond, "PAID", "PACKED"), count=20)
    order((HOUR / 15, "PENDING", "PAID"))  # four minutes
    (late,) = order((HOUR / 10, "PENDING", "PAID"))

    response = look(admin_client)

    assert stuck(response)["Paid"] == [str(late)]
    assert "there for longer than 5 min, within which 95 of 100 left" in words_of(response)


# What it costs, and how it is said


def test_nothing_stuck_is_one_question(admin_client):
    url = page(Order, "machine", "states")
    before = len(queries(admin_client, url))

    order((HOUR, "SHIPPED", "DELIVERED"), (HOUR / 2, "DELIVERED", "RETURNED"), count=9)
    order((90 * DAY, "SHIPPED", "DELIVERED"), count=9)

    assert len(queries(admin_client, url)) == before


def test_reasons_are_in_the_language_of_the_reader(admin_client):
    rows = order((30 * DAY, "PENDING", "PAID"))
    set_clocks(rows, next_at=None, error="No carrier.")

    with translation.override("de"):
        words = words_of(look(admin_client))

    assert "geparkt oder länger als 5 Min. fällig" in words
    assert "Nicht betrachtet:" in words
