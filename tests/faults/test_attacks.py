"""What a handler, a guard, a receiver or a database may do besides, and what must hold nevertheless."""

from __future__ import annotations

import re
import time

import pytest
from django.db import connections

from lab.models import AsyncStunt, AtomicStunt, Chore, Run, Stunt
from statemachine_fields.machine.verify import Verifier
from tests.faults.attacks import attacked
from tests.faults.harness import (
    backends,
    create_acts,
    create_chores,
    eventually_in,
    execute,
    is_long,
    let_leases_run_out,
    locked_table,
    told,
)
from tests.faults.proxy import Proxy
from tests.patience import eventually
from tests.sessions import waiting_for_locks

#: The start of a log record, where a traceback has many lines.
RECORD = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z]+ ", re.MULTILINE)

ALL = pytest.mark.parametrize("model", [Stunt, AtomicStunt, AsyncStunt], ids=["plain", "atomic", "async"])


def records(model):
    return model.states.transition_model.objects


def check_the_rest(model):
    """Check that no lease is left, that every history is unbroken, and that as many moves are told as were made."""
    held = model.objects.exclude(status_lease_owner="", status_lease_expires_at=None)
    assert not held.exists(), list(held.values("pk", "does", "status", "status_lease_owner"))
    assert not list(Verifier(model.states._meta).findings())
    assert told(model) == records(model).count()


# Exceptions.


@ALL
def test_an_exception_that_is_half_made_does_not_end_the_process(start_worker, model):
    """A subclass of TryAgainLater that does not call the `__init__()` of its base."""
    worker = start_worker(labels=[model._meta.label], environment=attacked())
    bad, *others = create_acts(model, "raise not yet", *[""] * 5)
    eventually_in("DONE", model, others)
    eventually(lambda: model.objects.get(pk=bad).status_lease_owner == "", "an outcome")
    assert "died" not in worker.log()
    assert worker.terminate() == 0
    check_the_rest(model)
    assert told(model, "recovered") == 0


@pytest.mark.parametrize("does", ["cancel itself and return", "cancel itself and raise", "cancel all"])
def test_a_coroutine_that_cancels_its_own_task_has_an_outcome(start_worker, does):
    """Its task ends without a result though nobody has stopped it: the row must not be held for ever."""
    worker = start_worker(labels=["lab.AsyncStunt"], environment=attacked())
    (bad,) = create_acts(AsyncStunt, does)
    eventually(lambda: AsyncStunt.objects.get(pk=bad).status in ("DONE", "FAILED"), "an outcome")
    assert worker.terminate() == 0
    check_the_rest(AsyncStunt)


# Connections.


def test_a_raw_transaction_of_a_coroutine_takes_no_write_of_others_along(start_worker):
    """BEGIN, past Django: while it sleeps its thread is wanted by another, whose writes must not be part of that."""
    worker = start_worker("--coroutine-connections", "1", labels=["lab.AsyncStunt"], environment=attacked())
    bad, other = create_acts(AsyncStunt, "sql: BEGIN", "write later", seconds=1)
    AsyncStunt.objects.filter(pk=other).update(seconds=0.3)
    eventually_in("DONE", AsyncStunt, [other, bad])
    assert worker.terminate() == 0
    assert Run.objects.filter(chore=other).count() == 1
    check_the_rest(AsyncStunt)


