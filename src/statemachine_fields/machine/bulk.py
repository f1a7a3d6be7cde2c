"""Many rows at once: batches in key order, each one transaction, and one audit row for each move.

Where moving a row runs code of the user's (guards, receivers, an own `save()`), the rows of a batch are moved one by one,
which is as correct and slower.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import models, transaction
from django.db.models import Q

from statemachine_fields.db.batches import LARGEST_KEY_LIST, Batches, Done
from statemachine_fields.db.dialect import SelectedWrite, dialect_for
from statemachine_fields.db.effects import ENTER
from statemachine_fields.db.rows import all_rows
from statemachine_fields.exceptions import DuplicateLiveRow, InvalidStateTransition, RowMissing
from statemachine_fields.machine import parents
from statemachine_fields.machine.context import loaded, read_facts
from statemachine_fields.machine.ids import uuid7
from statemachine_fields.machine.initial_records import begin_after_kept
from statemachine_fields.machine.listeners import needs_each_row
from statemachine_fields.machine.updates import auto_now_fields
from statemachine_fields.machine.watcher import tell_watchers, watchers
from statemachine_fields.schedule.policy import plain
from statemachine_fields.schedule.wakeups import wake
from statemachine_fields.signals import transition_rejected

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

M = TypeVar("M", bound=models.Model)

#: How many rows stay locked at most while each of them is moved by itself.
MOST_LOCKED = 1000


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that did not move, where it stood, and why."""

    pk: Any
    status: str
    reason: str


@dataclass(slots=True)
class BulkResult:
    """How many rows moved, how many did not, and which those were."""

    moved: int = 0
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def refused(self) -> int:
        return len(self.refusals)


