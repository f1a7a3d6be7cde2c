"""What a row has lived through, and how that is written: the row, its moves, what it heard, and what was tried in vain.

Written the way `loaddata` writes a fixture: rows and records as they are, so that they agree.
"""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import models, transaction

from shop.models import Order
from shop.world import News
from statemachine_fields.machine.bound import BoundMachine
from statemachine_fields.machine.ids import uuid7_floor
from statemachine_fields.schedule.policy import Schedule

#: The worker that did it all.
WORKER = "shop-1:4711"


@dataclass(slots=True)
class Step:
    """A move that a row made."""

    from_status: str
    to_status: str
    at: dt.datetime
    metadata: dict[str, Any]


@dataclass(slots=True)
class Heard:
    """An event that came, and which move took it."""

    name: str
    payload: dict[str, Any]
    at: dt.datetime
    taken_by: int | None


@dataclass(slots=True)
class Try:
    """A try that did not move the row, after so many moves."""

    number: int
    sequence: int
    state: str
    at: dt.datetime
    outcome: str
    error: str


@dataclass(slots=True)
class Story:
    """A row and what happened to it until now."""

    machine: BoundMachine[Any]
    fields: dict[str, Any]
    began_at: dt.datetime
    steps: list[Step] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    tries: list[Try] = field(default_factory=list)
    children: list[Story] = field(default_factory=list)
    #: How often workers have taken the row, what went wrong last, how often in a row, and when it is due.
    attempts: int = 0
    error: str = ""
    failures: int = 0
    next_at: dt.datetime | None = None

    @property
    def status(self) -> str:
        return self.steps[-1].to_status if self.steps else self.machine.initial

    @property
    def changed_at(self) -> dt.datetime:
        return self.steps[-1].at if self.steps else self.began_at

    @property
    def tried_at(self) -> dt.datetime | None:
        """When a worker took the row last, if one did."""
        return max([*(step.at for step in self.steps), *(each.at for each in self.tries)], default=None)

    @property
    def is_finished(self) -> bool:
        return self.machine._meta.graph.is_terminal(self.status)

    def move(self, to_status: str, at: dt.datetime, metadata: dict[str, Any], news: News | None = None) -> None:
        """Let the row move. Who moves it because of some news has heard them just before."""
        if news is not None:
            self.hear(news, at - dt.timedelta(milliseconds=random.randint(5, 40)), taken_by=len(self.steps) + 1)
        self.steps.append(Step(self.status, to_status, at, metadata))
        self.error, self.failures, self.next_at = "", 0, None

    def hear(self, news: News, at: dt.datetime, taken_by: int | None = None) -> None:
        self.heard.append(Heard(*news, at, taken_by))

    def fail(self, at: dt.datetime, error: str, schedule: Schedule) -> None:
        """Let a try fail."""
        self.attempts += 1
        self.failures += 1
        self.error = error
        outcome = "parked" if schedule.is_last_attempt(self.failures) else "failed"
        self.tries.append(Try(self.attempts, len(self.steps), self.status, at, outcome, error))

    def try_that_moves(self) -> dict[str, Any]:
        """Return what the record of a worker's move says of the try, on a machine that keeps tries."""
        self.attempts += 1
        return {"try": {"number": self.attempts, "worker": WORKER, "seconds": round(random.uniform(0.0002, 0.002), 6)}}

    def forget_after(self, at: dt.datetime) -> None:
        """Let the row not have lived on."""
        self.steps = [step for step in self.steps if step.at <= at]
        self.tries = [each for each in self.tries if each.at <= at]
        self.heard = [each for each in self.heard if each.at <= at and (each.taken_by or 0) <= len(self.steps)]

    def moves(self, key: Any) -> Iterator[dict[str, Any]]:
        """Yield what there is to record of the row with this key, the first move first."""
        for step in self.steps:
            yield {
                "key": key,
                "from_status": step.from_status,
                "to_status": step.to_status,
                "at": step.at,
                "metadata": step.metadata,
            }


def save(stories: list[Story]) -> None:
    """Write rows with all that happened to them, in the order of the stories. All of it is there, or nothing."""
    with transaction.atomic():
        for story in stories:
            order = _save(story)
            for child in story.children:
                for step in child.steps:
                    if step.to_status == "RECALLED":
                        step.metadata = {"cancelled_by": f"{Order._meta.label} pk={order.pk}", "left": "SHIPPED"}
                _save(child, order=order, **_booking(child))


def _booking(parcel: Story) -> dict[str, Any]:
    """Return what a parcel has from its carrier."""
    found = (step.metadata for step in parcel.steps if "tracking" in step.metadata)
    return next(({"carrier": facts["carrier"], "tracking": facts["tracking"]} for facts in found), {})


def _save(story: Story, **others: Any) -> models.Model:
    machine = story.machine
    columns: dict[str, Any] = {
        "status": story.status,
        "status_sequence": len(story.steps),
        "status_changed_at": story.changed_at,
        "status_next_at": story.next_at,
        "status_attempts": story.attempts,
        "status_claimed_at": story.tried_at,
        "status_failures": story.failures,
        "status_error": story.error,
        "status_inbox": len(story.heard),
    }
    row: models.Model = machine.model(**story.fields, **others, **columns)
    row.save_base(raw=True)
    machine.transition_model.objects.bulk_create(_records(story, row.pk))
    machine.event_model.objects.bulk_create(_events(story, row.pk))
    if story.tries:
        machine.attempt_model.objects.bulk_create(_attempts(story, row.pk))
    return row


def _records(story: Story, key: Any) -> Iterator[Any]:
    for sequence, move in enumerate(story.moves(key), start=1):
        yield story.machine.transition_model(  # type: ignore[misc]  # the plugin does not know the key of a row
            id=_id_of(move["at"]),
            instance_id=move["key"],
            sequence=sequence,
            from_status=move["from_status"],
            to_status=move["to_status"],
            transitioned_at=move["at"],
            metadata=move["metadata"],
        )


def _events(story: Story, key: Any) -> Iterator[Any]:
    for number, heard in enumerate(story.heard, start=1):
        yield story.machine.event_model(  # type: ignore[misc]  # the plugin does not know the key of a row
            id=_id_of(heard.at),
            instance_id=key,
            number=number,
            name=heard.name,
            payload=heard.payload,
            dedup_key=f"evt_{random.getrandbits(48):012x}",
            delivered_at=heard.at,
            taken_by=heard.taken_by,
        )


def _attempts(story: Story, key: Any) -> Iterator[Any]:
    for each in story.tries:
        yield story.machine.attempt_model(  # type: ignore[misc]  # the plugin does not know the key of a row
            instance_id=key,
            number=each.number,
            sequence=each.sequence,
            state=each.state,
            worker=WORKER,
            claimed_at=each.at - dt.timedelta(milliseconds=9),
            started_at=each.at - dt.timedelta(milliseconds=2),
            ended_at=each.at,
            outcome=each.outcome,
            error=each.error,
        )


def _id_of(at: dt.datetime) -> uuid.UUID:
    """Return a key that sorts by the time, as those do that the machine makes."""
    return uuid.UUID(int=uuid7_floor(at.timestamp()).int | random.getrandbits(62))
