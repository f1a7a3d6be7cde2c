"""The workers of a campaign: each has its own surroundings, and is replaced when it ends."""

from __future__ import annotations

import itertools
import random
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.faults.campaign.rows import LABELS
from tests.faults.campaign.timeline import Timeline
from tests.faults.harness import Worker
from tests.faults.injections import injected
from tests.patience import PATIENCE, eventually

LEASE = 2.0
#: How often all rows that wait for others are looked at, at the latest.
FLOOR_SECONDS = 2.0
SETTINGS = {"LEASE_SECONDS": LEASE, "POLL_SECONDS": 0.1, "STOP_SECONDS": 5.0, "MAX_CRASHES": 6}

#: What a worker says that exits with 1 for a good reason.
EXCUSES = ("could not be given back", "while it stopped", "died of")


def has_pool() -> bool:
    """Say whether Django's `pool` option can be used here."""
    return find_spec("psycopg_pool") is not None


@dataclass(eq=False)
class Slot:
    """A place for one worker, and what is peculiar to it."""

    name: str
    arguments: list[str]
    injections: dict[str, Any]
    worker: Any = None
    #: That it is not to be replaced any more.
    is_stopped: bool = False
    #: Held by whoever ends the worker, so that nobody takes that for an accident.
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def has_begun(self) -> bool:
        """Whether the worker has begun. Before that it may know nothing of signals."""
        return bool(self.worker.has_begun)


class Crew:
    """Several workers, of which there is always one in each slot."""

    def __init__(
        self,
        url: str,
        directory: Path,
        timeline: Timeline,
        slots: list[Slot],
        on_broken: Callable[[str, str], None],
        *,
        run_for: float,
    ) -> None:
        self.url, self.directory, self.timeline, self.run_for = url, directory, timeline, run_for
        self.slots = slots
        self.workers: list[Worker] = []
        self._numbers = itertools.count(1)
        self._on_broken = on_broken

    def start(self, slot: Slot) -> None:
        slot.worker = Worker(
            self.url,
            self.directory / f"{next(self._numbers):03d}-{slot.name}",
            *slot.arguments,
            "--run-for",
            str(self.run_for),
            labels=LABELS,
            settings=SETTINGS,
            constants={"looking.FLOOR_SECONDS": FLOOR_SECONDS},
            environment=injected(**slot.injections),
        )
        self.workers.append(slot.worker)

    def start_all(self) -> None:
        for slot in self.slots:
            self.start(slot)

    def children(self) -> list[tuple[Slot, int]]:
        return [(slot, pid) for slot in self.slots for pid in slot.worker.children()]

    def look(self) -> None:
        """Replace those that have ended by themselves, which none should."""
        for slot in self.slots:
            if slot.is_stopped or not slot.lock.acquire(blocking=False):
                continue
            try:
                code = slot.worker.process.poll()
                if code is not None and not slot.is_stopped:
                    self.timeline.note(f"{slot.name}: ended by itself with {code}")
                    self._on_broken("supervision", f"{slot.worker.directory.name} ended by itself with code {code}")
                    self.start(slot)
            finally:
                slot.lock.release()

    def stop(self, slots: Iterable[Slot], *, in_calm: bool = False) -> None:
        """Stop in good order; whoever does not is killed, and reported.

        :param in_calm: that nothing stands in the way. If something does, a worker may fail to give back its leases, or
            lose a process while it stops, and has to say so and exit with 1.
        """
        slots = [*slots]
        if in_calm:
            eventually(lambda: all(slot.has_begun for slot in slots), "all workers have begun")
        for slot in slots:
            slot.worker.kill(number=signal.SIGTERM)
        for slot in slots:
            name = slot.worker.directory.name
            try:
                code = slot.worker.wait()
            except AssertionError:
                self._on_broken("I8 stop", f"{name} has not stopped {PATIENCE:g} s after SIGTERM")
                slot.worker.kill_all()
                self.timeline.count("kills")
                continue
            is_excused = not in_calm and code == 1 and any(text in slot.worker.log() for text in EXCUSES)
            self.timeline.count("stops that could not give all back", is_excused)
            if code != 0 and not is_excused:
                self._on_broken("I8 exit code", f"{name} exited with {code} after SIGTERM")

    def wait_for_orphans(self) -> None:
        """See that processes whose supervisor is gone have ended, too."""
        for worker in self.workers:
            try:
                worker.wait()
            except AssertionError:
                self._on_broken("supervision", f"{worker.directory.name} left {worker.members()} behind")

    def clean_up(self) -> None:
        for worker in self.workers:
            worker.kill_all(signal.SIGCONT)
            worker.clean_up()

    def log_of(self, text: str, lines: int = 12) -> list[str]:
        """Return the last lines in which workers said something about a text."""
        said = [
            f"{worker.directory.name}: {line}"
            for worker in self.workers
            for line in worker.log().splitlines()
            if text in line
        ]
        return sorted(said, key=lambda line: line.partition(": ")[2])[-lines:]

    def deaths(self) -> int:
        """Return how many processes died, as their supervisors say."""
        return sum(worker.log().count(" died of ") for worker in self.workers)


def make_slots(chance: random.Random, kinds: list[str], place: dict[str, str], decoy: str) -> list[Slot]:
    """Return slots as the kinds of harm want them: directly and through the proxy, with time-outs, a router, a pool."""

    def processes() -> list[str]:
        arguments = ["--processes", str(chance.choice([1, 2])), "--threads", str(chance.choice([1, 4]))]
        return [*arguments, "--max-rows", "100"] if chance.random() < 0.3 else arguments

    slots = [
        Slot("direct", ["--processes", "2"], {}),
        Slot("proxied", processes(), {"database": place}),
    ]
    if "timeouts" in kinds:
        which, milliseconds = chance.choice(["statement_timeout", "lock_timeout"]), chance.choice([200, 500, 1000])
        timeouts = {"OPTIONS": {"options": f"-c {which}={milliseconds}"}}
        slots.append(Slot(f"{which}-{milliseconds}", processes(), {"database": {**place, **timeouts}}))
    if "pool" in kinds and has_pool():
        pool = {"OPTIONS": {"pool": {"min_size": 2, "max_size": 16}}, "CONN_MAX_AGE": 0}
        slots.append(Slot("pool", processes(), {"database": {**place, **pool}}))
    if "queues" in kinds:
        queues = ["--queue", "default", "--queue", "mail=1", "--queue", "post"]
        slots.append(Slot("queues", ["--processes", "1", "--threads", "2", *queues], {}))
    if "router" in kinds:
        router = {"databases": {"default": decoy}, "routers": ["tests.faults.injections.Stubborn"]}
        slots.append(Slot("router", ["--processes", "1", "--database", "main"], router))
    return slots