@ALL
@pytest.mark.parametrize(
    "leaves",
    [
        "SET search_path TO nowhere",
        "SET default_transaction_read_only TO on",
        "SET statement_timeout TO 1",
        "SELECT pg_advisory_lock(1)",
        "SET ROLE pg_monitor",
        "CREATE TEMP TABLE lab_run (a int)",
        "LISTEN something",
    ],
)
def test_what_a_handler_sets_on_its_connection_harms_no_other(start_worker, model, leaves):
    """One thread, so that the others have the same."""
    arguments = ["--coroutine-connections", "1"] if model is AsyncStunt else ["--threads", "1"]
    bad, *others = create_acts(model, f"sql: {leaves}", *[""] * 3)
    worker = start_worker(*arguments, labels=[model._meta.label], environment=attacked())
    # What is one transaction with its outcome may keep that from being written, which is then its own failure.
    eventually(lambda: model.objects.get(pk=bad).status in ("DONE", *["FAILED"] * (model is AtomicStunt)), "it ends")
    eventually_in("DONE", model, others)
    locks = execute("SELECT pid FROM pg_locks WHERE locktype = 'advisory'")
    assert {pid for (pid,) in locks} <= {*backends("listener")}
    assert worker.terminate() == 0
    assert Run.objects.filter(chore__in=others).count() == 3
    if model is not AtomicStunt:
        assert told(model, "failed") == 0
    check_the_rest(model)


@pytest.mark.parametrize("does", ["iterate", "break off"])
def test_a_thread_in_which_a_cursor_was_open_once_is_left_to_others(start_worker, does):
    """Later coroutines that ask once and sleep do not keep the only thread from those that want it."""
    worker = start_worker(
        "--coroutine-connections",
        "1",
        labels=["lab.AsyncStunt"],
        environment=attacked(),
        settings={"STOP_SECONDS": 0.1},
    )
    first = create_acts(AsyncStunt, *["ask and sleep"] * 5)
    eventually_in("DONE", AsyncStunt, first)
    first = create_acts(AsyncStunt, does)
    eventually_in("DONE", AsyncStunt, first)
    (slow,) = create_acts(AsyncStunt, "ask and sleep", seconds=20)
    eventually(lambda: Run.objects.filter(chore=slow).exists(), "it sleeps")
    quick = create_acts(AsyncStunt, *["ask and sleep"] * 5)
    eventually_in("DONE", AsyncStunt, quick)
    assert worker.terminate() == 0
    check_the_rest(AsyncStunt)


@pytest.mark.parametrize("does", ["gather", "nest", "outlive", "to thread", "iterate"])
def test_coroutines_use_the_orm_in_every_way(start_worker, does):
    worker = start_worker("--coroutine-connections", "2", labels=["lab.AsyncStunt"], environment=attacked())
    keys = create_acts(AsyncStunt, *[does] * 30)
    eventually_in("DONE", AsyncStunt, keys)
    more = create_acts(AsyncStunt, *["ask and sleep"] * 10)
    eventually_in("DONE", AsyncStunt, more)
    assert worker.terminate() == 0
    assert told(AsyncStunt, "failed") == 0
    assert "died" not in worker.log()
    check_the_rest(AsyncStunt)


def test_more_transactions_of_coroutines_than_there_are_threads(start_worker):
    worker = start_worker("--coroutine-connections", "2", labels=["lab.AsyncStunt"], environment=attacked())
    keys = create_acts(AsyncStunt, *["hold a transaction"] * 30, seconds=0.1)
    eventually_in("DONE", AsyncStunt, keys)
    assert worker.terminate() == 0
    assert Run.objects.count() == 60
    check_the_rest(AsyncStunt)


# What is told.


@pytest.mark.parametrize("model", [Stunt, AtomicStunt], ids=["plain", "atomic"])
@pytest.mark.parametrize("does", ["delete by another instance", "move by another instance"])
def test_a_row_that_its_handler_deletes_or_moves_is_told_as_it_is(start_worker, model, does):
    worker = start_worker(labels=[model._meta.label], environment=attacked())
    bad, other = create_acts(model, does, "")
    eventually_in("DONE", model, [other])
    eventually(lambda: not model.objects.filter(pk=bad, status="NEW").exists(), "gone or moved")
    assert worker.terminate() == 0
    assert told(model) == records(model).filter(instance__in=[bad, other]).count() or model is Stunt
    assert told(model) + told(model, "dropped") == 2


