"""The Django app: commands, templates and style."""

from __future__ import annotations

from django.apps import AppConfig

from statemachine_fields.machine import parents


class StateMachineFieldsConfig(AppConfig):
    name = "statemachine_fields"
    verbose_name = "State machines"

    def ready(self) -> None:
        if parents.waiting:
            from statemachine_fields.machine.relations import connect  # for those who need it

            connect()
