"""The processes of cells: what they are given to write their notes to, and how they are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def end(process: subprocess.Popen[str]) -> None:
    """End a cell, and whatever it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@contextmanager
def witnessed(jobs: int, *, every: bool = False) -> Iterator[tuple[Path, dict[str, str]]]:
    """Give the handlers a file for their notes: yield it, and the variables that tell them of it."""
    with tempfile.TemporaryDirectory() as directory:
        notes = Path(directory) / "notes"
        notes.touch()
        variables = {"BENCHMARK_WITNESS": str(notes), "BENCHMARK_JOBS": str(jobs)}
        yield notes, {**variables, "BENCHMARK_WITNESS_EVERY": "yes" if every else "no"}
