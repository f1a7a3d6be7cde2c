"""Handlers: methods of a model that serve its rows while they are in a state."""

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

#: What an argument with a default is called if it is for the HandlerContext.
CONTEXT_NAMES = ("ctx", "context")

STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class HandlerMark:
    """That a method handles some states: of one machine, of the one with that name, or of the only one that has them."""

    states: tuple[str, ...]
    atomic: bool
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
    found: dict[str, tuple[type | None, str, bool]] = {}
    for cls, name, mark in _marks(model):
        for state in _states_of(mark, model, machines, accessor, name):
            declared_by, other, _atomic = found.get(state, (None, "", False))
            if declared_by is cls and other != name:
                raise ValueError(
                    f"{model._meta.label}: {other}() and {name}() both handle {state!r}. A state has one "
                    "handler: remove one, or let one call the other."
                )
            found[state] = cls, name, mark.atomic
    return {state: _described(model, name, atomic) for state, (_cls, name, atomic) in found.items()}


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
            marks = [mark for mark in getattr(value, MARK, ()) if not any(_is_of(mark, bound) for bound in own)]
            for bound in shared:
                called = {
                    schedule.handler.name for schedule in bound.schedules.values() if schedule.handler is not None
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


def _marks(model: type[models.Model]) -> Iterator[tuple[type, str, HandlerMark]]:
    for cls in _own_classes(model):
        for name, value in list(vars(cls).items()):
            if inspect.getattr_static(model, name, None) is not None:
                for mark in getattr(value, MARK, ()):
                    yield cls, name, mark


def _is_of(mark: HandlerMark, bound: Binding[Any]) -> bool:
    return _concerns(mark, bound.machine, bound.accessor)


def _concerns(mark: HandlerMark, machine: StateMachine, accessor: str) -> bool:
    """Say whether a mark may be about a machine, as far as that one machine can tell."""
    if mark.machine is not None:
        return mark.machine is machine
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


def _takes_context(parameter: inspect.Parameter) -> bool:
    """Say whether an argument is for the HandlerContext: not if it has a default and is called something else, as that
    of a method that was there before it became a handler."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return True
    is_positional = parameter.kind <= parameter.POSITIONAL_OR_KEYWORD
    return is_positional and (parameter.default is parameter.empty or parameter.name in CONTEXT_NAMES)
