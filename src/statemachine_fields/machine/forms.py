"""The form of a transition: what people fill in before a row moves, and what becomes of what they said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import QuerySet
from django.forms import BaseForm, BaseModelForm, FileField
from django.utils.module_loading import import_string

from statemachine_fields.machine.context import described

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.machine.graph import Transition


def form_class(transition: Transition) -> type[BaseForm] | None:
    """Return the form that a transition declares, if it does.

    :raises ImportError: there is nothing at its dotted path. `TypeError` if what is there is no form.
    """
    form = transition.form
    if form is None:
        return None
    found = import_string(form) if isinstance(form, str) else form
    if not (isinstance(found, type) and issubclass(found, BaseForm)):
        raise TypeError(f"{found!r} is not a form class.")
    return found


def writes_the_row(form: type[BaseForm] | BaseForm | None) -> bool:
    """Say whether a form is about fields of the row, so that guards have to be asked after it is filled in."""
    return issubclass(form if isinstance(form, type) else type(form), BaseModelForm)


def what_is_wrong(bound: Binding[Any], transition: Transition) -> str:
    """Return why the form of a transition cannot be used, or nothing."""
    try:
        form = form_class(transition)
    except (ImportError, TypeError) as error:
        return str(error)
    if form is None:
        return ""
    own: set[str] = set()
    if issubclass(form, BaseModelForm):
        form_of_rows: Any = form
        model = form_of_rows._meta.model
        if model is None or not (issubclass(bound.model, model) or issubclass(model, bound.model)):
            return f"{form.__qualname__} is a form of {model and model._meta.label}, not of {bound.model._meta.label}."
        own = {field.name for field in model._meta.concrete_fields}
    fields: dict[str, Any] = getattr(form, "base_fields", {})
    files = [name for name, field in fields.items() if isinstance(field, FileField) and name not in own]
    if files:
        return f"{form.__qualname__}.{files[0]} is a file, and only a field of the row can keep one."
    return ""


def arguments_of(bound: Binding[Any], form: BaseForm) -> dict[str, dict[str, Any]]:
    """Return what a valid form says, as arguments of `transition_to()`.

    Fields of the row are written with the move, as are the fields that `transition_base` added to the record. The rest is
    metadata, less what was left empty.
    """
    arguments: dict[str, dict[str, Any]] = {"update": {}, "record": {}, "metadata": {}}
    row: Any = form.instance if isinstance(form, BaseModelForm) else None
    meta = row._meta if row is not None else None
    own = {field.name for field in meta.concrete_fields} if meta else set()
    linked = {field.name for field in meta.many_to_many} if meta else set()
    for name, value in form.cleaned_data.items():
        if name in own:
            arguments["update"][name] = getattr(row, name)  # as the field takes it: a file may be cleared
        elif name in bound.record_fields:
            arguments["record"][name] = value
        elif name not in linked and value not in (None, ""):  # links to other rows are saved after the move
            many = isinstance(value, QuerySet)
            arguments["metadata"][name] = [described(each) for each in value] if many else described(value)
    return {name: values for name, values in arguments.items() if values}
