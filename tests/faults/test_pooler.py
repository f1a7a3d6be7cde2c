"""A transaction pooler between workers and database: each statement may meet another connection."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.models import Booking, Chore, Noted, Payment
from statemachine_fields.machine.verify import Verifier
from tests.faults.harness import check_invariants, create_chores, eventually, wait_until_all
from tests.faults.injections import injected
from tests.server import Server

PORT = 6432

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
    default_pool_size = 3
    max_client_conn = 200
    max_prepared_statements = 0
    ignore_startup_parameters = extra_float_digits,options
    logfile = {directory}/log"""


@pytest.fixture(scope="module")
def pgbouncer(server):
    program = shutil.which("pgbouncer", path="/usr/local/bin:/usr/bin:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed (Debian: `apt install pgbouncer`)")
    bouncer = Server("pgbouncer")
    directory: Path = bouncer.directory
    lines = CONFIGURATION.format(server=server.directory, directory=directory, port=PORT).splitlines()
    version = [line for line in lines if "max_prepared_statements" not in line or _keeps_statements(program)]
    (directory / "ini").write_text("\n".join(line.strip() for line in version))
    bouncer.start(["true"], [program, directory / "ini"], (directory / f".s.PGSQL.{PORT}").exists)
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
    wait_until_all("DONE", within=60)
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
    wait_until_all("DONE", within=60)
    eventually(lambda: not Payment.objects.exclude(status="BOOKED").exists(), "atomic handlers, too")
    eventually(lambda: not Noted.objects.exclude(status="DONE").exists(), "and what is written row by row")
    assert Booking.objects.count() == 100
    assert worker.terminate() == 0
    assert "lost a prepared statement" in worker.log()
    assert " failed in state" not in worker.log()
    for model in (Payment, Noted):
        assert not list(Verifier(model.states).findings())
    assert not Chore.objects.filter(status_crashes__gt=0).exists()
    check_invariants(moves=2000, terminal=True, released=True)
