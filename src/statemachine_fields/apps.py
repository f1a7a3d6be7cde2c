"""The Django app: commands, checks, templates and translations."""

from __future__ import annotations

from django.apps import AppConfig


class StateMachineFieldsConfig(AppConfig):
    name = "statemachine_fields"
    verbose_name = "State machines"
