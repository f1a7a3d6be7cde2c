"""`manage.py statemachine_worker`, as an operator types it: real processes on the test's own database."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from lab.models import ByWorker, Chore, Payment, Petition, Ping, Run, Ticking
from statemachine_fields.worker.lease import lanes_of
from statemachine_fields.worker.management.commands.statemachine_worker import Command, pool_size, room_in_pools
from statemachine_fields.worker.models import RunStatistics
from tests import database_url
from tests.patience import PATIENCE, eventually
from tests.scratch import SOURCES
from tests.settings import SMF_DB
from tests.worker.rows import set_clock

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(SMF_DB == "mariadb", reason="there is no worker on MariaDB yet"),
]
on_postgresql = pytest.mark.skipif(SMF_DB != "postgresql", reason="SQLite has one worker process")


def start(*arguments, log=subprocess.PIPE, **settings):
    """Start the command, with settings of STATEMACHINE_FIELDS by name."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
        "PYTHONPATH": os.pathsep.join([*SOURCES, str(ROOT), str(ROOT / "testproject")]),
        "DATABASE_URL": database_url.build(connection.settings_dict),
        "SMF_DB": SMF_DB,
        "SMF_FAULTS_SETTINGS": json.dumps({"POLL_SECONDS": 0.1, **settings}),
    }
    command = [sys.executable, "-m", "django", "statemachine_worker", "--skip-checks", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, text=True)


def run(*arguments, **settings):
    """Run the command to its end and return what it logged."""
    worker = start(*arguments, **settings)
    _out, log = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0, log
    return log


def statuses(model):
    return Counter(model.objects.values_list("status", flat=True))


def test_once_runs_what_is_due_and_ends():
    Chore.objects.bulk_create([Chore(name=str(number)) for number in range(30)])
    late = Chore.objects.create(script={"NEW": None})
    log = run("lab.Chore", "--once")
    assert statuses(Chore) == {"DONE": 30, "NEW": 1}
    assert Chore.states.transition_model.objects.count() == 60
    assert not Chore.states.leased().exists()
    assert "Serving lab.Chore.states with 1 × 4." in log
    assert "60 moved" in log
    late.refresh_from_db()
    assert late.status_lease_token == 2  # raised by the claim, and by its end


def test_all_kinds_of_handlers_run_side_by_side():
    Payment.objects.create()
    Ping.objects.bulk_create([Ping(wait=0.8) for _ in range(40)])
    ByWorker.objects.create()
    Ticking.objects.create()
    run("lab", "--once")
    assert (statuses(Payment), statuses(Ping), statuses(ByWorker)) == ({"BOOKED": 1}, {"ANSWERED": 40}, {"LAST": 1})
    assert statuses(Ticking) == {"FRESH": 1}
    answered_at = [record.transitioned_at for record in Ping.states.transition_model.objects.all()]
    assert (max(answered_at) - min(answered_at)).total_seconds() < 40 * 0.8  # the coroutines waited together


def test_machines_can_be_left_out():
    Chore.objects.create()
    Payment.objects.create()
    run("lab", "--exclude", "lab.Payment", "--once")
    assert (statuses(Chore), statuses(Payment)) == ({"DONE": 1}, {"OPEN": 1})


def test_a_queue_is_served_alone_and_no_wider_than_it_may():
    Chore.objects.bulk_create([Chore(script={"marks": True, "NEW": {"sleep": 0.1}, "DOING": None}) for _ in range(6)])
    Payment.objects.create()
    began = time.monotonic()
    run("--queue", "chores=2", "--threads", "6", "--once", "lab")
    assert time.monotonic() - began >= 0.3
    assert (statuses(Chore), statuses(Payment)) == ({"DOING": 6}, {"OPEN": 1})


