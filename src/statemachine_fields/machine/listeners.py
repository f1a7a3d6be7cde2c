"""Who else is concerned when a row is saved: what decides whether our own statement may stand for a `save()`. And what
those are told who hear of moves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from inspect import getattr_static
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models.fields.related_descriptors import ForeignKeyDeferredAttribute
from django.db.models.query_utils import DeferredAttribute
from django.db.models.signals import post_init, post_save, pre_init, pre_save
from django.dispatch import Signal

from statemachine_fields.exceptions import ConcurrentTransition, DuplicateLiveRow, InvalidStateTransition
from statemachine_fields.machine.assignments import StatusAttribute
from statemachine_fields.machine.context import loaded
from statemachine_fields.machine.updates import auto_now_fields, has_generated_fields, is_refreshed_apart
from statemachine_fields.signals import post_transition, pre_transition, transition_committed, transition_rejected

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding


#: What is sent when an instance is saved, and when a row is moved.
SAVED = (pre_save, post_save)
MOVED = (pre_transition, post_transition, transition_committed)


def is_heard(signal: Signal, model: type[models.Model]) -> bool:
    return bool(signal.receivers) and signal.has_listeners(model)


def has_receivers(model: type[models.Model]) -> bool:
    """Say whether somebody is told when an instance is saved."""
    return is_heard(pre_save, model) or is_heard(post_save, model)


def has_own_save(model: type[models.Model]) -> bool:
    """Say whether `save()`, or what is below it, is not Django's."""
    save_base = getattr(model.save_base, "__wrapped__", model.save_base)
    return model.save is not models.Model.save or save_base is not models.Model.save_base


def needs_each_row(bound: Binding[Any], model: Any = None) -> bool:
    """Say whether moving rows in one statement would leave something out that moving each of them would do."""
    return next(reasons_for_each_row(bound, model), None) is not None


def reasons_for_each_row(bound: Binding[Any], model: Any = None) -> Iterator[str]:
    """Yield what would be left out, for people."""
    model = model or bound.model
    if has_receivers(model):
        yield f"receivers of pre_save or post_save ({_names_of(model, *SAVED)})"
    if has_receivers(bound.transition_model):
        yield f"receivers of pre_save or post_save of the audit model ({_names_of(bound.transition_model, *SAVED)})"
    if any(is_heard(signal, bound.model) for signal in MOVED):
        yield f"receivers of signals of transitions ({_names_of(bound.model, *MOVED)})"
    yield from lasting_reasons_for_each_row(bound, model)


def lasting_reasons_for_each_row(bound: Binding[Any], model: Any) -> Iterator[str]:
    """Yield those of the reasons that are in the class: receivers come and go."""
    if has_own_save(model):
        yield "its own save()"
    if has_generated_fields(model):
        yield "a generated field"
    if any(is_refreshed_apart(field, bound.model) for field in auto_now_fields(model)):
        yield "an auto_now field in another table, or with a way of its own to be written"
    if bound.machine.transition_base is not None:
        yield "transition_base"


def _names_of(model: type[models.Model], *signals: Signal) -> str:
    """Return who hears signals of a model, by where to find them."""
    found = [receiver for signal in signals for receivers in signal._live_receivers(model) for receiver in receivers]
    return ", ".join(dict.fromkeys(map(_dotted_name, found)))


def _dotted_name(receiver: Any) -> str:
    while hasattr(receiver, "func"):  # of functools.partial
        receiver = receiver.func
    named = receiver if hasattr(receiver, "__qualname__") else type(receiver)
    return f"{named.__module__}.{named.__qualname__}"


@cache
def has_plain_attributes(model: Any) -> bool:
    """Say whether assigning a field only stores the value."""
    plain = (DeferredAttribute, ForeignKeyDeferredAttribute, StatusAttribute)
    return all(type(getattr_static(model, field.attname)) in plain for field in model._meta.concrete_fields)


def is_made_plainly(model: type[models.Model]) -> bool:
    """Say whether making an instance does nothing but fill it."""
    heard = is_heard(pre_init, model) or is_heard(post_init, model)
    return is_made_by_django(model) and not heard


def is_made_by_django(model: type[models.Model]) -> bool:
    """Say whether a class leaves it to Django to make its instances. Each way may be patched at any time."""
    is_called_plainly = type(model).__call__ is type.__call__ and model.__new__ is object.__new__
    return is_called_plainly and model.__init__ is models.Model.__init__


def told(
    bound: Binding[Any],
    instance: models.Model,
    from_status: str | None,
    to_status: str,
    metadata: str,
    using: str,
) -> dict[str, Any]:
    """Return what every signal says."""
    return {
        "sender": bound.model,
        "machine": bound.face,
        "instance": instance,
        "from_status": from_status,
        "to_status": to_status,
        "metadata": loaded(metadata),
        "using": using,
    }


def tell_rejection(
    error: BaseException, bound: Binding[Any], instance: models.Model, to_status: str, metadata: str, using: str
) -> None:
    """Tell of a move that was refused, if that is what the error says."""
    if isinstance(error, InvalidStateTransition | ConcurrentTransition | DuplicateLiveRow):
        from_status = getattr(error, "from_status", None)
        facts = told(bound, instance, from_status, to_status, metadata, using)
        transition_rejected.send_robust(**facts, error=error)
