"""Keys that at most one live row has: `StateMachine(unique_while_live=["number"])`.

The database holds them, by a constraint; nothing here is needed for that. What is here makes a duplicate a `DuplicateLiveRow`
that names the row which has the key, and leaves the caller's transaction as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.db import IntegrityError, connections, models, router, transaction
from django.db.models.expressions import DatabaseDefault
from django.db.models.signals import pre_save
from django.db.models.utils import resolve_callables

from statemachine_fields.db.batches import LARGEST_KEY_LIST
from statemachine_fields.db.live_keys import (
    IsOtherThan,
    is_violation,
    live_constraint,
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


class BoundKey(Generic[M]):
    """The key of a machine on the class that has its columns."""

    def __init__(self, bound: Binding[M], key: LiveKey) -> None:
        self.bound = bound
        self.model = bound.model
        self.fields: list[Any] = [self.model._meta.get_field(name) for name in key.fields]
        self.freeing = freeing_states(key, bound.graph)
        self.constraint = live_constraint(self.model, key.fields, bound.names.status, self.freeing)
        self.names = frozenset(name for field in self.fields for name in (field.name, field.attname))
        #: What an INSERT says, by the kind of database and the state of the new row.
        self.clauses: dict[tuple[Any, str], str] = {}

    def is_kept_in(self, state: str) -> bool:
        """Say whether rows in the state have their key to themselves."""
        return state not in self.freeing

    def is_named_by(self, given: Iterable[str]) -> bool:
        """Say whether names are those of all its fields, each once, and of nothing else."""
        accepted = {name: field.name for field in self.fields for name in (field.attname, field.name)}
        return sorted(accepted.get(name, "") for name in given) == sorted(field.name for field in self.fields)

    def kept_by(self, rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
        """Return those of some rows that have their key to themselves."""
        return rows.filter(IsOtherThan(self.bound.names.status, self.freeing))

    def read(self, given: Mapping[str, Any], method: str) -> dict[str, Any]:
        """Return the values of a key that was given by name, or raise."""
        if not self.is_named_by(given):
            expected = [field.name for field in self.fields]
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
        return self.kept_by(all_rows(self.model, using).order_by()).filter(**values)

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

    def facts_of(self, instance: models.Model, written: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what an instance has in the fields of the key, or what is about to be written there."""
        data = {**vars(instance), **{name: value for name, value in (written or {}).items() if name in self.names}}
        values = {field.name: data.get(field.name, data.get(field.attname)) for field in self.fields}
        return {name: _as_value(value) for name, value in values.items()}

    def holder(self, facts: Mapping[str, Any], but: Any, using: str) -> tuple[Any, str] | None:
        """Return key and status of the row that has these values, if it is another than that one."""
        if any(map(_is_unknown, facts.values())):
            return None
        rows = self.holders(facts, using)
        rows = rows if but is None else rows.exclude(pk=but)
        return first_of(rows.values_list("pk", self.bound.names.status))

    def error(
        self, instance: models.Model, facts: Mapping[str, Any], holder: tuple[Any, str] | None
    ) -> DuplicateLiveRow:
        shown = {name: str(value) if is_expression(value) else value for name, value in facts.items()}
        pk, status = holder or (None, None)
        return DuplicateLiveRow(row_label(instance), self.model._meta.label, self.bound.accessor, shown, pk, status)

    def is_behind(self, error: BaseException) -> bool:
        """Say whether the database has raised an error because of this key."""
        is_ours = isinstance(error, IntegrityError) and not isinstance(error, DuplicateLiveRow)
        return is_ours and is_violation(error, self.model, self.constraint)

    def refusal(
        self, instance: models.Model, error: BaseException, using: str, update: Mapping[str, Any] | None = None
    ) -> DuplicateLiveRow | None:
        """Return what is to be raised for an error of the database's; None if it is not about this key.

        :param update: all that a move was to write of the instance; None for a save, which writes what it has.
        """
        if not self.is_behind(error):
            return None
        written, pk, holder = update, self.bound.key_of(instance), None
        is_usable = not connections[using].needs_rollback
        if is_usable and update is not None:  # the row has what the instance may not have loaded, or has in another way
            rows = all_rows(self.model, using).order_by().filter(pk=pk)
            written = {**(first_of(rows.values(*[field.name for field in self.fields])) or {}), **update}
        facts = self.facts_of(instance, written)
        if is_usable:
            holder = self.holder(facts, pk, using)
        return self.error(instance, facts, holder)

    def refusal_among(
        self, instances: Iterable[models.Model], error: BaseException, using: str
    ) -> DuplicateLiveRow | None:
        """Return what is to be raised for an error of an INSERT of many rows; None if it is not about this key, or if nobody knows
        any more which of them is meant. Many are asked for with one statement."""
        if not self.is_behind(error) or connections[using].needs_rollback:
            return None
        status = self.bound.names.status
        live = [each for each in instances if self.is_kept_in(plain(getattr(each, status)))]
        given = [(self.facts_of(each), each) for each in live]
        keyed = [(facts, each) for facts, each in given if not any(map(_is_unknown, facts.values()))]
        names, size = [field.name for field in self.fields], LARGEST_KEY_LIST // len(self.fields)
        rows = self.kept_by(all_rows(self.model, using).order_by())
        for part in (keyed[start : start + size] for start in range(0, len(keyed), size)):
            which = models.Q(*[models.Q(**facts) for facts, _each in part], _connector=models.Q.OR)
            found = first_of(rows.filter(which).values_list("pk", status, *names))
            if found is not None:
                values = dict(zip(names, found[2:], strict=True))
                instance = next((each for facts, each in part if facts == values), part[0][1])
                return self.error(instance, values, found[:2])
        seen: set[str] = set()
        for facts, instance in keyed:  # two of them may have the same
            if repr(facts) in seen:
                return self.error(instance, facts, None)
            seen.add(repr(facts))
        return None


def first_of(rows: models.QuerySet[Any, T]) -> T | None:
    """Return the one row that there is at most."""
    for row in rows[:1]:  # first() would sort, which may mislead the planner
        found: T = row
        return found
    return None


def _is_unknown(value: object) -> bool:
    """Say whether a value is no part of a key, or one that only the database can tell."""
    return value is None or is_expression(value)


def _as_value(value: Any) -> Any:
    if isinstance(value, models.Model):
        return value.pk
    computed: Any = value
    return computed.expression if isinstance(value, DatabaseDefault) else value
