#!/usr/bin/env python3
"""Test, check, try out and document the project, with nothing installed but Python.

usage: python3 dev.py COMMAND [arguments]

  test [pytest arguments]   run the suite on PostgreSQL, then on SQLite, and sum up both
  lint                      run ruff, mypy and pyright, all of them, and say which failed
  demo [arguments]          run the demo in testproject/; `demo --help` lists its arguments
  docs                      build the documentation into docs/_build/html

  python3 dev.py test
  python3 dev.py test tests/machine -k history -x

The first run makes a virtual environment in .venv and installs the project there with its development dependencies,
PostgreSQL among them. The demo needs none of them and has an environment of its own in .venv-demo, with Django alone.
Later runs start at once. To begin afresh, delete the environment.
"""

import sys

# Before anything that an older Python stumbles over; the file as a whole keeps to syntax that Python 3.6 can read.
if sys.version_info < (3, 11):
    sys.exit("dev.py needs Python 3.11 or newer, and this is {}.{}.".format(*sys.version_info))

import hashlib
import importlib.util
import os
import subprocess
import tempfile
import time
import venv
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent
DOCS = ROOT / "docs"
INTERPRETER = "Scripts/python.exe" if os.name == "nt" else "bin/python"
DEVELOPMENT = ROOT / ".venv"
DEMO = ROOT / ".venv-demo"
PYTHON = DEVELOPMENT / INTERPRETER

#: What the suite runs on: the value of SMF_DB (see tests/settings.py), and the name for people.
DATABASES = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}

#: More at a time than most machines for tests have cores, because tests of workers wait more than they compute. With
#: arguments of your own you see tests as they run.
WHOLE_SUITE = ["-n", "3", "--dist", "loadgroup"]

CHECKS = [
    ["ruff", "check"],
    ["ruff", "format", "--check"],
    ["mypy"],
    ["pyright", "--pythonpath", str(PYTHON)],
]


