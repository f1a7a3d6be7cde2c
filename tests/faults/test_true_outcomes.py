"""What is written is what the handler said, of the row it was said of; and what is told is what was written."""

from __future__ import annotations

import re

import pytest
from django.db import transaction

from lab.models import AtomicStunt, Chore, HeardStunt, Locker, Lot, Run, SavedStunt, Stunt
from statemachine_fields.machine.verify import Verifier
from tests.faults.harness import check_invariants, create_acts, create_chores, eventually_in, execute, told
from tests.faults.injections import injected
from tests.faults.test_poison import wait_until_done
from tests.patience import eventually

#: A row of the server's own that a trigger waits for, as long as somebody else has it.
WAITS = """
    CREATE TABLE gate (id int);
    INSERT INTO gate VALUES (1);
    CREATE FUNCTION hinder() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF OLD.note = 'last' AND NEW.status = 'DONE' THEN PERFORM FROM gate FOR UPDATE; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER hinder BEFORE UPDATE ON lab_stunt FOR EACH ROW EXECUTE FUNCTION hinder();"""

#: As PostgreSQL says it to the one that it chose of several in each other's way, here to the first who come.
DEADLOCKS = """
    CREATE SEQUENCE tries;
    CREATE FUNCTION hinder() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF OLD.note = 'last' AND NEW.status = 'DONE' AND nextval('tries') <= 2 THEN
            RAISE EXCEPTION 'in each other''s way' USING ERRCODE = 'deadlock_detected';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER hinder BEFORE UPDATE ON lab_stunt FOR EACH ROW EXECUTE FUNCTION hinder();"""

#: A trigger by which nothing happens, and nobody is told.
SWALLOWS_MOVES = """
    CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.name = '7' AND NEW.status = 'DONE' THEN RETURN NULL; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER swallow BEFORE UPDATE ON lab_chore FOR EACH ROW EXECUTE FUNCTION swallow();"""

SWALLOWS_DELETIONS = """
    CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF OLD.amount = 7 THEN RETURN NULL; END IF;
        RETURN OLD;
    END $$;
    CREATE TRIGGER swallow BEFORE DELETE ON lab_lot FOR EACH ROW EXECUTE FUNCTION swallow();"""


def records(model):
    return model.states.transition_model.objects


def last_count(worker, what):
    """Return a count of the last status line of a worker."""
    *_, line = [line for line in worker.log().splitlines() if " moved · " in line]
    found = re.search(rf"([\d,]+) {what}", line)
    return int(found[1].replace(",", "")) if found else 0


def check_what_is_told(worker, model):
    """Check that what a worker which has stopped said of moves is what is recorded, and that nothing else is said."""
    number = records(model).count()
    assert (told(model), last_count(worker, "moved")) == (number, number)
    assert told(model, "dropped") == 0
    assert not list(Verifier(model.states._meta).findings())
    assert not model.objects.exclude(status_lease_owner="", status_lease_expires_at=None).exists()


# Groups.


@pytest.mark.parametrize("hindrance", ["a lock that is not given in time", "a deadlock"])
def test_a_group_whose_last_row_meets_a_conflict_is_told_as_it_is_written(server, start_worker, hindrance):
    """The others are moved, once, and nobody takes them for left behind. The last one is moved when it can be."""
    is_lock = "lock that" in hindrance
    hindered = "due to lock timeout" if is_lock else "in each other's way"
    execute(WAITS if is_lock else DEADLOCKS)
    *others, last = create_acts(Stunt, *["update"] * 12)
    Stunt.objects.filter(pk=last).update(note="last")
    before = len(server.log())
    worker = start_worker(
        "--threads",
        "1",
        labels=["lab.Stunt"],
        pause={"commit.before": 1},
        environment=injected(database={"OPTIONS": {"options": "-c lock_timeout=200"}}),
    )
    worker.paused_at("commit.before")
    eventually(lambda: Run.objects.count() == 12, "all handlers were called, and all but the first wait for one write")
    with transaction.atomic():
        if is_lock:
            execute("SELECT FROM gate FOR UPDATE")
        worker.go("commit.before")
        eventually_in("DONE", Stunt, others)
        eventually(lambda: hindered in server.log()[before:], "the last one was tried")
    eventually_in("DONE", Stunt, [last])
    assert worker.terminate() == 0
    assert Run.objects.filter(chore__in=others).count() == 11, "no handler ran again"
    assert told(Stunt, "recovered") == 0
    check_what_is_told(worker, Stunt)


# The row that is meant.


