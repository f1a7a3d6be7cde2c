"""What every test of faults has: a server of its own, and workers that do not outlive it."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from tests.faults import harness
from tests.faults.server import PostgreSQL
from tests.settings import SMF_DB

HERE = Path(__file__).parent

#: What takes ten seconds and more, and has a shorter relative that the suite runs with every change. For the long run.
LONG = {
    "test_stops_far_from_the_database_leave_no_lease",
    "test_two_thousand_coroutines_far_away",
    "test_statistics_in_a_silent_database_do_not_keep_rows_of_another_from_being_deleted",
    "test_fifty_processes_share_the_rows_and_stop",
    "test_no_question_of_the_worker_waits_long_for_a_lock",
    "test_the_limit_of_a_queue_holds_while_a_process_that_had_enough_rows_is_replaced",
    "test_a_guard_that_meets_a_lock_does_not_keep_time_limits_from_being_kept",
    "test_a_server_that_is_silent_on_new_connections_too_does_not_stop_the_process",
    "test_rows_that_one_worker_has_no_thread_for_are_left_to_an_idle_one",
}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
    """Keep the tests of a module on one process of pytest-xdist, which has a server for them."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(f"faults of {item.path.stem}"))
            if getattr(item, "originalname", item.name) in LONG and not harness.is_long():
                item.add_marker(pytest.mark.skip(reason="long; see `python -m tests.faults`"))


@pytest.fixture(scope="session")
def server(django_db_blocker):
    """A PostgreSQL to stop and start."""
    if SMF_DB != "postgresql":
        pytest.skip("faults of workers are tested on PostgreSQL, the database they are built for")
    with django_db_blocker.unblock():
        programs = PostgreSQL.programs()
        if programs is None:
            pytest.skip("the PostgreSQL of DATABASE_URL is not ours to stop and start, and there is no other")
        server = PostgreSQL(programs)
        yield server
        server.end()


@pytest.fixture
def database(server, django_db_blocker):
    """An empty database of that server, which is `default` during the test. No deadlock may happen in it."""
    before = len(server.log())
    with django_db_blocker.unblock(), server.database() as url:
        yield url
    assert "deadlock detected" not in server.log()[before:]


@pytest.fixture
def other_database(server, database):
    """A second database of that server, which is `other` during the test."""
    with server.database("other") as url:
        yield url


@pytest.fixture
def start_worker(database, tmp_path):
    """A function that starts a worker: see `harness.Worker`. What it said is shown if the test fails."""
    workers = []
    numbers = itertools.count(1)

    def start(*arguments, **options):
        worker = harness.Worker(database, tmp_path / f"worker{next(numbers)}", *arguments, **options)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.clean_up()
    for number, worker in enumerate(workers, start=1):
        print(f"--- worker {number}\n{worker.log()[-20000:]}")


@pytest.fixture
def chance(request):
    """Random numbers that can be had again: the seed is printed, and `SMF_SEED` sets it."""
    seed = harness.seed()
    print(f"SMF_SEED={seed}")
    return random.Random(f"{seed} {request.node.name}")
