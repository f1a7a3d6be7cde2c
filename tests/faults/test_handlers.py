"""Whatever a handler does harms nobody else: not its neighbours, not its thread, not its process."""

from __future__ import annotations

import re

import pytest
from django.db import transaction

from lab.models import AsyncStunt, AtomicStunt, Run, Stunt
from statemachine_fields.machine.verify import Verifier
from tests.faults.harness import NEVER, backends, create_acts, eventually_in, execute, told
from tests.patience import eventually

LEAKS = ["leave a block open", "leave autocommit off"]

RAISES = ["mute", "interrupt", "cancel", "foreign", "generator exit", "system exit"]

#: The start of a log record, where a traceback has many lines.
RECORD = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z]+ ", re.MULTILINE)


def records(model):
    return model.states.transition_model.objects


def check_the_rest(model):
    """Check that no lease is left and that every history is unbroken."""
    assert not model.objects.exclude(status_lease_owner="", status_lease_expires_at=None).exists()
    assert not list(Verifier(model.states._meta).findings())


# Transactions that are left open.


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("when", ["meanwhile", "later"])
def test_a_transaction_that_a_coroutine_leaves_open_takes_no_write_of_others_along(start_worker, leak, when):
    """What neighbours write by the ORM is there when they are done, whether they run beside the bad one or after it."""
    worker = start_worker(labels=["lab.AsyncStunt"])
    if when == "meanwhile":  # it leaks, its neighbours write, and then it ends
        bad, *others = create_acts(AsyncStunt, leak, *["write later"] * 5, seconds=0.5)
        AsyncStunt.objects.filter(pk=bad).update(seconds=1.5)
    else:
        (bad,) = create_acts(AsyncStunt, leak)
        eventually_in("DONE", AsyncStunt, [bad])
        others = create_acts(AsyncStunt, *[""] * 5)
    eventually_in("DONE", AsyncStunt, others)
    eventually(lambda: AsyncStunt.objects.get(pk=bad).status != "NEW", "the bad one has an outcome")
    assert worker.terminate() == 0
    assert set(Run.objects.filter(chore__in=others).values_list("chore", flat=True)) == set(others)
    check_the_rest(AsyncStunt)


@pytest.mark.parametrize("model", [Stunt, AtomicStunt], ids=["plain", "atomic"])
@pytest.mark.parametrize("leak", LEAKS)
def test_a_thread_whose_handler_left_a_transaction_open_serves_those_that_follow(start_worker, model, leak):
    """One thread, so that nobody else can do it. The others are run once, without a failure and without a delay."""
    bad, *others = create_acts(model, leak, *[""] * 5)
    worker = start_worker("--threads", "1", labels=[model._meta.label])
    eventually_in("DONE", model, others)
    eventually(lambda: model.objects.get(pk=bad).status != "NEW", "the bad one has an outcome")
    assert worker.terminate() == 0
    assert sorted(Run.objects.filter(chore__in=others).values_list("chore", flat=True)) == others
    assert told(model, "waited") == 0
    assert not records(model).filter(instance__in=others).exclude(to_status="DONE").exists()
    assert told(model, "failed") <= 1
    assert (told(model), told(model, "recovered")) == (records(model).count(), 0)
    check_the_rest(model)


# Connections that break.


def test_coroutines_use_the_database_again_after_their_connection_was_cut(start_worker):
    """The one that was at it is tried again, and those that come later do not notice."""
    worker = start_worker(labels=["lab.AsyncStunt"])
    (first,) = create_acts(AsyncStunt, "say who serves", seconds=1, status="LATE")
    backend = eventually(lambda: Run.objects.filter(state="backend").first(), "it says who serves it").pid
    AsyncStunt.objects.update(seconds=0)
    ((was_there,),) = execute("SELECT pg_terminate_backend(%s)", backend)
    assert was_there
    later = create_acts(AsyncStunt, *[""] * 5)
    eventually_in("DONE", AsyncStunt, later)
    eventually_in("DONE", AsyncStunt, [first])
    assert worker.terminate() == 0
    assert set(Run.objects.filter(chore__in=later).values_list("chore", flat=True)) == set(later)
    check_the_rest(AsyncStunt)


@pytest.mark.parametrize("model", [Stunt, AtomicStunt], ids=["plain", "atomic"])
def test_a_handler_that_uses_a_closed_cursor_has_failed(start_worker, model):
    """An error of the driver's without a code is not yet a database that is away."""
    bad, *others = create_acts(model, "use a closed cursor", *[""] * 5)
    worker = start_worker(labels=[model._meta.label])
    eventually_in("DONE", model, others)
    eventually_in("FAILED", model, [bad])
    facts = records(model).get(instance=bad).metadata
    assert facts["attempts"] == 2
    assert "cursor is closed" in facts["error"]
    assert "cursor is closed" in worker.log()
    assert worker.terminate() == 0
    check_the_rest(model)


def test_a_handler_that_uses_a_closed_cursor_is_timed_out(start_worker):
    """Past its time a row does not loop."""
    (bad,) = create_acts(Stunt, "use a closed cursor", status="LATE")
    execute("UPDATE lab_stunt SET status_changed_at = now() - interval '1 hour'")
    worker = start_worker(labels=["lab.Stunt"])
    eventually_in("FAILED", Stunt, [bad])
    assert records(Stunt).get().metadata["timeout_after"] == 60
    assert worker.terminate() == 0
    assert Run.objects.count() == 1
    check_the_rest(Stunt)


# Locks.


