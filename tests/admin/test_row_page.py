"""The page of a row, and its story: what they show, how few questions they ask, and that nothing in them is markup."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.utils import timezone

from lab.models import Dossier, Invoice
from shop.models import Order
from statemachine_fields.admin import StateMachineAdminMixin
from statemachine_fields.drawing.styles import RULES
from tests.admin.browsing import look, page, queries, staff, text_of, words_of

pytestmark = pytest.mark.django_db

SCRIPT = "<script>alert(1)</script>"


def tell(row, count, **values):
    """Write a history of so many moves, the last of them a second ago, one a second."""
    records = type(row).states.transition_model
    end = timezone.now() - dt.timedelta(seconds=1)
    records.objects.bulk_create(
        records(
            **{
                "instance_id": row.pk,
                "sequence": number,
                "from_status": "CHECK",
                "to_status": "CHECK",
                "transitioned_at": end - dt.timedelta(seconds=count - number),
                "metadata": {"number": number},
                **values,
            }
        )
        for number in range(1, count + 1)
    )
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {row._meta.db_table} SET status_sequence = {count}, status = 'CHECK'")
    row.refresh_from_db()


def numbers(response):
    return [int(number) for number in re.findall(r'<li value="(\d+)"', response.content.decode())]


# The row


def test_the_status_is_a_badge_in_its_colour_and_cannot_be_typed(admin_client, dossier):
    content = look(admin_client, dossier).content.decode()

    assert '<span class="smf-badge smf-tone-gray">Open</span>' in content
    assert '<div class="readonly"><span class="smf-badge' in re.sub(r">\s+<", "><", content)
    assert 'name="status"' not in content


def test_a_posted_status_is_not_listened_to(admin_client, dossier):
    data = {"title": "Case 8", "team": "", "seal": "", "status": "GONE", "status_sequence": "9"}

    admin_client.post(page(Dossier, "change", dossier.pk), data)

    dossier.refresh_from_db()
    assert (dossier.title, dossier.status, dossier.status_sequence) == ("Case 8", "OPEN", 0)


def test_chosen_colours_are_used(admin_client, dossier):
    dossier.states.force_transition_to("LOST", reason="for the test")

    assert "smf-badge smf-tone-red" in look(admin_client, dossier).content.decode()


@pytest.mark.parametrize(
    ("colors", "said"),
    [({"NOWHERE": "red"}, "'NOWHERE', which no machine"), ({"OPEN": "reddish"}, "reddish")],
)
def test_wrong_colours_are_refused_where_the_model_is_registered(colors, said):
    class Wrong(StateMachineAdminMixin, admin.ModelAdmin):
        state_colors = colors

    with pytest.raises(ImproperlyConfigured, match=said):
        Wrong(Dossier, admin.AdminSite())


def test_a_model_without_a_machine_is_refused():
    from django.contrib.auth.models import Group

    class Wrong(StateMachineAdminMixin, admin.ModelAdmin):
        pass

    with pytest.raises(ImproperlyConfigured, match="has no state machine"):
        Wrong(Group, admin.AdminSite())


def test_the_graph_shows_the_state_and_the_path(admin_client, dossier):
    dossier.states.transition_to("CHECK")

    content = look(admin_client, dossier).content.decode()

    for drawing in re.findall(r"<svg .*?</svg>", content.partition('class="smf-drawing"')[2], re.DOTALL)[:2]:
        assert len(re.findall(r'class="[^"]*\bsmf-taken\b', drawing)) == 1
        assert len(re.findall(r'class="[^"]*\bsmf-current\b', drawing)) == 1


def test_the_style_of_graphs_is_the_one_that_drawings_expect():
    from django.contrib.staticfiles import finders

    with open(finders.find("statemachine_fields/graph.css")) as file:  # noqa: PTH123
        assert file.read().endswith(RULES), "write the rules of drawing/styles.py to the file"


@pytest.mark.parametrize(("count", "asked"), [(0, 7), (3, 7), (2000, 7)])
def test_the_page_of_a_row_asks_as_much_for_a_long_history(admin_client, dossier, count, asked):
    """The session, the user, the row, the path, the story, the content type; and a savepoint around it, in Django."""
    from django.contrib.contenttypes.models import ContentType

    tell(dossier, count)
    ContentType.objects.clear_cache()

    found = queries(admin_client, page(Dossier, "change", dossier.pk))

    plain = [sql for sql in found if not sql.startswith(("SAVEPOINT", "RELEASE", "BEGIN"))]
    assert len(plain) == asked - 1


def test_two_machines_ask_twice(admin_client):
    invoice = Invoice.objects.create()
    look(admin_client, invoice)

    found = queries(admin_client, page(Invoice, "change", invoice.pk))

    assert sum("statetransition" in sql for sql in found) == 4


def test_a_template_of_the_project_stays_in_place(admin_client, dossier, settings, tmp_path):
    (tmp_path / "admin" / "lab").mkdir(parents=True)
    text = '{% extends "admin/change_form.html" %}{% block form_top %}OUR OWN{% endblock %}'
    (tmp_path / "admin" / "lab" / "change_form.html").write_text(text)
    (templates,) = settings.TEMPLATES
    settings.TEMPLATES = [{**templates, "DIRS": [tmp_path]}]

    content = look(admin_client, dossier).content.decode()

    assert "OUR OWN" in content
    assert "smf-panel" in content


def test_a_popup_shows_the_form_alone(admin_client, dossier):
    assert "smf-panel" not in admin_client.get(page(Dossier, "change", dossier.pk) + "?_popup=1").content.decode()


def test_media_of_the_model_admin_are_kept(admin_client):
    order = Order.objects.create(customer="Ada", total=1)

    content = look(admin_client, order).content.decode()

    assert "shop/refresh.js" in content
    assert "statemachine_fields/admin.css" in content


# The story


def test_the_story_says_when_how_long_who_and_what(admin_client, dossier):
    now = timezone.now()
    records = Dossier.states.transition_model
    values = {"instance": dossier, "to_status": "CHECK", "from_status": "CHECK"}
    actor = {"model": "auth.User", "pk": 1, "text": "Grace"}
    records.objects.bulk_create(
        [
            records(sequence=1, transitioned_at=now - dt.timedelta(hours=5), metadata={"actor": actor}, **values),
            records(
                sequence=2, transitioned_at=now - dt.timedelta(hours=2), metadata={"items": [1, {"a": 2}]}, **values
            ),
        ]
    )
    with connection.cursor() as cursor:
        cursor.execute("UPDATE lab_dossier SET status_sequence = 2, status = 'CHECK'")

    words = words_of(look(admin_client, dossier))

    assert "by Grace stayed 3 hours" in words.replace("\xa0", " ")
    assert "there for 2 hours so far" in words.replace("\xa0", " ")
    assert 'items [ 1, { "a": 2 } ]' in words


def test_the_page_of_a_row_shows_the_newest_moves_and_links_the_rest(admin_client, dossier):
    tell(dossier, 12)

    response = look(admin_client, dossier)

    assert numbers(response) == [12, 11, 10, 9, 8]
    assert page(Dossier, "story", dossier.pk, "states") in response.content.decode()


def test_every_move_is_on_one_page_of_the_story_forwards_and_backwards(admin_client, dossier, monkeypatch):
    monkeypatch.setattr("lab.admin.DossierAdmin.story_per_page", 10)
    tell(dossier, 35)
    url = page(Dossier, "story", dossier.pk, "states")

    def walk(query, rel):
        seen = []
        while True:
            response = admin_client.get(url + query)
            seen.append(numbers(response))
            found = re.search(rf'<a href="([^"]*)" rel="{rel}"', response.content.decode())
            if not found:
                return seen
            query = found.group(1)

    assert [number for part in walk("", "next") for number in part] == list(range(35, 0, -1))
    backwards = [(10, 0), (20, 10), (30, 20), (35, 25)]  # the newest page is full, so it repeats a few
    assert walk("?before=11", "prev") == [list(range(first, last, -1)) for first, last in backwards]
    assert "Oldest" in text_of(admin_client.get(url))
    assert "Newest" not in text_of(admin_client.get(url))


def test_a_stay_across_the_border_of_two_pages_is_known(admin_client, dossier, monkeypatch):
    monkeypatch.setattr("lab.admin.DossierAdmin.story_per_page", 10)
    tell(dossier, 35)

    words = words_of(admin_client.get(page(Dossier, "story", dossier.pk, "states"), {"before": 26}))

    assert words.count("stayed 1 second") == 10
    assert "so far" not in words


@pytest.mark.parametrize("before", ["", "x", "-5", "²", "9" * 30])
def test_nonsense_is_the_first_page(admin_client, dossier, before):
    tell(dossier, 3)

    assert numbers(admin_client.get(page(Dossier, "story", dossier.pk, "states"), {"before": before})) == [3, 2, 1]


@pytest.mark.parametrize("before", [1, 0, 999_999_999])
def test_a_page_beyond_the_ends_is_shown(admin_client, dossier, before):
    tell(dossier, 3)

    response = admin_client.get(page(Dossier, "story", dossier.pk, "states"), {"before": before})

    assert numbers(response) == ([3, 2, 1] if before > 3 else [])


def test_a_page_of_the_story_asks_four_questions_wherever_it_is(admin_client, dossier):
    tell(dossier, 3000)
    url = page(Dossier, "story", dossier.pk, "states")

    assert [len(queries(admin_client, url, {"before": before})) for before in ("", 1500, 51)] == [4, 4, 4]


def test_the_story_of_a_row_may_be_read_by_those_who_may_look_at_it(client, dossier):
    url = page(Dossier, "story", dossier.pk, "states")

    assert staff(client, "view_dossier").get(url).status_code == 200
    assert staff(client, "view_order").get(url).status_code == 403


# Markup


def test_nothing_that_people_wrote_is_markup(client, admin_user):
    admin_user.username = f"Bobby {SCRIPT}"
    admin_user.save()
    client.force_login(admin_user)
    dossier = Dossier.objects.create(title=SCRIPT, team=SCRIPT)
    facts = {SCRIPT: SCRIPT, "list": [SCRIPT], "actor": SCRIPT}
    dossier.states.transition_to("CHECK", metadata=facts)
    dossier.states.transition_to("CHECK", user=admin_user)
    pages = [
        page(Dossier, "change", dossier.pk),
        page(Dossier, "story", dossier.pk, "states"),
        page(Dossier),
        page(Dossier) + f"?status__exact={SCRIPT}",
        page(Dossier.states.transition_model),
    ]

    for url in pages:
        content = client.get(url).content.decode()
        assert SCRIPT not in content, url
        assert "<b>Check</b>" not in content, url
    response = client.post(page(Dossier, "move", dossier.pk, "states"), {"_to": SCRIPT, "_expected": 2}, follow=True)
    assert SCRIPT not in response.content.decode()
