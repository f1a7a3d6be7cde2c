"""Drawings of a graph: Mermaid, DOT, SVG and a Markdown table. Pure Python, no dependency: what it gives is text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from statemachine_fields.drawing.details import NO_DETAILS, Details
from statemachine_fields.drawing.labels import label_of, label_of_move, labels_of, one_line, visible
from statemachine_fields.drawing.svg import Marks, draw_svg

if TYPE_CHECKING:
    from statemachine_fields.machine.graph import StateGraph

# What Mermaid and DOT both take for a name as it stands. Not so the words of their grammars, the names that Mermaid
# gives to its own nodes, those that JavaScript finds on every object, and a name that ends in "direction", which
# Mermaid reads together with a state on the next line that begins with LR, RL, TB or BT.
NAME = re.compile(
    r"""(?! (?: accdescr | acctitle | as | choice | class | classdef | click | default | end | fork | hide | href | join
            | note | scale | state | statediagram | style | root | root_start | root_end
            | digraph | edge | graph | node | strict | subgraph
            | constructor | hasownproperty | isprototypeof | propertyisenumerable | tolocalestring | tostring | valueof
        ) \Z )
        [a-z] [a-z0-9_]* (?<!direction)""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)

# What Markdown, and Mermaid, which reads labels as Markdown, could take for markup: a link, a list, a direction
# (Mermaid looks for that anywhere in a line, in quotes or not), and characters. A hyphen or underscore inside a word is
# harmless, and left readable.
MARKUP = re.compile(
    r"""(?<=www) \. | ^ \d (?= \d* [.)] ) | d (?= irection\ (?: tb | bt | rl | lr ) )
        | (?! (?<=[^\W_]) [-_] (?=[^\W_]) ) ["\#$%&*+\-:;<=>@\[\\\]^_`{|}~]""",
    re.IGNORECASE | re.VERBOSE,
)


def draw(graph: StateGraph, format: str = "mermaid", title: str = "", details: Details = NO_DETAILS) -> str:
    """Return the graph as text that ends with one newline, labels in the active language.

    :param format: `mermaid`, `dot`, `markdown` or `svg`; anything else raises ValueError.
    :param title: what to write above it; nothing if empty.
    :param details: what to say of states and moves beyond their labels.

    The same graph gives the same text. No value or label, whatever is in it, changes the structure of the drawing.
    """
    if format not in RENDERERS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}.")
    return "\n".join(RENDERERS[format](graph, one_line(title), details)) + "\n"


def _label(graph: StateGraph, source: str, target: str, details: Details) -> str:
    """Return all that is said of a move."""
    said = details.moves.get((source, target), ())
    return ", ".join(filter(None, (label_of_move(graph, source, target), *map(one_line, said))))


def _mermaid(graph: StateGraph, title: str, details: Details) -> Iterable[str]:
    if title:
        # A JSON string is a YAML string. Mermaid looks for tags before it reads the YAML.
        yield from ("---", f"title: {json.dumps(title, ensure_ascii=False)}".replace("<", "\\u003c"), "---")
    yield "stateDiagram-v2"
    ids = _ids(graph)
    for value, label in labels_of(graph).items():
        yield f'    state "{_escape(label, "#")}" as {ids[value]}'
        for said in details.states.get(value, ()):
            yield f"    {ids[value]}: {_escape(one_line(said), '#')}"
    yield f"    [*] --> {ids[graph.initial]}"
    for source in graph.states:
        for target in graph.targets(source):
            label = _label(graph, source, target, details)
            yield f"    {ids[source]} --> {ids[target]}" + (f": {_escape(label, '#')}" if label else "")
        if graph.is_terminal(source):
            yield f"    {ids[source]} --> [*]"
    if graph.retired_states:
        yield "    classDef retired fill:none,stroke:#888,stroke-dasharray:5 4,color:#888"
        yield f"    class {','.join(ids[state] for state in graph.retired_states)} retired"


