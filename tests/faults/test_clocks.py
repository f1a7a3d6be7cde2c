"""Clocks that are wrong. Every instant that matters is the database's, so a worker's own may say what it likes."""

from __future__ import annotations

import re

import pytest

import statemachine_fields
from lab.models import Chore
from tests.faults.harness import EXTENDED, ROOT, check_invariants, create_chores, execute, wait_for_beats, wait_for_run
from tests.faults.injections import injected
from tests.patience import eventually

HOUR = 3600
WALL_CLOCK = re.compile(r"timezone\.now\(|time\.time\(|time\.time_ns\(|datetime\.(now|utcnow|today)\(|\bNow\(")

#: What is told to people, and says nothing of a row: the hour of statistics, and the age of a liveness file.
HARMLESS = {"statistics.py", "supervisor.py"}


@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["an hour ahead", "an hour behind"])
def test_a_worker_whose_clock_is_wrong_works_as_any_other(start_worker, skew):
    """#13. I1, I2, I3: nothing is due too early or too late, no lease is taken or lost, nothing times out."""
    worker = start_worker(environment=injected(skew=skew), settings=EXTENDED)
    quick = create_chores(20)
    waits, fails, slow, later, held = create_chores(
        5,
        status="DOING",
        script=lambda place: {"marks": True, "DOING": [None, "raise", "wait", "DONE", "DONE"][place]},
    )
    execute("UPDATE lab_chore SET status_next_at = now() + interval '30 minutes' WHERE id = %s", later)
    execute(
        "UPDATE lab_chore SET status_lease_owner = 'other', status_lease_token = 1, "
        "status_lease_expires_at = now() + interval '30 minutes' WHERE id = %s",
        held,
    )
    before = Chore.objects.in_bulk([later, held])
    wait_for_run(slow)
    ((left,),) = execute(
        "SELECT extract(epoch FROM status_lease_expires_at - now()) FROM lab_chore WHERE id = %s", slow
    )
    assert 0 < left <= EXTENDED["LEASE_SECONDS"], "a lease as long as any other's"
    wait_for_beats(Chore, slow, 1)
    Chore.objects.filter(pk=slow).update(script={})
    eventually(lambda: not Chore.objects.filter(pk__in=[*quick, slow]).exclude(status="DONE").exists(), "they are done")
    for chore, failures in ((waits, 0), (fails, 1)):
        ((seconds, failed),) = execute(
            "SELECT extract(epoch FROM status_next_at - now()), status_failures FROM lab_chore WHERE id = %s", chore
        )
        assert 60 - HOUR / 4 < seconds <= 60, "the next try was a minute away"
        assert failed == failures
    assert worker.terminate() == 0
    for chore, row in before.items():
        now = Chore.objects.get(pk=chore)
        assert (now.status_lease_token, now.status_next_at) == (row.status_lease_token, row.status_next_at)
        assert (now.status, now.status_lease_expires_at) == ("DOING", row.status_lease_expires_at)
    ((away,),) = execute("SELECT max(abs(extract(epoch FROM now() - transitioned_at))) FROM lab_chorestatetransition")
    assert away < HOUR / 4, "records are dated by the database"
    execute("UPDATE lab_chore SET status_lease_owner = '', status_lease_expires_at = NULL")
    check_invariants(moves=41, released=True)


def test_nothing_that_matters_asks_python_for_the_time():
    """#13, by reading: the worker and its SQL compare instants of the database, and durations by a monotonic clock."""
    package = ROOT / "src" / statemachine_fields.__name__
    files = [*package.glob("db/postgresql*.py"), *package.glob("worker/*.py")]
    assert len(files) > 20
    assert {file.name for file in files if WALL_CLOCK.search(file.read_text())} <= HARMLESS
