"""What type checkers see. Not collected by pytest: mypy and pyright read it, and fail where a type is another one."""

from __future__ import annotations

import datetime
import uuid
from typing import Any, assert_type

from django.db import models

from shop.models import Order, OrderStateTransition
from statemachine_fields import BoundMachine, State, StateMachine, StateMachineAccessor, StateTransition

# Both faces of the descriptor keep the model's type.
assert_type(Order.states, BoundMachine[Order])
assert_type(Order().states, StateMachineAccessor[Order])

# The class face.
assert_type(Order.states.states, list[tuple[str, str]])
assert_type(Order.states.initial, str)
assert_type(Order.states.transitions, dict[str, list[str]])
assert_type(Order.states.terminal_states, tuple[str, ...])
assert_type(Order.states.transition_model, type[StateTransition[Order]])
assert_type(Order.states.record_initial(Order.objects.all()), int)

# The row face.
order = Order()
assert_type(order.states.current, str)
assert_type(order.states.display, str)
assert_type(order.states.is_terminal, bool)
assert_type(order.states.history, models.QuerySet[StateTransition[Order]])
assert_type(order.states.can_transition_to("PAID"), bool)
assert_type(order.states.get_valid_transitions(), list[str])
record = order.states.transition_to("PAID", metadata={"by": "card"}, save=True)
assert_type(record, StateTransition[Order])

# The audit row.
assert_type(record.id, uuid.UUID)
assert_type(record.instance, Order)
assert_type(record.from_status, str)
assert_type(record.to_status, str)
assert_type(record.transitioned_at, datetime.datetime)
assert_type(record.metadata, dict[str, Any])
assert_type(record.sequence, int)

# The documented forms: the bare annotation `status: str`, and the audit model under its own name.
assert_type(order.status, str)
assert_type(OrderStateTransition, type[StateTransition[Order]])


def first(records: models.QuerySet[StateTransition[Order]]) -> StateTransition[Order] | None:
    return records.first()


# What a declaration takes.
StateMachine(states=[("A", "a"), State("B", "b")], initial="A", transitions={"A": ["B"]})
StateMachine([("A", "a")], "A", {}, field="phase", history_on_delete=models.PROTECT, record_initial=True)
assert_type(OrderStateTransition.objects.filter(to_status="PAID").first(), StateTransition[Order] | None)
assert_type(OrderStateTransition.objects.filter(sequence__gt=3, metadata__by="x").count(), int)
assert_type(order.states.history.filter(to_status="PAID", instance__pk=3).order_by("-sequence").exists(), bool)
