"""The settings of testproject on the database that `SMF_DB` names: postgresql (the default), sqlite or mariadb.

Importing this module starts the server. It happens here and not in conftest.py, because pytest-django reads the
settings before it reads any conftest.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from config.settings import *  # noqa: F403
from tests import database_url

SMF_DB = os.environ.get("SMF_DB") or "postgresql"

#: The two databases of one server; `other` is for tests of more than one database.
TEST_NAMES = {"default": "test_smf", "other": "test_smf_other"}


def databases() -> dict[str, dict[str, Any]]:
    """Return `DATABASES` for the server that `SMF_DB` names."""
    match SMF_DB:
        case "postgresql":
            from tests import postgres

            entry = postgres.database()
        case "mariadb":
            from tests import mariadb

            entry = mariadb.database()
        case "sqlite":
            return sqlite_databases()
        case unknown:
            raise ValueError(f"SMF_DB is {unknown!r}; it can be postgresql, sqlite or mariadb.")
    return {alias: {**entry, "TEST": {"NAME": name}} for alias, name in TEST_NAMES.items()}


def sqlite_databases() -> dict[str, dict[str, Any]]:
    """Return `DATABASES` of files: a database in memory is one connection, and tests with threads need several.

    A file that `DATABASE_URL` names is used as `default`, so that a process started by a test meets the test's rows.
    """
    directory = Path(tempfile.mkdtemp(prefix="smf-sqlite-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    project = DATABASES["default"]
    entries = {
        alias: {**project, "NAME": directory / f"{alias}.sqlite3", "TEST": {"NAME": directory / f"{name}.sqlite3"}}
        for alias, name in TEST_NAMES.items()
    }
    url = os.environ.get("DATABASE_URL", "")
    if database_url.engine_of(url) == project["ENGINE"]:
        entries["default"]["NAME"] = database_url.parse(url)["NAME"]
    return entries


#: What the admin has beside us, for tests/browser/test_neighbours.py: nothing, or the packages, and perhaps a theme.
SMF_ADMIN = os.environ.get("SMF_ADMIN", "")
if SMF_ADMIN:
    INSTALLED_APPS += ["neighbours", "import_export", "reversion", "simple_history"]  # noqa: F405
if SMF_ADMIN in ("jazzmin", "unfold"):
    INSTALLED_APPS.insert(0, SMF_ADMIN)
MIGRATION_MODULES = {"neighbours": None}
JAZZMIN_SETTINGS = {"use_google_fonts_cdn": False}

DATABASES = databases()
DEBUG = False
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
