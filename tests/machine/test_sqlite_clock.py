"""The clock of SQLite, to the microsecond: a function of ours on every connection, however it came about."""

from __future__ import annotations

import datetime
import threading
import types

import pytest
from django.db import connection, connections
from django.utils import timezone

from lab.models import Chore, Stamped
from statemachine_fields.db.clock import READY, SQLITE
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="the others have microseconds of their own"),
]


def forget() -> None:
    """Take the function off the connection, as if it had been made before the library was imported."""
    connection.ensure_connection()
    connection.connection.create_function(SQLITE, -1, None)
    delattr(connection, READY)


def test_moves_within_a_millisecond_have_times_of_their_own():
    row = Stamped.objects.create()
    for state in ["DONE", "NEW"] * 20:
        row.states.transition_to(state)
    times = [row.status_changed_at, *row.states.history.values_list("transitioned_at", flat=True)]
    assert any(time.microsecond % 1000 for time in times)
    assert times[1:] == sorted(set(times), reverse=True)


def test_every_writer_reads_it():
    made = [Stamped.objects.create() for _ in range(30)]
    Stamped.objects.bulk_create([Stamped(name="many") for _ in range(30)])
    Stamped.states.bulk_transition(Stamped.objects.filter(name="many"), "DONE")
    times = Stamped.objects.values_list("status_changed_at", flat=True)
    assert sum(time.microsecond % 1000 > 0 for time in times) > len(made)


def test_a_row_is_due_at_once():
    for _ in range(20):
        row = Chore.objects.create()
        assert Chore.states.due().filter(pk=row.pk).exists()


def test_times_are_of_now_and_later():
    row = Chore.objects.create(status="DONE")
    assert abs(row.status_changed_at - timezone.now()) < datetime.timedelta(seconds=20)
    assert row.status_next_at - row.status_changed_at - datetime.timedelta(days=365) < datetime.timedelta(seconds=1)
    failed = Chore.objects.create(status="FAILED")
    assert failed.status_next_at is None


@pytest.mark.parametrize("days", [-3000, 400])
def test_it_is_the_databases_whatever_the_process_takes_for_now(monkeypatch, days):
    """As in a test that has stopped or set the clock of its process."""

    class Stopped(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) + datetime.timedelta(days=days)

    as_seen = types.SimpleNamespace(datetime=Stopped, timedelta=datetime.timedelta, UTC=datetime.UTC)
    monkeypatch.setattr("statemachine_fields.db.clock.datetime", as_seen)
    row = Stamped.objects.create()
    row.states.transition_to("DONE")
    (record,) = row.states.history
    assert record.transitioned_at == row.status_changed_at
    assert abs(row.status_changed_at - timezone.now()) < datetime.timedelta(seconds=20)
    assert Chore.objects.create().status_next_at - timezone.now() < datetime.timedelta(seconds=20)


@pytest.mark.parametrize("use", ["create", "transition_to", "stuck"])
def test_a_connection_that_was_there_before(use):
    row = Stamped.objects.create()
    row.states.transition_to("DONE")
    forget()
    match use:
        case "create":
            Stamped.objects.create()
        case "transition_to":
            row.states.transition_to("NEW")
        case "stuck":
            assert Stamped.states.stuck("DONE", older_than=60).count() == 0


def test_a_query_that_was_made_before_the_connection():
    connection.close()
    queryset = Stamped.states.stuck("NEW", older_than=60)
    text = str(queryset.query)
    assert (SQLITE in text, connection.connection) == (True, None)
    assert list(queryset) == []


def test_connections_of_other_threads():
    row = Stamped.objects.create()
    failures = []

    def move():
        try:
            Stamped.objects.get(pk=row.pk).states.transition_to("DONE")
        except Exception as error:  # noqa: BLE001 - the thread must not swallow it
            failures.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=move)
    thread.start()
    thread.join(PATIENCE)
    assert failures == []
    assert Stamped.objects.get().status == "DONE"


def test_rows_that_sql_inserts_have_the_default_that_migrations_hold():
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO lab_stamped (name, modified) VALUES ('raw', '2026-01-01 00:00:00')")
    row = Stamped.objects.get()
    assert abs(row.status_changed_at - timezone.now()) < datetime.timedelta(seconds=20)
    row.states.transition_to("DONE")