def _dot(graph: StateGraph, title: str, details: Details) -> Iterable[str]:
    yield f"digraph {_quoted(title)} {{" if title else "digraph {"
    if title:
        yield f'    graph [label={_quoted(title)}, labelloc=t, fontname="sans-serif"];'
    yield '    node [shape=box, style=rounded, fontname="sans-serif"];'
    yield '    _start [label="", shape=circle, style=filled, fillcolor=black, width=0.2, fixedsize=true];'
    ids = _ids(graph)  # none starts with an underscore
    for value, label in labels_of(graph).items():
        border = ", peripheries=2" if graph.is_terminal(value) else ""
        if graph.states[value].retired:
            border += ', style="rounded,dashed", color=gray50, fontcolor=gray40'
        said = [label, *map(one_line, details.states.get(value, ()))]
        yield f"    {ids[value]} [label={_quoted(*said)}{border}];"
    yield f"    _start -> {ids[graph.initial]};"
    for source in graph.states:
        for target in graph.targets(source):
            label = _label(graph, source, target, details)
            looks = [f'label={_quoted(label)}, fontname="sans-serif", fontsize=10'] if label else []
            looks += ["style=dashed"] if (source, target) in details.errors else []
            look = f" [{', '.join(looks)}]" if looks else ""
            yield f"    {ids[source]} -> {ids[target]}{look};"
    yield "}"


def _markdown(graph: StateGraph, title: str, details: Details) -> Iterable[str]:
    if title:
        yield from (f"## {_code(title)}", "")
    rows = list(_markdown_rows(graph, details))
    if details is NO_DETAILS:
        rows = [row[:3] for row in rows]
    for number, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if not number:
            yield f"| {' | '.join(['---'] * len(row))} |"


def _markdown_rows(graph: StateGraph, details: Details) -> Iterable[tuple[str, ...]]:
    yield "State", "Label", "Moves to", "What happens in it"
    for value, state in graph.states.items():
        name = _code(visible(value)) + (" (initial)" if value == graph.initial else "")
        name += " (retired)" if state.retired else ""
        targets = []
        for target in graph.targets(value):
            said = "; ".join(_escape(one_line(each), "&#") for each in details.moves.get((value, target), ()))
            targets.append(_code(visible(target)) + (f" ({said})" if said else ""))
        happens = "; ".join(_escape(one_line(each), "&#") for each in details.states.get(value, ()))
        yield name, _escape(label_of(state), "&#"), ", ".join(targets) or "nothing (terminal)", happens or "nothing"


def _svg(graph: StateGraph, title: str, details: Details) -> Iterable[str]:
    says = {move: ", ".join(said) for move, said in details.moves.items()}
    marks = Marks(lines=details.states, says=says, dashed=details.errors)
    yield draw_svg(graph, marks, title=title).rstrip("\n")


RENDERERS = {"mermaid": _mermaid, "dot": _dot, "markdown": _markdown, "svg": _svg}
FORMATS = tuple(RENDERERS)


def _ids(graph: StateGraph) -> dict[str, str]:
    """Name each state: by its value where that is a name in Mermaid and DOT, by its position where it is not."""
    ids: dict[str, str] = {}
    for position, value in enumerate(graph.states, start=1):
        alias = f"s{position}"
        while alias in graph.states:
            alias += "_"
        ids[value] = value if NAME.fullmatch(value) else alias
    return ids


def _quoted(*lines: str) -> str:
    # Graphviz reads HTML entities in every string.
    escaped = [text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for text in lines]
    return '"' + "\\n".join(escaped) + '"'


def _code(text: str) -> str:
    """Return text as a code span, or escaped where one could not hold it in a table."""
    return f"`{text}`" if re.fullmatch(r"[\w .:/+-]+", text) else _escape(text, "&#")


def _escape(text: str, prefix: str) -> str:
    """Return text with its markup as numbered entities, which Mermaid begins with `#` and Markdown with `&#`."""
    return MARKUP.sub(lambda match: f"{prefix}{ord(match[0])};", text)
