"""One process of the joins benchmark, started by joins.py. It tells in a line of JSON what that cost.

joins_cell.py <models>     serve them until nothing is due
joins_cell.py DBOS         run a family of workflows
"""

from __future__ import annotations

import json
import resource
import sys

import django
import witness
from django.core.management import call_command


def main(*models: str) -> None:
    who, before = resource.RUSAGE_CHILDREN, 0.0
    if models == ("DBOS",):
        run_workflows()
        who, before = resource.RUSAGE_SELF, witness.cpu_at_first or 0.0
    else:
        django.setup()
        # What the operator types: one worker process, everything else as it is by default.
        call_command("statemachine_worker", *models, "--once", verbosity=0)
    used = resource.getrusage(who)
    print(json.dumps({"cpu": used.ru_utime + used.ru_stime - before}), flush=True)


def run_workflows() -> None:
    import dbos_peer
    from dbos import DBOS
    from families import workflows

    with dbos_peer.launched(**workflows.OPTIONS):
        DBOS.enqueue_workflow(dbos_peer.QUEUE, workflows.first).get_result(polling_interval_sec=workflows.POLLING)
        DBOS.start_workflow(workflows.family, witness.JOBS).get_result()


if __name__ == "__main__":
    main(*sys.argv[1:])
