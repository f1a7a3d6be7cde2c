"""What a bound machine adds to two of its model's own methods.

Both are wrapped on the concrete class that owns the columns, so an override in that class is inside the wrapper and
one in a proxy or child reaches it through `super()`. `inspect.unwrap()` finds what was there before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import wraps
from typing import Any

from django.db import models, router, transaction

from statemachine_fields.machine.fields import FIRST_RECORDS, StatusField


def hook_into(model: type[models.Model]) -> None:
    """Wrap the model's methods, once however many machines it has or inherits."""
    if not any(hasattr(vars(base).get("save_base"), "statemachine_hook") for base in model.__mro__):
        _hook_save(model)
        _hook_refresh(model)


def _hook_refresh(model: type[models.Model]) -> None:
    """Make `refresh_from_db()`, which loads by assignment, clear what the assignments left behind."""
    original = model.refresh_from_db

    @wraps(original)
    def refresh_from_db(self: models.Model, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        for field in _status_fields(self, kwargs.get("fields", args[1] if len(args) > 1 else None)):
            field.assignments.forget(self)

    model.refresh_from_db = refresh_from_db  # type: ignore[method-assign]


def _hook_save(model: type[models.Model]) -> None:
    """Make a save refuse a wrong status before it starts, and write the first record of a row it inserts.

    `save_base()` is the one door of `save()`, `create()` and `get_or_create()`. Fixtures go around it, as they should:
    they bring their own history. The columns would refuse too, but only inside Django's own guard, which takes any
    exception for a database error and breaks the caller's transaction.
    """
    original = model.save_base

    @wraps(original)
    def save_base(
        self: models.Model,
        raw: bool = False,
        force_insert: Any = False,
        force_update: bool = False,
        using: str | None = None,
        update_fields: Any = None,
    ) -> None:
        if not raw:
            for field in _status_fields(self, update_fields):
                field.refuse_wrong_status(self, inserting=bool(force_insert) or self.pk is None)
        recording = [] if raw else [field for field in _status_fields(self) if field.bound.machine.record_initial]
        if not recording:
            return original(self, raw, force_insert, force_update, using, update_fields)
        using = using or router.db_for_write(type(self), instance=self)
        inserted: set[str] = set()
        with transaction.atomic(using=using, savepoint=False):
            vars(self._state)[FIRST_RECORDS] = inserted
            try:
                original(self, raw, force_insert, force_update, using, update_fields)
            finally:
                del vars(self._state)[FIRST_RECORDS]
            for field in recording:
                if field.bound.names.sequence in inserted:
                    field.bound.record_first([self], using)
        return None

    save_base.alters_data = True  # type: ignore[attr-defined]
    save_base.statemachine_hook = True  # type: ignore[attr-defined]
    model.save_base = save_base  # type: ignore[method-assign]


def _status_fields(instance: models.Model, names: Collection[str] | None = None) -> Iterator[StatusField]:
    """Yield the status columns of the instance's machines, or those named."""
    for field in instance._meta.concrete_fields:
        if isinstance(field, StatusField) and hasattr(field, "bound") and (names is None or field.name in names):
            yield field
