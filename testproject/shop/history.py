"""What the shop did before you came: the orders of some weeks, each with the story of its moves.

Stories are imagined without a database and then written the way `loaddata` writes a fixture: rows and records as they
are, so that they agree. Whatever else can write a row's past needs no more than `Story.moves()`.
"""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from math import log
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.utils import timezone

from shop.models import Order, OrderStateTransition
from shop.world import CARRIERS, CUSTOMERS, carrier_is_busy
from statemachine_fields.machine.ids import uuid7_floor

WEEKS = 4
#: What share of the orders came in during the last hours, so that there is something to do when the shop opens.
RECENT = 0.12
#: How long the shop leaves an order alone that no carrier took, in days, until somebody gives it another try.
PARKED_FOR = (2.0, 5.0)

Plan = Iterator[tuple[str, dt.timedelta, dict[str, Any]]]


@dataclass(slots=True)
class Step:
    """A move that an order made."""

    from_status: str
    to_status: str
    at: dt.datetime
    metadata: dict[str, Any]


@dataclass(slots=True)
class Story:
    """An order and what happened to it until now."""

    customer: str
    total: Decimal
    placed_at: dt.datetime
    steps: list[Step] = field(default_factory=list)
    #: Why the carriers have not taken it, how often it was tried, and whether it will be again.
    error: str = ""
    failures: int = 0
    next_at: dt.datetime | None = None

    @property
    def status(self) -> str:
        return self.steps[-1].to_status if self.steps else Order.states.initial

    @property
    def changed_at(self) -> dt.datetime:
        return self.steps[-1].at if self.steps else self.placed_at

    @property
    def tracking(self) -> str:
        return next((step.metadata["tracking"] for step in self.steps if "tracking" in step.metadata), "")

    def moves(self, key: Any) -> Iterator[dict[str, Any]]:
        """Yield what there is to record of the order with this key, the first move first."""
        for step in self.steps:
            yield {
                "key": key,
                "from_status": step.from_status,
                "to_status": step.to_status,
                "at": step.at,
                "metadata": step.metadata,
            }


