"""The processes of a cell: each is started with a database, and ended with whatever it has started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from database import HERE, Database
from session import CELL_SECONDS


def start(
    database: Database, script: str, *arguments: object, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a script of this directory. It can be spoken to, and told what it is to know in its environment."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    surroundings = {**os.environ, **database.environment, **(variables or {})}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=surroundings, start_new_session=True)


def tell(database: Database, script: str, *arguments: object, variables: Mapping[str, str] | None = None) -> Any:
    """Run a script to its end, and return what it tells in its last line."""
    process = start(database, script, *arguments, variables=variables)
    try:
        told, _ = process.communicate(timeout=CELL_SECONDS)
    finally:
        end(process)
    if process.returncode:
        raise SystemExit(f"{script} {' '.join(map(str, arguments))} failed. Its error is above.")
    return json.loads(told.splitlines()[-1])


def end(process: subprocess.Popen[str]) -> None:
    """End a process, and whatever it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@contextmanager
def witnessed(jobs: int = 0, *, every: bool = False) -> Iterator[tuple[Path, dict[str, str]]]:
    """Give the handlers a file for their notes: yield it, and the variables that tell them of it."""
    with tempfile.TemporaryDirectory() as directory:
        notes = Path(directory) / "notes"
        notes.touch()
        variables = {"BENCHMARK_WITNESS": str(notes), "BENCHMARK_JOBS": str(jobs)}
        yield notes, {**variables, "BENCHMARK_WITNESS_EVERY": "yes" if every else "no"}
