"""Which machines a command is about: what the labels on its command line name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias, TypeVar

from django.apps import apps
from django.core.management.base import CommandError
from django.db import router

from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.descriptor import machines_of

T = TypeVar("T")
Machines: TypeAlias = dict[str, Binding[Any]]  # by accessor
Models: TypeAlias = dict[str, Machines]  # by name of the model


def find(labels: list[str]) -> list[Binding[Any]]:
    """Return the machines that the labels name, or all if there is none. What several models share comes once."""
    catalogue: dict[str, Models] = {}
    for model in apps.get_models():
        if machines := machines_of(model):
            catalogue.setdefault(model._meta.app_label, {})[model.__name__] = machines
    if not catalogue:
        raise CommandError(
            "No installed app has a model with a state machine. Declare a StateMachine on a model, and add its app to "
            "INSTALLED_APPS."
        )
    return list(dict.fromkeys(machine for label in labels or catalogue for machine in resolve(label, catalogue)))


def find_in(database: str, labels: list[str]) -> list[Binding[Any]]:
    """Return those that have their table in a database, or raise CommandError if none has."""
    machines = [machine for machine in find(labels) if router.allow_migrate_model(database, machine.model)]
    if not machines:
        raise CommandError(f"None of these machines has its table in the database {database!r}.")
    return machines


def resolve(label: str, catalogue: Mapping[str, Models]) -> list[Binding[Any]]:
    """Return the machines that one label names, or raise CommandError."""
    app, *names = label.split(".", 2)
    in_app = pick(app, catalogue, f"No app {app!r} with a state machine")
    if not names:
        return [machine for machines in in_app.values() for machine in machines.values()]
    on_model = pick(names[0], in_app, f"No model {names[0]!r} with a state machine in {app}")
    if len(names) == 1:
        return list(on_model.values())
    return [pick(names[1], on_model, f"No state machine {names[1]!r} on {app}.{names[0]}")]


def pick(name: str, among: Mapping[str, T], complaint: str) -> T:
    if name in among:
        return among[name]
    folded = {known.lower(): known for known in among}  # as Django reads the names of models
    if name.lower() in folded:
        return among[folded[name.lower()]]
    guess = get_close_matches(name.lower(), folded, n=1)
    hint = f" Did you mean {folded[guess[0]]!r}?" if guess else ""
    raise CommandError(f"{complaint}.{hint} There are: {', '.join(among)}.")