@pytest.mark.parametrize("receivers", ["failed", "claimed"])
def test_a_receiver_that_leaves_does_not_end_the_process(start_worker, receivers):
    worker = start_worker(labels=["lab.Stunt"], environment=attacked(receivers=receivers))
    keys = create_acts(Stunt, "nul", "")
    eventually_in("DONE", Stunt, keys[1:])
    eventually_in("FAILED", Stunt, keys[:1])
    assert worker.terminate() == 0
    assert "died" not in worker.log()
    assert "too late" not in worker.log()
    assert told(Stunt, "dropped") == 0
    check_the_rest(Stunt)


@pytest.mark.parametrize("model", [Stunt, AtomicStunt], ids=["plain", "atomic"])
def test_a_database_without_autocommit(start_worker, model):
    keys = create_acts(model, *[""] * 5)
    worker = start_worker(labels=[model._meta.label], environment=attacked(database={"AUTOCOMMIT": False}))
    eventually_in("DONE", model, keys)
    assert worker.terminate() == 0
    check_the_rest(model)


def test_two_tries_of_one_row_in_one_group_are_told_apart(start_worker):
    """The process took its own row again; both handlers end while the committer is busy."""
    worker = start_worker(
        pause={"handler.after": 3, "commit.before": 1},
        off=["beat"],
    )
    (chore,) = create_chores(1, status="DOING")
    worker.paused_at("handler.after", 1)
    let_leases_run_out()
    worker.paused_at("handler.after", 2)
    (other,) = create_chores(1, status="DOING")
    worker.paused_at("handler.after", 3)
    worker.go("handler.after", 3)
    worker.paused_at("commit.before", 1)
    worker.go("handler.after", 1)
    worker.go("handler.after", 2)
    execute("SELECT pg_sleep(0.3)")
    worker.go("commit.before", 1)
    eventually_in("DONE", Chore, [chore, other])
    assert worker.terminate() == 0
    assert told(Chore) == 2 == records(Chore).count()
    assert told(Chore, "dropped") == 1


# Time.


def test_of_a_coroutine_that_blocks_the_loop_it_is_not_said_that_its_time_was_up(start_worker):
    worker = start_worker(labels=["lab.AsyncStunt"], environment=attacked(), settings={"TIME_LIMIT_SECONDS": 3})
    create_acts(AsyncStunt, "only sleep", seconds=20, status="PATIENT")
    eventually(lambda: AsyncStunt.states.leased().exists(), "it runs")
    execute("SELECT pg_sleep(2.3)")
    (other,) = create_acts(AsyncStunt, "block the loop", seconds=1.5)
    eventually_in("DONE", AsyncStunt, [other])
    assert worker.terminate() == 0
    said = [line for line in worker.lines() if f"pk={other} failed" in line]
    assert not any("time limit" in line for line in said), said
    check_the_rest(AsyncStunt)


# Guards that ask the database.


def test_a_guard_that_meets_a_lock_does_not_keep_time_limits_from_being_kept(start_worker):
    """A row past its limit goes to `error_to`, which a guard is asked about. Its question waits for a lock."""
    worker = start_worker(
        labels=["lab.Stunt"],
        environment=attacked(guard=True),
        settings={"TIME_LIMIT_SECONDS": 1},
        constants={"supervisor.SILENCE": 6.0},
    )
    create_acts(Stunt, "sleep", "sleep", seconds=30)
    execute("UPDATE lab_stunt SET status_failures = 1")
    with locked_table("lab_noted"):
        eventually(lambda: Stunt.states.leased().count() == 2, "they run")
        execute("SELECT pg_sleep(9)")
        assert "silent" not in worker.log()
    assert worker.terminate() == 0
    check_the_rest(Stunt)


