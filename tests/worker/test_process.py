"""What a worker process sees to for itself."""

from __future__ import annotations

import gc

import pytest

from statemachine_fields.worker.process import COLLECT_AFTER, collect_less_often


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
