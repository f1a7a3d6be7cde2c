"""Raw saves: rows that are copied column by column, as fixtures are, and versions that another library brings back.

They write what they hold, the machine's columns too, so that rows and their history load as they were. Only time does not
run backwards: a copy that was made before the row's latest moves leaves the machine's columns as the database has them. If
the row is gone and its history was kept, the row begins again after that, in the state of the copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from django.db import models, transaction

from statemachine_fields.db.clock import DatabaseClock
from statemachine_fields.db.expressions import CopiedValue, MachineValue
from statemachine_fields.db.rows import all_rows, row_label
from statemachine_fields.machine.initial_records import begin_after_kept, newest_records

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

logger = logging.getLogger("statemachine_fields.machine")


class RawSave:
    """One raw save of one table's row."""

    def __init__(
        self, instance: models.Model, machines: list[Binding[Any]], using: str, names: Collection[str] | None
    ) -> None:
        self.instance = instance
        self.machines = [bound for bound in machines if names is None or not set(bound.columns).isdisjoint(names)]
        self.using = using

    def run(self, save: Callable[[], Any]) -> Any:
        """Save, and bring the instance up to the row where there was one."""
        if not self.machines:
            return save()
        with transaction.atomic(using=self.using, savepoint=False):  # or a row could move before it is read back
            held = self._mark()
            try:
                updated = save()
            finally:
                self._unmark(held)
            if updated:
                self._meet_row()
            elif [bound for bound in self.machines if bound.keeps_history and self._begin_again(bound)]:
                self._learn(self._read())
        return updated

    def _mark(self) -> dict[str, Any]:
        """Put on the instance what is to be written, since a raw save skips `pre_save()`; return what it held."""
        data = vars(self.instance)
        held: dict[str, Any] = {}
        for bound in self.machines:
            names = bound.names
            moves = ((names.sequence, data.get(names.sequence) or 0),)
            # A row is also claimed without being moved, and who holds it must not lose it to a copy.
            claims: tuple[tuple[str, int], ...] = (*moves, (names.lease_token, data.get(names.lease_token) or 0))
            if "inbox" in bound.features:  # nor an event that came since
                claims = (*claims, (names.inbox, data.get(names.inbox) or 0))
            for name in bound.columns:
                if name in data:
                    field: Any = bound.model._meta.get_field(name)
                    held[name] = data[name]
                    data[name] = CopiedValue(field, held[name], moves if name in names.columns else claims)
        return held

    def _unmark(self, held: dict[str, Any]) -> None:
        data = vars(self.instance)
        # Others are what the database has made of a default, and gave back.
        data.update({name: value for name, value in held.items() if isinstance(data[name], CopiedValue)})

    def _begin_again(self, bound: Binding[Any]) -> bool:
        """Let a row that was inserted begin after the records that were kept, if its copy was made before the last of them:
        its next move would take a number that is taken. Say whether it did."""
        key, names = bound.key_of(self.instance), bound.names
        counter = vars(self.instance).get(names.sequence) or 0
        newest = max(newest_records(bound, [key], self.using).values(), default=0)
        if counter >= newest:
            return False
        changes = {names.sequence: MachineValue(0), names.changed_at: DatabaseClock()}
        all_rows(bound.model, self.using).filter(pk=key).update(**changes)
        begin_after_kept(bound, [key], self.using)
        logger.warning(
            "%s: a raw save, as by loaddata or by a library that keeps versions of rows, brought back a row as of transition "
            "%d of %r, and the history that was kept of it goes up to %d. So it begins again, with record %d.",
            row_label(self.instance),
            counter,
            names.status,
            newest,
            newest + 1,
        )
        return True

    def _read(self) -> dict[str, Any]:
        """Return what the row has in the columns of its machines."""
        columns = [name for bound in self.machines for name in bound.columns]
        owner = self.machines[0]
        found: dict[str, Any] = all_rows(owner.model, self.using).values(*columns).get(pk=owner.key_of(self.instance))
        return found

    def _learn(self, found: dict[str, Any]) -> None:
        for bound in self.machines:
            vars(self.instance).update({name: found[name] for name in bound.columns})
            bound.field.assignments.forget(self.instance)

    def _meet_row(self) -> None:
        data, found = vars(self.instance), self._read()
        for bound in self.machines:
            names = bound.names
            counter = data.get(names.sequence) or 0
            if found[names.sequence] > counter:
                logger.warning(
                    "%s: a raw save, as by loaddata or by a library that keeps versions of rows, holds %r as of "
                    "transition %d, and the row has had %d. So its machine's columns were left alone: it stays in %r. All "
                    "other fields were written. To bring its state back too, move it with force_transition_to().",
                    row_label(self.instance),
                    names.status,
                    counter,
                    found[names.sequence],
                    found[names.status],
                )
        self._learn(found)
