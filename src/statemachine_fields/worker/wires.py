"""The pipes between the listener and the worker processes beside it: who has nothing to do, and where rows are due.

What goes through them are hints of a few bytes. They are written at once or not at all, so that nobody waits for another process,
and one that is lost costs a poll. A lane is known by its place among those that the options name, which all processes agree on.
"""

from __future__ import annotations

import contextlib
import enum
import os
import selectors
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

#: What a worker process says, as `struct` has it: its slot, a lane, and whether it could take rows of it and has none.
IDLE = "!HH?"
#: What the listener says: what, and of which lane.
HINT = "!BH"
#: How many messages are read at once.
MOST = 1000

Selector: Any = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Hint(enum.IntEnum):
    """What the listener tells a worker process."""

    #: It has begun to listen to the database of a lane: say again where you have nothing to do.
    BEGUN = 1
    #: A row is due.
    DUE = 2
    #: From now on others say if one is.
    GATE = 3
    #: It listens no more.
    ENDED = 4


@dataclass(frozen=True, slots=True)
class Wire:
    """A pipe with messages of one size, each written whole. Any number of processes may hold its ends."""

    reader: Connection
    writer: Connection
    message: str

    @classmethod
    def of(cls, context: Any, message: str) -> Wire:
        reader, writer = context.Pipe(duplex=False)
        return cls(reader, writer, message)

    def send(self, *values: Any) -> None:
        """Write a message, unless nobody reads and there is no room."""
        with contextlib.suppress(OSError):
            os.set_blocking(self.writer.fileno(), False)
            os.write(self.writer.fileno(), struct.pack(self.message, *values))

    def receive(self) -> Iterator[tuple[Any, ...]]:
        """Wait for messages, and yield those that are there."""
        data = os.read(self.reader.fileno(), struct.calcsize(self.message) * MOST)
        yield from struct.iter_unpack(self.message, data)


@dataclass(frozen=True, slots=True)
class Wires:
    """The pipes of one worker: to each slot of its processes, and to the listener for each database."""

    to_slots: list[Wire]
    to_listener: dict[str, Wire]

    @classmethod
    def lay(cls, context: Any, slots: int, aliases: Iterable[str]) -> Wires:
        """Make the pipes, once: who starts or replaces a process hands them on."""
        return cls([Wire.of(context, HINT) for _ in range(slots)], {alias: Wire.of(context, IDLE) for alias in aliases})

    def hint(self, what: Hint, lane: int) -> None:
        """Tell all processes."""
        for wire in self.to_slots:
            wire.send(what, lane)


def is_writable(pipe: Any, seconds: float = 0.0) -> bool:
    """Say whether a pipe takes something at once, or does within a time. Unlike `select()` it knows pipes with high numbers, as those
    are of a process that has a thousand files open."""
    with Selector() as selector:
        selector.register(pipe, selectors.EVENT_WRITE)
        return bool(selector.select(seconds))
