"""`manage.py statemachine_verify`: find rows whose status, counter and history disagree."""

from __future__ import annotations

import json
import time
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DEFAULT_DB_ALIAS, connections, router

from statemachine_fields.machine.verify import ERROR, WARNING, Finding, Verifier
from statemachine_fields.management.machines import find

#: Seconds between two states of the progress bar.
PROGRESS_EVERY = 0.1
BAR = 30


class Command(BaseCommand):
    help = (
        "Finds rows whose status, counter and history disagree. Reads only, and may run while rows move. "
        "Exits with 1 if something is damaged."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "labels",
            nargs="*",
            metavar="LABEL",
            help="What to verify: app, app.Model or app.Model.accessor. Every machine of the project if not given.",
        )
        parser.add_argument(
            "--database",
            default=DEFAULT_DB_ALIAS,
            choices=tuple(connections),
            help=f"The database to read. Default: {DEFAULT_DB_ALIAS}.",
        )
        parser.add_argument(
            "--limit",
            type=_at_least(0),
            default=100,
            metavar="N",
            help="Show this many findings. Default: 100. All are counted.",
        )
        parser.add_argument(
            "--batch-size", type=_at_least(1), default=2000, metavar="N", help="Rows to read at once. Default: 2000."
        )
        parser.add_argument("--strict", action="store_true", help="Exit with 1 for warnings too.")
        parser.add_argument("--no-progress", action="store_true", help="Show no progress bar on a terminal.")
        parser.add_argument("--format", choices=["text", "json"], default="text", help="Default: text.")

    def handle(self, *, labels: list[str], database: str, strict: bool, format: str, **options: Any) -> None:
        machines = [machine for machine in find(labels) if router.allow_migrate_model(database, machine.model)]
        if not machines:
            raise CommandError(f"None of these machines has its table in the database {database!r}.")
        report = Report(self, options["limit"], as_json=format == "json")
        progress = Progress(self.stderr, shown=self.stderr.isatty() and not options["no_progress"])
        for machine in machines:
            verifier = Verifier(machine, using=database, batch_size=options["batch_size"], on_page=progress.show)
            with progress.of(verifier):
                for finding in verifier.findings():
                    report.add(finding, progress)
            report.conclude(verifier)
        report.close()
        self.stdout.flush()  # before the error, also in a log that both streams go to
        total = report.total
        if total[ERROR] or (strict and total[WARNING]):
            raise CommandError(f"{counted(total[ERROR], 'error')} and {counted(total[WARNING], 'warning')}.")


class Report:
    """What the command prints: findings as they come, and one line for each machine; or one JSON document."""

    def __init__(self, command: Command, limit: int, *, as_json: bool) -> None:
        self.command = command
        self.limit = limit
        self.as_json = as_json
        self.total: Counter[str] = Counter()
        self.of_machine: Counter[str] = Counter()
        self.shown: list[Finding] = []
        self.machines: list[dict[str, Any]] = []

    def add(self, finding: Finding, progress: Progress) -> None:
        self.of_machine[finding.severity] += 1
        if len(self.shown) == self.limit:
            return
        self.shown.append(finding)
        if not self.as_json:
            progress.clear()
            self.command.stdout.write(self._line(finding))

    def conclude(self, verifier: Verifier) -> None:
        errors, warnings = self.of_machine[ERROR], self.of_machine[WARNING]
        if self.as_json:
            read = {"machine": str(verifier.bound), "rows": verifier.rows, "records": verifier.records}
            self.machines.append({**read, "errors": errors, "warnings": warnings})
        else:
            lines = f"{counted(verifier.rows, 'row')}, {counted(verifier.records, 'record')}"
            found = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
            style = self.command.style
            paint = style.ERROR if errors else style.WARNING if warnings else style.SUCCESS
            self.command.stdout.write(paint(f"{verifier.bound}: {lines}, {found}"))
        self.total += self.of_machine
        self.of_machine = Counter()

    def close(self) -> None:
        hidden = self.total.total() - len(self.shown)
        if self.as_json:
            facts = ("machine", "pk", "severity", "code", "message")
            findings = [{fact: getattr(finding, fact) for fact in facts} for finding in self.shown]
            document = {"findings": findings, "hidden": hidden, "machines": self.machines}
            self.command.stdout.write(json.dumps(document, cls=DjangoJSONEncoder, indent=2, ensure_ascii=False))
        elif hidden:
            self.command.stdout.write(f"{counted(hidden, 'more finding')} not shown. Raise --limit to see more.")

    def _line(self, finding: Finding) -> str:
        paint = self.command.style.ERROR if finding.severity == ERROR else self.command.style.WARNING
        return f"{paint(finding.severity)} {finding.machine} pk={finding.pk} {finding.code}: {finding.message}"


class Progress:
    """A bar on a terminal's standard error: one line, written over at most ten times a second."""

    def __init__(self, out: OutputWrapper, *, shown: bool) -> None:
        self.out = out
        self.shown = shown
        self.total = 0
        self.drawn_at = 0.0
        self.is_drawn = False

    @contextmanager
    def of(self, verifier: Verifier) -> Iterator[None]:
        """Follow a verifier, and leave a clean line behind."""
        self.total = verifier.rows_of.count() if self.shown else 0  # a scan of its own, so only where somebody looks
        try:
            yield
        finally:
            self.clear()

    def show(self, verifier: Verifier) -> None:
        if not self.shown or time.monotonic() - self.drawn_at < PROGRESS_EVERY:
            return
        total = max(self.total, verifier.rows, 1)  # rows may have come in since they were counted
        share = verifier.rows / total
        bar = ("#" * int(share * BAR)).ljust(BAR, ".")
        self._write(f"\r{verifier.bound} [{bar}] {share:4.0%} of {total:,} rows\x1b[K")
        self.drawn_at = time.monotonic()
        self.is_drawn = True

    def clear(self) -> None:
        if self.is_drawn:
            self._write("\r\x1b[K")
            self.is_drawn = False

    def _write(self, text: str) -> None:
        self.out.write(text, ending="")
        self.out.flush()


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _at_least(lowest: int) -> Any:
    def read(text: str) -> int:
        number = int(text)
        if number < lowest:
            raise ArgumentTypeError(f"must be at least {lowest}")
        return number

    read.__name__ = "number"  # argparse: "invalid number value: 'x'"
    return read
