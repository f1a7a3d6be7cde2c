"""Tries in the admin: on the page of a row, in its story, and on pages of their own that change nothing."""

from __future__ import annotations

import pytest
from django.urls import reverse

from lab.models import Effort
from statemachine_fields.testing import drain
from statemachine_fields.worker import Retry
from tests.worker.rows import not_mariadb

pytestmark = [pytest.mark.django_db, not_mariadb]


@pytest.fixture
def row(monkeypatch):
    """A row that was tried twice in vain, moved by hand, and tried again."""
    made = Effort.objects.create()
    monkeypatch.setattr(Effort, "go_on", lambda self, ctx: Retry(error=f"<no> luck in {self.status}"))
    drain(Effort)
    made.refresh_from_db()
    made.states.force_transition_to("NEXT", reason="again")
    monkeypatch.setattr(Effort, "go_on", _fail)
    drain(Effort)
    return made


def _fail(self, ctx):
    raise ValueError("broken in next")


def page(client, name, *args, **query):
    response = client.get(reverse(f"admin:lab_{name}", args=args), query)
    assert response.status_code == 200
    return response.content.decode()


def test_the_page_of_a_row_lists_them(admin_client, row):
    text = page(admin_client, "effort_change", row.pk)
    assert "Tries that did not move it" in text
    assert "&lt;no&gt; luck in NEW" in text
    assert "ValueError: broken in next" in text
    assert "Traceback (most recent call last):" in text
    assert f"{reverse('admin:lab_effortstateattempt_changelist')}?q={row.pk}" in text


def test_the_story_has_them_after_the_move_they_followed(admin_client, row):
    text = page(admin_client, "effort_story", row.pk, "states")
    assert text.index("Try 5") < text.index("Try 4")
    response = admin_client.get(reverse("admin:lab_effort_story", args=[row.pk, "states"]))
    entries = {entry.number: [each.number for each in entry.tries] for entry in response.context["story"].entries}
    assert entries == {1: [], 2: [5, 4]}


def test_a_row_without_tries_has_no_list(admin_client):
    row = Effort.objects.create()
    assert "Tries that did not move it" not in page(admin_client, "effort_change", row.pk)


def test_they_have_pages_of_their_own(admin_client, row):
    text = page(admin_client, "effortstateattempt_changelist")
    assert "&lt;no&gt; luck in NEW" in text
    assert page(admin_client, "effortstateattempt_changelist", outcome="waited").count("broken in next") == 0
    attempt = row.states.attempts.first()
    text = page(admin_client, "effortstateattempt_change", attempt.pk)
    assert "broken in next" in text
    assert 'name="_save"' not in text


def test_the_list_finds_those_of_one_row(admin_client, row):
    other = Effort.objects.create()
    drain(Effort)
    response = admin_client.get(reverse("admin:lab_effortstateattempt_changelist"), {"q": other.pk})
    assert {each.instance_id for each in response.context["cl"].result_list} == {other.pk}
    numbers = [each.number for each in response.context["cl"].result_list]
    assert numbers == sorted(numbers, reverse=True)


@pytest.mark.parametrize("verb", ["add", "delete"])
def test_nobody_changes_them(admin_client, row, verb):
    args = [] if verb == "add" else [row.states.attempts.first().pk]
    assert admin_client.get(reverse(f"admin:lab_effortstateattempt_{verb}", args=args)).status_code == 403


def test_a_row_is_deleted_with_its_tries(admin_client, row):
    url = reverse("admin:lab_effort_delete", args=[row.pk])
    assert admin_client.post(url, {"post": "yes"}).status_code == 302
    assert not Effort.states.attempt_model.objects.exists()
