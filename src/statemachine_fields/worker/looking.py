"""The thread of a process that looks for parents: rows that wait for children which have ended.

Threads that write say whose children ended, and go on. This one asks which of those parents have what they wait for, and makes them
due. While it looks, more come together for the next look, so that ten thousand children of one row cost some looks and one write.
And now and then it looks at all parents that the process serves, in place of whoever died between a commit and its look. It also sees to
the children of parents that have left.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError
from django.db.models import Q

from statemachine_fields.db.dialect import is_connection_error
from statemachine_fields.machine import parents
from statemachine_fields.machine.joins import Join, Looked
from statemachine_fields.schedule.children import FLOOR_SECONDS
from statemachine_fields.worker.cancelling import cancel_left_behind
from statemachine_fields.worker.connections import OwnConnections, Reconnect
from statemachine_fields.worker.digest import Digest, cause_of
from statemachine_fields.worker.errors import described
from statemachine_fields.worker.joining import joins_of
from statemachine_fields.worker.lease import Lane

T = TypeVar("T")

#: How long more children may come together before the next look, in seconds: twice as long after each that woke nobody, up to this. When
#: the process has nothing more in hand there is nothing to wait for.
LINGER, LONGEST_LINGER = 0.005, 0.05
#: How long a parent is left alone that somebody has locked: twice as long each time.
LOCKED_SECONDS = 0.05
#: Seconds between two looks at what there is to do.
TICK = 0.5


class Looker:
    """Looks for the parents of children that have ended, until its process has stopped."""

    def __init__(
        self,
        lanes: list[Lane],
        own: OwnConnections,
        digest: Digest,
        *,
        poll_seconds: float = 1.0,
        at_once: bool = False,
    ) -> None:
        """
        :param at_once: look at all parents at the beginning, for a worker that is to stop when nothing is due.
        """
        self.poll_seconds = poll_seconds
        self.leaving = [lane for lane in lanes if "cancels" in lane.bound.features]
        self.own = own
        self.digest = digest
        self.aliases = list(dict.fromkeys(lane.using for lane in lanes))
        self.served = [(lane, join) for lane in lanes for join in joins_of(lane)]
        #: Called with a lane in which a row became due.
        self.on_woken: Callable[[Lane], None] = lambda lane: None
        self.ended = threading.Event()
        self._reconnects = {alias: Reconnect("looker", alias, digest) for alias in self.aliases}
        self._lock = threading.Lock()
        self._any = threading.Event()
        #: Set when no more children will come together soon.
        self._at_once = threading.Event()
        #: How many looks in a row woke nobody.
        self._in_vain = 0
        self._todo: dict[tuple[str, Join], tuple[set[Any], list[Q]]] = {}
        #: Parents that were ready and locked: when to look again, and after how long then.
        self._again: list[tuple[float, float, str, Join, set[Any]]] = []
        self._sweep_at = time.monotonic() + (0.0 if at_once else random.uniform(0, FLOOR_SECONDS))  # noqa: S311
        self._cancel_at = time.monotonic() if self.leaving else float("inf")
        self._is_busy = at_once

    @staticmethod
    def is_needed(lanes: Iterable[Lane]) -> bool:
        """Say whether rows of these lanes wait for children, or are children that others wait for."""
        return bool(parents.waiting) and any(joins_of(lane) or parents.joins_of_child(lane.bound) for lane in lanes)

    @property
    def is_settled(self) -> bool:
        """Whether it has looked for all that it was told of."""
        with self._lock:
            return not self._todo and not self._is_busy and self._cancel_at > 0.0

    def add(self, using: str, join: Join, values: set[Any], unloaded: Iterable[Q] = ()) -> None:
        """Hear of children that have ended, by what their foreign keys say. Called by threads that have committed.

        :param unloaded: finds children whose keys are to be asked for.
        """
        with self._lock:
            known, which = self._todo.setdefault((using, join), (set(), []))
            known.update(values)
            which.extend(unloaded)
        self._any.set()

    def run(self) -> None:
        self.own.use(self.aliases, "looker")
        looked_at = 0.0
        while not self.ended.is_set():
            self._any.wait(self._timeout())
            self._any.clear()
            if time.monotonic() > looked_at + TICK:
                self._in_vain = 0
            self._at_once.clear()
            if self._look():
                self._at_once.wait(min(LINGER * 2**self._in_vain, LONGEST_LINGER))
                self._in_vain = min(self._in_vain + 1, 10)
                looked_at = time.monotonic()

    def _timeout(self) -> float:
        now = time.monotonic()
        return max(
            min(TICK, self._sweep_at - now, self._cancel_at - now, *(again[0] - now for again in self._again)), 0.0
        )

    def _look(self) -> bool:
        """Look for what there is to look for, and say whether there was anything."""
        with self._lock:
            todo, self._todo, self._is_busy = self._todo, {}, True
        now = time.monotonic()
        again = [each for each in self._again if each[0] <= now]
        self._again = [each for each in self._again if each[0] > now]
        sweeps = now >= self._sweep_at
        if sweeps:
            self._sweep_at = now + FLOOR_SECONDS * random.uniform(0.7, 1.0)  # noqa: S311 - to spread processes
        for (using, join), (values, unloaded) in todo.items():
            self._look_for(using, join, values, unloaded)
        for _at, wait, using, join, values in again:
            self._look_for(using, join, values, wait=2 * wait)
        for lane, join in self.served if sweeps else ():
            self._look_for(lane.using, join, None)
        if now >= self._cancel_at:
            self._cancel_at = now + self.poll_seconds
            for lane in self.leaving:
                if self._contained(lane.using, lane, partial(cancel_left_behind, lane, self.digest)):
                    self._cancel_at = 0.0  # those that were cancelled may have left others behind
        with self._lock:
            self._is_busy = False
        return bool(todo or again)

    def hurry(self) -> None:
        """Look now for what there is: the process has no more rows in hand."""
        self._at_once.set()

    def left(self) -> None:
        """Hear that parents may have left children behind."""
        self._cancel_at = 0.0
        self._any.set()

    def _look_for(
        self,
        using: str,
        join: Join,
        values: set[Any] | None,
        unloaded: Iterable[Q] = (),
        wait: float = LOCKED_SECONDS,
    ) -> None:
        """Look for parents, and once more a little later for those that are ready and locked."""
        look = partial(join.look, using) if values is None else partial(join.look_for, using, values, unloaded)
        looked: Looked | None = self._contained(using, join, look)
        if looked is None:
            self._keep(using, join, values, max(wait, self._reconnects[using].left))
            return
        self._keep(using, join, set(looked.missed), wait)
        if looked.woken:
            self._in_vain = 0
            for lane, served in self.served:
                if served is join and lane.using == using:
                    self.on_woken(lane)

    def _contained(self, using: str, what: Join | Lane, act: Callable[[], T]) -> T | None:
        """Do something, and return None if it could not be done. Whatever goes wrong, others have their turn."""
        reconnect = self._reconnects[using]
        if reconnect.failures and not reconnect.is_over:
            return None
        try:
            done = act()
        except (DatabaseError, InterfaceError) as error:
            if is_connection_error(error):
                reconnect.lost(error)
                return None
            text = "Rows that wait for children cannot be seen to now (%s), which is tried again later: %s"
            cause = ("look", str(what), cause_of(error))
            self.digest.log(cause, logging.WARNING, text, what, described(error).strip())
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, the process goes on, and looks again
            text = "The looker of process %d met an error, and goes on."
            self.digest.log(("look", cause_of(error)), logging.ERROR, text, os.getpid(), error=error)
            return None
        reconnect.found()
        return done

    def _keep(self, using: str, join: Join, values: set[Any] | None, wait: float) -> None:
        if values and wait < FLOOR_SECONDS:  # else all are looked at anyway
            self._again.append((time.monotonic() + wait, wait, using, join, values))
