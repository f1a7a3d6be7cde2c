"""A throw-away Django project in a directory, run as a user runs theirs: files and `manage.py` in a process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from django.db import connection

from tests.patience import PATIENCE
from tests.settings import DATABASES, SMF_DB

#: Where the library is, if the tests are of another copy than the one that is installed.
SOURCES = [os.environ["SMF_SRC"]] if "SMF_SRC" in os.environ else []

SETTINGS = """
from pathlib import Path

SECRET_KEY = "scratch"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "statemachine_fields",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(__file__).with_name("db.sqlite3")}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
"""


class ScratchProject:
    """A project with one app, `shop`, on SQLite."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("settings.py", SETTINGS)
        self.write("shop/__init__.py", "")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())

    def read(self, pattern: str) -> str:
        return "".join(path.read_text() for path in sorted(self.root.glob(pattern)))

    @property
    def environment(self) -> dict[str, str]:
        """What its processes are started with."""
        paths = [str(self.root), *SOURCES]
        return {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": os.pathsep.join(paths)}

    def manage(self, *args: str, check: bool = True) -> str:
        """Run a command and return what it printed."""
        result = subprocess.run(
            [sys.executable, "-W", "error", "-m", "django", *args],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        output = result.stdout + result.stderr
        assert not check or result.returncode == 0, output
        return output


class ServedProject(ScratchProject):
    """A project on the database that the suite runs on, in a database of its own. Close it."""

    imports = ""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.name = f"smf_scratch_{os.getpid()}_{root.name}".replace("-", "_")
        if SMF_DB == "postgresql":
            entry = {**DATABASES["default"], "NAME": self.name, "TEST": {}}
            self.add_settings(f"DATABASES = {{'default': {entry!r}}}")
            self._on_server(f"CREATE DATABASE {self.name}")

    def add_settings(self, line: str) -> None:
        with (self.root / "settings.py").open("a") as file:
            file.write(f"{line}\n")

    def shell(self, code: str) -> str:
        """Run code and return what it printed."""
        return self.manage("shell", "-v0", "-c", self.imports + code).strip()

    def close(self) -> None:
        if SMF_DB == "postgresql":
            self._on_server(f"DROP DATABASE {self.name}")

    def _on_server(self, statement: str) -> None:
        with connection._nodb_cursor() as cursor:
            cursor.execute(statement)
