"""The asynchronous twins of methods that ask the database: `atransition_to()` beside `transition_to()`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

P = ParamSpec("P")
R = TypeVar("R")


def as_async(method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return the twin of a method. It calls the method by its name, as a subclass may have another."""
    name = method.__name__

    @wraps(method)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> R:
        found: R = await sync_to_async(getattr(args[0], name))(*args[1:], **kwargs)
        return found

    twin.__name__, twin.__qualname__ = f"a{name}", method.__qualname__.replace(name, f"a{name}")
    twin.__doc__ = f"As `{name}()`, without blocking the event loop."
    return twin
