"""What a row waits for, in the admin: on its page, in the list, on the graph; and its children, counted."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest
from django.contrib.admin import site
from django.utils import translation

from lab.models import Deal, Expedition, Leg, Petition
from statemachine_fields import Children
from statemachine_fields.admin import waiting
from statemachine_fields.testing import drain
from tests.admin.browsing import look, messages_of, page, queries, staff, text_of, words_of
from tests.worker.rows import in_seconds, not_mariadb, set_clock

pytestmark = [pytest.mark.django_db, not_mariadb]

DAYS = 24 * 3600


def asleep(model, state, **columns):
    """Return a row that waits in a state, after a worker has looked."""
    row = model.objects.create(status=state)
    set_clock(row, **{"next_at": None, **columns})
    return row


def expedition(state="WALKING", **legs):
    """Return an expedition that waits, with so many legs in each state."""
    row = asleep(Expedition, state)
    Leg.objects.bulk_create(
        Leg(expedition=row, status=status, number=number) for status, count in legs.items() for number in range(count)
    )
    return row


def links(response):
    return [html.unescape(link) for link in re.findall(r'href="([^"]*)"', response.content.decode())]


def listed(client, url):
    return {row.pk for row in client.get(url).context["cl"].result_list}


# In words


@pytest.mark.parametrize(
    ("model", "state", "panel", "line"),
    [
        (
            Petition,
            "HEARD",
            "Waits for the event court.granted, denied or letter",
            "Waits for court.granted, denied or letter",
        ),
        (Expedition, "WALKING", "Waits for all of its legs", "Waits for all of its legs"),
        (Expedition, "RACING", "Waits for one of its legs", "Waits for one of its legs"),
        (Expedition, "SOME", "Waits for 3 of its legs", "Waits for 3 of its legs"),
    ],
    ids=["events", "all", "any", "a number"],
)
def test_a_row_says_what_it_waits_for(admin_client, model, state, panel, line):
    row = asleep(model, state)
    words = words_of(look(admin_client, row))
    assert f"Clock: {panel}" in words
    assert "statemachine_reschedule" not in words
    assert "Nothing is due" not in words
    assert f" {state.capitalize()} {line} " in words_of(admin_client.get(page(model)))


def test_a_row_that_waits_says_until_when(admin_client):
    row = asleep(Petition, "OPEN", next_at=in_seconds(3 * DAYS))
    words = words_of(look(admin_client, row))
    assert "Clock: Waits for the event letter or call At the latest Times out in 2 days, 23 hours → Denied" in words
    assert "Waits for letter or call" in words_of(admin_client.get(page(Petition)))


def test_a_row_that_a_worker_looks_at_by_itself_says_when(admin_client):
    row = asleep(Expedition, "TIMED", next_at=in_seconds(25))
    words = words_of(look(admin_client, row))
    assert re.search(
        r"Clock: Waits for all of its legs A worker looks again in 2\d seconds At the latest Times out in 59 minutes → Late",
        words,
    )


def test_a_row_that_was_woken_is_due_and_says_what_it_waited_for(admin_client):
    row = asleep(Petition, "OPEN")
    row.states.deliver("call")
    words = words_of(look(admin_client, row))
    assert "Clock: Due now What it waits for the event letter or call" in words


def test_a_row_that_failed_at_it_is_tried_again(admin_client):
    row = asleep(Petition, "OPEN", next_at=in_seconds(301), failures=1, error="illegible")
    assert "Clock: Tried again in 5 minutes, 2 of 3" in words_of(look(admin_client, row))


def test_a_parked_row_is_parked(admin_client):
    row = asleep(Petition, "OPEN", error="illegible", failures=3)
    assert "Clock: Parked: illegible" in words_of(look(admin_client, row))


def test_a_row_that_waits_and_should_have_a_time_is_told_of(admin_client):
    row = asleep(Petition, "OPEN")  # which has a time-out
    words = words_of(look(admin_client, row))
    assert "Clock: Waits for the event letter or call It has no time" in words


def test_a_worker_can_be_asked_to_look(admin_client):
    row = expedition(ARRIVED=1)
    response = look(admin_client, row)
    assert "Look now Let a worker look at once whether that has happened." in words_of(response)
    data = {"verb": "run_now", "token": row.status_lease_token}
    said = messages_of(admin_client.post(page(Expedition, "clock", row.pk, "states"), data, follow=True))
    assert said == [f"“{row}” is due now."]
    drain(Expedition)
    row.refresh_from_db()
    assert row.status == "HOME"


def test_what_is_declared_wrongly_is_named_as_it_is_declared(admin_client, monkeypatch):
    bound = Expedition.states._meta
    wrong = Children("sledges", then="HOME")
    monkeypatch.setattr(bound, "schedules", {**bound.schedules, "SOME": replace(bound.schedules["SOME"], until=wrong)})
    monkeypatch.setattr(bound, "joined_states", {**bound.joined_states, "SOME": wrong})
    monkeypatch.setattr(bound, "joins", {})
    row = asleep(Expedition, "SOME")
    assert "Clock: Waits for all of its sledges" in words_of(look(admin_client, row))


def test_it_is_in_the_language_of_the_reader(admin_client):
    row = expedition(ARRIVED=2, LOST=1)
    with translation.override("de"):
        assert "Wartet auf alle zugehörigen legs" in words_of(look(admin_client, row))
        assert "3 insgesamt, 2 erledigt, 1 fehlgeschlagen" in words_of(look(admin_client, row))
        petition = asleep(Petition, "OPEN")
        assert "Wartet auf das Ereignis letter oder call" in words_of(look(admin_client, petition))


# On the graph


@pytest.mark.parametrize("where", ["row", "machine"])
def test_the_graph_says_what_states_wait_for_and_what_moves_them(admin_client, where):
    row = asleep(Petition, "HEARD")
    response = look(admin_client, row) if where == "row" else admin_client.get(page(Petition, "machine", "states"))
    drawn = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", response.content.decode()))
    assert "Waits for letter or call" in drawn
    assert "court.granted" in drawn


def test_the_graph_above_the_list_leaves_it_out(admin_client):
    assert "Waits for" not in words_of(admin_client.get(page(Petition)))


# Children


def test_children_are_counted_by_state(admin_client):
    row = expedition(ARRIVED=3, LOST=1, OPEN=2, HELD=1)
    expedition(ARRIVED=5)  # of another
    words = words_of(look(admin_client, row))
    assert "Legs 7 in all, 3 done, 1 failed, 3 under way Arrived 3 Lost 1 Open 2 Held 1 All of them" in words


def test_parked_children_are_under_way_and_said(admin_client):
    row = expedition(ARRIVED=1, OPEN=2)
    parked = Leg.objects.filter(status="OPEN").first()
    set_clock(parked, next_at=None, error="ValueError: no luck")
    response = look(admin_client, row)
    assert "3 in all, 1 done, 2 under way, 1 of them parked" in words_of(response)
    (url,) = [link for link in links(response) if "status_error__gt" in link]
    assert listed(admin_client, url) == {parked.pk}


def test_numbers_lead_to_the_children(admin_client):
    row = expedition(ARRIVED=2, OPEN=1)
    other = expedition(ARRIVED=2)
    found = [link for link in links(look(admin_client, row)) if link.startswith(f"{page(Leg)}?")]
    of_row = list(Leg.objects.filter(expedition=row))
    assert [listed(admin_client, url) for url in found] == [
        {leg.pk for leg in of_row if leg.status == "ARRIVED"},
        {leg.pk for leg in of_row if leg.status == "OPEN"},
        {leg.pk for leg in of_row},
    ]
    assert other.pk != row.pk


def test_who_may_not_see_children_finds_numbers_and_no_way_to_them(client):
    row = expedition(ARRIVED=2, OPEN=1)
    set_clock(Leg.objects.filter(status="OPEN").get(), next_at=None, error="no luck")
    response = look(staff(client, "view_expedition"), row)
    assert "3 in all, 2 done, 1 under way, 1 of them parked" in words_of(response)
    assert not [link for link in links(response) if link.startswith(page(Leg))]
    response = look(staff(client, "view_expedition", "view_leg"), row)
    assert [link for link in links(response) if link.startswith(f"{page(Leg)}?")]


def test_children_whose_model_is_not_registered_are_counted(admin_client, monkeypatch):
    row = expedition(ARRIVED=2)
    registered = site.is_registered
    monkeypatch.setattr(site, "is_registered", lambda model: model is not Leg and registered(model))
    response = look(admin_client, row)
    assert "2 in all, 2 done Arrived 2" in words_of(response)
    assert "All of them" not in words_of(response)


def test_a_row_that_waits_for_none_says_that_there_are_none(admin_client):
    assert "Legs there are none" in words_of(look(admin_client, expedition()))


def test_children_stay_in_sight_after_the_wait(admin_client):
    assert "Legs 2 in all, 2 done" in words_of(look(admin_client, expedition("HOME", ARRIVED=2)))
    assert "there are none" not in words_of(look(admin_client, expedition("HOME")))


def test_children_in_a_state_that_nobody_declares_are_under_way(admin_client):
    row = expedition(ARRIVED=1, OPEN=1)
    set_clock(Leg.objects.get(status="OPEN"), status="ADRIFT")
    assert "2 in all, 1 done, 1 under way" in words_of(look(admin_client, row))


def test_more_than_are_counted_are_said_so(admin_client, monkeypatch):
    monkeypatch.setattr(site.get_model_admin(Expedition), "count_limit", 3)
    row = expedition(ARRIVED=4, OPEN=3)
    assert "3+ in all, 3+ done, 3 under way Arrived 3+ Open 3" in words_of(look(admin_client, row))


def test_children_cost_the_same_however_many_there_are(admin_client):
    few, many = expedition(OPEN=1), expedition(ARRIVED=30, LOST=20, OPEN=40)
    url = page(Expedition, "change", few.pk)
    queries(admin_client, url)  # what is asked once in the life of a process
    asked = [queries(admin_client, page(Expedition, "change", row.pk)) for row in (few, many)]
    assert len(asked[0]) == len(asked[1])
    of_legs = [sql for sql in asked[1] if Leg._meta.db_table in sql]
    assert len(of_legs) == 3  # two for legs, and one for guided legs, of which there are none
    assert all("LIMIT 10001" in sql for sql in of_legs)


def test_the_list_asks_nothing_more_for_rows_that_wait(admin_client):
    expedition(OPEN=1)
    one = queries(admin_client, page(Expedition))
    for _number in range(5):
        expedition(OPEN=1)
    assert len(queries(admin_client, page(Expedition))) == len(one)


def test_the_bar_has_a_part_for_each_state():
    bar = waiting.draw_shares([("green", 3), ("red", 0), ("gray", 1)])
    assert re.findall(r'class="smf-tone-(\w+)" x="([\d.]+)" width="([\d.]+)"', bar) == [
        ("green", "0.00", "75.00"),
        ("gray", "75.00", "25.00"),
    ]
    assert waiting.draw_shares([]) == ""


def test_two_machines_wait_for_things_of_their_own(admin_client):
    deal = Deal.objects.create(code="A_1")
    words = words_of(look_at_quoted(admin_client, deal))
    assert "Waits for the event signed" in words
    assert "Waits for the event paid" in words


def look_at_quoted(client, deal):
    response = client.get(page(Deal, "change", "A_5F1"))
    assert response.status_code == 200, text_of(response)
    return response
