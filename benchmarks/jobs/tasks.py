"""The job of django-tasks-db, which finds it by this module's name."""

from __future__ import annotations

import witness

try:
    from django.tasks import task
except ImportError:  # before Django 6.0
    from django_tasks import task


@task()
def nothing() -> None:
    witness.seen()
