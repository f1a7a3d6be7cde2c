"""Drawings as SVG: well-formed whatever the text, each state and move once, and what marks add to it."""

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from django.utils import translation
from django.utils.translation import gettext_lazy
from hypothesis import given, settings
from hypothesis import strategies as st

import statemachine_fields
from statemachine_fields.drawing.diagram import draw
from statemachine_fields.drawing.styles import RULES
from statemachine_fields.drawing.svg import Marks, draw_svg
from statemachine_fields.machine.graph import Transition, build_graph

GRAPH_CSS = Path(statemachine_fields.__file__).parent / "static/statemachine_fields/graph.css"
SVG = "{http://www.w3.org/2000/svg}"

ORDER = build_graph(
    [("NEW", "New"), ("PAID", "Paid"), ("SENT", "Sent"), ("LOST", "Cancelled")],
    "NEW",
    {"NEW": ["PAID", "LOST"], "PAID": ["PAID", "SENT", "LOST"]},
    50,
)


def graph_of(*states, transitions=None):
    return build_graph(states, states[0][0], transitions or {}, max_length=1000)


def parsed(graph=ORDER, marks=None, **options):
    return ET.fromstring(draw_svg(graph, marks or Marks(), **options))  # noqa: S314  # what we have just made


def by_class(root, name):
    return [element for element in root.iter() if name in element.get("class", "").split()]


def state(root, value):
    return next(group for group in by_class(root, "smf-state") if group.get("data-state") == value)


def edge(root, source, target):
    ends = (source, target)
    return next(group for group in by_class(root, "smf-edge") if (group.get("data-from"), group.get("data-to")) == ends)


def classes(element):
    return set(element.get("class").split())


def words(element):
    return [text.text for text in element.iter(f"{SVG}text")]


def test_each_state_and_each_move_is_drawn_once():
    root = parsed()

    assert [group.get("data-state") for group in by_class(root, "smf-state")] == ["NEW", "PAID", "SENT", "LOST"]
    assert sorted((group.get("data-from"), group.get("data-to")) for group in by_class(root, "smf-edge")) == sorted(
        (source, target) for source, targets in ORDER.edges.items() for target in targets
    )
    assert len(by_class(root, "smf-dot")) == 1


def test_terminal_states_have_a_double_border():
    root = parsed()

    assert [bool(by_class(group, "smf-inner")) for group in by_class(root, "smf-state")] == [False, False, True, True]


def test_a_file_of_its_own_has_its_style_and_its_title():
    text = draw_svg(ORDER, title="shop.Order.states")

    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="http://www.w3.org/2000/svg"')
    assert text.endswith("</svg>\n")
    assert "@media (prefers-color-scheme: dark)" in text
    assert "data-theme" not in text
    assert "var(--body" not in text
    root = parsed(title="shop.Order.states")
    assert root.find(f"{SVG}title").text == "shop.Order.states"
    assert words(root)[0] == "shop.Order.states"


def test_an_embedded_one_has_classes_and_nothing_of_its_own():
    text = draw_svg(ORDER, Marks(current="PAID", weights={("NEW", "PAID"): 3}), title="Order", embedded=True)

    assert text.startswith("<svg ")
    assert text.endswith("</svg>")
    for word in ("<style", " style=", "<?xml", "<script", "#", "url("):
        assert word not in text
    assert "Order" not in words(parsed(title="Order", embedded=True))


def test_css_knows_each_class_and_no_other_page_is_touched():
    marks = Marks(
        current="PAID", path=[("NEW", "PAID"), ("SENT", "NEW")], notes={"NEW": "1"}, weights={("NEW", "PAID"): 1}
    )
    text = draw_svg(ORDER, marks, title="Order")
    used = {name for found in re.findall(r'class="([^"]*)"', text) for name in found.split()}

    for name in used - {"smf-edge", "smf-edges", "smf-states", "smf-terminal"}:
        assert f".{name} " in GRAPH_CSS.read_text(), name
    assert all(line.startswith(".smf-graph") for line in RULES.splitlines())


