"""Whether a row may move, and why not: the one judge, asked for people, for batches, for workers and for the admin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.db import models
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from statemachine_fields.exceptions import InvalidStateTransition, RetiredState, TransitionBlocked, UnknownState
from statemachine_fields.machine.guards import Blocker
from statemachine_fields.schedule.policy import plain

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding


class Judge:
    """Judges by the graph of a machine, by its guards, and by the permissions of who asks."""

    __slots__ = ("bound",)

    def __init__(self, bound: Binding[Any]) -> None:
        self.bound = bound

    def asks(self, to_status: str, user: Any = None) -> bool:
        """Say whether code of the user's may be asked about a move to the state."""
        return bool(self.bound.guards) or (user is not None and self.bound.graph.asks_permission(to_status))

    def is_permitted_by_row(self, sources: Iterable[str], to_status: str, user: Any) -> bool:
        """Say whether the user may make moves from some states to another with some of the rows only."""
        if user is None:
            return False
        asked = [self.bound.graph.transition(source, to_status).permission for source in sources]
        return any(callable(each) or not user.has_perm(each) for each in asked if each is not None)

    def sources(self, to_status: str) -> list[str]:
        """Return the states from which the graph has a move to the state."""
        return [state for state, targets in self.bound.graph.edges.items() if to_status in targets]

    def require_state(self, state: str, label: str | None = None, current: str = "") -> None:
        """Raise if there is no such state.

        :param current: the state that the row is in, if there is one.
        """
        graph = self.bound.graph
        if state not in graph:
            raise UnknownState(label or str(self.bound), state, list(graph.states), current, graph.targets(current))

    def require_open_state(self, state: str) -> None:
        """Raise if there is no such state, or if rows may only leave it."""
        self.require_state(state)
        if self.bound.graph.states[state].retired:
            raise RetiredState(str(self.bound), plain(state))

    def refusal(
        self, label: str, instance: models.Model, from_status: str, to_status: str, user: Any = None
    ) -> InvalidStateTransition | None:
        """Return the error for a move that must not be made; None if it may.

        :param label: what the row is called.
        """
        graph = self.bound.graph
        allowed = graph.targets(from_status)
        if to_status not in allowed:
            if graph.states[to_status].retired:
                return RetiredState(label, to_status, from_status, allowed)
            return InvalidStateTransition(label, from_status, to_status, allowed)
        blockers = self.blockers(instance, from_status, to_status, user)
        return TransitionBlocked(label, from_status, to_status, allowed, blockers) if blockers else None

    def blockers(self, instance: models.Model, from_status: str, to_status: str, user: Any = None) -> list[Blocker]:
        """Return every reason against a move; none means that it is allowed."""
        if to_status not in self.bound.graph.edges.get(from_status, ()):
            return [self.no_transition(from_status, to_status)]
        if user is None and not self.bound.guards:
            return []
        return [*self._permission(instance, from_status, to_status, user), *self._guards(instance, to_status)]

    def no_transition(self, from_status: str, to_status: str) -> Blocker:
        """Return the reason against a move that the graph does not have."""
        names = {"from": self.bound.label_of(from_status), "to": self.bound.label_of(to_status)}
        return Blocker("no_transition", _("There is no move from %(from)s to %(to)s.") % names, names)

    def _permission(self, instance: models.Model, from_status: str, to_status: str, user: Any) -> Iterable[Blocker]:
        permission = self.bound.graph.transition(from_status, to_status).permission
        if user is None or permission is None:
            return
        if callable(permission):
            allowed, name = bool(permission(instance, user)), getattr(permission, "__name__", "")
        else:  # for the model as a whole, or for this row by a backend that knows rows
            allowed, name = user.has_perm(permission) or user.has_perm(permission, instance), permission
        if not allowed:
            yield Blocker("permission", _("You do not have the permission for this move."), {"permission": name})

    def _guards(self, instance: models.Model, to_status: str) -> Iterable[Blocker]:
        for name, targets in self.bound.guards.items():
            if targets is not None and to_status not in targets:
                continue
            guard = getattr(instance, name)  # None in a proxy or child that drops it, and an answer if it is a property
            answer = guard() if callable(guard) else guard
            if answer is True or answer is None:
                continue
            if isinstance(answer, Blocker):
                yield answer
            elif answer is False:
                words = name.replace("_", " ")
                yield Blocker(name, _("A condition of this move is not met: %(name)s.") % {"name": words})
            elif isinstance(answer, str | Promise):
                yield Blocker(name, str(answer))
            else:
                raise TypeError(
                    f"The guard {self.bound.model.__qualname__}.{name}() returned {answer!r}. It must return True or None "
                    "to let the row move, or False, a text or a Blocker that says why not."
                )
