"""Errors of handlers, in words that a row can keep. Pure Python."""

from __future__ import annotations

import asyncio

#: How much of an error is kept on the row.
LONGEST_ERROR = 4000


def described(error: BaseException) -> str:
    """Return an error in words, also one whose own words fail."""
    try:
        text = _WORDS[type(error)].format(error) if type(error) in _WORDS else str(error)
    except BaseException:  # noqa: BLE001
        text = "(it cannot say what)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def in_words(error: str | BaseException) -> tuple[str, BaseException | None]:
    """Return what a handler says went wrong, and the exception, if it gave one."""
    return (described(error), error) if isinstance(error, BaseException) else (str(error), None)


def cleaned(text: str) -> str:
    """Return a text without what no database stores."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def shortened(error: str) -> str:
    """Return an error as a text column can keep it."""
    error = cleaned(error)
    return error if len(error) <= LONGEST_ERROR else f"{error[: LONGEST_ERROR - 1]}…"


#: What is said of a handler that meant to end a script, or was ended by its own code.
_WORDS = {
    SystemExit: "The handler called sys.exit({0.code!r}).",
    asyncio.CancelledError: "The handler was cancelled by other code.",
}
