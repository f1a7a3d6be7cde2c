"""What a bound machine adds to some of its model's own methods.

They are wrapped on the concrete class that owns the columns, so an override in that class is inside the wrapper and
one in a proxy or child reaches it through `super()`. `inspect.unwrap()` finds what was there before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

from django.db import models, router, transaction

from statemachine_fields.db.columns import Written
from statemachine_fields.machine.fields import INSERTED, MachineColumn, StatusField

if TYPE_CHECKING:
    from statemachine_fields.machine.bound import BoundMachine


def hook_into(model: type[models.Model]) -> None:
    """Wrap the model's methods, once however many machines it has or inherits."""
    if not any(hasattr(vars(base).get("save_base"), "statemachine_hook") for base in model.__mro__):
        _hook_save(model)
        _hook_raw_save(model)
        _hook_refresh(model)


def _hook_refresh(model: type[models.Model]) -> None:
    """Make `refresh_from_db()`, which loads by assignment, clear what the assignments left behind."""
    original = model.refresh_from_db

    @wraps(original)
    def refresh_from_db(self: models.Model, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        for bound in _machines(self, kwargs.get("fields", args[1] if len(args) > 1 else None)):
            bound.field.assignments.forget(self)

    model.refresh_from_db = refresh_from_db  # type: ignore[method-assign]


def _hook_save(model: type[models.Model]) -> None:
    """Make a save refuse a wrong status before it starts, and see what became of the row: new, or there before.

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
        if raw:
            return original(self, raw, force_insert, force_update, using, update_fields)
        for bound in _machines(self, update_fields):
            bound.field.refuse_wrong_status(self, inserting=bool(force_insert) or self.pk is None)
        # An instance made by hand with a key of its own may turn out to be a row that exists.
        may_exist = self._state.adding and self.pk is not None and not force_insert
        watched = [bound for bound in _machines(self) if may_exist or bound.machine.record_initial]
        if not watched:
            return original(self, raw, force_insert, force_update, using, update_fields)
        using = using or router.db_for_write(type(self), instance=self)
        inserted: set[str] = set()
        with transaction.atomic(using=using, savepoint=may_exist):
            vars(self._state)[INSERTED] = inserted
            try:
                original(self, raw, force_insert, force_update, using, update_fields)
            finally:
                del vars(self._state)[INSERTED]
            for bound in watched:
                if bound.names.sequence not in inserted:
                    if may_exist:
                        bound.meet_existing_row(self, using)
                elif bound.machine.record_initial:
                    bound.record_first([_first_state(self, bound)], using)
        return None

    save_base.alters_data = True  # type: ignore[attr-defined]
    save_base.statemachine_hook = True  # type: ignore[attr-defined]
    model.save_base = save_base  # type: ignore[method-assign]


def _hook_raw_save(model: type[models.Model]) -> None:
    """Let fixtures copy the columns as they are.

    A raw save skips `pre_save()`, where values are marked as the machine's, and calls `Model.save_base()` itself, so
    this private method is the first of the model's own that it reaches.
    """
    original: Any = getattr(model, "_save_table")  # noqa: B009 - the stubs do not know it

    @wraps(original)
    def _save_table(self: models.Model, raw: bool = False, *args: Any, **kwargs: Any) -> Any:
        if not raw:
            return original(self, raw, *args, **kwargs)
        columns = [field.attname for field in self._meta.concrete_fields if isinstance(field, MachineColumn)]
        values = {name: vars(self)[name] for name in columns if name in vars(self)}
        vars(self).update({name: Written(value) for name, value in values.items() if not hasattr(value, "as_sql")})
        try:
            return original(self, raw, *args, **kwargs)
        finally:
            vars(self).update(values)

    setattr(model, "_save_table", _save_table)  # noqa: B010


def _first_state(instance: models.Model, bound: BoundMachine[Any]) -> tuple[Any, str, Any]:
    changed_at = getattr(instance, bound.names.changed_at)
    return bound.key_of(instance), getattr(instance, bound.names.status), changed_at


def _machines(instance: models.Model, names: Collection[str] | None = None) -> Iterator[BoundMachine[Any]]:
    """Yield the machines of the instance, or those whose status column is named."""
    for field in instance._meta.concrete_fields:
        if isinstance(field, StatusField) and field.bound is not None and (names is None or field.name in names):
            yield field.bound
