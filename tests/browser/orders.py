"""Orders to look at."""

from __future__ import annotations

from django.utils import timezone

from shop.models import OrderStateTransition, take_back
from tests.worker.rows import set_clock

#: The button with a form behind it, and a guard before it.
TAKE_BACK = str(take_back.label)


def make_history(order, count, **columns):
    """Let an order have been paid so many times, which no machine allows and every page has to show."""
    OrderStateTransition.objects.bulk_create(
        OrderStateTransition(
            instance=order,
            sequence=number,
            from_status="PENDING",
            to_status="PAID",
            transitioned_at=timezone.now(),
            metadata={"number": number},
        )
        for number in range(1, count + 1)
    )
    set_clock(order, **{"status": "PAID", "sequence": count, **columns})
