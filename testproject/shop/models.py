"""The shop of the demo: orders that move by themselves, and by hand."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import models

from shop import world
from statemachine_fields import State, StateMachine, Transition
from statemachine_fields.worker import HandlerContext, Move, Retry

cancel = Transition(
    "CANCELLED",
    label="Cancel",
    confirm="Cancel this order for good? The customer is told at once.",
    danger=True,
)
take_back = Transition("RETURNED", label="Return", form="shop.forms.ReturnForm")


class Order(models.Model):
    # The columns are the machine's; the annotations are for type checkers and editors.
    status: str
    status_changed_at: datetime
    status_error: str

    customer = models.CharField(max_length=100)
    total = models.DecimalField(max_digits=10, decimal_places=2)
    tracking = models.CharField(max_length=30, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    states = StateMachine(
        states=[
            State(
                "PENDING",
                "Pending",
                start_after=5,
                retry_after=15,
                timeout_after=timedelta(days=2),
                timeout_to="CANCELLED",
            ),
            State("PAID", "Paid", start_after=10, retry_after=20),
            State("PACKED", "Packed", start_after=30, retry_after=30, backoff=2, max_attempts=3),
            State("SHIPPED", "Shipped", start_after=60, retry_after=120),
            State("DELIVERED", "Delivered", external=True),  # people send things back, or do not
            ("RETURNED", "Returned"),
            State("CANCELLED", "Cancelled", delete_after=timedelta(days=30)),
        ],
        initial="PENDING",
        transitions={
            "PENDING": ["PAID", cancel],
            "PAID": ["PACKED", cancel],
            "PACKED": ["SHIPPED"],
            "SHIPPED": ["DELIVERED", take_back],
            "DELIVERED": [take_back],
        },
    )

    @states.guard(to="RETURNED")
    def is_worth_returning(self) -> bool | str:
        return self.total >= 20 or "What costs less than 20 is not taken back."

    @states.handler("PENDING")
    def look_for_payment(self) -> str | None:
        return "PAID" if world.has_paid(self) else None  # None: not yet, look again after retry_after

    @states.handler("PAID")
    def pack(self) -> str | None:
        return "PACKED" if world.is_packed(self) else None

    @states.handler("PACKED")
    def book_carrier(self, ctx: HandlerContext) -> Move | Retry:
        try:
            carrier, tracking = world.book_carrier(self)
        except world.CarrierBusy as error:
            return Retry(error=str(error))  # three of them, and the order is parked until somebody looks at it
        facts = {"carrier": carrier, "tracking": tracking, "attempt": ctx.attempt}
        return Move("SHIPPED", update={"tracking": tracking}, metadata=facts)

    @states.handler("SHIPPED")
    def ask_carrier(self) -> str | None:
        return world.where_is(self)

    def __str__(self) -> str:
        return f"Order {self.pk} of {self.customer}"


OrderStateTransition = Order.states.transition_model
