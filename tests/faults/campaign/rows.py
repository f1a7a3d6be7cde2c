"""The rows of a campaign: machines of every shape, what their handlers do, and how they arrive."""

from __future__ import annotations

import random
import threading
from typing import Any

from django.db import Error, connections, transaction
from django.db.models import Q

from lab.models import Bale, Deposit, Errand, Folder, Guest, Keg, Luggage, Paper, Postcard, Sack
from tests.faults.campaign.timeline import Timeline

#: Those that go from NEW to DONE.
SCRIPTED: tuple[Any, ...] = (Errand, Postcard, Deposit, Folder, Paper, Sack, Keg, Bale)
MODELS: tuple[Any, ...] = (*SCRIPTED, Guest)
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
        self.timeline.count("rows", number)

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
    if guests := Guest.objects.count():
        found["Guest"] = guests
    return found
