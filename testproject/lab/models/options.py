"""The constructor's options."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth import get_user_model
from django.db import models

from statemachine_fields import StateMachine

STATES = [("NEW", "New"), ("DONE", "Done")]
FLOW: dict[str, Any] = {"states": STATES, "initial": "NEW", "transitions": {"NEW": ["DONE"], "DONE": ["NEW"]}}


class Kept(models.Model):
    """History survives the row."""

    states = StateMachine(**FLOW, history_on_delete=models.DO_NOTHING)


class Protected(models.Model):
    """History protects the row."""

    states = StateMachine(**FLOW, history_on_delete=models.PROTECT)


class Reason(models.Model):
    """Fields that join the audit table."""

    actor = models.ForeignKey(get_user_model(), null=True, on_delete=models.SET_NULL, related_name="+")
    reason = models.CharField(max_length=100, default="none given")

    class Meta:
        abstract = True


class Computed(models.Model):
    """Fields of the audit table that fill themselves, in Python and in the database."""

    uid = models.UUIDField(default=uuid.uuid4)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True


class Filled(models.Model):
    """One more that only the database fills."""

    source = models.CharField(max_length=10, db_default="web")

    class Meta:
        abstract = True


class Stamping(models.Model):
    states = StateMachine(**FLOW, transition_base=Computed)


class Defaulting(models.Model):
    states = StateMachine(**FLOW, transition_base=Filled)


class Reasoned(models.Model):
    states = StateMachine(**FLOW, transition_base=Reason)


class Logged(models.Model):
    """The first state is recorded too."""

    owner = models.ForeignKey(Kept, null=True, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=20, default="")
    states = StateMachine(**FLOW, record_initial=True)


class Unindexed(models.Model):
    states = StateMachine(**FLOW, db_index=False, max_length=8)
