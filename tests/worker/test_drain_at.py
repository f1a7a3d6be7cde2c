"""`drain(at=...)`: time passes for rows, and each is run as of when it is due."""

from __future__ import annotations

import datetime
import itertools
from contextlib import nullcontext
from datetime import timedelta

import pytest
from django.db import transaction
from django.test import TestCase
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.models import ByHand, Chore, Coupon, Crate, Lot, Payment, Ping, Sensor, Ticking
from statemachine_fields.machine.verify import Verifier
from statemachine_fields.signals import post_transition, pre_transition
from statemachine_fields.testing import assert_history, assert_state, drain
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.lease import lanes_of

pytestmark = pytest.mark.django_db

#: How far times may be from what they should be: two readings of the clock in one statement differ.
CLOSE = timedelta(milliseconds=2)
#: How long a test may take, and a row therefore be older than it should.
A_WHILE = timedelta(seconds=20)


def findings(*machines):
    return [finding.what for machine in machines for finding in Verifier(machine).findings()]


def stays(row):
    """How long the row was in each state that it has left, the first apart."""
    records = list(row.states.history.order_by("sequence"))
    return [after.transitioned_at - before.transitioned_at for before, after in itertools.pairwise(records)]


def test_not_after_23_hours_but_after_25():
    ticking = Ticking.objects.create(status="STALE")
    drain(Ticking, at=timedelta(hours=23))
    assert_state(ticking, "STALE")
    drain(Ticking, at=timedelta(hours=25))
    assert_state(ticking, "GONE")


def test_what_a_row_schedules_counts_from_when_it_was_due():
    ticking = Ticking.objects.create()
    drain(Ticking, at=timedelta(days=1, seconds=30))
    assert_history(ticking, "FRESH", "STALE")
    drain(Ticking, at=timedelta(days=1, seconds=60))
    assert_history(ticking, "FRESH", "STALE", "GONE")
    assert abs(stays(ticking)[0] - timedelta(days=1)) < CLOSE


def test_deletions_happen_when_they_are_due():
    Ticking.objects.create(status="GONE")
    assert drain(Ticking, at=timedelta(days=6)).deleted == 0
    assert drain(Ticking, at=timedelta(days=8)).deleted == 1


def test_nothing_lies_in_the_future_and_the_history_is_sound():
    ticking = Ticking.objects.create()
    drain(Ticking, at=timedelta(days=3))
    ticking.refresh_from_db()
    now = timezone.now()
    in_state = now - ticking.status_changed_at
    assert timedelta(days=2, seconds=-60) - CLOSE < in_state < timedelta(days=2, seconds=-60) + A_WHILE
    assert ticking.states.history[0].transitioned_at == ticking.status_changed_at
    assert all(record.transitioned_at < now for record in ticking.states.history)
    assert findings(Ticking.states._meta) == []


def test_a_move_after_it_is_made_when_the_test_has_got_to():
    ticking = Ticking.objects.create(status="STALE")
    drain(Ticking, at=timedelta(hours=20))
    ticking.states.transition_to("FRESH")
    drain(Ticking, at=timedelta(hours=20, seconds=30))
    assert_state(ticking, "FRESH")
    drain(Ticking, at=timedelta(hours=20, seconds=90))
    assert_history(ticking, "STALE", "FRESH", "STALE")
    assert findings(Ticking.states._meta) == []


def test_rows_made_after_it_are_younger():
    Ticking.objects.create(status="STALE")
    drain(Ticking, at=timedelta(hours=20))
    other = Ticking.objects.create(status="STALE")
    drain(Ticking, at=timedelta(hours=30))
    assert_state(other, "STALE")
    drain(Ticking, at=timedelta(hours=45))
    assert_state(other, "GONE")


def test_it_may_be_repeated():
    ticking = Ticking.objects.create(status="STALE")
    for _ in range(5):
        drain(Ticking, at=timedelta(hours=6))
    assert_state(ticking, "STALE")
    ticking.refresh_from_db()
    assert timezone.now() - ticking.status_changed_at < timedelta(hours=6) + A_WHILE


def test_retries_and_their_growing_waits():
    """60 s after the first failure, 120 s after the second, and then error_to."""
    chore = Chore.objects.create(script={"NEW": "raise"}, name="this")
    assert (drain(Chore, at=timedelta(seconds=50)).failed, Chore.objects.get().status_failures) == (1, 1)
    assert (drain(Chore, at=timedelta(seconds=110)).failed, Chore.objects.get().status_failures) == (1, 2)
    assert drain(Chore, at=timedelta(seconds=170)).tries == 0
    drain(Chore, at=timedelta(seconds=190))
    assert_history(chore, "NEW", "FAILED")


