"""What type checkers see. Not collected by pytest: mypy and pyright read it, and fail where a type is another one."""

from __future__ import annotations

import datetime
import uuid
from typing import Any, assert_type

from django.contrib.auth.models import User
from django.db import models
from django.db.models import F

from shop.models import Order, OrderStateTransition, Parcel
from statemachine_fields import (
    Blocker,
    BoundMachine,
    BulkResult,
    Children,
    ConcurrentTransition,
    Delivery,
    DuplicateLiveRow,
    Duration,
    Durations,
    Event,
    EventRefused,
    ImportResult,
    LiveKey,
    Refusal,
    State,
    StateAttempt,
    StateEvent,
    StateMachine,
    StateMachineAccessor,
    StateTransition,
    Transition,
    TransitionBlocked,
    WaitTimeout,
    transition_context,
)
from statemachine_fields.worker import ChildCounts, HandlerContext, Move, Park, Retry, Spawn

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


# Events, by a business key and many at once.
assert_type(Order.states.event_model, type[StateEvent[Order]])
assert_type(Order.states.event_names, tuple[str, ...])
delivery = Order.states.deliver("paid", {"amount": 5}, where={"pk": 17}, dedup_key="evt-7", using="default")
assert_type(delivery, Delivery)
assert_type(delivery is Delivery.WOKEN, bool)
events = ({"key": key, "name": "paid", "payload": {"amount": 5}} for key in (1, 2))
assert_type(Order.states.bulk_deliver(events, by="pk", batch_size=500), list[Delivery])
assert_type(Order.states.attempt_model, type[StateAttempt[Order]])

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
assert_type(order.states.deliver("paid", {"amount": 5}, dedup_key="evt-7"), Delivery)
assert_type(order.states.deliver("paid"), Delivery)
assert_type(order.states.events, models.QuerySet[StateEvent[Order]])
assert_type(order.states.events.filter(taken_by=None).first(), StateEvent[Order] | None)
assert_type(order.states.attempts, models.QuerySet[StateAttempt[Order]])
with transition_context(actor=user, request_id="7f3a"):
    pass


def reasons(error: TransitionBlocked, lost: ConcurrentTransition, late: WaitTimeout) -> None:
    assert_type(error.blockers, list[Blocker])
    assert_type([(blocker.code, blocker.message) for blocker in error.blockers], list[tuple[str, str]])
    assert_type(error.allowed, list[str])
    assert_type((lost.expected, lost.status, lost.sequence), tuple[str | int | None, str | None, int | None])
    assert_type((late.states, late.status, late.timeout), tuple[list[str], str, float])


def refused(error: EventRefused) -> tuple[str, str, str | None]:
    return error.label, error.name, error.status


def event_facts(event: StateEvent[Order]) -> None:
    assert_type((event.id, event.instance, event.number, event.name), tuple[uuid.UUID, Order, int, str])
    assert_type((event.dedup_key, event.taken_by), tuple[str | None, int | None])
    assert_type(event.delivered_at, datetime.datetime)


def attempt_facts(attempt: StateAttempt[Order]) -> None:
    assert_type((attempt.instance, attempt.number, attempt.sequence), tuple[Order, int, int])
    assert_type((attempt.state, attempt.worker, attempt.outcome), tuple[str, str, str])
    assert_type((attempt.error, attempt.traceback), tuple[str, str])
    assert_type((attempt.claimed_at, attempt.started_at), tuple[datetime.datetime | None, datetime.datetime | None])
    assert_type((attempt.ended_at, attempt.seconds), tuple[datetime.datetime, float | None])


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
    assert_type(await order.states.adeliver("paid", {"amount": 5}), Delivery)
    assert_type(await Order.states.adeliver("paid", where={"pk": 17}), Delivery)
    assert_type(await Order.states.abulk_deliver([{"key": 17, "name": "paid"}]), list[Delivery])
    assert_type(await Order.states.alive(number="A-17"), Order | None)
    assert_type(await Order.states.aget_or_start(number="A-17"), tuple[Order, bool])


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


# What rows wait for, and how their tries are kept.
mapped = Event(paid="B", refused="C")
assert_type(mapped.names, tuple[str, ...])
children = Children("parcels", need="any", failed=["LOST"], then="B", failed_to="C", cancel_to="D", machine="states")
waiting = StateMachine(
    states=[
        State("A", until=Event("paid", "refused"), timeout_after=datetime.timedelta(days=3), timeout_to="C"),
        State("B", until=Event({"order.paid": "C"})),
        State("C", until=Children("parcels", need=3, then="D")),
        State("D"),
    ],
    initial="A",
    transitions={"A": ["B", "C"], "B": ["C"], "C": ["D"]},
    record_attempts=True,
)


# A handler stays the method that it was, and may answer in many ways.
@waiting.handler("A")
def read(order: Order, ctx: HandlerContext) -> Move | Spawn | Retry | Park | str | None:
    assert_type(ctx.events, tuple[StateEvent[Any], ...])
    assert_type(ctx.events[0].taken_by, int | None)
    assert_type(ctx.children, ChildCounts)
    assert_type((ctx.children["LOST"], ctx.children.total, ctx.children.failed), tuple[int, int, int])
    assert_type(ctx.children.is_met, bool)
    if len(ctx.events) > 1:
        return Move("B", update={"customer": "Ada"}, metadata={"by": "card"}, after=5, take=ctx.events[:1])
    if ctx.attempt > 1:
        return Retry(after=datetime.timedelta(minutes=5), error=ValueError("no"), update={"customer": "Ada"})
    return Park(ValueError("no")) if ctx.stopping else Park("no")


assert_type(read(order, HandlerContext.__new__(HandlerContext)), Move | Spawn | Retry | Park | str | None)


def spawn(ctx: HandlerContext) -> Spawn:
    spawned = Spawn(
        "B",
        (Parcel(order=order) for _ in range(3)),
        update={"customer": "Ada"},
        metadata={"parcels": 3},
        after=datetime.timedelta(minutes=1),
        take=ctx.events[:1],
    )
    assert_type(spawned.children, tuple[models.Model, ...])
    assert_type(spawned.state, str)
    return spawned


# A guard stays the method that it was.
@machine.guard(to="B")
def has_text(document: Order) -> bool | str:
    return bool(document.customer) or "There is no text."


assert_type(has_text(order), bool | str)
