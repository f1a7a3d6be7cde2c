"""What a real shop would ask over the network: the bank, the warehouse and the carriers. Here, dice."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING

from django.utils import timezone

if TYPE_CHECKING:
    from shop.models import Order

CUSTOMERS = ["Ada", "Alan", "Barbara", "Donald", "Edsger", "Frances", "Grace", "Ken", "Leslie", "Radia", "Tony"]
CARRIERS = ["DHL", "GLS", "UPS"]


class CarrierBusy(Exception):
    """A carrier that cannot take a booking now."""


def has_paid(order: Order) -> bool:
    """Say whether there is money. Most people pay at once; who has not may never."""
    return random.random() < (0.4 if is_for_less_than(order, timedelta(minutes=10)) else 0.01)


def is_packed(order: Order) -> bool:
    """Say whether the warehouse has come to it."""
    return random.random() < 0.35


def book_carrier(order: Order) -> tuple[str, str]:
    """Return the carrier and a tracking number."""
    carrier = random.choice(CARRIERS)
    if random.random() < 0.3:
        raise carrier_is_busy(carrier)
    return carrier, f"{random.randrange(10**8):08d}"


def carrier_is_busy(carrier: str) -> CarrierBusy:
    return CarrierBusy(f"{carrier} takes no bookings at the moment.")


def where_is(order: Order) -> str | None:
    """Return where a shipped order has come to, or None while it is on its way, which takes most of them a day."""
    if random.random() > (0.02 if is_for_less_than(order, timedelta(days=1)) else 0.25):
        return None
    return "DELIVERED" if random.random() < 0.95 or order.total < 20 else "RETURNED"


def is_for_less_than(order: Order, time: timedelta) -> bool:
    """Say whether an order has entered its state within a time."""
    return timezone.now() - order.status_changed_at < time
