"""What a real shop would call over the network: the bank and the carriers. Here, dice."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shop.models import Order

CARRIERS = ["DHL", "GLS", "UPS"]


class CarrierBusy(Exception):
    """A carrier that cannot take a booking now."""


def has_paid(order: Order) -> bool:
    return random.random() < 0.4


def book_carrier(order: Order) -> tuple[str, str]:
    """Return the carrier and a tracking number."""
    carrier = random.choice(CARRIERS)
    if random.random() < 0.3:
        raise CarrierBusy(f"{carrier} takes no bookings at the moment.")
    return carrier, f"{random.randrange(10**8):08d}"


def where_is(order: Order) -> str | None:
    """Return where a shipped order has come to, or None while it is on its way."""
    if random.random() < 0.3:
        return None
    return "DELIVERED" if random.random() < 0.9 else "RETURNED"
