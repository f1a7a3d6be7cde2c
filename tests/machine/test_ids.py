"""Audit keys sort by time."""

from __future__ import annotations

import copy
import datetime
import pickle
import threading
import time
import uuid

from statemachine_fields.machine.ids import uuid7, uuid7_floor, uuid7_from, uuid7_many


def test_ids_are_version_7_of_the_standard_variant():
    made = uuid7()
    assert made.version == 7
    assert made.variant == uuid.RFC_4122


def test_ids_of_one_process_ascend_even_within_a_millisecond():
    made = [uuid7() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_made_by_several_threads_are_distinct():
    made: list[uuid.UUID] = []
    threads = [threading.Thread(target=lambda: made.extend(uuid7() for _ in range(2_000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8_000


def test_ids_made_together_ascend_and_are_ids_like_others():
    before, made, after = uuid7(), uuid7_many(1000), uuid7()
    assert [before.int >> 80, *(each.int >> 80 for each in made), after.int >> 80] == sorted(
        each.int >> 80 for each in [before, *made, after]
    )
    assert made == sorted(set(made))
    for each in made[:3]:
        same = uuid.UUID(int=each.int)
        assert (same, hash(same), str(same), repr(same), same.version) == (each, hash(each), str(each), repr(each), 7)
        assert (each.is_safe, each.variant) == (uuid.SafeUUID.unknown, uuid.RFC_4122)
        assert copy.deepcopy(each) == pickle.loads(pickle.dumps(each)) == each  # noqa: S301 - it is ours
    assert uuid7_many(0) == []


def test_an_id_tells_when_it_was_made():
    before = time.time()
    made = uuid7()
    assert before - 0.002 <= (made.int >> 80) / 1000 <= time.time() + 0.002


def test_the_floor_of_a_time_bounds_the_ids_made_before_and_after():
    before = uuid7()
    floor = uuid7_floor(time.time() + 10)
    assert before < floor
    assert uuid7_floor(time.time() - 10) < uuid7()


def test_ids_for_times_of_the_past_ascend_with_them_also_where_they_tie():
    start = datetime.datetime(2019, 5, 1, 12, tzinfo=datetime.UTC)
    microsecond = datetime.timedelta(microseconds=1)
    times = [start, start, start, start + microsecond, start + microsecond, start + datetime.timedelta(days=1)]
    made = list(uuid7_from(times))
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {each.version for each in made} == {7}
    assert [each.int >> 80 for each in made] == [int(at.timestamp() * 1000) for at in times]


def test_an_id_for_a_time_of_the_past_lies_between_the_floors_around_it():
    at = datetime.datetime(2019, 5, 1, 12, tzinfo=datetime.UTC)
    [made] = uuid7_from([at])
    assert uuid7_floor(at.timestamp()) <= made < uuid7_floor(at.timestamp() + 0.001)


def test_ids_for_the_past_leave_those_that_are_made_now_alone():
    before = uuid7()
    list(uuid7_from([datetime.datetime(2500, 1, 1, tzinfo=datetime.UTC)]))
    assert (uuid7().int >> 80) - (before.int >> 80) < 60_000


def test_ids_for_the_past_can_be_kept_below_one_that_is_there():
    there = uuid7()
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
    made = list(uuid7_from([now - datetime.timedelta(days=1), now, now], there))
    assert [*made, there] == sorted([*made, there])
