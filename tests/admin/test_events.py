"""Events in the admin: on the page of a row, in its story, delivered by hand, and on pages of their own that change nothing."""

from __future__ import annotations

import html
import re

import pytest
from django.contrib.admin import site
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils import translation

from lab.models import Deal, Invoice, Petition
from statemachine_fields.admin import StateMachineAdminMixin, TransitionPaginator, events
from statemachine_fields.testing import drain
from tests.admin.browsing import look, messages_of, page, queries, staff, words_of
from tests.worker.rows import claim_one, lane_of, not_mariadb, set_clock

pytestmark = [pytest.mark.django_db, not_mariadb]

PetitionStateEvent = Petition.states.event_model
#: What those have who may deliver, and look.
DELIVERER = ("view_petition", "add_petitionstateevent")


@pytest.fixture
def petition():
    row = Petition.objects.create(status="OPEN")
    set_clock(row, next_at=None)
    return row


@pytest.fixture
def heard(petition):
    """A petition that a letter brought on, and that has got a call since."""
    petition.states.deliver("letter", {"from": "<b>Ada</b>"}, dedup_key="post-1")
    drain(Petition)
    petition.refresh_from_db()
    assert petition.status == "HEARD"
    petition.states.deliver("call")
    petition.refresh_from_db()
    return petition


def deliver(client, row, name="letter", payload="", dedup_key="", accessor="states"):
    data = {"name": name, "payload": payload, "dedup_key": dedup_key}
    return client.post(page(type(row), "deliver", row.pk, accessor), data, follow=True)


def has_form(response):
    return 'class="smf-deliver"' in response.content.decode()


def options(response):
    select = re.search(r'<select name="name".*?</select>', response.content.decode(), re.DOTALL).group()
    return re.findall(r'<opt\w+ (?:value|label)="([^"]*)"', select)


# On the page of a row, and in its story


def test_the_page_of_a_row_lists_the_newest(admin_client, heard):
    words = words_of(look(admin_client, heard))
    assert "Events 2 events, 1 not taken yet" in words
    assert re.search(r"2 call .{10,30}m\. not taken yet", words)
    assert re.search(r'1 letter {"from": "<b>Ada</b>"} .{10,30}m\. taken by move 1 Key post-1', words)


def test_what_they_say_is_text(admin_client, heard):
    assert "<b>Ada</b>" not in look(admin_client, heard).content.decode()


def test_a_long_payload_is_folded(admin_client, petition):
    petition.states.deliver("letter", {"text": "long " * 30})
    petition.refresh_from_db()
    assert re.search(
        r"<details[^>]*><summary>Payload</summary><pre>\{\n.*long", look(admin_client, petition).content.decode()
    )


def test_of_a_huge_payload_the_page_shows_the_beginning(admin_client, petition):
    petition.states.deliver("letter", {"text": "long " * 30_000})
    petition.refresh_from_db()
    assert len(look(admin_client, petition).content) < 60_000
    event = petition.states.events.get()
    assert len(admin_client.get(page(PetitionStateEvent, "change", event.pk)).content) > 150_000


def test_the_page_shows_a_few_and_leads_to_all(admin_client, petition):
    for _number in range(7):
        petition.states.deliver("denied")
    petition.refresh_from_db()
    response = look(admin_client, petition)
    assert [each.number for each in response.context["machine_panels"][0]["events"].entries] == [7, 6, 5, 4, 3]
    assert f'href="{page(PetitionStateEvent)}?q={petition.pk}">All events' in response.content.decode()


def test_who_may_not_see_the_list_is_not_led_there(client, petition):
    for _number in range(7):
        petition.states.deliver("denied")
    assert "All events" not in words_of(look(staff(client, "view_petition"), petition))
    assert "All events" in words_of(look(staff(client, "view_petition", "view_petitionstateevent"), petition))


def test_the_story_has_them_with_the_move_that_took_them(admin_client, heard):
    response = admin_client.get(page(Petition, "story", heard.pk, "states"))
    (entry,) = response.context["story"].entries
    assert [(each.number, each.name) for each in entry.events] == [(1, "letter")]
    assert "1 letter" in words_of(response)
    assert "taken by" not in words_of(response)


def test_the_story_looks_among_the_newest_only(admin_client, heard, monkeypatch):
    monkeypatch.setattr(events, "LOOKED_AT", 1)
    (entry,) = admin_client.get(page(Petition, "story", heard.pk, "states")).context["story"].entries
    assert entry.events == ()