def test_a_row_is_asked_each_time_it_is_due():
    chore = Chore.objects.create(script={"NEW": None})
    assert drain(Chore, at=timedelta(minutes=59, seconds=59)).waited == 60
    chore.refresh_from_db()
    due_in = chore.status_next_at - timezone.now()
    assert timedelta(0) < due_in <= timedelta(seconds=1)


def test_what_is_due_at_once_when_time_is_over_is_run():
    chore = Chore.objects.create(script={"NEW": None})
    drain(Chore, at=timedelta(0))
    Chore.objects.update(script={})
    drain(Chore, at=timedelta(minutes=1))
    assert_history(chore, "NEW", "DOING", "DONE")


def test_a_time_out_ends_the_waiting():
    chore = Chore.objects.create(status="DOING", script={"DOING": None})
    chore.refresh_from_db()
    chore.states.run_at(chore.status_changed_at + timedelta(days=3, milliseconds=-3))
    drain(Chore, at=timedelta(days=2, hours=22))
    assert_state(chore, "DOING")
    tally = drain(Chore, at=timedelta(days=3, hours=1))
    assert_history(chore, "DOING", "FAILED")
    assert (tally.waited, tally.moved) == (1, 1)  # asked 3 ms before its time is up, and once more when it is
    since = timezone.now() - chore.states.history[0].transitioned_at
    assert timedelta(hours=1) - CLOSE < since < timedelta(hours=1) + A_WHILE


def test_a_row_is_asked_every_minute_for_days():
    chore = Chore.objects.create(status="DOING", script={"DOING": None})
    tally = drain(Chore, at=timedelta(days=4), max_tries=100)
    assert (tally.waited, tally.moves) == (3 * 24 * 60, {("DOING", "FAILED"): 1})
    assert findings(Chore.states._meta) == []
    assert_history(chore, "DOING", "FAILED")


def test_a_handler_that_looks_now_and_then_sees_that_time_has_passed(monkeypatch):
    """Time passes in the database before the first statement of a try."""
    ages, looks, notes = [], [], []

    def play(self, state, ctx, otherwise):
        now = timezone.now()
        ages.append(round((now - ctx.entered_at).total_seconds() / 60))
        notes.append((self.note, [*self.script["said"]]))
        self.note = "not saved"
        self.script["said"].append("nor this")
        if len(ages) in (5, 9):
            looks.append(round((now - Chore.objects.get().status_changed_at).total_seconds() / 60))
        return

    monkeypatch.setattr(Chore, "play", play)
    Chore.objects.create(script={"said": []})
    assert drain(Chore, at=timedelta(minutes=9, seconds=30)).waited == 10
    assert ages == [*range(10)]
    assert looks == [4, 8]
    assert notes == [("", [])] * 10


def test_every_try_is_counted_on_the_row_and_the_last_is_when_it_was(monkeypatch):
    """Also those that are made without a word to the database."""
    counts, looks = [], []

    def play(self, state, ctx, otherwise):
        counts.append(self.status_attempts)
        if len(counts) in (5, 9):
            looks.append((self.status_attempts, Chore.objects.get().status_attempts))

    monkeypatch.setattr(Chore, "play", play)
    chore = Chore.objects.create()
    drain(Chore, at=timedelta(minutes=11, seconds=30))
    assert counts == [*range(1, 13)]
    assert looks == [(5, 5), (9, 9)]
    chore.refresh_from_db()
    assert chore.status_attempts == 12
    since = timezone.now() - chore.status_claimed_at
    assert timedelta(seconds=30) - CLOSE < since < timedelta(seconds=30) + A_WHILE


def test_a_claim_grows_older_with_its_row():
    chore = Chore.objects.create()
    drain(Chore, at=timedelta(hours=1))
    chore.refresh_from_db()
    assert chore.status == "DONE"
    assert abs(chore.status_claimed_at - chore.status_changed_at) < CLOSE
    assert timedelta(hours=1) - CLOSE < timezone.now() - chore.status_claimed_at < timedelta(hours=1) + A_WHILE


