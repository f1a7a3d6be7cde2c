"""Audit keys sort by time."""

from __future__ import annotations

import threading
import time
import uuid

from statemachine_fields.machine.ids import uuid7, uuid7_floor


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


def test_an_id_tells_when_it_was_made():
    before = time.time()
    made = uuid7()
    assert before - 0.002 <= (made.int >> 80) / 1000 <= time.time() + 0.002


def test_the_floor_of_a_time_bounds_the_ids_made_before_and_after():
    before = uuid7()
    floor = uuid7_floor(time.time() + 10)
    assert before < floor
    assert uuid7_floor(time.time() - 10) < uuid7()
