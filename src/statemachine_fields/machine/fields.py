"""The columns of a machine. Only the machine writes them: `save()` leaves them as the database has them.

What `save()` may do is decided in `pre_save()`. An INSERT computes every column but the status, so that a copied row
does not inherit the counter of its original. An UPDATE says `SET column = column`.
"""

from __future__ import annotations

from inspect import getattr_static
from typing import TYPE_CHECKING, Any

from django.db import connections, models, router
from django.db.models.expressions import DatabaseDefault
from django.db.models.functions import Now

from statemachine_fields.db.clock import DatabaseClock
from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.db.expressions import Unchanged
from statemachine_fields.db.fields import INSERTED, MachineColumn
from statemachine_fields.db.inserts import CallTime, InsertTime
from statemachine_fields.db.rows import row_label
from statemachine_fields.exceptions import UnrecordedStatusChange
from statemachine_fields.machine.assignments import Assignments, StatusAttribute
from statemachine_fields.machine.binding import prepare
from statemachine_fields.schedule.policy import plain

if TYPE_CHECKING:
    from typing import TypeAlias

    from statemachine_fields.machine.descriptor import StateMachine

    CharField: TypeAlias = models.CharField[Any, Any]
    DateTimeField: TypeAlias = models.DateTimeField[Any, Any]
    IntegerField: TypeAlias = models.IntegerField[Any, Any]
else:  # Django's fields take type arguments in the stubs and not at run time
    from django.db.models import CharField, DateTimeField, IntegerField


class SequenceField(MachineColumn, IntegerField):
    """How many transitions the row has had. Every move raises it in the statement that moves the row.

    A new row starts at 0, or at 1 where the save that inserts it also writes its first record.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"default": 0, "db_default": 0, "editable": False, **kwargs})

    def initial_value(self, instance: models.Model) -> int:
        inserted: set[str] | None = vars(instance._state).get(INSERTED)
        first = 0
        if inserted is not None and self.bound is not None:
            inserted.add(self.name)
            first = int(self.bound.machine.record_initial)
        setattr(instance, self.attname, first)
        return first


class ChangedAtField(InsertTime, DateTimeField):  # type: ignore[misc]  # the stubs name a parameter differently
    """When the row entered its state, by the database's clock."""

    computed = (*InsertTime.computed, DatabaseDefault)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"db_default": Now(), "editable": False, **kwargs})

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        if self.bound is None or not add:
            return super().pre_save(model_instance, add)
        if (call := self.call_of(model_instance)) is not None:
            return CallTime(call)
        # Either is an expression, which goes unwrapped: Django must resolve it and read back what came of it. Where the
        # column's own default is UTC it will do; elsewhere it may be local time.
        using = router.db_for_write(type(model_instance), instance=model_instance)
        return self.get_default() if dialect_for(connections[using]).default_is_utc else DatabaseClock()


class StatusField(MachineColumn, CharField):
    """The status column of a machine: any declared state on INSERT, never written by an UPDATE of Django's.

    It carries the machine into every concrete class that gets a copy of the column (abstract bases hand out copies, so
    each subclass gets its own; proxies and multi-table children have none and share) and binds it there.
    """

    descriptor_class = StatusAttribute
    runtime_only = ("choices",)

    def __init__(self, *args: Any, accessor: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.accessor = accessor

    def contribute_to_class(self, cls: type[models.Model], name: str, private_only: bool = False) -> None:
        self.assignments = Assignments(name)
        super().contribute_to_class(cls, name, private_only=private_only)
        machine = self.machine
        if machine is None or cls._meta.abstract or cls._meta.swapped:
            return
        if getattr_static(cls, self.accessor, None) is machine:
            prepare(cls, self)

    def initial_value(self, instance: models.Model) -> str:
        self.refuse_wrong_status(instance, inserting=True)
        self.assignments.forget(instance)
        return plain(getattr(instance, self.attname))

    def kept_value(self, instance: models.Model) -> Any:
        self.refuse_wrong_status(instance, inserting=False)
        pending = self.assignments.pending_of(instance)
        return Unchanged(self) if pending is None or self.bound is None else pending.to_save(self.bound)

    def refuse_wrong_status(self, instance: models.Model, *, inserting: bool) -> None:
        """Raise if saving the instance would create a row in no declared state, or move one by assignment."""
        if self.bound is None:
            return
        if inserting or instance._state.adding:
            self.bound.judge.require_open_state(getattr(instance, self.attname))
        elif self.assignments.made(instance):
            was = vars(instance._state)[self.assignments.was]
            now = vars(instance).get(self.attname)
            raise UnrecordedStatusChange(row_label(instance), self.name, self.accessor, was, now)


def machine_columns(machine: StateMachine, accessor: str) -> dict[str, models.Field[Any, Any]]:
    """Return the columns that every machine has."""
    graph, names = machine.graph, machine.names
    return {
        names.status: StatusField(
            max_length=machine.max_length,
            default=graph.initial,
            db_default=graph.initial,
            choices=[(state.value, state.label) for state in graph.states.values()],
            editable=False,
            machine=machine,
            accessor=accessor,
        ),
        names.sequence: SequenceField(machine=machine),
        names.changed_at: ChangedAtField(machine=machine),
    }
