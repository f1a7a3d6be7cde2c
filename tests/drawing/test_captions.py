"""Widths of text, and lines and shortening by them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachine_fields.drawing.captions import shorten, width_of, wrap


def test_wide_characters_count_about_double():
    assert width_of("审核", 10) > 1.7 * width_of("aa", 10)
    assert width_of("il", 10) < width_of("aa", 10) < width_of("MW", 10)


def test_marks_on_characters_have_no_width():
    assert width_of("e\N{COMBINING ACUTE ACCENT}", 10) == width_of("e", 10)


def test_text_that_fits_is_one_line():
    assert wrap("Paid", 13, 160, lines=3) == ("Paid",)


def test_text_breaks_at_spaces():
    assert wrap("Waiting for the documents", 10, 90, lines=3) == ("Waiting for the", "documents")


def test_word_that_is_too_long_breaks_anywhere():
    assert "".join(wrap("Donaudampfschifffahrt", 10, 60, lines=9)) == "Donaudampfschifffahrt"


def test_what_does_not_fit_ends_in_an_ellipsis():
    assert wrap("one two three four five", 10, 50, lines=2) == ("one two", "three f…")
    assert shorten("one two three", 10, 50) == "one tw…"


def test_text_does_not_break_inside_a_character():
    family = "👩\N{ZERO WIDTH JOINER}👧"
    assert wrap(family * 3, 10, 25, lines=9) == (family,) * 3


@pytest.mark.parametrize("lines", [1, 2, 3])
@given(text=st.text(max_size=60))
def test_lines_are_as_many_and_as_wide_as_they_may_be(text, lines):
    found = wrap(text, 10, 50, lines)

    assert len(found) <= lines
    for line in found:
        assert width_of(line, 10) <= 50.01
