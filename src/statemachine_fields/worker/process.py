"""What a worker process does from its start to its end. Its parent is the supervisor."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django
from django.db import DatabaseError, InterfaceError, connections, router

from statemachine_fields.worker.options import WorkerOptions
from statemachine_fields.worker.wires import Wires, is_writable

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.worker.runner import Runner

logger = logging.getLogger("statemachine_fields.worker")

#: What a process ends with that ends itself. Code of the user's can end it as well, with any code: its last report tells.
ENDED = 0

#: Seconds between two looks at handlers whose time may be up.
TICK = 0.1
#: How long the last report may take.
LAST_WORDS = 5.0
#: So many more objects than before make Python look for garbage. A thousand rows that are in hand are some, and are none.
COLLECT_AFTER = 10_000


@dataclass(slots=True)
class ProcessReport:
    """What a process tells its supervisor."""

    owner: str
    total: dict[str, float] = field(default_factory=dict)
    held: int = 0
    running: dict[str, int] = field(default_factory=dict)
    recycling: bool = False
    #: That it is the last one: the process has stopped in good order.
    ended: bool = False
    #: What could not be done before the end: leases that could not be given back, machines that could not be looked at.
    left: str = ""


@dataclass(slots=True)
class Orders:
    """What a supervisor tells a process."""

    #: How many rows of each queue still run in processes that this one takes the place of.
    elsewhere: dict[str, int] = field(default_factory=dict)
    #: That a process which is being replaced has no more time than one that is told to stop.
    hurry: bool = False


@dataclass(frozen=True, slots=True)
class Pipes:
    """What a process is connected with: the supervisor, to which it reports and whose orders it hears, and the listener."""

    reports: Any
    orders: Any
    wires: Wires | None = None


def collect_less_often() -> None:
    """Let Python look for garbage less often than it does by default, unless the project has seen to that."""
    after, *others = gc.get_threshold()
    if 0 < after < COLLECT_AFTER:
        gc.set_threshold(COLLECT_AFTER, *others)


def run_process(
    options: WorkerOptions,
    pipes: Pipes,
    supervisor: int,
    slot: int,
    predecessor: str | None,
    is_first: bool,
    orders: Orders,
) -> None:
    """Work until told to stop, and exit.

    :param supervisor: the process that this one must not outlive for long.
    :param slot: its place among the processes, which it shares with those that it replaces.
    :param predecessor: the name of a process that died and had leases.
    """
    signals = _Signals()
    django.setup()
    from statemachine_fields.worker.lease import lanes_for
    from statemachine_fields.worker.runner import Runner
    from statemachine_fields.worker.watch import Watchdog

    name_process("worker")
    gc.freeze()  # what is loaded now stays; the collector need not look at it again and again
    collect_less_often()
    runner = Runner(lanes_for(options), options, predecessor=predecessor)
    signals.has_begun = True
    link = SupervisorLink(pipes, supervisor, runner, orders)
    watchdog = Watchdog(runner, link.report)
    link.report()
    if is_first:
        threading.Thread(target=_compare_schedules, args=(runner,), daemon=True).start()
    if pipes.wires is not None:
        runner.listen(pipes.wires, slot)
    runner.start()
    while not signals.is_stop_wanted and not runner.stopping.wait(TICK) and not runner.is_drained:
        watchdog.tick()
    runner.stop(watchdog.tick, lambda: not runner.is_recycling or signals.is_stop_wanted or link.orders.hurry)
    left = runner.left_behind()
    if left:
        text = "Worker process %d ends, and leases could not be given back: %s. They will run out."
        logger.error(text, os.getpid(), left)
    elif options.once and runner.claiming.trouble_since is not None:
        left = "machines that could not be looked at"
        logger.error("Worker process %d ends, though it could not look for due rows everywhere.", os.getpid())
    _write_last_statistics(runner)
    runner.events.digest.flush(everything=True)
    link.report_last(left)
    logging.shutdown()
    # Threads may still run whose time was up; nothing but the end of the process stops them.
    os._exit(ENDED)


def name_process(name: str) -> None:
    """Let operators tell processes apart: `ps -o pid,comm`. Where the system has no place for it, nothing happens."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"sm-{name}")


class _Signals:
    """SIGTERM stops in good order, however often it comes: systemd sends it to every process, and so does the supervisor.
    Who wants it to end now asks the supervisor twice. SIGINT goes to the whole group, and the supervisor passes it on.

    A signal is handled in the middle of whatever the main thread does, which may have the lock of the event that stops the
    process. So it is only noted here, and looked at with the next tick."""

    def __init__(self) -> None:
        self.has_begun = False
        self.is_stop_wanted = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, number: int, frame: Any) -> None:
        if not self.has_begun:  # so nothing is left behind
            os._exit(ENDED)
        self.is_stop_wanted = True


