"""`StateMachine`, the declaration on a model class, and how it comes to be a machine of each class that has a table.

Three objects, three names: `StateMachine` is what a model declares; `BoundMachine` is what `Order.states` gives, one for each
concrete class; `StateMachineAccessor` is what `order.states` gives.

A declaration goes one way, from file to file, and never turns back:

1. Here. Django finds `contribute_to_class()` on what a class body declares, and calls it in place of setting the attribute.
   The declaration refuses what cannot be (a second machine on one table, a proxy), and adds three columns.
2. `fields`. Django hands a copy of each column of an abstract base to every subclass, and to nobody else: proxies and
   multi-table children have no columns of their own. So a column is the one thing that comes by in exactly the classes that
   need a machine of their own. The `StatusField` carries the declaration along, and where it arrives in a class with a table
   whose attribute is still this declaration, it has it bound.
3. `binding`. `prepare()` adds what depends on the class alone: the index, and the columns of a schedule, which a class may
   need because it is the first to have a handler. The rest waits until Django has registered the class, with all its
   methods: then `Binding` collects guards and handlers, and describes the table.
4. `audit` builds the model of the records; a `BoundAttribute` of `accessor` takes the place of the declaration; and `hooks`
   wraps the methods of the class that write and load rows. From then on the class answers with the machine that it has.

What goes wrong on the way (a column that the class has replaced, a name that is taken) stops the binding and is told by a
system check, because the rest of the project must stay importable to be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, TypeVar, overload

from django.core.exceptions import FieldError
from django.db import models

from statemachine_fields.db.columns import FEATURES, Names
from statemachine_fields.db.fields import is_taken
from statemachine_fields.machine.accessor import StateMachineAccessor
from statemachine_fields.machine.bound import BoundMachine
from statemachine_fields.machine.fields import machine_columns
from statemachine_fields.machine.graph import States, Targets, build_graph
from statemachine_fields.machine.guards import F, GuardMark, mark_guard
from statemachine_fields.machine.registry import MachineAttribute
from statemachine_fields.schedule.columns import features_of
from statemachine_fields.schedule.handlers import HandlerMark, is_bare, mark_handler, mark_on_error, read_states
from statemachine_fields.schedule.policy import DEFAULT_QUEUE, is_queue_name, plain
from statemachine_fields.schedule.row_fields import RowFields

if TYPE_CHECKING:
    from statemachine_fields.machine.live_keys import LiveKey

M = TypeVar("M", bound=models.Model)

#: The fields that every audit model has.
RECORD_FIELDS = {"id", "instance", "from_status", "to_status", "transitioned_at", "metadata", "sequence"}

#: What the Meta of a `transition_base` cannot say.
NO_OPTIONS = ("managed", "order_with_respect_to", "swappable")

HISTORY_ON_DELETE: tuple[Callable[..., Any], ...] = (models.CASCADE, models.PROTECT, models.DO_NOTHING)


class StateMachine(MachineAttribute):
    """Give a model a status column, an audit table and a `states` accessor.

    :param states: the states, as `(value, label)` pairs, `State` objects or a `TextChoices` class.
    :param initial: the state of new rows.
    :param transitions: for each state, the states a row may move to, as values or as `Transition` objects. A state
        without any is terminal.
    :param field: the name of the status column. The other columns, the audit model and the reverse accessor follow it.
    :param max_length: the size of the status column.
    :param db_index: whether the status column gets an index. A timed machine has one for its workers in any case.
    :param history_on_delete: what becomes of a row's history when the row is deleted. `models.CASCADE` deletes it,
        `models.PROTECT` refuses the deletion, `models.DO_NOTHING` keeps the history.
    :param transition_base: an abstract model whose fields join the audit table.
    :param record_initial: whether a new row's first state is recorded as transition number 1.
    :param queue: which workers serve the rows of a timed machine.
    :param queue_field: the name of a text field of the model's own that says for each row in which queue it is.
    :param priority_field: the name of an integer field of the model's own that says how urgent each row is: of those that are
        due, the one with the highest number is served first.
    :param run_ahead: whether a row that a worker moves into a state where it is due at once goes on there under the same
        claim. Nothing to a machine that is not timed.
    :param unique_while_live: the fields that together are a key which at most one live row has: a list of names, or a
        `LiveKey` where terminal states keep it too. Live is a row that is in no terminal state.
    :param record_attempts: whether each try of a worker that did not move its row is kept, in a table of its own, and each
        move of a worker says which try it was. Nothing to a machine that is not timed.

    A declaration that is wrong in itself raises `ValueError` here. What needs the rest of the project to be seen is a
    system check.
    """

    def __init__(
        self,
        states: States,
        initial: str,
        transitions: Mapping[str, Targets],
        *,
        field: str = "status",
        max_length: int = 50,
        db_index: bool = True,
        history_on_delete: Callable[..., Any] = models.CASCADE,
        transition_base: type[models.Model] | None = None,
        record_initial: bool = False,
        queue: str = DEFAULT_QUEUE,
        queue_field: str | None = None,
        priority_field: str | None = None,
        run_ahead: bool = False,
        unique_while_live: Iterable[str] | LiveKey | None = None,
        record_attempts: bool = False,
    ) -> None:
        if not isinstance(max_length, int) or max_length < 1:
            raise ValueError(f"max_length must be a positive number, got {max_length!r}.")
        if not isinstance(field, str) or not field.isidentifier() or "__" in field or field.endswith("_"):
            raise ValueError(f"field must be a name that a model field can have, got {field!r}.")
        if history_on_delete not in HISTORY_ON_DELETE:
            raise ValueError(
                "history_on_delete must be models.CASCADE, models.PROTECT or models.DO_NOTHING, "
                f"got {getattr(history_on_delete, '__name__', history_on_delete)!r}."
            )
        if transition_base is not None and not _is_abstract_model(transition_base):
            raise ValueError(f"transition_base must be an abstract model, got {transition_base!r}.")
        if transition_base is not None:
            taken = RECORD_FIELDS & {field.name for field in transition_base._meta.local_fields}
            if taken:
                raise ValueError(
                    f"transition_base must not declare {', '.join(sorted(taken))}: each record has it already."
                )
            for option in NO_OPTIONS:
                if hasattr(getattr(transition_base, "Meta", None), option):
                    raise ValueError(
                        f"transition_base must not set {option} in its Meta: the audit table is one that Django manages, and "
                        "the machine writes it."
                    )
        if not is_queue_name(queue):
            raise ValueError(f"queue must be a name without spaces or '=', got {queue!r}.")
        if not isinstance(run_ahead, bool):
            raise ValueError(f"run_ahead must be True or False, got {run_ahead!r}.")
        if not isinstance(record_attempts, bool):
            raise ValueError(f"record_attempts must be True or False, got {record_attempts!r}.")
        self.graph = build_graph(states, initial, transitions, max_length)
        self.names = Names(field)
        self.row_fields = RowFields.read(queue_field, priority_field, self.names, self.graph.states)
        self.max_length = max_length
        self.db_index = db_index
        self.history_on_delete = history_on_delete
        self.transition_base = transition_base
        self.record_initial = record_initial
        self.guard_marks: list[GuardMark] = []
        self.queue = queue
        self.run_ahead = run_ahead
        self.live_key: LiveKey | None = None
        if unique_while_live is not None:
            from statemachine_fields.machine.live_keys import read_key

            self.live_key = read_key(unique_while_live, self.graph)
        self.record_attempts = record_attempts

    @overload
    def __get__(self, instance: None, owner: type[M]) -> BoundMachine[M]: ...
    @overload
    def __get__(self, instance: M, owner: type[M]) -> StateMachineAccessor[M]: ...
    def __get__(self, instance: M | None, owner: type[M]) -> BoundMachine[M] | StateMachineAccessor[M]:
        # Binding puts a BoundAttribute in our place, so only classes without a table of their own come here.
        raise AttributeError(
            f"{owner.__qualname__} has no bound state machine: it is abstract, swapped out, or replaces a column of "
            "the machine. Ask a concrete subclass, and run `manage.py check`."
        )

    def __set_name__(self, owner: type, name: str) -> None:
        # Models hand us to contribute_to_class() and never to type.__new__(), so this runs for plain classes only.
        raise TypeError(
            f"{owner.__qualname__}.{name}: a StateMachine belongs on a model or an abstract model; on a plain mixin it "
            "could add no column. Make the mixin an abstract model: derive it from models.Model and set Meta.abstract."
        )

    def contribute_to_class(self, cls: type[models.Model], name: str) -> None:
        """Add the columns to the model. Called by Django for each class that declares the machine in its body."""
        if name in self.names.of(FEATURES):
            raise ValueError(
                f"{cls.__qualname__}.{name}: the machine and a column of it would have the same name. Call the machine "
                "`states`, or give it another `field=`."
            )
        self._refuse_second_machine(cls, name)
        replaced = getattr_static(cls, name, None)
        setattr(cls, name, self)
        if isinstance(replaced, StateMachine):
            for column in set(replaced.names.columns) - set(self.names.columns):
                setattr(cls, column, None)  # Django's way to leave out a field of an abstract base
        if not any(is_taken(cls, column) for column in self.names.columns):
            for column, field in machine_columns(self, name).items():
                cls.add_to_class(column, field)

    def guard(self, *wrong: Any, to: str | Iterable[str] | None = None) -> Callable[[F], F]:
        """Make a method or a property of the model a guard of the moves into the given states, or of every move.

        It is asked with nothing but the row. It lets the row move with True or None, and stops it with False, a
        text that says why, or a `Blocker`. It may be asked more than once.
        """
        if wrong:
            raise TypeError(
                "Write @states.guard() for every move, or @states.guard(to=...) for those into some states."
            )
        targets = None if to is None else frozenset(plain(state) for state in ([to] if isinstance(to, str) else to))
        for state in targets or ():
            if state not in self.graph:
                raise ValueError(f"Guarded state {state!r} not in states. Declared: {', '.join(self.graph.states)}.")
        return lambda method: mark_guard(method, self, targets)

    def handler(self, *states: str, atomic: bool = False) -> Callable[[F], F]:
        """Make a method of the model the handler of one or more states: what a worker calls to move a row on.

        The method is called with the row, and with a `HandlerContext` if it takes an argument. It returns the state to
        move to, `None` for "not yet", or an outcome of `statemachine_fields.worker`. It may be `async def`.

        :param atomic: lock the row and run the handler and its outcome in one transaction.
        """
        read = self._declared(states)
        return lambda method: mark_handler(method, HandlerMark(read, atomic, machine=self))

    @overload
    def on_error(self, method: F, /) -> F: ...
    @overload
    def on_error(self, *states: str) -> Callable[[F], F]: ...
    def on_error(self, *states: Any) -> Any:
        """Make a method of the model decide on the exceptions of its handlers: `@states.on_error`, or
        `@states.on_error("PAID")` for some states, which goes before the other.

        The method is called with the row, a `HandlerContext` and the exception, after a handler has raised it, outside any
        transaction. It returns what a handler may return, or `None` to leave it to the policy. It may be `async def`.
        """
        if is_bare(states):
            return mark_on_error(states[0], HandlerMark((), machine=self))
        read = self._declared(states) if states else ()
        return lambda method: mark_on_error(method, HandlerMark(read, machine=self))

    def _declared(self, states: tuple[Any, ...]) -> tuple[str, ...]:
        read = read_states(states)
        for state in read:
            if state not in self.graph:
                raise ValueError(f"Handled state {state!r} not in states. Declared: {', '.join(self.graph.states)}.")
        return read

    def _refuse_second_machine(self, cls: type[models.Model], name: str) -> None:
        """Refuse what a model inherits from a concrete parent, whose table has the columns already."""
        for parent in cls.__mro__[1:]:
            if not hasattr(parent, "_meta") or parent._meta.abstract:
                continue
            taken = {field.name for field in parent._meta.local_fields} & set(
                self.names.of(features_of(self, cls, name))
            )
            if taken or isinstance(vars(parent).get(name), MachineAttribute):
                what = f"the column {min(taken)!r}" if taken else f"the machine {name!r}"
                raise FieldError(
                    f"{cls.__qualname__}.{name}: {what} comes from {parent._meta.label}, whose table it is in, and "
                    "is shared. Use the inherited machine, or declare another with another name and another `field=`."
                )
        if cls._meta.proxy:
            raise FieldError(
                f"{cls.__qualname__}.{name}: a proxy model has no table to add columns to. Declare the machine on the "
                "model it stands for; the proxy shares it."
            )


def _is_abstract_model(base: object) -> bool:
    return isinstance(base, type) and issubclass(base, models.Model) and base._meta.abstract
