"""What a worker process sees to for itself."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from statemachine_fields.worker.process import COLLECT_AFTER, collect_less_often
from tests.patience import PATIENCE

#: A process that looks all the time whether it is to stop, as one does with every tick, and is told so all the time.
TOLD_TO_STOP = """
import signal, threading
from statemachine_fields.worker import process

stopping, signals = threading.Event(), process._Signals()
signals.has_begun, signals.stop = True, stopping
signal.signal(signal.SIGALRM, signals._on_term)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for _ in range(50_000):
    stopping.wait(0.0)
    stopping.clear()
signal.setitimer(signal.ITIMER_REAL, 0.0)
assert signals.is_stop_wanted
"""


@pytest.fixture(autouse=True)
def _as_before():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("before", "after"),
    [(700, COLLECT_AFTER), (COLLECT_AFTER * 2, COLLECT_AFTER * 2), (0, 0)],
    ids=["default", "more", "off"],
)
def test_garbage_is_looked_for_less_often_unless_the_project_has_seen_to_that(before, after):
    gc.set_threshold(before, 7, 8)
    collect_less_often()
    assert gc.get_threshold()[:2] == (after, 7)


def test_a_signal_that_comes_while_it_is_looked_for_is_heard():
    """It may come when the main thread has the lock of an event, for which a handler of signals would wait for ever."""
    subprocess.run([sys.executable, "-c", TOLD_TO_STOP], check=True, timeout=PATIENCE)
