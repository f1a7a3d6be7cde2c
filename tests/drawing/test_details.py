"""What happens by itself, in words, in every format."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.models import Chore, Invoice, Lot, Noted, Ticking
from statemachine_fields.drawing.details import Details, details_of, spoken
from statemachine_fields.drawing.diagram import FORMATS, draw


@pytest.mark.parametrize(
    ("duration", "words"),
    [
        (timedelta(days=14), "14 days"),
        (timedelta(days=1), "1 day"),
        (timedelta(hours=1, minutes=30), "1 hour 30 minutes"),
        (timedelta(days=1, seconds=1), "1 day 1 second"),
        (timedelta(minutes=1), "1 minute"),
        (timedelta(minutes=2), "2 minutes"),
        (timedelta(seconds=90), "90 seconds"),
        (timedelta(seconds=150), "2 minutes 30 seconds"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(milliseconds=500), "0.5 seconds"),
        (timedelta(0), "0 seconds"),
    ],
)
def test_durations_are_said_as_people_say_them(duration, words):
    assert spoken(duration.total_seconds()) == words


@given(st.integers(0, 10**9))
def test_nothing_of_a_duration_is_left_out(seconds):
    sizes = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
    words = spoken(seconds).split()
    said = zip(words[::2], words[1::2], strict=True)
    assert sum(float(number) * sizes[unit.removesuffix("s")] for number, unit in said) == seconds


def test_what_a_machine_does_by_itself():
    assert details_of(Chore.states._meta) == Details(
        states={
            "NEW": ("start()",),
            "DOING": ("finish()",),
            "DONE": ("deleted after 365 days",),
            "HELD": ("moved by others",),
        },
        moves={("NEW", "FAILED"): ("after 3 tries",), ("DOING", "FAILED"): ("after 3 days",)},
        errors=frozenset({("NEW", "FAILED")}),
    )


def test_one_try_is_no_tries():
    assert details_of(Lot.states._meta).moves["URGENT", "VOID"] == ("after 1 try",)


def test_guards_are_said_of_the_moves_that_they_guard():
    assert details_of(Noted.states._meta).moves == {("NEW", "DONE"): ("if is_unlocked()",)}


def test_a_machine_that_does_nothing_by_itself_has_none():
    assert details_of(Invoice.payment._meta) == Details()


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_says_it(format):
    drawing = Chore.states.diagram(format, details=True)
    for words in ("start()", "finish()", "after 3 tries", "after 3 days", "deleted after 365 days", "moved by others"):
        assert words in drawing
        assert words not in Chore.states.diagram(format)
    assert drawing != Chore.states.diagram(format)


def test_mermaid_has_lines_below_the_label():
    lines = Ticking.states.diagram(details=True).splitlines()
    at = lines.index('    state "Gone" as GONE')
    assert lines[at + 1] == "    GONE: deleted after 7 days"
    assert "    FRESH --> STALE: after 1 minute" in lines


def test_moves_of_rows_that_failed_are_dashed():
    dot, svg = (Chore.states.diagram(kind, details=True) for kind in ("dot", "svg"))
    assert 'NEW -> FAILED [label="after 3 tries", fontname="sans-serif", fontsize=10, style=dashed];' in dot
    assert dot.count("dashed") == 1
    assert svg.count('class="smf-edge smf-forced"') == 1
    assert "smf-forced" in svg.partition('data-from="NEW" data-to="FAILED"')[0].rpartition("<g ")[2]


def test_dot_has_a_line_for_each():
    assert 'DONE [label="Done\\ndeleted after 365 days", peripheries=2];' in Chore.states.diagram("dot", details=True)


def test_markdown_has_a_column_more():
    rows = Chore.states.diagram("markdown", details=True).splitlines()
    assert rows[2:4] == ["| State | Label | Moves to | What happens in it |", "| --- | --- | --- | --- |"]
    assert rows[5] == "| `DOING` | Doing | `DONE`, `FAILED` (after 3 days), `NEW` | finish() |"
    assert rows[7] == "| `FAILED` | Failed | nothing (terminal) | nothing |"


@pytest.mark.parametrize("format", ["mermaid", "dot", "markdown"])
def test_no_word_changes_the_structure(format):
    """Names of methods are Python's, and yet nobody should have to rely on it."""
    graph, odd = Invoice.payment._meta.graph, 'a"]; b\n| c --> [*] <script>'
    details = Details(states={"DUE": (odd,)}, moves={("DUE", "PAID"): (odd,)})
    plain = Details(states={"DUE": ("a",)}, moves={("DUE", "PAID"): ("a",)})
    drawings = [draw(graph, format, details=each) for each in (details, plain)]
    assert len({len(drawing.splitlines()) for drawing in drawings}) == 1
    if format != "dot":
        assert "<script>" not in drawings[0]
