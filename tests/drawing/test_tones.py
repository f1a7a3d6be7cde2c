"""Tones: which state has which by itself, what may be chosen, and colours that can be read."""

import re
from pathlib import Path

import pytest

import statemachine_fields
from statemachine_fields.drawing.tones import DARK, LIGHT, TONES, tone_css, tones_of
from statemachine_fields.machine.graph import State, build_graph

GRAPH_CSS = Path(statemachine_fields.__file__).parent / "static/statemachine_fields/graph.css"
PAGES = {"light": ("#ffffff", LIGHT), "dark": ("#121212", DARK)}  # the backgrounds of Django's admin


def graph_of(initial, **moves):
    states = [(name, name) for name in dict.fromkeys([*moves, *(target for to in moves.values() for target in to)])]
    return build_graph(states, initial, moves, 50)


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_the_tones_are_a_promise():
    assert TONES == ("gray", "blue", "purple", "teal", "amber", "green", "red", "pink")
    assert tuple(DARK) == TONES


@pytest.mark.parametrize("tone", TONES)
@pytest.mark.parametrize("theme", PAGES)
def test_text_can_be_read_on_its_fill_and_on_the_page(theme, tone):
    page, colours = PAGES[theme]

    assert contrast(colours[tone].text, colours[tone].fill) >= 4.5
    assert contrast(colours[tone].text, page) >= 4.5


@pytest.mark.parametrize("tone", TONES)
@pytest.mark.parametrize("theme", PAGES)
def test_border_can_be_seen_on_the_page_and_on_its_fill(theme, tone):
    page, colours = PAGES[theme]

    assert contrast(colours[tone].line, page) >= 3
    assert contrast(colours[tone].line, colours[tone].fill) >= 2.5


def test_states_have_tones_by_their_place():
    graph = graph_of("A", A=["B", "W"], B=["C", "X"], C=["D", "Y"], D=["E", "Z"], E=["F"], F=["W"])

    assert list(tones_of(graph).items()) == [
        *[("A", "gray"), ("B", "blue"), ("C", "purple"), ("D", "teal"), ("E", "amber"), ("F", "blue")],
        *[("W", "green"), ("X", "red"), ("Y", "pink"), ("Z", "green")],
    ]


def test_chosen_tones_win_and_leave_the_others_as_they_are():
    graph = graph_of("A", A=["B"], B=["C"], C=["D"])

    assert tones_of(graph, {"B": "amber", "A": "pink"}) == {**tones_of(graph), "B": "amber", "A": "pink"}


def test_initial_state_is_gray_if_it_is_terminal_too():
    assert tones_of(graph_of("A", A=[])) == {"A": "gray"}


def test_a_state_that_retires_turns_gray_and_leaves_the_others_as_they_are():
    edges = {"A": ["B", "D"], "C": ["D"], "B": ["D"]}
    before = build_graph([(state, state) for state in "ACBD"], "A", {**edges, "A": ["B", "C", "D"]}, 50)
    states = [State(state, retired=state == "C") for state in "ACBD"]
    after = build_graph(states, "A", edges, 50)

    assert tones_of(after) == {**tones_of(before), "C": "gray"}
    assert tones_of(before)["C"] != "gray"


def test_unknown_tone_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"State 'A' has tone 'grey'.* gray, blue, .*Did you mean 'gray'\?"):
        tones_of(graph_of("A", A=[]), {"A": "grey"})


def test_unknown_state_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"state 'PAYED', not in states\. There are: PAID\. Did you mean 'PAID'\?"):
        tones_of(graph_of("PAID", PAID=[]), {"PAYED": "blue"})


def test_css_has_each_colour_for_light_and_dark_as_the_admin_switches_them():
    css = GRAPH_CSS.read_text()
    says = 'html[data-theme="{0}"],\nhtml[data-bs-theme="{0}"],\nhtml[x-bind="themeBindings"]'
    auto, _, explicit = css.partition(f"\n{says.format('dark')}.dark {{")
    light, _, dark = auto.partition("@media (prefers-color-scheme: dark) {\n  :root {")

    assert f"\n{says.format('light')},\n:root {{" in light
    for tone in TONES:
        assert f"--smf-{tone}-fill: {LIGHT[tone].fill};" in light
        assert f"--smf-{tone}-text: {DARK[tone].text};" in dark
        assert f"--smf-{tone}-line: {DARK[tone].line};" in explicit
        assert f".smf-tone-{tone} {{ --smf-fill: var(--smf-{tone}-fill);" in css
        assert css.count(f"--smf-{tone}-line: {DARK[tone].line};") == 2
    assert css.count("{") == css.count("}")


def test_css_of_a_file_of_its_own_asks_the_browser_only():
    css = tone_css()

    assert "html[" not in css
    assert len(re.findall(r"--smf-blue-fill: #", css)) == 2
