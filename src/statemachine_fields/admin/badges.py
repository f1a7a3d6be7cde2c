"""A state as people see it: its label on a colour that is the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.html import format_html

from statemachine_fields.machine.bound import BoundMachine


def badge(bound: BoundMachine[Any], state: str, tones: Mapping[str, str]) -> str:
    """Return a state's label on its colour. A state that is no longer declared has none."""
    tone = f"smf-tone-{tones[state]}" if state in tones else "smf-undeclared"
    return format_html('<span class="smf-badge {}">{}</span>', tone, bound.label_of(state))
