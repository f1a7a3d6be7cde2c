"""The free-form facts of a transition, read before anything is written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

EMPTY = "{}"

#: How many dicts and lists may be one in the other. Python gives up at fewer than a thousand, depending on who asks, and some
#: databases do; what is written must be readable everywhere.
DEEPEST = 200
TEXTS = re.compile(r'"(?:[^"\\]|\\.)*"')


TOO_DEEP = f"metadata is nested more than {DEEPEST} levels deep. Keep what is in it in a table of its own, or as a text. Nothing was written."


def read_metadata(metadata: Mapping[str, Any] | None) -> str:
    """Return metadata as JSON, or raise TypeError for what no database would keep."""
    if metadata is None:
        return EMPTY
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a dict, got {type(metadata).__name__}. Nothing was written.")
    if not metadata:
        return EMPTY
    try:
        text = json.dumps(dict(metadata), cls=DjangoJSONEncoder, allow_nan=False, ensure_ascii=False)
        text.encode()  # half of a surrogate pair is a Python string and no text
    except RecursionError as error:
        raise TypeError(TOO_DEEP) from error
    except (TypeError, ValueError) as error:
        raise TypeError(f"metadata cannot be written as JSON: {error}. Nothing was written.") from error
    if NUL.search(text):
        raise TypeError("metadata holds a NUL character, which PostgreSQL cannot store. Nothing was written.")
    if text.count("{") + text.count("[") > DEEPEST and _depth(text) > DEEPEST:
        raise TypeError(TOO_DEEP)
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
    if text == EMPTY:
        return {}
    read: dict[str, Any] = json.loads(text)
    return read
