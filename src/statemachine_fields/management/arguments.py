"""Arguments that several commands take."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import CommandParser
from django.db import DEFAULT_DB_ALIAS, connections


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
    parser.add_argument(
        "--batch-size", type=at_least(1), default=2000, metavar="N", help=f"Rows to {verb} at once. Default: 2000."
    )
    parser.add_argument("--no-progress", action="store_true", help="Show no progress bar on a terminal.")


def at_least(lowest: int) -> Any:
    def read(text: str) -> int:
        number = int(text)
        if number < lowest:
            raise ArgumentTypeError(f"must be at least {lowest}")
        return number

    read.__name__ = "number"  # argparse: "invalid number value: 'x'"
    return read
