"""Run the suite on every supported pair of Python and Django.

nox                                    all pairs on PostgreSQL and SQLite, then the checks
nox -s "tests(py3.13-django6.1)"        one pair
nox -s tests -- tests/machine -x       with arguments for pytest
nox -s mariadb                         the suite on MariaDB
nox -s ways_in                         the pages for coming from other packages, with those packages
nox -s admin                           the admin in a browser, beside other packages and in other themes
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import nox

PAIRS = [
    ("3.11", "5.2"),
    ("3.12", "5.2"),
    ("3.12", "6.0"),
    ("3.12", "6.1"),
    ("3.13", "5.2"),
    ("3.13", "6.0"),
    ("3.13", "6.1"),
]

#: What workers do under fault, and those of two releases side by side, depends on processes, signals and PostgreSQL: `dev.py
#: test` shows it once for all pairs.
ONCE = ["--ignore=tests/faults", "--ignore=tests/worker/test_changing_machines.py"]
WHOLE_SUITE = ["-n", "3", "--dist", "loadgroup", *ONCE]

#: What the admin is tried beside, and the versions that the documentation speaks of.
NEIGHBOURS = [
    "django-import-export~=4.4",
    "django-jazzmin~=3.0.5",
    "django-reversion~=6.4",
    "django-simple-history~=3.13",
    "django-unfold~=0.91.0",
]

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["tests", "lint"]


def show_pyenv_interpreters() -> None:
    """Put the newest pyenv interpreter of each minor version on PATH.

    pyenv's own shims stand there for every version, but work only for those that `pyenv global` or `pyenv local` name.
    """
    home = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    versions = [
        (tuple(int(number) for number in directory.name.split(".")), str(directory / "bin"))
        for directory in home.glob("versions/*")
        if re.fullmatch(r"\d+\.\d+\.\d+", directory.name)
    ]
    newest = {version[:2]: directory for version, directory in sorted(versions)}
    wanted = [tuple(int(number) for number in python.split(".")) for python, _ in PAIRS]
    directories = [newest[minor] for minor in sorted(set(wanted)) if minor in newest]
    os.environ["PATH"] = os.pathsep.join([*directories, os.environ.get("PATH", "")])


show_pyenv_interpreters()


@nox.session
@nox.parametrize(("python", "django"), PAIRS, ids=[f"py{python}-django{django}" for python, django in PAIRS])
def tests(session: nox.Session, django: str) -> None:
    """Run the suite on PostgreSQL and on SQLite, or on the one that SMF_DB names."""
    session.install("-e", ".[test]", f"Django~={django}.0")
    only = os.environ.get("SMF_DB")
    for database in [only] if only else ["postgresql", "sqlite"]:
        session.run("pytest", *(session.posargs or WHOLE_SUITE), env={"SMF_DB": database})


@nox.session
@nox.parametrize(("python", "django"), [PAIRS[0], PAIRS[-1]], ids=["oldest", "newest"])
def admin(session: nox.Session, django: str) -> None:
    """Try the admin beside other packages, and in other themes. Their own warnings are not ours to mend."""
    session.install("-e", ".[test]", f"Django~={django}.0", *NEIGHBOURS)
    pictures = {"SMF_DB": "sqlite", "SMF_PICTURES": session.create_tmp()}
    session.run("pytest", "tests/browser/screenshots.py", env=pictures)
    for installed in ("packages", "unfold", "jazzmin"):
        environment = {"SMF_DB": "sqlite", "SMF_ADMIN": installed}
        session.run("pytest", "-W", "default", "tests/browser/test_neighbours.py", *session.posargs, env=environment)


@nox.session
def mariadb(session: nox.Session) -> None:
    """Run the suite on a MariaDB of this machine."""
    if not shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"):
        session.skip("no mariadbd on this machine; on Debian: apt install --no-install-recommends mariadb-server")
    session.install("-e", ".[test]")
    session.run("pytest", *(session.posargs or WHOLE_SUITE), env={"SMF_DB": "mariadb"})


@nox.session
def ways_in(session: nox.Session) -> None:
    """Follow the pages for people who come from another package, with that package installed."""
    session.install("-e", ".[test,ways-in]")
    for database in ["sqlite", "postgresql"]:  # most pages make a project on SQLite, one on PostgreSQL
        session.run("pytest", "tests/docs", "-k", "howto/from-", *session.posargs, env={"SMF_DB": database})


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Run ruff, mypy and pyright as dev.py does."""
    session.run("python3", "dev.py", "lint")
