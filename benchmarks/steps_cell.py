"""One process of the steps benchmark, started by steps.py.

steps_cell.py drain <model>     serve what is there until it is empty, and tell in a line of JSON what that cost
steps_cell.py serve <model>     serve until it is ended
"""

from __future__ import annotations

import json
import resource
import sys

import django
from django.core.management import call_command


def main(what: str, model: str) -> None:
    django.setup()
    # What the operator types: one worker process, everything else as it is by default.
    call_command("statemachine_worker", f"relays.{model}", *(["--once"] if what == "drain" else []), verbosity=0)
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"cpu": theirs.ru_utime + theirs.ru_stime}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
