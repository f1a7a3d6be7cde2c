"""Which machines a command is about: what the labels on its command line name."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.db import router

from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.registry import NoSuchMachine, find_machines


def find(labels: list[str]) -> list[Binding[Any]]:
    """Return the machines that the labels name, or all if there is none, or raise CommandError."""
    try:
        return find_machines(labels)
    except NoSuchMachine as error:
        raise CommandError(str(error)) from error


def find_in(database: str, labels: list[str]) -> list[Binding[Any]]:
    """Return those that have their table in a database, or raise CommandError if none has."""
    machines = [machine for machine in find(labels) if router.allow_migrate_model(database, machine.model)]
    if not machines:
        raise CommandError(f"None of these machines has its table in the database {database!r}.")
    return machines