class Imagination:
    """Makes up stories that the shop's own machine could have told."""

    def __init__(self, now: dt.datetime, dice: random.Random, people: AbstractBaseUser | None = None) -> None:
        self.now = now
        self.dice = dice
        self.actor = {"actor": {"model": people._meta.label, "pk": people.pk, "text": str(people)}} if people else {}

    def story(self) -> Story:
        dice = self.dice
        story = Story(dice.choice(CUSTOMERS), Decimal(dice.randint(500, 50_000)).scaleb(-2), self._placed_at())
        for to_status, after, metadata in self._plan(story):
            at = story.changed_at + after
            if at > self.now:
                break
            story.steps.append(Step(story.status, to_status, at, metadata))
        self._set_clock(story)
        return story

    def _placed_at(self) -> dt.datetime:
        """Return when an order came in: most people buy in the evening."""
        if self.dice.random() < RECENT:
            return self.now - dt.timedelta(minutes=self.dice.triangular(0, 300, 20))
        day = self.now.replace(hour=0, minute=0, second=0, microsecond=0) - dt.timedelta(
            days=self.dice.randrange(1, 7 * WEEKS)
        )
        return day + dt.timedelta(hours=self.dice.triangular(6, 24, 19))

    def _plan(self, story: Story) -> Plan:
        """Yield where an order goes, after how long, and with which facts, to its end."""
        dice = self.dice
        fate, pays_by_invoice, is_worth_returning = dice.random(), dice.random() < 0.2, story.total >= 20
        limit = Order.states._meta.schedules["PENDING"].timeout_after or 0
        if fate < 0.07:  # nobody paid
            yield "CANCELLED", dt.timedelta(seconds=limit + dice.uniform(0.1, 2)), {"timeout_after": limit}
            return
        if fate < 0.09:
            yield "CANCELLED", self._about(hours=2), self.actor
            return
        yield "PAID", self._about(hours=9, most=40) if pays_by_invoice else self._about(minutes=8, most=2000), {}
        if fate < 0.12:
            yield "CANCELLED", self._about(hours=1), self.actor
            return
        yield "PACKED", self._about(hours=2.5), {}
        yield self._shipment()
        if fate < 0.15 and is_worth_returning:  # nobody was there to take it
            yield "RETURNED", self._about(hours=60), {}
            return
        yield "DELIVERED", self._about(hours=30, spread=0.45), {}
        if fate < 0.22 and is_worth_returning:
            reason = dice.choice(["damaged", "wrong", "unwanted"])
            yield "RETURNED", self._about(hours=100), {**self.actor, "reason": reason}

    def _shipment(self) -> tuple[str, dt.timedelta, dict[str, Any]]:
        """Return the way to a carrier: at once, after other tries, or after somebody gave it another three."""
        dice, clock = self.dice, Order.states._meta.schedules["PACKED"]
        tries = dice.choices([1, 2, 3, 4], [64, 16, 4, 16])[0]
        attempt = tries if tries < 4 else 1
        after = dt.timedelta(days=dice.uniform(*PARKED_FOR)) if tries == 4 else dt.timedelta()
        waits = [clock.entry_delay() or 0, *(clock.retry_delay(failed) for failed in range(1, attempt))]
        after += dt.timedelta(seconds=sum(waits) + dice.uniform(0.1, 2))
        tracking = f"{dice.randrange(10**8):08d}"
        return "SHIPPED", after, {"carrier": dice.choice(CARRIERS), "tracking": tracking, "attempt": attempt}

    def _about(self, *, hours: float = 0, minutes: float = 0, spread: float = 0.7, most: float = 400) -> dt.timedelta:
        """Return a time around the given one: as many are shorter as are longer, and some are much longer.

        :param most: a bound, in the unit given.
        """
        length = min(self.dice.lognormvariate(log(hours or minutes), spread), most)
        return dt.timedelta(hours=length) if hours else dt.timedelta(minutes=length)

    def _set_clock(self, story: Story) -> None:
        """Say when a worker is to look at the order next, as the machine would have."""
        clock = Order.states._meta.schedules[story.status]
        entry = clock.entry_delay()
        if entry is None:
            return
        due_at = story.changed_at + dt.timedelta(seconds=entry)
        if story.status == "PACKED" and due_at < self.now:
            waits = [clock.retry_delay(failures) for failures in range(1, clock.max_attempts or 1)]
            story.error = str(carrier_is_busy(self.dice.choice(CARRIERS)))
            while waits and due_at < self.now:
                story.failures += 1
                due_at += dt.timedelta(seconds=waits.pop(0))
            if due_at < self.now:  # that was its last try
                story.failures += 1
                return
        if clock.handler is not None and due_at < self.now:  # it has been asked in vain, and will be again
            due_at = self.now + dt.timedelta(seconds=self.dice.uniform(0, clock.retry_after))
        ends = [story.changed_at + dt.timedelta(seconds=clock.horizon)] if clock.horizon is not None else []
        story.next_at = min([due_at, *ends])


def write(count: int, *, people: AbstractBaseUser | None = None, seed: int | None = None) -> None:
    """Create as many orders with a past, in the order in which they came in. All of them are there, or none.

    :param people: who made the moves that people make.
    """
    imagination = Imagination(timezone.now(), random.Random(seed), people)
    stories = sorted((imagination.story() for _ in range(count)), key=lambda story: story.placed_at)
    with transaction.atomic():
        for story in stories:
            _save(story)


def _save(story: Story) -> None:
    order = Order(
        customer=story.customer,
        total=story.total,
        tracking=story.tracking,
        created_at=story.placed_at,
        status=story.status,
        status_sequence=len(story.steps),
        status_changed_at=story.changed_at,
        status_next_at=story.next_at,
        status_failures=story.failures,
        status_error=story.error,
    )
    order.save_base(raw=True)
    for sequence, move in enumerate(story.moves(order.pk), start=1):
        record = OrderStateTransition(  # type: ignore[misc]  # the plugin does not know the key of a row
            id=_id_of(move["at"]),
            instance_id=move["key"],
            sequence=sequence,
            from_status=move["from_status"],
            to_status=move["to_status"],
            transitioned_at=move["at"],
            metadata=move["metadata"],
        )
        record.save_base(raw=True)


def _id_of(at: dt.datetime) -> uuid.UUID:
    """Return a key that sorts by the time, as those do that the machine makes."""
    return uuid.UUID(int=uuid7_floor(at.timestamp()).int | random.getrandbits(62))
