"""Drawings: exact text for a small machine, and no text in a label that could change the drawing."""

import html
import re

import pytest
from django.utils import translation
from django.utils.translation import gettext_lazy
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.models import Invoice
from statemachine_fields.drawing.diagram import FORMATS, draw
from statemachine_fields.machine.graph import State, Transition, build_graph

DOOR = {
    "states": [("OPEN", "Open"), ("SHUT", "Shut"), ("SEALED", "Sealed for good")],
    "initial": "OPEN",
    "transitions": {"OPEN": ["SHUT"], "SHUT": ["OPEN", "SHUT", "SEALED"]},
}


def graph_of(*states, transitions=None):
    return build_graph(states, states[0][0], transitions or {}, max_length=1000)


def shown(label, kind="mermaid"):
    """Return how a label is written."""
    line = {"mermaid": 1, "dot": 3, "markdown": 2, "svg": -4}[kind]
    written = draw(graph_of(("A", label)), kind).splitlines()[line]
    found = {"mermaid": '"(.*)"', "dot": '"(.*)"', "markdown": r"\| .* \| (.*) \| ", "svg": "<text.*>(.*)</text>"}
    return re.search(found[kind], written)[1]


def named(value):
    """Return the name that a state has in Mermaid and DOT."""
    return draw(graph_of((value, "Label"))).splitlines()[1].partition('"Label" as ')[2]


def test_mermaid_of_a_small_machine():
    assert draw(build_graph(**DOOR, max_length=50), "mermaid", title="lab.Door.states") == (
        "---\n"
        'title: "lab.Door.states"\n'
        "---\n"
        "stateDiagram-v2\n"
        '    state "Open" as OPEN\n'
        '    state "Shut" as SHUT\n'
        '    state "Sealed for good" as SEALED\n'
        "    [*] --> OPEN\n"
        "    OPEN --> SHUT\n"
        "    SHUT --> OPEN\n"
        "    SHUT --> SHUT\n"
        "    SHUT --> SEALED\n"
        "    SEALED --> [*]\n"
    )


def test_dot_of_a_small_machine():
    assert draw(build_graph(**DOOR, max_length=50), "dot", title="lab.Door.states") == (
        'digraph "lab.Door.states" {\n'
        '    graph [label="lab.Door.states", labelloc=t, fontname="sans-serif"];\n'
        '    node [shape=box, style=rounded, fontname="sans-serif"];\n'
        '    _start [label="", shape=circle, style=filled, fillcolor=black, width=0.2, fixedsize=true];\n'
        '    OPEN [label="Open"];\n'
        '    SHUT [label="Shut"];\n'
        '    SEALED [label="Sealed for good", peripheries=2];\n'
        "    _start -> OPEN;\n"
        "    OPEN -> SHUT;\n"
        "    SHUT -> OPEN;\n"
        "    SHUT -> SHUT;\n"
        "    SHUT -> SEALED;\n"
        "}\n"
    )


def test_markdown_of_a_small_machine():
    assert draw(build_graph(**DOOR, max_length=50), "markdown", title="lab.Door.states") == (
        "## `lab.Door.states`\n"
        "\n"
        "| State | Label | Moves to |\n"
        "| --- | --- | --- |\n"
        "| `OPEN` (initial) | Open | `SHUT` |\n"
        "| `SHUT` | Shut | `OPEN`, `SHUT`, `SEALED` |\n"
        "| `SEALED` | Sealed for good | nothing (terminal) |\n"
    )


@pytest.mark.parametrize(
    ("kind", "start"),
    [("mermaid", "stateDiagram-v2\n"), ("dot", "digraph {\n    node "), ("markdown", "| State | Label |")],
)
def test_without_a_title_nothing_is_above_the_drawing(kind, start):
    assert draw(graph_of(("A", "a")), kind).startswith(start)


def test_mermaid_is_what_is_drawn_unless_another_format_is_named():
    graph = graph_of(("A", "a"))

    assert draw(graph) == draw(graph, "mermaid")


def test_unknown_format_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="one of mermaid, dot, markdown, svg, got 'png'"):
        draw(graph_of(("A", "a")), "png")


