"""Every error the library raises, under one base class.

Each says what happened, what was expected and what to do; keeps its facts as attributes; and survives pickling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError
from django.db.models.fields import NOT_PROVIDED

if TYPE_CHECKING:
    from statemachine_fields.machine.guards import Blocker

__all__ = [
    "ConcurrentTransition",
    "DuplicateLiveRow",
    "EventRefused",
    "InvalidStateTransition",
    "LeaseLost",
    "RetiredState",
    "RowLeased",
    "RowMissing",
    "StateMachineError",
    "TransitionBlocked",
    "UnknownState",
    "UnrecordedStatusChange",
    "WaitTimeout",
]


class StateMachineError(Exception):
    """Base of all errors of this library."""


class InvalidStateTransition(StateMachineError):
    """The row's status in the database has no declared edge to the wanted state."""

    def __init__(self, label: str, from_status: str, to_status: str, allowed: Sequence[str]) -> None:
        super().__init__(label, from_status, to_status, list(allowed))  # args stay picklable
        self.label, self.from_status, self.to_status, self.allowed = label, from_status, to_status, list(allowed)

    def __str__(self) -> str:
        return (
            f"{self.label} cannot move from {self.from_status!r} to {self.to_status!r}. "
            f"Allowed from here: {', '.join(self.allowed) or 'nothing, the state is terminal'}. "
            "Add the edge to `transitions`, or reload the row if another process moved it."
        )


class UnknownState(InvalidStateTransition):
    """A state that the machine does not declare was named.

    A kind of `InvalidStateTransition`, so that code which moves a row to a state that a client chose needs one
    `except`. `from_status` is empty where no row was about to move.
    """

    def __init__(
        self, label: str, state: object, known: Sequence[str], from_status: str = "", allowed: Sequence[str] = ()
    ) -> None:
        super().__init__(label, from_status, str(state), allowed)
        self.args = (label, state, list(known), from_status, list(allowed))
        self.state = state
        self.known = list(known)

    def __str__(self) -> str:
        folded = {state.casefold(): state for state in self.known}
        close = get_close_matches(str(self.state).casefold(), folded, n=1, cutoff=0.6)
        guess = [folded[match] for match in close]
        hint = f"Did you mean {guess[0]!r}?" if guess else "Add the state to `states`, or name a declared one."
        return f"{self.label} has no state {self.state!r}. Declared: {', '.join(self.known)}. {hint}"


class RetiredState(InvalidStateTransition):
    """A state was to be entered that rows may only leave. `from_status` is empty where no row was about to move."""

    def __init__(self, label: str, state: str, from_status: str = "", allowed: Sequence[str] = ()) -> None:
        super().__init__(label, from_status, state, allowed)
        self.args = (label, state, from_status, list(allowed))

    def __str__(self) -> str:
        if not self.from_status:
            remedy = "A new row begins in another state, and rows move to others."
        else:
            remedy = f"Allowed from here: {', '.join(self.allowed) or 'nothing, the state is terminal'}."
        return f"{self.label}: {self.to_status!r} is retired, so rows may leave it and none may enter it. {remedy}"


class TransitionBlocked(InvalidStateTransition):
    """The move is declared, but a guard or a permission is against it. `blockers` says why."""

    def __init__(
        self, label: str, from_status: str, to_status: str, allowed: Sequence[str], blockers: Sequence[Blocker]
    ) -> None:
        super().__init__(label, from_status, to_status, allowed)
        self.args = (label, from_status, to_status, list(allowed), list(blockers))
        self.blockers = list(blockers)

    def __str__(self) -> str:
        reasons = " ".join(blocker.message for blocker in self.blockers)
        return f"{self.label} cannot move from {self.from_status!r} to {self.to_status!r} now: {reasons}"


class ConcurrentTransition(StateMachineError):
    """Somebody else got in between: the row is not where `expected=` said, or the database gave up on a conflict.

    `status` and `sequence` are where the row stands, or None where the database did not say.
    """

    def __init__(
        self, label: str, to_status: str, expected: str | int | None, status: str | None, sequence: int | None
    ) -> None:
        super().__init__(label, to_status, expected, status, sequence)
        self.label, self.to_status, self.expected = label, to_status, expected
        self.status, self.sequence = status, sequence

    def __str__(self) -> str:
        if self.status is None:
            return (
                f"{self.label} was not moved to {self.to_status!r}: the database found a conflict with another "
                "transaction. Repeat the whole transaction."
            )
        if self.expected is None:
            why = "it was moved while this move was being made,"
        elif isinstance(self.expected, int):
            why = f"it was expected at sequence {self.expected}"
        else:
            why = f"it was expected in {self.expected!r}"
        return (
            f"{self.label} was not moved to {self.to_status!r}: {why} and is in {self.status!r} at "
            f"sequence {self.sequence}. Reload the row and decide again."
        )


