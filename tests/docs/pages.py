"""Read a Markdown page as the steps that its reader takes.

What a block does follows from its language:

    python    with a first line such as `# shop/models.py`: the file to write. Otherwise it has to compile.
    console   each line after `$ ` is run in the project, and the lines below it are what it has to print.
    pycon     is typed into `manage.py shell`. Blocks that follow each other are one shell.

`...` in an output stands for anything. Comments, which readers do not see, say the rest:

    <!-- test: project -->                          the page starts in a project with an app called `shop`
    <!-- test: project on postgresql -->            such a project on PostgreSQL, where others are on SQLite
    <!-- test: needs simple_history -->             the page is followed where these modules are installed
    <!-- test: continues tutorial/first-machine.md -->   the page starts where another one ended
    <!-- test: merge -->                            the next block replaces what has the same name in its file
    <!-- test: answers y, n -->                     what is typed when the next block asks
    <!-- test: exits 1 -->                          the next block's command fails
    <!-- test: not run: it starts a server -->      the next block is for people
    <!-- test: also >>> ... -->                     more lines for the shell
    <!-- test: run python manage.py migrate -->     a command more
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[^\n`]*)$")
COMMENT = re.compile(r"<!-- test: (?P<text>.*?)\s*-->", re.DOTALL)
FILE_NAME = re.compile(r"# (?P<name>[\w./-]+\.\w+)\n")
REMARKS = ("merge", "answers", "exits", "not run")


@dataclass(frozen=True)
class Step:
    """One thing the reader does: `line` is where its text starts in the page, counted from 0."""

    kind: str
    text: str
    line: int
    remarks: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The file that a block of Python is, or nothing."""
        found = FILE_NAME.match(self.text)
        return found["name"] if found else ""


@dataclass(frozen=True)
class Page:
    """A page, what it starts from if not from an empty directory, and its steps in order.

    `database` is what its project is on, and `needs` are modules of other packages.
    """

    path: Path
    in_project: bool
    database: str
    needs: tuple[str, ...]
    continues: str
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(DOCS if self.path.is_relative_to(DOCS) else ROOT))


def all_pages() -> list[Path]:
    """Return every page that has examples: the README and the documentation."""
    return [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)]


def read_page(path: Path) -> Page:
    """Return a page as steps; raise ValueError for a comment that nobody understands."""
    in_project, database, continues = False, "sqlite", ""
    needs: tuple[str, ...] = ()
    steps: list[Step] = []
    remarks: dict[str, str] = {}
    for kind, text, line in _parts(path.read_text().split("\n")):
        if kind != "comment":
            steps.append(Step(kind, text, line, remarks))
            remarks = {}
        elif text in ("project", "project on postgresql"):
            in_project = True
            database = text.removeprefix("project on ") if " on " in text else database
        elif text.startswith("needs "):
            needs = tuple(text.removeprefix("needs ").split())
        elif text.startswith("continues "):
            continues = text.removeprefix("continues ")
        elif text.startswith("also"):
            steps.append(Step("pycon", text.removeprefix("also"), line))
        elif text.startswith("run "):
            steps.append(Step("console", f"$ {text.removeprefix('run ')}", line))
        elif remark := next((word for word in REMARKS if text.startswith(word)), None):
            remarks[remark] = text.removeprefix(remark).strip(": ")
        else:
            raise ValueError(f"{path.name}:{line + 1}: no such comment for tests: {text!r}")
    return Page(path, in_project, database, needs, continues, tuple(steps))


def _parts(lines: list[str]) -> Iterator[tuple[str, str, int]]:
    """Yield the blocks of code and the comments for tests, each with the line its text starts at."""
    number = 0
    while number < len(lines):
        start = number
        if fence := FENCE.match(lines[number]):
            number += 1
            while lines[number].strip() != fence["fence"]:
                number += 1
            body = [line.removeprefix(fence["indent"]) + "\n" for line in lines[start + 1 : number]]
            yield fence["language"].strip(), "".join(body), start + 1
        elif lines[number].startswith("<!-- test: "):
            while "-->" not in lines[number]:
                number += 1
            if comment := COMMENT.match("\n".join(lines[start : number + 1])):
                yield "comment", comment["text"], start
        number += 1
