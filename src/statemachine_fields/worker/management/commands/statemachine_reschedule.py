"""`manage.py statemachine_reschedule`: give rows the times that the policies in the code would give them now."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from statemachine_fields.management.arguments import add_batches, add_database, add_labels, find_in
from statemachine_fields.management.progress import Progress, counted
from statemachine_fields.schedule.reschedule import Rescheduler


class Command(BaseCommand):
    help = (
        "Recomputes when rows of timed machines are due. For rows that were there before the machine was timed, and after "
        "a policy has changed. May run while workers do, and may be repeated."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_labels(parser, "reschedule", "timed machine")
        add_database(parser, "write to")
        add_batches(parser, "look at")
        parser.add_argument("--dry-run", action="store_true", help="Count what would change, and write nothing.")

    def handle(self, *, labels: list[str], database: str, dry_run: bool, **options: Any) -> None:
        machines = [machine for machine in find_in(database, labels) if machine.is_timed]
        if not machines:
            raise CommandError(
                "None of these machines is timed. Give a state a handler or a policy, then run makemigrations and migrate."
            )
        progress = Progress(self.stderr, shown=self.stderr.isatty() and not options["no_progress"])
        total = 0
        for machine in machines:
            rescheduler = Rescheduler(
                machine, using=database, batch_size=options["batch_size"], dry_run=dry_run, on_batch=progress.show
            )
            with progress.of(rescheduler):
                rescheduler.run()
            total += self._report(rescheduler)
        if dry_run and total:
            self.stdout.write("Nothing was written: this was a dry run.")

    def _report(self, rescheduler: Rescheduler) -> int:
        """Print what came of one machine, and return how many rows that is."""
        changes = {state: counts for state, counts in rescheduler.changes.items() if counts}
        total = sum(counts.gained + counts.changed + counts.lost for counts in changes.values())
        self.stdout.write(self.style.SUCCESS(f"{rescheduler.bound}: {total:,} of {counted(rescheduler.rows, 'row')}"))
        for state, counts in changes.items():
            self.stdout.write(
                f"  {state}: {counts.gained:,} got a time, {counts.changed:,} got another, {counts.lost:,} lost theirs"
            )
        return total
