"""How a move is written, worked out once for all that this depends on.

A plan depends on the class and its `save()`, on the database, on what the caller compares, and on who listens. All of it is
in the key by which a plan is kept, so there is nothing to invalidate: a receiver that is connected, or a method that is
patched, makes another key. Of methods the key says only whether they are Django's: what is patched in may compare equal to
what it wraps, have no hash, or be made anew whenever it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import models
from django.db.models.signals import post_init, post_save, pre_init, pre_save

from statemachine_fields.db.dialect import RowWriteKind, RowWriter, dialect_for
from statemachine_fields.db.effects import ANNOUNCE, ENTER
from statemachine_fields.machine.updates import auto_now_fields, has_generated_fields, is_refreshed_apart
from statemachine_fields.signals import post_transition, pre_transition, transition_committed

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.machine.pending import Pending

#: How many plans a machine keeps. There are few, unless somebody makes classes again and again.
MOST_PLANS = 100


class Heard(NamedTuple):
    """Of what somebody hears: the row's `save()`, the record's, the making of a record, and the signals of a move."""

    before_row: bool = False
    after_row: bool = False
    before_record: bool = False
    after_record: bool = False
    before_making: bool = False
    after_making: bool = False
    before: bool = False
    after: bool = False
    committed: bool = False


UNHEARD = Heard()


class Plan:
    """What is known of a move before there is a row."""

    def __init__(self, bound: Binding[Any], connection: Any, kind: tuple[Any, ...]) -> None:
        """Work it out from the key, and ask nobody again: what listens may have come or gone since the key was made."""
        model, _database, save, compares, (saves, saves_base, makes), heard = kind
        self._bound = bound  # and no connection: that is of a thread, and a plan outlives it
        self._compares = ("status", *compares)
        names, columns = bound.names, bound.table.columns
        # Django may read back what is generated.
        is_watched = heard.before_row or heard.after_row or has_generated_fields(model)
        #: Whether the status is left to the model's own `save()`.
        self.by_save = save and (is_watched or not (saves and saves_base))
        #: Whether our statement sets the status. If not, a `save()` will.
        self.moves = save and not self.by_save
        self.effect = ENTER if self.moves else ANNOUNCE
        #: Whether our statement inserts the audit row. If not, the audit model's own `save()` will.
        self.records = not (heard.before_record or heard.after_record)
        self.makes_records_plainly = makes and not (heard.before_making or heard.after_making)
        self.tells_before, self.tells_after, self.tells_committed = heard.before, heard.after, heard.committed
        self.refreshed = auto_now_fields(model)
        #: Whether everything is one statement, so that it needs no transaction around it.
        self.is_alone = (
            dialect_for(connection).is_one_statement
            and self.records
            and not (self.by_save or self.tells_before or self.tells_after)
        )
        self.status, self.sequence, self.changed_at = names.columns
        self.schedule = (names.next_at, names.lease_token) if bound.is_timed else None
        #: What the instance holds afterwards, whatever it held.
        self.emptied = self.effect.empties(names, columns)
        #: In how many seconds a row is due, by the state that it enters, and before that how many events were seen.
        self.entries = {state: bound.entry_values(state) for state in bound.graph.states}
        self._writes: dict[tuple[tuple[str, ...], bool], RowWriter] = {}
        #: What moves a row of which nothing else is asked: nobody listens or guards, and nothing else is written or told.
        self.straight: RowWriter | None = None
        if (
            self.is_alone
            and save
            and self.makes_records_plainly
            and bound.transition_model.__setattr__ is object.__setattr__  # records are filled by one assignment
            and not (compares or self.tells_committed or bound.guards or bound.keeps_history or bound.record_fields)
            and not any(is_refreshed_apart(field, bound.model) for field in self.refreshed)
        ):
            self.straight = self.write(connection, tuple([field.column for field in self.refreshed]), True)

    def write(self, connection: Any, updates: tuple[str, ...], records: bool) -> RowWriter:
        """Return what writes a row that moves, with values for other columns."""
        kind = (updates, records)
        found = self._writes.get(kind)
        if found is None:
            extras = self._bound.extra_columns if records else ()
            write = RowWriteKind(self._bound.table, self.effect, self._compares, records, updates, extras)
            found = self._writes[kind] = dialect_for(connection).row_write(connection, write)
        return found

    def bring_up(
        self, instance: models.Model, to_status: str, moved: tuple[Any, ...], pending: Pending | None = None
    ) -> None:
        """Bring an instance up to the row that has moved."""
        data = vars(instance)
        data[self.sequence], data[self.changed_at] = moved[0], moved[1]
        if self.schedule is not None:
            data.update(self.emptied)
            data[self.schedule[0]], data[self.schedule[1]] = moved[2], moved[3]
        self._bound.field.assignments.write(instance, to_status, pending)


def plan_for(
    bound: Binding[Any],
    model: type[models.Model],
    connection: Any,
    save: bool = True,
    compares: tuple[str, ...] = (),
) -> Plan:
    """Return how such a move is written. What it depends on is its key."""
    audit: Any = bound.audit_model or bound.transition_model  # which says why there is none
    methods = (
        model.save is models.Model.save,
        getattr(model.save_base, "__wrapped__", model.save_base) is models.Model.save_base,
        audit.__init__ is models.Model.__init__,
    )
    heard = UNHEARD
    if (
        pre_save.receivers
        or post_save.receivers
        or pre_init.receivers
        or post_init.receivers
        or pre_transition.receivers
        or post_transition.receivers
        or transition_committed.receivers
    ):
        heard = Heard(
            bool(pre_save.receivers) and pre_save.has_listeners(model),
            bool(post_save.receivers) and post_save.has_listeners(model),
            bool(pre_save.receivers) and pre_save.has_listeners(audit),
            bool(post_save.receivers) and post_save.has_listeners(audit),
            bool(pre_init.receivers) and pre_init.has_listeners(audit),
            bool(post_init.receivers) and post_init.has_listeners(audit),
            bool(pre_transition.receivers) and pre_transition.has_listeners(bound.model),
            bool(post_transition.receivers) and post_transition.has_listeners(bound.model),
            bool(transition_committed.receivers) and transition_committed.has_listeners(bound.model),
        )
    database = (connection.alias, type(connection))  # a name may be given to another
    kind = (model, database, save, compares, methods, heard)
    found = bound.plans.get(kind)
    if found is None:
        if len(bound.plans) >= MOST_PLANS:
            bound.plans.clear()
        found = bound.plans[kind] = Plan(bound, connection, kind)
    return found
