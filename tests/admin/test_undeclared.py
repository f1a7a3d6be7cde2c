"""Rows in a state that the machine does not declare: counted, listed and told apart on every page."""

from __future__ import annotations

import html
import re

import pytest
from django.contrib.admin import site
from django.utils import translation

from lab.models import Dossier
from shop.models import Order
from statemachine_fields.db.expressions import MachineValue
from tests.admin.browsing import choices, choose, look, page, queries, staff, words_of

pytestmark = pytest.mark.django_db


def lost(count=1, state="MISLAID", **values):
    rows = [Dossier.objects.create(**values) for _ in range(count)]
    Dossier.objects.filter(pk__in=[row.pk for row in rows]).update(status=MachineValue(state))
    return rows


def legend(response):
    """Return what is said below the graph: the text, and the links by their text."""
    found = re.search(r'<p class="smf-strays">(.*?)</p>', response.content.decode(), re.DOTALL)
    if found is None:
        return "", {}
    links = re.findall(r'<a href="([^"]*)">(.*?)</a>', found.group(1))
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", found.group(1))).split())
    return text, {re.sub(r"<[^>]+>", "", words): html.unescape(url) for url, words in links}


# The list


def test_the_filter_offers_them_with_their_number(admin_client):
    lost(3)
    lost(2, "<i>x</i>")
    Dossier.objects.create()

    response = admin_client.get(page(Dossier))

    assert choices(response)[-2:] == ["<i>x</i>, not declared (2)", "MISLAID, not declared (3)"]
    assert "Open (1)" in choices(response)


def test_the_filter_narrows_the_list_and_marks_what_is_chosen(admin_client):
    lost(3)
    Dossier.objects.create()

    response = admin_client.get(page(Dossier), {"status__exact": "MISLAID"})

    assert response.context["cl"].result_count == 3
    assert re.search(r'<li class="selected">\s*<a [^>]*>\s*MISLAID, not declared', response.content.decode())


def test_djangos_own_counts_have_them_too(admin_client):
    lost(3, team="ada")
    lost(2)

    response = admin_client.get(page(Dossier), {"_facets": "True", "team": "ada"})

    assert choices(response)[-1] == "MISLAID, not declared (3)"


def test_the_graph_has_a_line_for_them_that_leads_to_the_rows(admin_client):
    lost(3)

    response = admin_client.get(page(Dossier))

    text, links = legend(response)
    assert text == "In states that are not declared: MISLAID 3"
    assert admin_client.get(page(Dossier) + links["MISLAID"]).context["cl"].result_count == 3


def test_there_is_no_line_and_no_choice_without_them(admin_client):
    Dossier.objects.create()

    response = admin_client.get(page(Dossier))

    assert legend(response) == ("", {})
    assert "not declared" not in words_of(response)


def test_counts_stop_at_their_limit(admin_client, monkeypatch):
    monkeypatch.setattr(site.get_model_admin(Dossier), "count_limit", 2)
    lost(3)

    assert legend(admin_client.get(page(Dossier)))[0].endswith("MISLAID 2+")


def test_rows_of_others_are_not_told_of(client):
    lost(3, team="blue")
    staff(client, "view_dossier", username="red")

    response = client.get(page(Dossier))

    assert "MISLAID" not in words_of(response)


def test_the_list_asks_one_question_more_where_there_are_some(admin_client):
    Dossier.objects.create()
    before = len(queries(admin_client, page(Dossier)))
    lost(3)
    lost(3, "STOLEN")

    assert len(queries(admin_client, page(Dossier))) == before + 1


# The badge


def test_the_badge_says_what_is_wrong_with_it(admin_client):
    lost()

    content = admin_client.get(page(Dossier)).content.decode()

    assert (
        '<td class="field-status"><span class="smf-badge smf-undeclared" '
        'title="MISLAID is not a state that Dossier declares.">MISLAID</span></td>' in content
    )


# The row


def test_the_row_says_what_is_wrong_and_what_to_do(admin_client):
    (row,) = lost()

    words = words_of(look(admin_client, row))

    assert (
        "MISLAID is not a state that Dossier declares. No move leads out of it, and no worker takes the row." in words
    )
    assert "force_transition_to()" in words
    assert "This is an end" not in words


def test_who_may_only_look_is_told_too(client):
    (row,) = lost()
    staff(client, "view_dossier")

    assert "is not a state that Dossier declares." in words_of(look(client, row))


def test_it_is_said_in_the_language_of_the_reader(admin_client):
    (row,) = lost()

    with translation.override("de"):
        words = words_of(look(admin_client, row))

    assert "MISLAID ist kein Zustand, den Dossier deklariert." in words


def test_the_clock_of_such_a_row_stands_still(admin_client):
    order = Order.objects.create(customer="Ada", total=10)
    Order.objects.filter(pk=order.pk).update(status=MachineValue("MISLAID"))

    response = look(admin_client, order)

    assert "Clock: Never: no worker takes rows of a state that is not declared" in words_of(response)
    assert 'name="verb"' not in response.content.decode()
    assert 'declared">Never</span>' in admin_client.get(page(Order)).content.decode()


# The page of the machine


def test_the_page_of_the_machine_has_the_same_line(admin_client):
    lost(3)

    text, links = legend(admin_client.get(page(Dossier, "machine", "states")))

    assert text == "In states that are not declared: MISLAID 3"
    assert admin_client.get(links["MISLAID"]).context["cl"].result_count == 3


# Many rows


def test_an_action_says_that_there_is_no_move_from_there(admin_client):
    words = words_of(choose(admin_client, lost(2), "CHECK"))

    assert "2 MISLAID is not a state that Dossier declares." in words
