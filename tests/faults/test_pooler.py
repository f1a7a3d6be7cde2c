"""A transaction pooler between workers and database: each statement may meet another connection."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from django.db import connections

from lab.models import Booking, Chore, Letter, Loan, Noted, Payment
from statemachine_fields.machine.verify import Verifier
from statemachine_fields.schedule import wakeups
from tests.faults.harness import (
    EXTENDED,
    MARKED,
    NEVER,
    check_invariants,
    create_chores,
    eventually_in,
    execute,
    is_gate_held,
    marks_of,
    wait_until_all,
)
from tests.faults.injections import injected
from tests.patience import eventually
from tests.server import Server

PORT, POOL = 6432, 3

#: Starts it again whenever it ends, until the keeper ends it all. What a shell starts so does not hear SIGQUIT.
AGAIN_AND_AGAIN = """
    trap 'kill -KILL "$pid"; exit 1' QUIT
    while :; do "$@" & pid=$!; wait "$pid"; done"""

#: What Django wants to be told behind such a pooler.
TOLD = {"DISABLE_SERVER_SIDE_CURSORS": True}

#: All kinds of handlers: plain, with a transaction of its own, async, atomic.
KINDS = {Chore: "DONE", Loan: "DONE", Letter: "DONE", Payment: "BOOKED"}
LABELS = [model._meta.label for model in KINDS]

#: What PgBouncer itself sets anew for each client.
TRACKED = {"application_name", "client_encoding", "DateStyle", "standard_conforming_strings", "TimeZone"}

#: Few connections for many clients, so that statements do meet others. 1.21 and later would keep prepared statements.
CONFIGURATION = """
    [databases]
    * = host={server} user=postgres
    [pgbouncer]
    pool_mode = transaction
    auth_type = any
    listen_addr =
    listen_port = {port}
    unix_socket_dir = {directory}
    default_pool_size = {pool}
    max_client_conn = 200
    max_prepared_statements = 0
    ignore_startup_parameters = extra_float_digits,options
    logfile = {directory}/log
    pidfile = {directory}/pid"""


@pytest.fixture(scope="module")
def pgbouncer(server):
    program = shutil.which("pgbouncer", path="/usr/local/bin:/usr/bin:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed (Debian: `apt install pgbouncer`)")
    bouncer = Server("pgbouncer")
    directory: Path = bouncer.directory
    settings = {"server": server.directory, "directory": directory, "port": PORT, "pool": POOL}
    lines = CONFIGURATION.format(**settings).splitlines()
    version = [line for line in lines if "max_prepared_statements" not in line or _keeps_statements(program)]
    (directory / "ini").write_text("\n".join(line.strip() for line in version))
    again: list[str | Path] = ["/bin/sh", "-c", AGAIN_AND_AGAIN, "again", program, directory / "ini"]
    bouncer.start(["true"], again, (directory / f".s.PGSQL.{PORT}").exists)
    yield directory
    bouncer.stop()


def _keeps_statements(program):
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = re.findall(r"\d+", said)[:2]
    return (int(major), int(minor)) >= (1, 21)


@pytest.fixture
def start_pooled(pgbouncer, start_worker):
    """A function that starts a worker behind the pooler."""

    def start(*arguments, database=None, **options):
        place = {"HOST": str(pgbouncer), "PORT": str(PORT), **(database or {})}
        return start_worker(*arguments, environment=injected(database=place), **options)

    return start


def test_a_worker_drains_behind_a_transaction_pooler(start_pooled):
    """#28: no session state is needed. I1, I2, I3, I8."""
    create_chores(2000)
    worker = start_pooled("--processes", "2", database={"DISABLE_SERVER_SIDE_CURSORS": True})
    wait_until_all("DONE")
    assert worker.terminate() == 0
    assert "lost a prepared statement" not in worker.log()
    assert "has no database" not in worker.log()
    check_invariants(moves=4000, terminal=True, released=True)


def test_statements_that_a_pooler_loses_are_sent_again(start_pooled):
    """#28 with PREPARE left at auto, and nobody said that there is a pooler. I1, I2, I3, I8: slower, and correct."""
    create_chores(1000)
    Payment.objects.bulk_create([Payment() for _ in range(100)])
    Noted.objects.bulk_create([Noted() for _ in range(100)])
    worker = start_pooled("--processes", "2", labels=["lab.Chore", "lab.Payment", "lab.Noted"])
    wait_until_all("DONE")
    eventually(lambda: not Payment.objects.exclude(status="BOOKED").exists(), "atomic handlers, too")
    eventually(lambda: not Noted.objects.exclude(status="DONE").exists(), "and what is written row by row")
    assert Booking.objects.count() == 100
    assert worker.terminate() == 0
    assert "lost a prepared statement" in worker.log()
    assert " failed in state" not in worker.log()
    for model in (Payment, Noted):
        assert not list(Verifier(model.states._meta).findings())
    assert not Chore.objects.filter(status_crashes__gt=0).exists()
    check_invariants(moves=2000, terminal=True, released=True)


