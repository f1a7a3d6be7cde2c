"""A project with every peer in it. The environment says which database, and where Celery keeps its messages."""

from __future__ import annotations

import os

from tests import database_url

SECRET_KEY = "not a secret"  # noqa: S105
USE_TZ = True
ALLOWED_HOSTS = ["testserver"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": database_url.parse(os.environ["PEERS_DATABASE"])}
IS_POSTGRESQL = DATABASES["default"]["ENGINE"].endswith("postgresql")

INSTALLED_APPS = [
    *(["pghistory.admin"] if IS_POSTGRESQL else []),  # before the admin, whose templates it extends
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_fsm",
    "django_fsm_log",
    "viewflow",
    "simple_history",
    "statemachine_fields",
    "statemachine_fields.worker",
    "django_celery_beat",
    *(["pgtrigger", "pghistory"] if IS_POSTGRESQL else []),
    *(["procrastinate.contrib.django"] if IS_POSTGRESQL or os.environ.get("PEERS_PROCRASTINATE") else []),
    "compared",
]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "urls"
STATIC_URL = "static/"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
# How long each holds a row whose worker is gone. The usual half minute and more would make the tables wait.
STATEMACHINE_FIELDS = {"LEASE_SECONDS": 10}
STATOR_TASK_DEADLINE = 5
