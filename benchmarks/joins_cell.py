"""One process of the joins benchmark, started by joins.py: serve the models named until nothing is due, and tell in a line of JSON
what that cost."""

from __future__ import annotations

import json
import resource
import sys

import django
from django.core.management import call_command


def main(*models: str) -> None:
    django.setup()
    # What the operator types: one worker process, everything else as it is by default.
    call_command("statemachine_worker", *models, "--once", verbosity=0)
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"cpu": theirs.ru_utime + theirs.ru_stime}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
