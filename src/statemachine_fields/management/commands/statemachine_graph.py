"""`manage.py statemachine_graph`: draw the machines of the project, or hold a committed drawing to them."""

from __future__ import annotations

import shlex
from argparse import RawDescriptionHelpFormatter
from difflib import unified_diff
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter
from django.utils import translation

from statemachine_fields.drawing.details import NO_DETAILS, details_of
from statemachine_fields.drawing.diagram import FORMATS, draw
from statemachine_fields.machine.binding import Binding
from statemachine_fields.management.arguments import add_labels, find

EXAMPLES = """\
examples:
  %(prog)s shop.Order.states                            one machine, as Mermaid
  %(prog)s shop.Order.states --format svg --output order.svg   as a picture
  %(prog)s --output docs/states.md                      every machine, as Markdown with Mermaid in it
  %(prog)s --check docs/states.md                       in CI: fail if the file is out of date
"""


class HelpFormatter(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Keep the lines of the examples."""


class Command(BaseCommand):
    help = "Draws state machines as Mermaid, DOT, SVG or a Markdown table, labels in the language of LANGUAGE_CODE."
    requires_system_checks = []  # a drawing helps to see what a check complains about

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, epilog=EXAMPLES, formatter_class=HelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        add_labels(parser, "draw")
        parser.add_argument(
            "--format",
            choices=FORMATS,
            default="mermaid",
            help="Default: mermaid. One machine is the bare diagram; several are Markdown with a block each, and no SVG.",
        )
        parser.add_argument(
            "--details",
            action="store_true",
            help="Also show what happens by itself: handlers, guards, time-outs, failures, deletion.",
        )
        parser.add_argument("--output", metavar="FILE", help="Write to this file.")
        parser.add_argument("--check", metavar="FILE", help="Compare with this file, and exit with 1 if it differs.")

    def handle(self, *, labels: list[str], format: str, details: bool, output: str, check: str, **options: Any) -> None:
        if output and check:
            raise CommandError("--output writes the file and --check only reads it. Give one of the two.")
        with translation.override(None):
            translation.deactivate()  # leaves LANGUAGE_CODE, so the drawing does not depend on who calls
            drawing = draw_all(find(labels), format, details)
        if check:
            kind = [] if format == "mermaid" else ["--format", format]
            self._compare(Path(check), drawing, [*labels, *kind, *(["--details"] if details else [])])
        elif output:
            try:
                Path(output).write_text(drawing, encoding="utf-8", newline="\n")
            except OSError as error:
                raise CommandError(f"Cannot write {output}: {error.strerror}.") from error
            self.stdout.write(self.style.SUCCESS(f"Wrote {output}."))
        else:
            self.stdout.write(drawing, ending="")

    def _compare(self, path: Path, drawing: str, arguments: list[str]) -> None:
        try:
            committed = path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            committed = ""
        except OSError as error:
            raise CommandError(f"Cannot read {path}: {error.strerror}.") from error
        if committed == drawing:
            self.stdout.write(self.style.SUCCESS(f"{path} is up to date."))
            return
        lines = unified_diff(committed.split("\n"), drawing.split("\n"), str(path), "the models", lineterm="")
        self.stdout.write("\n".join(lines))
        self.stdout.flush()  # before the error, also in a log that both streams go to
        raise CommandError(
            f"{path} {'is out of date' if path.exists() else 'does not exist'}. "
            f"Run: manage.py {shlex.join(['statemachine_graph', *arguments, '--output', str(path)])}"
        )


def draw_all(machines: list[Binding[Any]], format: str, details: bool = False) -> str:
    """Return one machine as its bare diagram, and several as one document."""
    if len(machines) > 1 and format == "svg":
        raise CommandError(f"An SVG shows one machine. Name one of: {', '.join(map(str, machines))}.")
    if len(machines) > 1 and format == "mermaid":
        drawings = {
            machine: draw(machine.graph, details=details_of(machine) if details else NO_DETAILS) for machine in machines
        }
        return "\n".join(f"## `{machine}`\n\n```mermaid\n{drawing}```\n" for machine, drawing in drawings.items())
    return "\n".join(machine.face.diagram(format, details=details) for machine in machines)
