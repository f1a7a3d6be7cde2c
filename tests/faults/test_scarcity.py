"""A server that has run out of something: of connections, or of disk. Workers wait, and no row has to pay for it."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack, closing, suppress

import pytest
from django.db import OperationalError, connections

from lab.models import Chore, Wagon
from statemachine_fields.worker.models import RunStatistics
from tests.faults.harness import BRIEF, MARKED, check_invariants, create_chores, execute, marks_of, runs, wait_until_all
from tests.patience import PATIENCE, eventually

#: Longer than any lease.
OUTAGE = 2 * BRIEF["LEASE_SECONDS"]

WORKERS_SESSIONS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename = 'postgres'"
    " AND backend_type = 'client backend' AND NOT pid = ANY(%s)"
)


@pytest.fixture
def take_all_connections():
    """A function that ends the sessions of others and takes the place of each, and returns what gives them back."""
    with ExitStack() as stack:

        def take():
            ours = []
            deadline = time.monotonic() + PATIENCE
            while True:
                with suppress(OperationalError):
                    while True:
                        session = stack.enter_context(closing(connections.create_connection("default")))
                        session.ensure_connection()
                        ours.append(session.connection.info.backend_pid)
                if not execute(f"SELECT pg_terminate_backend(pid) {WORKERS_SESSIONS}", ours):
                    return stack
                assert time.monotonic() < deadline, "all connections are taken"

        yield take


def test_workers_wait_for_a_server_that_refuses_connections(start_worker, take_all_connections):
    """Every session of the workers ends, and no new one is to be had for longer than a lease: for claims, outcomes and
    heartbeats as little as for handlers and for a process that is new. I1, I2, I3, I8: they wait, and no row is blamed."""
    chores = create_chores(300, script=lambda _: {"NEW": {"sleep": 0.03}, "DOING": {"sleep": 0.03}, **MARKED})
    worker = start_worker("--processes", "2", settings=BRIEF)
    records = Chore.states.transition_model.objects
    eventually(lambda: records.count() > 50, "work is under way")
    taken = take_all_connections()
    said, done = len(worker.log().splitlines()), records.count()
    worker.kill(worker.children()[0])
    time.sleep(OUTAGE)
    assert records.count() == done, "nobody can write"
    assert len(worker.log().splitlines()) - said < 60, "they do not fill the log"
    assert not Chore.objects.filter(status_failures__gt=0).exists()
    taken.close()
    wait_until_all("DONE")
    assert worker.terminate() == 0
    assert worker.log().count(" died of ") == 1, "the one that was killed"
    assert not RunStatistics.objects.filter(kind="failed").exists()
    assert max(len(runs(chore)) for chore in chores) <= 6
    check_invariants(moves=600, terminal=True, released=True)


@pytest.fixture
def small_disk(server):
    """A tablespace on a file system of 20 MB."""
    place = server.directory / "small"
    place.mkdir()
    owner = server.directory.stat()
    options = f"size=20m,mode=700,uid={owner.st_uid},gid={owner.st_gid}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        place.rmdir()
        pytest.skip(f"no small file system can be mounted: {mounted.stderr.strip()}")
    try:
        server.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
        yield place
        (place / "filler").unlink(missing_ok=True)
        server.execute("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
        place.rmdir()


def fill(place):
    """Leave no block free."""
    with (place / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(place).f_bavail == 0


def test_workers_wait_for_a_server_that_is_out_of_disk(small_disk, server, start_worker):
    """The file system of one table and its history is full for longer than a lease. Rows elsewhere go on, those of that
    table wait, no try is held against them, and all is done when there is room. I1, I2, I3, I8."""
    for table in (Wagon._meta.db_table, Wagon.states.transition_model._meta.db_table):
        with connections["default"].cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} SET TABLESPACE small")
    Wagon.objects.bulk_create([Wagon(pause=0.005) for _ in range(1000)])
    worker = start_worker(labels=["lab.Wagon", "lab.Chore"], settings=BRIEF)
    records = Wagon.states.transition_model.objects
    eventually(lambda: records.count() > 100, "work is under way")
    before = len(server.log())
    fill(small_disk)
    eventually(lambda: "No space left on device" in server.log()[before:], "the disk is full")
    create_chores(200)
    full_until = time.monotonic() + OUTAGE
    wait_until_all("DONE")
    time.sleep(max(0, full_until - time.monotonic()))
    assert Wagon.objects.exclude(status="DONE").exists(), "there is work left to be done"
    assert not Wagon.objects.filter(status_failures__gt=1).exists()
    assert not Wagon.objects.filter(status_crashes__gt=1).exists()
    said = len(worker.log().splitlines())
    assert said < 100, "it does not fill the log"
    (small_disk / "filler").unlink()
    wait_until_all("DONE", model=Wagon)
    assert worker.terminate() == 0
    assert " died of " not in worker.log()
    check_invariants(Wagon, moves=2000, terminal=True, released=True)
    check_invariants(moves=400, terminal=True, released=True)
    assert not RunStatistics.objects.filter(kind="parked").exists()
    assert marks_of(Wagon).count() < 2000 + 500, "most handlers were run once"
