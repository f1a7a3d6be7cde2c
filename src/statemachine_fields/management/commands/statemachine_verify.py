"""`manage.py statemachine_verify`: find rows whose status, counter and history disagree."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from statemachine_fields.machine.findings import ERROR, WARNING, Finding
from statemachine_fields.machine.verify import Verifier
from statemachine_fields.machine.verify_events import event_findings
from statemachine_fields.machine.verify_joins import join_findings
from statemachine_fields.management.arguments import add_batches, add_database, add_labels, at_least, find_in
from statemachine_fields.management.progress import Progress, counted


class Command(BaseCommand):
    help = (
        "Finds rows whose status, counter and history disagree. Reads only, and may run while rows move. "
        "Exits with 1 if something is damaged."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_labels(parser, "verify")
        add_database(parser, "read")
        parser.add_argument(
            "--limit",
            type=at_least(0),
            default=100,
            metavar="N",
            help="Show this many findings. Default: 100. All are counted.",
        )
        add_batches(parser, "read")
        parser.add_argument("--strict", action="store_true", help="Exit with 1 for warnings too.")
        parser.add_argument("--format", choices=["text", "json"], default="text", help="Default: text.")

    def handle(self, *, labels: list[str], database: str, strict: bool, format: str, **options: Any) -> None:
        machines = find_in(database, labels)
        report = VerifyReport(self, options["limit"], as_json=format == "json")
        progress = Progress(self.stderr, shown=self.stderr.isatty() and not options["no_progress"])
        for machine in machines:
            verifier = Verifier(machine, using=database, batch_size=options["batch_size"], on_page=progress.show)
            with progress.of(verifier):
                events = event_findings(machine, database, options["batch_size"])
                joins = join_findings(machine, database, options["batch_size"])
                for finding in chain(verifier.findings(), events, joins):
                    report.add(finding, progress)
            report.conclude(verifier)
        report.close()
        self.stdout.flush()  # before the error, also in a log that both streams go to
        total = report.total
        if total[ERROR] or (strict and total[WARNING]):
            raise CommandError(f"{counted(total[ERROR], 'error')} and {counted(total[WARNING], 'warning')}.")


class VerifyReport:
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
