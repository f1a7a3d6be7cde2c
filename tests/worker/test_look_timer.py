"""A lane is looked at again when its next row is due, when somebody says that one is, and now and then all the same."""

from __future__ import annotations

import pytest

from statemachine_fields.schedule.wakeups import ASK_AGAIN_AFTER
from statemachine_fields.worker import prefetch as module
from statemachine_fields.worker.prefetch import BURST, MARGIN, PACE, LookTimer
from tests.worker.rows import Clock


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch, module)


@pytest.fixture
def timer(clock):
    return LookTimer(poll=1.0)


@pytest.fixture
def asleep(timer):
    timer.begin()
    timer.sleep(None)
    return timer


def test_at_first_it_is_looked_at_once_and_claimed(timer):
    assert (timer.is_over, timer.asks_first) == (True, False)


def test_asleep_it_is_asked_at_the_next_poll(asleep, clock):
    assert (asleep.is_over, asleep.left) == (False, 1.0)
    clock.pass_by(1.0)
    assert (asleep.is_over, asleep.asks_first) == (True, True)


@pytest.mark.parametrize(("seconds", "left", "asks_first"), [(0.3, 0.3 + MARGIN, False), (5.0, 1.0, True)])
def test_it_sleeps_until_the_next_row_is_due_or_the_next_poll(seconds, left, asks_first, timer):
    timer.sleep(seconds)
    assert timer.left == pytest.approx(left)
    assert timer.asks_first is asks_first


@pytest.mark.parametrize("hear", [LookTimer.ring, LookTimer.now])
def test_whoever_knows_of_a_row_ends_the_sleep(hear, asleep):
    hear(asleep)
    assert (asleep.is_over, asleep.asks_first) == (True, False)


def test_a_row_that_will_be_due_shortens_the_sleep_and_never_makes_it_longer(asleep):
    asleep.due_in(0.4)
    asleep.due_in(0.8)
    assert asleep.left == pytest.approx(0.4 + MARGIN)


@pytest.mark.parametrize("hear", [LookTimer.ring, LookTimer.now, lambda timer: timer.due_in(0.0)])
def test_what_is_heard_while_it_is_looked_is_not_forgotten(hear, timer, clock):
    """The statement may have begun before the row was there."""
    timer.begin()
    hear(timer)
    timer.sleep(None)
    clock.pass_by(MARGIN)
    assert (timer.is_over, timer.asks_first) == (True, False)


def test_what_was_heard_before_a_look_is_seen_by_it(asleep):
    asleep.ring()
    asleep.begin()
    asleep.sleep(None)
    assert not asleep.is_over


def test_behind_a_gate_it_is_looked_at_once_and_again_when_all_know_of_it(asleep, clock):
    asleep.gate()
    assert (asleep.is_over, asleep.asks_first) == (True, True)
    asleep.begin()
    asleep.sleep(None)
    assert asleep.left == pytest.approx(ASK_AGAIN_AFTER + MARGIN)
    clock.pass_by(asleep.left)
    asleep.begin()
    asleep.sleep(None)
    assert asleep.left == 1.0, "once"


class TestRowsThatKeepComing:
    def test_a_few_looks_may_follow_each_other(self, timer):
        assert [timer.looked() for _ in range(BURST + 1)] == [False] * BURST + [True]

    def test_that_are_rare_are_never_paced(self, timer, clock):
        for _ in range(100):
            assert not timer.looked()
            clock.pass_by(PACE)

    def test_are_looked_for_in_a_rhythm_that_nobody_need_disturb(self, timer, clock):
        timer.pace()
        timer.ring()
        assert (timer.is_over, timer.left) == (False, pytest.approx(PACE))
        clock.pass_by(PACE)
        assert (timer.is_over, timer.asks_first) == (True, False)

    def test_and_end_are_told_of_again(self, timer):
        timer.pace()
        timer.sleep(None)
        timer.ring()
        assert timer.is_over