class SupervisorLink:
    """The pipes to and from the supervisor."""

    def __init__(self, pipes: Pipes, supervisor: int, runner: Runner, orders: Orders) -> None:
        self.pipe = pipes.reports
        self.orders_pipe = pipes.orders
        self.supervisor = supervisor
        self.runner = runner
        self._obey(orders)

    def _obey(self, orders: Orders) -> None:
        self.orders = orders
        self.runner.inflight.buffer.count_elsewhere(orders.elsewhere)

    def report(self) -> bool:
        """Say how it goes, hear what there is to hear, and return whether the supervisor lives."""
        with contextlib.suppress(OSError, EOFError):
            if is_writable(self.pipe):  # a supervisor that does not listen must not hold us up
                self.pipe.send(self._report())
            while self.orders_pipe.poll():
                self._obey(self.orders_pipe.recv())
        return os.getppid() == self.supervisor

    def report_last(self, left: str) -> None:
        report = self._report()
        report.ended, report.left = True, left
        with contextlib.suppress(OSError):
            if is_writable(self.pipe, LAST_WORDS):
                self.pipe.send(report)

    def _report(self) -> ProcessReport:
        runner = self.runner
        return ProcessReport(
            owner=runner.owner,
            total=dict(runner.events.total),
            held=len(runner.inflight.held),
            running=runner.inflight.running_by_queue(),
            recycling=runner.is_recycling,
        )


def _compare_schedules(runner: Runner) -> None:
    """Say so if rows wait that no longer should, or should and do not: the policy in the code has changed."""
    try:
        runner.own.use({lane.using for lane in runner.lanes}, "clocks")
        for bound, using in {(lane.bound, lane.using) for lane in runner.lanes}:
            try:
                _compare_times(bound, using)
                _compare_states(bound, using)
                _compare_events(bound, using)  # last, as it may take longer than a statement may
            except (DatabaseError, InterfaceError) as error:
                text = "Could not compare the clocks of %s with the policy in the code: %s"
                logger.info(text, bound, str(error).strip())
    finally:
        connections.close_all()


def _compare_times(bound: Binding[Any], using: str) -> None:
    from statemachine_fields.schedule.reschedule import mismatches

    needless, missing = mismatches(bound, using)
    found = {
        "rows are due in states where nothing is ever due": needless,
        "rows have no time in states where something is to be done": missing,
    }
    if what := " and ".join(each for each, is_so in found.items() if is_so):
        logger.warning("%s: %s. Run `manage.py statemachine_reschedule %s`.", bound, what, bound)


def _compare_states(bound: Binding[Any], using: str) -> None:
    if undeclared := bound.face.undeclared_states(using=using):
        logger.warning(
            "%s: rows are in %s, which this code does not declare, so its workers leave them alone. If no other release "
            "declares it, declare it again, or move them with force_transition_to().",
            bound,
            ", ".join(repr(state) for state in undeclared),
        )


def _compare_events(bound: Binding[Any], using: str) -> None:
    from statemachine_fields.schedule.asleep import are_some_stranded

    if are_some_stranded(bound, using):
        text = (
            "%s: rows sleep beside events that they wait for, which came before the code said so. When no other release runs any "
            "more, run `manage.py statemachine_reschedule %s`."
        )
        logger.warning(text, bound, bound)


def _write_last_statistics(runner: Runner) -> None:
    """Write what was counted last, in a thread, because it must not be waited for however silent the database is."""

    def write() -> None:
        runner.own.use([router.db_for_write(RunStatistics)], "statistics")
        until = time.monotonic() + LAST_WORDS / 2
        while True:
            try:
                return runner.statistics.write()
            except (DatabaseError, InterfaceError) as error:
                if time.monotonic() > until:
                    text = "The last run statistics of process %d could not be written: %s"
                    return logger.warning(text, os.getpid(), error)
                close_connections()
                time.sleep(0.05)  # another process may have been in the way, which ends at the same time

    from statemachine_fields.worker.connections import close_connections
    from statemachine_fields.worker.models import RunStatistics

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    writing.join(LAST_WORDS)  # which is a connection and some statements, maybe to a server that is far away
    if writing.is_alive():
        logger.warning("The last run statistics of process %d could not be written in time.", os.getpid())
