"""Settings of the index benchmark: a database for each set of indexes, all on the server that the environment names."""

from __future__ import annotations

import os

from tests import database_url

SECRET_KEY = "not a secret"  # noqa: S105
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

_PLACE = database_url.parse(os.environ["BENCHMARK_DATABASE"])
DATABASES = {
    "default": _PLACE,
    **{name: {**_PLACE, "NAME": name} for name in os.environ["BENCHMARK_COPIES"].split()},
}

INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "statemachine_fields", "indexed"]
