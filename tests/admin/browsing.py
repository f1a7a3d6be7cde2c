"""How tests look at pages of the admin: addresses, people, text, and the queries behind a page."""

from __future__ import annotations

import html
import re
import uuid

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse


def page(model, name="changelist", *args):
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{name}", args=args)


def staff(client, *permissions, username=None):
    """Log in a member of the staff who has only these permissions."""
    user = get_user_model().objects.create_user(username or f"staff-{uuid.uuid4().hex}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    return client


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
