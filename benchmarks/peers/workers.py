"""Workers: what is enqueued, and what becomes of it when something goes wrong. Run by run.py, with a database at hand."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO

from cells import NO, YES, cell
from compared import tasks
from compared.models import FailingOrder, FailingStatorOrder, Note, StatorGraph, StatorOrder, TimedOrder
from django.db import transaction
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from procrastinate.contrib.django import app
from procrastinate.contrib.django.models import ProcrastinateJob

from statemachine_fields.db.leases import is_served

TABLE = "workers"
OURS, STATOR, PROCRASTINATE, CELERY = "this library", "Stator at ecb1a74", "Procrastinate", "Celery"
HERE = Path(__file__).resolve().parent

JOB = "What a worker takes"
ROLLED_BACK = "A transaction that is rolled back enqueues nothing"
COMMITTED = "A transaction that commits has enqueued"
KILLED = "What a killed worker had begun is done by another"
VOID = "What was scheduled is void once the row has moved on"
RETRIES = "Tries again, and gives up after so many times"
FUNCTIONS = "Any function can be a job"
PERIODIC = "Jobs at times of day"
SQLITE = "Without PostgreSQL"

COMMANDS = {
    OURS: ["-m", "django", "statemachine_worker", "compared"],
    STATOR: [str(HERE / "run_stator.py")],
    PROCRASTINATE: ["-m", "django", "procrastinate", "worker"],
    CELERY: ["-m", "celery", "-A", "celery_app", "worker", "--concurrency", "1"],
}


class Stop(Exception):
    """Something that goes wrong at the worst moment."""


@contextmanager
def worker(
    command: list[str], said: IO[bytes] | int = subprocess.DEVNULL, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker until the block ends, or somebody has killed it."""
    paths = [str(HERE), str(HERE.parent.parent), os.environ["PEERS_STATOR"], os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        stdout=said,
        stderr=said,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a worker and all its processes with no time to say anything."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def happens(condition: Callable[[], object], seconds: float = 25) -> bool:
    """Say whether something comes to be within a time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(found)


def noted(order: int, text: str) -> int:
    return Note.objects.filter(order=order, text=text).count()


def messages() -> int:
    """Return how many messages wait at Celery's broker."""
    return len(list(tasks.BROKER.glob("*.msg")))


def begin(who: str) -> int:
    """Forget everything, create an order and enqueue the work on it. Return the order's key."""
    for model in (TimedOrder, FailingOrder, StatorOrder, FailingStatorOrder, Note):
        model.objects.all().delete()
    ProcrastinateJob.objects.all()._raw_delete("default")
    for message in tasks.BROKER.glob("*"):
        message.unlink()
    if who == STATOR:
        return StatorOrder.objects.create().pk
    order = TimedOrder.objects.create()
    if who == PROCRASTINATE:
        tasks.procrastinate_work.defer(order=order.pk)
    if who == CELERY:
        tasks.celery_work.delay(order.pk)
    return order.pk


def runs(who: str) -> bool:
    order = begin(who)
    with worker(COMMANDS[who]):
        return happens(lambda: noted(order, "done"))


# What a worker takes


@cell(TABLE, JOB, OURS)
def _() -> str:
    assert runs(OURS)
    begin(OURS)
    return "the row itself" if TimedOrder.states.due().count() == 1 else "FAILED"


@cell(TABLE, JOB, STATOR)
def _() -> str:
    assert runs(STATOR)
    begin(STATOR)
    return "the row itself" if StatorOrder.state_count_pending() == 1 else "FAILED"


@cell(TABLE, JOB, PROCRASTINATE)
def _() -> str:
    assert runs(PROCRASTINATE)
    begin(PROCRASTINATE)
    return "a job in a table" if ProcrastinateJob.objects.filter(status="todo").count() == 1 else "FAILED"


@cell(TABLE, JOB, CELERY)
def _() -> str:
    assert runs(CELERY)
    begin(CELERY)
    return "a message at a broker" if messages() == 1 else "FAILED"


# Transactions


def _rolled_back(who: str) -> None:
    try:
        with transaction.atomic():
            begin(who)
            raise Stop
    except Stop:
        pass


@cell(TABLE, ROLLED_BACK, OURS)
def _() -> str:
    begin(OURS)
    TimedOrder.objects.all().delete()
    _rolled_back(OURS)
    return NO if TimedOrder.states.due().exists() else YES


@cell(TABLE, ROLLED_BACK, STATOR)
def _() -> str:
    begin(OURS)
    _rolled_back(STATOR)
    return NO if StatorOrder.state_count_pending() else YES


@cell(TABLE, ROLLED_BACK, PROCRASTINATE)
def _() -> str:
    begin(OURS)
    _rolled_back(PROCRASTINATE)
    return NO if ProcrastinateJob.objects.exists() else YES


@cell(TABLE, ROLLED_BACK, CELERY)
def _() -> str:
    _rolled_back(CELERY)
    by_delay = messages()
    begin(OURS)
    with suppress(Stop), transaction.atomic():
        tasks.celery_work.delay_on_commit(1)
        raise Stop
    return "with `delay_on_commit()`" if by_delay == 1 and not messages() else YES


@cell(TABLE, COMMITTED, OURS)
def _() -> str:
    with transaction.atomic():
        begin(OURS)
        assert not transaction.get_connection().run_on_commit  # nothing is left to do after the commit
    return YES if TimedOrder.states.due().count() == 1 else NO


@cell(TABLE, COMMITTED, STATOR)
def _() -> str:
    with transaction.atomic():
        begin(STATOR)
        assert not transaction.get_connection().run_on_commit
    return YES if StatorOrder.state_count_pending() == 1 else NO


@cell(TABLE, COMMITTED, PROCRASTINATE)
def _() -> str:
    with transaction.atomic():
        begin(PROCRASTINATE)
        assert not transaction.get_connection().run_on_commit
    return YES if ProcrastinateJob.objects.count() == 1 else NO


@cell(TABLE, COMMITTED, CELERY)
def _() -> str:
    """Let the broker be out of reach when the commit is through: the order is there, and the message is not."""
    begin(OURS)
    aside = tasks.BROKER.with_suffix(".aside")
    with suppress(Exception), transaction.atomic():
        order = TimedOrder.objects.create()
        tasks.celery_work.delay_on_commit(order.pk)
        tasks.BROKER.rename(aside)
        tasks.BROKER.write_text("not a directory")
    tasks.BROKER.unlink()
    aside.rename(tasks.BROKER)
    is_lost = TimedOrder.objects.filter(pk=order.pk).exists() and not messages()
    return "if the broker can be reached then" if is_lost else YES


# What a killed worker had begun is done by another


def _survives(who: str) -> bool:
    order = begin(who)
    with worker(COMMANDS[who], PEERS_SLOW="60") as process:
        assert happens(lambda: noted(order, "begun"))
        kill(process)
    with worker(COMMANDS[who]):
        return happens(lambda: noted(order, "done"))


@cell(TABLE, KILLED, OURS)
def _() -> str:
    return YES if _survives(OURS) else NO


@cell(TABLE, KILLED, STATOR)
def _() -> str:
    return YES if _survives(STATOR) else NO


@cell(TABLE, KILLED, PROCRASTINATE)
def _() -> str:
    """The job stays as it was begun. Its documentation has a task that looks for such jobs; this does what that would."""
    if _survives(PROCRASTINATE):
        return YES

    async def retry() -> int:
        with app.replace_connector(app.connector.get_worker_connector()) as other:
            async with other.open_async():
                stalled = list(await other.job_manager.get_stalled_jobs(seconds_since_heartbeat=1))
                for job in stalled:
                    await other.job_manager.retry_job(job)
                return len(stalled)

    assert asyncio.run(retry()) == 1
    with worker(COMMANDS[PROCRASTINATE]):
        assert happens(lambda: Note.objects.filter(text="done").exists())
    return "with a task that you add"


@cell(TABLE, KILLED, CELERY)
def _() -> str:
    return YES if _survives(CELERY) else "not by default"


# What was scheduled is void once the row has moved on


@cell(TABLE, VOID, OURS)
def _() -> str:
    order = TimedOrder.objects.get(pk=begin(OURS))
    order.states.transition_to("PAID")  # which times out in 3 s
    order.states.transition_to("SHIPPED")
    with worker(COMMANDS[OURS]):
        is_moved = happens(lambda: order.states.history.count() > 2, seconds=8)
    late = TimedOrder.objects.get(pk=begin(OURS))
    with worker(COMMANDS[OURS], PEERS_SLOW="3"):
        assert happens(lambda: noted(late.pk, "begun"))
        late.states.transition_to("SHIPPED")
        assert happens(lambda: noted(late.pk, "done"))
        is_overwritten = happens(lambda: TimedOrder.objects.get(pk=late.pk).status != "SHIPPED", seconds=4)
    return NO if is_moved or is_overwritten else YES


@cell(TABLE, VOID, STATOR)
def _() -> str:
    """A row that waits is left alone. A handler that runs writes its answer over what somebody has done meanwhile."""
    order = StatorOrder.objects.get(pk=begin(STATOR))
    order.state_transition(StatorGraph.shipped)
    with worker(COMMANDS[STATOR]):
        is_moved = happens(lambda: noted(order.pk, "begun"), seconds=8)
    late = StatorOrder.objects.get(pk=begin(STATOR))
    with worker(COMMANDS[STATOR], PEERS_SLOW="3"):
        assert happens(lambda: noted(late.pk, "begun"))
        late.state_transition(StatorGraph.shipped)
        is_overwritten = happens(lambda: StatorOrder.objects.get(pk=late.pk).state == "paid", seconds=8)
    assert not is_moved
    return "unless it runs just then" if is_overwritten else YES


def _runs_anyway(who: str, schedule: Callable[[int], object]) -> str:
    order = TimedOrder.objects.get(pk=begin(OURS))
    schedule(order.pk)
    order.states.transition_to("SHIPPED")
    with worker(COMMANDS[who]):
        return "no, the job has to look" if happens(lambda: noted(order.pk, "done")) else YES


@cell(TABLE, VOID, PROCRASTINATE)
def _() -> str:
    later = tasks.procrastinate_work.configure(schedule_in={"seconds": 3})
    return _runs_anyway(PROCRASTINATE, lambda order: later.defer(order=order))


@cell(TABLE, VOID, CELERY)
def _() -> str:
    return _runs_anyway(CELERY, lambda order: tasks.celery_work.apply_async([order], countdown=3))


# Tries again, and gives up after so many times


def _gives_up(who: str, order: int) -> str:
    with worker(COMMANDS[who]):
        assert happens(lambda: noted(order, "tried") == 2)
        return NO if happens(lambda: noted(order, "tried") > 2, seconds=4) else YES


@cell(TABLE, RETRIES, OURS)
def _() -> str:
    begin(OURS)
    order = FailingOrder.objects.create()
    outcome = _gives_up(OURS, order.pk)
    return f"{outcome}, and parks the row" if FailingOrder.states.parked().exists() else outcome


@cell(TABLE, RETRIES, STATOR)
def _() -> str:
    begin(OURS)
    order = FailingStatorOrder.objects.create()
    with worker(COMMANDS[STATOR]):
        return "tries for ever" if happens(lambda: noted(order.pk, "tried") > 4, seconds=40) else YES


@cell(TABLE, RETRIES, PROCRASTINATE)
def _() -> str:
    begin(OURS)
    tasks.procrastinate_fail.defer(order=7)
    outcome = _gives_up(PROCRASTINATE, 7)
    return f"{outcome}, and keeps the job" if ProcrastinateJob.objects.filter(status="failed").exists() else outcome


@cell(TABLE, RETRIES, CELERY)
def _() -> str:
    begin(OURS)
    tasks.celery_fail.delay(7)
    return _gives_up(CELERY, 7)


# Any function can be a job


@cell(TABLE, FUNCTIONS, OURS)
def _() -> str:
    return "no, handlers of states" if not hasattr(TimedOrder.states, "defer") else YES


@cell(TABLE, FUNCTIONS, STATOR)
def _() -> str:
    return "no, handlers of states" if not hasattr(StatorOrder, "defer") else YES


@cell(TABLE, FUNCTIONS, PROCRASTINATE)
def _() -> str:
    begin(OURS)
    tasks.procrastinate_work.defer(order=7)
    with worker(COMMANDS[PROCRASTINATE]):
        return "**yes**" if happens(lambda: noted(7, "done")) else NO


@cell(TABLE, FUNCTIONS, CELERY)
def _() -> str:
    begin(OURS)
    tasks.celery_work.delay(7)
    with worker(COMMANDS[CELERY]):
        return "**yes**" if happens(lambda: noted(7, "done")) else NO


# Jobs at times of day


@cell(TABLE, PERIODIC, OURS, STATOR)
def _() -> str:
    return NO


@cell(TABLE, PERIODIC, PROCRASTINATE)
def _() -> str:
    begin(OURS)
    with worker(COMMANDS[PROCRASTINATE], PEERS_PERIODIC="1"):
        return "**yes**" if happens(lambda: noted(-1, "done") > 1) else NO


@cell(TABLE, PERIODIC, CELERY)
def _() -> str:
    begin(OURS)
    every, _created = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
    PeriodicTask.objects.update_or_create(
        name="tick", defaults={"interval": every, "task": tasks.celery_work.name, "args": "[-1]"}
    )
    beat = ["-m", "celery", "-A", "celery_app", "beat", "--pidfile", "", "--max-interval", "1"]
    scheduler = ["--scheduler", "django_celery_beat.schedulers:DatabaseScheduler"]
    with worker(COMMANDS[CELERY]), worker([*beat, *scheduler]):
        return "**yes**, with beat" if happens(lambda: noted(-1, "done") > 1) else NO


# Without PostgreSQL


@contextmanager
def new_sqlite() -> Iterator[dict[str, str]]:
    """Make a SQLite database, and yield how the environment names it. What fails is an error."""
    with tempfile.TemporaryDirectory() as directory:
        place = {"PEERS_DATABASE": f"sqlite:///{directory}/db.sqlite3"}
        assert not run(["-m", "django", "migrate", "--run-syncdb", "-v0"], **place)
        yield place


def run(command: list[str], **environment: str) -> str:
    """Run a command to its end, and return what it complained of if it failed."""
    with tempfile.TemporaryFile() as said, worker(command, said, **environment) as process:
        code = process.wait(timeout=60)
        said.seek(0)
        return said.read().decode() or "?" if code else ""


@cell(TABLE, SQLITE, OURS)
def _() -> str:
    once = [*COMMANDS[OURS], "--once"]
    with new_sqlite() as place:
        assert not run(once, **place)
        assert "which one process at a time can write to" in run([*once, "--processes", "2"], **place)
    # As Django describes MariaDB; the suite runs on one and sees the command refuse it.
    assert not is_served(SimpleNamespace(vendor="mysql", features=SimpleNamespace(has_select_for_update=True)))
    return "SQLite with one process; not MariaDB"


@cell(TABLE, SQLITE, STATOR)
def _() -> str:
    with new_sqlite() as place:
        database = sqlite3.connect(place["PEERS_DATABASE"].removeprefix("sqlite://"), timeout=20)
        create = (
            "INSERT INTO compared_statororder (address, state, state_changed, state_next) VALUES ('', 'pending', ?, ?)"
        )
        database.execute(create, ["2020-01-01 00:00:00"] * 2)
        database.commit()
        with worker(COMMANDS[STATOR], **place):
            count = "SELECT count(*) FROM compared_note WHERE text = 'done'"
            return "SQLite" if happens(lambda: database.execute(count).fetchone()[0]) else NO


@cell(TABLE, SQLITE, PROCRASTINATE)
def _() -> str:
    with new_sqlite() as place:
        failed = run(["-m", "django", "migrate", "procrastinate", "-v0"], PEERS_PROCRASTINATE="1", **place)
    print(failed[-300:], file=sys.stderr)
    return NO if "sqlite" in failed.lower() else YES


@cell(TABLE, SQLITE, CELERY)
def _() -> str:
    begin(OURS)
    tasks.celery_work.delay(7)
    with new_sqlite() as place, worker(COMMANDS[CELERY], **place):
        database = sqlite3.connect(place["PEERS_DATABASE"].removeprefix("sqlite://"))
        count = "SELECT count(*) FROM compared_note WHERE text = 'done'"
        return "**SQLite**, and a broker" if happens(lambda: database.execute(count).fetchone()[0]) else NO
