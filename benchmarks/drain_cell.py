"""One process of the drain benchmark, started by drain.py. It tells in a line of JSON what it knows itself.

drain_cell.py drain <contender> <window>     serve what is there, until it is empty or the window is over
drain_cell.py claim <contender> <batch> <times>    claim rows and give them back, again and again
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

import django
import drain_contenders
import psycopg
import witness

from tests import database_url

#: Claims that are not counted: they prepare statements and fill caches.
WARM_UP = 5

# Only the rows that were claimed, which are those that have been due for longest: a search for leases would read all due
# rows, and leave the processor's caches full of them for the next claim to pay for.
GIVE_BACK = """
    UPDATE {table} SET status_lease_owner = '', status_lease_expires_at = NULL, status_crashes = 0
     WHERE id = ANY(ARRAY(
        SELECT id FROM {table} WHERE status = 'PENDING' AND status_next_at <= statement_timestamp()
         ORDER BY status_next_at LIMIT {batch}))"""


def main(what: str, name: str, *arguments: str) -> None:
    django.setup()
    contender = drain_contenders.ALL[name]
    if what == "claim":
        told: dict[str, Any] = {"seconds": claim(contender, *map(int, arguments))}
    else:
        before = cpu_seconds()
        contender.drain(float(arguments[0]))
        # A worker that runs its handlers in this process is not charged for what came before the first.
        before = before if witness.cpu_at_first is None else witness.cpu_at_first
        told = {"cpu": cpu_seconds() - before}
    print(json.dumps(told), flush=True)


def claim(contender: drain_contenders.Contender, batch: int, times: int) -> list[float]:
    """Return how long each claim took. Each finds the same rows due; giving them back is outside of the time."""
    assert contender.claimer is not None  # noqa: S101
    claimer = contender.claimer()
    place = database_url.parse(os.environ["BENCHMARK_DATABASE"])
    give_back = GIVE_BACK.format(table=contender.crowded, batch=batch)
    seconds = []
    with psycopg.connect(host=place["HOST"], user=place["USER"], dbname=place["NAME"], autocommit=True) as other:
        for _ in range(times + WARM_UP):
            began = time.perf_counter()
            found = claimer("PENDING", batch)
            seconds.append(time.perf_counter() - began)
            if found != batch:
                raise AssertionError(f"{contender.name}: {found} rows claimed, not {batch}.")
            other.execute(give_back)
    return seconds[WARM_UP:]


def cpu_seconds() -> float:
    """Return the processor time of this process, and of those that it started and that have ended."""
    mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


if __name__ == "__main__":
    main(*sys.argv[1:])
