"""What judges and writes, as a worker has it."""

from __future__ import annotations

import pytest

from statemachine_fields.worker.attempt import Attempts
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.events import Events


@pytest.fixture
def attempts():
    return Attempts(max_crashes=5)


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def committer(attempts, events):
    return Committer(attempts, events)