def test_a_guard_that_finds_no_database_does_not_park_the_row(server, start_worker):
    """The last try fails, and the guard of the move to `error_to` cannot ask: that is not for ever."""
    worker = start_worker(labels=["lab.Stunt"], environment=attacked(guard=True))
    (first,) = create_acts(Stunt, "")
    eventually_in("DONE", Stunt, [first])
    (key,) = create_acts(Stunt, "sleep and raise", seconds=2)
    execute("UPDATE lab_stunt SET status_failures = 1 WHERE id = %s", key)
    eventually(lambda: Stunt.states.leased().exists(), "it runs")
    server.stop("fast")
    time.sleep(3)
    server.start()
    eventually(lambda: not Stunt.objects.get(pk=key).status_lease_owner, "an outcome")
    execute("UPDATE lab_stunt SET status_next_at = now() WHERE status_next_at > now()")
    eventually_in("FAILED", Stunt, [key])
    assert worker.terminate() == 0


# Databases.


def test_statistics_in_a_silent_database_do_not_keep_rows_of_another_from_being_deleted(
    server, start_worker, other_database
):
    """The machine is in one database, and what is counted in another, which falls silent."""
    rows = Chore.objects.using("other")
    with Proxy(server.directory) as proxy:
        worker = start_worker("--database", "other", environment=attacked(database=proxy.place, other=other_database))
        rows.create(name="a", status="DOING", script={})
        eventually(lambda: rows.filter(status="DONE").exists(), "it works")
        eventually(lambda: told(Chore), "it is counted")
        proxy.silence_all()
        rows.create(name="b", status="DOING", script={})
        eventually(lambda: rows.filter(status="DONE").count() == 2, "it works")
        execute("SELECT pg_sleep(7)")
        with connections["other"].cursor() as cursor:
            cursor.execute(
                "UPDATE lab_chore SET status_changed_at = now() - interval '2 years', status_next_at = now() WHERE status = 'DONE'"
            )
        eventually(lambda: not rows.exists(), "they are deleted")
        proxy.speak()
        assert worker.terminate() == 0


def test_a_server_that_is_silent_on_new_connections_too_does_not_stop_the_process(server, start_worker):
    """To hang up takes a connection, to cancel the statement. Waiting for that must not keep the interpreter."""
    with Proxy(server.directory) as proxy:
        worker = start_worker(
            environment=attacked(database=proxy.place),
            settings={"LEASE_SECONDS": 4},
            constants={"supervisor.SILENCE": 6.0},
        )
        (first,) = create_chores(1, status="DOING")
        eventually_in("DONE", Chore, [first])
        proxy.silence_all()
        execute("SELECT pg_sleep(9)")
        proxy.speak()
        assert "is killed" not in worker.log()
        (key,) = create_chores(1, status="DOING")
        eventually_in("DONE", Chore, [key])
        assert worker.terminate() == 0


def test_no_question_of_the_worker_waits_long_for_a_lock(start_worker):
    """Also none that it asks as it starts."""
    with locked_table("lab_stunt"):
        start_worker(labels=["lab.Stunt"])
        seen = {}
        for _ in range(100):
            now = set(waiting_for_locks())
            seen = {pid: seen.get(pid, 0) + 1 for pid in now}
            assert max(seen.values(), default=0) < 20, execute(
                "SELECT application_name, query FROM pg_stat_activity WHERE pid = ANY(%s)", [*now]
            )
            execute("SELECT pg_sleep(0.1)")


