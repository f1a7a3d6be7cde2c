"""A model with all that people hang on a transition."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from statemachine_fields import Blocker, StateMachine, Transition


def is_author(document: Document, user: Any) -> bool:
    return bool(document.author == user.get_username())


class Document(models.Model):
    """Guards with and without reasons, permissions by name and by function, labels on moves."""

    author = models.CharField(max_length=30, default="ada")
    words = models.IntegerField(default=0)
    approved = models.BooleanField(default=True)

    states = StateMachine(
        states=[("DRAFT", "Draft"), ("REVIEW", "In review"), ("PUBLISHED", "Published"), ("WITHDRAWN", "Withdrawn")],
        initial="DRAFT",
        transitions={
            "DRAFT": [Transition("REVIEW", label=_("Submit"), permission=is_author), "WITHDRAWN"],
            "REVIEW": [Transition("PUBLISHED", permission="lab.view_document"), "DRAFT"],
        },
    )

    @states.guard(to=["REVIEW", "PUBLISHED"])
    def has_text(self) -> str | None:
        return None if self.words else "There is no text."

    @states.guard(to="PUBLISHED")
    def is_approved(self) -> bool:
        return self.approved

    @states.guard()
    def is_not_frozen(self) -> Blocker | bool:
        return Blocker("frozen", "The document is frozen.", {"words": self.words}) if self.words > 9000 else True


class Memo(Document):
    """A proxy that overrides a guard like any method."""

    class Meta:
        proxy = True

    def has_text(self) -> str | None:
        return None
