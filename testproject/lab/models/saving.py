"""Models for which a move is more than an UPDATE."""

from __future__ import annotations

from typing import Any

from django.db import models

from statemachine_fields import StateMachine

FLOW: dict[str, Any] = {
    "states": [("NEW", "New"), ("DONE", "Done"), ("FAILED", "Failed")],
    "initial": "NEW",
    "transitions": {"NEW": ["DONE", "FAILED"], "DONE": ["NEW"]},
}


class Stamped(models.Model):
    """An `auto_now` field, which every save refreshes."""

    name = models.CharField(max_length=20, default="")
    modified = models.DateTimeField(auto_now=True)
    states = StateMachine(**FLOW)


class Hooked(models.Model):
    """A `save()` of its own, which counts itself and refuses one state."""

    name = models.CharField(max_length=20, default="")
    saves = models.IntegerField(default=0)
    states = StateMachine(**FLOW)

    def save(self, *args: Any, update_fields: Any = None, **kwargs: Any) -> None:
        if self.states.current == "FAILED":
            raise ValueError("this model does not fail")
        self.saves += 1
        if update_fields is not None:
            update_fields = {*update_fields, "saves"}
        super().save(*args, update_fields=update_fields, **kwargs)


class Lazy(models.Model):
    """A `save()` that does nothing for rows which exist."""

    states = StateMachine(**FLOW)

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self._state.adding:
            super().save(*args, **kwargs)


class Audited(models.Model):
    """Tests connect receivers to it."""

    name = models.CharField(max_length=20, default="")
    states = StateMachine(**FLOW)


class Derived(models.Model):
    """A column that the database computes from the status."""

    states = StateMachine(**FLOW)
    is_open = models.GeneratedField(
        expression=models.Case(models.When(status="NEW", then=1), default=0),
        output_field=models.IntegerField(),
        db_persist=True,
    )
