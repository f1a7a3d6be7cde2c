"""Keep a database server for exactly as long as the process that asked for it lives.

This file runs as a process of its own, started by `tests.server`. Its standard input is a pipe whose other end only
the asker holds, so the kernel closes it however the asker ends, `kill -9` included. Then the keeper stops the server
and removes its directory. It imports nothing of the project and needs the standard library alone.
"""

from __future__ import annotations

import json
import select
import shutil
import signal
import subprocess
import sys
from typing import Any

#: A server that ends by itself is noticed after this long; the end of the asker is noticed at once.
POLL_SECONDS = 0.1

#: PostgreSQL frees its shared memory on SIGQUIT and not on SIGKILL, so it is asked first and killed after this.
STOP_SECONDS = 10


def main(directory: str) -> int:
    """Run what arrives as one line of JSON, and clean up in any case."""
    try:
        line = sys.stdin.readline()
        return keep(**json.loads(line)) if line else 0
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def keep(setup: list[str], server: list[str], account: dict[str, Any]) -> int:
    """Run `setup` to its end, then `server` until the asker is gone, both as `account`; 1 if either ends by itself."""
    # Never interrupted, as it is short: initdb, when killed, leaves shared memory behind.
    if subprocess.run(setup, stdin=subprocess.DEVNULL, cwd="/", check=False, **account).returncode:
        return 1
    if asker_is_gone(within=0):
        return 0
    process = subprocess.Popen(server, stdin=subprocess.DEVNULL, cwd="/", **account)
    while not asker_is_gone(within=POLL_SECONDS):
        if process.poll() is not None:
            return 1
    stop(process)
    return 0


def asker_is_gone(within: float) -> bool:
    """Wait for the pipe to close. Nothing more is ever written to it, so that it can be read means its end."""
    return bool(select.select([sys.stdin], [], [], within)[0])


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server, and return when it is gone."""
    process.send_signal(signal.SIGQUIT)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
