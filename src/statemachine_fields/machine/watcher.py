"""The thread that looks after the rows that somebody waits for: one for each process and database.

The first waiter starts it, and it ends by itself when nobody has waited for a while. It has a connection of its own, so that
no waiter needs one, and looks at all rows at once, so that a thousand waiters are a few statements. Where many wait it looks
less often: it takes a small share of a core at most. What this process moves, it looks at as soon as that is committed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.transaction import TransactionManagementError

from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.db.own import Limits, own_connection
from statemachine_fields.machine.arrivals import Waiter, key_as_written, look

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

logger = logging.getLogger("statemachine_fields.machine")

#: How many seconds pass between two looks, and how many at most, however many wait.
TICK, LONGEST_TICK = 0.025, 1.0
#: What part of a core looking may take.
SHARE = 0.05
#: How long a watcher stays when nobody waits. PostgreSQL lets a DROP DATABASE, as at the end of tests, wait for five seconds.
LINGER = 3.0
#: How long a statement may take, after which waiters hang up on a server that has fallen silent.
LIMITS = Limits(statement=5.0, lock=1.0)
#: How long to leave a database alone that is away: longer after each failure.
FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 5.0

#: A row that is waited for: its machine, and its key as it is written.
Place: TypeAlias = "tuple[Binding[Any], Any]"

#: Those that are at work, by the name of the database. Whoever moves a row asks whether there are any.
watchers: dict[str, Watcher] = {}

_lock = threading.Lock()
#: Of the process that this one was forked from. To let go of them would end connections that are not ours.
_inherited: list[Watcher] = []


class Watcher:
    """One thread, its connection, and those who wait for its answers. All but the connection is shared under the lock."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.waiters: dict[Place, list[Waiter]] = {}
        #: Rows that have just moved; where nobody knows which ones of a machine, None is in place of the key.
        self.moved: set[Place] = set()
        self.wake = threading.Event()
        #: When it looks at all rows again; or, if nobody waits, when it ends.
        self.due = time.monotonic() + TICK
        self.failures = 0
        self.connection: Any = None
        self.thread = threading.Thread(target=self._run, name=f"statemachine_fields wait_for {using}", daemon=True)

    def add(self, place: Place, waiter: Waiter) -> None:
        if not self.waiters:  # it would sleep for longer
            self.due = time.monotonic() + TICK
            self.wake.set()
        self.waiters.setdefault(place, []).append(waiter)

    def remove(self, place: Place, waiter: Waiter) -> None:
        self.waiters[place].remove(waiter)
        if not self.waiters[place]:
            del self.waiters[place]
        if not self.waiters:
            self.due = time.monotonic() + LINGER

    def look_at(self, place: Place) -> None:
        """Look at a row now, and not when it is due."""
        with _lock:
            self.moved.add(place)
        self.wake.set()

    def hang_up_if_silent(self) -> None:
        """End the connection if the server owes an answer for too long, so that another one is made."""
        connection = self.connection
        if getattr(connection, "overdue", False):
            connection.forget_answer()
            dialect_for(connection).hang_up(connection)

    def _run(self) -> None:
        try:
            self.connection = own_connection(self.using, "wait_for", LIMITS, program="statemachine_fields")
            connections[self.using] = self.connection
            self._watch()
        except BaseException as error:
            with _lock:
                watchers.pop(self.using, None)
                left = [waiter for waiters in self.waiters.values() for waiter in waiters]
            for waiter in left:  # or they would wait for ever
                waiter.failed(error)
            raise
        finally:
            with suppress(Exception):
                self.connection.close()

    def _watch(self) -> None:
        while True:
            self.wake.wait(max(self.due - time.monotonic(), 0.0))
            self.wake.clear()
            with _lock:
                is_due = time.monotonic() >= self.due
                if is_due and not self.waiters:
                    del watchers[self.using]
                    return
                chosen = self._choose(everybody=is_due)
            began = time.thread_time()
            if not self._look(chosen):
                pause = min(FIRST_BACKOFF * 2 ** min(self.failures, 30), LONGEST_BACKOFF)
                self.failures += 1
            elif is_due:
                pause = min(max((time.thread_time() - began) / SHARE, TICK), LONGEST_TICK)
            else:
                continue
            with _lock:
                self.due = time.monotonic() + (pause if self.waiters else LINGER)

    def _choose(self, *, everybody: bool) -> dict[Binding[Any], list[Waiter]]:
        """Return at whose rows to look: at all of them, or at those that have just moved."""
        moved, self.moved = self.moved, set()
        chosen: defaultdict[Binding[Any], list[Waiter]] = defaultdict(list)
        if everybody or not self.failures:
            for place, waiters in self.waiters.items():
                if everybody or place in moved or (place[0], None) in moved:
                    chosen[place[0]] += [waiter for waiter in waiters if not waiter.future.done()]
        return chosen

    def _look(self, chosen: dict[Binding[Any], list[Waiter]]) -> bool:
        """Look at rows, machine by machine; False if there is no database to be asked."""
        for bound, waiters in chosen.items():
            try:
                look(bound, waiters, self.using)
            except (OperationalError, InterfaceError) as error:
                if not self.failures:
                    logger.warning(
                        "wait_for() has no database and tries again (%s): %s", self.using, str(error).strip()
                    )
                with suppress(Exception):
                    self.connection.close()
                return False
            except Exception as error:  # noqa: BLE001 - it is raised where they wait
                for waiter in waiters:
                    waiter.failed(error)
            if self.failures:
                logger.info("wait_for() has its database again (%s).", self.using)
                self.failures = 0
        self.connection.queries_log.clear()  # with DEBUG it would grow
        return True


@contextmanager
def watched(waiter: Waiter, using: str) -> Iterator[Watcher]:
    """Have a row looked after until the block ends."""
    place = (waiter.bound, waiter.key)
    with _lock:
        watcher = watchers.get(using)
        if watcher is None:
            watcher = Watcher(using)
            watcher.thread.start()
            watchers[using] = watcher
        watcher.add(place, waiter)
    try:
        yield watcher
    finally:
        with _lock:
            watcher.remove(place, waiter)


def tell_watchers(bound: Binding[Any], using: str, key: Any = None) -> None:
    """Let those know at once who wait for a row that has moved, as soon as that is committed.

    Call it only `if watchers`: most moves are made where nobody waits.

    :param key: of the row; None for many.
    """
    watcher = watchers.get(using)
    if watcher is None:
        return
    place = (bound, None if key is None else key_as_written(bound, key, using))
    if key is not None and place not in watcher.waiters:
        return
    with suppress(TransactionManagementError):  # of those who commit by hand nobody hears when they do
        transaction.on_commit(partial(watcher.look_at, place), using=using)


def _forget() -> None:
    """Begin anew in a process that was forked: its parent has the threads, and those who wait."""
    global _lock  # noqa: PLW0603 - somebody may have held it
    _lock = threading.Lock()
    _inherited.extend(watchers.values())
    watchers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
