"""Saves of rows that have a live key: a duplicate is a `DuplicateLiveRow`, and the caller's transaction goes on.

An INSERT on PostgreSQL leaves the row out if its key is taken, which is no error and costs no savepoint. Whoever is left out
looks for the row that was in the way. It may have ended by then, and then the key is free, so it goes on in turns, a bounded
number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, connections, models, router, transaction

from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.db.live_keys import InsertUnlessTaken, add_constraint, is_violation, quoted
from statemachine_fields.exceptions import DuplicateLiveRow
from statemachine_fields.machine.live_keys import MOST_TURNS, BoundKey, LiveKey, wrong_fields
from statemachine_fields.schedule.policy import plain

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

#: In the state of an instance, while it is saved: the `KeyedSave`.
SAVE = "statemachine_keyed_save"


def bind_key(bound: Binding[Any], key: LiveKey) -> None:
    """Give the class of a machine the constraint, and all that goes with it, unless it cannot have that key: a check says so."""
    if not wrong_fields(bound.model, key, bound.columns):
        bound.key = BoundKey(bound, key)
        add_constraint(bound.model, bound.key.constraint)
        hook_keys(bound.model)


class KeyedSave:
    """One `save()` of a row that has keys."""

    def __init__(self, instance: models.Model, keys: list[BoundKey[Any]], using: str) -> None:
        self.instance = instance
        self.keys = keys
        self.using = using
        #: What was raised in place of an INSERT that would have met the constraint.
        self.refused: DuplicateLiveRow | None = None

    def run(self, save: Callable[[], None], inserting: bool) -> None:
        """Save, and leave the transaction usable if a key is taken."""
        connection, state = connections[self.using], vars(self.instance._state)
        # One statement, which writes the row or nothing. Else it takes a savepoint.
        is_alone = inserting and len(self.keys) == 1 and not self.keys[0].model._meta.parents
        is_alone = is_alone and self.instance._meta.concrete_model is self.keys[0].model
        within = connection.in_atomic_block and not is_alone
        outer, state[SAVE] = state.get(SAVE), self
        try:
            with transaction.atomic(using=self.using) if within else nullcontext():
                save()
        except IntegrityError as error:
            if error is self.refused:
                # Django takes any exception in a save for an error of the database, after which nothing could be sent.
                if connection.in_atomic_block:
                    connection.set_rollback(False)
                raise
            for key in self.keys:
                if (refusal := key.refusal(self.instance, error, self.using)) is not None:
                    raise refusal from error
            raise
        finally:
            state[SAVE] = outer
            if outer is None:
                del state[SAVE]

    def insert(self, key: BoundKey[Any], manager: Any, insert: Callable[[Any], Any]) -> Any:
        """Insert the row by way of such a manager, or raise `DuplicateLiveRow`."""
        if clause := self._clause(key):
            manager = InsertUnlessTaken(manager, clause)
        facts: dict[str, Any] = {}
        holder = None
        for _turn in range(MOST_TURNS):
            try:
                inserted = insert(manager)
            except IntegrityError as error:
                if clause or not is_violation(error, key.model, key.constraint):
                    raise
                inserted = None  # without a clause an error undoes its statement, and no more
            if inserted is not None:
                return inserted
            facts = key.facts_of(self.instance)
            holder = key.holder(facts, None, self.using)
            if holder is not None:
                break
        self.refused = key.error(self.instance, facts, holder)
        raise self.refused

    def _clause(self, key: BoundKey[Any]) -> str:
        """Return what an INSERT says so that it leaves the row out if its key is taken; nothing if it cannot be."""
        bound, connection = key.bound, connections[self.using]
        status = plain(getattr(self.instance, bound.names.status))
        if not key.is_kept_in(status):
            return ""
        kind = (type(connection), status)
        if kind not in key.clauses:
            quote = connection.ops.quote_name
            # The state of the new row, and not the condition of the index, which follows from it: so code and constraint may be
            # of different releases.
            where = f"{quote(str(bound.field.column))} = {quoted(status, connection)}"
            columns = [quote(field.column) for field in key.fields]
            key.clauses[kind] = dialect_for(connection).unless_taken(columns, where)
        return key.clauses[kind]


def hook_keys(model: type[models.Model]) -> None:
    """Wrap the methods of a class that insert and update its rows, once for all keys that it has or inherits."""
    if hasattr(model.save_base, "statemachine_keys"):
        return
    save_original: Any = model.save_base
    insert_original: Any = getattr(model, "_do_insert")  # noqa: B009 - the stubs do not know it

    @wraps(save_original)
    def save_base(
        self: models.Model,
        raw: bool = False,
        force_insert: Any = False,
        force_update: bool = False,
        using: str | None = None,
        update_fields: Any = None,
    ) -> None:
        keys = [] if raw else _keys_of(self, update_fields)
        if not keys:
            return save_original(self, raw, force_insert, force_update, using, update_fields)  # type: ignore[no-any-return]
        alias = using or router.db_for_write(type(self), instance=self)
        inserting = bool(force_insert) or self.pk is None
        return KeyedSave(self, keys, alias).run(
            lambda: save_original(self, raw, force_insert, force_update, alias, update_fields), inserting
        )

    @wraps(insert_original)
    def _do_insert(self: models.Model, manager: Any, using: str, fields: Any, returning_fields: Any, raw: bool) -> Any:
        save: KeyedSave | None = vars(self._state).get(SAVE)
        keys = [] if save is None else [key for key in save.keys if key.model is manager.model]
        if save is None or raw or len(keys) != 1:
            return insert_original(self, manager, using, fields, returning_fields, raw)
        return save.insert(
            keys[0], manager, lambda manager: insert_original(self, manager, using, fields, returning_fields, raw)
        )

    save_base.alters_data = True  # type: ignore[attr-defined]
    save_base.statemachine_keys = True  # type: ignore[attr-defined]
    # What was there before any of us.
    save_base.__wrapped__ = getattr(save_original, "__wrapped__", save_original)
    model.save_base = save_base  # type: ignore[method-assign]
    setattr(model, "_do_insert", _do_insert)  # noqa: B010


def _keys_of(instance: models.Model, names: Iterable[str] | None) -> list[BoundKey[Any]]:
    """Return the keys that a save of these fields writes."""
    bounds = [getattr(field, "bound", None) for field in instance._meta.concrete_fields]
    keys = [bound.key for bound in dict.fromkeys(bounds) if bound is not None and bound.key is not None]
    return keys if names is None else [key for key in keys if not key.names.isdisjoint(names)]
