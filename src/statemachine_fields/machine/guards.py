"""Why a move is refused: guards on the model, permissions on the edge, and the graph itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models
from django.utils.functional import Promise
from django.utils.translation import gettext as _

if TYPE_CHECKING:
    from statemachine_fields.machine.bound import BoundMachine
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


@dataclass(frozen=True, slots=True)
class GuardMark:
    """That a method guards the moves of one machine into some states, or into any."""

    machine: StateMachine
    to: frozenset[str] | None


def mark_guard(function: F, mark: GuardMark) -> F:
    setattr(function, MARK, (*getattr(function, MARK, ()), mark))
    return function


def collect_guards(model: type[models.Model], machine: StateMachine) -> dict[str, frozenset[str] | None]:
    """Return the guards of a class by the method's name, so that a subclass overrides one like any method."""
    guards: dict[str, frozenset[str] | None] = {}
    for cls in reversed(model.__mro__):
        for name, value in vars(cls).items():
            for mark in getattr(value, MARK, ()):
                if mark.machine is machine:
                    guards[name] = mark.to
    return guards


def find_blockers(
    bound: BoundMachine[Any], instance: models.Model, from_status: str, to_status: str, user: Any = None
) -> list[Blocker]:
    """Return every reason against a move; none means that it is allowed."""
    if not bound.graph.allows(from_status, to_status):
        return [_no_such_move(bound, from_status, to_status)]
    return [
        *_permission_blockers(bound, instance, from_status, to_status, user),
        *_guard_blockers(bound, instance, to_status),
    ]


def _no_such_move(bound: BoundMachine[Any], from_status: str, to_status: str) -> Blocker:
    names = {"from": bound.label_of(from_status), "to": bound.label_of(to_status)}
    return Blocker("no_transition", _("There is no move from %(from)s to %(to)s.") % names, names)


def _permission_blockers(
    bound: BoundMachine[Any], instance: models.Model, from_status: str, to_status: str, user: Any
) -> Iterable[Blocker]:
    permission = bound.graph.transition(from_status, to_status).permission
    if user is None or permission is None:
        return
    if callable(permission):
        allowed, name = bool(permission(instance, user)), getattr(permission, "__name__", "")
    else:  # for the model as a whole, or for this row by a backend that knows rows
        allowed, name = user.has_perm(permission) or user.has_perm(permission, instance), permission
    if not allowed:
        yield Blocker("permission", _("You do not have the permission for this move."), {"permission": name})


def _guard_blockers(bound: BoundMachine[Any], instance: models.Model, to_status: str) -> Iterable[Blocker]:
    for name, targets in bound.guards.items():
        if targets is not None and to_status not in targets:
            continue
        answer = getattr(instance, name)()
        if answer is True or answer is None:
            continue
        if isinstance(answer, Blocker):
            yield answer
        elif answer is False:
            yield Blocker(name, _("A condition of this move is not met: %(name)s.") % {"name": name.replace("_", " ")})
        elif isinstance(answer, str | Promise):
            yield Blocker(name, str(answer))
        else:
            raise TypeError(
                f"The guard {bound.model.__qualname__}.{name}() returned {answer!r}. It must return True or None to let "
                "the row move, or False, a text or a Blocker that says why not."
            )
