"""Rows that wait: events that people deliver, children that they follow, and tries that they look into."""

import re

import pytest
from django.contrib.admin.models import LogEntry

from lab.models import Effort, Expedition, Leg, Petition
from statemachine_fields.testing import drain
from tests.browser.chromium import expect
from tests.browser.pages import BACKGROUND, address, badge, button, message, row_page
from tests.worker.rows import set_clock

SCRIPT = '</script>"\'><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
PHONE = {"width": 390, "height": 800}
#: By how much a page is wider than the window.
SURPLUS = "() => document.documentElement.scrollWidth - innerWidth"


@pytest.fixture
def petition(transactional_db):
    row = Petition.objects.create(status="OPEN")
    set_clock(row, next_at=None)
    return row


@pytest.fixture
def expedition(transactional_db):
    row = Expedition.objects.create(status="WALKING")
    states = ["ARRIVED"] * 9 + ["OPEN"] * 3
    Leg.objects.bulk_create(Leg(expedition=row, status=state) for state in states)
    set_clock(Leg.objects.filter(status="OPEN").first(), next_at=None, error="ValueError: no luck")
    set_clock(row, next_at=None)
    return row


def broken(self, ctx):
    raise ValueError("the carrier is busy")


@pytest.fixture
def effort(transactional_db, monkeypatch):
    monkeypatch.setattr(Effort, "go_on", broken)
    row = Effort.objects.create()
    drain(Effort)
    return row


def clock(page):
    return page.locator(".smf-clock h3")


def events(page):
    return page.locator("details[data-smf-remember=events]")


def test_an_event_is_delivered_and_its_answer_seen(page, petition):
    page.goto(row_page(petition))
    expect(clock(page)).to_have_text("Clock: Waits for the event letter or call")
    page.get_by_label("Event", exact=True).select_option("letter")
    page.get_by_label("Payload").fill('{"from": "Ada"}')
    page.get_by_label("Key", exact=True).fill("post-1")
    button(page, "Deliver").click()

    expect(message(page)).to_contain_text("has got the event letter, which it waits for, and is due now.")
    expect(clock(page)).to_have_text("Clock: Due now")
    expect(events(page).locator("summary").first).to_have_text(re.compile("1 event, 1 not taken yet"))
    expect(events(page).locator("li").first).to_contain_text('{"from": "Ada"}')
    assert LogEntry.objects.get().get_change_message() == "Delivered the event letter."

    drain(Petition)
    page.reload()
    expect(badge(page)).to_have_text("Heard")
    expect(events(page).locator("li").first).to_contain_text("taken by move 1")
    expect(page.locator(".smf-story > li").first).to_contain_text('{"from": "Ada"}')


def test_one_that_came_before_is_said_to_have_come(page, petition):
    petition.states.deliver("letter", dedup_key="post-1")
    page.goto(row_page(petition))
    page.get_by_label("Key", exact=True).fill("post-1")
    button(page, "Deliver").click()
    expect(message(page)).to_contain_text("has got an event with that key before. Nothing was delivered.")
    expect(events(page).locator("li")).to_have_count(1)


def test_a_payload_that_is_no_json_is_mended_where_it_was_typed(page, petition):
    page.goto(row_page(petition))
    page.get_by_label("Payload").fill('{"from": Ada}')
    button(page, "Deliver").click()
    expect(page.locator(".field-payload .errorlist")).to_contain_text(
        "This is not valid JSON: look at line 1, column 10."
    )
    expect(page.get_by_label("Payload")).to_have_value('{"from": Ada}')
    assert not petition.states.events.exists()

    page.get_by_label("Payload").fill('{"from": "Ada"}')
    button(page, "Deliver").click()
    expect(message(page)).to_contain_text("has got the event letter")
    assert petition.states.events.get().payload == {"from": "Ada"}


def test_two_clicks_deliver_once(page, petition):
    page.goto(row_page(petition))
    button(page, "Deliver").dblclick()
    expect(message(page)).to_have_count(1)
    assert petition.states.events.count() == 1


