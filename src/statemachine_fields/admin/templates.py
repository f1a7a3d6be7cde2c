"""Which template one of ours extends: the one that would have been shown without the mixin."""

from __future__ import annotations

from typing import Any

from django.template.loader import select_template


def parent_template(declared: Any, opts: Any, name: str) -> Any:
    """Return the template of the next class, or the project's own for the model, or Django's."""
    own = [f"admin/{opts.app_label}/{opts.model_name}/{name}", f"admin/{opts.app_label}/{name}", f"admin/{name}"]
    if not declared:
        return select_template(own)
    return select_template([declared] if isinstance(declared, str) else list(declared))
