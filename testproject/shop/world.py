"""What a real shop would hear over the network: from the bank, the warehouse and the carriers. Here, dice."""

from __future__ import annotations

import random
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django.utils import timezone

if TYPE_CHECKING:
    from shop.models import Order, Parcel

CUSTOMERS = ["Ada", "Alan", "Barbara", "Donald", "Edsger", "Frances", "Grace", "Ken", "Leslie", "Radia", "Tony"]
CARRIERS = ["DHL", "GLS", "UPS"]
METHODS = ["card", "card", "card", "wallet", "invoice"]
REFUSALS = ["insufficient funds", "the card has expired"]
#: Why a packed order cannot be sent.
PROBLEMS = ["The address has no house number.", "There is no such postcode."]

#: The name of an event, and what comes with it.
News = tuple[str, dict[str, Any]]


class CarrierBusy(Exception):
    """A carrier that cannot take a booking now."""


def news_of_payment(order: Order) -> News | None:
    """Return what the bank has to say of an order, which it is asked every two seconds. Most people pay at once; who has not may never."""
    if random.random() > (0.07 if is_for_less_than(order, timedelta(minutes=10)) else 0.001):
        return None
    return payment(order.total, random)


def payment(total: Decimal, dice: random.Random | Any) -> News:
    """Return that somebody has paid, or that the bank would not have it."""
    if dice.random() < 0.05:
        return "refused", {"reason": dice.choice(REFUSALS)}
    return "paid", {"amount": str(total), "method": dice.choice(METHODS)}


def is_packed(order: Order) -> bool:
    """Say whether the warehouse has come to it."""
    return random.random() < 0.35


def problem_with_address(order: Order) -> str:
    """Return why an order cannot be sent; nothing if it can."""
    return random.choice(PROBLEMS) if random.random() < 0.04 else ""


def weigh(order: Order) -> list[Decimal]:
    """Return the weight of each parcel of an order: what costs more is more."""
    return weights(order.total, random)


def weights(total: Decimal, dice: random.Random | Any) -> list[Decimal]:
    return [Decimal(dice.randint(3, 120)).scaleb(-1) for _ in range(1 + min(int(total / 150), 2))]


def book_carrier(parcel: Parcel) -> tuple[str, str]:
    """Return the carrier and a tracking number."""
    carrier = random.choice(CARRIERS)
    if random.random() < 0.3:
        raise carrier_is_busy(carrier)
    return carrier, f"{random.randrange(10**8):08d}"


def carrier_is_busy(carrier: str) -> CarrierBusy:
    return CarrierBusy(f"{carrier} takes no bookings at the moment.")


def news_of_parcel(parcel: Parcel) -> News | None:
    """Return what a carrier has to say of a parcel, which it is asked every two seconds. Most take a day."""
    if random.random() > (0.002 if is_for_less_than(parcel, timedelta(days=1)) else 0.006):
        return None
    return arrival(parcel.order.customer, random)


def arrival(customer: str, dice: random.Random | Any) -> News:
    """Return that a parcel has arrived, or never will."""
    if dice.random() < 0.015:
        return "lost", {"last_seen": dice.choice(["Hanover", "Leipzig", "Rotterdam"])}
    return "delivered", {"signed_by": dice.choice([customer, customer, "a neighbour"])}


def is_for_less_than(row: Order | Parcel, time: timedelta) -> bool:
    """Say whether a row has entered its state within a time."""
    return timezone.now() - row.status_changed_at < time
