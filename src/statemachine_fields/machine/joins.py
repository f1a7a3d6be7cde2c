"""Joins: rows of one machine that wait for rows of another, which are their children by a foreign key.

*Ready* is asked without a lock; what is ready is locked, past whoever has it, and made due; and a worker that takes it counts and
decides. A plain UPDATE would wait for locks; to lock before looking, or to look within the transaction that ends a child, strands
parents: the statement would not see what others have committed meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.db import connections, models, transaction
from django.db.models import Count, Exists, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce

from statemachine_fields.db.batches import LARGEST_KEY_LIST, skip_locked
from statemachine_fields.db.clock import StatementClock
from statemachine_fields.db.commits import once_after_commit
from statemachine_fields.db.effects import WAKE
from statemachine_fields.db.rows import all_rows
from statemachine_fields.schedule.children import ChildCounts, Children
from statemachine_fields.schedule.wakeups import wake

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

logger = logging.getLogger("statemachine_fields.machine")

#: Where the looks are kept that the open transaction will make, on Django's connection.
SLOT = "statemachine_fields_looks"
#: On a connection of a worker's own: who looks in place of the thread that has committed.
LOOKER = "statemachine_fields_looker"


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look has found: which parents are due now, and which are ready and could not be made due at the moment."""

    woken: tuple[Any, ...] = ()
    missed: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Join:
    """One state in which rows wait for children, and the relation that these are found by."""

    parent: Binding[Any]
    state: str
    until: Children
    child: Binding[Any]
    #: The foreign key, and the model of the children that has it: the one with the machine's columns, or a child of that.
    field: Any
    model: type[models.Model]

    def __str__(self) -> str:
        return f"{self.parent} in {self.state!r}"

    @cached_property
    def target(self) -> str:
        """What the foreign key compares with, as a field of the parent's model."""
        target, key = self.field.target_field, self.parent.model._meta.pk
        while key is not target and key.remote_field is not None and key.remote_field.parent_link:
            key = key.target_field  # of a multi-table child, whose key is its parent's
        return "pk" if key is target else target.name

    @cached_property
    def terminal(self) -> tuple[str, ...]:
        return self.child.graph.terminal_states

    @cached_property
    def succeeded(self) -> tuple[str, ...]:
        return tuple(state for state in self.terminal if state not in self.until.failed)

    @cached_property
    def live(self) -> tuple[str, ...]:
        return tuple(state for state in self.child.graph.states if state not in self.terminal)

    def is_for_same(self, other: Join) -> bool:
        """Say whether rows wait for the same children in another state."""
        return self.field is other.field and self.child is other.child

    # Which rows.

    def rows(self, using: str) -> models.QuerySet[Any]:
        """Return all rows of the parent's model."""
        return all_rows(self.parent.model, using)

    def children(self, using: str) -> models.QuerySet[Any]:
        return all_rows(self.model, using)

    @cached_property
    def unfinished(self) -> Q:
        """Those children that are not in a terminal state; what is in a state that nobody declares is not."""
        return ~Q(**{f"{self.child.names.status}__in": self.terminal})

    def asleep(self) -> Q:
        """Return which parents wait, and are neither held nor due, nor failing, nor parked."""
        names = self.parent.names
        waits = {names.status: self.state, names.error: "", f"{names.lease_expires_at}__isnull": True}
        due = names.next_at
        return Q(**waits) & (Q(**{f"{due}__isnull": True}) | Q(**{f"{due}__gt": StatementClock()}))

    def ready(self, using: str) -> models.QuerySet[Any]:
        """Return the parents that sleep though it is decided what their children come to."""
        need = self.until.need
        if need == "all":
            decided = self._has_no_unfinished(using)
            if self.until.failed:
                decided = self._has(using, self.until.failed) | decided
        elif need == "any":
            decided = self._has(using, self.succeeded) | self._has_no_unfinished(using)
        else:
            failed = Q(**{f"{self.child.names.status}__in": self.until.failed})
            succeeded = Q(**{f"{self.child.names.status}__in": self.succeeded})
            met = Q(succeeded_children__gte=need)
            rows: models.QuerySet[Any] = self.rows(using).annotate(
                succeeded_children=self._number(using, succeeded), possible_children=self._number(using, ~failed)
            )
            return rows.filter(self.asleep(), met | Q(possible_children__lt=need))
        return self.rows(using).filter(self.asleep(), decided)

    def _of_parent(self, using: str) -> models.QuerySet[Any]:
        return self.children(using).filter(**{self.field.name: OuterRef(self.target)})

    def _has(self, using: str, states: Sequence[str]) -> Q:
        return Q(Exists(self._of_parent(using).filter(**{f"{self.child.names.status}__in": states})))

    def _has_no_unfinished(self, using: str) -> Q:
        # First those states that are declared: an index on the parent and the status finds one at once, where it would pass all
        # that are finished to find one that is not.
        none = ~Exists(self._of_parent(using).filter(self.unfinished))
        return ~self._has(using, self.live) & Q(none) if self.live else Q(none)

    def _number(self, using: str, which: Q) -> Any:
        found = self._of_parent(using).filter(which).order_by().values(self.field.name)
        return Coalesce(Subquery(found.annotate(number=Count("pk")).values("number")), 0)

    # What is asked of them.

    def look(self, using: str, values: Collection[Any] | None = None) -> Looked:
        """Make parents due of which it is decided what their children come to.

        :param values: what the foreign keys of children say that have ended; None for all parents.
        """
        ready = self.ready(using).order_by("pk")
        woken: list[Any] = []
        missed: list[Any] = []
        for part in _parts(values):
            rows = ready if part is None else ready.filter(**{f"{self.target}__in": part})
            target = self.target
            after: Any = None
            while True:
                page = rows if after is None else rows.filter(pk__gt=after)
                found = dict(page.values_list("pk", target)[:LARGEST_KEY_LIST])
                if found:
                    locked = self._make_due(using, list(found))
                    woken += locked
                    missed += [value for key, value in found.items() if key not in locked]
                if len(found) < LARGEST_KEY_LIST:
                    break
                after = next(reversed(found))
        if woken:
            wake(self.parent, connections[using], self.state)
        return Looked(tuple(woken), tuple(missed))

    def look_for(self, using: str, values: set[Any], unloaded: Iterable[Q] = ()) -> Looked:
        """Make those parents due whose children have ended, of which some are to be asked first whose they are."""
        for which in unloaded:
            values |= self.values_of(which, using)
        return self.look(using, values) if values else Looked()

    def _make_due(self, using: str, keys: list[Any]) -> set[Any]:
        """Make parents due that still sleep and that nobody has locked, and return their keys."""
        columns = self.parent.table.columns
        asleep = self.rows(using).filter(self.asleep(), pk__in=keys).order_by("pk")
        with transaction.atomic(using=using):
            locked = set(skip_locked(asleep).values_list("pk", flat=True))
            if locked:
                self.rows(using).filter(pk__in=locked).update(**WAKE.as_update(self.parent.names, columns))
        return locked

    def counts(self, keys: Sequence[Any], using: str) -> dict[Any, ChildCounts]:
        """Return how many children each of some parents has in each state, in one SELECT for all of them."""
        targets = dict(zip(keys, keys, strict=True))
        if self.target != "pk":
            targets = dict(self.rows(using).filter(pk__in=keys).values_list("pk", self.target))
        found: dict[Any, dict[str, int]] = {}
        name, status = self.field.attname, self.child.names.status
        for part in _parts(list(targets.values())):
            rows = self.children(using).filter(**{f"{self.field.name}__in": part}).order_by()
            for value, state, number in rows.values_list(name, status).annotate(number=Count("pk")):
                found.setdefault(value, {})[state] = number
        return {
            key: ChildCounts(self.until, self.terminal, found.get(targets.get(key), {}))  # none: the parent is gone
            for key in keys
        }

    def parked(self, using: str) -> models.QuerySet[Any]:
        """Return the children that are parked: unfinished, and nobody goes on with them."""
        rows = self.children(using).filter(self.unfinished)
        return rows.filter(self.child.parked_condition()) if self.child.is_timed else rows.none()

    def value_of(self, parent: models.Model) -> Any:
        """Return what the foreign keys of its children say."""
        return getattr(parent, "pk" if self.target == "pk" else self.field.target_field.attname)

    # Looks after a commit.

    def look_after_commit(
        self, connection: Any, instances: Iterable[models.Model] = (), which: Q | None = None
    ) -> None:
        """Look for the parents of children that have ended, once that is committed.

        :param instances: children as they were loaded.
        :param which: finds others.
        """
        values: set[Any] = set()
        unloaded: list[Q] = [] if which is None else [which]
        keys: list[Any] = []
        name = self.field.attname
        for instance in instances:
            if name in vars(instance):
                values.add(vars(instance)[name])
            else:  # deferred, or of the model that has the machine's columns and not this field
                keys.append(self.child.key_of(instance))
        unloaded += [Q(**{f"{self.child.key_name}__in": part}) for part in _parts(keys)]
        values.discard(None)
        self.look_at_values_after_commit(connection, values, unloaded)

    def look_at_values_after_commit(self, connection: Any, values: Iterable[Any], unloaded: Iterable[Q] = ()) -> None:
        """Look for parents, once what was written is committed.

        :param values: what the foreign keys of children say.
        """
        looks = once_after_commit(connection, SLOT, Looks)
        if looks is not None:
            looks.add(self, values, unloaded)
            if not connection.in_atomic_block:
                looks()

    def values_of(self, which: Q, using: str) -> set[Any]:
        """Return what the foreign keys of some children say."""
        name = self.field.attname
        rows = self.children(using).filter(which, **{f"{self.field.name}__isnull": False})
        return set(rows.order_by().values_list(name, flat=True).distinct())


