"""One small model for each thing a machine can be combined with. A package, as models of larger apps are."""

from lab.models.around import Document, Memo
from lab.models.inheritance import Bolt, Car, Door, Gate, Lamp, RacingCar, Vehicle
from lab.models.options import Defaulting, Kept, Logged, Protected, Reasoned, Stamping, Unindexed
from lab.models.saving import Audited, Derived, Hooked, Lazy, Stamped
from lab.models.states import Invoice, Parcel, Project, Ticket

__all__ = [
    "Audited",
    "Bolt",
    "Car",
    "Defaulting",
    "Derived",
    "Document",
    "Door",
    "Gate",
    "Hooked",
    "Invoice",
    "Kept",
    "Lamp",
    "Lazy",
    "Logged",
    "Memo",
    "Parcel",
    "Project",
    "Protected",
    "RacingCar",
    "Reasoned",
    "Stamped",
    "Stamping",
    "Ticket",
    "Unindexed",
    "Vehicle",
]
