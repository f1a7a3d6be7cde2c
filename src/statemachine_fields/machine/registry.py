"""Which machines there are: on a class, by name, or in the whole project. The one place where they are found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from django.apps import apps
from django.db import models

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

T = TypeVar("T")


class MachineAttribute:
    """What a class has under the name of a machine: the declaration, or, where it has a table, what that is bound to."""

    bound: Binding[Any] | None = None

    @property
    def machine(self) -> Any:  # a StateMachine, which type checkers would take for a descriptor here
        return self if self.bound is None else self.bound.machine


class NoSuchMachine(LookupError):
    """No machine has that name. Says which there are."""


def attributes_of(model: type[models.Model]) -> dict[str, MachineAttribute]:
    """Return what a class and its bases have, bound or not, by attribute name, the most derived first."""
    found: dict[str, MachineAttribute] = {}
    for cls in model.__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, MachineAttribute):
                found.setdefault(name, value)
    return found


def machines_of(model: type[models.Model]) -> dict[str, Binding[Any]]:
    """Return the machines of a model by accessor, its own and those it inherits."""
    return {name: found.bound for name, found in attributes_of(model).items() if found.bound is not None}


def all_machines(of: Iterable[type[models.Model]] | None = None) -> Iterator[Binding[Any]]:
    """Yield every machine of the project, or of some models, once: proxies and multi-table children share one."""
    found = (bound for model in (apps.get_models() if of is None else of) for bound in machines_of(model).values())
    yield from dict.fromkeys(found)


def find_machine(label: str, accessor: str) -> Binding[Any]:
    """Return a machine by the label of its model and its name there: how one is pickled."""
    return machines_of(apps.get_model(label))[accessor]


def find_machines(labels: Iterable[str]) -> list[Binding[Any]]:
    """Return the machines that the labels of apps, models or machines name, or all if there is none.

    :raises NoSuchMachine: a label names none, or there is none at all.
    """
    catalogue: dict[str, dict[str, dict[str, Binding[Any]]]] = {}
    for model in apps.get_models():
        if machines := machines_of(model):
            catalogue.setdefault(model._meta.app_label, {})[model.__name__] = machines
    if not catalogue:
        raise NoSuchMachine(
            "No installed app has a model with a state machine. Declare a StateMachine on a model, and add its app to "
            "INSTALLED_APPS."
        )
    return list(dict.fromkeys(machine for label in labels or catalogue for machine in _resolve(label, catalogue)))


def _resolve(label: str, catalogue: Mapping[str, dict[str, dict[str, Binding[Any]]]]) -> list[Binding[Any]]:
    app, *names = label.split(".", 2)
    in_app = _pick(app, catalogue, f"No app {app!r} with a state machine")
    if not names:
        return [machine for machines in in_app.values() for machine in machines.values()]
    on_model = _pick(names[0], in_app, f"No model {names[0]!r} with a state machine in {app}")
    if len(names) == 1:
        return list(on_model.values())
    return [_pick(names[1], on_model, f"No state machine {names[1]!r} on {app}.{names[0]}")]


def _pick(name: str, among: Mapping[str, T], complaint: str) -> T:
    if name in among:
        return among[name]
    folded = {known.lower(): known for known in among}  # as Django reads the names of models
    if name.lower() in folded:
        return among[folded[name.lower()]]
    guess = get_close_matches(name.lower(), folded, n=1)
    hint = f" Did you mean {folded[guess[0]]!r}?" if guess else ""
    raise NoSuchMachine(f"{complaint}.{hint} There are: {', '.join(among)}.")