@pytest.mark.parametrize(
    ("model", "does"),
    [(Stunt, "copy and update"), (SavedStunt, "copy and move"), (HeardStunt, "copy and move")],
    ids=["with an update", "with a save() of its own", "with a receiver"],
)
def test_a_handler_that_copies_its_row_moves_the_row_and_not_the_copy(start_worker, model, does):
    """Django's recipe for a copy leaves the handler with the copy in its hands."""
    (original,) = create_acts(model, does)
    worker = start_worker(labels=[model._meta.label])
    eventually_in("DONE", model, [original])
    assert worker.terminate() == 0
    copy = model.objects.exclude(pk=original).get()
    assert copy.status == "NEW"
    assert copy.note == "", "the update is the original's"
    (record,) = records(model).all()
    assert record.instance_id == original
    assert (told(model), told(model, "dropped")) == (1, 0)
    assert Run.objects.filter(chore=original).count() == 1


@pytest.mark.parametrize(("model", "does"), [(Stunt, ""), (Stunt, "update"), (SavedStunt, ""), (AtomicStunt, "update")])
def test_a_worker_of_another_database_moves_its_rows_whatever_the_router_says(
    start_worker, other_database, model, does
):
    """A router that knows one database only. A row there with the same key and the same token is another row."""
    model.objects.using("other").create(pk=5, does=does)
    model.objects.create(pk=5, does=does)
    # As if it were claimed already: the worker's next token is the one that this row has.
    execute(f"UPDATE {model._meta.db_table} SET status_lease_token = 1")
    before = model.objects.values().get()
    routers = ["tests.faults.injections.Stubborn"]
    worker = start_worker(
        "--database", "other", labels=[model._meta.label], environment=injected(other=other_database, routers=routers)
    )
    rows = model.objects.using("other")
    eventually(lambda: rows.get().status == "DONE" or model.objects.get().status == "DONE", "one of the two is moved")
    assert model.objects.values().get() == before
    eventually(lambda: rows.get().status == "DONE", "the row is moved")
    assert worker.terminate() == 0
    assert records(model).count() == 0
    assert records(model).using("other").count() == 1
    assert rows.get().note == ("written" if does == "update" else "")
    assert told(model, "recovered") == 0


# Transactions that do not end as they look.


@pytest.mark.parametrize("model", [AtomicStunt, HeardStunt], ids=["handler", "receiver"])
def test_what_is_rolled_back_without_an_error_is_not_told_as_moved(start_worker, model):
    """`set_rollback(True)`, and on it goes as if nothing were the matter. It is a failure of the row."""
    bad, *others = create_acts(model, "roll back", *[""] * 5, status="PATIENT")
    worker = start_worker(labels=[model._meta.label])
    eventually_in("DONE", model, others)
    failed = model.objects.filter(pk=bad, status_failures=1, status_lease_expires_at=None)
    eventually(failed.exists, "a failure is counted")
    assert worker.terminate() == 0
    assert model.objects.get(pk=bad).status == "PATIENT"
    assert records(model).count() == 5
    check_what_is_told(worker, model)


@pytest.mark.parametrize("model", [AtomicStunt, HeardStunt], ids=["handler", "receiver"])
def test_a_move_stands_whatever_is_raised_after_its_commit(start_worker, model):
    """An `on_commit` that raises. The move is told as one, the handler is not run again, and the error is to be read."""
    bad, *others = create_acts(model, "raise after the commit", *[""] * 5)
    worker = start_worker(labels=[model._meta.label])
    eventually_in("DONE", model, [bad, *others])
    assert worker.terminate() == 0
    assert Run.objects.filter(chore=bad).count() == 1
    check_what_is_told(worker, model)
    assert told(model, "failed") == 0
    assert "after the commit" in worker.log()


# Triggers that do nothing.


def test_a_move_that_a_trigger_swallows_is_told_of_once(start_worker):
    """RETURN NULL: neither an error nor a row. The neighbours are done, and the worker can be stopped."""
    execute(SWALLOWS_MOVES)
    chores = create_chores(20, status="DOING")
    bad = chores[7]
    worker = start_worker(settings={"STOP_SECONDS": 1.0})
    wait_until_done(set(chores) - {bad})
    mentioned = re.compile(rf"pk={bad}\b")
    eventually(lambda: mentioned.search(worker.log()), "the log says so")
    execute("SELECT pg_sleep(1)")
    assert len(mentioned.findall(worker.log())) <= 2
    assert worker.terminate() == 0
    check_invariants(moves=19, released=True)
    assert told(Chore) == 19


def test_a_move_that_a_trigger_swallows_does_not_keep_its_lease_when_the_worker_stops(start_worker):
    """The stop comes as soon as there is something to write: what cannot be written is given back."""
    execute(SWALLOWS_MOVES)
    bad = create_chores(20, status="DOING")[7]
    worker = start_worker(settings={"STOP_SECONDS": 1.0})
    done = Chore.objects.filter(status="DONE")
    eventually(lambda: done.count() == 19, "the neighbours are done")
    assert worker.terminate() == 0
    assert Chore.objects.get(pk=bad).status == "DOING"
    check_invariants(moves=19, released=True)


