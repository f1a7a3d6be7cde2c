"""Addresses of rows with every kind of key: none leads to another page."""

from __future__ import annotations

import html
import re

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.urls import path, reverse

from lab.admin import MachineAdmin
from lab.models import Voucher

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]

KEYS = [
    "machine",
    "_machine",
    "add",
    "move",
    "clock",
    "story",
    "change",
    "history",
    "a/b",
    "machine/states",
    "a\"'<b>",
    "_5F",
    "ä ö",
]

site = admin.AdminSite()
site.register(Voucher, MachineAdmin)
urlpatterns = [path("admin/", site.urls)]


def address(name, *args):
    return reverse(f"admin:lab_voucher_{name}", args=args)


@pytest.fixture(params=KEYS)
def voucher(request):
    return Voucher.objects.create(code=request.param)


@pytest.mark.parametrize("name", ["change", "history", "delete"])
def test_djangos_own_pages_are_of_the_row(admin_client, voucher, name):
    response = admin_client.get(address(name, quote(voucher.pk)))

    assert (response.status_code, response.context["object" if name != "change" else "original"]) == (200, voucher)


def test_links_on_the_list_lead_to_the_row(admin_client, voucher):
    content = admin_client.get(address("changelist")).content.decode()
    (link,) = re.findall(r'<a href="(/admin/lab/voucher/[^"]*/change/)', content)

    assert admin_client.get(html.unescape(link)).context["original"] == voucher


def test_the_row_moves_and_tells_its_story(admin_client, voucher):
    (target, *_rest) = Voucher.states._meta.graph.targets(voucher.status)

    data = {"_to": target, "_expected": 0}
    moved = admin_client.post(address("move", quote(voucher.pk), "states"), data, follow=True)
    told = admin_client.get(address("story", quote(voucher.pk), "states"))

    assert Voucher.objects.get().status == target
    assert moved.context["original"] == voucher
    assert (told.status_code, told.context["story"].total) == (200, 1)


def test_the_clock_of_the_row_is_asked(admin_client, voucher):
    assert admin_client.get(address("clock", quote(voucher.pk), "states")).status_code == 405


def test_the_page_of_the_machine_is_beside_all_rows(admin_client, voucher):
    response = admin_client.get(address("machine", "states"))

    assert (response.status_code, response.context["machine"]) == (200, Voucher.states._meta)
