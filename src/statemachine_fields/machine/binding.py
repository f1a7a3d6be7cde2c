"""The machine as one concrete class has it: `Order.states._meta`. What people see of it is `BoundMachine`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models
from django.db.models.base import ModelState

from statemachine_fields.db.columns import FEATURES, Table
from statemachine_fields.db.fields import add_indexes, is_taken, owns_column
from statemachine_fields.db.rows import all_rows, row_label
from statemachine_fields.exceptions import StateMachineError, UnrecordedStatusChange
from statemachine_fields.machine.accessor import BoundAttribute
from statemachine_fields.machine.bound import BoundMachine
from statemachine_fields.machine.guards import collect_guards
from statemachine_fields.machine.hooks import hook_into
from statemachine_fields.machine.judge import Judge
from statemachine_fields.machine.listeners import is_made_plainly
from statemachine_fields.machine.parents import machine_bound
from statemachine_fields.machine.registry import attributes_of, find_machine
from statemachine_fields.machine.updates import is_expression
from statemachine_fields.schedule.children import Children
from statemachine_fields.schedule.columns import features_of, schedule_columns, schedule_indexes
from statemachine_fields.schedule.handlers import collect_error_handlers, collect_handlers
from statemachine_fields.schedule.policy import Schedule
from statemachine_fields.schedule.row_fields import add_row_indexes, row_column
from statemachine_fields.schedule.rows import ScheduleQuestions
from statemachine_fields.schedule.waiting import Event

if TYPE_CHECKING:
    from statemachine_fields.machine.attempts import StateAttempt
    from statemachine_fields.machine.audit import StateTransition
    from statemachine_fields.machine.descriptor import StateMachine
    from statemachine_fields.machine.events import StateEvent
    from statemachine_fields.machine.fields import StatusField
    from statemachine_fields.machine.joins import Join
    from statemachine_fields.machine.live_keys import BoundKey
    from statemachine_fields.machine.plan import Plan
    from statemachine_fields.machine.questions import Questions

M = TypeVar("M", bound=models.Model)


class Binding(ScheduleQuestions[M]):
    """A machine bound to the model whose table has its columns, and all that follows from that."""

    def __init__(self, machine: StateMachine, model: type[M], field: StatusField) -> None:
        from statemachine_fields.machine.audit import build_audit_model  # needs the app registry

        self.machine = machine
        self.model = model
        self.field = field
        self.graph = machine.graph
        self.names = machine.names
        self.accessor = field.accessor
        self.features = features_of(machine, model, field.accessor)
        self.is_timed = "schedule" in self.features
        self.columns = self.names.of(self.features)
        for column in self.columns:
            model._meta.get_field(column).bound = self  # type: ignore[union-attr]
        self.guards = MappingProxyType(collect_guards(model, machine, self.accessor))
        #: Whether records outlive their row, whose key may then be used again.
        self.keeps_history = machine.history_on_delete is models.DO_NOTHING
        machines = {name: found.machine for name, found in attributes_of(model).items()}
        handlers = collect_handlers(model, machines, self.accessor)  # also where it finds only what is wrong with them
        states = self.graph.states.items() if self.is_timed else ()
        #: By state, and for others under None, what decides on the exceptions of handlers.
        self.deciding = deciding = collect_error_handlers(model, machines, self.accessor)
        schedules = {
            value: Schedule.of(
                value, state, handlers.get(value), machine.queue, deciding.get(value) or deciding.get(None)
            )
            for value, state in states
        }
        self.schedules = MappingProxyType(schedules)
        #: Fields of the model's own: what a row says of its queue and its urgency.
        self.queue_field = machine.row_fields.find(model, "queue_field", self.accessor)
        self.priority_field = machine.row_fields.find(model, "priority_field", self.accessor)
        self.queue_name: str = "" if self.queue_field is None else self.queue_field.attname
        if self.is_timed and machine.row_fields:
            add_row_indexes(model, self.names, self.queue_field, self.priority_field)
        for schedule in schedules.values():
            _check_wait(model, schedule)
        #: The states in which rows wait for children; and what was found out about those, and about whose children its rows are.
        self.joined_states = {
            value: each.until for value, each in schedules.items() if isinstance(each.until, Children)
        }
        self.joins: dict[str, Join] = {}
        self.joins_as_child: tuple[Join, ...] | None = None
        #: The attribute that has the key of the row with the machine's columns.
        self.key_name: str = model._meta.pk.attname
        self.judge = Judge(self)
        self.plans: dict[tuple[Any, ...], Plan] = {}
        #: Of wake-ups, by queue.
        self.gates: dict[str, int] = {}
        #: What is unique among its live rows; None if nothing is.
        self.key: BoundKey[M] | None = None
        self.audit_model = build_audit_model(self)
        #: The model of tries that did not move their row, if they are kept.
        self.tries_model: type[StateAttempt[M]] | None = None
        if machine.record_attempts and self.is_timed:
            from statemachine_fields.machine.attempts import build_attempt_model

            self.tries_model = build_attempt_model(self)
        self.records_attempts = self.tries_model is not None
        self.event_model: type[StateEvent[M]] | None = None
        if "inbox" in self.features:
            from statemachine_fields.machine.events import build_event_model

            self.event_model = build_event_model(self)
        #: What people see of it, and what multi-table children have in its place.
        self.face = BoundMachine(self)
        self._faces: dict[type[models.Model], BoundMachine[M]] = {}

    def face_of(self, model: type[models.Model]) -> BoundMachine[M]:
        """Return what people see of the machine who ask a model that has it: this one, a proxy, or a multi-table child. Only where
        events are delivered, to rows that are known by their fields, does it matter which."""
        asked = model._meta.concrete_model
        if self.event_model is None or asked is None or asked is self.model:
            return self.face
        return self._faces.get(asked) or self._faces.setdefault(asked, BoundMachine(self, asked))

    def __str__(self) -> str:
        return f"{self.model._meta.label}.{self.accessor}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return find_machine, (self.model._meta.label, self.accessor)

    @property
    def transition_model(self) -> type[StateTransition[M]]:
        """The audit model."""
        if self.audit_model is None:
            raise AttributeError(
                f"{self} has no audit model: the name {self.names.audit_model(self.model.__name__)!r} is taken by "
                "another model of the app. Run `manage.py check`."
            )
        return self.audit_model

    def require_events(self) -> type[StateEvent[M]]:
        """Return the model of the machine's events, or raise."""
        if "inbox" not in self.features:
            raise StateMachineError(f"{self} has no events: no state waits for one, as with until=Event('paid').")
        if self.event_model is None:
            raise AttributeError(
                f"{self} has no model for events: the name {self.names.event_model(self.model.__name__)!r} is taken by "
                "another model of the app. Run `manage.py check`."
            )
        return self.event_model

    @cached_property
    def awaited_names(self) -> Mapping[str, frozenset[str]]:
        """The names of events that rows wait for, by state."""
        return {
            schedule.state: frozenset(schedule.until.names)
            for schedule in self.schedules.values()
            if isinstance(schedule.until, Event)
        }

    @cached_property
    def event_names(self) -> tuple[str, ...]:
        """The names of all events that rows wait for in some state, in the order declared."""
        awaited = [state.until for state in self.graph.states.values()]
        return tuple(dict.fromkeys(name for until in awaited if isinstance(until, Event) for name in until.names))

    def seen_on_entry(self, state: str) -> int | None:
        """Return how many events were looked at when a row enters a state that waits for some: none. None if it waits for none."""
        return 0 if state in self.awaited_names else None

    @property
    def attempt_model(self) -> type[StateAttempt[M]]:
        """The model of tries."""
        if self.tries_model is None:
            why = "its states have no handler and no policy, or it is not declared with record_attempts=True"
            if self.machine.record_attempts and self.is_timed:
                name = self.names.attempt_model(self.model.__name__)
                why = f"the name {name!r} is taken by another model of the app. Run `manage.py check`"
            raise AttributeError(f"{self} keeps no tries: {why}.")
        return self.tries_model

    @property
    def questions(self) -> Questions[M]:
        from statemachine_fields.machine.questions import Questions

        return Questions(self)

    def live_key(self) -> BoundKey[M]:
        """Return what is unique among live rows, or raise if nothing is."""
        if self.key is None:
            raise StateMachineError(
                f"{self} has no key: say which fields are one with StateMachine(unique_while_live=[...])."
            )
        return self.key

    def label_of(self, state: str) -> str:
        """Return a state's label in the active language, or the value itself if it is no longer declared."""
        return str(self.graph.states[state].label) if state in self.graph else state

    def key_of(self, instance: models.Model) -> Any:
        """Return the key of the row that has the machine's columns, which for a multi-table child is its parent's."""
        return getattr(instance, self.key_name)

    def entry_delay(self, state: str, after: float | None = None) -> float | None:
        """Return in how many seconds a row that enters the state is due; None for never."""
        return self.schedules[state].entry_delay(after) if self.is_timed else None

    def entry_values(self, state: str) -> tuple[Any, ...]:
        """Return what a statement is given besides the state that a row enters: of a machine with an inbox, how many events were
        seen; of a timed one, in how many seconds the row is due."""
        seen = (self.seen_on_entry(state),) if "inbox" in self.features else ()
        return (*seen, self.entry_delay(state)) if self.is_timed else ()

    @cached_property
    def table(self) -> Table:
        """What the machine's columns and its audit table are called in the database."""
        meta, audit = self.model._meta, self.transition_model._meta
        return Table(
            name=meta.db_table,
            key=str(meta.pk.column),
            audit=audit.db_table,
            columns={column: getattr(self.names, column) for feature in self.features for column in FEATURES[feature]},
            key_field=meta.pk,
            id_field=audit.pk,
            time_field=audit.get_field("transitioned_at"),
            queue=row_column("queue_field", self.queue_field),
            priority=row_column("priority_field", self.priority_field),
            tries=None if self.tries_model is None else self.tries_model._meta.db_table,
            events=self.require_events()._meta.db_table if "inbox" in self.features else "",
            cancelling=tuple(state for state, until in self.joined_states.items() if until.cancel_to is not None),
        )

    def read_record(self, record: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return values for the fields that `transition_base` added to the audit table, or raise TypeError."""
        if not record:
            return {}
        unknown = set(record) - self.record_fields
        if unknown:
            raise TypeError(
                f"{self}: record= names {', '.join(sorted(unknown))}, but transition_base adds "
                f"{', '.join(sorted(self.record_fields)) or 'nothing'}. Nothing was written."
            )
        return dict(record)

    @cached_property
    def _extra_fields(self) -> tuple[Any, ...]:
        """The fields that `transition_base` added to the audit table."""
        base = self.machine.transition_base
        names = () if base is None else [field.name for field in base._meta.local_fields]
        fields: list[Any] = [self.transition_model._meta.get_field(name) for name in names]
        return tuple(field for field in fields if not field.generated)

    @cached_property
    def extra_columns(self) -> tuple[str, ...]:
        return tuple(field.column for field in self._extra_fields)

    @cached_property
    def record_fields(self) -> frozenset[str]:
        return frozenset(field.name for field in self._extra_fields)

    def draft_record(
        self, record: Mapping[str, Any], connection: Any
    ) -> tuple[StateTransition[M] | None, tuple[Any, ...] | None]:
        """Return a record with the added fields filled, and their values ready for the database.

        The values are None if the database is to compute one of them, which our statement cannot ask for.
        """
        if not self._extra_fields:
            return None, ()
        draft = self.build_record(**record)
        values = [field.pre_save(draft, True) for field in self._extra_fields]
        if any(is_expression(value) for value in values):
            return draft, None
        pairs = zip(self._extra_fields, values, strict=True)
        return draft, tuple(field.get_db_prep_save(value, connection) for field, value in pairs)

    def load_record(
        self, instance: M, using: str, values: dict[str, Any], draft: StateTransition[M] | None, *, adding: bool
    ) -> StateTransition[M]:
        """Return an audit row as if read from the database, or as it is to be inserted."""
        model = self.transition_model
        made: StateTransition[M]
        if draft is not None:
            made = draft
            vars(made).update(values)
        elif adding or not is_made_plainly(model):
            made = self.build_record(**values)
        else:  # what __init__() would do, were it not asked so often
            made = model.__new__(model)
            vars(made).update(values, _state=ModelState())
        state = made._state
        state.adding, state.db = adding, using
        state.fields_cache["instance"] = instance
        return made

    def build_record(self, **values: Any) -> StateTransition[M]:
        """Return a new audit row, not yet written."""
        audit: Any = self.transition_model  # the stubs cannot know the fields of a class made at run time
        record: StateTransition[M] = audit(**values)
        return record

    def sync_with_row(self, instance: models.Model, using: str) -> None:
        """Bring an instance that was made by hand up to the row it has been saved to, or refuse to move that row."""
        rows = all_rows(self.model, using).filter(pk=self.key_of(instance))
        columns: dict[str, Any] = rows.values(*self.columns).first() or {}
        given = getattr(instance, self.names.status)
        if given not in (self.graph.initial, columns.get(self.names.status)):
            was = columns.get(self.names.status)
            raise UnrecordedStatusChange(row_label(instance), self.names.status, self.accessor, was, given)
        vars(instance).update(columns)
        self.field.assignments.forget(instance)

    def record_first(self, rows: Iterable[tuple[Any, str, Any]], using: str, number: int = 1) -> None:
        """Write the first transition of rows whose counter says that they have it, from their key, status and time."""
        all_rows(self.transition_model, using).bulk_create(
            self.build_record(
                instance_id=key, from_status="", to_status=status, transitioned_at=changed_at, sequence=number
            )
            for key, status, changed_at in rows
        )


def _check_wait(model: type[models.Model], schedule: Schedule) -> None:
    """Refuse a state of which nobody, or more than one, says where its rows go when what they wait for has happened."""
    until, handler = schedule.until, schedule.handler
    if until is None or until.needs_handler == (handler is not None):
        return
    what = f"{model._meta.label}: {schedule.state!r} waits for {until}"
    if handler is None:
        raise ValueError(
            f"{what}, and nothing says where its rows go then. Write a handler for the state, or say it in {until!r}."
        )
    raise ValueError(
        f"{what}, which moves its rows to {' or '.join(map(repr, until.targets))} by itself, and {handler.name}() handles the "
        "state as well. Leave the states to move to out and decide in the handler, or remove the handler."
    )


def prepare(model: type[models.Model], field: StatusField) -> None:
    """Add to a class what only it can tell that it needs, and bind it as soon as it is complete and registered."""
    machine: Any = field.machine
    # Here and not beside the other columns, because a subclass may be the first to have a handler.
    features = features_of(machine, model, field.accessor)
    columns = schedule_columns(machine, machine.names, features)
    if "schedule" not in features:
        # An Index rather than db_index=True, which on PostgreSQL makes a second one for LIKE.
        add_indexes(model, [models.Index(fields=[field.name])] if machine.db_index else [])
    elif not any(is_taken(model, each) for each in columns):
        for column, schedule_column in columns.items():
            model.add_to_class(column, schedule_column)
        add_indexes(model, schedule_indexes(model, machine.names, features))
    meta = model._meta
    meta.apps.lazy_model_operation(lambda model: _bind(machine, model, field), (meta.app_label, meta.model_name))


def _bind(machine: StateMachine, model: type[models.Model], field: StatusField) -> None:
    columns = machine.names.of(features_of(machine, model, field.accessor))
    if not all(owns_column(machine, model, column) for column in columns):
        return  # a check says which
    if isinstance(model._meta.pk, models.CompositePrimaryKey):
        raise TypeError(
            f"{model._meta.label} has a composite primary key, and Django has no foreign key to such a model, so "
            "it cannot have an audit table. Give it a single primary key and make the fields a UniqueConstraint."
        )
    bound = Binding(machine, model, field)
    setattr(model, field.accessor, BoundAttribute(bound))
    machine_bound(bound)
    hook_into(model)
    if machine.live_key is not None:
        from statemachine_fields.machine.keyed_save import bind_key

        bind_key(bound, machine.live_key)