def test_bound_machine_draws_itself_under_its_name():
    assert Invoice.payment.diagram().startswith('---\ntitle: "lab.Invoice.payment"\n---\nstateDiagram-v2\n')
    assert Invoice.payment.diagram("dot").startswith('digraph "lab.Invoice.payment" {\n')
    assert Invoice.payment.diagram(format="markdown").startswith("## `lab.Invoice.payment`\n\n| State |")
    assert ">lab.Invoice.payment</title>" in Invoice.payment.diagram("svg")


@pytest.mark.parametrize("kind", FORMATS)
def test_lazy_labels_are_in_the_language_of_the_moment(kind):
    graph = graph_of(("A", gettext_lazy("Monday")))

    with translation.override("de"):
        assert "Montag" in draw(graph, kind)
    with translation.override("en"):
        assert "Monday" in draw(graph, kind)


@pytest.mark.parametrize(
    ("label", "written"),
    [
        ('say "no"', "say #34;no#34;"),
        ("back\\slash", "back#92;slash"),
        ("#35; & &amp;", "#35;35#59; #38; #38;amp#59;"),
        ("a:b; c|d", "a#58;b#59; c#124;d"),
        ("<b> {x} 5%", "#60;b#62; #123;x#125; 5#37;"),
        ("*a* _b_ `c` $d$ [e]", "#42;a#42; #95;b#95; #96;c#96; #36;d#36; #91;e#93;"),
        ("1. first", "#49;. first"),
        ("10) tenth", "#49;0) tenth"),
        ("www.example.org", "www#46;example.org"),
        ("Direction LR", "#68;irection LR"),
        (" two\n\r\tlines\u2028or more ", "two lines or more"),
        ("Re-opened, snake_case (it's 1.5/2)!", "Re-opened, snake_case (it's 1.5/2)!"),
        ("🚚 שלום Ærø", "🚚 שלום Ærø"),
        ("\0", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_mermaid_reads_a_label_as_text(label, written):
    assert shown(label) == written


@pytest.mark.parametrize(
    ("label", "written"),
    [
        ('say "no"', r"say \"no\""),
        ("end\\", r"end\\"),
        ("\\N \\n", r"\\N \\n"),
        ("&lt;", "&amp;lt;"),
        ("two\nlines", "two lines"),
        ("<b> {x} | a:b; #1 🚚 שלום", "<b> {x} | a:b; #1 🚚 שלום"),
    ],
)
def test_dot_reads_a_label_as_text(label, written):
    assert shown(label, "dot") == written


@pytest.mark.parametrize(
    ("label", "written"),
    [
        ("a|b", "a&#124;b"),
        ("`a`", "&#96;a&#96;"),
        ("<script>", "&#60;script&#62;"),
        ("&lt;", "&#38;lt&#59;"),
        ("a\\|b", "a&#92;&#124;b"),
        ("two\nlines", "two lines"),
        ("Re-opened, at last.", "Re-opened, at last."),
    ],
)
def test_markdown_reads_a_label_as_text(label, written):
    assert shown(label, "markdown") == written


def test_value_in_markdown_is_code_unless_code_could_not_hold_it():
    table = draw(graph_of(("in review", "A"), ("a|b", "B"), ("`", "C"), ("a\nb", "D")), "markdown")

    assert re.findall(r"^\| (.*?) \|", table, re.MULTILINE)[2:] == [
        "`in review` (initial)",
        "a&#124;b",
        "&#96;",
        "'a&#92;nb'",
    ]


@pytest.mark.parametrize("label", ["   ", "\n", "\u200b", gettext_lazy("\u200e")])
@pytest.mark.parametrize("kind", FORMATS)
def test_label_that_would_not_show_gives_way_to_the_value(label, kind):
    assert shown(label, kind) == "A"


def test_value_that_would_not_show_either_is_written_as_python_does():
    assert "[label=\"' '\"" in draw(graph_of((" ", " ")), "dot")


def test_states_with_the_same_label_are_told_apart_by_their_values():
    graph = graph_of(("WON", "Closed"), ("LOST", "Closed"), ("OPEN", "Open"))

    assert re.findall('"(.*)"', draw(graph)) == ["Closed (WON)", "Closed (LOST)", "Open"]


@pytest.mark.parametrize("value", ["PAID", "in_review", "Ended", "notes", "default_2", "directions", "x1"])
def test_value_that_is_a_name_is_the_name(value):
    assert named(value) == value


@pytest.mark.parametrize(
    "value",
    [
        *("end", "state", "note", "direction", "class", "default", "style", "as", "END", "classDef", "click", "scale"),
        *("root", "root_start", "root_end", "wrong_direction", "constructor", "toString", "__proto__"),
        *("graph", "Node", "edge", "digraph", "subgraph", "strict", "_start"),
        *("[*]", "two words", "1", "a-b", "a.b", 'a"b', "a\nb", "\\", "ärger", "paid\u212a", "\u017f", "🚚", " "),
    ],
)
def test_value_that_could_be_taken_for_something_else_gets_an_alias(value):
    assert named(value) == "s1"


def test_alias_avoids_the_values():
    graph = graph_of(("end", "A"), ("s1", "B"), ("s1_", "C"), ("note", "D"), transitions={"end": ["s1", "note"]})

    assert [line.strip() for line in draw(graph).splitlines() if " --> " in line] == [
        "[*] --> s1__",
        "s1__ --> s1",
        "s1__ --> s4",
        "s1 --> [*]",
        "s1_ --> [*]",
        "s4 --> [*]",
    ]


def test_title_is_escaped_too():
    title = 'a "b" <c> \\ & |\n---'

    assert draw(graph_of(("A", "a")), "mermaid", title).splitlines()[1] == r'title: "a \"b\" \u003cc> \\ & | ---"'
    assert draw(graph_of(("A", "a")), "dot", title).splitlines()[0] == r'digraph "a \"b\" <c> \\ &amp; | ---" {'
    assert draw(graph_of(("A", "a")), "markdown", title).splitlines()[0] == (
        "## a &#34;b&#34; &#60;c&#62; &#92; &#38; &#124; &#45;&#45;&#45;"
    )


# Any text, and often text that means something to one of the languages.
text = st.text(max_size=12) | st.lists(
    st.sampled_from(["end", "direction", " LR", "[*]", "-->", '"', "\\", "%%{", "#", ";", "\n", "|", "`", "<", "&lt;"])
).map("".join)


@st.composite
def graphs(draw_value):
    states = draw_value(st.dictionaries(text.filter(bool), text, min_size=1, max_size=6))
    some = st.lists(st.sampled_from(list(states)), unique=True)
    return graph_of(*states.items(), transitions=draw_value(st.dictionaries(st.sampled_from(list(states)), some)))


def count_moves(graph):
    return sum(len(targets) for targets in graph.edges.values())


def plain_label(text):
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", " ".join(text.split()))


@settings(deadline=None)
@given(graph=graphs(), title=text)
def test_mermaid_has_one_statement_in_a_line_whatever_the_text(graph, title):
    drawing = draw(graph, "mermaid", title)
    assert drawing.endswith("\n")
    assert not drawing.endswith("\n\n")

    lines = drawing.splitlines()
    head = 3 if lines[0] == "---" else 0
    assert lines[head] == "stateDiagram-v2"
    states = [re.fullmatch(r'    state "([^"]+)" as (\w+)', line) for line in lines[head + 1 :][: len(graph.states)]]
    moves = [re.fullmatch(r"    (\[\*\]|\w+) --> (\[\*\]|\w+)", line) for line in lines[head + 1 + len(states) :]]
    assert all(states)
    assert len(moves) == 1 + count_moves(graph) + len(graph.terminal_states)

    names = [state[2] for state in states]
    assert len(set(names)) == len(names)
    assert {end for move in moves for end in move.groups()} <= {*names, "[*]"}
    for state, declared in zip(states, graph.states.values(), strict=True):
        read = html.unescape(re.sub(r"#(\d+);", r"&#\1;", state[1]))
        assert plain_label(declared.label) in read or declared.value in read or repr(declared.value) in read
        assert not re.search(r"direction\s+(tb|bt|rl|lr)|[%:<>`]", state[1], re.IGNORECASE)


@settings(deadline=None)
@given(graph=graphs(), title=text)
def test_dot_reads_as_the_statements_it_is_made_of_whatever_the_text(graph, title):
    drawing = draw(graph, "dot", title)
    head, *statements = re.split(r"[{;}]\s", " ".join(kind for kind, _ in dot_tokens(drawing)) + " ")
    assert head.split()[0] == "digraph"
    assert [statement.strip() for statement in statements] == [
        *(["graph [ id = string , id = id , id = string ]"] if plain_label(title) else []),
        "node [ id = id , id = id , id = string ]",
        "id [ id = string , id = id , id = id , id = id , id = id , id = id ]",
        *(
            "id [ id = string , id = id ]" if graph.is_terminal(state) else "id [ id = string ]"
            for state in graph.states
        ),
        *["id -> id"] * (1 + count_moves(graph)),
        "",
        "",
    ]


def dot_tokens(drawing):
    """Yield the kind and text of each token, by the lexical rules of the DOT language, or fail."""
    kinds = re.compile(
        r'(?P<space>\s+)|(?P<arrow>->)|(?P<mark>[{}\[\];,=])|(?P<string>"(?:[^"\\]|\\.)*")'
        r"|(?P<id>[A-Za-z_][A-Za-z0-9_]*|-?(?:\.\d+|\d+(?:\.\d*)?))"
    )
    position = 0
    while position < len(drawing):
        match = kinds.match(drawing, position)
        assert match, f"no token at {drawing[position:][:40]!r}"
        position = match.end()
        kind, found = match.lastgroup, match.group()
        if kind in ("arrow", "mark") or found.lower() in ("digraph", "graph", "node", "edge", "subgraph", "strict"):
            yield found, found
        elif kind != "space":
            yield kind, found


@settings(deadline=None)
@given(graph=graphs(), title=text)
def test_markdown_has_three_cells_in_a_row_whatever_the_text(graph, title):
    table = draw(graph, "markdown", title).splitlines()[2 if plain_label(title) else 0 :]

    assert len(table) == 2 + len(graph.states)
    for row in table:
        assert row.count("|") == 4
        assert not re.search(r"[<>\\]", row)
        assert row.count("`") % 2 == 0


def test_labels_of_moves_stand_beside_their_arrows():
    states = [("A", "Aa"), ("B", "Bb")]
    graph = build_graph(states, "A", {"A": [Transition("B", label="say: #1")], "B": ["A"]}, 50)
    assert "    A --> B: say#58; #35;1\n" in draw(graph)
    assert "    B --> A\n" in draw(graph)
    assert '    A -> B [label="say: #1", fontname="sans-serif", fontsize=10];' in draw(graph, "dot")
    assert "    B -> A;" in draw(graph, "dot")


def test_retired_states_are_drawn_apart():
    states = [("OPEN", "Open"), State("AJAR", "Ajar", retired=True), ("SHUT", "Shut")]
    graph = build_graph(states, "OPEN", {"OPEN": ["SHUT"], "AJAR": ["SHUT"]}, max_length=50)
    mermaid = draw(graph, "mermaid")
    assert "    classDef retired fill:none,stroke:#888,stroke-dasharray:5 4,color:#888\n" in mermaid
    assert "    class AJAR retired\n" in mermaid
    assert '    AJAR [label="Ajar", style="rounded,dashed", color=gray50, fontcolor=gray40];\n' in draw(graph, "dot")
    assert "| `AJAR` (retired) | Ajar | `SHUT` |\n" in draw(graph, "markdown")
    boxes = re.findall(
        r'data-state="(\w+)".*?<rect class="smf-box"[^>]*?( stroke-dasharray="5 4")?/>', draw(graph, "svg")
    )
    assert boxes == [("OPEN", ""), ("AJAR", ' stroke-dasharray="5 4"'), ("SHUT", "")]


def test_nothing_is_said_of_retired_states_where_there_is_none():
    assert "retired" not in "".join(
        draw(build_graph(**DOOR, max_length=50), each) for each in ("mermaid", "dot", "markdown")
    )
