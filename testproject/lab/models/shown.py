"""What the admin has to show: labels with markup, permissions, guards, questions and forms."""

from __future__ import annotations

from typing import Any

from django.db import models

from statemachine_fields import StateMachine, Transition


def is_own_team(dossier: Dossier, user: Any) -> bool:
    return bool(dossier.team == user.get_username())


class Dossier(models.Model):
    """Moves of every kind that the admin knows."""

    title = models.CharField(max_length=100, default="A dossier")
    team = models.CharField(max_length=100, default="", blank=True)
    seal = models.CharField(max_length=20, default="", blank=True)
    status: str

    states = StateMachine(
        states=[
            ("OPEN", "Open"),
            ("CHECK", '<b>Check</b> & "quotes" 100%'),
            ("DONE", "Done"),
            ("LOST", "Lost"),
            ("GONE", "Gone"),
        ],
        initial="OPEN",
        transitions={
            "OPEN": [
                "CHECK",
                Transition("LOST", label="Give up", permission="lab.lose_dossier", confirm=True),
                Transition("DONE", label="Seal", form="lab.forms.SealForm"),
                Transition("GONE", permission=is_own_team),
            ],
            "CHECK": [Transition("CHECK", label="Look again"), "DONE", Transition("LOST", form="lab.forms.LossForm")],
            "LOST": ["OPEN"],
        },
    )

    class Meta:
        permissions = [("lose_dossier", "Can give a dossier up")]

    def __str__(self) -> str:
        return self.title

    @states.guard(to="DONE")
    def has_seal(self) -> bool | str:
        return bool(self.seal) or "It has no seal."
