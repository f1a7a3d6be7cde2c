"""The columns of a timed machine: when a row is due, who holds it, and how its tries went.

Like the other columns of a machine they are computed on INSERT and kept by every UPDATE of Django's, but that a new row may be
given the time at which it is due. No index has `lease_expires_at`, so that extending a lease leaves the indexes alone.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models.expressions import DatabaseDefault

from statemachine_fields.db.clock import MICROSECOND, ComputedTime, DatabaseClock, read_instant
from statemachine_fields.db.expressions import LeftBehind, MachineValue
from statemachine_fields.db.fields import MachineColumn
from statemachine_fields.db.inserts import CallTime, InsertTime
from statemachine_fields.db.rows import row_label
from statemachine_fields.exceptions import DELIVERED, TIMED, StateMachineError
from statemachine_fields.schedule.handlers import is_timed_on
from statemachine_fields.schedule.wakeups import seconds_until, wake_after_insert

if TYPE_CHECKING:
    from typing import TypeAlias

    from statemachine_fields.db.columns import Names
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.machine.descriptor import StateMachine

    BooleanField: TypeAlias = models.BooleanField[Any, Any]
    BigIntegerField: TypeAlias = models.BigIntegerField[Any, Any]
    CharField: TypeAlias = models.CharField[Any, Any]
    DateTimeField: TypeAlias = models.DateTimeField[Any, Any]
    IntegerField: TypeAlias = models.IntegerField[Any, Any]
    TextField: TypeAlias = models.TextField[Any, Any]
else:  # Django's fields take type arguments in the stubs and not at run time
    from django.db.models import BigIntegerField, BooleanField, CharField, DateTimeField, IntegerField, TextField

#: Room for a host, a process and the random part of a worker's name.
OWNER_LENGTH = 100


class ScheduleColumn(MachineColumn):
    """A column that a new row has at its default, whatever the instance holds."""

    remedy = TIMED
    #: Whether the database computes what is inserted, so that Django has to read it back.
    is_computed = False

    @property
    def db_returning(self) -> bool:
        return self.is_computed

    def initial_value(self, instance: models.Model) -> Any:
        value = self.get_default()
        setattr(instance, self.attname, value)
        return value


class NextAtField(InsertTime, ScheduleColumn, DateTimeField):  # type: ignore[misc]  # the stubs name a parameter differently
    """When the row is due, by the database's clock; null while nothing is to be done with it."""

    is_computed = True
    computed = (*InsertTime.computed, ComputedTime)

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        if self.bound is None or not add:
            return super().pre_save(model_instance, add)
        call = self.call_of(model_instance)
        status, queue = self._status(model_instance), vars(model_instance).get(self.bound.queue_name)
        if (given := given_time(self.bound, model_instance)) is not None:
            return MachineValue(given) if call is None else DueTime(call, given=given, status=status, queue=queue)
        schedule = self.bound.schedules.get(status)
        delay = None if schedule is None else schedule.entry_delay()
        setattr(model_instance, self.attname, None)
        if delay is None:
            return MachineValue(None)
        return DatabaseClock(delay) if call is None else DueTime(call, delay, status=status, queue=queue)

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        if isinstance(value, DueTime) and self.bound is not None:
            self._wake(self.bound, value, connection)
        return super().get_db_prep_save(value, connection)

    def _status(self, instance: models.Model) -> str:
        status: str = getattr(instance, self.bound.names.status)  # type: ignore[union-attr]  # of a machine's instance
        return status

    def _wake(self, bound: Binding[Any], value: DueTime, connection: Any) -> None:
        """Tell workers of rows that are due when they are inserted, or soon, once for all of a state, or of a queue."""
        whose = (bound, value.status, str(value.queue))
        if whose in value.call.told or (value.given is not None and seconds_until(value.given) > 0):
            return
        value.call.told.add(whose)
        wake_after_insert(bound, connection, value.status, value.plus or 0.0, value.queue)


@dataclass(frozen=True, slots=True)
class DueTime(CallTime):
    """When a row of a `bulk_create()` is due, and in which state. Of many, each has a time of its own, a microsecond after the one
    before it and none after that of the call: they are claimed in their order, and those that are held are found before the others."""

    status: str = ""
    queue: str | None = None

    def on(self, connection: Any) -> Any:
        value = CallTime.on(self, connection)
        if self.given is not None or not isinstance(value, MachineValue):
            return value
        return MachineValue(value.value - self.call.count_down() * MICROSECOND)


class PinnedField(ScheduleColumn, BooleanField):
    """Whether somebody, and not the policy, said when the row is due."""

    def initial_value(self, instance: models.Model) -> bool:
        is_given = self.bound is not None and given_time(self.bound, instance) is not None
        setattr(instance, self.attname, is_given)
        return is_given


class LeaseOwnerField(ScheduleColumn, CharField):
    """Who holds the row. For people: it decides nothing."""


