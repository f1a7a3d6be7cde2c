"""How what happens is counted, and how others are told of it."""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("statemachine_fields.worker")

#: What was counted, by machine, state and kind: how often, and how many seconds handlers took.
Counts = dict[tuple[str, str, str], tuple[int, float]]


def send(signal: Signal, sender: Any, **facts: Any) -> None:
    """Send a signal. Whatever a receiver raises, what it was told has happened."""
    try:
        signal.send_robust(sender, **facts)
    except BaseException:
        logger.exception("A receiver of a signal of %s raised this, and those after it were not called.", sender)
