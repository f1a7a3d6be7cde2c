"""What a worker process does from its start to its end. Its parent is the supervisor."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import django
from django.db import DatabaseError, InterfaceError, connections

from statemachine_fields.worker.options import WorkerOptions

if TYPE_CHECKING:
    from statemachine_fields.worker.runner import Runner

logger = logging.getLogger("statemachine_fields.worker")

#: Exit codes: all was well and there is nothing more to do; another process should take over.
DONE, RECYCLED = 0, 75

#: Seconds between two looks at handlers whose time may be up.
TICK = 0.1


@dataclass(slots=True)
class Report:
    """What a process tells its supervisor."""

    pid: int
    owner: str
    total: dict[str, float] = field(default_factory=dict)
    held: int = 0
    running: int = 0
    recycling: bool = False


def run_process(options: WorkerOptions, pipe: Any, predecessor: str | None, is_first: bool) -> None:
    """Work until told to stop, and exit. `predecessor` is the name of a process that died and had leases."""
    signals = _Signals()
    django.setup()
    connections.close_all()  # what was open before the fork is the parent's
    from statemachine_fields.worker.heartbeat import Heartbeat
    from statemachine_fields.worker.runner import Runner
    from statemachine_fields.worker.selection import lanes_for
    from statemachine_fields.worker.watch import Watch

    gc.freeze()  # what is loaded now stays; the collector need not look at it again and again
    runner = Runner(lanes_for(options), options)
    signals.stop = runner.stopping
    parent = os.getppid()

    def tell() -> bool:
        report = Report(os.getpid(), runner.owner, dict(runner.events.total), len(runner.held), len(runner.running))
        report.recycling = runner.is_recycling
        with contextlib.suppress(OSError):
            if select.select([], [pipe], [], 0)[1]:  # a supervisor that does not listen must not hold us up
                pipe.send(report)
        return os.getppid() == parent

    tell()
    if predecessor is not None:
        recover(runner, predecessor)
    watch = Watch(runner, tell)
    heartbeat = Heartbeat(runner)
    beating = threading.Thread(target=heartbeat.run, name="statemachine heartbeat", daemon=True)
    beating.start()
    runner.start()
    if is_first:
        threading.Thread(target=_look_at_clocks, args=(runner,), daemon=True).start()
    while not runner.stopping.wait(TICK) and not runner.is_drained.is_set():
        watch.tick()
    runner.stop(watch.tick)
    heartbeat.ended.set()
    beating.join(2)
    with contextlib.suppress(DatabaseError, InterfaceError):
        _write_last_statistics(runner)
    tell()
    logging.shutdown()
    # Threads may still run whose time was up; nothing but the end of the process stops them.
    os._exit(RECYCLED if runner.is_recycling else DONE)


class _Signals:
    """SIGTERM stops in good order, however often it comes: systemd sends it to every process, and so does the supervisor.
    Who wants it to end now asks the supervisor twice. SIGINT goes to the whole group, and the supervisor passes it on."""

    def __init__(self) -> None:
        self.stop: threading.Event | None = None
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, number: int, frame: Any) -> None:
        if self.stop is None:  # nothing has begun, so nothing is left behind
            os._exit(DONE)
        self.stop.set()


def recover(runner: Runner, predecessor: str) -> None:
    """Take back at once what a process held that our supervisor knows to be dead."""
    for lane in runner.lanes:
        try:
            rows = lane.leases.recover(lane.connection, lane.bound.table, lane.states, predecessor)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("What %s held cannot be taken back now; its leases will run out. %s", predecessor, error)
            lane.connection.close()
            continue
        if rows:
            logger.warning("Took back %d rows of %s from %s, which died.", rows, lane, predecessor)


def _look_at_clocks(runner: Runner) -> None:
    """Say so if rows wait that no longer should, or should and do not: the policy in the code has changed."""
    from statemachine_fields.machine.reschedule import mismatches

    try:
        for bound, using in {(lane.bound, lane.using) for lane in runner.lanes}:
            needless, missing = mismatches(bound, using)
            if needless or missing:
                what = " and ".join(
                    [
                        *(["rows are due in states where nothing is ever due"] if needless else []),
                        *(["rows have no time in states where something is to be done"] if missing else []),
                    ]
                )
                logger.warning("%s: %s. Run `manage.py statemachine_reschedule %s`.", bound, what, bound)
    except (DatabaseError, InterfaceError):
        logger.info("Could not compare the clocks of rows with the policy in the code.", exc_info=True)
    finally:
        connections.close_all()


def _write_last_statistics(runner: Runner) -> None:
    from statemachine_fields.worker.statistics import write_statistics

    write_statistics(runner.events)
