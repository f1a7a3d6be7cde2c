"""Rename a state in the rows and records of one machine, beside code that moves them.

Works on the models of a migration, which have the columns and no machine. A row and its records are renamed in one
transaction, so that at no moment its history contradicts itself or the row. Nothing but the names is written: not the
counter, no time, and nothing of the clock.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from django.db import connections, models, transaction
from django.db.models import Case, Exists, F, OuterRef, Q, Value, When

from statemachine_fields.db.clock import StatementClock
from statemachine_fields.db.columns import Names
from statemachine_fields.db.rows import all_rows
from statemachine_fields.exceptions import StateMachineError

logger = logging.getLogger("statemachine_fields.machine")

#: How long to wait before those rows are looked at again that somebody holds.
POLL_SECONDS = 0.5
#: How often to say how far it has come.
TELL_EVERY = 10.0
#: How often to begin again for rows that entered the old state meanwhile.
MOST_ROUNDS = 20
#: How many parameters a statement needs besides the keys.
OTHER_PARAMETERS = 20


class Renamer:
    """Give one value of a status column another name.

    :param wait: for how many seconds to wait for rows that somebody holds, since the last of them was let go.
    """

    def __init__(
        self,
        model: type[models.Model],
        audit: type[models.Model],
        names: Names,
        old: str,
        new: str,
        *,
        tries: type[models.Model] | None = None,
        using: str,
        batch_size: int,
        wait: float,
    ) -> None:
        self.model = model
        self.names = names
        self.old = old
        self.new = new
        self.using = using
        self.wait = wait
        self.connection = connections[using]
        self.features = self.connection.features
        most = self.features.max_query_params
        self.batch_size = min(batch_size, most - OTHER_PARAMETERS) if most else batch_size
        self.all_rows: models.QuerySet[Any] = all_rows(model, using).order_by("pk")
        self.all_records: models.QuerySet[Any] = all_rows(audit, using).order_by("instance_id")
        self.all_tries: models.QuerySet[Any] | None = None if tries is None else all_rows(tries, using).order_by()
        self.is_timed = any(field.name == names.lease_expires_at for field in model._meta.fields)
        #: How much was renamed.
        self.rows = self.records = 0
        self._told_at = time.monotonic()

    def __str__(self) -> str:
        return f"{self.model._meta.label}.{self.names.status}: {self.old!r} → {self.new!r}"

    def is_used(self, value: str) -> bool:
        """Say whether a row or a record has the value."""
        if self._rows_in(value).exists() or self._records_of(value).exists():
            return True
        return self.all_tries is not None and self.all_tries.filter(state=value).exists()

    def run(self) -> None:
        """Rename until nothing has the old value, or raise and keep what was done."""
        for _round in range(MOST_ROUNDS):
            self._empty_the_state()
            self._rename_histories()
            self._rename_tries()
            if not self.is_used(self.old):
                return
        raise StateMachineError(
            f"{self}: rows enter {self.old!r} as fast as it is renamed. {self._what_was_done()} Deploy code in which "
            f"{self.old!r} is retired, and run the migration again."
        )

    def _rows_in(self, value: str) -> models.QuerySet[Any]:
        return self.all_rows.filter(**{self.names.status: value})

    def _records_of(self, value: str) -> models.QuerySet[Any]:
        return self.all_records.filter(Q(from_status=value) | Q(to_status=value))

    def _empty_the_state(self) -> None:
        """Rename the rows that are in the state, each with its records, and wait for those that somebody holds."""
        deadline = None
        while True:
            before = self.rows
            self._rename_rows()
            if not self._rows_in(self.old).exists():
                return
            now = time.monotonic()
            if deadline is None or self.rows > before:
                deadline = now + self.wait
            if now >= deadline or not self._can_wait():
                raise self._held()
            self._tell("waits for rows that are held")
            time.sleep(POLL_SECONDS)

    def _rename_rows(self) -> None:
        todo = self._rows_in(self.old).filter(self._is_free())
        page = todo
        while keys := self._rename_batch(page[: self.batch_size]):
            self._tell("goes on")
            page = todo.filter(pk__gt=keys[-1])

    def _rename_batch(self, rows: models.QuerySet[Any]) -> list[Any]:
        with transaction.atomic(using=self.using, savepoint=False):
            keys = list(self._locked(rows).values_list("pk", flat=True))
            if keys:
                self.rows += self.all_rows.filter(pk__in=keys).update(**{self.names.status: self.new})
                self._rename_records(self.all_records.filter(instance_id__in=keys))
                self._rename_tries(instance_id__in=keys)
        return keys

    def _is_free(self) -> Q:
        """Return what holds for rows that no worker runs. The outcome of one that is run would find it under a name that
        it does not compare with, and be lost."""
        if not self.is_timed:
            return Q()
        expires_at = self.names.lease_expires_at
        return Q(**{f"{expires_at}__isnull": True}) | Q(**{f"{expires_at}__lte": StatementClock()})

    def _locked(self, rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
        """Return the rows so that reading them locks them, without those that somebody else has locked."""
        if self.features.has_select_for_update:
            return rows.select_for_update(
                skip_locked=self.features.has_select_for_update_skip_locked,
                no_key=self.features.has_select_for_no_key_update,
            )
        # A write is the only lock there is, and it must come before the read.
        self.all_rows.filter(pk=None).update(**{self.names.status: self.new})
        return rows

    def _rename_histories(self) -> None:
        """Rename what rows that are elsewhere have been through.

        No lock: a statement sees the database at one moment, and leaves out the rows that are in the state then. Of those
        that enter it later it does not see the record.
        """
        todo = self._records_of(self.old).exclude(instance_id=None)
        in_the_state = self._rows_in(self.old).order_by().filter(pk=OuterRef("instance_id"))
        page = todo
        while keys := list(page.values_list("instance_id", flat=True).distinct()[: self.batch_size]):
            self._rename_records(page.filter(~Exists(in_the_state), instance_id__lte=keys[-1]))
            self._tell("goes on")
            page = todo.filter(instance_id__gt=keys[-1])
        self._rename_records(self.all_records.filter(instance_id=None))  # whose rows nobody knows any more

    def _rename_records(self, records: models.QuerySet[Any]) -> None:
        """Rename both ends in one statement: between two, a chain would be broken."""
        found = records.filter(Q(from_status=self.old) | Q(to_status=self.old))
        self.records += found.order_by().update(
            from_status=self._renamed("from_status"), to_status=self._renamed("to_status")
        )

    def _rename_tries(self, **which: Any) -> None:
        """Rename what is kept of tries, in batches. No lock: none is ever changed, and those of rows that are in the state go
        with their row."""
        if self.all_tries is None:
            return
        todo = self.all_tries.filter(state=self.old, **which)
        while keys := list(todo.order_by("pk").values_list("pk", flat=True)[: self.batch_size]):
            self.all_tries.filter(pk__in=keys).update(state=self.new)

    def _renamed(self, column: str) -> models.Expression:
        return Case(When(**{column: self.old}, then=Value(self.new)), default=F(column))

    def _can_wait(self) -> bool:
        """Say whether others can let go of rows meanwhile: not where a transaction of ours locks the whole database."""
        return self.features.has_select_for_update or not self.connection.in_atomic_block

    def _held(self) -> StateMachineError:
        rows = self._rows_in(self.old)
        first = rows.values(
            "pk", *([self.names.lease_owner, self.names.lease_expires_at] if self.is_timed else [])
        ).first()
        which = "" if first is None else f", the first of them pk={first['pk']!r}"
        if first is not None and first.get(self.names.lease_owner):
            owner, until = first[self.names.lease_owner], first[self.names.lease_expires_at]
            which += f", which {owner!r} has leased until {until}"
        waited = (
            f"for {self.wait:g} s nobody let go of one" if self._can_wait() else "they cannot be let go of meanwhile"
        )
        return StateMachineError(
            f"{self}: {rows.count()} rows are held by workers or by other transactions, and {waited}{which}. "
            f"{self._what_was_done()} Run the migration again when they are free; stop a worker that hangs, or take the row "
            "from it with release()."
        )

    def _what_was_done(self) -> str:
        if self.connection.in_atomic_block:
            return "Nothing was renamed, because the migration is one transaction."
        return f"{self.rows:,} rows and {self.records:,} records were renamed, and the next run goes on from there."

    def _tell(self, what: str) -> None:
        """Say how far it has come, now and then: in the project's log, or to who runs the migration."""
        now = time.monotonic()
        if now - self._told_at < TELL_EVERY:
            return
        self._told_at = now
        text = f"{self} {what}: {self.rows:,} rows and {self.records:,} records so far."
        if logger.hasHandlers():
            logger.info(text)
        else:
            sys.stderr.write(f"\n{text}\n")
