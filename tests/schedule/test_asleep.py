"""Rows that sleep beside an event that they wait for: what a worker that starts finds of them, and what that costs."""

from __future__ import annotations

import pytest
from django.db import DEFAULT_DB_ALIAS, connection
from django.test.utils import CaptureQueriesContext

from lab.models import Chore, Petition
from statemachine_fields.schedule import asleep
from statemachine_fields.schedule.asleep import are_some_stranded
from statemachine_fields.schedule.reschedule import Rescheduler
from tests.schedule.test_reschedule import rows_read
from tests.worker.rows import in_seconds, set_clock

pytestmark = pytest.mark.django_db


def stranded():
    return are_some_stranded(Petition.states._meta, DEFAULT_DB_ALIAS)


def petition(status, *events, **columns):
    """Return a row that sleeps, whatever events came to it."""
    row = Petition.objects.create(status=status)
    for name in events:
        row.states.deliver(name)
    set_clock(row, next_at=None if status == "HEARD" else in_seconds(1000), **columns)
    return row


@pytest.mark.parametrize("status", ["OPEN", "HEARD"])
def test_rows_beside_an_event_are_found_until_they_are_rescheduled(status):
    petition(status, "letter")
    assert stranded()
    Rescheduler(Petition.states._meta, using=DEFAULT_DB_ALIAS).run()
    assert not stranded()


@pytest.mark.parametrize(
    ("status", "events", "columns"),
    [
        ("HEARD", [], {}),
        ("HEARD", ["call"], {}),
        ("DRAFT", ["letter"], {}),
        ("HEARD", ["letter"], {"error": "broken"}),
        ("HEARD", ["letter"], {"lease_expires_at": in_seconds(86400), "lease_owner": "w", "lease_token": 1}),
        ("OPEN", ["letter"], {"claimed_at": in_seconds(86400)}),
    ],
    ids=["without one", "which is for another state", "that waits for none", "parked", "held", "whose handler saw it"],
)
def test_rows_with_which_nothing_is_wrong_are_not(status, events, columns):
    petition(status, *events, **columns)
    assert not stranded()


def test_machines_without_events_are_not_asked(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert not are_some_stranded(Chore.states._meta, DEFAULT_DB_ALIAS)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="about the plans of PostgreSQL")
def test_a_large_table_is_not_read(monkeypatch):
    most = 100
    monkeypatch.setattr(asleep, "LOOKED_AT", most)
    Petition.objects.bulk_create([Petition(status="OPEN") for _ in range(20 * most)])
    Petition.states.bulk_deliver(
        [{"key": key, "name": "letter"} for key in Petition.objects.values_list("pk", flat=True)]
    )
    with connection.cursor() as cursor:
        cursor.execute("UPDATE lab_petition SET status_claimed_at = now() + interval '1 hour', status_next_at = NULL")
        cursor.execute("ANALYZE lab_petition, lab_petitionstateevent")
    with CaptureQueriesContext(connection) as queries:
        assert not stranded()
    assert len(queries) == 2  # one for each state that waits
    for query in queries:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query['sql'].replace('%', '%%')}", [])
            [[plan]] = cursor.fetchone()
        assert rows_read(plan["Plan"]) <= 3 * most, plan
