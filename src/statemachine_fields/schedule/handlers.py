"""Handlers: methods of a model that serve its rows while they are in a state; and those that decide on what they raise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models

from statemachine_fields.schedule.policy import plain

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.machine.descriptor import StateMachine

F = TypeVar("F", bound=Callable[..., Any])

#: The attribute that marks a method as a handler.
MARK = "statemachine_handlers"
#: And as one that decides on exceptions of handlers.
ERROR_MARK = "statemachine_error_handlers"

#: What an argument with a default is called if it is for the HandlerContext.
CONTEXT_NAMES = ("ctx", "context")

STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class HandlerMark:
    """That a method handles some states: of one machine, of the one with that name, or of the only one that has them. One that
    decides on exceptions is of all states if it names none."""

    states: tuple[str, ...]
    atomic: bool = False
    machine: Any = None  # a StateMachine, which type checkers would take for a descriptor here
    accessor: str | None = None


@dataclass(frozen=True, slots=True)
class Handler:
    """The method that serves one state of one class, and how it wants to be called."""

    name: str
    atomic: bool = False
    is_async: bool = False
    wants_context: bool = False


def handler(*states: str, atomic: bool = False, machine: str | None = None) -> Callable[[F], F]:
    """Make a method the handler of states of a machine that the class inherits.

    In the body that declares the machine, use `@states.handler(...)`, which sees a mistyped state at once.

    :param atomic: lock the row and run the handler and its outcome in one transaction.
    :param machine: the attribute name of the machine, where several have such a state.
    """
    read = read_states(states)
    return lambda method: mark_handler(method, HandlerMark(read, atomic, accessor=machine))


def on_error(*states: Any, machine: str | None = None) -> Any:
    """Make a method decide on the exceptions of the handlers of a machine that the class inherits: `@on_error`, or
    `@on_error("PAID")` for some states.

    In the body that declares the machine, use `@states.on_error`, which sees a mistyped state at once.

    :param machine: the attribute name of the machine, where several have such a state. Without it, and without states, all
        machines of the class are meant.
    """
    if is_bare(states):
        return mark_on_error(states[0], HandlerMark(()))
    read = read_states(states) if states else ()
    return lambda method: mark_on_error(method, HandlerMark(read, accessor=machine))


def is_bare(arguments: tuple[Any, ...]) -> bool:
    """Say whether a decorator was written without parentheses."""
    return len(arguments) == 1 and not isinstance(arguments[0], str)


def mark_on_error(method: F, mark: HandlerMark) -> F:
    plain_function: object = method
    if not inspect.isfunction(plain_function):
        raise TypeError(
            f"What decides on errors is a method of the model, got {method!r}. Put @states.on_error above all others."
        )
    setattr(method, ERROR_MARK, (*getattr(method, ERROR_MARK, ()), mark))
    return method


def read_states(states: tuple[Any, ...]) -> tuple[str, ...]:
    if not states or not all(isinstance(state, str) for state in states):
        raise TypeError("Name the states that the method handles: @states.handler('PAID').")
    return tuple(plain(state) for state in states)


def mark_handler(method: F, mark: HandlerMark) -> F:
    plain_function: object = method  # type checkers would take isfunction() for a change of its type
    if not inspect.isfunction(plain_function):
        raise TypeError(
            f"A handler is a method of the model, got {method!r}. Put @states.handler(...) above all others."
        )
    if mark.atomic and inspect.iscoroutinefunction(method):
        raise TypeError(
            f"The handler {method.__name__}() is async and atomic. Django has no asynchronous transactions: write it "
            "with def, or leave atomic=True out."
        )
    setattr(method, MARK, (*getattr(method, MARK, ()), mark))
    return method


def is_timed_on(model: type[models.Model], machine: StateMachine, accessor: str) -> bool:
    """Say whether a class, which may still be in the making, needs the schedule's columns: for a policy or a handler."""
    if any(state.is_timed for state in machine.graph.states.values()):
        return True
    return any(_concerns(mark, machine, accessor) for _cls, _name, mark in _marks(model))


