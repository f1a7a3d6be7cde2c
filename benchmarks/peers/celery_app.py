"""Celery's command imports this: the tasks, once Django is set up."""

import django

django.setup()

from compared.tasks import celery  # noqa: E402

__all__ = ["celery"]
