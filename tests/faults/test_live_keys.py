"""Live keys between real processes, which start and end rows of one key, and are killed at it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.db import InterfaceError, OperationalError, connection

from lab.models import Shipment
from statemachine_fields.machine.verify import Verifier
from tests.faults.harness import OTHERS, ROOT, SOURCES
from tests.patience import PATIENCE, eventually

PROCESSES, CALLS = 4, 60

#: Ask for the live row again and again, in a transaction and not, and end what is found, or create one in spite of it; print each
#: row that was started.
PROGRAM = """
import random, sys
import django
django.setup()
from django.db import transaction
from lab.models import Shipment
from statemachine_fields.machine.verify import Verifier
from statemachine_fields import DuplicateLiveRow, InvalidStateTransition

chance = random.Random(sys.argv[1])
print("begun", flush=True)
for _ in range(int(sys.argv[2])):
    row = None
    try:
        if chance.random() < 0.3:
            row, created = Shipment.objects.create(number="A-17"), True
        elif chance.random() < 0.5:
            with transaction.atomic():
                Shipment.objects.create(number=None)
                with transaction.atomic():
                    row, created = Shipment.states.get_or_start(number="A-17")
        else:
            row, created = Shipment.states.get_or_start(number="A-17")
        assert row.number == "A-17"
        if created:
            print("started", row.pk, flush=True)
        if chance.random() < 0.7:
            row.states.transition_to("LOST")
    except DuplicateLiveRow as error:
        assert row is None and error.key == {"number": "A-17"}
    except InvalidStateTransition:
        pass  # somebody else has ended it
print("done", flush=True)
"""


@pytest.fixture
def start(database, tmp_path):
    """A function that starts a process of the program."""
    processes = []

    def start(seed, calls=CALLS):
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
            "PYTHONPATH": os.pathsep.join([*SOURCES, str(ROOT), str(ROOT / "testproject"), *OTHERS]),
            "SMF_DB": "postgresql",
            "DATABASE_URL": database,
        }
        log = (tmp_path / f"{len(processes)}.log").open("w+")
        command = [sys.executable, "-c", PROGRAM, str(seed), str(calls)]
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
        processes.append((process, log))
        return process, log

    yield start
    for process, log in processes:
        process.kill()
        process.wait(PATIENCE)
        log.close()


def said(log):
    log.seek(0)
    return log.read()


def started(logs):
    return [int(line.split()[1]) for log in logs for line in said(log).splitlines() if line.startswith("started")]


def check():
    live = Shipment.objects.filter(number="A-17").exclude(status__in=Shipment.states.terminal_states)
    assert live.count() <= 1
    assert [*Verifier(Shipment.states._meta).findings()] == []


def test_processes_that_start_and_end_rows_of_one_key_get_one_each_time(start, chance):
    running = [start(chance.random()) for _ in range(PROCESSES)]
    for process, log in running:
        assert process.wait(PATIENCE) == 0, said(log)
    keys = started([log for _process, log in running])
    assert len(keys) == len({*keys}) == Shipment.objects.filter(number="A-17").count() > PROCESSES
    check()


def test_who_is_killed_at_it_leaves_no_key_taken_by_nobody(start, chance):
    running = [start(chance.random(), 100_000) for _ in range(PROCESSES)]
    for _process, log in running:
        eventually(lambda log=log: "started" in said(log), "all are at it")
    for process, _log in running:
        process.kill()
        process.wait(PATIENCE)
    check()
    row, _created = Shipment.states.get_or_start(number="A-17")
    row.states.transition_to("LOST")
    assert Shipment.states.get_or_start(number="A-17")[1]
    check()


def test_a_connection_that_is_lost_is_an_error_of_djangos_and_leaves_nothing_behind(start):
    row = Shipment(number="A-17")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
    finally:
        other.close()

    with pytest.raises((OperationalError, InterfaceError)):
        row.save()
    connection.close()
    assert row._state.adding
    row.save()
    assert Shipment.states.live(number="A-17") == row