def create_all_kinds(number, **options):
    create_chores(number, script=lambda _: MARKED)
    for model in (Loan, Letter):
        model.objects.bulk_create([model(**options) for _ in range(number)])
    Payment.objects.bulk_create([Payment() for _ in range(number)])


def wait_for_all_kinds():
    for model, end in KINDS.items():
        wait_until_all(end, model=model)


def check_all_kinds(number):
    """Every row has made its way once, what its handler wrote with the move is there once, and no transaction is open."""
    for model in KINDS:
        check_invariants(model, moves=(2 if model is Chore else 1) * number, terminal=True, released=True)
        assert not model.objects.filter(status_failures__gt=0).exists()
    assert Booking.objects.count() == number
    assert not open_transactions()


def open_transactions():
    return execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state ~ '^idle in transaction'"
    )


def test_processes_killed_behind_a_pooler(start_pooled, chance):
    """kill -9 under load, with handlers of all kinds. I1, I2, I3, I8: as without a pooler."""
    create_all_kinds(100, pause=0.02)
    workers = [start_pooled("--processes", "2", labels=LABELS, database=TOLD, settings=EXTENDED) for _ in range(2)]
    eventually(Chore.states.transition_model.objects.exists, "work is under way")
    for _ in range(10):
        processes = eventually(lambda: sorted(pid for worker in workers for pid in worker.children()), "some live")
        workers[0].kill(chance.choice(processes))
        time.sleep(chance.uniform(0.1, 0.4))
    wait_for_all_kinds()
    for worker in workers:
        assert worker.terminate() == 0
    check_all_kinds(100)


def test_a_stop_behind_a_pooler_leaves_no_lease(start_pooled):
    """SIGTERM under load, again and again: what waits for its turn at the pooler is not left behind. I8."""
    create_all_kinds(300, pause=0.02)
    records = Chore.states.transition_model.objects
    for least in (50, 150, 250):
        worker = start_pooled("--processes", "3", labels=LABELS, database=TOLD)
        eventually(lambda least=least: records.count() >= least, "work is under way")
        assert worker.terminate() == 0
        for model in KINDS:
            check_invariants(model, released=True)
    assert sum(model.objects.exclude(status=end).count() for model, end in KINDS.items()), "it was under load"
    assert not Chore.objects.filter(status_crashes__gt=0).exists()


def test_a_claim_that_waits_while_the_worker_stops_behind_a_pooler_leaves_no_lease(start_pooled):
    """A table is locked, as by a migration, when SIGTERM comes: the claim must not be done when the worker is gone. I8."""
    create_chores(20)
    busy = "FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()"
    with closing(connections.create_connection("default")) as migration:
        migration.set_autocommit(False)
        with migration.cursor() as cursor:
            cursor.execute("LOCK TABLE lab_chore IN EXCLUSIVE MODE")
        worker = start_pooled(database=TOLD, settings={"STOP_SECONDS": 1.0})
        eventually(lambda: execute(f"SELECT pid {busy} AND wait_event_type = 'Lock'"), "a claim waits for the table")
        assert worker.terminate() == 0
        migration.rollback()
    eventually(lambda: not execute(f"SELECT pid {busy}"), "nothing of the worker's is under way")
    check_invariants(moves=0, released=True)


def test_more_transactions_than_a_pooler_has_connections(start_pooled):
    """Handlers that keep a transaction open share the pool with the worker's own statements. I1, I2, I3, I8."""
    Loan.objects.bulk_create([Loan(pause=0.3) for _ in range(24)])
    create_chores(200)
    worker = start_pooled(
        "--threads", "8", labels=["lab.Loan", "lab.Chore"], database=TOLD, settings={"LEASE_SECONDS": 60.0}
    )
    wait_until_all("DONE", model=Loan)
    wait_until_all("DONE")
    assert worker.terminate() == 0
    assert " WARNING " not in worker.log()
    check_invariants(Loan, moves=24, terminal=True, released=True)
    assert marks_of(Loan).count() == 24
    check_invariants(moves=400, terminal=True, released=True)


@pytest.mark.parametrize("leaves", ["block", "autocommit"])
def test_a_transaction_that_a_handler_leaves_open_ends_with_it(start_pooled, leaves):
    """Neither the next handler of the thread nor another client of the pooler goes on in it, and none is left open."""
    for place in range(30):
        Loan.objects.create(leaves=leaves if place % 3 == 0 else "")
    worker = start_pooled("--threads", "2", labels=["lab.Loan"], database=TOLD)
    wait_until_all("DONE", model=Loan)
    assert worker.terminate() == 0
    check_invariants(Loan, moves=30, terminal=True, released=True)
    assert not Loan.objects.filter(status_failures__gt=0).exists()
    kept = {int(key) for key in marks_of(Loan).values_list("key", flat=True)}
    assert kept == set(Loan.objects.filter(leaves="").values_list("pk", flat=True)), "what is not committed is undone"
    assert not open_transactions()