class DuplicateLiveRow(StateMachineError, IntegrityError):
    """A row was to be live with a key that another live row has. Nothing was written, and the transaction can be used on.

    `pk` and `status` are those of the row that has the key, or None where it could not be named. It is an `IntegrityError`
    too, as what a constraint refuses is for Django, so that `get_or_create()` and code of others that expects one go on.
    """

    def __init__(
        self, label: str, model: str, machine: str, key: Mapping[str, Any], pk: Any, status: str | None
    ) -> None:
        super().__init__(label, model, machine, dict(key), pk, status)
        self.label, self.model, self.machine = label, model, machine
        self.key, self.pk, self.status = dict(key), pk, status

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.key.items())
        if self.pk is None:
            whose = "another live row has it, which could not be named: it has ended since, or cannot be seen from here"
        else:
            whose = f"pk={self.pk!r} has it, which is live in {self.status!r}"
        return (
            f"{self.label} cannot be live with {values}: {whose}. Use that row, as {self.machine}.get_or_start() does, or end "
            "it first."
        )


class LeaseLost(StateMachineError):
    """A worker said something of a row that it no longer holds. Nothing was written."""

    def __init__(self, label: str, token: int) -> None:
        super().__init__(label, token)
        self.label, self.token = label, token

    def __str__(self) -> str:
        return (
            f"{self.label} is no longer leased with token {self.token}: the lease ended, or somebody moved or released the "
            "row. What its handler wanted is dropped; whoever holds the row now decides."
        )


class RowLeased(StateMachineError):
    """A worker is running the row, so it cannot be rescheduled now."""

    def __init__(self, label: str, owner: str, action: str) -> None:
        super().__init__(label, owner, action)
        self.label, self.owner, self.action = label, owner, action

    def __str__(self) -> str:
        return (
            f"{self.label} is being run by {self.owner}, so {self.action}() left it alone. Wait for the outcome, or take "
            "the row away from the worker with release() first."
        )


class RowMissing(StateMachineError):
    """There is no row: the instance was never saved, its row was deleted, or none is what was asked for."""

    def __init__(self, label: str, saved: bool | None) -> None:
        super().__init__(label, saved)
        self.label, self.saved = label, saved

    def __str__(self) -> str:
        if self.saved is None:
            return f"There is no {self.label}. Nothing was written."
        if self.saved:
            return f"{self.label} no longer exists: its row was deleted by someone else. Nothing was recorded."
        return f"{self.label} has not been saved, so there is no row to move. Call save() first."


class EventRefused(StateMachineError):
    """An event cannot be delivered: no state of the machine waits for one of that name, or the row has ended.

    `status` is where the row is, or None where the name alone was wrong; `known` are the names that states wait for.
    """

    def __init__(self, label: str, name: str, status: str | None, known: Sequence[str] = ()) -> None:
        super().__init__(label, name, status, list(known))
        self.label, self.name, self.status, self.known = label, name, status, list(known)

    def __str__(self) -> str:
        if self.status is not None:
            return (
                f"{self.label} was not given the event {self.name!r}: it has ended in {self.status!r}, where it will never "
                "wait for one. Nothing was written."
            )
        close = get_close_matches(self.name, self.known, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else "Let a state wait for it with until=Event(...)."
        return (
            f"{self.label} has no state that waits for the event {self.name!r}. Events that are waited for: "
            f"{', '.join(self.known)}. {hint} Nothing was written."
        )


#: What to do instead of writing a column with a query, by what the column is about.
RECORDED = ", and leave no record. Use bulk_transition() for many rows, or transition_to() for one."
TIMED = ". Use run_at(), release() or resume() of the row."
DELIVERED = ". Use deliver(), which counts each event that a row gets."


class UnrecordedStatusChange(StateMachineError):
    """A machine's column was about to be written by something other than the machine.

    `was` is what the row's instance held before, or Django's `NOT_PROVIDED` where no single row was about to change.
    """

    def __init__(self, label: str, field: str, machine: str, was: object, now: object, remedy: str = RECORDED) -> None:
        super().__init__(label, field, machine, was, now, remedy)
        self.label, self.field, self.machine = label, field, machine
        self.was, self.now, self.remedy = was, now, remedy

    def __str__(self) -> str:
        if self.was is NOT_PROVIDED:
            return (
                f"{self.label}: a query would write {self.field!r}, which only the machine {self.machine!r} writes"
                f"{self.remedy} Nothing was written."
            )
        return (
            f"{self.label}: {self.field!r} was assigned {self.now!r}, which would be a move without a record. "
            f"Use `.{self.machine}.transition_to({self.now!r})`, or refresh_from_db() to drop the assignment. "
            "Nothing was saved."
        )


class WaitTimeout(StateMachineError, TimeoutError):
    """A row did not get to any of the states that were waited for in the time that was given.

    `status` is where it was last seen. The wait has changed nothing, neither the row nor the instance.
    """

    def __init__(self, label: str, states: Sequence[str], status: str, timeout: float) -> None:
        super().__init__()  # an OSError, which takes two arguments for a number and a text of the system's
        self.args = (label, list(states), status, timeout)
        self.label, self.states, self.status, self.timeout = label, list(states), status, timeout

    def __str__(self) -> str:
        return (
            f"{self.label} did not get to {either(self.states)} within {self.timeout:g} seconds: it is in {self.status!r}. "
            "Wait again, for longer if that is what it takes. If it was to move by itself, see that a worker is running."
        )


def either(states: Sequence[str]) -> str:
    """Name states of which one is meant."""
    *others, last = [repr(state) for state in states]
    return f"{', '.join(others)} or {last}" if others else last
