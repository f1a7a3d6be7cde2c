"""The Django app: the worker's commands, and the table of its run statistics."""

from __future__ import annotations

from django.apps import AppConfig


class WorkerConfig(AppConfig):
    name = "statemachine_fields.worker"
    label = "statemachine_worker"
    verbose_name = "State machine worker"
    default_auto_field = "django.db.models.BigAutoField"
