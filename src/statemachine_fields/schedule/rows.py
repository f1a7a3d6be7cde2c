"""What people and programs may do with the schedule of a row, and ask about those of many.

Each verb is one UPDATE that compares what it relies on, so that none can undo what a worker or a colleague did meanwhile.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.db import connections, models, router
from django.db.models import Q

from statemachine_fields.db.clock import DatabaseClock, StatementClock, read_instant
from statemachine_fields.db.effects import RELEASE, RESUME, RUN_AT, Effect
from statemachine_fields.db.rows import all_rows, row_label
from statemachine_fields.exceptions import RowLeased, RowMissing, StateMachineError
from statemachine_fields.schedule.columns import nothing_is_due
from statemachine_fields.schedule.wakeups import seconds_until, wake

if TYPE_CHECKING:
    from statemachine_fields.db.columns import Names
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.schedule.policy import Schedule

M = TypeVar("M", bound=models.Model)


class RowSchedule(Generic[M]):
    """When one row is due, and who holds it."""

    def __init__(self, bound: Binding[M], instance: M) -> None:
        bound.require_schedule()
        self.bound = bound
        self.names = bound.names
        self.instance = instance
        if instance.pk is None:
            raise RowMissing(row_label(instance), saved=False)
        self.using = router.db_for_write(type(instance), instance=instance)

    def run_at(self, when: datetime.datetime | None) -> None:
        """Make the row due at an instant, or now by the database's clock, or raise."""
        instant = DatabaseClock() if when is None else read_instant(when, "when")
        runnable = self.bound.states_that_run()
        rows = self._row.filter(self.bound.free_condition(), **{f"{self.names.status}__in": runnable})
        changed, status, owner = 0, "", ""
        while not (changed or owner):  # a lease may end after it was in our way, and before we have seen whose it was
            changed = rows.update(**self._changes(RUN_AT, next_at=instant))
            status, owner = self._reload()
            if not changed and status not in runnable:
                raise nothing_is_due(self.instance, status, "Move the row")
        if not changed:
            raise RowLeased(row_label(self.instance), owner, "run_at")
        self._wake(status, 0.0 if when is None else seconds_until(when))

    def release(self) -> bool:
        """Take the row away from the worker that held it when the instance was loaded."""
        names = self.names
        held = {
            names.lease_token: getattr(self.instance, names.lease_token),
            f"{names.lease_expires_at}__isnull": False,
        }
        changed = self._row.filter(**held).update(**self._changes(RELEASE))
        status, _owner = self._reload()
        if changed:
            self._wake(status)
        return bool(changed)

    def resume(self) -> bool:
        """Put a parked row back on the clock, with all its tries before it."""
        runnable = {f"{self.names.status}__in": self.bound.states_that_run()}
        changed = self._row.filter(self.bound.parked_condition(), **runnable).update(**self._changes(RESUME))
        status, _owner = self._reload()
        if changed:
            self._wake(status)
        return bool(changed)

    def _wake(self, status: str, seconds: float = 0.0) -> None:
        wake(self.bound, connections[self.using], status, seconds, vars(self.instance).get(self.bound.queue_name))

    def _changes(self, effect: Effect, **given: Any) -> dict[str, Any]:
        return effect.as_update(self.names, self.bound.table.columns, **given)

    @property
    def _row(self) -> models.QuerySet[Any]:
        return all_rows(self.bound.model, self.using).filter(pk=self.bound.key_of(self.instance))

    def _reload(self) -> tuple[str, str]:
        """Bring the schedule's columns of the instance up to the row, and return its status and who holds it."""
        found: dict[str, Any] | None = self._row.values(self.names.status, *self.names.schedule).first()
        if found is None:
            raise RowMissing(row_label(self.instance), saved=True)
        status: str = found.pop(self.names.status)
        vars(self.instance).update(found)
        return status, found[self.names.lease_owner]


class ScheduleQuestions(Generic[M]):
    """What a timed machine can be asked of many rows at once."""

    if TYPE_CHECKING:
        model: type[M]
        names: Names
        schedules: Any
        is_timed: bool

    def due(self) -> models.QuerySet[M]:
        names = self.require_schedule()
        late = {f"{names.next_at}__lte": StatementClock(), f"{names.status}__in": self.states_that_run()}
        return self.model._default_manager.filter(self.free_condition(), **late).order_by(names.next_at)

    def leased(self) -> models.QuerySet[M]:
        names = self.require_schedule()
        return self.model._default_manager.filter(~self.free_condition()).order_by(names.lease_expires_at)

    def parked(self) -> models.QuerySet[M]:
        self.require_schedule()
        return self.model._default_manager.filter(self.parked_condition())

    def require_schedule(self) -> Names:
        if not self.is_timed:
            raise StateMachineError(
                f"{self} is not timed: no state has a handler or a policy, so its rows have no clock."
            )
        return self.names

    def states_that_run(self) -> list[str]:
        """Return the states in which something is due sooner or later."""
        schedules: list[Schedule] = list(self.schedules.values())
        return [schedule.state for schedule in schedules if schedule.runs]

    def parked_condition(self) -> Q:
        names = self.names
        return Q(**{f"{names.next_at}__isnull": True, f"{names.lease_expires_at}__isnull": True}) & ~Q(
            **{names.error: ""}
        )

    def free_condition(self) -> Q:
        expires_at = self.names.lease_expires_at
        return Q(**{f"{expires_at}__isnull": True}) | Q(**{f"{expires_at}__lte": StatementClock()})
