"""Abstract bases, multi-table children and proxies."""

from __future__ import annotations

from django.db import models

from statemachine_fields import StateMachine


class Switched(models.Model):
    """An abstract base: every subclass gets its own columns, machine and audit table."""

    name = models.CharField(max_length=20, default="")
    states = StateMachine(
        states=[("OFF", "Off"), ("ON", "On")], initial="OFF", transitions={"OFF": ["ON"], "ON": ["OFF"]}
    )

    class Meta:
        abstract = True
        indexes = [models.Index(fields=["name", "status"])]


class Lockable(Switched):
    """An abstract base of an abstract base."""

    locked = models.BooleanField(default=False)

    class Meta(Switched.Meta):
        abstract = True


class Lamp(Switched):
    """As the base has it."""


class Bolt(Lockable):
    """Two abstract levels down."""

    class Meta:
        ordering = ["pk"]


class Door(Switched):
    """The base's machine replaced by another on the same column."""

    states = StateMachine(
        states=[("SHUT", "Shut"), ("OPEN", "Open")], initial="SHUT", transitions={"SHUT": ["OPEN"], "OPEN": ["SHUT"]}
    )


class Gate(Switched):
    """The base's machine replaced by one on another column."""

    states = StateMachine(
        states=[("DOWN", "Down"), ("UP", "Up")],
        initial="DOWN",
        transitions={"DOWN": ["UP"], "UP": ["DOWN"]},
        field="position",
    )

    class Meta:
        indexes = []


class Vehicle(models.Model):
    """The parent of a multi-table child."""

    plate = models.CharField(max_length=10, default="")
    modified = models.DateTimeField(auto_now=True)
    states = StateMachine(
        states=[("PARKED", "Parked"), ("MOVING", "Moving"), ("SCRAPPED", "Scrapped")],
        initial="PARKED",
        transitions={"PARKED": ["MOVING", "SCRAPPED"], "MOVING": ["PARKED"]},
    )


class Car(Vehicle):
    """A multi-table child: the machine is its parent's. It also has one of its own."""

    doors = models.IntegerField(default=4)
    serviced = models.DateTimeField(auto_now=True)
    fuel = StateMachine(
        states=[("FULL", "Full"), ("EMPTY", "Empty")],
        initial="FULL",
        transitions={"FULL": ["EMPTY"], "EMPTY": ["FULL"]},
        field="fuel_state",
    )


class RacingCar(Car):
    """A proxy: everything is shared."""

    class Meta:
        proxy = True