def collect_handlers(
    model: type[models.Model], machines: Mapping[str, StateMachine], accessor: str
) -> dict[str, Handler]:
    """Return the handlers of one of a class's machines by state. A subclass overrides one by the method's name, like any method, or by
    declaring another for the same state; it drops one by setting the name to None."""
    found = _collected(model, machines, accessor, MARK)
    return {
        state: _described(model, name, mark.atomic) for state, (_cls, name, mark) in found.items() if state is not None
    }


def collect_error_handlers(
    model: type[models.Model], machines: Mapping[str, StateMachine], accessor: str
) -> dict[str | None, Handler]:
    """Return by state what decides on the exceptions of its handler, and under None what does for the others. A subclass
    overrides it as it does a handler."""
    found = _collected(model, machines, accessor, ERROR_MARK)
    return {state: _described_on_error(model, name) for state, (_cls, name, _mark) in found.items()}


def _collected(
    model: type[models.Model], machines: Mapping[str, StateMachine], accessor: str, attribute: str
) -> dict[str | None, tuple[type, str, HandlerMark]]:
    """Return which class declares which method for a state, or, under None, for all."""
    found: dict[str | None, tuple[type, str, HandlerMark]] = {}
    for cls, name, mark in _marks(model, attribute):
        states: tuple[str | None, ...] = _states_of(mark, model, machines, accessor, name)
        if not mark.states and _concerns(mark, machines[accessor], accessor):
            states = (None,)
        for state in states:
            declared_by, other, _other_mark = found.get(state, (None, "", None))
            if declared_by is cls and other != name:
                what = "all states" if state is None else repr(state)
                raise ValueError(
                    f"{model._meta.label}: {other}() and {name}() both handle {what}. A state has one "
                    "handler: remove one, or let one call the other."
                    if attribute == MARK
                    else f"{model._meta.label}: {other}() and {name}() both decide on errors of {what}. Remove one, or let "
                    "one call the other."
                )
            found[state] = cls, name, mark
    return found


def unheard_handlers(model: type[models.Model], machines: Iterable[Binding[Any]]) -> dict[Binding[Any], list[str]]:
    """Return what a proxy or a multi-table child declares or overrides for machines that it shares, by machine.

    :param machines: those of the class, its own and those it shares.

    Rows are run as instances of the class that has the columns, so nobody would call these methods.
    """
    machines = list(machines)
    own = [bound for bound in machines if bound.model is model]
    shared = [bound for bound in machines if bound.model is not model]
    unheard: dict[Binding[Any], list[str]] = {}
    for cls in _own_classes(model):
        for name, value in list(vars(cls).items()):
            marks = [
                mark
                for attribute in (MARK, ERROR_MARK)
                for mark in getattr(value, attribute, ())
                if not any(_is_of(mark, bound) for bound in own)
            ]
            for bound in shared:
                called = {
                    method.name
                    for schedule in bound.schedules.values()
                    for method in (schedule.handler, schedule.on_error)
                    if method is not None
                }
                if name in called or any(_is_of(mark, bound) for mark in marks):
                    unheard.setdefault(bound, []).append(name)
    return unheard


def _own_classes(model: type[models.Model]) -> list[type]:
    """Return what a class is made of, the most derived last, without what a model with a table of its own has already
    taken its handlers from."""
    parents = [base for base in model.__mro__[1:] if hasattr(base, "_meta") and not base._meta.abstract]
    taken = {cls for parent in parents for cls in parent.__mro__}
    return [cls for cls in reversed(model.__mro__) if cls not in taken]


def _marks(model: type[models.Model], attribute: str = MARK) -> Iterator[tuple[type, str, HandlerMark]]:
    for cls in _own_classes(model):
        for name, value in list(vars(cls).items()):
            if inspect.getattr_static(model, name, None) is not None:
                for mark in getattr(value, attribute, ()):
                    yield cls, name, mark