class BulkTransitioner(Generic[M]):
    """The moves of a queryset's rows to one state."""

    def __init__(
        self,
        bound: Binding[M],
        queryset: models.QuerySet[Any],
        to_status: str,
        metadata: Mapping[str, Any] | None,
        batch_size: int,
        user: Any = None,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        bound.judge.require_open_state(to_status)
        self.batches = Batches(bound, queryset, batch_size)
        self.bound = bound
        self.model = self.batches.model
        self.to_status = plain(to_status)
        self.given = metadata
        self.user = user
        self.record = bound.read_record(record)
        self.metadata = read_facts(metadata, user)
        self.using = self.batches.using
        self.connection = self.batches.connection
        self.dialect = dialect_for(self.connection)
        self.delay, self.seen = bound.entry_delay(self.to_status), bound.seen_on_entry(self.to_status)
        self.sources = bound.judge.sources(self.to_status)
        self.result = BulkResult()

    def run(self) -> BulkResult:
        if self._must_go_one_by_one():
            self.batches.batch_size = min(self.batches.batch_size, MOST_LOCKED)
            self.batches.run(self._move_singly, as_owners=False)
        elif self.dialect.is_one_statement:
            self.batches.run(self._move_in_one_statement)
        else:
            # One INSERT takes the batch, with all its parameters.
            columns = len(self.bound.transition_model._meta.concrete_fields)
            most = (self.connection.features.max_query_params or LARGEST_KEY_LIST * columns) // columns
            self.batches.batch_size = min(self.batches.batch_size, LARGEST_KEY_LIST, most)
            self.batches.run(self._move_in_a_transaction)
        if watchers:
            tell_watchers(self.bound, self.using)
        return self.result

    def _must_go_one_by_one(self) -> bool:
        return (
            bool(self.bound.guards)
            or self.bound.judge.is_permitted_by_row(self.sources, self.to_status, self.user)
            or transition_rejected.has_listeners(self.bound.model)
            or needs_each_row(self.bound, self.model)
        )

    def _begin(self, rows: models.QuerySet[Any]) -> None:
        """Let those rows begin that nobody saw being made and whose key has the history of another."""
        if self.bound.keeps_history:
            found = rows.values_list("pk", self.bound.names.sequence)
            begin_after_kept(self.bound, [key for key, sequence in found if not sequence], self.using)

    def _move_in_one_statement(self, rows: models.QuerySet[Any]) -> Done:
        self._begin(rows)
        compiler: Any = rows.values_list("pk", self.bound.names.status).query.get_compiler(self.using)
        try:
            sql, params = compiler.as_sql()
        except EmptyResultSet:  # as of none()
            return Done(0, None)
        updates = [(each.column, each.get_db_prep_save(value, self.connection)) for each, value in self._auto_now()]
        write = SelectedWrite(self.to_status, self.sources, uuid7(), self.metadata, updates, self.delay, self.seen)
        done = self.dialect.write_selected(self.connection, self.bound.table, ENTER, write, sql, params)
        self.result.moved += done.moved
        if parents.waiting and done.moved:
            self._tell_parents(write.ids(done.moved))
        converters = compiler.get_converters([compiler.select[0][0]])
        self._wake(done.moved)
        *refused, last = compiler.apply_converters([[key] for key, _status in done.refused] + [[done.last]], converters)
        self._refuse((key, status) for [key], (_key, status) in zip(refused, done.refused, strict=True))
        return Done(done.seen, last[0])

    def _move_in_a_transaction(self, rows: models.QuerySet[Any]) -> Done:
        self._begin(rows)
        names = self.bound.names
        with transaction.atomic(using=self.using, savepoint=False):
            found = list(self.batches.locked(rows).values_list("pk", names.status))
            going = {key: status for key, status in found if status in self.sources}
            moving = self.batches.owners.filter(pk__in=list(going))
            if going:
                columns = self.bound.table.columns
                cancelling, given = self.bound.table.cancelling, {"seen": self.seen, "next_at": self.delay}
                changes = ENTER.as_update(names, columns, cancelling=cancelling, status=self.to_status, **given)
                moving.update(**changes, **{field.name: value for field, value in self._auto_now()})
                moved = moving.order_by("pk").values_list("pk", names.sequence, names.changed_at)
                self._record(going, list(moved))
                if parents.waiting:
                    which = Q(**{f"{self.bound.key_name}__in": list(going)})
                    parents.rows_moved(self.bound, self.connection, self.to_status, which)
                self._wake(len(going))
        self.result.moved += len(going)
        self._refuse((key, status) for key, status in found if key not in going)
        return Done(len(found), found[-1][0] if found else None)

    def _tell_parents(self, ids: tuple[uuid.UUID, uuid.UUID]) -> None:
        """Look for the parents of rows that were moved in one statement: its records say which those are."""
        records = all_rows(self.bound.transition_model, self.using).filter(id__range=ids)
        which = Q(**{f"{self.bound.key_name}__in": records.values("instance_id")})
        parents.rows_moved(self.bound, self.connection, self.to_status, which)

    def _wake(self, moved: int) -> None:
        if moved:  # of rows that wait for events, some may have got one before
            wake(self.bound, self.connection, self.to_status, self.delay if self.seen is None else 0.0)

    def _record(self, going: Mapping[Any, str], moved: Sequence[tuple[Any, int, Any]]) -> None:
        all_rows(self.bound.transition_model, self.using).bulk_create(
            self.bound.build_record(
                instance_id=key,
                from_status=going[key],
                to_status=self.to_status,
                transitioned_at=changed_at,
                metadata=loaded(self.metadata),
                sequence=sequence,
            )
            for key, sequence, changed_at in moved
        )

    def _move_singly(self, rows: models.QuerySet[Any]) -> Done:
        with transaction.atomic(using=self.using):
            instances = list(self.batches.locked(rows))  # or one could change while the guards of another are asked
            for instance in instances:
                try:
                    getattr(instance, self.bound.accessor).transition_to(
                        self.to_status, self.given, user=self.user, record=self.record
                    )
                except InvalidStateTransition as error:
                    reasons = [blocker.message for blocker in getattr(error, "blockers", ())]
                    reason = " ".join(reasons) or self._no_move_from(error.from_status)
                    self.result.refusals.append(Refusal(instance.pk, error.from_status, reason))
                except DuplicateLiveRow as error:  # the model's own save(), or a receiver, has given it another key
                    status = getattr(instance, self.bound.names.status)
                    self.result.refusals.append(Refusal(instance.pk, status, str(error)))
                except RowMissing:
                    continue
                else:
                    self.result.moved += 1
        return Done(len(instances), instances[-1].pk if instances else None)

    def _refuse(self, rows: Any) -> None:
        reason_of = cache(self._no_move_from)
        self.result.refusals += [Refusal(key, status, reason_of(status)) for key, status in rows]

    def _no_move_from(self, status: str) -> str:
        return self.bound.judge.no_transition(status, self.to_status).message

    def _auto_now(self) -> list[tuple[Any, Any]]:
        """Return the fields that every save refreshes, and what they become."""
        draft = self.model()
        return [(each, each.pre_save(draft, False)) for each in auto_now_fields(self.model)]
