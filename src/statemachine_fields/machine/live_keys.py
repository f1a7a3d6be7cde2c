"""Keys that at most one live row has: `StateMachine(unique_while_live=["number"])`.

The database holds them, by a constraint; nothing here is needed for that. What is here makes a duplicate a `DuplicateLiveRow`
that names the row which has the key, and leaves the caller's transaction as it was.

An INSERT on PostgreSQL leaves the row out if its key is taken, which is no error and costs no savepoint. Whoever is left out
looks for the row that was in the way. It may have ended by then, and then the key is free, so it goes on in turns, a bounded
number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.db import IntegrityError, connections, models, router, transaction
from django.db.models.expressions import DatabaseDefault
from django.db.models.signals import pre_save
from django.db.models.utils import resolve_callables

from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.db.live_keys import (
    InsertUnlessTaken,
    IsOtherThan,
    add_constraint,
    is_violation,
    live_constraint,
    quoted,
)
from statemachine_fields.db.rows import all_rows, row_label
from statemachine_fields.exceptions import DuplicateLiveRow
from statemachine_fields.machine.updates import is_expression
from statemachine_fields.schedule.policy import plain

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.machine.graph import StateGraph

M = TypeVar("M", bound=models.Model)
T = TypeVar("T")

#: How often to try anew because the row that was in the way had ended when it was looked for.
MOST_TURNS = 20

#: The arguments of `live()` and `get_or_start()` that are no fields.
RESERVED = ("defaults", "using")

#: In the state of an instance, while it is saved: the `KeyedSave`.
SAVE = "statemachine_keyed_save"


class LiveKey:
    """The fields that at most one live row has the same values in, and which states keep them besides the live ones.

    :param fields: the names of fields of the model, which together are the key.
    :param also: terminal states whose rows keep the key.
    """

    __slots__ = ("also", "fields")

    def __init__(self, *fields: str, also: Iterable[str] = ()) -> None:
        if not fields:
            raise ValueError("A live key needs at least one field.")
        for name in fields:
            if not isinstance(name, str) or not name.isidentifier() or "__" in name:
                raise ValueError(f"A live key consists of names of fields of the model, got {name!r}.")
            if name in RESERVED:
                raise ValueError(
                    f"A live key cannot have a field called {name!r}, which is an argument of get_or_start(). Rename the field."
                )
            if fields.count(name) > 1:
                raise ValueError(f"A live key names the field {name!r} twice. Remove one of the two.")
        if isinstance(also, str) or not isinstance(also, Iterable):
            raise ValueError(f"also must be a list of states, got {also!r}.")
        self.fields = tuple(fields)
        self.also = tuple(also)

    def __repr__(self) -> str:
        also = f", also={list(self.also)!r}" if self.also else ""
        return f"LiveKey({', '.join(map(repr, self.fields))}{also})"


def read_key(given: object, graph: StateGraph) -> LiveKey:
    """Read what a machine says of its key, and raise ValueError where that is wrong."""
    if isinstance(given, LiveKey):
        key = given
    elif isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"unique_while_live must be a list of names of fields, or a LiveKey, got {given!r}.")
    else:
        key = LiveKey(*given)
    for state in key.also:
        if state not in graph:
            raise ValueError(f"also names {state!r}, not in states. Declared: {', '.join(graph.states)}.")
        if not graph.is_terminal(plain(state)):
            raise ValueError(
                f"also names {plain(state)!r}, which is not terminal: its rows keep their key in any case."
            )
    if not freeing_states(key, graph):
        raise ValueError(
            "unique_while_live: rows of this machine would keep their key for ever, as no state gives it up"
            f"{' that also= does not name' if key.also else ': none is terminal'}. Make it a UniqueConstraint of the model."
        )
    return key


def freeing_states(key: LiveKey, graph: StateGraph) -> tuple[str, ...]:
    """Return the states whose rows have given their key up."""
    kept = {plain(state) for state in key.also}
    return tuple(state for state in graph.terminal_states if state not in kept)


def wrong_fields(model: type[models.Model], key: LiveKey, columns: Sequence[str]) -> dict[str, str]:
    """Return why fields cannot be part of the key of a machine on that class, by their names.

    :param columns: those of the machine itself.
    """
    meta: Any = model._meta
    fields = {field.name: field for field in (*meta.fields, *meta.many_to_many, *meta.private_fields)}
    attnames = {getattr(field, "attname", ""): name for name, field in fields.items()}
    found: dict[str, str] = {}
    for name in key.fields:
        field = fields.get(name)
        if field is None:
            named = attnames.get(name)
            found[name] = f"it is called {named!r} there" if named else "the model has no such field"
        elif name in columns:
            found[name] = "it is a column of the machine"
        elif not getattr(field, "concrete", False) or field.many_to_many:
            found[name] = "it is no column"
        elif field.model is not model:
            found[name] = f"it is in the table of {field.model._meta.label}, and the status is not"
        elif field.primary_key:
            found[name] = "it is the primary key, which is unique in any case"
        elif field.generated:
            found[name] = "the database computes it"
        elif getattr(field, "auto_now", False):
            found[name] = "it changes whenever the row is saved"
    return found


def bind_key(bound: Binding[Any], key: LiveKey) -> None:
    """Give the class of a machine the constraint, and all that goes with it, unless it cannot have that key: a check says so."""
    if not wrong_fields(bound.model, key, bound.columns):
        bound.key = BoundKey(bound, key)
        add_constraint(bound.model, bound.key.constraint)
        hook_keys(bound.model)


class BoundKey(Generic[M]):
    """The key of a machine on the class that has its columns."""

    def __init__(self, bound: Binding[M], key: LiveKey) -> None:
        self.bound = bound
        self.model = bound.model
        self.fields: list[Any] = [self.model._meta.get_field(name) for name in key.fields]
        self.freeing = freeing_states(key, bound.graph)
        self.constraint = live_constraint(self.model, key.fields, bound.names.status, self.freeing)
        self.names = frozenset(name for field in self.fields for name in (field.name, field.attname))
        self._clauses: dict[tuple[Any, str], str] = {}

    def is_kept_in(self, state: str) -> bool:
        """Say whether rows in the state have their key to themselves."""
        return state not in self.freeing

    def read(self, given: Mapping[str, Any], method: str) -> dict[str, Any]:
        """Return the values of a key that was given by name, or raise."""
        accepted = {name: field.name for field in self.fields for name in (field.attname, field.name)}
        named = [accepted[name] for name in given if name in accepted]
        expected = [field.name for field in self.fields]
        if sorted(named) != sorted(expected) or len(given) != len(named):
            raise TypeError(
                f"{self.bound}: {method}() takes the key, {', '.join(f'{name}=' for name in expected)}, all of it and "
                f"nothing else, got {', '.join(f'{name}=' for name in given) or 'none of it'}."
            )
        for name, value in given.items():
            if value is None:
                raise ValueError(
                    f"{self.bound}: {method}({name}=None): a row without a value has no key, so any number of them are live."
                )
        return dict(given)

    def holders(self, values: Mapping[str, Any], using: str | None) -> models.QuerySet[M]:
        """Return the row that has the key, as a queryset of one or none. Also such as the model's managers leave out."""
        rows = all_rows(self.model, using).order_by()
        return rows.filter(IsOtherThan(self.bound.names.status, self.freeing), **values)

    def live(self, given: Mapping[str, Any], using: str | None) -> M | None:
        """Return the row that has the key, or None."""
        return first_of(self.holders(self.read(given, "live"), using))

    def get_or_start(
        self, given: Mapping[str, Any], defaults: Mapping[str, Any] | None, using: str | None
    ) -> tuple[M, bool]:
        """Return the row that has the key, and whether it had to be made."""
        values = self.read(given, "get_or_start")
        using = using or router.db_for_write(self.model)
        turn = 0
        while True:
            turn += 1
            found = first_of(self.holders(values, using))
            if found is not None:
                return found, False
            row: M = self.model(**values, **dict(resolve_callables(defaults or {})))
            self._refuse_ended(row)
            try:
                with self._undone_if_refused(using):
                    row.save(force_insert=True, using=using)
            except DuplicateLiveRow as error:
                if turn == MOST_TURNS or error.model != self.model._meta.label or error.machine != self.bound.accessor:
                    raise
            else:
                return row, True

    def _refuse_ended(self, row: M) -> None:
        status = plain(getattr(row, self.bound.names.status))
        if not self.is_kept_in(status):
            raise ValueError(
                f"{self.bound}: get_or_start() would make a row in {status!r}, which is not live. Start it in another state."
            )

    def _undone_if_refused(self, using: str) -> AbstractContextManager[Any]:
        """Undo what code of the project's writes before the INSERT, if there is such code and the row is refused."""
        runs_code = self.model.save is not models.Model.save or pre_save.has_listeners(self.model)
        return transaction.atomic(using=using) if runs_code else nullcontext()

    def insert(self, save: KeyedSave, manager: Any, insert: Callable[[Any], Any]) -> Any:
        """Insert the row by way of such a manager, or raise `DuplicateLiveRow`."""
        if clause := self._clause(save.instance, connections[save.using]):
            manager = InsertUnlessTaken(manager, clause)
        for _turn in range(MOST_TURNS):
            try:
                inserted = insert(manager)
            except IntegrityError as error:
                if clause or not is_violation(error, self.model, self.constraint):
                    raise
                inserted = None  # without a clause an error undoes its statement, and no more
            if inserted is not None:
                return inserted
            facts = self.facts_of(save.instance)
            holder = self._holder(facts, None, save.using)
            if holder is not None:
                break
        save.refused = self._error(save.instance, facts, holder)
        raise save.refused

    def _clause(self, instance: models.Model, connection: Any) -> str:
        """Return what an INSERT says so that it leaves the row out if its key is taken; nothing if it cannot be."""
        status = plain(getattr(instance, self.bound.names.status))
        if not self.is_kept_in(status):
            return ""
        kind = (type(connection), status)
        if kind not in self._clauses:
            columns = [connection.ops.quote_name(field.column) for field in self.fields]
            # The state of the new row, and not the condition of the index, from which it follows: so code and constraint may
            # be of different releases.
            column = connection.ops.quote_name(self.bound.field.column)
            where = f"{column} = {quoted(status, connection)}"
            self._clauses[kind] = dialect_for(connection).unless_taken(columns, where)
        return self._clauses[kind]

    def facts_of(self, instance: models.Model, update: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what an instance has in the fields of the key, or is about to have."""
        data = {**vars(instance), **{name: value for name, value in (update or {}).items() if name in self.names}}
        values = {field.name: data.get(field.name, data.get(field.attname)) for field in self.fields}
        return {name: _as_value(value) for name, value in values.items()}

    def _holder(self, facts: Mapping[str, Any], but: Any, using: str) -> tuple[Any, str] | None:
        """Return key and status of the row that has these values, if it is another than that one."""
        if any(value is None or is_expression(value) for value in facts.values()):
            return None
        rows = self.holders(facts, using)
        rows = rows if but is None else rows.exclude(pk=but)
        return first_of(rows.values_list("pk", self.bound.names.status))

    def _error(
        self, instance: models.Model, facts: Mapping[str, Any], holder: tuple[Any, str] | None
    ) -> DuplicateLiveRow:
        shown = {name: str(value) if is_expression(value) else value for name, value in facts.items()}
        pk, status = holder or (None, None)
        return DuplicateLiveRow(row_label(instance), self.model._meta.label, self.bound.accessor, shown, pk, status)

    def refusal(
        self, instance: models.Model, error: BaseException, using: str, update: Mapping[str, Any] | None = None
    ) -> DuplicateLiveRow | None:
        """Return what is to be raised for an error of the database's; None if it is not about this key.

        :param update: what was to be written besides what the instance has.
        """
        is_ours = isinstance(error, IntegrityError) and not isinstance(error, DuplicateLiveRow)
        if not is_ours or not is_violation(error, self.model, self.constraint):
            return None
        facts = self.facts_of(instance, update)
        is_usable = not connections[using].needs_rollback
        holder = self._holder(facts, self.bound.key_of(instance), using) if is_usable else None
        return self._error(instance, facts, holder)


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
        using = using or router.db_for_write(type(self), instance=self)
        inserting = bool(force_insert) or self.pk is None
        return KeyedSave(self, keys, using).run(
            lambda: save_original(self, raw, force_insert, force_update, using, update_fields), inserting
        )

    @wraps(insert_original)
    def _do_insert(self: models.Model, manager: Any, using: str, fields: Any, returning_fields: Any, raw: bool) -> Any:
        save: KeyedSave | None = vars(self._state).get(SAVE)
        keys = [] if save is None else [key for key in save.keys if key.model is manager.model]
        if save is None or raw or len(keys) != 1:
            return insert_original(self, manager, using, fields, returning_fields, raw)
        return keys[0].insert(
            save, manager, lambda manager: insert_original(self, manager, using, fields, returning_fields, raw)
        )

    save_base.alters_data = True  # type: ignore[attr-defined]
    save_base.statemachine_keys = True  # type: ignore[attr-defined]
    # What was there before any of us.
    save_base.__wrapped__ = getattr(save_original, "__wrapped__", save_original)
    model.save_base = save_base  # type: ignore[method-assign]
    setattr(model, "_do_insert", _do_insert)  # noqa: B010


def first_of(rows: models.QuerySet[Any, T]) -> T | None:
    """Return the one row that there is at most."""
    for row in rows[:1]:  # first() would sort, which may mislead the planner
        found: T = row
        return found
    return None


def _as_value(value: Any) -> Any:
    if isinstance(value, models.Model):
        return value.pk
    computed: Any = value
    return computed.expression if isinstance(value, DatabaseDefault) else value


def _keys_of(instance: models.Model, names: Iterable[str] | None) -> list[BoundKey[Any]]:
    """Return the keys that a save of these fields writes."""
    bounds = [getattr(field, "bound", None) for field in instance._meta.concrete_fields]
    keys = [bound.key for bound in dict.fromkeys(bounds) if bound is not None and bound.key is not None]
    return keys if names is None else [key for key in keys if not key.names.isdisjoint(names)]