def test_events_cost_the_same_however_many_there_are(admin_client, heard):
    queries(admin_client, page(Petition, "change", heard.pk))  # what is asked once in the life of a process
    few = queries(admin_client, page(Petition, "change", heard.pk))
    for _number in range(20):
        heard.states.deliver("letter")
    many = queries(admin_client, page(Petition, "change", heard.pk))
    assert len(few) == len(many)
    table = PetitionStateEvent._meta.db_table
    assert len([sql for sql in many if table in sql]) == 3
    assert all("LIMIT" in sql for sql in many if table in sql)


def test_a_row_without_events_is_not_asked_for_any(admin_client, petition):
    asked = queries(admin_client, page(Petition, "change", petition.pk))
    assert not [sql for sql in asked if PetitionStateEvent._meta.db_table in sql]
    assert "Events 0 events" in words_of(look(admin_client, petition))


def test_a_machine_without_events_has_nothing_of_them(admin_client):
    invoice = Invoice.objects.create()
    response = look(admin_client, invoice)
    assert not has_form(response)
    assert "Events" not in words_of(response)
    assert admin_client.get(page(Invoice, "deliver", invoice.pk, "states")).status_code == 404


# Who may deliver


def test_the_add_permission_of_the_event_model_is_what_it_takes(client, petition):
    assert has_form(look(staff(client, *DELIVERER), petition))
    assert messages_of(deliver(client, petition)) != []
    assert petition.states.events.count() == 1


@pytest.mark.parametrize(
    "permissions",
    [("view_petition", "change_petition"), ("view_petition", "view_petitionstateevent"), ("add_petitionstateevent",)],
    ids=["who may move the row", "who may see events", "who may not see the row"],
)
def test_others_find_no_form_and_are_refused(client, petition, permissions):
    staff(client, *permissions)
    assert not has_form(look(client, petition))
    assert deliver(client, petition).status_code == 403
    assert client.get(page(Petition, "deliver", petition.pk, "states")).status_code == 403
    assert not petition.states.events.exists()


def test_a_model_admin_may_have_another_rule(client, petition, monkeypatch):
    monkeypatch.setattr(
        StateMachineAdminMixin, "has_deliver_permission", lambda self, request, machine, obj=None: False
    )
    assert not has_form(look(staff(client, *DELIVERER), petition))
    assert deliver(client, petition).status_code == 403


def test_each_machine_asks_for_its_own(client):
    deal = Deal.objects.create(code="one")
    staff(client, "view_deal", "add_dealpaymentstateevent")
    assert look(client, deal).content.decode().count('class="smf-deliver"') == 1
    assert deliver(client, deal, "signed").status_code == 403
    assert "has got the event paid" in messages_of(deliver(client, deal, "paid", accessor="payment"))[0]
    assert deal.payment.events.count() == 1


def test_a_row_that_the_list_does_not_have_is_not_there(admin_client, petition, monkeypatch):
    own = site.get_model_admin(Petition)
    monkeypatch.setattr(own, "get_queryset", lambda request: Petition.objects.none())
    response = admin_client.post(page(Petition, "deliver", petition.pk, "states"), {"name": "letter"})
    assert response.status_code == 404
    assert not petition.states.events.exists()


def test_a_form_from_elsewhere_is_refused(petition, admin_user):
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin_user)
    url = page(Petition, "deliver", petition.pk, "states")
    assert strict.post(url, {"name": "letter"}).status_code == 403
    assert not petition.states.events.exists()


# What becomes of it


def test_a_row_that_waits_for_it_is_woken(admin_client, petition):
    response = deliver(admin_client, petition, "letter", '{"pages": 3}', " post-1 ")
    assert messages_of(response) == [f"“{petition}” has got the event letter, which it waits for, and is due now."]
    (event,) = petition.states.events
    assert (event.name, event.payload, event.dedup_key) == ("letter", {"pages": 3}, "post-1")
    petition.refresh_from_db()
    assert petition.status == "OPEN"
    assert petition.status_next_at is not None
    assert "1 not taken yet" in words_of(response)


def test_what_the_row_does_not_wait_for_is_kept(admin_client, petition):
    response = deliver(admin_client, petition, "denied")
    assert messages_of(response) == [f"“{petition}” has got the event denied, which is kept until it is waited for."]
    (event,) = petition.states.events
    assert (event.name, event.payload, event.dedup_key) == ("denied", {}, None)
    petition.refresh_from_db()
    assert petition.status_next_at is None


