"""How tests look at pages of the admin: addresses, people, text, and the queries behind a page."""

from __future__ import annotations

import html
import re
import uuid
from contextlib import contextmanager

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.exceptions import ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from lab.models import Dossier
from statemachine_fields.signals import pre_transition

#: What those have who may move dossiers.
MOVER = ("view_dossier", "change_dossier")


def page(model, name="changelist", *args):
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{name}", args=args)


def staff(client, *permissions, username=None):
    """Log in a member of the staff who has only these permissions."""
    user = get_user_model().objects.create_user(username or f"staff-{uuid.uuid4().hex}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    return client


def dossiers(count, **values):
    return Dossier.objects.bulk_create(Dossier(**values) for _ in range(count))


def look(client, row):
    """Open the page of a row."""
    return client.get(page(type(row), "change", row.pk))


def text_of(response):
    return html.unescape(re.sub(r"<[^>]+>", " ", response.content.decode()))


def words_of(response):
    """Return the text of a page with single spaces."""
    return " ".join(text_of(response).split())


def queries(client, url, params=None):
    with CaptureQueriesContext(connection) as captured:
        response = client.get(url, params)
    assert response.status_code == 200
    return [query["sql"] for query in captured]


def messages_of(response):
    return [str(message) for message in response.context["messages"]]


def press(client, row, accessor="states", *, to, expected=None, beside="", **fields):
    """Press the button of a move, as the page of the row has it, and follow to what is shown then.

    `beside` is what was typed beside the button; other fields are those of the page that asks.
    """
    sequence = getattr(row, f"{type(row).__dict__[accessor].bound.names.sequence}") if expected is None else expected
    url = page(type(row), "move", row.pk, accessor)
    return client.post(url, {"_to": to, "_expected": sequence, "_note": beside, **fields}, follow=True)


def act(client, rows, action, **fields):
    """Choose an action of the list for rows, and follow to what is shown then."""
    data = {"action": action, "_selected_action": [row.pk for row in rows], **fields}
    return client.post(page(type(rows[0])), data, follow=True)


def choose(client, rows, to, **fields):
    """Choose the action "Move to …" for rows."""
    return act(client, rows, f"states_move_to_{to}", **fields)


def confirm(client, rows, to, shown, **fields):
    """Confirm what the page that such an action shows would do."""
    seen_at = re.search(r'name="_seen_at" value="([^"]*)"', shown.content.decode()).group(1)
    return choose(client, rows, to, _confirm="1", _seen_at=html.unescape(seen_at), **fields)


def choices(response):
    """Return what the filter by state offers."""
    found = re.search(r"By status.*?</ul>", response.content.decode(), re.DOTALL).group()
    return [html.unescape(text.strip()) for text in re.findall(r"<a [^>]*>([^<]*)</a>", found)]


@contextmanager
def veto(reason):
    """Let a receiver refuse every move of a dossier."""

    def refuse(**kwargs):
        raise ValidationError(reason)

    pre_transition.connect(refuse, sender=Dossier)
    try:
        yield
    finally:
        pre_transition.disconnect(refuse, sender=Dossier)
