"""Wake-ups: once a row that is due is committed, whoever made it due tells the workers that wait for one.

It is a courtesy, and nothing relies on it. A message that is lost, or not sent, costs the time until a worker looks by itself. So
it is sent after the commit and never within it, never raises, and is not sent at all while no worker waits: behind each machine
and queue there is a gate, which a listener holds while its workers have nothing to do (see `db/postgresql_wakeups.py`). To ask at
the gate is a statement, too, so who was told that nobody waits does not ask again for a while.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from statemachine_fields import conf
from statemachine_fields.db.commits import once_after_commit
from statemachine_fields.db.dialect import dialect_for

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

logger = logging.getLogger("statemachine_fields.schedule")

#: How many seconds a process does not ask again that was told that nobody waits. Workers that begin to wait know of it.
ASK_AGAIN_AFTER = 0.25

#: How many seconds the clock of this process may be behind that of the database.
CLOCKS_DIFFER_BY = 5.0

#: When to ask again, by database and gate, by the monotonic clock.
_quiet_until: dict[tuple[str, int], float] = {}

#: No queue is called so. Where rows say their queue themselves, those wait behind a gate of this name who serve all queues, and
#: behind the other all who serve some: it is for those who make rows due and do not know of which queues.
EVERY_QUEUE, UNKNOWN_QUEUE = "", " "

#: Where the message is kept that the open transaction will send, on Django's connection.
SLOT = "statemachine_fields_wakeup"


def gate_of(bound: Binding[Any], queue: str) -> int:
    """Return the number of the gate before the rows of a machine that belong to a queue."""
    gate = bound.gates.get(queue)
    if gate is None:
        name = f"statemachine_fields {bound.table.name} {bound.names.status} {queue}"
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        gate = bound.gates[queue] = int.from_bytes(digest, "big", signed=True)
    return gate


def gates_before(bound: Binding[Any], state: str, queue: str | None) -> set[int]:
    """Return the gates behind which workers wait for a row that is due in a state.

    :param queue: what the row has in its queue column, if the machine has one; None if that is not known.
    """
    own = bound.schedules[state].queue
    if bound.queue_field is None:
        return {gate_of(bound, own)}
    name = (queue or own) if isinstance(queue, str) else UNKNOWN_QUEUE  # of an expression the database knows the value
    return {gate_of(bound, EVERY_QUEUE), gate_of(bound, name)}


def gates_behind(bound: Binding[Any], queue: str, queues: Sequence[str] | None) -> set[int]:
    """Return the gates behind which to wait for rows of a queue; or, where rows say theirs themselves, of some, or of all."""
    if bound.queue_field is None:
        return {gate_of(bound, queue)}
    names = (EVERY_QUEUE,) if queues is None else (*queues, UNKNOWN_QUEUE)
    return {gate_of(bound, name) for name in names}


def seconds_until(when: datetime.datetime) -> float:
    """Return in how many seconds an instant is at the earliest. Clocks differ, and who is woken too soon sleeps again."""
    return (when - timezone.now()).total_seconds() - CLOCKS_DIFFER_BY


def wake(
    bound: Binding[Any], connection: Any, state: str, seconds: float | None = 0.0, queue: str | None = None
) -> None:
    """Tell workers, once it is committed, that a row is due in a state, or will be before they would look by themselves.

    :param seconds: in how many seconds it is; None for never.
    :param queue: what the row has in its queue column, if the machine has one and that is known.
    """
    if seconds is None:
        return
    settings = conf.settings()
    if seconds > settings.POLL_SECONDS or not settings.WAKE_UPS or not dialect_for(connection).can_notify:
        return
    schedule = bound.schedules.get(state)
    if schedule is None or not schedule.runs:
        return
    message = once_after_commit(connection, SLOT, Message)
    if message is not None:
        message.gates |= gates_before(bound, state, queue)
        if not connection.in_atomic_block:
            message()


def wake_after_entry(
    bound: Binding[Any],
    connection: Any,
    state: str,
    next_at: datetime.datetime | None,
    seconds: float | None,
    queue: str | None = None,
) -> None:
    """Do the same for a row that has entered a state.

    :param next_at: when it is due, which the database alone knows where rows wait for events: one may have been there.
    :param seconds: in how many seconds it is, by policy.
    """
    if next_at is not None and state in bound.awaited_names:
        seconds = seconds_until(next_at)
    wake(bound, connection, state, seconds, queue)


def wake_after_insert(
    bound: Binding[Any], connection: Any, state: str, seconds: float | None, queue: str | None = None
) -> None:
    """Do the same for rows that the next INSERT on the connection is about. A `bulk_create()` may have no transaction."""
    if connection.in_atomic_block:
        wake(bound, connection, state, seconds, queue)
        return

    def insert(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if not str(sql).lstrip().startswith("INSERT"):
            return execute(sql, params, many, context)
        with suppress(ValueError):
            connection.execute_wrappers.remove(insert)
        result = execute(sql, params, many, context)
        wake(bound, connection, state, seconds, queue)
        return result

    # Before all others, so that theirs are taken away from the end in their order, and what they send does not meet it.
    connection.execute_wrappers.insert(0, insert)


class Message:
    """What one transaction has to tell when it is committed."""

    __qualname__ = "wake"  # Django names it so, should it ever raise

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.gates: set[int] = set()

    def __call__(self) -> None:
        knock(self.connection, self.gates)


def knock(connection: Any, gates: set[int]) -> None:
    """Ask at gates whether somebody waits, and tell who does. What is committed stands, so nothing is raised."""
    now, alias = time.monotonic(), connection.alias
    asked = [gate for gate in gates if _quiet_until.get((alias, gate), 0.0) <= now]
    if not asked:
        return
    try:
        held = dialect_for(connection).notify(connection, asked)
    except Exception as error:  # noqa: BLE001 - of the driver, or of who wraps it
        logger.debug("Workers could not be told of a row that is due. They look by themselves. (%s)", error)
        return
    for gate in asked:
        if gate in held:
            _quiet_until.pop((alias, gate), None)
        else:  # counted from before it was asked: who has begun to wait since then looks again after that
            _quiet_until[alias, gate] = now + ASK_AGAIN_AFTER
