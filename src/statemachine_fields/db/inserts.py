"""The time that all rows of one `bulk_create()` have.

Django sends many rows to PostgreSQL as an array for each column, which takes a third of the time, if it has values for them.
A time that the database computes is none. So the first row of a call lets the clock be read, and the others share what it said.
"""

from __future__ import annotations

import datetime
import threading
from dataclasses import dataclass
from typing import Any

from django.db import models

from statemachine_fields.db.clock import DatabaseClock, as_utc
from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.db.expressions import MachineValue
from statemachine_fields.db.fields import INSERTED, MachineColumn

#: In the state of an instance: the call that inserts it, or did.
CALL = "statemachine_bulk_create"

#: So many rows may be due at the same instant and cost nobody anything.
FEW = 16

_thread = threading.local()


class BulkCall:
    """One call of `bulk_create()`: how many rows it has, and the database's time at which it came to the first of them."""

    __slots__ = ("began", "has_begun", "placed", "rows", "told")

    def __init__(self) -> None:
        self.rows = self.placed = 0
        self.has_begun = False
        self.began: datetime.datetime | None = None
        #: In which states rows are due of which it was told.
        self.told: set[Any] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a pickled instance is of no call, and no pickle has a class of ours in it

    def count_down(self) -> int:
        """Return how many rows are still to come; 0 if there are but few in all, which need no order."""
        self.placed += 1
        return self.rows - self.placed if self.rows > FEW else 0

    def read_clock(self, connection: Any) -> datetime.datetime | None:
        """Return when it began; None if each of its rows has a time of its own, as on other databases, or if it has one row."""
        if not self.has_begun:
            self.has_begun = True
            if self.rows > 1:
                self.began = dialect_for(connection).read_clock(connection)
        return self.began


def join_call(instance: models.Model) -> None:
    """Make an instance one of those that the next insert in this thread is about.

    Django prepares all instances of a call before it inserts the first, so a call that has not begun is the one that is
    being prepared, or one that was refused.
    """
    call: BulkCall | None = getattr(_thread, "call", None)
    if call is None or call.has_begun:
        call = _thread.call = BulkCall()
    call.rows += 1
    vars(instance._state)[CALL] = call


@dataclass(frozen=True, slots=True)
class CallTime:
    """A time in a row of a `bulk_create()`. Which database's clock it goes by is known when it is written."""

    call: BulkCall
    #: How many seconds after the call.
    plus: float | None = None
    #: Or which time, whatever the clock says.
    given: datetime.datetime | None = None

    def on(self, connection: Any) -> Any:
        """Return what is written there: a value, or what lets the database compute one."""
        began = self.call.read_clock(connection)
        if self.given is not None:
            # The driver takes the times of an array for all aware or for all naive.
            return MachineValue(self.given if began is None else as_utc(self.given, connection))
        if began is None:
            return DatabaseClock(self.plus)
        return MachineValue(began if self.plus is None else began + datetime.timedelta(seconds=self.plus))


class InsertTime(MachineColumn):
    """A column for a time that the database's clock gives a new row."""

    computed = (*MachineColumn.computed, DatabaseClock)

    def call_of(self, instance: models.Model) -> BulkCall | None:
        """Return the `bulk_create()` that inserts the instance; None if a `save()` does."""
        state = vars(instance._state)
        return None if INSERTED in state else state.get(CALL)

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        return super().get_db_prep_save(value.on(connection) if isinstance(value, CallTime) else value, connection)