class Looks:
    """What one transaction has to look for when it is committed. What is committed stands, so nothing is raised."""

    __qualname__ = "look_for_parents"  # Django names it so, should it ever raise

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.values: dict[Join, set[Any]] = {}
        self.unloaded: list[tuple[Join, Q]] = []

    def add(self, join: Join, values: Iterable[Any], unloaded: Iterable[Q]) -> None:
        self.values.setdefault(join, set()).update(values)
        self.unloaded += [(join, which) for which in unloaded]

    def __call__(self) -> None:
        connection, using = self.connection, self.connection.alias
        looker = vars(connection).get(LOOKER)
        try:
            for join, values in self.values.items():
                unloaded = [which for each, which in self.unloaded if each is join]
                if looker is not None:
                    looker(using, join, values, unloaded)
                else:
                    join.look_for(using, values, unloaded)
        except Exception as error:  # noqa: BLE001 - of the driver, or of who wraps it
            logger.warning(
                "Parents of rows that have ended could not be looked for. Workers will find them. (%s)", error
            )


def _parts(values: Collection[Any] | None) -> Iterator[Any]:
    """Yield values in parts that one statement takes; None once, for all there are."""
    if values is None:
        yield None
        return
    given = list(values)
    for start in range(0, len(given), LARGEST_KEY_LIST):
        yield given[start : start + LARGEST_KEY_LIST]