def test_css_for_pages_takes_the_colours_of_the_admin():
    css = GRAPH_CSS.read_text()

    for name in ("--body-fg", "--body-bg", "--body-quiet-color", "--link-fg"):
        assert f"var({name}, #" in css
    assert 'html[data-theme="dark"]' in css
    assert css.count("{") == css.count("}")


def test_current_state_is_drawn_strongly_and_said_in_words():
    root = parsed(marks=Marks(current="PAID"), title="Order")

    assert "smf-current" in classes(state(root, "PAID"))
    assert len(by_class(root, "smf-current")) == len(by_class(root, "smf-halo")) == 1
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == root.find(f"{SVG}title").get("id")
    assert root.get("aria-describedby") == root.find(f"{SVG}desc").get("id")
    assert root.find(f"{SVG}desc").text == "Initial state: New. Terminal states: Sent, Cancelled. Current state: Paid."


def test_current_state_that_is_no_longer_declared_is_said_only():
    root = parsed(marks=Marks(current="GONE"))

    assert by_class(root, "smf-current") == []
    assert "Current state: GONE." in root.find(f"{SVG}desc").text


def test_what_is_not_on_the_path_recedes():
    root = parsed(marks=Marks(path=[("NEW", "PAID"), ("PAID", "SENT")], current="SENT"))

    assert classes(edge(root, "NEW", "PAID")) == classes(edge(root, "PAID", "SENT")) == {"smf-edge", "smf-taken"}
    assert classes(edge(root, "PAID", "LOST")) == {"smf-edge", "smf-faded"}
    assert "smf-faded" in classes(state(root, "LOST"))
    assert "smf-faded" not in classes(state(root, "NEW"))
    assert root.find(f"{SVG}desc").text.endswith("Moves made: New → Paid, Paid → Sent.")
    drawn = [classes(group) for group in by_class(root, "smf-edge")]
    assert drawn == sorted(drawn, key=lambda names: "smf-taken" in names)  # on top of the others


def test_without_a_path_nothing_recedes():
    assert by_class(parsed(marks=Marks(current="PAID")), "smf-faded") == []


def test_forced_moves_are_drawn_and_dashed():
    root = parsed(marks=Marks(path=[("NEW", "SENT"), ("NEW", "GONE")]))

    assert classes(edge(root, "NEW", "SENT")) == {"smf-edge", "smf-taken", "smf-forced"}
    assert len(by_class(root, "smf-edge")) == 6


def test_notes_are_a_second_line():
    root = parsed(marks=Marks(notes={"PAID": "1,204", "NEW": "", "GONE": "3"}))

    assert words(state(root, "PAID")) == ["Paid", "1,204"]
    assert words(state(root, "NEW")) == ["New"]
    assert state(root, "PAID").find(f"{SVG}title").text == "Paid: 1,204"


def test_links_can_be_reached_and_say_where_they_lead():
    root = parsed(marks=Marks(notes={"PAID": "1,204"}, links={"PAID": "/orders/?status=PAID&q=1", "GONE": "/"}))
    links = list(root.iter(f"{SVG}a"))

    assert root.get("role") == "group"  # an image would hide them
    assert [(link.get("href"), link.get("aria-label")) for link in links] == [
        ("/orders/?status=PAID&q=1", "Paid: 1,204")
    ]
    assert "smf-state" in classes(links[0][0])
    assert by_class(root, "smf-edges")[0].get("aria-hidden") == "true"


def test_weights_are_widths_and_numbers():
    weights = {("NEW", "PAID"): 12034, ("NEW", "LOST"): 7, ("PAID", "LOST"): 0}
    root = parsed(marks=Marks(weights=weights))
    widths = [float(by_class(edge(root, *move), "smf-line")[0].get("stroke-width")) for move in weights]

    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 3 * widths[1] / 2
    assert words(edge(root, "NEW", "PAID")) == ["12,034"]
    assert "smf-faded" in classes(edge(root, "PAID", "LOST"))
    assert "smf-faded" in classes(edge(root, "PAID", "SENT"))


def test_labels_of_moves_stand_beside_them_with_their_numbers():
    graph = graph_of(("A", "Aa"), ("B", "Bb"), transitions={"A": [Transition("B", label="Say <b>")], "B": ["A"]})

    assert words(edge(parsed(graph), "A", "B")) == ["Say <b>"]
    assert words(edge(parsed(graph), "B", "A")) == []
    assert words(edge(parsed(graph, Marks(weights={("A", "B"): 5})), "A", "B")) == ["Say <b> · 5"]


