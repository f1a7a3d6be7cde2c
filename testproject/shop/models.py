"""The shop of the demo: orders that wait for their money, make parcels and wait for those; and move by hand, too."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import models

from shop import world
from statemachine_fields import Children, Event, State, StateMachine, Transition
from statemachine_fields.worker import Move, Park, Retry, Spawn

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
    parcels: models.Manager[Parcel]

    customer = models.CharField(max_length=100)
    total = models.DecimalField(max_digits=10, decimal_places=2)
    created_at = models.DateTimeField(auto_now_add=True)

    states = StateMachine(
        states=[
            State(
                "PENDING",
                "Pending",
                until=Event(paid="PAID", refused="CANCELLED"),  # the bank says which
                timeout_after=timedelta(days=2),
                timeout_to="CANCELLED",
            ),
            State("PAID", "Paid", start_after=10, retry_after=20),
            State("PACKED", "Packed", start_after=30, retry_after=30, backoff=2, max_attempts=3),
            State(
                "SHIPPED",
                "Shipped",
                until=Children("parcels", failed=["LOST"], then="DELIVERED", failed_to="LOST", cancel_to="RECALLED"),
            ),
            State("DELIVERED", "Delivered", external=True),  # people send things back, or do not
            ("RETURNED", "Returned"),
            ("LOST", "Lost"),
            State("CANCELLED", "Cancelled", delete_after=timedelta(days=30)),
        ],
        initial="PENDING",
        transitions={
            "PENDING": ["PAID", cancel],
            "PAID": ["PACKED", cancel],
            "PACKED": ["SHIPPED"],
            "SHIPPED": ["DELIVERED", take_back, "LOST"],
            "DELIVERED": [take_back],
        },
    )

    @states.guard(to="RETURNED")
    def is_worth_returning(self) -> bool | str:
        return self.total >= 20 or "What costs less than 20 is not taken back."

    @states.handler("PAID")
    def pack(self) -> str | None:
        return "PACKED" if world.is_packed(self) else None  # None: not yet, look again after retry_after

    @states.handler("PACKED")
    def ship(self) -> Spawn | Park:
        if problem := world.problem_with_address(self):
            return Park(problem)  # until somebody looks at it
        parcels = [Parcel(order=self, weight=weight) for weight in world.weigh(self)]
        return Spawn("SHIPPED", parcels, metadata={"parcels": len(parcels)})

    def __str__(self) -> str:
        return f"Order {self.pk} of {self.customer}"


class Parcel(models.Model):
    status: str
    status_changed_at: datetime
    status_error: str

    order = models.ForeignKey(Order, models.CASCADE, related_name="parcels", db_index=False)
    weight = models.DecimalField("weight in kg", max_digits=5, decimal_places=1)
    carrier = models.CharField(max_length=10, blank=True)
    tracking = models.CharField("tracking number", max_length=30, null=True, blank=True)  # noqa: DJ001 - NULL is no key

    states = StateMachine(
        states=[
            State("READY", "Ready", start_after=5, retry_after=10, backoff=2, max_attempts=3),
            State(
                "ON_THE_ROAD",
                "On the road",
                until=Event(delivered="DELIVERED", lost="LOST"),  # the carrier says which
                timeout_after=timedelta(days=14),
                timeout_to="LOST",
            ),
            ("DELIVERED", "Delivered"),
            ("LOST", "Lost"),
            ("RECALLED", "Recalled"),
        ],
        initial="READY",
        transitions={
            "READY": ["ON_THE_ROAD", "RECALLED"],
            "ON_THE_ROAD": ["DELIVERED", "LOST", "RECALLED"],
        },
        record_attempts=True,
        unique_while_live=["carrier", "tracking"],  # carriers use a number again once the parcel is there
    )

    class Meta:
        indexes = [models.Index(fields=["order", "status"])]  # by which an order finds its parcels

    @states.handler("READY")
    def book_carrier(self) -> Move | Retry:
        try:
            carrier, tracking = world.book_carrier(self)
        except world.CarrierBusy as error:
            return Retry(error=str(error))  # three of them, and the parcel is parked, and its order waits
        facts = {"carrier": carrier, "tracking": tracking}
        return Move("ON_THE_ROAD", update=facts, metadata=facts)

    def __str__(self) -> str:
        return f"Parcel {self.pk}"


OrderStateTransition = Order.states.transition_model
OrderStateEvent = Order.states.event_model
ParcelStateTransition = Parcel.states.transition_model
ParcelStateEvent = Parcel.states.event_model
ParcelStateAttempt = Parcel.states.attempt_model