def test_a_row_that_waits_and_one_that_is_due_in_between(heard):
    waiting = Chore.objects.create(script={"NEW": None})
    other = Chore.objects.create(script={"NEW": "HELD"})
    other.states.run_at(timezone.now() + timedelta(minutes=3, seconds=30))
    moves = heard(post_transition, sender=Chore)
    tally = drain(Chore, at=timedelta(minutes=6, seconds=30))
    assert [(told["instance"].pk, told["transition"].to_status) for told in moves] == [(other.pk, "HELD")]
    assert tally.waited == 7
    waiting.refresh_from_db()
    other.refresh_from_db()
    since = timezone.now() - other.status_changed_at
    assert timedelta(minutes=3) - CLOSE < since < timedelta(minutes=3) + A_WHILE
    assert timedelta(seconds=0) < waiting.status_next_at - timezone.now() <= timedelta(seconds=30)


def test_rows_of_all_machines_run_in_the_order_in_which_they_are_due(heard):
    moves = heard(post_transition)
    Ticking.objects.create()  # after a minute, after a day
    Lot.objects.create(status="SOLD")  # deleted after a day
    chore = Chore.objects.create(script={"NEW": "HELD"})  # at once
    chore.states.run_at(timezone.now() + timedelta(seconds=90))
    tally = drain(at=timedelta(days=2))
    assert [(told["sender"], told["transition"].to_status) for told in moves] == [
        (Ticking, "STALE"),
        (Chore, "HELD"),
        (Ticking, "GONE"),
    ]
    assert tally.deleted == 1


def test_what_a_handler_makes_is_made_when_it_runs(connect):
    """A row that a receiver inserts on the way is as old as the move, and runs from there."""

    def make(sender, instance, transition, **facts):
        if transition.to_status == "STALE":
            Lot.objects.create(status="SOLD")

    connect(post_transition, make, Ticking)
    Ticking.objects.create()
    drain(Ticking, at=timedelta(hours=30))
    age = timezone.now() - Lot.objects.get().status_changed_at
    made_at = timedelta(minutes=1)
    assert timedelta(hours=30) - made_at - CLOSE < age < timedelta(hours=30) - made_at + A_WHILE


def test_time_passes_for_machines_that_are_not_drained():
    row, lot = ByHand.objects.create(), Lot.objects.create(status="SOLD")
    row.states.transition_to("LAST")
    drain(Ticking, at=timedelta(hours=30))
    row.refresh_from_db()
    assert timezone.now() - row.status_changed_at >= timedelta(hours=30)
    assert row.states.history[0].transitioned_at == row.status_changed_at
    assert ByHand.states.stuck("LAST", timedelta(hours=29)).exists()
    assert Lot.states.due().get() == lot


def test_handlers_see_how_old_their_row_is(connect):
    chore = Chore.objects.create(status="HELD")
    ages = []

    def note(sender, **facts):
        ages.append(timezone.now() - Chore.objects.get().status_changed_at)

    drain(Chore, at=timedelta(hours=5))
    chore.states.transition_to("NEW")
    chore.states.run_at(timezone.now() + timedelta(hours=2))
    connect(pre_transition, note, Chore)
    drain(Chore, at=timedelta(hours=8))
    assert timedelta(hours=2) <= ages[0] < timedelta(hours=2) + A_WHILE


@pytest.mark.parametrize("at", ["naive", "past", "back", "negative"])
def test_an_instant_that_cannot_be_is_refused(at):
    drain(Chore, at=timedelta(days=2))
    instant = {
        "naive": datetime.datetime(2100, 1, 1),  # noqa: DTZ001
        "past": timezone.now() - timedelta(days=1),
        "back": timedelta(days=1),
        "negative": timedelta(days=-1),
    }[at]
    with pytest.raises(ValueError, match="at must not be negative|at must be an aware|rows cannot grow younger"):
        drain(Chore, at=instant)


def test_an_instant_before_the_clock_is_refused():
    """As with a clock that a test has frozen: nothing would ever be due."""
    with pytest.raises(ValueError, match="lies before the database's clock"):
        drain(Chore, at=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))


def test_a_clock_that_is_a_little_behind_will_do():
    chore = Chore.objects.create(script={"NEW": "HELD"})
    chore.states.run_at(timezone.now() - timedelta(seconds=30))
    drain(Chore, at=timezone.now() - timedelta(seconds=5))
    assert_state(chore, "HELD")


