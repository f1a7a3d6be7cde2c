"""Tries that are kept stay true to their row: what verify finds, what a rename and an import of history do with them."""

from __future__ import annotations

import datetime

import pytest
from django.db import connection
from django.utils import timezone

from lab.models import Effort
from statemachine_fields.machine.verify import Verifier
from statemachine_fields.testing import drain
from statemachine_fields.worker import Retry
from tests.test_operations import rename
from tests.worker.rows import not_mariadb

pytestmark = [pytest.mark.django_db, not_mariadb]


@pytest.fixture
def row(monkeypatch):
    """A row with three tries before its first move and one after its second."""
    made = Effort.objects.create()
    monkeypatch.setattr(Effort, "go_on", lambda self, ctx: Retry(error="no luck"))
    drain(Effort)
    made.refresh_from_db()
    made.states.force_transition_to("NEXT", reason="again")
    monkeypatch.setattr(Effort, "go_on", lambda self, ctx: None)
    drain(Effort)
    made.refresh_from_db()
    return made


def found(bound=Effort.states._meta):
    return [(finding.code, finding.what) for finding in Verifier(bound).findings()]


def sql(text):
    with connection.cursor() as cursor:
        cursor.execute(text)


class TestVerify:
    def test_finds_nothing_wrong_with_what_workers_write(self, row):
        assert [(each.number, each.sequence) for each in row.states.attempts] == [(4, 2), (3, 0), (2, 0), (1, 0)]
        assert found() == []

    def test_reads_page_by_page(self, row):
        verifier = Verifier(Effort.states._meta, batch_size=1)
        assert list(verifier.findings()) == []
        assert verifier.attempts == 4

    def test_finds_a_counter_that_was_set_back(self, row):
        sql("UPDATE lab_effort SET status_attempts = 3")
        assert found() == [("attempt-number-invalid", "Try 4 is kept, but the row counts 3.")]

    def test_finds_a_try_after_a_move_that_was_not_made(self, row):
        sql("UPDATE lab_effortstateattempt SET sequence = 5 WHERE number = 4")
        assert found() == [("attempt-misplaced", "Try 4 is said to be after move 5, but the row has made 2.")]

    @pytest.mark.parametrize("number", [1, 4])
    def test_finds_a_try_in_a_state_that_the_row_was_not_in(self, row, number):
        sql(f"UPDATE lab_effortstateattempt SET state = 'DONE' WHERE number = {number}")
        ((code, what),) = found()
        assert (code, what.split(",")[0]) == ("attempt-misplaced", f"Try {number} is of 'DONE'")

    def test_finds_a_try_of_a_row_that_was_never_recorded_elsewhere(self):
        row = Effort.objects.create()
        drain(Effort)
        assert found() == []
        assert row.payment.attempts.count() == 1
        assert found(Effort.payment._meta) == []
        sql("UPDATE lab_effortpaymentstateattempt SET state = 'DONE'")
        assert [code for code, _what in found(Effort.payment._meta)] == ["attempt-misplaced"]


@pytest.mark.django_db(transaction=True)  # as SQLite wants it of a migration
def test_a_rename_takes_tries_along(row):
    rename("effort", "NEW", "FRESH", batch_size=2)
    kept = Effort.states.attempt_model.objects.order_by("number").values_list("number", "state")
    assert list(kept) == [(1, "FRESH"), (2, "FRESH"), (3, "FRESH"), (4, "NEXT")]


def test_a_first_record_that_is_written_later_moves_them_on(monkeypatch):
    monkeypatch.setattr(Effort, "go_on", lambda self, ctx: None)
    (made,) = Effort.objects.bulk_create([Effort()])
    drain(Effort)
    kept = made.states.attempts.values_list("number", "sequence")
    assert list(kept) == [(1, 0)]
    assert Effort.states.record_initial(Effort.objects.all()) == 1
    assert list(kept.all()) == [(1, 1)]
    assert found() == []


def test_history_that_is_imported_before_them_moves_them_on(row):
    at = timezone.now() - datetime.timedelta(days=9)
    entries = [
        {"key": row.pk, "from": "FAILED", "to": "NEW", "at": at},
    ]
    assert Effort.states.import_history(entries).imported == 1
    assert [(each.number, each.sequence) for each in row.states.attempts] == [(4, 3), (3, 1), (2, 1), (1, 1)]
    assert [code for code, _what in found()] == []
