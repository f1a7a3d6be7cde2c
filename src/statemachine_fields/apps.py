"""The Django app: commands, templates and style."""

from __future__ import annotations

from django.apps import AppConfig


class StateMachineFieldsConfig(AppConfig):
    name = "statemachine_fields"
    verbose_name = "State machines"