def test_a_deletion_that_a_trigger_swallows_is_not_told_as_one(start_worker):
    """RETURN NULL before DELETE. The row is there, so it was not deleted."""
    execute(SWALLOWS_DELETIONS)
    kept, *others = [lot.pk for lot in Lot.objects.bulk_create([Lot(amount=amount) for amount in (7, 1, 2, 3)])]
    execute("UPDATE lab_lot SET status = 'SOLD', status_changed_at = now() - interval '2 days', status_next_at = now()")
    worker = start_worker(labels=["lab.Lot"], settings={"STOP_SECONDS": 1.0})
    eventually(lambda: not Lot.objects.filter(pk__in=others).exists(), "the others are deleted")
    assert worker.terminate() == 0
    assert Lot.objects.get().pk == kept
    assert told(Lot, "deleted") == 3
    assert not Lot.states.leased().exists()


# Deaths.


@pytest.mark.parametrize("status", ["NEW", "PATIENT"], ids=["with error_to", "without"])
@pytest.mark.parametrize("does", ["exit 0", "exit 75"])
def test_a_handler_that_ends_its_process_is_a_crash_whatever_the_exit_code(start_worker, does, status):
    """Also with `--once`: the row is tried again and given up, its neighbours are done, and no lease is left."""
    *others, bad = create_acts(Stunt, *[""] * 5, does, status=status)
    worker = start_worker("--once", "--threads", "1", labels=["lab.Stunt"], settings={"MAX_CRASHES": 2})
    assert worker.wait() == 0
    row = Stunt.objects.get(pk=bad)
    assert row.status == ("FAILED" if status == "NEW" else "PATIENT")
    assert Stunt.states.parked().filter(pk=bad).exists() == (status == "PATIENT")
    assert Run.objects.filter(chore=bad).count() == 2
    assert not Stunt.objects.filter(pk__in=others).exclude(status="DONE").exists()
    assert not Stunt.objects.exclude(status_lease_owner="", status_lease_expires_at=None).exists()
    if status == "NEW":
        assert records(Stunt).get(instance=bad).metadata["crashes"] == 2


# Values.


def test_rows_whose_key_differs_between_python_and_the_database_are_moved(start_worker):
    """A field with `from_db_value()` whose `to_python()` leaves a text as it is."""
    Locker.objects.bulk_create([Locker(code=number, note="update" if number % 2 else "") for number in range(1, 11)])
    worker = start_worker(labels=["lab.Locker"])
    eventually(lambda: Locker.objects.filter(status="DONE").count() == 10, "all are moved")
    assert worker.terminate() == 0
    assert (told(Locker), told(Locker, "dropped"), told(Locker, "recovered")) == (10, 0, 0)
    assert {row.code for row in Locker.objects.filter(note="written")} == {1, 3, 5, 7, 9}
    recorded = {key for (key,) in execute("SELECT instance_id FROM lab_lockerstatetransition")}
    assert recorded == {f"k-{number}" for number in range(1, 11)}
    assert not Locker.states.leased().exists()


@pytest.mark.parametrize("column", ["status_changed_at = '0044-03-15 BC'", "status_next_at = '-infinity'"])
def test_a_time_that_python_does_not_know_does_not_stop_the_neighbours(start_worker, column):
    """Written by hand, in SQL. Whatever becomes of that row, the others of its state are done."""
    bad, *others = create_chores(10, status="DOING")
    execute(f"UPDATE lab_chore SET {column} WHERE id = %s", bad)
    worker = start_worker()
    wait_until_done(others)
    assert worker.terminate() == 0
    assert "died" not in worker.log()
    assert told(Chore, "recovered") == 0
    assert Chore.states.transition_model.objects.filter(instance__in=others).count() == 9
    ((lease,),) = execute("SELECT status_lease_expires_at::text FROM lab_chore WHERE id = %s", bad)
    assert lease is None


def test_an_exception_as_the_error_of_a_retry_is_told_in_its_own_words(start_worker):
    """`Retry(error=exception)`, as people write it."""
    (bad,) = create_acts(Stunt, "retry with an exception", status="PATIENT")
    worker = start_worker(labels=["lab.Stunt"])
    row = eventually(lambda: Stunt.objects.filter(pk=bad, status_failures=1).first(), "a failure is counted")
    assert "the exception's own words" in row.status_error
    assert worker.terminate() == 0
    assert Run.objects.count() == 1
