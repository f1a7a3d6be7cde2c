"""A state as people see it: its label on a colour that is the same everywhere. One that is not declared has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from statemachine_fields.machine.binding import Binding


def badge(bound: Binding[Any], state: str, tones: Mapping[str, str]) -> str:
    """Return a state's label on its colour. A state that is not declared says so to those who point at it."""
    if state in tones:
        return format_html('<span class="smf-badge smf-tone-{}">{}</span>', tones[state], bound.label_of(state))
    return format_html('<span class="smf-badge smf-undeclared" title="{}">{}</span>', not_declared(bound, state), state)


def not_declared(bound: Binding[Any], state: str) -> str:
    names = {"state": state, "model": capfirst(str(bound.model._meta.verbose_name))}
    return _("%(state)s is not a state that %(model)s declares.") % names


def strays(bound: Binding[Any], found: Iterable[tuple[str, str, str]]) -> SafeString:
    """Return a line for the foot of a graph with the states that are not declared, if there are some.

    :param found: each state, how many rows are in it, and the address of their list.
    """
    links = format_html_join(
        " ", '<a href="{}">{}</a> {}', ((url, badge(bound, state, {}), count) for state, count, url in found)
    )
    if not links:
        return links
    return format_html('<p class="smf-strays">{} {}</p>', _("In states that are not declared:"), links)
