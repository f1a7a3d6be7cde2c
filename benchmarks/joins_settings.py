"""Settings of every process of the joins benchmark. The environment says which database."""

from __future__ import annotations

import os

from tests import database_url

SECRET_KEY = "not a secret"  # noqa: S105
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": database_url.parse(os.environ["BENCHMARK_DATABASE"])}
INSTALLED_APPS = ["django.contrib.contenttypes", "statemachine_fields", "statemachine_fields.worker", "families"]
