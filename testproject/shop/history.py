"""What the shop did before you came: the orders of some weeks and their parcels, each with its story.

Stories are imagined without a database, as the shop's own machines could have told them, and then written.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from decimal import Decimal
from math import log
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.utils import timezone

from shop import world
from shop.models import Order, Parcel
from shop.stories import Story, save
from shop.world import CARRIERS, CUSTOMERS, News

WEEKS = 4
#: What share of the orders came in during the last hours, so that there is something to do when the shop opens.
RECENT = 0.12
#: How long the shop leaves a row alone that was parked, in days, until somebody gives it another try.
PARKED_FOR = (2.0, 5.0)

#: Where a row goes, after how long, with which facts, and what it has heard, if it is that which moves it.
Plan = Iterator[tuple[str, dt.timedelta, dict[str, Any], News | None]]


class Imagination:
    """Makes up stories that the shop's own machines could have told."""

    def __init__(self, now: dt.datetime, dice: random.Random, people: AbstractBaseUser | None = None) -> None:
        self.now = now
        self.dice = dice
        self.actor = {"actor": {"model": people._meta.label, "pk": people.pk, "text": str(people)}} if people else {}

    def story(self) -> Story:
        """Return what became of an order, and of its parcels."""
        dice, placed_at = self.dice, self._placed_at()
        fields = {
            "customer": dice.choice(CUSTOMERS),
            "total": Decimal(dice.randint(500, 50_000)).scaleb(-2),
            "created_at": placed_at,
        }
        story = Story(Order.states, fields, placed_at)
        self._live(story, self._plan(story))
        self._set_clock(story)
        for child in story.children:
            self._set_clock(child)
        return story

    def _live(self, story: Story, plan: Plan) -> None:
        """Let a row go its way until now."""
        for to_status, after, metadata, news in plan:
            at = story.changed_at + after
            if at > self.now:
                break
            story.move(to_status, at, metadata, news)

    def _placed_at(self) -> dt.datetime:
        """Return when an order came in: most people buy in the evening."""
        if self.dice.random() < RECENT:
            return self.now - dt.timedelta(minutes=self.dice.triangular(0, 300, 20))
        day = self.now.replace(hour=0, minute=0, second=0, microsecond=0) - dt.timedelta(
            days=self.dice.randrange(1, 7 * WEEKS)
        )
        return day + dt.timedelta(hours=self.dice.triangular(6, 24, 19))

    def _plan(self, story: Story) -> Plan:
        """Yield where an order goes, to its end."""
        dice = self.dice
        fate, total, limit = dice.random(), story.fields["total"], Order.states._meta.schedules["PENDING"].timeout_after
        if fate < 0.05:  # nobody paid
            limit = limit or 0
            yield "CANCELLED", dt.timedelta(seconds=limit + dice.uniform(0.1, 2)), {"timeout_after": limit}, None
            return
        if fate < 0.07:
            yield "CANCELLED", self._about(hours=2), self.actor, None
            return
        name, payload = news = world.payment(total, dice)
        is_late = payload.get("method") == "invoice"
        after = self._about(hours=9, most=40) if is_late else self._about(minutes=8, most=2000)
        yield "PAID" if name == "paid" else "CANCELLED", after, {"event": name}, news
        if name == "refused":
            return
        if fate < 0.1:
            yield "CANCELLED", self._about(hours=1), self.actor, None
            return
        if fate > 0.97:  # who does not remember that it is paid for pays again, and that is kept
            story.hear(news, min(story.changed_at + self._about(minutes=20), self.now))
        yield "PACKED", self._about(hours=2.5), {}, None
        weights = world.weights(total, dice)
        yield "SHIPPED", self._time_to_ship(), {"parcels": len(weights)}, None
        story.children = [self._parcel(story, weight) for weight in weights]
        yield from self._arrival(story, fate)
        if story.status == "DELIVERED" and fate < 0.2 and total >= 20:
            reason = dice.choice(["damaged", "wrong", "unwanted"])
            yield "RETURNED", self._about(hours=100), {**self.actor, "reason": reason}, None

    def _time_to_ship(self) -> dt.timedelta:
        """Return how long an order stays packed: hardly, or until somebody has seen to its address."""
        seconds = (Order.states._meta.schedules["PACKED"].entry_delay() or 0) + self.dice.uniform(0.1, 2)
        days = self.dice.uniform(*PARKED_FOR) if self.dice.random() < 0.06 else 0
        return dt.timedelta(days=days, seconds=seconds)

    def _arrival(self, story: Story, fate: float) -> Plan:
        """Yield how an order ends that was shipped, by what became of its parcels or because somebody wants it back."""
        ends = [child.changed_at for child in story.children if child.status == "DELIVERED"]
        losses = [child.changed_at for child in story.children if child.status == "LOST"]
        moment = dt.timedelta(milliseconds=self.dice.randint(10, 60))
        wanted_back = story.changed_at + self._about(hours=12) if fate < 0.13 and story.fields["total"] >= 20 else None
        decided = min(losses, default=max(ends) if len(ends) == len(story.children) else None)
        if wanted_back is not None and wanted_back <= min(decided or self.now, self.now):
            self._recall(story, wanted_back)
            yield "RETURNED", wanted_back - story.changed_at, {**self.actor, "reason": "unwanted"}, None
        elif decided is not None:
            at = min(decided + moment, self.now)
            self._recall(story, at)
            counts = dict.fromkeys(("DELIVERED", "LOST", "READY", "ON_THE_ROAD"), 0)
            for child in story.children:
                left = child.steps[-1].from_status if child.status == "RECALLED" else child.status
                counts[left] += 1
            facts = {"children": {status: number for status, number in counts.items() if number}}
            yield "LOST" if losses else "DELIVERED", at - story.changed_at, facts, None

    def _recall(self, story: Story, at: dt.datetime) -> None:
        """Let the parcels of an order come back that are not there yet."""
        for child in story.children:
            child.forget_after(at)
            if not child.is_finished:
                child.move("RECALLED", min(at + dt.timedelta(milliseconds=self.dice.randint(50, 900)), self.now), {})

    def _parcel(self, order: Story, weight: Decimal) -> Story:
        parcel = Story(Parcel.states, {"weight": weight}, order.changed_at)
        self._live(parcel, self._parcel_plan(parcel, order.fields["customer"]))
        return parcel

    def _parcel_plan(self, parcel: Story, customer: str) -> Plan:
        """Yield where a parcel goes, to its end."""
        dice = self.dice
        booked_at = self._book(parcel)
        if booked_at is None:
            return
        facts = {"carrier": dice.choice(CARRIERS), "tracking": f"{dice.randrange(10**8):08d}"}
        yield "ON_THE_ROAD", booked_at - parcel.changed_at, {**parcel.try_that_moves(), **facts}, None
        name, _payload = news = world.arrival(customer, dice)
        after = self._about(hours=30, spread=0.45) if name == "delivered" else self._about(hours=90)
        facts = {**parcel.try_that_moves(), "event": name}
        yield "DELIVERED" if name == "delivered" else "LOST", after, facts, news

    def _book(self, parcel: Story) -> dt.datetime | None:
        """Let a carrier be found: at once, after other tries, or after somebody gave it another three. None: not yet."""
        dice, schedule = self.dice, Parcel.states._meta.schedules["READY"]
        most = schedule.max_attempts or 1
        failures = dice.choices([0, 1, 2, most], [70, 18, 6, 6])[0]
        self._fail(parcel, parcel.began_at + dt.timedelta(seconds=schedule.start_after), failures)
        if parcel.failures == most:
            at = parcel.tries[-1].at + dt.timedelta(days=dice.uniform(*PARKED_FOR))
            failures = 0
            if at > self.now:  # somebody did so just now, and it has not helped so far
                failures = most - 1
                waits = sum(schedule.retry_delay(failed) for failed in range(1, most))
                at = self.now - dt.timedelta(seconds=waits - dice.uniform(1, schedule.retry_delay(failures)))
            self._fail(parcel, at, failures)
        at = parcel.next_at or self.now
        return at + dt.timedelta(milliseconds=dice.randint(20, 900)) if at <= self.now else None

    def _fail(self, parcel: Story, at: dt.datetime, failures: int) -> None:
        """Let a parcel be tried in vain, so many times but not after now, and be due once more."""
        schedule = Parcel.states._meta.schedules["READY"]
        parcel.failures, parcel.error = 0, ""
        while parcel.failures < failures and at <= self.now:
            parcel.fail(at, str(world.carrier_is_busy(self.dice.choice(CARRIERS))), schedule)
            at += dt.timedelta(seconds=schedule.retry_delay(parcel.failures))
        parcel.next_at = at

    def _about(self, *, hours: float = 0, minutes: float = 0, spread: float = 0.7, most: float = 400) -> dt.timedelta:
        """Return a time around the given one: as many are shorter as are longer, and some are much longer.

        :param most: a bound, in the unit given.
        """
        length = min(self.dice.lognormvariate(log(hours or minutes), spread), most)
        return dt.timedelta(hours=length) if hours else dt.timedelta(minutes=length)

    def _set_clock(self, story: Story) -> None:
        """Say when a worker is to look at the row next, as the machine would have."""
        schedule = story.machine._meta.schedules[story.status]
        story.attempts = max(story.attempts, len(story.steps))
        if story.next_at is not None:  # it has been tried
            return
        entry = None if story.status == "SHIPPED" else schedule.entry_delay()  # which sleeps until its parcels wake it
        if entry is None:
            return
        due_at = story.changed_at + dt.timedelta(seconds=entry)
        if story.status == "PACKED" and due_at < self.now:
            story.attempts += 1
            story.error = self.dice.choice(world.PROBLEMS)
            return
        if schedule.handler is not None and due_at < self.now:  # it has been asked in vain, and will be again
            due_at = self.now + dt.timedelta(seconds=self.dice.uniform(0, schedule.retry_after))
        ends = [story.changed_at + dt.timedelta(seconds=schedule.horizon)] if schedule.horizon is not None else []
        story.next_at = min([due_at, *ends])


def write(count: int, *, people: AbstractBaseUser | None = None, seed: int | None = None) -> None:
    """Create as many orders with a past, in the order in which they came in. All of them are there, or none.

    :param people: who made the moves that people make.
    """
    imagination = Imagination(timezone.now(), random.Random(seed), people)
    save(sorted((imagination.story() for _ in range(count)), key=lambda story: story.began_at))
