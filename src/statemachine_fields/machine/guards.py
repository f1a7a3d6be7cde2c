"""Guards: methods of a model that let its rows move, or not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from django.db import models
from django.utils.functional import cached_property as django_cached_property

from statemachine_fields.machine.registry import MachineAttribute, all_machines

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.machine.descriptor import StateMachine

F = TypeVar("F", bound=Callable[..., Any])

#: The attribute that marks a method as a guard.
MARK = "statemachine_guards"


@dataclass(frozen=True, slots=True)
class Blocker:
    """One reason why a row cannot move: a code for programs, a message for people, and its parameters."""

    code: str
    message: str
    params: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


#: The states whose entering is guarded; None for all of them.
Targets: TypeAlias = frozenset[str] | None


@dataclass(frozen=True, slots=True, eq=False)
class GuardMark:
    """That a method, or a property, guards the moves of one machine into some states, or into any."""

    machine: Any  # a StateMachine, which type checkers would take for a descriptor here
    to: Targets
    #: What it is called, for people.
    label: str


def mark_guard(guard: F, machine: StateMachine, to: Targets) -> F:
    function = _function_of(guard)
    if not callable(function):
        raise TypeError(f"A guard is a method or a property of the model, got {guard!r}.")
    mark = GuardMark(machine, to, getattr(function, "__qualname__", repr(function)))
    # Not the function of a partialmethod: that is no guard itself, lacks arguments, and may be shared with others.
    given: object = guard
    marked = given if isinstance(given, functools.partialmethod) else function
    setattr(marked, MARK, (*getattr(marked, MARK, ()), mark))
    machine.guard_marks.append(mark)
    return guard


def collect_guards(model: type[models.Model], machine: StateMachine, accessor: str) -> dict[str, Targets]:
    """Return what is guarded by the name of each guard, which a subclass overrides like any method or drops with None.

    They add up: decorators on one method, methods of all bases, and those of a machine that this one replaces.
    """
    machines = replaced_by(model, machine, accessor)
    guards: dict[str, Targets] = {}
    for cls in reversed(model.__mro__):
        for name, value in list(vars(cls).items()):
            if marks := [mark for mark in _marks_of(value) if mark.machine in machines]:
                guards[name] = _joined(marks, machine)
            elif value is None:
                guards.pop(name, None)
    return {name: to for name, to in guards.items() if to is None or to}


def replaced_by(model: type[models.Model], machine: StateMachine, accessor: str) -> list[StateMachine]:
    """Return a machine, and those of abstract bases in whose place a class has declared it."""
    found = [vars(cls).get(accessor) for cls in model.__mro__]
    declared = [each for each in found if isinstance(each, MachineAttribute) and each.bound is None]
    return [machine, *(each.machine for each in declared if each is not machine)]


def guards_never_asked(bound: Binding[Any]) -> Iterator[tuple[str, str]]:
    """Yield each guard that stands in the code and guards nothing, and why."""
    reached = {
        mark
        for machine in all_machines(bound.model._meta.apps.get_models())
        for cls in machine.model.__mro__
        for value in list(vars(cls).values())
        for mark in _marks_of(value)
        if mark.machine in replaced_by(machine.model, machine.machine, machine.accessor)
    }
    entered = {target for targets in bound.graph.edges.values() for target in targets}
    for machine in replaced_by(bound.model, bound.machine, bound.accessor):
        for mark in machine.guard_marks:
            if mark not in reached:
                yield mark.label, "the class does not have it as it was decorated"
            elif mark.to is not None and not mark.to & entered:
                yield mark.label, f"no transition leads to {', '.join(map(repr, sorted(mark.to)))}"


def _marks_of(value: object) -> tuple[GuardMark, ...]:
    """Return the marks of what a class has: a method, or what wraps one."""
    marks: tuple[GuardMark, ...] = getattr(_function_of(value), MARK, ())
    return (*marks, *getattr(value, MARK, ())) if isinstance(value, functools.partialmethod) else marks


def _function_of(value: Any) -> Any:
    if isinstance(value, property):
        return value.fget
    if isinstance(value, functools.cached_property | functools.partialmethod):
        return value.func
    if isinstance(value, django_cached_property):
        return vars(value)["real_func"]
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value


def _joined(marks: Iterable[GuardMark], machine: StateMachine) -> Targets:
    """Return what several marks of one method guard together, of the states that the machine has."""
    joined: frozenset[str] = frozenset()
    for mark in marks:
        if mark.to is None:
            return None
        joined |= mark.to & machine.graph.states.keys()
    return joined
