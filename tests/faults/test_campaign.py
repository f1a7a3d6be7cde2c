"""All harm at once. The long version is `python -m tests.faults.campaign`, which also finds out which harm it takes."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from lab.models import (
    Deposit,
    Entry,
    Errand,
    Expedition,
    Footprint,
    Guest,
    HastyPetition,
    Leg,
    Paper,
    Petition,
    Postcard,
    Receipt,
)
from statemachine_fields.testing import drain
from statemachine_fields.worker.models import RunStatistics
from tests.faults import harness
from tests.faults.campaign import checks
from tests.faults.campaign.checks import Broken
from tests.faults.campaign.harms import PEOPLE
from tests.faults.campaign.rows import LATE
from tests.faults.campaign.run import Campaign, Report
from tests.faults.campaign.shrink import shrink

SECONDS = 40.0 if harness.is_long() else 20.0

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def test_a_campaign_of_all_harm(server, django_db_blocker, capsys):
    """I1 to I8, after everything that can go wrong has, at once."""
    seed = harness.seed()
    print(f"SMF_SEED={seed}")
    with django_db_blocker.unblock():
        report = Campaign(server, seed, SECONDS).run()
    assert not report.broken, report.text()
    with capsys.disabled():
        print(f"\n{report.text()}")


# What a campaign checks, it would notice.


@pytest.fixture(scope="module")
def shared(server, django_db_blocker):
    with django_db_blocker.unblock(), server.database() as url:
        yield url


@pytest.fixture
def lab(shared, django_db_blocker):
    """An empty database, as whatever a test writes is undone."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)


