"""What type checkers see. Not collected by pytest: mypy and pyright read it, and fail where a type is another one."""

from __future__ import annotations

import datetime
import uuid
from typing import Any, assert_type

from django.contrib.auth.models import User
from django.db import models
from django.db.models import F

from shop.models import Order, OrderStateTransition
from statemachine_fields import (
    Blocker,
    BoundMachine,
    BulkResult,
    ConcurrentTransition,
    DuplicateLiveRow,
    Duration,
    Durations,
    ImportResult,
    LiveKey,
    Refusal,
    State,
    StateMachine,
    StateMachineAccessor,
    StateTransition,
    Transition,
    TransitionBlocked,
    WaitTimeout,
    transition_context,
)

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
entries = Order.objects.order_by("pk").values(key=F("pk"), to_status=F("status"), at=F("created_at"))
assert_type(Order.states.import_history(entries.iterator(), gaps="record", past_states=["LOST"]), ImportResult)
assert_type(Order.states.import_history({"key": key} for key in (1, 2)).refusals, list[Refusal])

assert_type(Order.states.live(number="A-17"), Order | None)
assert_type(Order.states.get_or_start(number="A-17", defaults={"customer": "Ada"}), tuple[Order, bool])
KEYED = StateMachine([("A", "A")], "A", {}, unique_while_live=LiveKey("number", "day", also=["A"]))
LISTED = StateMachine([("A", "A")], "A", {}, unique_while_live=["number"])


def named(error: DuplicateLiveRow) -> tuple[Any, str | None, dict[str, Any]]:
    return error.pk, error.status, error.key


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

# What a move takes, and what is asked before it.
user = User()
assert_type(order.states.blockers("PAID", user=user), list[Blocker])
assert_type(order.states.can_transition_to("PAID", user), bool)
assert_type(
    order.states.transition_to(
        "PAID",
        {"by": "card"},
        update={"customer": F("customer")},
        record={"reason": "x"},
        expected="PENDING",
        user=user,
    ),
    StateTransition[Order],
)
assert_type(order.states.transition_to("PAID", expected=3), StateTransition[Order])
assert_type(order.states.force_transition_to("PAID", reason="repair", update={"total": 0}), StateTransition[Order])
assert_type(order.states.status_at(record.transitioned_at), str | None)
assert_type(order.states.wait_for("PAID", "CANCELLED", timeout=10), StateTransition[Order])
assert_type(order.states.wait_for("PAID", timeout=datetime.timedelta(minutes=1)).instance, Order)
with transition_context(actor=user, request_id="7f3a"):
    pass


def reasons(error: TransitionBlocked, lost: ConcurrentTransition, late: WaitTimeout) -> None:
    assert_type(error.blockers, list[Blocker])
    assert_type([(blocker.code, blocker.message) for blocker in error.blockers], list[tuple[str, str]])
    assert_type(error.allowed, list[str])
    assert_type((lost.expected, lost.status, lost.sequence), tuple[str | int | None, str | None, int | None])
    assert_type((late.states, late.status, late.timeout), tuple[list[str], str, float])


# Many rows, and questions about them.
result = Order.states.bulk_transition(Order.objects.all(), "CANCELLED", metadata={"by": "cron"}, batch_size=500)
assert_type(result, BulkResult)
assert_type((result.moved, result.refused), tuple[int, int])
assert_type(result.refusals, list[Refusal])
assert_type((result.refusals[0].status, result.refusals[0].reason), tuple[str, str])
assert_type(Order.states.in_state("PENDING", "PAID"), models.QuerySet[Order])
assert_type(Order.states.as_of(record.transitioned_at), models.QuerySet[Order])
assert_type(Order.states.stuck("PENDING", older_than=3600), models.QuerySet[Order])
assert_type(Order.states.stuck("PENDING", older_than=datetime.timedelta(days=1)), models.QuerySet[Order])
assert_type(Order.states.durations(since=record.transitioned_at, using="default"), Durations)
assert_type(Order.states.durations().states, dict[str, Duration])
assert_type(Order.states.durations().edges["PENDING", "PAID"].median, datetime.timedelta)


async def twins() -> None:
    assert_type(await order.states.atransition_to("PAID", update={"customer": "Ada"}), StateTransition[Order])
    assert_type(await order.states.aforce_transition_to("PAID", reason="repair"), StateTransition[Order])
    assert_type(await order.states.ablockers("PAID", user=user), list[Blocker])
    assert_type(await order.states.acan_transition_to("PAID"), bool)
    assert_type(await order.states.await_for("PAID", timeout=1.5), StateTransition[Order])
    assert_type(await order.states.astatus_at(record.transitioned_at), str | None)
    assert_type(await Order.states.abulk_transition(Order.objects.all(), "CANCELLED"), BulkResult)
    assert_type(await Order.states.aimport_history([]), ImportResult)
    assert_type(await Order.states.adurations(), Durations)


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
machine = StateMachine(
    states=[("A", "a"), ("B", "b")],
    initial="A",
    transitions={"A": [Transition("B", label="Go", permission="shop.change_order")]},
)
StateMachine([("A", "a"), ("B", "b")], "A", {"A": [Transition("B", permission=lambda row, user: user.is_staff)]})
StateMachine([("A", "a")], "A", {}, field="phase", history_on_delete=models.PROTECT, record_initial=True)
assert_type(OrderStateTransition.objects.filter(to_status="PAID").first(), StateTransition[Order] | None)
assert_type(OrderStateTransition.objects.filter(sequence__gt=3, metadata__by="x").count(), int)
assert_type(order.states.history.filter(to_status="PAID", instance__pk=3).order_by("-sequence").exists(), bool)


# A guard stays the method that it was.
@machine.guard(to="B")
def has_text(document: Order) -> bool | str:
    return bool(document.customer) or "There is no text."


assert_type(has_text(order), bool | str)
