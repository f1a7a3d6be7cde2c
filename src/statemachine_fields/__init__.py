"""State machines on Django models: validated moves, a record of each, safe under concurrency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statemachine_fields.exceptions import (
    ConcurrentTransition,
    InvalidStateTransition,
    RetiredState,
    RowLeased,
    RowMissing,
    StateMachineError,
    TransitionBlocked,
    UnknownState,
    UnrecordedStatusChange,
)
from statemachine_fields.machine.accessor import StateMachineAccessor
from statemachine_fields.machine.bound import BoundMachine
from statemachine_fields.machine.context import transition_context
from statemachine_fields.machine.descriptor import StateMachine
from statemachine_fields.machine.graph import State, Transition
from statemachine_fields.machine.guards import Blocker
from statemachine_fields.schedule.handlers import handler

if TYPE_CHECKING:
    from statemachine_fields.machine.audit import StateTransition

__all__ = [
    "Blocker",
    "BoundMachine",
    "ConcurrentTransition",
    "InvalidStateTransition",
    "RetiredState",
    "RowLeased",
    "RowMissing",
    "State",
    "StateMachine",
    "StateMachineAccessor",
    "StateMachineError",
    "StateTransition",
    "Transition",
    "TransitionBlocked",
    "UnknownState",
    "UnrecordedStatusChange",
    "handler",
    "transition_context",
]


def __getattr__(name: str) -> Any:
    # A model class can only be defined once the app registry is ready, and this module is imported before.
    if name == "StateTransition":
        from statemachine_fields.machine.audit import StateTransition

        return StateTransition
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
