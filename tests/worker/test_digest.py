"""The first line of a kind is logged at once, and the others as a count."""

from __future__ import annotations

import logging

import pytest

from statemachine_fields.worker import digest as module
from statemachine_fields.worker.digest import SECONDS, Digest, cause_of
from tests.worker.rows import Clock

logger = logging.getLogger("statemachine_fields.worker")


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch, module)


@pytest.fixture
def digest(clock):
    return Digest(logger)


def test_the_first_of_each_kind_is_logged_at_once(digest, caplog):
    for kind in ("a", "b", "a"):
        digest.log(kind, logging.WARNING, "%s happened", kind)
    assert caplog.messages == ["a happened", "b happened"]


def test_the_others_of_a_minute_are_counted_with_the_next(digest, clock, caplog):
    for number in range(4):
        digest.log("kind", logging.ERROR, "row %d", number)
    clock.pass_by(SECONDS)
    digest.log("kind", logging.ERROR, "row %d", 4)
    assert caplog.messages == ["row 0", "row 4 (3 more like it since the last line.)"]


def test_a_minute_that_is_over_is_told_of_even_if_nothing_comes_after(digest, clock, caplog):
    for number in range(4):
        digest.log("kind", logging.ERROR, "row %d", number)
    digest.flush()
    assert caplog.messages == ["row 0"]
    clock.pass_by(SECONDS)
    digest.flush()
    digest.flush()
    assert caplog.messages == ["row 0", "3 more like this in the last minute: row 3"]
    assert caplog.records[-1].levelno == logging.ERROR


def test_at_the_end_everything_is_told(digest, caplog):
    for _ in range(2):
        digest.log("kind", logging.WARNING, "it happened")
    digest.flush(everything=True)
    assert caplog.messages == ["it happened", "1 more like this in the last minute: it happened"]


def test_what_was_seen_once_is_not_told_again(digest, caplog):
    digest.log("kind", logging.WARNING, "it happened")
    digest.flush(everything=True)
    assert caplog.messages == ["it happened"]


def test_kinds_beyond_number_are_logged_line_by_line_and_not_kept(digest, caplog, monkeypatch):
    monkeypatch.setattr(module, "MOST_KINDS", 2)
    for kind in ("a", "b", "c", "c", "a"):
        digest.log(kind, logging.WARNING, "%s", kind)
    assert caplog.messages == ["a", "b", "c", "c"]


def test_an_error_is_logged_with_where_it_comes_from(digest, caplog):
    digest.log("kind", logging.WARNING, "it happened", error=raised(ValueError("this")))
    assert caplog.records[0].exc_info[1].args == ("this",)


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def raised_elsewhere(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_errors_from_one_place_have_one_cause():
    assert cause_of(raised(ValueError("row 1"))) == cause_of(raised(ValueError("row 2")))
    assert cause_of(raised(ValueError())) != cause_of(raised(KeyError()))
    assert cause_of(raised(ValueError())) != cause_of(raised_elsewhere(ValueError()))
    assert cause_of(ValueError()) == cause_of(ValueError())


def test_texts_have_one_cause_if_they_differ_in_numbers_only():
    assert cause_of(None, "row 17 is locked") == cause_of(None, "row 4 is locked")
    assert cause_of(None, "row 17 is locked") != cause_of(None, "row 17 is gone")
