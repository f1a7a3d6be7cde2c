"""What a `drain()` that fails leaves behind, and handlers that break the transaction of the test they run in."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from lab.models import Chore, Coupon, Payment, Run
from statemachine_fields.testing import assert_history, assert_state, drain

pytestmark = pytest.mark.django_db

A_WHILE = timedelta(seconds=20)
HOW = pytest.mark.parametrize("options", [{}, {"at": timedelta(minutes=1)}], ids=["collapsed", "until"])


@pytest.fixture
def play(monkeypatch):
    """Let a function be the handlers of chores."""

    def set_handler(function):
        monkeypatch.setattr(Chore, "play", lambda self, state, ctx, otherwise: function(self, otherwise))

    return set_handler


def insert_twice():
    for _ in range(2):
        Coupon.objects.create(code="AB-1")


def insert_twice_in_sql():
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO lab_run (id) VALUES (1)")


class TestAfterAFailureRowsCanBeRun:
    """As they could if it were a worker that failed: it gives back what it holds."""

    @HOW
    def test_of_a_handler_whose_error_was_raised(self, options):
        chores = [Chore.objects.create(script={"NEW": "raise"}, name="this") for _ in range(3)]
        with pytest.raises(ValueError, match="no luck with this"):
            drain(Chore, reraise=True, **options)
        assert not Chore.objects.exclude(status_lease_owner="").exists()
        Chore.objects.update(script={})
        drain(Chore, **options)
        for chore in chores:
            assert_history(chore, "NEW", "DOING", "DONE")

    @HOW
    def test_of_rows_that_go_to_and_fro(self, options):
        chores = [Chore.objects.create(script={"DOING": "NEW"}) for _ in range(3)]
        with pytest.raises(AssertionError, match="made 20 tries"):
            drain(Chore, max_tries=20, **options)
        Chore.objects.update(script={})
        drain(Chore, **options)
        for chore in chores:
            assert_state(chore, "DONE")

    @HOW
    def test_of_an_atomic_handler(self, options):
        payment = Payment.objects.create(fails=True)
        with pytest.raises(ValueError, match="the books do not balance"):
            drain(Payment, reraise=True, **options)
        Payment.objects.update(fails=False)
        drain(Payment, **options)
        assert_history(payment, "OPEN", "BOOKED")

    @HOW
    def test_of_a_handler_that_had_moved_its_row(self, options, play, caplog):
        def move_and_raise(chore, otherwise):
            chore.states.transition_to("HELD")
            raise ValueError("no luck")

        play(move_and_raise)
        chore = Chore.objects.create()
        with pytest.raises(ValueError, match="no luck"):
            drain(Chore, reraise=True, **options)
        assert_history(chore, "NEW", "HELD")
        assert "too late" not in caplog.text


class TestAHandlerThatBreaksTheTransaction:
    """A worker has none around a handler, so an error of the database is a failure like any other."""

    @HOW
    @pytest.mark.parametrize("fail", [insert_twice, insert_twice_in_sql])
    def test_has_failed(self, options, fail, play):
        play(lambda chore, otherwise: fail())
        chore = Chore.objects.create()
        options = {name: value * 10 for name, value in options.items()}
        assert drain(Chore, **options).failed == 2
        assert_history(chore, "NEW", "FAILED")
        assert "Error" in chore.states.history[0].metadata["error"]

    @HOW
    def test_raises_what_it_raised(self, options, play):
        play(lambda chore, otherwise: insert_twice())
        chore = Chore.objects.create()
        with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
            drain(Chore, reraise=True, **options)
        play(lambda chore, otherwise: otherwise)
        drain(Chore, **options)
        assert_state(chore, "DONE")

    @HOW
    def test_has_not_moved_its_row(self, options, play):
        def move_and_break(chore, otherwise):
            chore.states.transition_to("HELD")
            insert_twice()

        play(move_and_break)
        chore = Chore.objects.create()
        drain(Chore, **options)
        assert not chore.states.history.filter(to_status="HELD").exists()

    @HOW
    @pytest.mark.parametrize("is_marked", [True, False], ids=["marked by it", "not broken: there is none in a worker"])
    def test_loses_what_it_has_written_if_it_has_marked_it_itself(self, is_marked, options, play):
        def write(chore, otherwise):
            Run.objects.create(chore=chore.pk, state="NEW", attempt=1, token=1, pid=1)
            if is_marked:
                transaction.set_rollback(True)
            raise ValueError("no luck")

        play(write)
        chore = Chore.objects.create()
        assert drain(Chore, **options).failed
        assert Run.objects.filter(chore=chore.pk).exists() is not is_marked

    def test_after_it_has_waited_leaves_time_as_it_is(self, play):
        """Time passes in the database before the first statement of a try. It is no part of what the try has done."""
        tries = []

        def wait_and_break(chore, otherwise):
            tries.append(timezone.now() - chore.status_changed_at)
            if len(tries) == 4:
                insert_twice()

        play(wait_and_break)
        chore = Chore.objects.create()
        tally = drain(Chore, at=timedelta(minutes=10, seconds=30))
        assert (tally.waited, tally.failed) == (10, 1)
        chore.refresh_from_db()
        age = timezone.now() - chore.status_changed_at
        assert timedelta(minutes=10, seconds=30) <= age < timedelta(minutes=10, seconds=30) + A_WHILE

    @HOW
    def test_may_have_a_durable_block(self, options, play):
        def book(chore, otherwise):
            with transaction.atomic(durable=True):
                Run.objects.create(chore=chore.pk, state="NEW", attempt=1, token=1, pid=1)
            return otherwise

        play(book)
        chore = Chore.objects.create()
        drain(Chore, **options)
        assert_state(chore, "DONE")


def test_an_instance_that_cannot_be_copied_is_asked_each_time(monkeypatch):
    """One that has a lock, or an open connection to somewhere."""
    plain = Chore.__init__

    def init(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        self.lock = threading.Lock()

    monkeypatch.setattr(Chore, "__init__", init)
    Chore.objects.create(script={"NEW": None})
    assert drain(Chore, at=timedelta(minutes=5, seconds=30)).waited == 6