def test_an_instant_is_one_of_the_databases_clock():
    ticking = Ticking.objects.create(status="STALE")
    start = timezone.now()
    drain(Ticking, at=start + timedelta(hours=23))
    assert_state(ticking, "STALE")
    drain(Ticking, at=start + timedelta(hours=25))
    assert_state(ticking, "GONE")
    assert drain(Ticking, at=timezone.now() + timedelta(hours=25)).tries == 0


def test_it_does_not_go_with_what_ignores_time():
    with pytest.raises(TypeError, match="Leave timeouts= and deletions= out"):
        drain(Chore, at=timedelta(days=1), timeouts=True)


def test_a_plain_drain_goes_on_from_there():
    chore = Chore.objects.create(status="HELD")
    drain(Chore, at=timedelta(days=30))
    chore.states.transition_to("NEW")
    drain(Chore)
    assert_history(chore, "HELD", "NEW", "DOING", "DONE")
    assert findings(Chore.states._meta) == []


def test_going_round_in_circles_is_an_error():
    Chore.objects.create(script={"DOING": "NEW"})
    with pytest.raises(AssertionError, match="made 20 tries and no time has passed"):
        drain(Chore, at=timedelta(days=1), max_tries=20)


def test_what_goes_on_for_ever_ends_with_the_time():
    Chore.objects.create(script={"NEW": None})
    assert drain(Chore, at=timedelta(minutes=10), max_tries=1).tries == 11
    with pytest.raises(AssertionError, match="Let less time pass, or raise max_tries"):
        drain(Chore, at=timedelta(minutes=200), max_tries=1)


def test_atomic_handlers_wait_from_when_they_were_due():
    payment = Payment.objects.create(fails=True)
    assert drain(Payment, at=timedelta(minutes=5, seconds=30)).failed == 6
    payment.refresh_from_db()
    assert timedelta(seconds=29) < payment.status_next_at - timezone.now() + A_WHILE < timedelta(seconds=31) + A_WHILE


@pytest.mark.django_db(transaction=True)
def test_async_handlers_are_awaited():
    ping = Ping.objects.create()
    drain(Ping, at=timedelta(0))
    assert_history(ping, "SENT", "ANSWERED")


def test_what_a_handler_raises_can_be_raised():
    chore = Chore.objects.create(script={"NEW": "raise"}, name="this")
    chore.states.run_at(timezone.now() + timedelta(hours=2))
    with pytest.raises(ValueError, match="no luck with this"):
        drain(Chore, at=timedelta(hours=5), reraise=True)
    chore.refresh_from_db()
    assert timedelta(hours=2) <= timezone.now() - chore.status_changed_at < timedelta(hours=2) + A_WHILE


def test_a_row_whose_worker_died_is_taken_back_when_its_lease_is_over(lease_left_open):
    row = lease_left_open(seconds=3600)
    assert drain(Chore, at=timedelta(minutes=50)).tries == 0
    drain(Chore, at=timedelta(minutes=70))
    assert_state(row, "DONE")


@pytest.fixture
def lease_left_open():
    def leave(seconds):
        chore = Chore.objects.create()
        (lane,) = lanes_of([Chore.states._meta])
        assert len(Claimer("gone", seconds).claim(lane, 1)) == 1
        return chore

    return leave


