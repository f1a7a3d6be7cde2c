"""Start a throw-away database server that cannot outlive the process that started it."""

from __future__ import annotations

import atexit
import grp
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

KEEPER = Path(__file__).with_name("keeper.py")


class ServerError(RuntimeError):
    """No server could be found or started; the message says what to do."""


class Server:
    """One server below one temporary directory, both watched by a keeper process from before the first file exists."""

    def __init__(self, name: str) -> None:
        # Below /tmp by name: a unix socket path holds about 100 bytes, and TMPDIR may be longer than that.
        self.directory = Path(tempfile.mkdtemp(prefix=f"smf-{name}-", dir="/tmp"))
        self.account = unprivileged_account()
        if self.account:
            shutil.chown(self.directory, self.account["user"], self.account["group"])
        # A file without a name: it needs no cleaning up, and survives the directory, so it can explain a failure.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", KEEPER, self.directory],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,  # Ctrl-C is for the tests; the keeper ends when they have ended
        )
        self._owner = os.getpid()
        atexit.register(self.stop)

    def start(self, setup: list[str | Path], server: list[str | Path], ready: Callable[[], bool]) -> None:
        """Run the command `setup`, then `server`, and return once `ready()` says that it accepts connections.

        Raise `ServerError` with the log when either fails or both take longer than `PATIENCE`.
        """
        request = {
            "setup": [str(part) for part in setup],
            "server": [str(part) for part in server],
            "account": self.account,
        }
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(json.dumps(request).encode() + b"\n")
        self._keeper.stdin.flush()
        deadline = time.monotonic() + PATIENCE
        while not ready():
            if self._keeper.poll() is not None:
                raise ServerError(f"{server[0]} did not start. Its log:\n{self._read_log()}")
            if time.monotonic() > deadline:
                self.stop()
                raise ServerError(f"{server[0]} not ready after {PATIENCE:g} s. Its log:\n{self._read_log()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Let the keeper stop the server and remove the directory, and wait until it has."""
        # A forked child inherits this hook with the rest of its memory, and must leave the server to its parent.
        if os.getpid() != self._owner or self._keeper.stdin is None:
            return
        self._keeper.stdin.close()
        self._keeper.wait(timeout=PATIENCE)

    def _read_log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]


def unprivileged_account() -> dict[str, Any]:
    """Return `subprocess` arguments that give up root, which database servers refuse; nothing for anyone else."""
    if os.geteuid() != 0:
        return {}
    groups = {group.gr_name for group in grp.getgrall()}
    return {"user": "nobody", "group": "nogroup" if "nogroup" in groups else "nobody", "extra_groups": []}
