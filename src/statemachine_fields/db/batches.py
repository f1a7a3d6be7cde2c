"""A queryset cut into batches in key order, whatever kind of queryset it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, models, router

from statemachine_fields.db.expressions import MachineValue
from statemachine_fields.db.rows import all_rows

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

#: How many keys one statement is given as parameters.
LARGEST_KEY_LIST = 500


class Done(NamedTuple):
    """How many rows a batch had, and the last one's key: where the next begins."""

    seen: int
    last: Any


class Batches:
    """The rows of a queryset, as rows of the machine's own model or of the queryset's."""

    def __init__(
        self, bound: Binding[Any], queryset: models.QuerySet[Any] | models.Manager[Any], batch_size: int
    ) -> None:
        if isinstance(queryset, models.Manager):
            queryset = queryset.all()
        if not isinstance(queryset, models.QuerySet):
            raise TypeError(f"{bound} needs a queryset, got {type(queryset).__name__}.")
        if not issubclass(queryset.model, bound.model):
            raise TypeError(f"{bound} is a machine of {bound.model._meta.label}, got {queryset.model._meta.label}.")
        if getattr(queryset, "_fields", None) is not None:
            raise TypeError(f"{bound} needs a queryset of rows, got one of values(). Leave values() out.")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        self.bound = bound
        self.model: type[models.Model] = queryset.model
        self.queryset = queryset
        self.batch_size = batch_size
        self.using = database_of(queryset)
        self.connection = connections[self.using]

    @property
    def owners(self) -> models.QuerySet[Any]:
        """All rows of the model that has the machine's columns."""
        return all_rows(self.bound.model, self.using)

    def run(self, work: Callable[[models.QuerySet[Any]], Done], *, as_owners: bool = True) -> None:
        """Hand batch after batch to the work, each ordered and cut to size."""
        for window in self._windows():
            rows = (self._as_owners(window) if as_owners else window).order_by("pk")
            rows.query.standard_ordering = True  # reverse() would turn it round
            done = work(rows[: self.batch_size])
            while done.seen == self.batch_size:
                done = work(rows.filter(pk__gt=done.last)[: self.batch_size])

    def locked(self, rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
        """Return the rows so that reading them locks them. Within a transaction only."""
        features = self.connection.features
        if features.has_select_for_update:
            return rows.select_for_update(no_key=features.has_select_for_no_key_update)
        # A write is the only lock there is, and it must come before the read.
        self.owners.filter(pk=None).update(**{self.bound.names.sequence: MachineValue(0)})
        return rows

    def _windows(self) -> Iterator[models.QuerySet[Any]]:
        """Yield querysets that can be filtered, ordered and locked, have each row once, and together cover the rows."""
        query = self.queryset.query
        base = type(self.queryset)(self.model, using=self.using)  # of the same class, which may make the instances
        if query.is_sliced or query.distinct_fields:  # read once: moving a row may change which rows it holds
            keys = list(dict.fromkeys(self.queryset.values_list("pk", flat=True)))
            for start in range(0, len(keys), LARGEST_KEY_LIST):
                yield base.filter(pk__in=keys[start : start + LARGEST_KEY_LIST])
            return
        rows = self.queryset.using(self.using)
        if _is_plain(query):
            rows = rows.select_related(None)
            rows.query.select_for_update = False  # we lock in our own way
            yield rows
        else:
            yield base.filter(pk__in=rows.order_by().values("pk"))

    def _as_owners(self, rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
        """Turn rows of a multi-table child into those of the parent that has the columns."""
        if self.model._meta.concrete_model is self.bound.model:
            return rows
        return self.owners.filter(pk__in=rows.order_by().values(self.bound.model._meta.pk.name))


def skip_locked(rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
    """Return rows so that reading them locks them, without those that somebody else has locked. Within a transaction only.

    Where a write is the only lock there is, it holds the whole database, and whoever has it has committed before we get it.
    """
    features = connections[rows.db].features
    if not features.has_select_for_update:
        return rows
    how = {"no_key": features.has_select_for_no_key_update, "skip_locked": features.has_select_for_update_skip_locked}
    # Only where a parent's table is read as well: PostgreSQL takes no name after OF that has a schema in it, as a `db_table` may.
    has_parents = bool(rows.model._meta.parents)
    return rows.select_for_update(of=("self",) if has_parents and features.has_select_for_update_of else (), **how)


def database_of(queryset: Any) -> str:
    """Return where the rows are to be written: where the queryset was told to look, or what the router says."""
    return queryset._db or router.db_for_write(queryset.model, **queryset._hints)


def _is_plain(query: Any) -> bool:
    """Say whether the query reads one table and each of its rows at most once."""
    tables = sum(1 for count in query.alias_refcount.values() if count)
    return not (
        tables > 1
        or query.distinct
        or query.group_by is not None
        or query.combinator
        or query.extra_tables
        or query.where.contains_over_clause
    )
