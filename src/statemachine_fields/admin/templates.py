"""Our part of a page of the admin, around whatever would have been shown without it."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.template.response import SimpleTemplateResponse


def show_in(response: HttpResponse, template: str, context: dict[str, Any]) -> None:
    """Let one of our templates extend the one that a response is about to show.

    Which one that is has been decided by then, by the class, by another package or by the project, in whichever way they
    do it. What is rendered already stays as it is.
    """
    if isinstance(response, SimpleTemplateResponse) and not response.is_rendered:
        shown = response.resolve_template(response.template_name)
        response.context_data = {**(response.context_data or {}), **context, "machine_parent_template": shown}
        response.template_name = f"admin/statemachine_fields/{template}"
