"""What a row may wait for: `State(..., until=...)`. Pure declarations.

A row in such a state sleeps, and nothing is due but its time-out, until what it waits for has happened. Then its handler is run, or,
if the declaration says where to, a worker moves it there. How each kind is found out, and what a handler is told, is in
`worker/waits.py`, a class for each class here.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from statemachine_fields.exceptions import either

#: How long the name of an event may be.
NAME_LENGTH = 100


class Until(ABC):
    """Something that can happen to a row, and until which it stays in its state."""

    #: What it adds to the machine, of `FEATURES` in `db/columns.py`.
    features: ClassVar[tuple[str, ...]] = ()
    #: How many seconds it takes at most until a worker looks by itself. It looks at once at a row that enters the state. None: whoever
    #: lets it happen makes the row due, in the statement that lets it happen, so that nobody has to look.
    looks_every: ClassVar[float | None] = None

    @property
    @abstractmethod
    def targets(self) -> tuple[str, ...]:
        """The states that it moves rows to by itself."""

    @property
    def needs_handler(self) -> bool:
        """Whether nothing but a handler can say where a row goes. If not, there must be none."""
        return not self.targets

    @abstractmethod
    def __str__(self) -> str:
        """Say for people what a row waits for, as in "waits for ..."."""

    def words_for(self, target: str) -> str:
        """Say for people what moves a row to one of the targets, as on an arrow."""
        return str(self)


class Event(Until):
    """Let rows wait for events, which `deliver()` brings.

    `Event("paid", "refused")` wakes the handler of the state, which finds them in `ctx.events`. `Event(paid="PAID",
    refused="CANCELLED")` needs none: the first of them that came moves the row. What is no identifier is written as a mapping,
    `Event({"order.paid": "PAID"})`.

    :raises ValueError: no name is given, or one twice, or some with a state to move to and some without.
    """

    features = ("inbox",)

    def __init__(self, *names: str | Mapping[str, str], **moves: str) -> None:
        declared: dict[str, str | None] = {}
        for given in (*names, moves):
            pairs: Iterable[tuple[Any, Any]] = given.items() if isinstance(given, Mapping) else [(given, None)]
            for name, target in pairs:
                _add(declared, name, target)
        if not declared:
            raise ValueError('An Event needs the names of what a row waits for: Event("paid").')
        targets = {name: target for name, target in declared.items() if target is not None}
        if targets and len(targets) < len(declared):
            silent = [name for name in declared if name not in targets]
            raise ValueError(
                f"An Event says of each name where it moves the row, or of none, and this one does not for "
                f"{either(silent)}. Give each a state, or leave all to a handler."
            )
        #: What rows wait for, in the order given.
        self.names = tuple(declared)
        #: Where each name moves a row to; empty if a handler decides.
        self.moves: Mapping[str, str] = MappingProxyType(targets)

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.moves.values()))

    def __str__(self) -> str:
        return f"the event {either(self.names)}"

    def words_for(self, target: str) -> str:
        return f"on {' or '.join(name for name, to in self.moves.items() if to == target)}"

    def __repr__(self) -> str:
        given = dict(self.moves) if self.moves else ", ".join(map(repr, self.names))
        return f"Event({given})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Event, (dict(self.moves),) if self.moves else self.names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and (self.names, self.moves) == (other.names, other.moves)

    def __hash__(self) -> int:
        return hash((self.names, *self.moves.items()))


def _add(declared: dict[str, str | None], name: Any, target: Any) -> None:
    if not isinstance(name, str) or not name or len(name) > NAME_LENGTH or "\x00" in name:
        raise ValueError(f"The name of an event is a text of 1 to {NAME_LENGTH} characters and no NUL, got {name!r}.")
    if target is not None and not isinstance(target, str):
        raise ValueError(f"The event {name!r} moves a row to a state, got {target!r}.")
    if _plain(name) in declared:
        raise ValueError(f"The event {name!r} is named twice. Remove one of the two.")
    declared[_plain(name)] = None if target is None else _plain(target)


def _plain(name: str) -> str:
    """Return the bare string behind an enum member. `policy` has the same for states, and imports this module."""
    return str(name.value) if isinstance(name, enum.Enum) else name
