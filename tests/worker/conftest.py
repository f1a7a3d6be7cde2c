"""What judges and writes, as a worker has it."""

from __future__ import annotations

import pytest

from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.outcomes import Events


@pytest.fixture
def executor():
    return HandlerExecutor(max_crashes=5)


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def committer(executor, events):
    return Committer(executor, events)
