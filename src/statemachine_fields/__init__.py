"""State machines on Django models: validated moves, a record of each, safe under concurrency."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statemachine_fields import checks as _checks  # noqa: F401 - registered for all who import us, installed or not
from statemachine_fields.exceptions import (
    ConcurrentTransition,
    DuplicateLiveRow,
    EventRefused,
    InvalidStateTransition,
    RetiredState,
    RowLeased,
    RowMissing,
    StateMachineError,
    TransitionBlocked,
    UnknownState,
    UnrecordedStatusChange,
    WaitTimeout,
)
from statemachine_fields.machine.accessor import StateMachineAccessor
from statemachine_fields.machine.bound import BoundMachine
from statemachine_fields.machine.context import transition_context
from statemachine_fields.machine.descriptor import StateMachine
from statemachine_fields.machine.graph import State, Transition
from statemachine_fields.machine.guards import Blocker
from statemachine_fields.schedule.children import Children
from statemachine_fields.schedule.handlers import handler, on_error
from statemachine_fields.schedule.waiting import Event

if TYPE_CHECKING:
    from statemachine_fields.machine.attempts import StateAttempt
    from statemachine_fields.machine.audit import StateTransition
    from statemachine_fields.machine.bulk import BulkResult, Refusal
    from statemachine_fields.machine.delivery import Delivery
    from statemachine_fields.machine.events import StateEvent
    from statemachine_fields.machine.history_import import ImportResult
    from statemachine_fields.machine.live_keys import LiveKey
    from statemachine_fields.machine.questions import Duration, Durations

__all__ = [
    "Blocker",
    "BoundMachine",
    "BulkResult",
    "Children",
    "ConcurrentTransition",
    "Delivery",
    "DuplicateLiveRow",
    "Duration",
    "Durations",
    "Event",
    "EventRefused",
    "ImportResult",
    "InvalidStateTransition",
    "LiveKey",
    "Refusal",
    "RetiredState",
    "RowLeased",
    "RowMissing",
    "State",
    "StateAttempt",
    "StateEvent",
    "StateMachine",
    "StateMachineAccessor",
    "StateMachineError",
    "StateTransition",
    "Transition",
    "TransitionBlocked",
    "UnknownState",
    "UnrecordedStatusChange",
    "WaitTimeout",
    "handler",
    "on_error",
    "transition_context",
]


#: What is loaded when it is asked for: a model class, which can be defined only once the app registry is ready, and
#: what few machines declare or are asked.
_LATER = {
    "StateAttempt": "attempts",
    "StateTransition": "audit",
    "StateEvent": "events",
    "Delivery": "delivery",
    "BulkResult": "bulk",
    "Refusal": "bulk",
    "ImportResult": "history_import",
    "LiveKey": "live_keys",
    "Duration": "questions",
    "Durations": "questions",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"statemachine_fields.machine.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