class TestWhatIsRememberedIsUndoneWithTheTest:
    """How far time is, is known as long as the rows are there that it has passed for."""

    def test_with_a_savepoint(self):
        ticking = Ticking.objects.create(status="STALE")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            drain(Ticking, at=timedelta(hours=20))
            raise ZeroDivisionError
        drain(Ticking, at=timedelta(hours=20))
        ticking.refresh_from_db()
        assert timezone.now() - ticking.status_changed_at >= timedelta(hours=20)

    @pytest.mark.parametrize("which", ["one", "another"])
    def test_with_a_transaction(self, which):
        ticking = Ticking.objects.create(status="STALE")
        drain(Ticking, at=timedelta(hours=20))
        ticking.refresh_from_db()
        assert timezone.now() - ticking.status_changed_at >= timedelta(hours=20)

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("which", ["one", "another"])
    def test_with_the_rows(self, which):
        ticking = Ticking.objects.create(status="STALE")
        drain(Ticking, at=timedelta(hours=20))
        drain(Ticking, at=timedelta(hours=21))
        ticking.refresh_from_db()
        assert timedelta(hours=21) <= timezone.now() - ticking.status_changed_at < timedelta(hours=21) + A_WHILE

    @pytest.mark.django_db(transaction=True)
    def test_with_the_rows_where_the_connection_stays_open(self):
        Ticking.objects.create(status="STALE")
        drain(Ticking, at=timedelta(hours=20))
        Ticking.objects.all().delete()
        ticking = Ticking.objects.create(status="STALE")
        drain(Ticking, at=timedelta(hours=10))
        ticking.refresh_from_db()
        assert timezone.now() - ticking.status_changed_at >= timedelta(hours=10)

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("block", [nullcontext, transaction.atomic], ids=["autocommit", "atomic"])
    def test_with_the_rows_though_the_next_have_the_same_keys(self, block):
        """A database in memory stays open from test to test, and fixtures bring the same keys to each."""
        Coupon.objects.create(code="AB-1")
        with block():
            drain(Coupon, at=timedelta(hours=20))
        Coupon.objects.all().delete()
        coupon = Coupon.objects.create(code="AB-1")
        with block():
            drain(Coupon, at=timedelta(hours=10))
        coupon.refresh_from_db()
        assert timedelta(hours=10) <= timezone.now() - coupon.status_changed_at < timedelta(hours=10) + A_WHILE

    @pytest.mark.django_db(transaction=True)
    def test_and_not_with_a_move_of_the_test(self):
        ticking = Ticking.objects.create()
        drain(Ticking, at=timedelta(minutes=2))
        assert_history(ticking, "FRESH", "STALE")
        ticking.refresh_from_db()
        ticking.states.transition_to("FRESH")
        drain(Ticking, at=timedelta(minutes=2, seconds=30))
        assert_state(ticking, "FRESH")
        drain(Ticking, at=timedelta(minutes=3, seconds=30))
        assert_state(ticking, "STALE")


class InATestCase(TestCase):
    def test_not_yet_and_then(self):
        ticking = Ticking.objects.create(status="STALE")
        drain(Ticking, at=timedelta(hours=23))
        assert_state(ticking, "STALE")
        drain(Ticking, at=timedelta(hours=25))
        assert_state(ticking, "GONE")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=4), st.lists(st.integers(0, 4000), min_size=1, max_size=4))
def test_it_does_what_a_simulation_says(db, starts, instants):
    """Rows fail at their start, and 60 s and 180 s after it, and move to FAILED the last time."""
    with transaction.atomic():
        now = timezone.now()
        rows = [Chore.objects.create(script={"NEW": "raise"}) for _ in starts]
        for row, start in zip(rows, starts, strict=True):
            row.states.run_at(now + timedelta(seconds=start))
        for instant in sorted(instants):
            drain(Chore, at=now + timedelta(seconds=instant, milliseconds=500))
            for row, start in zip(rows, starts, strict=True):
                row.refresh_from_db()
                tries = sum(start + later <= instant for later in (0, 60, 180))
                assert (row.status, row.status_failures) == (("FAILED", 0) if tries == 3 else ("NEW", tries))
                if tries == 3:
                    assert abs((row.states.history[0].transitioned_at - row.status_changed_at).total_seconds()) == 0
        assert findings(Chore.states._meta) == []
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    "make", [Crate.objects.create, lambda: Coupon.objects.create(code="AB-1"), Sensor.objects.create]
)
def test_keys_of_every_kind(make):
    row, other = make(), Ticking.objects.create()
    row.states.run_at(timezone.now() + timedelta(hours=2))
    drain(type(row), Ticking, at=timedelta(hours=1))
    assert_state(row, "NEW")
    drain(type(row), Ticking, at=timedelta(hours=3))
    assert_history(row, "NEW", "DONE")
    assert_state(other, "STALE")


class OnTheOther:
    """Lots are kept in the other database."""

    def db_for_read(self, model, **hints):
        return "other" if model in (Lot, Lot.states.transition_model) else None

    db_for_write = db_for_read


@pytest.mark.django_db(databases=["default", "other"])
def test_a_row_that_a_handler_makes_in_another_database_is_run(settings, monkeypatch):
    def make(self, state, ctx, otherwise):
        Lot.objects.create(status="SOLD")
        return "HELD"

    settings.DATABASE_ROUTERS = [OnTheOther()]
    monkeypatch.setattr(Chore, "play", make)
    chore = Chore.objects.create()
    chore.states.run_at(timezone.now() + timedelta(hours=2))
    assert drain(Chore, Lot, at=timedelta(hours=27)).deleted == 1
