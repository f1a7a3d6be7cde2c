"""Who and why: the free-form facts of a transition, and those that join them within a block or a request.

They are read before anything is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.utils.functional import LazyObject

NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

EMPTY_METADATA = "{}"

#: How many dicts and lists may be one in the other. Python gives up at fewer than a thousand, depending on who asks, and some
#: databases do; what is written must be readable everywhere.
DEEPEST = 200
TEXTS = re.compile(r'"(?:[^"\\]|\\.)*"')


TOO_DEEP = f"{{}} is nested more than {DEEPEST} levels deep. Keep what is in it in a table of its own, or as a text. Nothing was written."

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


def read_facts(metadata: Mapping[str, Any] | None, user: Any = None) -> str:
    """Return the metadata of a transition as JSON, with who moves the row and what surrounds it."""
    is_all = user is None and not _context.get()
    if is_all and metadata is None:
        return EMPTY_METADATA
    given = read_metadata(metadata)  # complains of what the caller passed, before of what surrounds it
    if is_all:
        return given
    merged = with_context(with_actor(metadata or {}, user))
    return given if merged is metadata or not merged else read_metadata(merged)


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


def read_metadata(metadata: Mapping[str, Any] | None) -> str:
    """Return metadata as JSON, or raise TypeError for what no database would keep."""
    if metadata is None:
        return EMPTY_METADATA
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a dict, got {type(metadata).__name__}. Nothing was written.")
    return read_json(dict(metadata), "metadata") if metadata else EMPTY_METADATA


def read_json(value: Any, name: str) -> str:
    """Return a value as JSON, nothing as an empty dict, or raise TypeError for what no database would keep."""
    if value is None:
        return EMPTY_METADATA
    try:
        text = json.dumps(value, cls=DjangoJSONEncoder, allow_nan=False, ensure_ascii=False)
        text.encode()  # half of a surrogate pair is a Python string and no text
    except RecursionError as error:
        raise TypeError(TOO_DEEP.format(name)) from error
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} cannot be written as JSON: {error}. Nothing was written.") from error
    if NUL.search(text):
        raise TypeError(f"{name} holds a NUL character, which PostgreSQL cannot store. Nothing was written.")
    if text.count("{") + text.count("[") > DEEPEST and _depth(text) > DEEPEST:
        raise TypeError(TOO_DEEP.format(name))
    return text


def _depth(text: str) -> int:
    """Return how many dicts and lists are one in the other at the deepest place of a JSON text."""
    depth = deepest = 0
    for character in TEXTS.sub("", text):
        if character in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "}]":
            depth -= 1
    return deepest


def loaded(text: str) -> dict[str, Any]:
    """Return metadata as it will be read back from the database."""
    if text == EMPTY_METADATA:
        return {}
    read: dict[str, Any] = json.loads(text)
    return read