def test_a_row_that_a_worker_has_keeps_it(admin_client):
    row = Petition.objects.create(status="OPEN")
    row.states.deliver("letter")
    claim_one(lane_of(Petition))
    assert "which is kept" in messages_of(deliver(admin_client, row, "call"))[0]


def test_a_duplicate_is_said_and_changes_nothing(admin_client, petition):
    petition.states.deliver("letter", dedup_key="post-1")
    response = deliver(admin_client, petition, "call", dedup_key="post-1")
    assert messages_of(response) == [f"“{petition}” has got an event with that key before. Nothing was delivered."]
    assert petition.states.events.count() == 1
    assert not LogEntry.objects.exists()


def test_a_row_that_has_ended_takes_none(admin_client, petition):
    set_clock(petition, status="DENIED")
    assert not has_form(look(admin_client, petition))
    said = messages_of(deliver(admin_client, petition))
    assert said == [f"“{petition}” has ended in Denied, and takes no event any more. Nothing was delivered."]
    assert not LogEntry.objects.exists()


def test_a_row_in_a_state_that_is_not_declared_has_no_form(admin_client, petition):
    set_clock(petition, status="MISLAID")
    assert not has_form(look(admin_client, petition))


def test_a_row_that_is_gone_is_said_to_be(admin_client, petition, meanwhile):
    name, key = str(petition), petition.pk
    meanwhile(lambda: Petition.objects.filter(pk=key).delete())
    response = admin_client.post(page(Petition, "deliver", key, "states"), {"name": "letter"}, follow=True)
    assert f"“{name}” has been deleted meanwhile. Nothing was delivered." in messages_of(response)


def test_it_is_written_to_the_log_of_the_admin(admin_client, admin_user, petition):
    deliver(admin_client, petition)
    (entry,) = LogEntry.objects.all()
    assert (entry.user, entry.object_id) == (admin_user, str(petition.pk))
    assert entry.get_change_message() == "Delivered the event letter."


def test_what_cannot_be_logged_is_not_delivered(admin_client, petition, monkeypatch):
    def fail(self, *args):
        raise OSError("no log today")

    monkeypatch.setattr(StateMachineAdminMixin, "log_change", fail, raising=False)
    with pytest.raises(OSError, match="no log today"):
        deliver(admin_client, petition)
    assert not petition.states.events.exists()


def test_the_names_it_waits_for_come_first(admin_client, heard):
    assert options(look(admin_client, heard)) == [
        "It waits for",
        "letter",
        "court.granted",
        "denied",
        "Kept until it does",
        "call",
    ]


def test_without_a_difference_there_are_no_groups(admin_client):
    assert options(look(admin_client, Petition.objects.create())) == ["letter", "call", "court.granted", "denied"]


def test_the_form_has_a_page_of_its_own(admin_client, petition):
    response = admin_client.get(page(Petition, "deliver", petition.pk, "states"))
    assert response.status_code == 200
    assert "An event with the same key is delivered once." in words_of(response)
    assert not petition.states.events.exists()


# What is refused before that


@pytest.mark.parametrize(
    ("data", "field", "said"),
    [
        ({"name": "postcard"}, "name", "Select a valid choice"),
        ({"name": ""}, "name", "This field is required"),
        ({"payload": '{"pages": 3'}, "payload", "This is not valid JSON: look at line 1, column 12."),
        ({"payload": "three"}, "payload", "A text has double quotation marks."),
        ({"payload": '{"pages": NaN}'}, "payload", "This cannot be kept"),
        ({"payload": '["\\u0000"]'}, "payload", "This cannot be kept"),
        ({"payload": '"\\ud800"'}, "payload", "This cannot be kept"),
        ({"payload": "[" * 100_000}, "payload", "This cannot be kept"),
        ({"payload": "9" * 5000}, "payload", "This cannot be kept"),
        ({"dedup_key": "x" * 201}, "dedup_key", "at most 200 characters"),
        ({"dedup_key": "a\x00b"}, "dedup_key", "Null characters are not allowed"),
    ],
    ids=[
        "an unknown name",
        "no name",
        "half of a dict",
        "a bare word",
        "not a number",
        "a NUL",
        "half of a pair",
        "too deep",
        "too large",
        "a long key",
        "a NUL in the key",
    ],
)
def test_what_is_wrong_is_said_beside_the_field_and_what_was_typed_stays(admin_client, petition, data, field, said):
    response = deliver(admin_client, petition, **{"name": "letter", "dedup_key": "kept-as-typed", **data})
    assert response.status_code == 200
    (message,) = [text for text in response.context["form"].errors[field] if said in text]
    assert html.escape(message) in response.content.decode()
    if "payload" in data:
        assert "kept-as-typed" in response.content.decode()
        assert html.escape(data["payload"][:100]) in response.content.decode()
    assert not petition.states.events.exists()
    assert not LogEntry.objects.exists()


