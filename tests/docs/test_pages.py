"""The pages themselves: complete, linked, and no longer than promised."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from django.dispatch import Signal

import statemachine_fields
from statemachine_fields import signals as signals_module
from statemachine_fields import testing, worker
from statemachine_fields.conf import Settings
from statemachine_fields.db.columns import FEATURES
from statemachine_fields.drawing.diagram import draw
from statemachine_fields.machine.graph import build_graph
from statemachine_fields.schedule.policy import Policy
from tests.docs.pages import DOCS, ROOT, all_pages

PAGES = [*all_pages(), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
REFERENCE = {path.name: path.read_text() for path in (DOCS / "reference").glob("*.md")}


def found(pattern: str, text: str) -> set[str]:
    return set(re.findall(pattern, text, re.MULTILINE))


def ids_in(text: str) -> set[str]:
    return found(r"statemachine_fields\.([EW]\d{3})", text)


def check_ids() -> set[str]:
    return ids_in("".join(path.read_text() for path in (ROOT / "src/statemachine_fields").rglob("*checks.py")))


def prose_of(page: Path) -> str:
    """Return a page without its code, in which brackets and hashes mean something else."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors_of(path: Path) -> set[str]:
    """Return what a link into a page may name: its headings, as GitHub and MyST spell them, and its own targets."""
    headings = found(r"^#+ (.*)$", prose_of(path))
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | found(r"^\(([\w-]+)\)=$", prose_of(path))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page):
    for link in found(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"https?:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_are_there(page):
    for picture in found(r"^```\{(?:image|figure)\} (\S+)$", page.read_text()):
        assert (page.parent / picture).is_file(), picture


def test_every_page_is_in_the_table_of_contents():
    listed = found(r"^(?:tutorial|howto|reference|explanation)/[\w-]+$", (DOCS / "index.md").read_text())

    assert listed == {str(path.relative_to(DOCS).with_suffix("")) for path in all_pages()[1:]} - {"index"}


def test_every_system_check_has_an_entry_and_an_anchor():
    assert len(check_ids()) > 10
    for number in check_ids():
        assert f"({number.lower()})=\n## statemachine_fields.{number}\n" in REFERENCE["checks.md"], number


def test_every_entry_of_a_check_has_message_reason_and_remedy():
    entries = REFERENCE["checks.md"].split("\n## ")[1:]

    assert ids_in("\n".join(entries)) == check_ids()
    for entry in entries:
        assert all(mark in entry for mark in ("\n> ", "**Why.**", "**What to do.**")), entry


def test_every_public_name_is_in_the_reference():
    directives = found(r"^\.\. auto\w+:: statemachine_fields\.(\w+)(?:\(\))?$", "\n".join(REFERENCE.values()))

    assert set(statemachine_fields.__all__) - directives == set()


@pytest.mark.parametrize("module", [worker, testing], ids=lambda module: module.__name__)
def test_every_public_name_of_a_module_is_in_the_reference(module):
    pattern = rf"^\.\. auto\w+:: {re.escape(module.__name__)}\.(\w+)(?:\(\))?$"

    assert found(pattern, "\n".join(REFERENCE.values())) == set(module.__all__)


def test_every_option_and_column_of_a_timed_machine_is_in_the_reference():
    rows = found(r"^\| `(\w+)` \|", REFERENCE["machine.md"])

    assert {*(each.name for each in fields(Policy)), *(f"status_{name}" for name in FEATURES["schedule"])} <= rows


def test_every_signal_is_in_the_reference():
    signals = {name for name, value in vars(signals_module).items() if isinstance(value, Signal)}

    assert found(r"^\.\. autodata:: statemachine_fields\.signals\.(\w+)$", REFERENCE["signals.md"]) == signals


def test_every_setting_is_in_the_reference_with_its_default():
    page = REFERENCE["settings.md"]
    for setting in fields(Settings):
        default = str(setting.default) if setting.default is True else json.dumps(setting.default)  # as Python has it
        assert f"| `{setting.name}` | `{default}` |" in page, setting.name
        assert f'    "{setting.name}": {default},\n' in page, setting.name
        assert f".. autoattribute:: statemachine_fields.conf.Settings.{setting.name}\n" in page, setting.name


def test_every_command_has_an_entry():
    for module in (ROOT / "src/statemachine_fields").rglob("management/commands/statemachine_*.py"):
        described = f"\n## {module.stem}\n" in REFERENCE["commands.md"]
        assert described, module.stem
        shared = (ROOT / "src/statemachine_fields/management/arguments.py").read_text()
        for option in re.findall(r'add_argument\(\s*"(--[\w-]+)"', module.read_text() + shared):
            assert f"`{option}" in REFERENCE["commands.md"], option


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def tables_of(page: Path) -> list[list[str]]:
    """Return the rows of a page's tables, each as its cells."""
    rows = re.findall(r"^\| (.*) \|$", page.read_text(), re.MULTILINE)
    return [row.split(" | ") for row in rows if not row.startswith("---")]


def test_readme_compares_as_the_comparison_does():
    compared = tables_of(DOCS / "explanation/comparison.md")
    rows = [row for row in tables_of(ROOT / "README.md") if not row[0].startswith("|")]

    assert len(rows) > 5
    assert [row for row in rows if row not in compared] == []


def test_the_comparison_names_the_versions_that_it_was_made_with():
    pinned = (ROOT / "benchmarks/peers/requirements.txt").read_text()
    headings = [" ".join(row) for row in tables_of(DOCS / "explanation/comparison.md") if row[0].startswith("|")]

    assert len(headings) == 2
    assert found(r"\b\d+\.\d+\.\d+\b", " ".join(headings)) == found(r"==([\d.]+)$", pinned)


def test_every_row_of_the_comparison_was_asked_for():
    asked = "".join((ROOT / "benchmarks/peers" / name).read_text() for name in ("machines.py", "workers.py"))
    rows = [row[0] for row in tables_of(DOCS / "explanation/comparison.md") if not row[0].startswith("|")]

    assert len(rows) > 20
    assert [row for row in rows if f'"{row}"' not in asked] == []


def test_readme_names_commands_that_exist():
    named = re.findall(r"python3 dev\.py (\w+)", (ROOT / "README.md").read_text())
    known = re.search(r"^COMMANDS = (.*)$", (ROOT / "dev.py").read_text(), re.MULTILINE)

    assert {"demo", "test"} <= set(named)
    assert known
    assert all(f'"{command}"' in known[1] for command in named)


def test_every_test_that_a_page_relies_on_is_there():
    pages = [(DOCS / "explanation" / page).read_text() for page in ("guarantees.md", "leases.md", "failover.md")]
    named = found(r"`((?:\w+/)?test_\w+\.py)::(test_\w+)`", "".join(pages))

    assert len(named) > 15
    for file, test in named:
        folder = "tests" if "/" in file else "tests/faults"
        assert f"\ndef {test}(" in (ROOT / folder / file).read_text(), f"{file}::{test}"


def test_log_lines_are_quoted_as_workers_write_them():
    source = "".join(path.read_text() for path in (ROOT / "src/statemachine_fields/worker").glob("*.py"))
    logs = (DOCS / "howto/stuck.md").read_text().split("## Read the log")[1]
    rows = re.findall(r"^\| (?!---|It says).*\|$", logs, re.MULTILINE)
    lines = [row.split(" | ")[0].removeprefix("| ") for row in rows]

    assert len(lines) > 10
    for line in lines:
        # What differs from row to row is a gap in the page and in the code.
        for words in re.split(r"…|\d+|(?<=replaced:) |\bfirst\b|signal SIGKILL|\bclaimer\b", line):
            assert words.strip(" .,;:") in source, line


def test_the_picture_of_the_first_machine_is_what_the_library_draws():
    states = [("PENDING", "Pending"), ("PAID", "Paid"), ("SHIPPED", "Shipped"), ("CANCELLED", "Cancelled")]
    moves = {"PENDING": ["PAID", "CANCELLED"], "PAID": ["SHIPPED", "CANCELLED"]}

    drawn = draw(build_graph(states, "PENDING", moves, max_length=50), "svg")

    assert (DOCS / "_static" / "order-states.svg").read_text() == drawn
