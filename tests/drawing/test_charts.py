"""The chart of how long rows stay: its scale, its bars, and its text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st

from statemachine_fields.drawing.charts import APART, DAY, HOUR, MINUTE, MS, SECOND, WIDTH, Bar, Scale, draw_bars, short

SVG = "{http://www.w3.org/2000/svg}"

times = st.floats(0, 300 * 365 * DAY, allow_nan=False)
stays = st.tuples(times, times).map(sorted)
bars_of_any_kind = st.lists(
    st.builds(lambda label, stay: Bar(label, "smf-tone-blue", *stay), st.text(), stays), min_size=1
)


def bar(median, p95=None, label="Paid", tone="smf-tone-blue"):
    return Bar(label, tone, median, median if p95 is None else p95)


def draw(*bars):
    return ET.fromstring(draw_bars(bars, title="Stays", description="As in the table."))  # noqa: S314 - our own text


def lengths(drawing, kind):
    return [
        float(box.get("width"))
        for group in drawing.iter(f"{SVG}g")
        for box in group.iter(f"{SVG}rect")
        if box.get("class") == kind
    ]


def texts(drawing, kind):
    return [text.text for text in drawing.iter(f"{SVG}text") if text.get("class") == kind]


def ticks(drawing):
    return texts(drawing, "smf-tick")


def places_of_ticks(drawing):
    return [float(text.get("x")) for text in drawing.iter(f"{SVG}text") if text.get("class") == "smf-tick"]


def test_nothing_is_drawn_of_nothing():
    assert draw_bars([], title="Stays", description="") == ""


def test_says_what_it_is():
    drawing = draw(bar(5))

    assert drawing.get("role") == "img"
    names = {element.get("id"): element.text for element in drawing if element.get("id")}
    assert names[drawing.get("aria-labelledby")] == "Stays"
    assert names[drawing.get("aria-describedby")] == "As in the table."


def test_has_a_strong_and_a_light_bar_for_each_state_in_its_colours():
    drawing = draw(bar(10, 20, "Paid", "smf-tone-blue"), bar(5, 40, "Mislaid", "smf-undeclared"))

    assert [group.get("class") for group in drawing.iter(f"{SVG}g")] == [
        "smf-bar smf-tone-blue",
        "smf-bar smf-undeclared",
    ]
    assert texts(drawing, "smf-name") == ["Paid", "Mislaid"]
    short_bar, long_bar = lengths(drawing, "smf-light")
    assert long_bar == pytest.approx(2 * short_bar, abs=0.2)  # a linear scale
    assert lengths(drawing, "smf-strong")[0] == pytest.approx(short_bar / 2, abs=0.2)


@pytest.mark.parametrize(
    ("values", "is_logarithmic"),
    [([1, 100], False), ([1, 101], True), ([0, 1, 100], False), ([0, 0], False), ([7], False), ([7, 7, 7], False)],
)
def test_scale_is_logarithmic_beyond_two_decades(values, is_logarithmic):
    assert Scale.of(values).is_logarithmic is is_logarithmic


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((3, 3), ["0", "0.5 s", "1 s", "1.5 s", "2 s", "2.5 s", "3 s"]),
        ((0.3, 0.45), ["0", "100 ms", "200 ms", "300 ms", "400 ms"]),
        ((1.4, 1), ["0", "0.5 s", "1 s"]),
        ((40, 55), ["0", "10 s", "20 s", "30 s", "40 s", "50 s"]),
        ((3 * HOUR, 5 * HOUR), ["0", "1 h", "2 h", "3 h", "4 h", "5 h"]),
        ((DAY, 80 * MINUTE), ["0", "6 h", "12 h", "18 h", "24 h"]),
        ((2 * DAY, 24 * DAY), ["0", "5 d", "10 d", "15 d", "20 d"]),
        ((SECOND, 10 * DAY), ["100 ms", "1 s", "1 min", "1 h", "1 d"]),
        ((MS, SECOND), ["0.1 ms", "1 ms", "10 ms", "100 ms", "1 s"]),
    ],
)
def test_ticks_are_round_times(values, expected):
    found = ticks(draw(*(bar(value) for value in values)))

    assert found == expected


def test_zero_has_a_bar_that_can_be_seen_on_every_scale():
    for others in ([0], [10], [0.01, 10 * DAY]):
        drawing = draw(bar(0), *(bar(value) for value in others))

        assert lengths(drawing, "smf-strong")[0] == 2
        assert texts(drawing, "smf-value")[2].replace("\xa0", " ") == "0 ms – 0 ms"


def test_equal_times_have_equal_bars_as_long_as_there_is_room():
    drawing = draw(bar(5), bar(5), bar(5))

    assert len(set(lengths(drawing, "smf-strong") + lengths(drawing, "smf-light"))) == 1
    assert lengths(drawing, "smf-light")[0] > WIDTH / 2


@given(bars_of_any_kind)
def test_every_drawing_is_well_formed_and_a_longer_stay_has_no_shorter_bar(bars):
    drawing = draw(*bars)

    for kind, value in (("smf-strong", "median"), ("smf-light", "p95")):
        drawn = sorted(zip([getattr(each, value) for each in bars], lengths(drawing, kind), strict=True))
        assert [length for _, length in drawn] == sorted(length for _, length in drawn)
    assert all(2 <= length <= WIDTH for length in lengths(drawing, "smf-light"))


@given(bars_of_any_kind)
def test_ticks_are_apart_and_ascend(bars):
    found = places_of_ticks(draw(*bars))

    assert found
    assert all(later - earlier >= APART - 0.2 for earlier, later in pairwise(found))


@given(st.lists(times, min_size=1), times, times)
def test_scale_is_monotone_within_its_ends(values, one, other):
    scale = Scale.of(values)
    low, high = sorted([one, other])

    assert 0 <= scale.place(low) <= scale.place(high) <= 1


def test_a_label_is_only_text():
    text = draw_bars([bar(1, label='</text><script>alert("1")</script>\x00')], title="<b>", description="&")

    assert "<script" not in text
    assert "<b>" not in text
    assert "\x00" not in text


def test_a_long_label_is_shortened_and_named_in_full_to_those_who_point_at_it():
    drawing = draw(bar(1, label="Waiting for the carrier to call back"))

    assert texts(drawing, "smf-name")[0].endswith("…")
    assert any("Waiting for the carrier to call back" in title.text for title in drawing.iter(f"{SVG}title"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0004, "0 ms"),
        (0.25, "250 ms"),
        (0.9999, "1 s"),
        (1.25, "1.2 s"),
        (9.96, "10 s"),
        (42.4, "42 s"),
        (59.9, "1 min"),
        (152, "2 min 32 s"),
        (HOUR, "1 h"),
        (HOUR + 60 * 31 + 20, "1 h 31 min"),
        (11 * DAY + HOUR, "11 d 1 h"),
        (400 * DAY, "1 y 35 d"),
    ],
)
def test_a_duration_is_short(seconds, text):
    assert short(seconds).replace("\xa0", " ") == text


@given(times)
def test_a_duration_has_two_units_at_most(seconds):
    assert re.fullmatch(r"[\d.]+ [a-z]+(\xa0\d+ [a-z]+)?", short(seconds))


def test_numbers_are_written_as_the_reader_writes_them():
    with translation.override("de"):
        assert short(1.5) == "1,5 Sek."
