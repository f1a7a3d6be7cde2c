"""The rows of a campaign: machines of every shape, what their handlers do, and how they arrive."""

from __future__ import annotations

import random
import threading
from typing import Any

from django.db import Error, connections, transaction
from django.db.models import Q

from lab.models import (
    AtomicPetition,
    Bale,
    Deposit,
    Errand,
    Expedition,
    Folder,
    Guest,
    HastyPetition,
    Keg,
    Leg,
    Luggage,
    Paper,
    Petition,
    Postcard,
    Sack,
    SwiftPetition,
)
from statemachine_fields.db.clock import StatementClock
from tests.faults.campaign.timeline import Timeline

#: Those that go from NEW to DONE.
SCRIPTED: tuple[Any, ...] = (Errand, Postcard, Deposit, Folder, Paper, Sack, Keg, Bale)
#: Those that wait for events, go in a circle and never end. The last is timed out again and again.
WAITING: tuple[Any, ...] = (Petition, AtomicPetition, SwiftPetition, HastyPetition)
#: A row that makes others and waits for them, and those.
FAMILY: tuple[Any, ...] = (Expedition, Leg)
MODELS: tuple[Any, ...] = (*SCRIPTED, Guest, *WAITING, *FAMILY)
LABELS = [model._meta.label for model in MODELS]

#: What handlers do that is no harm, and how often.
GOOD = {"": 10, "update": 4, "itself": 3, "slow": 1, "flaky": 1}

#: What handlers do that is, by kind of harm.
BAD = {
    "poison": ["exit 13", "exit 0", "exit 75"],
    "hang": ["hang"],
    "raise": ["raise", "raise mute", "raise interrupt", "raise closed"],
    "nonsense": ["nonsense"],
    "leak": ["leak"],
    "copy": ["copy"],
}

#: How many rows of a kind there are at most, where each costs a process.
MOST = {"poison": 3, "hang": 4}

#: What rows say that say their queue and priority themselves. Some workers serve some of the queues only.
QUEUES = ["", "mail", "post", "other"]
PRIORITIES = [-1, 0, 1, 5]

#: A copy is made with an integer for a key, and a transaction can only be left open by who is not in one.
SHAPES = {
    "leak": tuple(model for model in SCRIPTED if model is not Deposit),
    "copy": (Errand, Postcard, Folder, Paper, Bale),
}

#: Scripts whose rows must not be done.
HOPELESS = [script for kind in ("poison", "hang", "raise", "nonsense") for script in BAD[kind]]
#: Scripts that may use up their tries and need not.
RISKY = [*HOPELESS, *BAD["leak"]]

AT_FIRST = 300
AT_ONCE = 20
EVERY = 0.5

#: How many rows of each kind wait for events, what they do with them, and how many are sent at once.
WAITERS, COLLECTS, SENT = 15, {"needs": 2}, 10

#: How many of the children never end, where one of them is lost: they are yet to be cancelled when their parent leaves.
ENDLESS = 2
#: The number of a child that was made when its parent had left, so that it is never to be cancelled.
LATE = 100

#: Where parents are that wait for no children any more.
HAVE_LEFT = ["HOME", "FAILED", "LATE"]

DONE, FAILED, CANCELLED = "DONE", "FAILED", "CANCELLED"
TERMINAL = [DONE, FAILED, CANCELLED]