def main() -> int:
    """Run the command that the arguments name, and return its exit code."""
    command, *arguments = sys.argv[1:] or ["--help"]
    if command in ("-h", "--help", "help"):
        print((__doc__ or "").strip())
        return 0
    if command not in COMMANDS:
        print(f"dev.py has no command {command!r}. It has: {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    return COMMANDS[command](arguments)


def test(arguments: list[str]) -> int:
    """Run the suite once per database, on the second even if the first failed, and print one summary."""
    install("dev")
    results = {}
    for database, title in DATABASES.items():
        print(f"\n### {title}", flush=True)
        results[title] = Result.of_run(database, arguments or WHOLE_SUITE)
    print("\n### Summary")
    for title, result in results.items():
        print(f"{title:<12} {result.counts()} in {result.seconds:.1f} s{result.remark}")
    total = Result.total(list(results.values()))
    print(f"\n{total.counts()}", flush=True)
    return 1 if total.failed else 0


def lint(arguments: list[str]) -> int:
    """Run every check, the later ones even if an earlier one failed, and name those that failed."""
    install("dev")
    failed = []
    for check in CHECKS:
        name = " ".join(part for part in check if part not in ("--pythonpath", str(PYTHON)))
        print(f"\n### {name}", flush=True)
        if run("-m", *check, *arguments):
            failed.append(name)
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall checks passed")
    return 1 if failed else 0


def demo(arguments: list[str]) -> int:
    """Run the project's own demo command, on its SQLite database, with Django and nothing else."""
    install(environment=DEMO)
    command = [str(DEMO / INTERPRETER), "manage.py", "demo", *arguments]
    if os.name != "nt":
        # In our place, so that it alone hears Ctrl-C and other signals, and has the time to stop its worker.
        os.chdir(ROOT / "testproject")
        os.execv(command[0], command)  # noqa: S606 - a shell would only be in the way
    return subprocess.call(command, cwd=ROOT / "testproject")


def docs(arguments: list[str]) -> int:
    """Build the documentation. A warning, such as a link to nowhere, is an error."""
    install("dev", "docs")
    return run("-m", "sphinx", "-W", "--keep-going", "-b", "html", *arguments, DOCS, DOCS / "_build" / "html")


COMMANDS = {"test": test, "lint": lint, "demo": demo, "docs": docs}


class Result(NamedTuple):
    """How one run of the suite ended."""

    passed: int
    failed: int
    skipped: int
    seconds: float
    remark: str = ""

    @classmethod
    def of_run(cls, database: str, arguments: list[str]) -> "Result":
        """Run the suite and count. A run that breaks off without naming a failed test counts as one failure."""
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory, "report.xml")
            code = run("-m", "pytest", f"--junitxml={report}", *arguments, SMF_DB=database)
            suites = ET.parse(report).iter("testsuite") if report.exists() else ()
            counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
            for suite in suites:
                for key in counts:
                    counts[key] += int(suite.get(key, 0))
        failed = counts["failures"] + counts["errors"]
        passed = counts["tests"] - failed - counts["skipped"]
        remark = ""
        if code and not failed:
            failed, remark = 1, f" (no test failed, but pytest ended with exit code {code})"
        return cls(passed, failed, counts["skipped"], time.monotonic() - started, remark)

    @classmethod
    def total(cls, results: "list[Result]") -> "Result":
        """Add up several runs."""
        return cls(
            passed=sum(result.passed for result in results),
            failed=sum(result.failed for result in results),
            skipped=sum(result.skipped for result in results),
            seconds=sum(result.seconds for result in results),
        )

    def counts(self) -> str:
        """Say the numbers as one line."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> int:
    """Run Python of the virtual environment with these arguments, and return its exit code."""
    return subprocess.call([PYTHON, *command], cwd=cwd, env={**os.environ, **environment})


def install(*extras: str, environment: Path = DEVELOPMENT) -> None:
    """Make sure that an environment holds the project with these extras. It takes no time when nothing has changed.

    A stamp that is written last remembers what was installed, so a run that was interrupted is simply made good by
    the next one.
    """
    # The place belongs to it: in a copied or moved directory the environment still points at the old one.
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + bytes(ROOT)).hexdigest()
    stamps = {extra: environment / f".installed-{extra or 'project'}" for extra in extras or [""]}
    missing = [extra for extra, stamp in stamps.items() if not stamp.exists() or stamp.read_text() != wanted]
    if not missing and is_usable(environment):
        return
    if not is_usable(environment):
        create_environment(environment)
        missing = list(stamps)
    names = " and ".join(filter(None, missing))
    what = f"its {names} dependencies; this can take a minute" if names else "Django"
    print(f"Installing the project and {what}.", flush=True)
    project = f"{ROOT}[{','.join(missing)}]" if names else str(ROOT)
    pip = ["-m", "pip", "install", "--disable-pip-version-check", "-e", project]
    installed = subprocess.run(
        [environment / INTERPRETER, *pip], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if installed.returncode:
        sys.exit(f"{installed.stdout}\nThe installation failed; pip says above why. Run the same command to try again.")
    for extra in missing:
        stamps[extra].write_text(wanted)


def is_usable(environment: Path) -> bool:
    """Say whether an environment runs and has pip: its Python may be gone or replaced, or its making interrupted."""
    try:
        tried = subprocess.run([environment / INTERPRETER, "-c", "import pip"], capture_output=True, check=False)
    except OSError:
        return False
    return tried.returncode == 0


def create_environment(environment: Path) -> None:
    """Make an environment from the Python that runs this file, in the place of a broken one."""
    if importlib.util.find_spec("ensurepip") is None:
        sys.exit(
            "This Python cannot make virtual environments: its `ensurepip` module is missing. On Debian and Ubuntu, "
            "install it with `apt install python3-venv` and run the same command again."
        )
    print(f"Making a virtual environment in {environment.name}.", flush=True)
    try:
        venv.create(environment, clear=True, with_pip=True, symlinks=os.name != "nt")
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"The virtual environment could not be made: {error}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
