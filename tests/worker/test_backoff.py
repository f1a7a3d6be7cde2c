"""Waits grow while something does not work, and end when it does."""

from __future__ import annotations

import pytest

from statemachine_fields.worker import connections as module
from statemachine_fields.worker.connections import Backoff
from tests.worker.rows import Clock


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch, module)


def test_nothing_is_waited_for_that_has_not_failed(clock):
    backoff = Backoff(most=8.0)
    assert (backoff.is_over, backoff.left) == (True, 0.0)


def test_waits_grow_up_to_the_longest(clock):
    backoff, waits = Backoff(most=8.0, first=1.0), []
    for _ in range(40):
        backoff.failed()
        waits.append(backoff.left)
    for wait, full in zip(waits, [1, 2, 4, 8, *[8] * 36], strict=True):
        assert 0.6 * full - 0.001 <= wait <= full + 0.001


def test_workers_do_not_all_wait_as_long(clock):
    waits = set()
    for _ in range(20):
        backoff = Backoff(most=8.0, first=1.0)
        backoff.failed()
        waits.add(backoff.left)
    assert len(waits) > 10


def test_a_wait_is_over_when_its_time_is(clock):
    backoff = Backoff(most=8.0, first=1.0)
    backoff.failed()
    assert not backoff.is_over
    clock.pass_by(1.0)
    assert (backoff.is_over, backoff.left) == (True, 0.0)


def test_a_success_ends_the_wait_and_the_growth(clock):
    backoff = Backoff(most=8.0, first=1.0)
    for _ in range(5):
        backoff.failed()
    backoff.succeeded()
    assert (backoff.is_over, backoff.failures) == (True, 0)
    backoff.failed()
    assert backoff.left <= 1.001


def test_the_first_wait_is_no_longer_than_the_longest():
    backoff = Backoff(most=0.01, first=1.0)
    backoff.failed()
    assert backoff.left <= 0.01
