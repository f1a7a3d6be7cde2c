"""One process of the latency benchmark, started by latency.py.

latency_cell.py serve <contender>                     serve until it is ended
latency_cell.py enqueue <contender>                   read pauses, a line of JSON, add a job after each, and tell when; again
latency_cell.py work <model>                          serve a model of ours until it is ended
latency_cell.py write <model> <writers> <seconds>     create rows, with so many connections, for so long, and tell how many
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
from typing import Any

import django

#: Rows that are not counted: each writer connects, and prepares its statements.
WARM_UP = 5


def main(what: str, name: str, *arguments: str) -> None:
    django.setup()
    import drain_ours
    import latency_contenders

    if what == "serve":
        latency_contenders.ALL[name].serve()
    elif what == "enqueue":
        for line in sys.stdin:
            say(latency_contenders.ALL[name].enqueue(json.loads(line)))
    elif what == "work":
        drain_ours.serve_ours(name)
    else:
        say(write(name, int(arguments[0]), float(arguments[1])))


def write(label: str, writers: int, seconds: float) -> dict[str, float]:
    """Create rows in so many processes, each of them for itself, and return how many there were within how long."""
    context = multiprocessing.get_context("fork")  # before there is any connection
    together, told = context.Barrier(writers), context.SimpleQueue()
    started = [context.Process(target=write_rows, args=(label, seconds, together, told)) for _ in range(writers)]
    for process in started:
        process.start()
    notes = [told.get() for _ in started]
    for process in started:
        process.join()
    rows, begun, ended, cpu = zip(*notes, strict=True)
    return {"rows": sum(rows), "seconds": max(ended) - min(begun), "cpu": sum(cpu), "warm_up": writers * WARM_UP}


def write_rows(label: str, seconds: float, together: Any, told: Any) -> None:
    from django.apps import apps

    create = apps.get_model(label).objects.create
    for _ in range(WARM_UP):
        create()
    together.wait()
    rows, cpu, begun = 0, cpu_seconds(), time.monotonic()
    while time.monotonic() < begun + seconds:
        create()
        rows += 1
    told.put((rows, begun, time.monotonic(), cpu_seconds() - cpu))


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def say(told: object) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
