"""The shop of the demo and the docs."""

from __future__ import annotations

from django.db import models

from statemachine_fields import StateMachine


class Order(models.Model):
    status: str  # the column is the machine's; the annotation is for type checkers and editors

    customer = models.CharField(max_length=100)
    total = models.DecimalField(max_digits=10, decimal_places=2)
    created_at = models.DateTimeField(auto_now_add=True)

    states = StateMachine(
        states=[
            ("PENDING", "Pending"),
            ("PAID", "Paid"),
            ("PACKED", "Packed"),
            ("SHIPPED", "Shipped"),
            ("DELIVERED", "Delivered"),
            ("RETURNED", "Returned"),
            ("CANCELLED", "Cancelled"),
        ],
        initial="PENDING",
        transitions={
            "PENDING": ["PAID", "CANCELLED"],
            "PAID": ["PACKED", "CANCELLED"],
            "PACKED": ["SHIPPED"],
            "SHIPPED": ["DELIVERED", "RETURNED"],
            "DELIVERED": ["RETURNED"],
        },
    )

    def __str__(self) -> str:
        return f"Order {self.pk} of {self.customer}"


OrderStateTransition = Order.states.transition_model