def _is_of(mark: HandlerMark, bound: Binding[Any]) -> bool:
    return _concerns(mark, bound.machine, bound.accessor)


def _concerns(mark: HandlerMark, machine: StateMachine, accessor: str) -> bool:
    """Say whether a mark may be about a machine, as far as that one machine can tell."""
    if mark.machine is not None:
        return mark.machine is machine
    if not mark.states:  # of all machines of the class
        return mark.accessor in (None, accessor)
    return mark.accessor in (None, accessor) and any(state in machine.graph for state in mark.states)


def _states_of(
    mark: HandlerMark, model: type[models.Model], machines: Mapping[str, StateMachine], accessor: str, name: str
) -> tuple[str, ...]:
    """Return which of a mark's states are this machine's, or raise ValueError where nobody can tell."""
    machine = machines[accessor]
    if mark.machine is not None:
        return mark.states if mark.machine is machine else ()
    if mark.accessor is not None:
        if mark.accessor not in machines:
            raise ValueError(f"{model._meta.label}.{name}(): there is no machine {mark.accessor!r} on the model.")
        machines = {mark.accessor: machines[mark.accessor]}
    for state in mark.states:
        having = [other for other, its in machines.items() if state in its.graph]
        if not having:
            known = [value for its in machines.values() for value in its.graph.states]
            guess = get_close_matches(state, known, n=1)
            hint = f" Did you mean {guess[0]!r}?" if guess else ""
            raise ValueError(f"{model._meta.label}.{name}() handles {state!r}, which no machine declares.{hint}")
        if len(having) > 1:
            raise ValueError(
                f"{model._meta.label}.{name}() handles {state!r}, which {' and '.join(having)} declare. "
                f"Say which: @handler({state!r}, machine={having[0]!r})."
            )
    return tuple(state for state in mark.states if accessor in machines and state in machine.graph)


def _described(model: type[models.Model], name: str, atomic: bool) -> Handler:
    """Look at the method as the class has it, which may be an override without a mark."""
    method = inspect.getattr_static(model, name)
    label = f"{model._meta.label}.{name}()"
    if not inspect.isfunction(method):
        raise TypeError(f"{label} overrides a handler, so it must be a method, got {method!r}. None drops the handler.")
    arguments = list(inspect.signature(method).parameters.values())
    parameters = arguments[1:]
    required = [each for each in parameters if each.default is each.empty and each.kind not in STARRED]
    if not arguments or len(required) > 1 or any(each.kind is each.KEYWORD_ONLY for each in required):
        raise TypeError(
            f"{label} has the wrong arguments. A handler takes the row as self, and the HandlerContext if it wants one: "
            f"def {name}(self, ctx)."
        )
    is_async = inspect.iscoroutinefunction(method)
    if atomic and is_async:
        raise TypeError(f"{label} overrides an atomic handler with an async one, which cannot be.")
    return Handler(name, atomic, is_async, wants_context=any(_takes_context(each) for each in parameters))


def _described_on_error(model: type[models.Model], name: str) -> Handler:
    method = inspect.getattr_static(model, name)
    label = f"{model._meta.label}.{name}()"
    if not inspect.isfunction(method):
        raise TypeError(
            f"{label} overrides what decides on errors, so it must be a method, got {method!r}. None drops it."
        )
    try:
        inspect.signature(method).bind(None, None, None)
    except TypeError:
        raise TypeError(
            f"{label} has the wrong arguments. It takes the row as self, the HandlerContext and the exception: "
            f"def {name}(self, ctx, error)."
        ) from None
    return Handler(name, is_async=inspect.iscoroutinefunction(method), wants_context=True)


def _takes_context(parameter: inspect.Parameter) -> bool:
    """Say whether an argument is for the HandlerContext: not if it has a default and is called something else, as that
    of a method that was there before it became a handler."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return True
    is_positional = parameter.kind <= parameter.POSITIONAL_OR_KEYWORD
    return is_positional and (parameter.default is parameter.empty or parameter.name in CONTEXT_NAMES)
