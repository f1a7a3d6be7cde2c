"""One process of one cell: set up, warm up, say so, wait for the word, work, and tell how long it took.

Started by run.py. Standard input brings the job as a line of JSON, then the word to start as another line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import contenders
import django


def main(benchmark: str, name: str) -> None:
    job = json.loads(sys.stdin.readline())
    django.setup()
    contender = contenders.ALL[benchmark][name]
    work = contender.build()
    warm_up, items = items_of(contender, job["warm_up"]), items_of(contender, job["items"])
    for item in warm_up:
        work(item)
    say({"ready": True})
    if not sys.stdin.readline():
        return  # whoever started us is gone
    began, cpu = time.monotonic(), time.process_time()
    for item in items:
        work(item)
    say({"cpu": time.process_time() - cpu, "ended": time.monotonic(), "began": began})


def items_of(contender: contenders.Contender, keys: Sequence[int]) -> Sequence[Any]:
    """Return what the contender is given: the keys, new instances, or the loaded ones in the order of the keys."""
    if contender.takes_keys:
        return keys
    from django.apps import apps

    model = apps.get_model("orders", contender.model)
    if contender.takes_new:
        return [[model(note="x" * 40) for _ in range(many)] for many in keys]
    found = model.objects.in_bulk(keys)
    return [found[key] for key in keys]


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