def test_atomic_handlers_that_do_not_wait_for_a_lock_wait_for_their_turn(start_worker):
    """`nowait` on a row that somebody keeps, in as many rows as a worker takes at once: those behind them run all the
    same, and the log can be read. Later they are moved."""
    wanted = Run.objects.create(chore=0, state="wanted", attempt=0, token=0, pid=0)
    keys = create_acts(AtomicStunt, *["lock without waiting"] * 10, *[""] * 20, status="PATIENT")
    bad, others = keys[:10], keys[10:]
    with transaction.atomic():
        Run.objects.select_for_update().get(pk=wanted.pk)
        worker = start_worker(labels=["lab.AtomicStunt"])
        eventually_in("DONE", AtomicStunt, others)
        execute("SELECT pg_sleep(1)")
        assert len(RECORD.findall(worker.log())) < 40
        assert AtomicStunt.objects.filter(pk__in=bad, status="PATIENT").count() == 10

    def are_done():
        execute("UPDATE lab_atomicstunt SET status_next_at = now() WHERE status_next_at > now()")
        return not AtomicStunt.objects.exclude(status="DONE").exists()

    eventually(are_done, "they are moved")
    assert worker.terminate() == 0
    assert told(AtomicStunt) == records(AtomicStunt).count() == 30
    check_the_rest(AtomicStunt)


def test_an_atomic_handler_whose_lock_is_never_free_is_given_up(start_worker):
    """Sooner or later that is a failure, as the policy counts them."""
    wanted = Run.objects.create(chore=0, state="wanted", attempt=0, token=0, pid=0)
    (bad,) = create_acts(AtomicStunt, "lock without waiting")
    with transaction.atomic():
        Run.objects.select_for_update().get(pk=wanted.pk)
        worker = start_worker(labels=["lab.AtomicStunt"])
        eventually_in("FAILED", AtomicStunt, [bad])
    assert "lock" in records(AtomicStunt).get().metadata["error"]
    assert worker.terminate() == 0
    assert len(RECORD.findall(worker.log())) < 30
    check_the_rest(AtomicStunt)


# Coroutines that take their time.


def test_slow_coroutines_leave_the_threads_to_others(start_worker):
    """More of them than may run at once. Rows of another machine, whose handlers are no coroutines, do not wait."""
    create_acts(AsyncStunt, *["only sleep"] * 150, seconds=NEVER)
    worker = start_worker("--coroutines", "100", labels=["lab.AsyncStunt", "lab.Stunt"], settings={"STOP_SECONDS": 0.1})
    eventually(lambda: AsyncStunt.states.leased().count() == 100, "as many run as may")
    quick = create_acts(Stunt, *[""] * 10)
    eventually_in("DONE", Stunt, quick)
    assert not AsyncStunt.objects.filter(status="DONE").exists()
    assert worker.terminate() == 0
    check_the_rest(AsyncStunt)


# Whatever is raised.


@pytest.mark.parametrize("model", [Stunt, AtomicStunt, AsyncStunt], ids=["plain", "atomic", "async"])
def test_whatever_a_handler_raises_is_a_failure_and_its_process_goes_on(start_worker, model):
    """Two tries each, of the same process, which serves those that were there and those that come."""
    (first,) = create_acts(model, "")
    worker = start_worker(labels=[model._meta.label])
    eventually_in("DONE", model, [first])
    processes = worker.children()
    keys = create_acts(model, *RAISES, *[""] * 10)
    bad, others = keys[: len(RAISES)], keys[len(RAISES) :]
    eventually_in("DONE", model, others)
    eventually_in("FAILED", model, bad)
    more = create_acts(model, *[""] * 10)
    eventually_in("DONE", model, more)
    assert worker.children() == processes
    for key, does in zip(bad, RAISES, strict=True):
        assert records(model).get(instance=key).metadata["attempts"] == 2, does
    assert worker.terminate() == 0
    assert "died" not in worker.log()
    assert len({run.pid for run in Run.objects.all()}) == 1
    assert told(model, "recovered") == 0
    check_the_rest(model)


@pytest.mark.parametrize("does", ["subtask leaves", "await a subtask that leaves", "stop the loop"])
def test_what_a_handler_does_to_the_event_loop_harms_no_other(start_worker, does):
    """The row is done or has failed; those beside it and those that come later are done, by the same process."""
    (first,) = create_acts(AsyncStunt, "")
    worker = start_worker(labels=["lab.AsyncStunt"])
    eventually_in("DONE", AsyncStunt, [first])
    processes = worker.children()
    bad, *others = create_acts(AsyncStunt, does, *["write later"] * 5, seconds=0.3)
    eventually_in("DONE", AsyncStunt, others)
    eventually(lambda: AsyncStunt.objects.get(pk=bad).status in ("DONE", "FAILED"), "the bad one ends")
    more = create_acts(AsyncStunt, *[""] * 5)
    eventually_in("DONE", AsyncStunt, more)
    assert worker.children() == processes
    assert worker.terminate() == 0
    assert "died" not in worker.log()
    assert Run.objects.filter(chore__in=[*others, *more]).count() == 10, "each was run once"
    assert told(AsyncStunt, "recovered") == 0
    check_the_rest(AsyncStunt)


def test_a_thread_keeps_its_connection_from_one_row_to_the_next(start_worker):
    """To connect takes longer than most handlers. Only a connection on which something was left is given up."""
    keys = create_acts(Stunt, *[""] * 10)
    worker = start_worker("--threads", "1", labels=["lab.Stunt"])
    eventually_in("DONE", Stunt, keys)
    before = backends("handler")
    more = create_acts(Stunt, *[""] * 10)
    eventually_in("DONE", Stunt, more)
    assert len(before) == 1
    assert backends("handler") == before
    assert worker.terminate() == 0
