"""What a bound machine adds to some of its model's own methods.

They are wrapped on the concrete class that owns the columns, so an override in that class is inside the wrapper and
one in a proxy or child reaches it through `super()`. `__wrapped__` is what was there before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

from django.db import connections, models, router, transaction

from statemachine_fields.db.expressions import MachineValue
from statemachine_fields.db.fields import INSERTED
from statemachine_fields.db.inserts import join_call
from statemachine_fields.db.rows import all_rows
from statemachine_fields.machine import parents
from statemachine_fields.machine.initial_records import newest_records
from statemachine_fields.schedule.columns import given_time
from statemachine_fields.schedule.wakeups import seconds_until, wake

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding


def hook_into(model: type[models.Model]) -> None:
    """Wrap the model's methods, once however many machines it has or inherits."""
    if not any(hasattr(vars(base).get("save_base"), "statemachine_hook") for base in model.__mro__):
        _hook_save(model)
        _hook_save_table(model)
        _hook_refresh(model)
        _hook_bulk_create(model)


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
    """Make a save refuse a wrong status before it starts, and give it a transaction where it writes more than the row.

    `save_base()` is the one door of `save()`, `create()` and `get_or_create()`. The columns would refuse too, but only
    inside Django's own guard, which takes any exception for a database error and breaks the caller's transaction.
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
            inserting = bool(force_insert) or self.pk is None
            for bound in _machines(self, update_fields):
                bound.field.refuse_wrong_status(self, inserting=inserting)
                if bound.is_timed and (inserting or self._state.adding):
                    given_time(bound, self)
        may_exist = _may_exist(self, type(self), force_insert)
        writes_more = may_exist or any(bound.machine.record_initial or bound.keeps_history for bound in _machines(self))
        if raw or not writes_more:
            return original(self, raw, force_insert, force_update, using, update_fields)
        using = using or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using, savepoint=may_exist):
            return original(self, raw, force_insert, force_update, using, update_fields)

    save_base.alters_data = True  # type: ignore[attr-defined]
    save_base.statemachine_hook = True  # type: ignore[attr-defined]
    model.save_base = save_base  # type: ignore[method-assign]


def _hook_save_table(model: type[models.Model]) -> None:
    """See what becomes of the row: new, there before, or copied from a fixture.

    `_save_table()` is private, and the one place between the INSERT and `post_save`, whose receivers may move the row
    on. Fixtures reach it without `save_base()` of the model's own.
    """
    original: Any = getattr(model, "_save_table")  # noqa: B009 - the stubs do not know it

    @wraps(original)
    def _save_table(
        self: models.Model,
        raw: bool = False,
        cls: type[models.Model] | None = None,
        force_insert: Any = False,
        force_update: bool = False,
        using: str | None = None,
        update_fields: Any = None,
    ) -> Any:
        table = cls or type(self)
        using = using or router.db_for_write(type(self), instance=self)
        if raw:
            from statemachine_fields.machine.raw import RawSave

            ours = [bound for bound in _machines(self) if bound.model is table]
            return RawSave(self, ours, using, update_fields).run(
                lambda: original(self, raw, cls, force_insert, force_update, using, update_fields)
            )
        may_exist = _may_exist(self, table, force_insert)
        has_key = getattr(self, table._meta.pk.attname) is not None
        state = vars(self._state)
        outer, state[INSERTED] = state.get(INSERTED), set()
        try:
            updated = original(self, raw, cls, force_insert, force_update, using, update_fields)
            inserted = state[INSERTED]
        finally:
            state[INSERTED] = outer
            if outer is None:
                del state[INSERTED]
        for bound in _machines(self):
            if bound.model is table:
                if bound.names.sequence in inserted:
                    _record_beginning(self, bound, using, has_key)
                    _wake(self, bound, using)
                    if parents.waiting and bound.joins_as_child != ():
                        parents.row_moved(bound, connections[using], getattr(self, bound.names.status), self)
                elif may_exist:
                    bound.sync_with_row(self, using)
        return updated

    setattr(model, "_save_table", _save_table)  # noqa: B010


def _hook_bulk_create(model: type[models.Model]) -> None:
    """See which instances one `bulk_create()` inserts, so that they share a time.

    The method is private, and the one that `bulk_create()` calls of each instance, before it writes any.
    """
    original: Any = getattr(model, "_prepare_related_fields_for_save")  # noqa: B009 - the stubs do not know it

    @wraps(original)
    def _prepare_related_fields_for_save(self: models.Model, operation_name: str, *args: Any, **kwargs: Any) -> Any:
        if operation_name == "bulk_create":
            join_call(self)
        return original(self, operation_name, *args, **kwargs)

    setattr(model, "_prepare_related_fields_for_save", _prepare_related_fields_for_save)  # noqa: B010


def _may_exist(instance: models.Model, table: type[models.Model], force_insert: Any) -> bool:
    """Say whether an instance made by hand, with a key of its own, may turn out to be a row that exists."""
    return instance._state.adding and not force_insert and getattr(instance, table._meta.pk.attname) is not None


def _record_beginning(instance: models.Model, bound: Binding[Any], using: str, has_key: bool) -> None:
    """Write the record with which a new row begins, if it is to have one, or if its key has the history of another.

    A key that the database has made was hardly ever used before. If it was, the first move finds out.
    """
    names, key, number = bound.names, bound.key_of(instance), int(bound.machine.record_initial)
    if bound.keeps_history and (has_key or number) and (kept := newest_records(bound, [key], using)):
        number = max(kept.values()) + 1
        all_rows(bound.model, using).filter(pk=key).update(**{names.sequence: MachineValue(number)})
        vars(instance)[names.sequence] = number
    if number:
        first = (key, getattr(instance, names.status), getattr(instance, names.changed_at))
        bound.record_first([first], using, number)


def _wake(instance: models.Model, bound: Binding[Any], using: str) -> None:
    """Tell workers of a new row that is due, or will be soon."""
    if not bound.is_timed:
        return
    names, data = bound.names, vars(instance)
    status = getattr(instance, names.status)
    seconds = seconds_until(data[names.next_at]) if data[names.next_at_pinned] else bound.entry_delay(status)
    wake(bound, connections[using], status, seconds, vars(instance).get(bound.queue_name))


def _machines(instance: models.Model, names: Collection[str] | None = None) -> Iterator[Binding[Any]]:
    """Yield the machines of the instance, or those whose status column is named."""
    for field in instance._meta.concrete_fields:
        bound: Binding[Any] | None = getattr(field, "bound", None)
        if bound is not None and bound.field is field and (names is None or field.name in names):
            yield bound