def test_any_json_is_a_payload(admin_client, petition):
    for payload in ("3", '"a text"', "[1, 2]", "false"):
        deliver(admin_client, petition, payload=payload)
    assert [event.payload for event in petition.states.events] == [3, "a text", [1, 2], False]
    assert words_of(look(admin_client, petition)).count("not taken yet") == 5


def test_answers_are_in_the_language_of_the_reader(admin_client, petition):
    with translation.override("de"):
        assert "Zustellen" in words_of(look(admin_client, petition))
        assert messages_of(deliver(admin_client, petition)) == [
            f"„{petition}“ hat das Ereignis letter bekommen, auf das gewartet wird, und ist jetzt fällig."
        ]


# Pages of their own


def test_they_have_a_list_that_filters(admin_client, heard):
    def numbers(**query):
        return [each.number for each in admin_client.get(page(PetitionStateEvent), query).context["cl"].result_list]

    words = words_of(admin_client.get(page(PetitionStateEvent)))
    assert f"Petition {heard.pk} 2 call - - Not yet" in words
    assert f'Petition {heard.pk} 1 letter {{"from": "<b>Ada</b>"}} post-1 by move 1' in words
    assert "2 events" in words
    assert numbers(taken="no") == [2]
    assert numbers(taken="yes") == [1]
    assert numbers(name="letter") == [1]
    assert numbers(when="today") == numbers(when="year") == [2, 1]
    PetitionStateEvent.objects.update(delivered_at="2001-01-01T00:00Z")
    assert numbers(when="year") == []


def test_the_filter_offers_the_names_that_are_declared_and_asks_for_none(admin_client, heard):
    asked = queries(admin_client, page(PetitionStateEvent))
    assert not [sql for sql in asked if "DISTINCT" in sql or "COUNT" in sql]
    assert "By name All letter call court.granted denied" in words_of(admin_client.get(page(PetitionStateEvent)))


def test_the_search_finds_those_of_one_row_and_goes_on_beyond_the_pages(admin_client, heard, monkeypatch):
    other = Petition.objects.create()
    other.states.deliver("letter")
    monkeypatch.setattr(TransitionPaginator, "max_rows", 1)
    monkeypatch.setattr(site.get_model_admin(PetitionStateEvent), "list_per_page", 1)
    first = admin_client.get(page(PetitionStateEvent), {"q": heard.pk})
    assert [each.number for each in first.context["cl"].result_list] == [2]
    beyond = first.context["cl"].next_url()
    assert "number__lt=2" in beyond
    second = admin_client.get(page(PetitionStateEvent) + beyond)
    assert [(each.instance_id, each.number) for each in second.context["cl"].result_list] == [(heard.pk, 1)]


def test_an_event_has_a_page(admin_client, heard):
    event = heard.states.events.first()
    response = admin_client.get(page(PetitionStateEvent, "change", event.pk))
    words = words_of(response)
    assert "&lt;b&gt;Ada" in response.content.decode()
    assert "post-1" in words
    assert "by move 1" in words
    assert 'name="_save"' not in response.content.decode()


@pytest.mark.parametrize("verb", ["add", "delete"])
def test_nobody_changes_them(admin_client, heard, verb):
    args = [] if verb == "add" else [heard.states.events.first().pk]
    assert admin_client.get(reverse(f"admin:lab_petitionstateevent_{verb}", args=args)).status_code == 403


def test_the_view_permission_is_what_it_takes(client, heard):
    assert staff(client, "view_petitionstateevent").get(page(PetitionStateEvent)).status_code == 200
    assert staff(client, "add_petitionstateevent").get(page(PetitionStateEvent)).status_code == 403


def test_a_row_is_deleted_with_its_events(client, heard):
    staff(client, "view_petition", "delete_petition")
    response = client.post(page(Petition, "delete", heard.pk), {"post": "yes"})
    assert response.status_code == 302
    assert not PetitionStateEvent.objects.exists()
