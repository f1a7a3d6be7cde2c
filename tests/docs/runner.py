"""Do what a page says, as its reader would: in a directory of its own, with files and processes."""

from __future__ import annotations

import ast
import doctest
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

from tests.docs.pages import DOCS, ROOT, Page, Step, read_page
from tests.patience import PATIENCE
from tests.scratch import ScratchProject, ServedProject

MANAGE = """
import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
execute_from_command_line(sys.argv)
"""

#: Programs that a page may run, without a shell in between.
PROGRAMS = {"python": [sys.executable], "django-admin": [sys.executable, "-m", "django"]}


class Library:
    """Follow pages, each once and several at a time, and keep what they leave behind for those that continue them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.followed: dict[Path, Future[Reader]] = {}
        self.served: list[ServedProject] = []
        self.pool = ThreadPoolExecutor(os.cpu_count())  # a reader mostly waits for processes

    def follow(self, path: Path) -> Future[Reader]:
        """Begin to follow a page, if nobody has; the result is the reader who came to its end."""
        if path not in self.followed:
            page = read_page(path)
            # The page before goes into the queue first, so that whoever waits for it waits for one who is at work.
            before = self.follow(DOCS / page.continues) if page.continues else None
            self.followed[path] = self.pool.submit(self._follow, page, before)
        return self.followed[path]

    def _follow(self, page: Page, before: Future[Reader] | None) -> Reader:
        home = self.directory / page.name.replace("/", "-").removesuffix(".md")
        place = home
        if before is not None:
            previous = before.result()
            shutil.copytree(previous.home, home)
            place = home / previous.place.relative_to(previous.home)
        elif page.in_project:
            self._make_project(page, home).write("manage.py", MANAGE)
            (home / "shop/migrations").mkdir()
            (home / "shop/migrations/__init__.py").touch()
        else:
            home.mkdir()
        reader = Reader(home, place)
        reader.follow(page)
        return reader

    def _make_project(self, page: Page, home: Path) -> ScratchProject:
        if page.database == "sqlite":
            return ScratchProject(home)
        self.served.append(ServedProject(home))
        return self.served[-1]

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)
        for project in self.served:
            project.close()


class Reader:
    """Someone who does what a page says: `home` is where they began, `place` the directory they are in."""

    def __init__(self, home: Path, place: Path) -> None:
        self.home = home
        self.place = place

    def follow(self, page: Page) -> None:
        """Take the steps of a page in order; raise AssertionError at the first that does not go as it says."""
        compile_examples(page)
        steps = [step for step in page.steps if step.file or step.kind in ("console", "pycon")]
        for kind, group in groupby((step for step in steps if "not run" not in step.remarks), lambda step: step.kind):
            if kind == "pycon":
                self._type(page, list(group))
            else:
                for step in group:
                    self._run(page, step) if kind == "console" else self._write(step)

    def _write(self, step: Step) -> None:
        path = self.place / step.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(merged(path.read_text(), step.text) if "merge" in step.remarks else step.text)

    def _run(self, page: Page, step: Step) -> None:
        answers = step.remarks["answers"].split(", ") if "answers" in step.remarks else []
        for command, expected in commands(step.text):
            program, *arguments = shlex.split(command)
            if program == "cd":
                self.place = (self.place / arguments[0]).resolve(strict=True)
                continue
            result = self._start_process([*PROGRAMS[program], *arguments], "".join(f"{answer}\n" for answer in answers))
            shown = with_answers(result.stdout, answers)
            where = f"{page.name}:{step.line + 1}: $ {command}\n"
            assert result.returncode == int(step.remarks.get("exits", 0)), where + shown
            assert matches(expected, shown), f"{where}expected\n{expected}\ngot\n{shown}"

    def _type(self, page: Page, steps: list[Step]) -> None:
        """Run lines of a shell in one process, at the line numbers that they have in the page."""
        script: list[str] = []
        for step in steps:
            script += [""] * (step.line - len(script)) + step.text.split("\n")
        path = self.home.with_suffix(".shell")
        path.write_text("\n".join(script))
        code = f"from tests.docs.shell import run; run({str(path)!r}, {page.name!r}, globals())"
        result = self._start_process([sys.executable, "manage.py", "shell", "-v0", "-c", code])
        assert result.returncode == 0, result.stdout

    def _start_process(self, command: list[str], answers: str = "") -> subprocess.CompletedProcess[str]:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "error"}
        environment.pop("DJANGO_SETTINGS_MODULE", None)  # pytest-django sets it for itself
        return subprocess.run(
            command,
            cwd=self.place,
            env=environment,
            input=answers,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE,
        )


def compile_examples(page: Page) -> None:
    """Raise SyntaxError for Python that is none."""
    for step in page.steps:
        if step.kind == "python":
            compile(step.text, f"{page.name}:{step.line}", "exec")


def with_answers(output: str, answers: list[str]) -> str:
    """Return what a terminal shows of a dialogue: the answers too, which are not part of the output."""
    first, *rest = output.split("[y/N] ", len(answers))
    return first + "".join(f"[y/N] {answer}\n{text}" for answer, text in zip(answers, rest, strict=False))


def matches(expected: str, output: str) -> bool:
    """Say whether a command printed what the page shows, or the page shows nothing."""
    checker = doctest.OutputChecker()
    return not expected or checker.check_output(expected + "\n", output.rstrip("\n") + "\n", doctest.ELLIPSIS)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a console block, and what it is said to print."""
    for part in f"\n{text}".split("\n$ ")[1:]:
        command, _, expected = part.partition("\n")
        while command.endswith("\\"):
            more, _, expected = expected.partition("\n")
            command = command[:-1] + more
        yield command, expected.rstrip("\n")


def merged(old: str, new: str) -> str:
    """Return a module in which the statements of another one stand in for those of the same name."""
    lines = old.splitlines()
    places = {name_of(node): node for node in ast.parse(old).body}
    edits: list[tuple[int, int, list[str]]] = []
    for node in ast.parse(new).body:
        text = (ast.get_source_segment(new, node) or "").splitlines()
        decorators = getattr(node, "decorator_list", [])
        if decorators:
            text = new.splitlines()[decorators[0].lineno - 1 : node.end_lineno]
        if isinstance(node, ast.Import | ast.ImportFrom):
            edits += [] if text[0] in lines else [(0, 0, text)]
        elif there := places.get(name_of(node)):
            first = min([there.lineno, *(item.lineno for item in getattr(there, "decorator_list", []))])
            edits.append((first - 1, there.end_lineno or first, text))
        else:
            edits.append((len(lines), len(lines), ["", *text]))
    for first, last, text in sorted(edits, key=lambda edit: edit[0])[::-1]:  # from the end, where nothing has moved yet
        lines[first:last] = text
    return "\n".join(lines) + "\n"


def name_of(node: ast.stmt) -> str:
    """Return what a statement of a module defines, or its text if it defines nothing."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return getattr(node, "name", "") or ast.unparse(node)
