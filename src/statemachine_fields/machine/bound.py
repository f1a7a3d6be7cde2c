"""`Order.states`: what people may ask and tell a machine as one class has it. What it is made of is in `binding`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from django.db import models, router

from statemachine_fields.machine.twins import as_async

if TYPE_CHECKING:
    from statemachine_fields.machine.attempts import StateAttempt
    from statemachine_fields.machine.audit import StateTransition
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.machine.bulk import BulkResult
    from statemachine_fields.machine.delivery import Delivery
    from statemachine_fields.machine.events import StateEvent
    from statemachine_fields.machine.history_import import ImportResult
    from statemachine_fields.machine.questions import Durations

M = TypeVar("M", bound=models.Model)


class BoundMachine(Generic[M]):
    """A machine bound to the model whose table has its columns. Proxies and multi-table children share it. If it
    has events, what a child has is equal to it, and finds the child's rows where it looks for rows by their fields.

    What it returns is a copy or immutable: nobody can change the graph through it. `str()` gives its name, as
    `shop.Order.states`.
    """

    def __init__(self, binding: Binding[M], asked: type[models.Model] | None = None) -> None:
        self._meta = binding
        self._asked: type[models.Model] = asked or binding.model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundMachine) and self._meta is other._meta

    def __hash__(self) -> int:
        return hash(self._meta)

    def __str__(self) -> str:
        return str(self._meta)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._meta.face_of, (self._asked,)

    @property
    def model(self) -> type[M]:
        """The model whose table has the machine's columns."""
        return self._meta.model

    @property
    def accessor(self) -> str:
        """The attribute under which the model has the machine."""
        return self._meta.accessor

    @property
    def states(self) -> list[tuple[str, str]]:
        """The states as `(value, label)` pairs, in the order declared, labels in the active language."""
        return [(state.value, str(state.label)) for state in self._meta.graph.states.values()]

    @property
    def initial(self) -> str:
        """The state of new rows."""
        return self._meta.graph.initial

    @property
    def transitions(self) -> dict[str, list[str]]:
        """The states that each state may move to, as declared."""
        return {source: list(targets) for source, targets in self._meta.graph.edges.items()}

    @property
    def terminal_states(self) -> tuple[str, ...]:
        """The states that no move leads out of."""
        return self._meta.graph.terminal_states

    @property
    def transition_model(self) -> type[StateTransition[M]]:
        """The audit model."""
        return self._meta.transition_model

    @property
    def attempt_model(self) -> type[StateAttempt[M]]:
        """The model of tries that did not move their row. AttributeError without `record_attempts`."""
        return self._meta.attempt_model

    @property
    def event_model(self) -> type[StateEvent[M]]:
        """The model of the events that were delivered to rows.

        :raises StateMachineError: no state of the machine waits for events.
        """
        return self._meta.require_events()

    @property
    def event_names(self) -> tuple[str, ...]:
        """The names of the events that rows wait for in some state."""
        return self._meta.event_names

    def diagram(self, format: str = "mermaid", *, details: bool = False) -> str:
        """Return a drawing of the machine: `mermaid`, `dot`, `markdown` or `svg`, labels in the active language.

        :param details: also say what happens by itself: handlers, guards, time-outs, failures, deletion.
        """
        from statemachine_fields.drawing.details import NO_DETAILS, details_of
        from statemachine_fields.drawing.diagram import draw

        return draw(
            self._meta.graph, format, title=str(self), details=details_of(self._meta) if details else NO_DETAILS
        )

    def bulk_transition(
        self,
        queryset: models.QuerySet[Any],
        to_status: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        batch_size: int = 10_000,
        record: Mapping[str, Any] | None = None,
        user: Any = None,
    ) -> BulkResult:
        """Move every row of the queryset that may move, record each, and return how many did and which did not.

        Set-based: a constant number of statements for each batch, one transaction each, so an error keeps the batches
        before it. Rows are locked in key order and judged by what they then hold. Guards, permissions that depend on the
        row, receivers, a `save()` of the model's own, a `transition_base` and `auto_now` fields in a multi-table child's
        table or with a `pre_save()` of their own make it go row by row, a thousand in a batch at most. Written are the
        machine's columns and `auto_now` fields.

        :param record: values for the fields that `transition_base` added to the audit table.
        :param user: who moves the rows. Their permission is asked, and they are recorded as `actor`.
        """
        from statemachine_fields.machine.bulk import BulkTransitioner

        return BulkTransitioner(self._meta, queryset, to_status, metadata, batch_size, user, record).run()

    abulk_transition = as_async(bulk_transition)

    def deliver(
        self,
        name: str,
        payload: Any = None,
        *,
        where: Mapping[str, Any],
        dedup_key: str | None = None,
        using: str | None = None,
    ) -> Delivery:
        """Deliver an event to the one row that fits, as `deliver()` of the row does.

        :param where: what the row is known by, as for `filter()`: `{"number": "A-17"}`. Of a multi-table child, its own fields, too;
            then it is one of its rows. If it names the fields of `unique_while_live` and several rows fit, the one that has the
            key is meant.
        :param using: the database, if not the one that the router chooses.
        :raises RowMissing: no row fits. `MultipleObjectsReturned` of the model if several do, and none of them has a live key by which
            they are known.
        """
        from statemachine_fields.machine.delivery import Deliverer

        deliverer = Deliverer(self._meta, using or router.db_for_write(self._asked), self._asked)
        return deliverer.deliver(deliverer.find(where), name, payload, dedup_key)

    adeliver = as_async(deliver)

    def bulk_deliver(
        self,
        events: Iterable[Mapping[str, Any]],
        *,
        by: str = "pk",
        batch_size: int = 1000,
        using: str | None = None,
    ) -> list[Delivery]:
        """Deliver many events, and return what became of each, in their order.

        Each is a dict: `key`, `name`, and, if it has them, `payload` and `dedup_key`. Those for one row are delivered in the
        order given. A constant number of statements for each batch, one transaction each, so that an error keeps the batches
        before it. Rows are locked in the order of their keys. A row that has ended, or that there is not, is an answer here and
        no error: *refused* and *missing*.

        :param by: the field that `key` is a value of, if that is not the primary key. If it is that of `unique_while_live`, the row is
            meant that has the key.
        :param using: the database, if not the one that the router chooses.
        :raises EventRefused: no state of the machine waits for an event of that name.
        :raises TypeError: an entry is not what is described here, or its payload cannot be written as JSON. Nothing of its batch
            is written.
        """
        from statemachine_fields.machine.delivery import Deliverer

        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        deliverer = Deliverer(self._meta, using or router.db_for_write(self._asked), self._asked)
        return deliverer.deliver_all(events, by, batch_size)

    abulk_deliver = as_async(bulk_deliver)

    def record_initial(self, queryset: models.QuerySet[Any], *, batch_size: int = 1000) -> int:
        """Give each row that has no history its first record, and return how many got one.

        For rows that no `save()` inserted: those of `bulk_create()`, and those that were there before the machine was.
        Rows that have moved or been recorded are left alone, so it can be repeated. One transaction for each batch.
        """
        from statemachine_fields.machine.initial_records import InitialRecorder

        return InitialRecorder(self._meta, queryset, batch_size).run()

    arecord_initial = as_async(record_initial)

    def import_history(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        gaps: Literal["refuse", "record"] = "refuse",
        past_states: Collection[str] = (),
        batch_size: int = 1000,
        progress: Callable[[ImportResult], None] | None = None,
        using: str | None = None,
    ) -> ImportResult:
        """Write what happened to rows before the machine was there, and return how many got it and which did not.

        Each entry is a dict: `key`, `to_status` (or `to`), `at`, and, if known, `from_status` (or `from`), `metadata` and
        `record` (values for the fields of `transition_base`). The entries of a key follow each other, by time. Without `from_status` an entry
        says where the row was; if it was there already, that is no move. `rows` is read once, by `aimport_history()` in the
        thread that writes, and may be a generator: the entries of one key at a time are in memory.

        One transaction for each key, in which the row is locked. The last entry leads to the row's status, and
        `changed_at` becomes its time; where the row has moved since, it leads to where that began, and the numbers of
        those records go up, also in tries and events that name them. What does not fit together is refused with the
        reason, nothing is written for that key, and the others go on. Rows that have these records already are skipped, so it can be repeated. Guards are not asked,
        and no signal is sent. The metadata of each record says `imported`.

        :param gaps: with `"record"`, what is missing between two entries, or after the last, becomes a record whose
            metadata says `gap`. Otherwise the row is refused.
        :param past_states: states that history may name although they are not declared any more.
        :param batch_size: how many records one INSERT has at most.
        :param progress: called with the result so far, after each key.
        :param using: the database, if not the one that the router chooses.
        :raises TypeError: an entry is not what is described here. So does `ValueError`, for an `at` without a time zone.
            Keys that came before keep their history.
        """
        from statemachine_fields.machine.history_import import HistoryImporter

        return HistoryImporter(self._meta, rows, gaps, past_states, batch_size, progress, using).run()

    aimport_history = as_async(import_history)

    def in_state(self, *states: str) -> models.QuerySet[M]:
        """Return the rows that are in one of the states.

        :raises UnknownState: one of them is not declared. `ValueError` if none is named.
        """
        return self._meta.questions.in_state(*states)

    def live(self, *, using: str | None = None, **key: Any) -> M | None:
        """Return the live row that has the key of `unique_while_live`, all of whose fields are given by name; None if none has.

        Also a row that the model's managers leave out: the key is unique in the table.

        :param using: the database, if not the one that the router chooses.
        :raises StateMachineError: the machine has no `unique_while_live`.
        :raises TypeError: what is given is not the key. `ValueError` if a value is None, which is no key.
        """
        return self._meta.live_key().live(key, using)

    alive = as_async(live)

    def get_or_start(
        self, defaults: Mapping[str, Any] | None = None, *, using: str | None = None, **key: Any
    ) -> tuple[M, bool]:
        """Return the live row that has the key of `unique_while_live`, and False; or make it, and return it and True.

        As `get_or_create()`, and right whoever else does so, or ends the row, at the same time. A new row is made by the model's
        own `save()`. In a transaction as out of one, and without a savepoint.

        :param defaults: values of other fields of a new row. What is callable is called.
        :param using: the database, if not the one that the router chooses.
        :raises StateMachineError: the machine has no `unique_while_live`.
        :raises TypeError: what is given is not the key. `ValueError` if a value is None, which is no key, or if the new row
            would not be live.
        :raises DuplicateLiveRow: others took the key and gave it up again whenever it was looked at, or the row that has it
            cannot be seen.
        """
        return self._meta.live_key().get_or_start(key, defaults, using)

    aget_or_start = as_async(get_or_start)

    def undeclared_states(self, *, using: str | None = None) -> list[str]:
        """Return the states that rows are in although the machine does not declare them, sorted; at most 100.

        No move leads out of such a state, and no worker takes its rows: they came there past the machine, or before the
        state was removed from the code. Declare it again, or move them on with `force_transition_to()`. The index on the
        status column answers, however large the table is.

        :param using: the database, if not the one that the router chooses.
        """
        return self._meta.questions.undeclared_states(using)

    aundeclared_states = as_async(undeclared_states)

    def as_of(self, when: datetime.datetime) -> models.QuerySet[M]:
        """Return all rows with the status they had at an instant, as `status_as_of` (`<status field>_as_of`).

        It is what the last transition at or before the instant led to; where there was none yet, what the row's first
        transition led away from; where the row has no transitions, its current status. None is for rows that were
        not there yet, which only `record_initial` knows. Rows that were deleted since are missing.

        :raises ValueError: the instant is naive although the project uses time zones, or the reverse.
        """
        return self._meta.questions.as_of(when)

    def status_as_of(self, when: datetime.datetime) -> models.Expression:
        """Return the expression behind `as_of()`, for querysets of the model that has the machine's columns."""
        return self._meta.questions.status_as_of(when)

    def stuck(self, state: str, older_than: datetime.timedelta | float) -> models.QuerySet[M]:
        """Return the rows that entered the state longer ago than a `timedelta` or seconds, the oldest first.

        The database's clock decides, when the query runs.

        :raises UnknownState: the state is not declared.
        :raises ValueError: the age is negative.
        """
        return self._meta.questions.stuck(state, older_than)

    def durations(
        self,
        since: datetime.datetime | None = None,
        until: datetime.datetime | None = None,
        *,
        using: str | None = None,
    ) -> Durations:
        """Return how long rows stayed in each state, and before each move, that they left within a window of time.

        Count, median and 95th percentile, in one statement. A stay is the time between two transitions of a row that
        follow each other by number. So what came before a row's first transition does not count, unless
        `record_initial` recorded the start; and a state that a row is still in does not count.

        :param since: look at moves from this instant on, `until` at those before that one. Without `since` all of the
            audit table is read.
        :param using: the database, if not the one that the router chooses.
        :raises ValueError: an instant is naive although the project uses time zones, or the reverse.
        """
        return self._meta.questions.durations(since, until, using)

    adurations = as_async(durations)

    def due(self) -> models.QuerySet[M]:
        """Return the rows that a worker could take now, those that have waited longest first."""
        return self._meta.due()

    def leased(self) -> models.QuerySet[M]:
        """Return the rows that a worker holds, those whose lease ends first at the top."""
        return self._meta.leased()

    def parked(self) -> models.QuerySet[M]:
        """Return the rows that were taken out of the clock, with the reason in their `error` column."""
        return self._meta.parked()