class LeaseExpiresAtField(ScheduleColumn, DateTimeField):  # type: ignore[misc]
    """Until when the row is held; null if nobody holds it."""


class LeaseTokenField(ScheduleColumn, BigIntegerField):
    """Grows with every claim and every move and is never reset: who knows it holds the row."""


class ClaimedAtField(ScheduleColumn, DateTimeField):  # type: ignore[misc]
    """When the row was last claimed, by the database's clock; null if it never was."""


class CountField(ScheduleColumn, IntegerField):
    """How many tries there were in the row's life; how many failed in this state, or ended with no outcome at all."""


class InboxField(ScheduleColumn, IntegerField):
    """How many events the row has got in its life. Whoever lets it sleep compares how many of them were seen."""

    remedy = DELIVERED


class CancelsField(ScheduleColumn, IntegerField):
    """The number of the first move by which the row has left a state whose unfinished children are to be cancelled, and to which
    nobody has seen yet; 0 if there is none."""

    computed = (*ScheduleColumn.computed, LeftBehind)


class ErrorField(ScheduleColumn, TextField):
    """What went wrong last. With no `next_at`: why the row is parked."""


def given_time(bound: Binding[Any], instance: models.Model) -> datetime.datetime | None:
    """Return the time that an instance which is to be inserted was given, or raise; None if it was given none.

    What a copy holds was loaded, and is not taken along. Of an instance that was never a row `changed_at` is the default
    that the database has yet to compute; of one that was it is a time, or not loaded.
    """
    names, data = bound.names, vars(instance)
    when = data.get(names.next_at)
    if when is None or not isinstance(data.get(names.changed_at), DatabaseDefault):
        return None
    status = getattr(instance, names.status)
    if status not in bound.states_that_run():
        raise nothing_is_due(instance, status, "Create the row in another state")
    return read_instant(when, names.next_at)


def nothing_is_due(instance: models.Model, status: str, remedy: str) -> StateMachineError:
    return StateMachineError(
        f"{row_label(instance)} is in {status!r}, where nothing is ever due: the state has no handler, no time-out and no "
        f"deletion. {remedy}, or give the state one of them."
    )


def schedule_columns(
    machine: StateMachine, names: Names, features: Collection[str]
) -> dict[str, models.Field[Any, Any]]:
    """Return the columns of a timed machine with some features. Each is nullable or has a default, so that adding them to a large
    table is quick."""
    ours: dict[str, Any] = {"editable": False, "machine": machine}
    zero, empty, false = ({"default": value, "db_default": value, **ours} for value in (0, "", False))
    null = {"null": True, "blank": True, **ours}
    columns: dict[str, models.Field[Any, Any]] = {
        names.next_at: NextAtField(**null),
        names.next_at_pinned: PinnedField(**false),
        names.lease_owner: LeaseOwnerField(max_length=OWNER_LENGTH, blank=True, **empty),
        names.lease_expires_at: LeaseExpiresAtField(**null),
        names.lease_token: LeaseTokenField(**zero),
        names.claimed_at: ClaimedAtField(**null),
        names.attempts: CountField(**zero),
        names.failures: CountField(**zero),
        names.crashes: CountField(**zero),
        names.error: ErrorField(blank=True, **empty),
    }
    if "inbox" in features:
        columns[names.inbox] = InboxField(**zero)
    if "cancels" in features:
        columns[names.cancels] = CancelsField(**zero)
    return columns


def schedule_indexes(model: type[models.Model], names: Names, features: Collection[str] = ()) -> list[models.Index]:
    """Return the indexes of a timed machine with some features.

    One has all rows: it finds those that are due, a walk for each state in the order in which they are, and answers what
    people ask about a state. The other finds those that a worker may have died of, however many are due. Extending a
    lease, and taking one, changes no column of either.
    """
    indexes = [
        models.Index(fields=[names.status, names.next_at]),
        _index_where(model, [names.crashes, names.next_at], models.Q(**{f"{names.crashes}__gt": 0})),
    ]
    if "cancels" in features:
        indexes.append(_index_where(model, [names.cancels], models.Q(**{f"{names.cancels}__gt": 0})))
    return indexes


def _index_where(model: type[models.Model], fields: list[str], condition: models.Q) -> models.Index:
    """Return an index on some rows, named as Django would name it if it had no condition."""
    twin = models.Index(fields=fields)
    twin.set_name_with_model(model)
    return models.Index(fields=fields, name=twin.name, condition=condition)


def features_of(machine: StateMachine, model: type[models.Model], accessor: str) -> tuple[str, ...]:
    """Return which of `FEATURES` a machine has on a class. Its columns follow from them."""
    if not is_timed_on(model, machine, accessor):
        return ("machine",)
    awaited = [state.until for state in machine.graph.states.values() if state.until is not None]
    return ("machine", "schedule", *dict.fromkeys(feature for until in awaited for feature in until.features))
