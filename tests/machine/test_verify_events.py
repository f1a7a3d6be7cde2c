"""What `statemachine_verify` finds of events, and what `statemachine_reschedule` sets right."""

from __future__ import annotations

import datetime

import pytest
from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS

from lab.models import Lot, Petition
from statemachine_fields.machine.verify_events import event_findings
from statemachine_fields.schedule.reschedule import Rescheduler, mismatches
from statemachine_fields.testing import drain
from tests.worker.rows import columns_of, set_clock

pytestmark = pytest.mark.django_db


def petition(status, **script):
    row = Petition.objects.create(script=script)
    row.states.force_transition_to(status, reason="for the test")
    return row


def findings():
    return [(finding.pk, finding.code) for finding in event_findings(Petition.states._meta, DEFAULT_DB_ALIAS, 2)]


def reschedule():
    return Rescheduler(Petition.states._meta, using=DEFAULT_DB_ALIAS).run()


@pytest.fixture
def in_order():
    """Rows with which nothing is wrong."""
    for status in ("DRAFT", "OPEN", "HEARD", "GRANTED"):
        petition(status)
    asked = petition("OPEN", needs=9)
    asked.states.deliver("letter")
    done = petition("OPEN")
    done.states.deliver("letter")
    drain(Petition)
    due = petition("HEARD")
    due.states.deliver("denied")
    kept = petition("DRAFT")
    kept.states.deliver("letter")
    parked = petition("HEARD")
    set_clock(parked, error="broken")
    parked.states.deliver("denied")


@pytest.mark.usefixtures("in_order")
class TestInOrder:
    def test_nothing_is_found(self):
        assert findings() == []
        call_command("statemachine_verify", "lab.Petition")

    def test_sleepers_are_no_mismatch(self):
        assert mismatches(Petition.states._meta, DEFAULT_DB_ALIAS) == (False, False)
        assert not any(reschedule().values())


def test_machines_without_events_are_not_asked(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert [*event_findings(Lot.states._meta, DEFAULT_DB_ALIAS)] == []


@pytest.mark.usefixtures("in_order")
class TestDamage:
    def test_numbers_that_do_not_fit_are_found(self):
        missing, surplus = petition("HEARD"), petition("HEARD")
        for row in (missing, surplus):
            row.states.deliver("call")
            row.states.deliver("call")
        missing.states.events.filter(number=1).delete()
        set_clock(surplus, inbox=1)

        assert findings() == [(missing.pk, "event-numbers"), (surplus.pk, "event-numbers")]

    def test_events_that_were_taken_by_no_move_are_found(self):
        row = petition("HEARD")
        row.states.deliver("call")
        row.states.events.update(taken_by=7)

        assert findings() == [(row.pk, "event-taker-missing")]

    @pytest.mark.parametrize("status", ["OPEN", "HEARD"])
    def test_rows_that_sleep_beside_an_event_are_found_and_woken(self, status):
        row = petition(status)
        row.states.deliver("letter")
        set_clock(row, next_at=None if status == "HEARD" else row.status_next_at)

        assert findings() == [(row.pk, "event-unseen")]
        changes = reschedule()
        assert changes[status].gained + changes[status].changed == 1
        assert findings() == []
        drain(Petition)
        row.refresh_from_db()
        assert row.status_sequence > 1

    def test_an_event_that_came_after_the_last_look_is_found(self):
        row = petition("OPEN", needs=9)
        row.states.deliver("letter")
        drain(Petition)
        row.states.deliver("letter")
        set_clock(row, next_at=columns_of(row).changed_at + datetime.timedelta(days=3))

        assert findings() == [(row.pk, "event-unseen")]


class TestRescheduling:
    def test_gives_a_row_its_time_out_and_leaves_one_that_sleeps_alone(self):
        old, asleep = petition("OPEN"), petition("HEARD")
        set_clock(old, next_at=None)

        assert mismatches(Petition.states._meta, DEFAULT_DB_ALIAS) == (False, True)
        changes = reschedule()
        assert (changes["OPEN"].gained, bool(changes["HEARD"])) == (1, False)
        assert columns_of(old).next_at == columns_of(old).changed_at + datetime.timedelta(days=3)
        assert columns_of(asleep).next_at is None
