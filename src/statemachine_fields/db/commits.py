"""What a transaction has to do when it is committed: one object for each kind of thing, however often it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[[], None])


def once_after_commit(connection: Any, slot: str, make: Callable[[Any], T]) -> T | None:
    """Return what is called when the open transaction is committed; without one, what the caller is to call now.

    None if nobody will know of the commit: it is made by hand, or never, as in a test case, which counts what waits for it.

    :param slot: where it is kept on Django's connection.
    """
    if not connection.in_atomic_block:
        return make(connection) if connection.autocommit else None
    if connection.atomic_blocks and connection.atomic_blocks[0]._from_testcase:
        return None
    kept: tuple[int, T] | None = vars(connection).get(slot)
    callbacks = connection.run_on_commit
    if kept is not None and len(callbacks) > kept[0] and callbacks[kept[0]][1] is kept[1]:  # no rollback took it along
        return kept[1]
    made = make(connection)
    vars(connection)[slot] = (len(callbacks), made)
    connection.on_commit(made, robust=True)
    return made
