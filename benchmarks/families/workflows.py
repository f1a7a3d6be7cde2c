"""The same family in DBOS: a workflow that enqueues its children, and waits for the result of each."""

from __future__ import annotations

import witness
from dbos import DBOS
from dbos_peer import QUEUE

#: Seconds between two looks, at the queue and at a result. By default both are a second, which would be much of the time of a cell.
POLLING = 0.05
#: As many as are quickest here; without a limit it starts a thread for each that is enqueued.
OPTIONS = {"polling_interval_sec": POLLING, "worker_concurrency": 100}


@DBOS.workflow()
def first() -> None:
    """Show that the queue is served."""


@DBOS.workflow()
def child() -> None:
    witness.seen()


@DBOS.workflow()
def family(children: int) -> None:
    witness.seen()
    handles = [DBOS.enqueue_workflow(QUEUE, child) for _ in range(children)]
    for handle in handles:
        handle.get_result(polling_interval_sec=POLLING)
