"""Settings of every process of the benchmarks. The environment says which database, and which way to prepare."""

from __future__ import annotations

import json
import os

from tests import database_url

SECRET_KEY = "not a secret"  # noqa: S105
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {"default": database_url.parse(os.environ["BENCHMARK_DATABASE"])}
DATABASES["default"]["OPTIONS"] = json.loads(os.environ.get("BENCHMARK_OPTIONS", "{}"))

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_fsm_log",
    "pgtrigger",
    "pghistory",
    "procrastinate.contrib.django",
    "statemachine_fields",
    "orders",
]

STATEMACHINE_FIELDS = {"PREPARE": json.loads(os.environ.get("BENCHMARK_PREPARE", '"auto"'))}
