"""Who else is concerned when a row is saved: what decides whether our own statement may stand for a `save()`."""

from __future__ import annotations

from django.db import models
from django.db.models.signals import post_init, post_save, pre_init, pre_save
from django.dispatch import Signal

from statemachine_fields.machine.updates import has_generated_fields


def is_heard(signal: Signal, model: type[models.Model]) -> bool:
    return bool(signal.receivers) and signal.has_listeners(model)


def has_receivers(model: type[models.Model]) -> bool:
    """Say whether somebody is told when an instance is saved."""
    return is_heard(pre_save, model) or is_heard(post_save, model)


def runs_user_code(model: type[models.Model]) -> bool:
    """Say whether saving an instance does anything that our own statement would not."""
    save_base = getattr(model.save_base, "__wrapped__", model.save_base)
    return (
        model.save is not models.Model.save
        or save_base is not models.Model.save_base
        or has_generated_fields(model)  # which Django may read back
        or has_receivers(model)
    )


def is_made_plainly(model: type[models.Model]) -> bool:
    """Say whether making an instance does nothing but fill it."""
    heard = is_heard(pre_init, model) or is_heard(post_init, model)
    return model.__init__ is models.Model.__init__ and not heard
