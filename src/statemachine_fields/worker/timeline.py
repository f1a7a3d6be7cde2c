"""Time that passes for the rows of one database, for tests: when it began, how far it is, and what is due next.

Nothing lies in the future: rows and records grow older, see `db.aging`. How much older they have been made is kept in a
temporary table, because that is undone together with the rows when a test is rolled back.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from django.db import connections, models

from statemachine_fields.db.aging import Aging, Due, database_now, in_use, keep, recall
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.registry import all_machines, find_machine
from statemachine_fields.worker.lease import Lane, Lease
from statemachine_fields.worker.outcomes import RowOutcome, Stayed

#: By how much the instant at which time stands still lies before the clock, so that what is due then is due on a database
#: with a coarse clock, too, and what is written from then on can be told from what was there.
EARLIER = datetime.timedelta(milliseconds=5)
#: How long after the instant at which time stands still a row is taken for due at it. Some databases read their clock once for
#: each column, so that a row which is due at once is due some microseconds after it has moved.
TICK = datetime.timedelta(milliseconds=1)
#: How far behind the database's clock an instant may be that somebody has read from another.
SKEW = datetime.timedelta(minutes=1)
#: How many rows of each machine tell, where nothing is rolled back, that it is still the same test.
WITNESSES = 20

#: What a statement says that brings rows into a table.
FILLS = ("INSERT", "COPY", "MERGE", "REPLACE", "CALL")

MICROSECOND = datetime.timedelta(microseconds=1)


class Passed(NamedTuple):
    """What is remembered: when time began, until when rows were run, and how much older they are than by the clock."""

    began_at: datetime.datetime
    until: datetime.datetime
    by: datetime.timedelta


class NextTry(NamedTuple):
    """A row that is to be tried, and as of when."""

    lane: Lane
    due: Due
    #: As tests count time, and as the columns do.
    at: datetime.datetime
    as_of: datetime.datetime


class Timeline:
    """The time of one database. An instant as tests count it is one of the columns plus what has passed."""

    def __init__(self, using: str, lanes: Iterable[Lane]) -> None:
        self.using = using
        self.connection = connections[using]
        self.lanes: dict[Binding[Any], list[Lane]] = {}
        for lane in lanes:
            self.lanes.setdefault(lane.bound, []).append(lane)
        self.agings = {
            _columns(bound): Aging(self.connection, bound.table) for bound in (*self.lanes, *self._stored_machines())
        }
        self._in_use: list[Aging] = []
        self._has_looked = False
        self._any_table = next(iter(self.lanes)).table
        now = self._now()
        #: Where time stands still at the moment, as the columns count it.
        self.stopped_at = now
        self.stands_still = False
        found = self._recall()
        self.is_first = found is None
        self.passed = found or Passed(now, now, datetime.timedelta(0))

    def _stored_machines(self) -> Iterator[Binding[Any]]:
        """Yield the machines whose tables this database has, timed or not: time passes for all."""
        tables = set(self.connection.introspection.table_names())
        for bound in all_machines():
            if {bound.table.name, bound.table.audit} <= tables:
                yield bound

    @property
    def now(self) -> datetime.datetime:
        """Where time stands still, as tests count it."""
        return self.stopped_at + self.passed.by

    def read(self, at: datetime.datetime | datetime.timedelta) -> datetime.datetime:
        """Return the instant that is meant: what is a duration counts from when time began. It must not lie behind."""
        if isinstance(at, datetime.timedelta):
            at = self.passed.began_at + at
        if at < (self.passed.until - SKEW if self.is_first else self.passed.until):
            since = "the database's clock" if self.is_first else "the last drain(at=...)"
            raise ValueError(
                f"at={at.isoformat()} lies before {since}, which is at {self.passed.until.isoformat()}, and rows cannot "
                "grow younger. Give a later instant, or a timedelta, which counts from the first drain(at=...) of the test; "
                "with a frozen clock only a timedelta will do, because the database's clock is not frozen."
            )
        return at

    def next_try(self, until: datetime.datetime, besides: Lease | None = None) -> NextTry | None:
        """Return the row that is due first, at some time until an instant.

        :param besides: a row to leave out.
        """
        found: list[NextTry] = []
        self._look()
        for bound, lanes in self.lanes.items():
            if (aging := self.agings[_columns(bound)]) not in self._in_use:
                continue
            priorities = {state: each.priority for lane in lanes for state, each in lane.schedules.items()}
            without = besides.key if besides is not None and besides.lane.bound is bound else None
            due = aging.first_due(priorities, self.stopped_at, without)
            if due is None:
                continue
            as_of = max(due.at, self.stopped_at)
            if self.stands_still and as_of < self.stopped_at + TICK:
                as_of = self.stopped_at
            if min(due.at, as_of) + self.passed.by <= until:
                lane = next(lane for lane in lanes if due.status in lane.schedules)
                found.append(NextTry(lane, due, as_of + self.passed.by, as_of))
        return min(found, key=lambda each: (each.at, each.due.at), default=None)

    def advance(self, to: datetime.datetime) -> None:
        """Let time pass until an instant, and stand still there. Never goes back."""
        if to <= self.now:
            return
        stop = self._now() - EARLIER
        step = to - self.passed.by - stop
        self._pass(step)
        self.stopped_at, self.stands_still = stop, True

    def settle(self) -> None:
        """Take what was written since time stands still for written then."""
        self._has_looked = False
        self._look()
        self._pass(datetime.timedelta(0))

    def watch(self) -> AbstractContextManager[Any]:
        """Notice while it lasts whether something is inserted that may be the first of a machine's rows."""
        manager: AbstractContextManager[Any] = self.connection.execute_wrapper(self._notice)
        return manager

    def _notice(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        text = str(sql).upper()
        if any(word in text for word in FILLS):
            self._has_looked = False
        return execute(sql, params, many, context)

    def _look(self) -> None:
        """Find out which machines have rows. Most tests use few, and each statement is paid for by every try."""
        if not self._has_looked:
            self._in_use = in_use(self.connection, self.agings.values())
            self._has_looked = True

    def _pass(self, step: datetime.timedelta) -> None:
        for aging in self._in_use:
            aging.pass_time(self.stopped_at, step)
        self.passed = self.passed._replace(by=self.passed.by + step)

    def committed(self, outcome: RowOutcome, entered_at: datetime.datetime) -> None:
        """Count the wait of a row that stays from where time stands still, and not from when that was written."""
        if not isinstance(outcome, Stayed) or outcome.is_woken:
            return
        lease = outcome.lease
        dues = [] if outcome.delay is None else [self.stopped_at + datetime.timedelta(seconds=outcome.delay)]
        if outcome.horizon is not None:
            horizon = entered_at + datetime.timedelta(seconds=outcome.horizon)
            dues.append(max(horizon, self.stopped_at))
        if dues:
            self.agings[_columns(lease.lane.bound)].set_due(lease.key, lease.sequence, min(dues))

    def count_tries(self, lease: Lease, tries: int) -> None:
        """Count tries that were not written, the last of them where time stands still."""
        self.agings[_columns(lease.lane.bound)].count_tries(lease.key, tries, self.stopped_at)

    def remember(self, until: datetime.datetime) -> None:
        """Keep how far time is, for the next drain of the same test."""
        passed = self.passed._replace(until=max(until, self.passed.until))
        values = (passed.began_at.isoformat(), passed.until.isoformat(), passed.by // MICROSECOND, self._signs())
        keep(self.connection, values)

    def _recall(self) -> Passed | None:
        """Return what is remembered, unless it is of another test."""
        row = recall(self.connection)
        if row is None or not self._is_of_this_test(json.loads(row[3])):
            return None
        began_at, until = map(datetime.datetime.fromisoformat, row[:2])
        return Passed(began_at, until, row[2] * MICROSECOND)

    def _is_of_this_test(self, signs: dict[str, Any]) -> bool:
        """Say whether it is the same transaction, or whether rows are there as they were left."""
        if signs["transaction"] and signs["transaction"] == self._transaction():
            return True
        return any(self._is_any_there(name, witnesses) for name, witnesses in signs["rows"].items())

    def _signs(self) -> str:
        """Return how to tell that it is still the same test. What is not rolled back with a test is deleted after it, and the
        next may have rows of the same keys, on the same connection if its database is in memory."""
        rows = {
            str(bound): {
                str(key): [sequence, changed_at.isoformat()]
                for key, sequence, changed_at in self._rows(bound).order_by("-pk")[:WITNESSES]
            }
            for bound in self.lanes
            if self.agings[_columns(bound)] in self._in_use
        }
        return json.dumps({"transaction": self._transaction(), "rows": rows})

    def _transaction(self) -> str:
        """Name the outermost transaction, if there is one."""
        blocks = self.connection.atomic_blocks
        return str(vars(blocks[0]).setdefault("statemachine_fields_name", uuid.uuid4().hex)) if blocks else ""

    def _is_any_there(self, name: str, witnesses: dict[str, list[Any]]) -> bool:
        bound = find_machine(*name.rsplit(".", 1))
        records: models.QuerySet[Any] = models.QuerySet(bound.transition_model, using=self.using)
        for key, sequence, changed_at in self._rows(bound).filter(pk__in=witnesses):
            then, left_at = witnesses[str(key)]
            if sequence == then and changed_at.isoformat() == left_at:
                return True
            made_at = datetime.datetime.fromisoformat(left_at)
            record = records.filter(instance_id=key, sequence=then, transitioned_at=made_at)
            if sequence > then and (not then or record.exists()):  # it has moved since
                return True
        return False

    def _rows(self, bound: Binding[Any]) -> models.QuerySet[Any, tuple[Any, int, datetime.datetime]]:
        names = bound.names
        rows: models.QuerySet[Any] = models.QuerySet(bound.model, using=self.using)
        return rows.values_list("pk", names.sequence, names.changed_at)

    def _now(self) -> datetime.datetime:
        return database_now(self.connection, self._any_table)


def _columns(bound: Binding[Any]) -> tuple[str, str]:
    """Return what two machines have in common that are one to the database, as those of a model and its proxy."""
    return bound.table.name, bound.table.columns["status"]


def timelines_of(lanes: list[Lane]) -> list[Timeline]:
    """Return the time of each database that the lanes are of."""
    by_database: dict[str, list[Lane]] = {}
    for lane in lanes:
        by_database.setdefault(lane.using, []).append(lane)
    return [Timeline(using, members) for using, members in by_database.items()]
