"""How long tests wait for what is to come.

A deadline ends a test that is broken, and must never fail one whose machine is slow. So it is generous, the same for all, and
proves nothing: that something did not wait for a lease, a poll or a floor is shown where that is endless.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

#: Seconds. Only a failing test waits so long; `tests.faults.mutations`, where tests are to fail, has less patience.
PATIENCE = float(os.environ.get("SMF_PATIENCE", "300"))

Fact = TypeVar("Fact")


def eventually(fact: Callable[[], Fact], what: str = "it is so") -> Fact:
    """Wait until a fact is true and return it; fail with what was waited for."""
    deadline = time.monotonic() + PATIENCE
    while not (found := fact()):
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.02)
    return found