@pytest.mark.parametrize(
    ("away", "back"),
    [
        (["ALTER TABLE lab_stunt RENAME TO lab_stunt_away"], "ALTER TABLE lab_stunt_away RENAME TO lab_stunt"),
        (
            ["REVOKE ALL ON lab_stunt FROM PUBLIC", "ALTER TABLE lab_stunt RENAME COLUMN status_error TO away"],
            "ALTER TABLE lab_stunt RENAME COLUMN away TO status_error",
        ),
    ],
    ids=["a table", "a column"],
)
def test_what_is_away_for_a_moment_costs_no_outcome(start_worker, away, back):
    """A migration renames a table or a column, and back. What was done meanwhile is written."""
    keys = create_acts(Stunt, *["sleep"] * 3, seconds=1)
    worker = start_worker(labels=["lab.Stunt"], environment=attacked())
    eventually(lambda: Stunt.states.leased().count() == 3, "they run")
    for statement in (*away, "SELECT pg_sleep(2)", back):
        execute(statement)
    eventually_in("DONE", Stunt, keys)
    assert worker.terminate() == 0
    check_the_rest(Stunt)


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE lab_stunt ADD COLUMN more int DEFAULT 5",
        "TRUNCATE lab_stunt CASCADE",
        "ALTER TABLE lab_stunt ALTER COLUMN note TYPE text",
        "ALTER TABLE lab_stunt ALTER COLUMN id TYPE bigint",
    ],
)
@pytest.mark.parametrize("model", [Stunt, AtomicStunt], ids=["plain", "atomic"])
def test_a_table_that_is_altered_meanwhile(start_worker, model, ddl):
    worker = start_worker(labels=[model._meta.label], environment=attacked())
    keys = create_acts(model, *["sleep"] * 40, seconds=0.05)
    eventually(lambda: model.objects.filter(status="DONE").count() > 5, "they run")
    execute(ddl.replace("lab_stunt", model._meta.db_table))
    keys = create_acts(model, *["sleep", ""] * 20, seconds=0.01)
    eventually_in("DONE", model, keys)
    assert worker.terminate() == 0
    assert "died" not in worker.log()
    assert told(model, "failed") == 0


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"isolation_level": 4}, {}),
        ({"isolation_level": 3}, {}),
        ({"server_side_binding": True}, {}),
        ({}, {"PREPARE": False}),
        ({"prepare_threshold": 1}, {"PREPARE": True}),
        ({"pool": True}, {}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "model",
    [AtomicStunt, *([Stunt, AsyncStunt] if is_long() else [])],
    ids=lambda model: model.__name__.lower(),
)
def test_options_of_a_database(start_worker, model, options, settings):
    keys = create_acts(model, *["", "update", "fork", "gather", "nul"] * 60)
    worker = start_worker(
        "--processes",
        "2",
        "--threads",
        "4",
        labels=[model._meta.label],
        environment=attacked(database={"OPTIONS": options}),
        settings=settings,
    )
    ok = [key for place, key in enumerate(keys) if place % 5 != 4]
    if (
        model is AtomicStunt and "isolation_level" in options
    ):  # where some conflict more than the few times that are forgiven
        left = model.objects.filter(pk__in=ok).exclude(status__in=["DONE", "FAILED"])
        eventually(lambda: not left.exists(), "all end")
    else:
        eventually_in("DONE", model, ok)
    if model is not AsyncStunt:
        eventually_in("FAILED", model, keys[4::5])
    assert worker.terminate() == 0
    assert "died" not in worker.log()
    assert "isolation_level" in options or told(model, "recovered") == 0  # heartbeats meet conflicts, too
    check_the_rest(model)
    assert len(RECORD.findall(worker.log())) < 60


def test_two_thousand_coroutines_far_away(server, start_worker):
    with Proxy(server.directory) as proxy:
        proxy.latency(0.075)
        keys = create_acts(AsyncStunt, *["only sleep"] * 2000, *["ask and sleep"] * 50, seconds=2)
        worker = start_worker(
            "--coroutines",
            "2000",
            labels=["lab.AsyncStunt"],
            environment=attacked(database=proxy.place),
            settings={"LEASE_SECONDS": 5, "TIME_LIMIT_SECONDS": 20},
        )
        eventually_in("DONE", AsyncStunt, keys)
        assert worker.terminate() == 0
    assert told(AsyncStunt, "recovered") == told(AsyncStunt, "dropped") == told(AsyncStunt, "failed") == 0
    check_the_rest(AsyncStunt)
