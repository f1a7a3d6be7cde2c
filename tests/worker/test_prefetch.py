"""A process claims what it can begin soon, and rows that workers may have died of with care."""

from __future__ import annotations

import pytest

from statemachine_fields.worker import prefetch as module
from statemachine_fields.worker.prefetch import FORGOTTEN_AFTER, MOST_SUSPECTS, TOO_LATE, TOO_SOON, Prefetch, WritePace
from tests.worker.rows import Clock


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch, module)


@pytest.fixture
def prefetch(clock):
    return Prefetch(least=4, most=100, suspects_at=clock.now)


def test_a_new_process_claims_what_it_can_run_at_once(prefetch):
    assert prefetch.room(0, free=4) == 4
    assert prefetch.room(0, free=0) == 0, "nobody knows yet for how long those run"


def test_it_never_claims_more_than_the_most():
    assert Prefetch(least=40, most=10).room(0, free=40) == 10


@pytest.mark.parametrize(("waiting", "room"), [(8, 0), (5, 0), (4, 4), (1, 7), (0, 8)])
def test_it_claims_no_more_before_half_is_gone(prefetch, waiting, room):
    prefetch.ran(0.001)
    assert prefetch.room(waiting, free=0) == room


@pytest.mark.parametrize(
    ("seconds", "ahead"), [(0.001, 8), (0.05, 8), (0.08, 5), (0.1, 4), (0.2, 0), (1.0, 0), (60.0, 0)]
)
def test_it_claims_no_more_ahead_than_can_begin_within_a_moment(prefetch, seconds, ahead):
    prefetch.ran(seconds)
    assert prefetch.room(0, free=0) == ahead
    assert prefetch.room(0, free=3) == max(ahead, 3), "threads with nothing to do always get some"


def test_it_learns_from_every_handler_that_ends(prefetch):
    prefetch.ran(60.0)
    for _ in range(40):
        prefetch.ran(0.001)
    assert prefetch.room(0, free=0) == 8


def test_claims_grow_while_they_are_soon_used_up_and_stay_within_the_most(prefetch, clock):
    sizes = []
    for _ in range(20):
        prefetch.claimed(asked=5, got=5)
        sizes.append(prefetch.size)
        clock.pass_by(TOO_SOON / 2)
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (8, 100)


def test_the_claim_that_fills_what_was_added_says_nothing(prefetch, clock):
    sizes = []
    for _ in range(4):
        prefetch.claimed(asked=5, got=5)
        sizes.append(prefetch.size)
    assert sizes == [8, 32, 32, 100], "and where it was used up at once, much is added"


def test_claims_shrink_while_they_last_too_long_but_keep_every_thread_busy(prefetch, clock):
    prefetch.size = 100
    sizes = []
    for _ in range(10):
        prefetch.claimed(asked=5, got=5)
        sizes.append(prefetch.size)
        clock.pass_by(TOO_LATE * 2)
    assert (sizes[1], sizes[-1]) == (50, 4)


def test_a_claim_that_found_less_than_it_asked_for_says_nothing_of_the_size(prefetch, clock):
    prefetch.claimed(asked=5, got=3)
    prefetch.claimed(asked=5, got=5)
    assert prefetch.size == 8


class TestSuspects:
    def test_are_not_looked_for_first(self, prefetch):
        assert not prefetch.wants_suspects(every=5.0)

    def test_are_looked_for_as_soon_as_nothing_else_is_there(self, prefetch):
        prefetch.claimed(asked=5, got=0)
        assert prefetch.wants_suspects(every=5.0)
        prefetch.claimed_suspects(0)
        assert not prefetch.wants_suspects(every=5.0)

    def test_are_looked_for_now_and_then_however_much_else_there_is(self, prefetch, clock):
        clock.pass_by(5.0)
        assert prefetch.wants_suspects(every=5.0)

    def test_are_looked_for_again_at_once_while_there_are_some(self, prefetch):
        prefetch.claimed_suspects(1)
        assert prefetch.wants_suspects(every=5.0)

    def test_are_claimed_alone_at_first_and_more_each_time_that_nobody_died(self, prefetch):
        sizes = []
        for _ in range(12):
            sizes.append(prefetch.suspects)
            prefetch.claimed_suspects(1)
        assert sizes == [1, 1, *[min(2**power, MOST_SUSPECTS) for power in range(1, 11)]]


class TestRowsThatAreNotYetWritten:
    @pytest.fixture
    def pace(self, clock):
        """Of a thread that writes one row after the other."""
        return WritePace(least=8, most=400, one_by_one=True)

    def test_are_a_few_groups_where_many_are_written_together(self):
        pace = WritePace(least=8, most=400)
        pace.wrote(100, 30.0)  # which is no longer than one row would have taken
        assert [pace.room(unwritten) for unwritten in (0, 200, 201)] == [400, 200, 0]

    def test_are_never_fewer_than_can_run_at_the_same_time(self):
        assert WritePace(least=200, most=4).room(0) == 200

    def test_are_few_while_nobody_knows_how_long_a_row_takes(self, pace):
        assert [pace.room(unwritten) for unwritten in (1, 4, 5)] == [7, 4, 0]

    @pytest.mark.parametrize(("seconds", "most"), [(0.0001, 400), (0.001, 100), (0.01, 10), (0.1, 8), (60.0, 8)])
    def test_are_as_many_as_are_written_within_a_moment(self, pace, seconds, most):
        pace.wrote(2, 2 * seconds)
        assert [pace.room(unwritten) for unwritten in (0, most // 2, most // 2 + 1)] == [most, most - most // 2, 0]

    def test_are_as_many_as_others_where_none_of_the_lane_were_written_so_of_late(self, pace, clock):
        assert pace.room(0) == 400, "never"
        assert pace.room(0, is_sure=True) == 8
        pace.wrote(1, 60.0)
        assert pace.room(0) == 8
        clock.pass_by(FORGOTTEN_AFTER)
        assert pace.room(0) == 400
        assert pace.room(5) == 0, "while one waits, how long it takes is what it was"
