"""What every handler of every contender calls, and nothing else: it notes when the first job ran.

The note is a line in a file, so it does not matter in which process or thread a worker runs its handlers.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

#: The file for the notes, and how many jobs there are.
FILE, JOBS = os.environ.get("BENCHMARK_WITNESS", os.devnull), int(os.environ.get("BENCHMARK_JOBS", "0"))

#: Whether to note every call, not the first alone.
EVERY = os.environ.get("BENCHMARK_WITNESS_EVERY") == "yes"

#: The processor time that this process had used when its first job ran.
cpu_at_first: float | None = None

_numbers = itertools.count(1)  # unlike `+= 1`, its next() is one step for threads
_at_first: Callable[[], None] | None = None
_at_last: Callable[[], None] | None = None


def watch(*, first: Callable[[], None] | None = None, last: Callable[[], None] | None = None) -> None:
    """Call `first` with the first job, and `last` with the last one, before its handler returns."""
    global _at_first, _at_last
    _at_first, _at_last = first, last


def seen() -> None:
    """Say that a job runs."""
    number = next(_numbers)
    if number == 1 or EVERY:
        _note()
    if number == 1:
        _begin()
    if number == JOBS and _at_last is not None:
        _at_last()


def _begin() -> None:
    global cpu_at_first  # noqa: PLW0603
    cpu_at_first = time.process_time()
    if _at_first is not None:
        _at_first()


def _note() -> None:
    line = f"{time.time()!r}\n".encode()
    file = os.open(FILE, os.O_WRONLY | os.O_APPEND)
    os.write(file, line)
    os.close(file)