def test_it_stops_in_good_order_after_a_while():
    Chore.objects.create()
    log = run("lab.Chore", "--run-for", "1.5")
    assert not Chore.states.leased().exists()
    assert "The worker stops: 1.5 seconds are over." in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_good_order(number, tmp_path):
    Chore.objects.create(script={"marks": True, "NEW": {"sleep": 0.5}, "DOING": None})
    Chore.objects.bulk_create([Chore(script={"NEW": {"sleep": 0.2}}) for _ in range(10)])
    worker = start("lab.Chore", "--threads", "1")
    eventually(Run.objects.exists)
    worker.send_signal(number)
    _out, log = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0, log
    assert statuses(Chore) == {"DOING": 1, "NEW": 10}
    assert not Chore.states.leased().exists()
    assert Chore.states.due().count() == 11  # what had not started, and where the other went
    assert set(Chore.objects.values_list("status_crashes", flat=True)) == {0}


def test_it_says_that_it_lives(tmp_path):
    file = tmp_path / "alive"
    worker = start("lab.Chore", "--liveness-file", str(file))
    eventually(file.exists)
    assert abs(int(file.read_text()) - time.time()) < 30
    worker.terminate()
    worker.communicate(timeout=PATIENCE)
    assert not file.exists()


def test_logs_are_json_for_machines():
    Chore.objects.create(script={"NEW": "raise"}, name="this")
    log = run("lab.Chore", "--once", "--log-format", "json")
    lines = [json.loads(line) for line in log.splitlines()]
    (failure,) = [line for line in lines if "failed in state" in line["message"]]
    assert failure["level"] == "WARNING"
    assert failure["message"].endswith("ValueError: no luck with this")
    assert "Traceback" in failure["exception"]
    assert (failure["model"], failure["state"], failure["attempt"]) == ("lab.Chore", "NEW", 1)


def test_processes_are_replaced_after_so_many_rows():
    Chore.objects.bulk_create([Chore() for _ in range(60)])
    log = run("lab.Chore", "--max-rows", "20", "--threads", "1", "--once", BATCH_SIZE=10)
    assert "is being replaced: it has taken" in log
    assert statuses(Chore) == {"DONE": 60}
    assert Chore.states.transition_model.objects.count() == 120


def test_a_coroutine_is_cancelled_when_its_time_is_up():
    ping, other = Ping.objects.create(wait=3600), Ping.objects.create()
    run("lab.Ping", "--once")
    ping.refresh_from_db()
    other.refresh_from_db()
    assert (ping.status, ping.status_failures, other.status) == ("SENT", 1, "ANSWERED")
    assert ping.status_error == "Stopped: the handler ran longer than its time limit of 1 s."


def test_rows_are_deleted_when_their_time_is_up():
    old = Ticking.objects.create(status="GONE")
    new = Ticking.objects.create(status="GONE")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE lab_ticking SET status_changed_at = %s, status_next_at = %s WHERE id = %s",
            ["2020-01-01 00:00:00", "2020-01-08 00:00:00", old.pk],
        )
    run("lab.Ticking", "--once")
    assert list(Ticking.objects.all()) == [new]


@on_postgresql
def test_statistics_of_several_workers_add_up():
    Chore.objects.bulk_create([Chore() for _ in range(300)])
    Chore.objects.bulk_create([Chore(script={"NEW": "raise"}) for _ in range(5)])
    workers = [start("lab.Chore", "--once", "--processes", "2", BATCH_SIZE=20) for _ in range(2)]
    for worker in workers:
        _out, log = worker.communicate(timeout=PATIENCE)
        assert worker.returncode == 0, log
    rows = RunStatistics.objects.filter(machine="lab.Chore.states")
    new, doing = (
        sum((hour.counts for hour in rows.filter(state=state).by_hour()), Counter()) for state in ("NEW", "DOING")
    )
    assert (new["moved"], new["failed"], new["claimed"]) == (300, 5, 305)
    assert doing["moved"] == 300


