"""Who and why: facts that join the metadata of every transition made within a block or a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from django.db import models
from django.utils.functional import LazyObject

_context: ContextVar[Mapping[str, Any]] = ContextVar("statemachine_fields_context", default=MappingProxyType({}))


@contextmanager
def transition_context(**facts: Any) -> Iterator[None]:
    """Add facts to the metadata of each transition made inside the block, in this thread or task.

    A model instance is recorded as its label, key and text; a callable is called when a transition is made; None and
    an anonymous user are left out. Blocks nest, the inner one wins, and what a call passes as `metadata` wins over all.
    """
    token = _context.set({**_context.get(), **facts})
    try:
        yield
    finally:
        _context.reset(token)


def with_context(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of one transition: what surrounds it, overruled by what the caller passed."""
    context = _context.get()
    if not context:
        return metadata
    facts = {name: described(value) for name, value in context.items() if name not in metadata}
    return {**{name: value for name, value in facts.items() if value is not None}, **metadata}


def with_actor(metadata: Mapping[str, Any], user: Any) -> Mapping[str, Any]:
    """Return metadata that says who moves the row, unless it says so itself."""
    if user is None or "actor" in metadata or (actor := described(user)) is None:
        return metadata
    return {"actor": actor, **metadata}


def described(value: Any) -> Any:
    """Return a fact as JSON can keep it."""
    if callable(value) and not isinstance(value, LazyObject | models.Model):
        value = value()
    if getattr(value, "is_anonymous", False) is True:
        return None
    if isinstance(value, models.Model | LazyObject) and hasattr(value, "_meta"):
        return {"model": value._meta.label, "pk": value.pk, "text": str(value)}
    return value
