"""Settings of every process of the drain benchmark. The environment says which database."""

from __future__ import annotations

import importlib.util
import os

from tests import database_url

SECRET_KEY = "not a secret"  # noqa: S105
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {"default": database_url.parse(os.environ["BENCHMARK_DATABASE"])}
# django-tasks-db closes old connections after every job, and by default every connection is old at once.
DATABASES["default"]["CONN_MAX_AGE"] = None

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_tasks_db",
    "statemachine_fields",
    "jobs",
]
if importlib.util.find_spec("statemachine_fields.worker"):
    INSTALLED_APPS.append("statemachine_fields.worker")

TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
