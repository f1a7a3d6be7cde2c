"""Languages that are written from right to left: the page is turned round, and arrows have to be turned with it."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin

from lab.models import Dossier
from statemachine_fields.admin import StateTransitionAdmin
from tests.admin.browsing import look, page, press

pytestmark = pytest.mark.django_db


@pytest.fixture
def dossier(dossier):
    dossier.states.transition_to("CHECK")
    return dossier


def arrows(response):
    """Return the arrows of a page that stand between two states. A graph, which says so in words too, is not turned."""
    content = re.sub("<svg.*?</svg>", "", response.content.decode(), flags=re.DOTALL)
    return set(re.findall("[←→]", content[content.index('id="content"') :]))


@pytest.mark.parametrize(("language", "arrow"), [("en", "→"), ("he", "←"), ("ar", "←")])
def test_arrows_point_at_where_a_row_went(admin_client, dossier, settings, language, arrow):
    settings.LANGUAGE_CODE = language

    row = look(admin_client, dossier)
    story = admin_client.get(page(Dossier, "story", dossier.pk, "states"))
    machine = admin_client.get(page(Dossier, "machine", "states"))
    asked = press(admin_client, dossier, to="LOST")

    assert [arrows(response) for response in (row, story, machine, asked)] == [{arrow}] * 4


@pytest.mark.parametrize(("language", "arrow"), [("en", "→"), ("he", "←")])
def test_arrows_of_records_point_at_where_a_row_went(dossier, settings, language, arrow):
    settings.LANGUAGE_CODE = language
    records = StateTransitionAdmin(Dossier.states.transition_model, admin.site)

    move = records.move(dossier.states.history.get())

    # Each name by itself: two of one language would drag the arrow into theirs.
    assert re.fullmatch(f"<bdi>Open</bdi> {arrow} <bdi>.*</bdi>", move)