@on_postgresql
def test_models_take_turns():
    """A model with a long queue does not keep another waiting: fairness between models."""
    Chore.objects.bulk_create([Chore(script={"NEW": {"sleep": 0.05}, "DOING": None}) for _ in range(100)])
    Payment.objects.bulk_create([Payment() for _ in range(3)])
    worker = start("lab", "--threads", "1")
    eventually(lambda: statuses(Payment) == {"BOOKED": 3})
    booked_at = max(record.transitioned_at for record in Payment.states.transition_model.objects.all())
    assert Chore.states.transition_model.objects.filter(transitioned_at__lt=booked_at).count() < 50
    worker.terminate()
    worker.communicate(timeout=PATIENCE)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "status_next_at = NULL",
            ["rows have no time in states where something is to be done", "statemachine_reschedule lab.Chore.states"],
        ),
        (
            "status = 'MISLAID'",
            ["rows are in 'MISLAID', which this code does not declare, so its workers leave them alone."],
        ),
    ],
    ids=["clocks and policy disagree", "states whose rows it does not take"],
)
def test_a_worker_says_what_it_leaves_alone(written, said, tmp_path):
    Chore.objects.create()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE lab_chore SET {written}")
    log = tmp_path / "log"
    with log.open("w") as file:
        worker = start("lab.Chore", log=file)
    eventually(lambda: all(words in log.read_text() for words in ["lab.Chore.states", *said]), "it says so")
    worker.terminate()
    assert worker.wait(PATIENCE) == 0


def test_a_worker_says_that_rows_sleep_beside_what_they_wait_for(tmp_path):
    """As after a deploy of code whose state waits for more."""
    row = Petition.objects.create(status="HEARD")
    row.states.deliver("letter")
    set_clock(row, next_at=None)
    log = tmp_path / "log"
    with log.open("w") as file:
        worker = start("lab.Petition", log=file)
    said = ["lab.Petition.states: rows sleep beside events", "statemachine_reschedule lab.Petition.states"]
    eventually(lambda: all(words in log.read_text() for words in said), "it says so")
    call_command("statemachine_reschedule", "lab.Petition")
    eventually(lambda: Petition.objects.get().status == "OPEN", "it is moved")
    worker.terminate()
    assert worker.wait(PATIENCE) == 0


class TestWrongOrders:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["lab.ByHand"], "no state has a handler or a policy"),
            (["lab.Chore", "--exclude", "lab.Chore"], "No timed machine is left to serve"),
            (["lab.Chore", "--queue", "mail"], "No state has the queue mail. There are: chores."),
            (["lab.Nobody"], "No model 'Nobody' with a state machine in lab"),
            (["--queue", "mail=many"], "as in mail=2, got 'mail=many'"),
            (["--threads", "0"], "must be at least 1"),
            (["--run-for", "-1"], "must be more than 0"),
        ],
    )
    def test_are_refused(self, arguments, message):
        with pytest.raises(CommandError) as caught:
            call_command("statemachine_worker", *arguments, stderr=io.StringIO())
        assert message in str(caught.value)

    @pytest.mark.skipif(SMF_DB != "sqlite", reason="about SQLite")
    def test_sqlite_has_one_process(self):
        with pytest.raises(CommandError, match="which one process at a time can write to"):
            call_command("statemachine_worker", "lab.Chore", "--processes", "2")


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (None, None),
        ({}, None),
        (True, 4),
        ({"min_size": 2}, 2),
        ({"min_size": 2, "max_size": 9}, 9),
        ({"timeout": 5}, 4),
    ],
)
def test_the_size_of_a_pool_is_read_as_psycopg_reads_it(options, size):
    assert pool_size(options) == size


@pytest.mark.parametrize(("pool", "warns"), [(True, True), ({"max_size": 12}, False), (None, False)])
def test_a_pool_that_is_too_small_for_the_handlers_is_told_of(pool, warns, monkeypatch, caplog):
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {} if pool is None else {"pool": pool})
    lanes = lanes_of([Ping.states._meta, Chore.states._meta])
    with caplog.at_level(logging.WARNING, logger="statemachine_fields.worker"):
        Command()._warn_of_small_pools(lanes, threads=4, coroutine_connections=8)
    assert ("max_size to 12" in caplog.text) == warns


@pytest.mark.parametrize(
    ("pool", "models", "room"),
    [(None, [Ping, Chore], math.inf), (True, [Ping], 4), (True, [Ping, Chore], 1), ({"max_size": 9}, [Ping, Chore], 5)],
)
def test_coroutines_take_no_more_of_a_pool_than_threads_leave(pool, models, room, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {} if pool is None else {"pool": pool})
    assert room_in_pools(lanes_of([model.states._meta for model in models]), threads=4) == room
