"""What several commands take, and which machines the labels on their command lines name."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, connections, router

from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.registry import NoSuchMachine, find_machines


def add_labels(parser: CommandParser, verb: str, machines: str = "machine") -> None:
    parser.add_argument(
        "labels",
        nargs="*",
        metavar="LABEL",
        help=f"What to {verb}: app, app.Model or app.Model.accessor. Every {machines} of the project if not given.",
    )


def add_database(parser: CommandParser, verb: str) -> None:
    parser.add_argument(
        "--database",
        default=DEFAULT_DB_ALIAS,
        choices=tuple(connections),
        help=f"The database to {verb}. Default: {DEFAULT_DB_ALIAS}.",
    )


def add_batches(parser: CommandParser, verb: str) -> None:
    """Add what belongs to work on a whole table: the size of a batch, and whether to show progress."""
    add_number(parser, "--batch-size", 2000, f"Rows to {verb} at once.")
    parser.add_argument("--no-progress", action="store_true", help="Show no progress bar on a terminal.")


def add_number(parser: CommandParser, flag: str, default: int, says: str) -> None:
    parser.add_argument(flag, type=at_least(1), default=default, metavar="N", help=f"{says} Default: {default}.")


def at_least(lowest: int) -> Any:
    def read(text: str) -> int:
        number = int(text)
        if number < lowest:
            raise ArgumentTypeError(f"must be at least {lowest}")
        return number

    read.__name__ = "number"  # argparse: "invalid number value: 'x'"
    return read


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
