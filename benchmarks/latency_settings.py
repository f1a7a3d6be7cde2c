"""Settings of every process of the latency benchmark. The environment says which database, and whether there are wake-ups."""

from __future__ import annotations

import os

from drain_settings import *  # noqa: F403

# An earlier commit may not know of the setting, so that it is there only where it is to be one way or the other.
if "BENCHMARK_WAKE_UPS" in os.environ:
    STATEMACHINE_FIELDS = {"WAKE_UPS": os.environ["BENCHMARK_WAKE_UPS"] == "yes"}