def test_a_pooler_that_is_killed_and_comes_back(pgbouncer, start_pooled):
    """All connections break at once, twice: the workers' own and those of handlers. I1, I2, I3, I8, and nobody is to blame."""
    create_all_kinds(200, pause=0.02)
    worker = start_pooled("--processes", "2", labels=LABELS, database=TOLD, settings=EXTENDED)
    records = Letter.states.transition_model.objects
    for least in (30, 100):
        eventually(lambda least=least: records.count() >= least, "work is under way")
        worker.kill(int((pgbouncer / "pid").read_text()), signal.SIGKILL)
    wait_for_all_kinds()
    assert worker.terminate() == 0
    assert " died of " not in worker.log()
    check_all_kinds(200)


def test_the_next_client_of_a_pooled_connection_inherits_nothing(pgbouncer, start_pooled):
    """What a worker did to a connection is not there for whoever has it next: no setting, lock, statement or listener.

    PgBouncer gives each client the application_name that it brought; one that brings none has that of whoever was there.
    """
    create_all_kinds(50)
    worker = start_pooled("--processes", "2", labels=LABELS, database=TOLD)
    wait_for_all_kinds()
    used = {pid for (pid,) in execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")}
    assert worker.terminate() == 0
    found = {}
    place = {**connections.settings["default"], "HOST": str(pgbouncer), "PORT": str(PORT)}
    place["OPTIONS"] = {**place["OPTIONS"], "application_name": "somebody else"}
    with ExitStack() as stack:
        for _ in range(POOL):  # at the same time, so that each has another connection of the pool
            client = stack.enter_context(closing(connections["default"].__class__(place, "pooled")))
            client.set_autocommit(False)
            cursor = stack.enter_context(client.cursor())
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone()
            found[pid] = inherited(cursor)
    assert len(found) == POOL
    assert set(found) <= used, "these are the connections that the worker had"
    assert list(found.values()) == [{}] * POOL


def inherited(cursor):
    """Return what a client finds in its connection that it has not brought along."""
    cursor.execute("SELECT name, setting FROM pg_settings WHERE source = 'session'")
    found = {name: setting for name, setting in cursor.fetchall() if name not in TRACKED}
    for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
        cursor.execute("SELECT setting FROM pg_settings WHERE name = %s AND setting <> reset_val", [name])
        found.update(dict.fromkeys([name] if cursor.fetchall() else []))
    cursor.execute("SHOW application_name")
    (name,) = cursor.fetchone()
    if name != "somebody else":
        found["application_name"] = name
    for what, statement in {
        "advisory locks": "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        "prepared statements": "SELECT name FROM pg_prepared_statements",
        "cursors": "SELECT name FROM pg_cursors WHERE is_holdable",
        "listeners": "SELECT pg_listening_channels()",
        "temporary tables": "SELECT relname FROM pg_class WHERE relpersistence = 't' AND relnamespace = pg_my_temp_schema()",
    }.items():
        cursor.execute(statement)
        if rows := cursor.fetchall():
            found[what] = rows
    return found


def test_workers_behind_a_pooler_poll_and_say_so(start_pooled):
    """LISTEN seems to work there, and hears nothing of others. #28, I3."""
    worker = start_pooled(database=TOLD, constants={"supervisor.STATUS_EVERY": 0.2})
    worker.wait_for_log("Wake-ups do not work on database 'default': a pooler is in between.")
    eventually_in("DONE", Chore, create_chores(1))
    eventually(lambda: "polling every 0.1 s" in worker.lines_of_status()[-1], "the status line says so")
    assert "woken by" not in worker.log()


def test_who_writes_through_a_pooler_wakes_workers_that_have_none(pgbouncer, start_worker, monkeypatch):
    start_worker(settings={"POLL_SECONDS": NEVER, "LEASE_SECONDS": NEVER})
    eventually(is_gate_held, "it waits")
    place = {**connections.settings["default"], "HOST": str(pgbouncer), "PORT": str(PORT), **TOLD}
    with closing(connections["default"].__class__(place, "default")) as pooled:
        pooled.ensure_connection()
        with monkeypatch.context() as patch:
            patch.setattr(wakeups, "knock", lambda connection, gates: None)
            (chore,) = create_chores(1)
        wakeups._quiet_until.clear()
        wakeups.wake(Chore.states._meta, pooled, "NEW")
    eventually_in("DONE", Chore, [chore])