def set_columns(row, **columns):
    """Write columns that are the machine's own."""
    names = ", ".join(f"{name} = %s" for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {row._meta.db_table} SET {names} WHERE id = %s", [*columns.values(), row.pk])


def found():
    """Return the codes of all that does not hold, with as much excused as a campaign ever does."""
    every = [
        *checks.check_histories(),
        *checks.check_events(),
        *checks.check_families(),
        *checks.check_cancelled(),
        *checks.check_calls(),
        *checks.check_effects(),
        *checks.check_ends(may_be_given_up=True),
        *checks.check_leases(LONG_AGO),
        *checks.check_statistics(Counter(), is_exact=False),
    ]
    return sorted({broken.code for broken in every})


def marked(row, *states, token=1):
    for number, state in enumerate(states):
        Footprint.objects.create(machine=type(row).__name__, key=str(row.pk), state=state, token=token + number, pid=1)


def moved(row, *states, **metadata):
    for state in states:
        row.states.transition_to(state, metadata=metadata)
    return row


def test_what_went_well_is_not_complained_of(lab):
    errand = moved(Errand.objects.create(), "DOING", "DONE")
    marked(errand, "NEW", "DOING", "DOING")
    moved(Errand.objects.create(), "CANCELLED", **PEOPLE)
    moved(Errand.objects.create(script="exit 13", status="RISKY"), "FAILED")
    set_columns(Errand.objects.create(script="raise", status="RISKY"), status_next_at=None)
    deposit = moved(Deposit.objects.create(), "DOING", "DONE")
    for state in ("NEW", "DOING"):
        Entry.objects.create(deposit=deposit, state=state, token=1)
    moved(Guest.objects.create(), "LEFT").delete()
    paper = moved(Paper.objects.create(), "DOING", "DONE")
    marked(paper, "NEW", "DOING")
    RunStatistics.objects.create(machine="lab.Errand.states", state="NEW", period=LONG_AGO, kind="moved", count=1)
    heard(HastyPetition, "letter", "call", "letter")
    timed_out("letter")
    family("LOST", "", "ARRIVED")
    assert found() == []


def test_a_claim_that_ran_twice_is_noticed(lab):
    errand = moved(Errand.objects.create(), "DOING", "DONE")
    marked(errand, "NEW", "DOING")
    marked(errand, "DOING", token=2)
    assert found() == ["I1 one call"]


def test_a_move_whose_handler_left_no_trace_is_noticed(lab):
    marked(moved(Postcard.objects.create(), "DOING", "DONE"), "NEW")
    assert found() == ["I1 effects"]


@pytest.mark.parametrize("times", [0, 2])
def test_atomic_effects_that_are_not_there_once_are_noticed(lab, times):
    deposit = moved(Deposit.objects.create(), "CANCELLED", **PEOPLE)
    assert found() == []
    other = moved(Deposit.objects.create(), "DOING")
    for _ in range(times):
        Entry.objects.create(deposit=other, state="NEW", token=1)
    moved(other, "CANCELLED", **PEOPLE)
    assert found() == ["I1 effects"]
    assert deposit.status == "CANCELLED"


def test_a_receiver_that_was_heard_too_often_is_noticed(lab):
    paper = moved(Paper.objects.create(), "CANCELLED", **PEOPLE)
    Receipt.objects.create(paper=paper, status="CANCELLED", created=False)
    assert found() == ["I2 receivers"]


def test_an_update_that_was_lost_is_noticed(lab):
    marked(moved(Errand.objects.create(script="update"), "DOING", "DONE"), "NEW", "DOING")
    assert found() == ["I2 update"]


def test_a_record_without_a_move_is_noticed(lab):
    errand = moved(Errand.objects.create(), "CANCELLED", **PEOPLE)
    records = Errand.states.transition_model.objects
    records.filter(instance=errand).update(to_status="HELD")
    assert found() == ["I2 history"]


def test_a_move_out_of_a_terminal_state_is_noticed(lab):
    errand = moved(Errand.objects.create(), "CANCELLED", **PEOPLE)
    errand.states.force_transition_to("DONE", reason="to see", metadata=PEOPLE)
    assert found() == ["I4 edge"]


def test_rows_that_are_left_are_noticed(lab):
    Errand.objects.create()
    assert found() == ["I3 unfinished"]


def test_a_guest_that_is_left_is_noticed(lab):
    Guest.objects.create()
    assert found() == ["I3 unfinished"]


def test_a_harmless_row_that_is_parked_is_noticed(lab):
    set_columns(Errand.objects.create(), status_next_at=None)
    assert found() == ["I3 unfinished"]


def test_poison_that_came_through_or_goes_on_is_noticed(lab):
    errand = moved(Errand.objects.create(script="exit 13", status="RISKY"), "DONE")
    marked(errand, "RISKY")
    assert found() == ["I5 poison"]
    errand.delete()
    Footprint.objects.all().delete()
    Errand.objects.create(script="raise", status="RISKY")
    assert found() == ["I5 poison"]


def test_a_lease_that_is_left_is_noticed(lab):
    errand = moved(Errand.objects.create(), "CANCELLED", **PEOPLE)
    later = datetime.now(UTC) + timedelta(seconds=5)
    set_columns(errand, status_lease_owner="host:1:a", status_lease_expires_at=later)
    assert found() == ["I8 leases"]


def test_statistics_that_boast_are_noticed(lab):
    marked(moved(Errand.objects.create(), "DOING", "DONE"), "NEW", "DOING")
    RunStatistics.objects.create(machine="lab.Errand.states", state="NEW", period=LONG_AGO, kind="moved", count=2)
    assert found() == ["statistics above"]
    too_few = checks.check_statistics(Counter(), is_exact=True)
    assert {broken.code for broken in too_few} == {"statistics above", "statistics below"}


def heard(model, *names):
    """Return a row that is handed events two at a time, and has come to rest."""
    row = model.objects.create(status="OPEN", script={"needs": 2})
    for name in names:
        row.states.deliver(name)
    drain(model)
    drain(model, timeouts=model is HastyPetition)
    row.refresh_from_db()
    return row


def timed_out(*names):
    """Return a row that has got too little, was timed out, went on with what it had got, and was timed out again."""
    row = heard(HastyPetition, *names)
    assert row.status == "MISSED"
    return row


def family(*outcomes):
    """Return a row that has made others, and left when one of them was lost."""
    row = Expedition.objects.create(plan={"to": "WALKING", "legs": [{"outcome": outcome} for outcome in outcomes]})
    drain(Expedition, Leg)
    row.refresh_from_db()
    assert row.status == "FAILED"
    return row


def test_an_event_that_is_left_is_noticed(lab):
    row = timed_out("letter")
    row.states.deliver("letter")
    assert row.states.events.filter(taken_by=None).count() == 1
    assert found() == ["I7 asleep"]


def test_a_time_out_that_took_an_event_is_noticed(lab):
    row = timed_out("letter")
    number = checks.time_outs().order_by("sequence").first().sequence
    row.states.events.update(taken_by=number)
    assert found() == ["I7 taken"]


def test_an_event_that_two_moves_handled_is_noticed(lab):
    row = heard(Petition, "letter", "call")
    moved(row, "OPEN")
    moved(row, "HEARD", read=[1, 2])
    assert found() == ["I7 taken"]


def test_a_child_that_is_called_off_without_a_reason_is_noticed(lab):
    row = family("LOST", "")
    leg = row.legs.get(status="CALLED_OFF")
    leg.states.history.update(metadata={})
    assert found() == ["I7 cancelled"]


def test_a_child_that_is_called_off_before_its_parent_leaves_is_noticed(lab):
    row = family("LOST", "")
    row.legs.get(status="CALLED_OFF").states.history.update(transitioned_at=LONG_AGO)
    assert found() == ["I2 history", "I7 cancelled"]


def test_a_child_that_came_too_late_to_be_called_off_is_noticed(lab):
    row = family("LOST", "")
    late = Leg.objects.create(expedition=row, number=LATE, outcome="")
    assert found() == []
    facts = {"cancelled_by": f"lab.Expedition pk={row.pk}", "left": "WALKING"}
    late.states.transition_to("CALLED_OFF", metadata=facts)
    assert found() == ["I7 cancelled"]


def test_a_child_that_is_left_behind_is_noticed(lab):
    row = family("LOST", "")
    Leg.objects.filter(expedition=row, status="CALLED_OFF").delete()
    Leg.objects.create(expedition=row, outcome="", number=1)
    assert found() == ["I7 cancelled"]


# What it finds, it makes smaller.


@pytest.mark.parametrize("culprits", [{"c"}, {"a", "h"}, {"b", "d", "g"}])
def test_the_least_harm_that_breaks_it_is_found(culprits):
    def repeat(seconds, kinds):
        broken = [Broken("I1", "again")] if culprits <= {*kinds} else [Broken("I2", "something else")]
        return Report(1, seconds, kinds, broken)

    report = Report(1, 40.0, [*"abcdefgh"], [Broken("I1", "at first")])
    smallest = shrink(report, repeat, lambda line: None)
    assert {*smallest.kinds} == culprits


def test_the_search_for_the_least_harm_ends_in_time():
    report = Report(1, 40.0, [*"abcdefgh"], [Broken("I1", "at first")])
    assert shrink(report, pytest.fail, lambda line: None, within=0) is report


def test_a_report_says_how_to_repeat_it():
    report = Report(7, 15.0, ["kill", "lose"], [Broken("I1 one call", "token 3 ran twice")])
    assert "python -m tests.faults.campaign --seed 7 --seconds 15 --only kill,lose" in report.text()
    assert "I1 one call: token 3 ran twice" in report.text()
