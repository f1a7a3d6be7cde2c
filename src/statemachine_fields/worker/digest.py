"""Log lines that an operator can read: the first of a kind at once, the others of the same minute as a count."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from django.db import DatabaseError, InterfaceError

SECONDS = 60.0
#: How many kinds are kept apart. What comes after is logged line by line.
MOST_KINDS = 1000

NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


@dataclass(slots=True)
class _Kind:
    since: float
    level: int
    last: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    count: int = 0


class Digest:
    """Logs each cause once a minute, with how often it was seen since."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._kinds: dict[Hashable, _Kind] = {}

    def log(
        self,
        kind: Hashable,
        level: int,
        text: str,
        *facts: object,
        error: BaseException | None = None,
        fields: Mapping[str, Any] = NO_FIELDS,
    ) -> None:
        """Log a line now if it is the first of its kind, and count it otherwise.

        :param fields: what the line is about, for programs: attributes of the record, as `extra` gives them.
        """
        now = time.monotonic()
        with self._lock:
            seen = self._kinds.get(kind)
            if seen is not None and now - seen.since < SECONDS:
                seen.count += 1
                seen.last, seen.fields = text % facts, fields
                return
            more = seen.count if seen is not None else 0
            if seen is not None or len(self._kinds) < MOST_KINDS:
                self._kinds[kind] = _Kind(now, level)
        line = text % facts + (f" ({more} more like it since the last line.)" if more else "")
        self._logger.log(level, "%s", line, exc_info=error, extra={**fields, **({"more": more} if more else {})})

    def flush(self, *, everything: bool = False) -> None:
        """Say how often what was seen again has been seen, of the minutes that are over."""
        now = time.monotonic()
        with self._lock:
            over = {kind: seen for kind, seen in self._kinds.items() if everything or now - seen.since >= SECONDS}
            for kind in over:
                del self._kinds[kind]
        for seen in over.values():
            if seen.count:
                extra = {**seen.fields, "more": seen.count}
                self._logger.log(
                    seen.level, "%d more like this in the last minute: %s", seen.count, seen.last, extra=extra
                )


def cause_of(error: BaseException | None, text: str = "") -> Hashable:
    """Return what two errors have in common that have the same cause: where they were raised; of errors of a database, and
    where there is no exception, what they say but for numbers."""
    if error is None:
        return _without_numbers(text)
    if isinstance(error, DatabaseError | InterfaceError):
        return (type(error), _without_numbers(str(error)))
    place: Any = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = (place.tb_frame.f_code.co_filename, place.tb_lineno) if place is not None else ()
    return (type(error), where)


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "#", text.partition("\n")[0])[:200]