def test_what_is_typed_into_the_rows_own_form_is_not_dropped_unasked(page, watch, petition):
    page.goto(row_page(petition))
    page.locator("[name=number]").fill("7")
    watch.answers = [False]
    button(page, "Deliver").click()
    expect(page.locator("[name=number]")).to_have_value("7")
    assert not petition.states.events.exists()


def test_children_are_followed_from_their_numbers(page, expedition):
    page.goto(row_page(expedition))
    expect(clock(page)).to_have_text("Clock: Waits for all of its legs")
    legs = page.locator("details[data-smf-remember=children]")
    expect(legs.locator("summary")).to_contain_text("12 in all, 9 done, 3 under way, 1 of them parked")
    expect(legs.locator("svg rect")).to_have_count(2)
    legs.get_by_role("link", name="Open 3").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(3)

    page.goto(row_page(expedition))
    legs.get_by_role("link", name="1 of them parked").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    expect(page.locator("#result_list tbody tr")).to_contain_text("Parked: ValueError: no luck")


def test_the_list_says_what_rows_wait_for(page, petition, expedition):
    page.goto(address(Petition, "changelist"))
    expect(page.locator("#result_list tbody tr")).to_contain_text("Waits for letter or call")
    page.goto(address(Expedition, "changelist"))
    expect(page.locator("#result_list tbody tr")).to_contain_text("Waits for all of its legs")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_came_of_a_try_is_a_badge_and_its_traceback_unfolds(visit, user, effort, scheme):
    page = visit(user, color_scheme=scheme)
    page.goto(row_page(effort))
    first = page.locator(".smf-tries").first.locator("li").first
    failed, usual = first.locator(".smf-badge").first, first.locator(".smf-badge").last
    expect(failed).to_have_text("failed")
    assert failed.evaluate(BACKGROUND) != usual.evaluate(BACKGROUND)
    expect(first.locator("pre")).to_be_hidden()
    first.get_by_text("ValueError: the carrier is busy").first.click()
    expect(first.locator("pre")).to_contain_text("Traceback (most recent call last):")


def test_nothing_is_wider_than_a_phone(page, petition, expedition, effort):
    petition.states.deliver("letter", {"text": "w" * 300, "key": "x" * 40}, dedup_key="k" * 200)
    petition.states.deliver("call", "v" * 55)
    page.set_viewport_size(PHONE)
    for url in (
        row_page(expedition),
        row_page(effort),
        address(Petition, "deliver", petition.pk, "states"),
        row_page(petition),
    ):
        page.goto(url)
        expect(page.locator("#content-main")).to_be_visible()
        assert page.evaluate(SURPLUS) <= 0, url
    fields = page.locator(".smf-field :is(input, select, textarea)")
    assert fields.count() == 3
    for field in fields.all():
        box = field.bounding_box()
        assert box["width"] > 100
        assert box["height"] > 30


def test_no_script_runs_of_what_events_and_children_say(page, petition, expedition, effort, monkeypatch):
    monkeypatch.setattr(Leg._meta, "verbose_name_plural", SCRIPT)
    petition.states.deliver("letter", {SCRIPT: SCRIPT}, dedup_key=SCRIPT)
    petition.states.deliver("call", SCRIPT[:50])
    Effort.states.attempt_model.objects.update(error=SCRIPT, traceback=SCRIPT, worker=SCRIPT[:60])
    event = petition.states.events.first()
    addresses = [
        row_page(petition),
        row_page(expedition),
        row_page(effort),
        address(Expedition, "changelist"),
        address(Expedition, "machine", "states"),
        address(type(event), "changelist"),
        address(type(event), "change", event.pk),
        address(Petition, "deliver", petition.pk, "states"),
    ]
    for url in addresses:
        page.goto(url)
        expect(page.locator("#content")).to_be_visible()
        assert page.evaluate("window.hacked") is None, url
    page.get_by_label("Payload").fill(SCRIPT)
    button(page, "Deliver").click()
    expect(page.locator(".errorlist")).to_be_visible()
    assert page.evaluate("window.hacked") is None
