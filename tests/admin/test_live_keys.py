"""Rows that have a key in the admin: a duplicate is told in the form, and is no error page."""

from __future__ import annotations

import datetime

import pytest
from django.db import connection

from lab.models import Place, Reservation, Shipment
from tests.admin.browsing import page, words_of

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor == "mysql", reason="it has no unique constraints for some of the rows"),
]

TAKEN = "Shipment with this Number already exists."


def add(client, **values):
    return client.post(page(Shipment, "add"), {"number": "", "code": "", "note": "", **values})


def change(client, row, **values):
    values = {"number": row.number or "", "code": row.code or "", "note": row.note, **values}
    return client.post(page(Shipment, "change", row.pk), values)


def test_a_duplicate_is_told_when_it_is_added(admin_client):
    Shipment.objects.create(number="A-17")

    response = add(admin_client, number="A-17", code="1", note="x")

    assert response.status_code == 200
    assert TAKEN in words_of(response)
    assert Shipment.objects.count() == 1


def test_the_key_of_a_row_that_has_ended_can_be_given_again(admin_client):
    Shipment.objects.create(number="A-17", code="1", status="LOST")

    assert add(admin_client, number="A-17", code="2", note="x").status_code == 302
    assert Shipment.states.live(number="A-17")


def test_a_duplicate_is_told_when_a_row_is_changed(admin_client):
    Shipment.objects.create(number="A-17", code="1")
    row = Shipment.objects.create(number="A-18", code="2", note="x")

    assert TAKEN in words_of(change(admin_client, row, number="A-17"))
    assert change(admin_client, row, note="y").status_code == 302
    row.refresh_from_db()
    assert (row.number, row.note) == ("A-18", "y")


def test_a_row_that_has_ended_may_be_given_any_key(admin_client):
    Shipment.objects.create(number="A-17", code="1")
    row = Shipment.objects.create(number="A-18", code="2", note="x", status="DONE")

    assert change(admin_client, row, number="A-17").status_code == 302


def test_a_key_of_several_fields_is_told_above_the_form(admin_client):
    place, day = Place.objects.create(), datetime.date(2026, 11, 18)
    Reservation.objects.create(place=place, day=day)

    response = admin_client.post(page(Reservation, "add"), {"place": place.pk, "day": day})

    assert response.status_code == 200
    assert "Reservation with this Place and Day already exists." in words_of(response)
    assert Reservation.objects.count() == 1
