"""What becomes of a worker's move that would give a row a key which another live row has."""

from __future__ import annotations

import pytest
from django.db import connection

from lab.models import Carriage
from statemachine_fields.testing import assert_state, drain

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor == "mysql", reason="it has no unique constraints for some of the rows"),
]


def test_it_is_refused_as_a_failed_try_and_says_which_row_has_the_key():
    holder = Carriage.objects.create(number="A-17", status="SENT")
    others = [Carriage.objects.create(number=f"B-{number}") for number in range(3)]
    row = Carriage.objects.create(number="A-18", wanted="A-17")

    tally = drain(Carriage)

    row.refresh_from_db()
    assert (row.status, row.number, row.status_failures) == ("NEW", "A-18", 2)
    assert "DuplicateLiveRow" in row.status_error
    assert f"cannot be live with number='A-17': pk={holder.pk} has it, which is live in 'SENT'" in row.status_error
    for other in others:
        assert_state(other, "SENT")
    assert tally


def test_it_goes_through_where_the_key_is_free():
    Carriage.objects.create(number="A-17", status="DONE")
    row = Carriage.objects.create(number="A-18", wanted="A-17")

    drain(Carriage)

    assert_state(row, "SENT")
    row.refresh_from_db()
    assert row.number == "A-17"
