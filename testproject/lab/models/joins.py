"""Rows that wait for other rows: an `Expedition` waits for its `Leg`s, and what else can stand in their places."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import models

from statemachine_fields import Children, State, StateMachine
from statemachine_fields.worker import HandlerContext, Move, Retry, Spawn

OPEN, LOST = "OPEN", "LOST"


class Expedition(models.Model):
    """PLANNED → WALKING, where it waits for its legs in one of several ways → HOME, FAILED or LATE."""

    status: str
    legs: Any

    plan = models.JSONField(default=dict, blank=True)
    note = models.CharField(max_length=200, blank=True)

    states = StateMachine(
        states=[
            State("PLANNED", retry_after=60, max_attempts=3),
            State(
                "WALKING",
                until=Children("legs", failed=[LOST], then="HOME", failed_to="FAILED", cancel_to="CALLED_OFF"),
            ),
            State("RACING", until=Children("legs", need="any", failed=[LOST, "CALLED_OFF"], then="HOME")),
            State("SOME", until=Children("legs", need=3, failed=[LOST], then="HOME", failed_to="FAILED")),
            State(
                "TIMED",
                until=Children("legs", failed=[LOST], then="HOME", failed_to="FAILED"),
                timeout_after=timedelta(hours=1),
                timeout_to="LATE",
            ),
            State("GUIDED", until=Children("guided_legs", then="HOME", cancel_to="CALLED_OFF")),
            State("JUDGED", until=Children("legs", failed=[LOST]), retry_after=5, max_attempts=3),
            State("HOME"),
            State("FAILED"),
            State("LATE"),
        ],
        initial="PLANNED",
        transitions={
            "PLANNED": ["WALKING", "RACING", "SOME", "TIMED", "GUIDED", "JUDGED", "HOME"],
            "WALKING": ["HOME", "FAILED", "LATE", "PLANNED"],
            "RACING": ["HOME"],
            "SOME": ["HOME", "FAILED"],
            "TIMED": ["HOME", "FAILED", "LATE"],
            "GUIDED": ["HOME"],
            "JUDGED": ["HOME", "FAILED"],
        },
    )

    @states.handler("PLANNED")
    def set_out(self) -> Any:
        if "to" not in self.plan:
            return None
        legs = [
            Leg(expedition=self, **{"number": number, **leg}) for number, leg in enumerate(self.plan.get("legs", ()))
        ]
        return Spawn(self.plan["to"], legs, metadata={"legs": len(legs)})

    @states.handler("JUDGED")
    def judge(self, ctx: HandlerContext) -> Any:
        match self.plan.get("judge"):
            case "none":
                return None
            case "fail":
                return Retry(error="no luck")
        counts = {"total": ctx.children.total, "failed": ctx.children.failed, "met": ctx.children.is_met}
        return Move("HOME" if ctx.children.is_met else "FAILED", metadata=counts)


class Leg(models.Model):
    """OPEN → ARRIVED, LOST or CALLED_OFF."""

    status: str

    expedition = models.ForeignKey(Expedition, models.CASCADE, related_name="legs", null=True)
    guided = models.ForeignKey(Expedition, models.SET_NULL, related_name="guided_legs", null=True)
    number = models.IntegerField(default=0)
    outcome = models.CharField(max_length=20, default="ARRIVED")

    states = StateMachine(
        states=[
            State(OPEN, retry_after=60, max_attempts=1),
            State("HELD", external=True),
            State("ARRIVED"),
            State(LOST, delete_after=timedelta(days=1)),
            State("CALLED_OFF"),
        ],
        initial=OPEN,
        transitions={OPEN: ["ARRIVED", LOST, "CALLED_OFF", "HELD"], "HELD": ["ARRIVED", LOST]},
    )

    class Meta:
        indexes = (models.Index(fields=["expedition", "status"]), models.Index(fields=["guided", "status"]))

    @states.handler(OPEN)
    def walk(self) -> Any:
        if self.outcome == "raise":
            raise ValueError("no luck")
        return self.outcome or None


class ByLeg(Leg):
    """A proxy."""

    class Meta:
        proxy = True


class Twig(models.Model):
    """A tree: a twig waits for those that grow from it."""

    status: str

    parent = models.ForeignKey("self", models.SET_NULL, related_name="twigs", null=True)
    depth = models.IntegerField(default=0)

    states = StateMachine(
        states=[
            State("BUD", retry_after=60),
            State("GROWING", until=Children("twigs", then="GROWN")),
            State("GROWN"),
        ],
        initial="BUD",
        transitions={"BUD": ["GROWING", "GROWN"], "GROWING": ["GROWN"]},
        record_initial=True,
    )

    class Meta:
        indexes = (models.Index(fields=["parent", "status"]),)

    @states.handler("BUD")
    def grow(self) -> Any:
        if not self.depth:
            return "GROWN"
        return Spawn("GROWING", [Twig(parent=self, depth=self.depth - 1) for _ in range(2)], metadata={"twigs": 2})


class Depot(models.Model):
    """Known to its pallets by its code, and waits for the second of their machines."""

    status: str

    code = models.CharField(max_length=20, unique=True)

    states = StateMachine(
        states=[
            State("OPEN", external=True),
            State(
                "CLOSING", until=Children("pallets", machine="look", failed=["BROKEN"], then="CLOSED", failed_to="OPEN")
            ),
            State("CLOSED"),
        ],
        initial="OPEN",
        transitions={"OPEN": ["CLOSING"], "CLOSING": ["CLOSED", "OPEN"]},
    )


class Pallet(models.Model):
    """With two machines, and a `save()` of its own."""

    status: str
    phase: str

    depot = models.ForeignKey(Depot, models.CASCADE, related_name="pallets", to_field="code")
    saved = models.IntegerField(default=0)

    states = StateMachine(
        states=[("FULL", "Full"), ("EMPTY", "Empty")], initial="FULL", transitions={"FULL": ["EMPTY"]}
    )
    look = StateMachine(
        states=[("UNSEEN", "Unseen"), ("FINE", "Fine"), ("BROKEN", "Broken")],
        initial="UNSEEN",
        transitions={"UNSEEN": ["FINE", "BROKEN"]},
        field="phase",
    )

    class Meta:
        indexes = (models.Index(fields=["depot", "phase"]),)

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.saved += 1
        super().save(*args, **kwargs)


class Caravan(Depot):
    """A multi-table child: its machine, and its key, are its parent's. Its sleds are another model's multi-table children."""

    name = models.CharField(max_length=20, blank=True)

    crossing = StateMachine(
        states=[
            State("RESTING", external=True),
            State("CROSSING", until=Children("sleds", failed=[LOST], then="ACROSS", failed_to="STRANDED")),
            State("ACROSS"),
            State("STRANDED"),
        ],
        initial="RESTING",
        transitions={"RESTING": ["CROSSING"], "CROSSING": ["ACROSS", "STRANDED"]},
        field="crossing_status",
    )


class Sled(Leg):
    """The machine is in the table of legs, the foreign key in its own."""

    caravan = models.ForeignKey(Caravan, models.CASCADE, related_name="sleds")