def test_lines_that_join_are_drawn_once_where_they_are_one():
    chain = "ABCDE"
    moves = {source: [target, "Z"] for source, target in pairwise(chain)}
    graph = graph_of(*((state, state) for state in "ABCDEZ"), transitions=moves)

    plain = parsed(graph)
    assert [len(by_class(edge(plain, source, "Z"), "smf-head")) for source in "ABCD"] == [1, 0, 0, 1]
    taken = parsed(graph, Marks(path=[("B", "Z")]))
    assert [len(by_class(edge(taken, source, "Z"), "smf-head")) for source in "ABCD"] == [1, 1, 0, 1]


def test_tones_may_be_chosen():
    root = parsed(marks=Marks(tones={"PAID": "pink"}))

    assert "smf-tone-pink" in classes(state(root, "PAID"))
    assert "smf-tone-gray" in classes(state(root, "NEW"))
    with pytest.raises(ValueError, match="Did you mean 'pink'"):
        parsed(marks=Marks(tones={"PAID": "pnk"}))


def test_long_labels_are_wrapped_and_shortened_and_whole_in_the_title():
    label = "Waiting for " + "a very long word " * 12
    root = parsed(graph_of(("A", label), ("B", "x" * 200)))

    assert len(words(state(root, "A"))) == 3
    assert words(state(root, "A"))[-1].endswith("…")
    assert state(root, "A").find(f"{SVG}title").text == label.strip()
    assert float(root.get("width")) < 600


def test_labels_are_in_the_language_of_the_moment():
    graph = graph_of(("A", gettext_lazy("Monday")))

    with translation.override("de"):
        assert words(parsed(graph)) == ["Montag"]
    with translation.override("en"):
        assert words(parsed(graph)) == ["Monday"]


def test_drawings_on_one_page_have_ids_of_their_own():
    ids = [
        element.get("id")
        for marks in (Marks(), Marks(current="PAID"))
        for title in ("One", "Two")
        for element in parsed(marks=marks, title=title, embedded=True).iter()
        if element.get("id")
    ]

    assert len(ids) == len(set(ids)) == 8


def test_format_svg_is_the_file():
    assert draw(ORDER, "svg", title="Order") == draw_svg(ORDER, title="Order")


text = st.text(max_size=12) | st.lists(
    st.sampled_from(
        ["<b>", "]]>", "-->", '"', "'", "&", "&lt;", "\0", "\ud800", "\uffff", "\n", "שלום", "审", "🚚", " "]
    )
).map("".join)


@st.composite
def graphs(draw_value):
    states = draw_value(st.dictionaries(text.filter(bool), text, min_size=1, max_size=6))
    some = st.lists(st.sampled_from(list(states)), unique=True)
    moves = draw_value(st.dictionaries(st.sampled_from(list(states)), some))
    labelled = {source: [Transition(to, label=draw_value(text)) for to in targets] for source, targets in moves.items()}
    return graph_of(*states.items(), transitions=labelled)


@settings(deadline=None, max_examples=60)
@given(graph=graphs(), title=text, some=text, embedded=st.booleans())
def test_no_text_changes_the_structure(graph, title, some, embedded):
    declared = [(source, target) for source, targets in graph.edges.items() for target in targets]
    marks = Marks(
        current=graph.initial,
        notes=dict.fromkeys(graph.states, some),
        links=dict.fromkeys(graph.states, some),
        path=declared[:1],
        weights=dict.fromkeys(declared, 3),
    )
    root = parsed(graph, marks, title=title, embedded=embedded)

    assert len(by_class(root, "smf-state")) == len(list(root.iter(f"{SVG}a"))) == len(graph.states)
    assert len(by_class(root, "smf-edge")) == len(declared)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        *("svg", "title", "desc", "style", "g", "a", "rect", "circle", "path", "text")
    }
    assert draw_svg(graph, marks, title=title) == draw_svg(graph, marks, title=title)
