"""Keys for audit rows that sort by the time they were made (UUID version 7, RFC 9562)."""

from __future__ import annotations

import datetime
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator

from statemachine_fields.db.clock import EPOCH, MICROSECOND

# 12 bits of counter follow the milliseconds, so that ids made by one process ascend even within one millisecond.
_COUNTER_BITS = 12
_COUNTER = (1 << _COUNTER_BITS) - 1
_lock = threading.Lock()
_new, _set = object.__new__, object.__setattr__
_unknown = uuid.SafeUUID.unknown  # which an enumeration takes long to find
_last = 0

#: Above every time that an id can hold.
_MOST = 1 << 60


def uuid7() -> uuid.UUID:
    """Return a new id, larger than any this process made before."""
    global _last  # noqa: PLW0603 - the last id is what the next must exceed
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    now = milliseconds << _COUNTER_BITS | (rest << _COUNTER_BITS) // 1_000_000
    with _lock:
        if now <= _last:
            now = _last + 1
        _last = now
    # Written out, as each move needs one.
    high = (now >> _COUNTER_BITS) << 16 | 7 << 12 | now & _COUNTER
    return uuid.UUID(int=high << 64 | 2 << 62 | int.from_bytes(os.urandom(8)) >> 2)


def uuid7_many(number: int) -> list[uuid.UUID]:
    """Return ids that ascend: the first 96 bits are those of one, and the rest counts up. Quicker than one by one."""
    first = uuid7().int & ~0x80000000  # low enough never to overflow the 32 bits it counts in
    return [_as_uuid(first + place) for place in range(number)]


def _as_uuid(number: int) -> uuid.UUID:
    """Return `UUID(int=number)`, whose checks cost four times as much as all else."""
    made = _new(uuid.UUID)
    _set(made, "int", number)
    _set(made, "is_safe", _unknown)
    return made


def uuid7_from(times: Iterable[datetime.datetime], before: uuid.UUID | None = None) -> Iterator[uuid.UUID]:
    """Yield an id for each time, as if made then. For times that never go back the ids ascend, also where they tie.

    :param before: an id that all are to be smaller than. It may have been made before the time that it stands for.
    """
    last, ceiling = -1, _MOST
    if before is not None:
        ceiling = ((before.int >> 80) - 1) << _COUNTER_BITS
    for at in times:
        made = _timestamp((at.astimezone(datetime.UTC) - EPOCH) // MICROSECOND * 1000)
        last = max(min(made, ceiling), last + 1)
        yield _assemble(last, int.from_bytes(os.urandom(8)) >> 2)


def uuid7_floor(unix_seconds: float) -> uuid.UUID:
    """Return the smallest id that could have been made at the given time: a bound for range scans over the key."""
    return _assemble(_timestamp(int(unix_seconds * 1_000_000_000)), 0)


def _timestamp(nanoseconds: int) -> int:
    """Return milliseconds and, below them, how much of the millisecond has passed in 1/4096 parts."""
    milliseconds, rest = divmod(nanoseconds, 1_000_000)
    return milliseconds << _COUNTER_BITS | (rest << _COUNTER_BITS) // 1_000_000


def _assemble(timestamp: int, tail: int) -> uuid.UUID:
    milliseconds, counter = timestamp >> _COUNTER_BITS, timestamp & _COUNTER
    return uuid.UUID(int=milliseconds << 80 | 7 << 76 | counter << 64 | 2 << 62 | tail)
