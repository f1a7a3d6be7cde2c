"""A storm: processes die all the time, and in the end every row has gone its way, once."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
from django.db.models import Count, Sum

from lab.models import Chore
from statemachine_fields.worker.models import RunStatistics
from tests.faults.harness import BRIEF, MARKED, check_invariants, create_chores, is_long, wait_until_all
from tests.patience import eventually

WORKERS = 4
#: However often a row is left behind, it is not given up.
OFTEN = BRIEF | {"MAX_CRASHES": 1000}


@dataclass
class Storm:
    """How many rows, how long their handlers take at most, and how processes die."""

    rows: int
    handler: float
    seconds: float
    #: Seconds between two kills, from and to.
    pause: tuple[float, float]
    #: Which part of all processes is killed at once; one if 0.
    share: float = 0.0


SHORT = Storm(rows=1000, handler=0.08, seconds=6, pause=(0.2, 1.0))
LONG = Storm(rows=10_000, handler=0.1, seconds=60, pause=(1.0, 1.0), share=0.5)


@pytest.mark.parametrize("storm", [SHORT, LONG] if is_long() else [SHORT], ids=lambda storm: f"{storm.rows} rows")
def test_a_storm_of_kills(start_worker, chance, storm, capsys):
    """#4: kill -9 of any process, worker or supervisor, all the time. I1, I2, I3, I4, I6, and I8 in the end."""
    handlers = ["NEW", "DOING"]
    create_chores(
        storm.rows, script=lambda _: {state: {"sleep": chance.uniform(0, storm.handler)} for state in handlers} | MARKED
    )
    workers = [start_worker("--processes", "2", settings=OFTEN) for _ in range(WORKERS)]
    eventually(Chore.states.transition_model.objects.exists, "work is under way")
    began = time.monotonic()
    killed = supervisors = 0
    while time.monotonic() - began < storm.seconds:
        time.sleep(chance.uniform(*storm.pause))
        processes = sorted((pid, place) for place, worker in enumerate(workers) for pid in worker.members())
        for pid, place in chance.sample(processes, max(1, int(len(processes) * storm.share))):
            worker = workers[place]
            worker.kill(pid)
            killed += 1
            if pid == worker.pid:  # its processes go on for a moment, beside those of the next
                supervisors += 1
                workers[place] = start_worker("--processes", "2", settings=OFTEN)
    stormed = time.monotonic() - began
    left = Chore.objects.exclude(status="DONE").count()
    wait_until_all("DONE")
    took = time.monotonic() - began
    for worker in workers:
        worker.ask_to_stop()
    for worker in workers:
        worker.wait()
    check_invariants(moves=2 * storm.rows, terminal=True, released=True)
    records = Chore.states.transition_model.objects.order_by()
    edges = {(record["from_status"], record["to_status"]): record["number"] for record in by_edge(records)}
    assert edges == {("NEW", "DOING"): storm.rows, ("DOING", "DONE"): storm.rows}
    counts = dict(RunStatistics.objects.order_by().values_list("kind").annotate(Sum("count")))
    with capsys.disabled():
        print(
            f"\n{storm.rows:,} rows, {2 * storm.rows:,} moves, 0 twice; {killed} processes killed, {supervisors} of them "
            f"supervisors, in {stormed:.0f} s; {left:,} rows left then; all done after {took:.0f} s; at least "
            f"{counts.get('recovered', 0):,} rows recovered, {counts.get('dropped', 0):,} outcomes dropped"
        )


def by_edge(records):
    return records.values("from_status", "to_status").annotate(number=Count("pk"))
