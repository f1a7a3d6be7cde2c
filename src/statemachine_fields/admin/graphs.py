"""Graphs on pages, whose width nobody knows before: drawn for a wide one and for a narrow one, of which one is shown."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from statemachine_fields.drawing.svg import PAGE_WIDTH, Marks, draw_svg
from statemachine_fields.machine.graph import StateGraph

#: What a phone has between our margins, and what is still readable when it is made to fit a page.
PHONE = 340
SHRUNK = 1500


def draw_graph(graph: StateGraph, marks: Marks, title: str, *, flat: bool = False) -> SafeString:
    """Return the graph for a page that has the styles of the admin classes.

    :param flat: draw it from left to right where it is readable at all, as there are rows below that people came for.
    """
    # draw_svg() escapes whatever is in labels.
    wide, narrow = (
        mark_safe(draw_svg(graph, marks, title=title, embedded=True, page=page))  # noqa: S308
        for page in (SHRUNK if flat else PAGE_WIDTH, PHONE)
    )
    if wide == narrow:  # upright on any page; a phone shows it in its own size, too
        return format_html('<div class="smf-any-page">{}</div>', wide)
    return format_html('<div class="smf-wide-page">{}</div><div class="smf-phone">{}</div>', wide, narrow)
