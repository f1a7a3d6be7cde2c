"""Many workers, and many rows: what one of them does must not grow with the number of the others."""

from __future__ import annotations

import time

import pytest
from django.db import connection

from lab.models import Chore
from tests.faults.harness import MARKED, check_invariants, create_chores, execute, is_long, wait_for_run, wait_until_all
from tests.patience import eventually

PROCESSES = 50
SHARED = 5000 if is_long() else 1500
DUE = 1_000_000 if is_long() else 50_000

#: How many pages of the table and its indexes a worker may visit to find a row, or to see that there is none, and how
#: often it looks in a second at most. To read all that is due would be more than a page for each row.
PAGES, LOOKS = 100, 2

#: What it does besides, it and the test: they claim, extend, read and give back a few rows.
OTHER_PAGES = 1000

#: A worker that has one row in hand and one waiting.
ONE_AT_A_TIME = {"BATCH_SIZE": 2, "STOP_SECONDS": 0.1}


def test_fifty_processes_share_the_rows_and_stop(start_worker):
    """Far more processes than cores. I1, I2, I3, I8: no row is claimed twice, all is done, and each stops when told."""
    create_chores(SHARED, script=lambda _: MARKED)
    worker = start_worker("--processes", str(PROCESSES), "--threads", "1", settings={"LEASE_SECONDS": 20.0})
    eventually(lambda: len(worker.children()) == PROCESSES, "all have started")
    wait_until_all("DONE")
    assert worker.terminate() == 0
    assert " WARNING " not in worker.log()
    assert " ERROR " not in worker.log()
    check_invariants(moves=2 * SHARED, terminal=True, released=True)
    assert not Chore.objects.filter(status_crashes__gt=0).exists()


@pytest.fixture
def crowd(database):
    """Return the first of very many rows that are due, one after the other, and whose handler takes five seconds."""
    (template,) = create_chores(1, status="DOING", script=lambda _: {"DOING": {"sleep": 5}, **MARKED})
    with connection.cursor() as cursor:
        columns = [column.name for column in connection.introspection.get_table_description(cursor, "lab_chore")]
        names = ", ".join(column for column in columns if column not in ("id", "status_next_at"))
        cursor.execute(
            f"INSERT INTO lab_chore ({names}, status_next_at) SELECT {names}, status_next_at + place * interval '1 ms'"
            " - interval '1 hour' FROM lab_chore, generate_series(1, %s) AS place",
            [DUE],
        )
        cursor.execute("VACUUM ANALYZE lab_chore")
    Chore.objects.filter(pk=template).delete()
    return template + 1


def pages_visited():
    """Return how many pages of the table and its indexes were visited so far, by sessions that are over."""
    others = "FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    eventually(
        lambda: not execute(f"SELECT pid {others} AND pid <> pg_backend_pid()"),
        "the sessions of the workers are over, and have told what they did",
    )
    execute("SELECT pg_stat_force_next_flush()")
    columns = "heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit"
    ((visited,),) = execute(f"SELECT {columns} FROM pg_statio_user_tables WHERE relname = 'lab_chore'")
    return visited


class Visits:
    """Checks that what a worker does in a block, from its start to its end, visits few pages."""

    def __enter__(self):
        self.before, self.began = pages_visited(), time.monotonic()

    def __exit__(self, kind, error, traceback):
        if error is None:
            seconds = time.monotonic() - self.began
            visited = pages_visited() - self.before
            assert visited < PAGES * LOOKS * seconds + OTHER_PAGES, f"{visited:,} pages in {seconds:.1f} s"
            assert visited, "somebody counts"


def test_looks_for_rows_left_behind_do_not_read_all_that_is_due(start_worker, crowd):
    """The first row is run at once, and while it runs the worker visits few pages, however many rows are due."""
    with Visits():
        worker = start_worker("--threads", "1", settings=ONE_AT_A_TIME)
        wait_for_run(crowd)
        time.sleep(3)  # for some looks: nothing else is to be done while the handler runs
        assert worker.terminate() == 0
    check_invariants(moves=0, released=True)


def test_the_rows_of_a_dead_process_are_found_among_all_that_is_due(start_worker, crowd):
    """A process is killed, and the next takes back what it held: that visits few pages, however many rows are due."""
    with Visits():
        worker = start_worker("--threads", "1", settings=ONE_AT_A_TIME)
        worker.kill(wait_for_run(crowd).pid)
        eventually(lambda: Chore.objects.get(pk=crowd).status_crashes == 1, "it is taken back")
        assert worker.terminate() == 0
    check_invariants(moves=0, released=True)