class Feeder:
    """Rows that keep arriving, of every shape.

    :param kinds: the kinds of harm that rows may do.
    """

    def __init__(self, chance: random.Random, kinds: list[str], timeline: Timeline) -> None:
        self.chance, self.timeline = chance, timeline
        self.kinds = kinds
        self.left = {kind: MOST.get(kind, 10**6) for kind in kinds}
        self.waiters: list[Any] = []
        self.sent = 0

    def create(self, number: int, *, harmless: bool = False) -> None:
        rows: dict[Any, list[Any]] = {}
        for _ in range(number):
            model, script, status = self._choose(harmless)
            values: dict[str, Any] = {"script": script} if script is not None else {}
            if model is Bale:
                values |= {"queue": self.chance.choice(QUEUES), "priority": self.chance.choice(PRIORITIES)}
            rows.setdefault(model, []).append(model(status=status, **values))
        for model, made in rows.items():
            with transaction.atomic():
                if model is Keg:  # which bulk_create() cannot
                    for row in made:
                        row.save()
                else:
                    model.objects.bulk_create(made)
                if model is Guest:
                    Luggage.objects.bulk_create([Luggage(guest=guest) for guest in made])
        families = [Expedition(plan=self._plan()) for _ in range(max(number // 20, 1))]
        Expedition.objects.bulk_create(families)
        self.timeline.count("rows", number + len(families))

    def _plan(self) -> dict[str, Any]:
        """Return how a row makes children: most of them arrive. Where one does not, others have not by then."""
        outcomes = self.chance.choices(["ARRIVED", "LOST"], [15, 1], k=self.chance.randint(0, 5))
        if "LOST" in outcomes:
            outcomes += [""] * ENDLESS
        return {"to": "WALKING", "legs": [{"outcome": outcome} for outcome in outcomes]}

    def send(self) -> None:
        """Deliver events to rows that wait for some, or will, each in one of the ways that there are."""
        if not self.waiters:
            for model in WAITING:
                rows = [model(status="OPEN", script=COLLECTS) for _ in range(WAITERS)]
                self.waiters += model.objects.bulk_create(rows)
        for _ in range(SENT):
            self.sent += 1
            row, dedup_key = self.chance.choice(self.waiters), f"event {self.sent}"
            name = self.chance.choice(["letter", "letter", "call"])
            way = self.chance.random()
            if way < 0.2:
                entries = [{"key": row.pk, "name": name, "dedup_key": dedup_key}, {"key": row.pk, "name": "call"}]
                type(row).states.bulk_deliver(entries)
            else:
                row.states.deliver(name, dedup_key=dedup_key)
                if way > 0.8:
                    row.states.deliver(name, dedup_key=dedup_key)
            self.timeline.count("events", 1)

    def _choose(self, harmless: bool) -> tuple[Any, str | None, str]:
        if self.chance.random() < 0.08:
            return Guest, None, self.chance.choice(["STAYING", "WAVING"])
        kinds = [kind for kind in self.kinds if self.left[kind]]
        if kinds and not harmless and self.chance.random() < 0.05:
            kind = self.chance.choice(kinds)
            self.left[kind] -= 1
            model = self.chance.choice(SHAPES.get(kind, SCRIPTED))
            return model, self.chance.choice(BAD[kind]), "NEW" if kind == "copy" else "RISKY"
        return self.chance.choice(SCRIPTED), self.chance.choices([*GOOD], [*GOOD.values()])[0], "NEW"

    def run(self, stop: threading.Event, seconds: float) -> None:
        """Create rows until told to stop. What is dangerous comes early, so that it is over in time."""
        try:
            while not stop.wait(EVERY):
                try:
                    self.create(AT_ONCE, harmless=self.timeline.now > seconds * 0.6)
                    self.send()
                except Error:  # the server is away, and the rows come later
                    connections.close_all()
        finally:
            connections.close_all()


def unfinished() -> dict[str, int]:
    """Return how many rows are still to go, by model and status. Those that are parked are not."""
    found: dict[str, int] = {}
    for model in SCRIPTED:
        is_under_way = Q(status_next_at__isnull=False) | ~Q(status_lease_owner="") | Q(status="HELD")
        for status in model.objects.exclude(status__in=TERMINAL).filter(is_under_way).values_list("status", flat=True):
            name = f"{model.__name__} {status}"
            found[name] = found.get(name, 0) + 1
    for model in WAITING:
        is_due = Q(status_next_at__lte=StatementClock()) | ~Q(status_lease_owner="")
        if model is HastyPetition:  # whose time is never far
            is_due |= Q(status__in=["OPEN", "HEARD"], status_next_at__isnull=False)
        if number := model.objects.filter(is_due).count():
            found[model.__name__] = number
    for status in expeditions_under_way().values_list("status", flat=True):
        found[f"Expedition {status}"] = found.get(f"Expedition {status}", 0) + 1
    if guests := Guest.objects.count():
        found["Guest"] = guests
    return found


def expeditions_under_way() -> Any:
    """Return the rows that make children, or wait for them, and neither are parked nor wait for one that is; and those that have left
    children which are yet to be cancelled."""
    gave_up = Q(status_next_at=None, status_lease_expires_at=None) & ~Q(status_error="")
    parked = Leg.objects.filter(gave_up).exclude(expedition=None).values("expedition")
    rows = Expedition.objects.exclude(gave_up).exclude(pk__in=parked)
    return rows.filter(~Q(status__in=HAVE_LEFT) | Q(status_cancels__gt=0))
