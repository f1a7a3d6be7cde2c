"""Questions about all rows of a machine: who is where, who was where, who is stuck, how long it takes."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.db import connections, models, router
from django.db.models.functions import Coalesce, NullIf

from statemachine_fields.db.clock import StatementClock, at_or_before, read_instant
from statemachine_fields.db.counting import OtherValues
from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.db.durations import Stay, Window, sorts_ids_by_time
from statemachine_fields.db.rows import all_rows
from statemachine_fields.machine.graph import StateGraph
from statemachine_fields.machine.ids import uuid7_floor
from statemachine_fields.machine.initial_records import records_of_rows
from statemachine_fields.schedule.policy import plain

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

M = TypeVar("M", bound=models.Model)

#: How far an id, made by a program's clock before the move, may lie before the move's time by the database's clock.
ID_SLACK = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Duration:
    """How long rows stayed: of how many stays, half were at most the median, and 95 of 100 at most `p95`."""

    count: int
    median: datetime.timedelta
    p95: datetime.timedelta


@dataclass(frozen=True, slots=True)
class Durations:
    """How long rows stayed in each state, and before each move. What nobody left is not in it."""

    states: dict[str, Duration]
    edges: dict[tuple[str, str], Duration]


class Questions(Generic[M]):
    """What a machine can be asked of many rows at once, as `Binding` says. Every answer is computed in the database."""

    def __init__(self, bound: Binding[M]) -> None:
        self.bound = bound
        self.model, self.graph, self.names = bound.model, bound.graph, bound.names

    def in_state(self, *states: str) -> models.QuerySet[M]:
        if not states:
            raise ValueError(
                f"{self.bound}: in_state() needs at least one state. Use the model's manager for all rows."
            )
        if not all(isinstance(state, str) for state in states):
            raise TypeError(f"{self.bound}: in_state() takes states one by one, as in_state('A', 'B'), got {states!r}.")
        return self._rows.filter(**{f"{self.names.status}__in": [self._declared(state) for state in states]})

    def undeclared_states(self, using: str | None) -> list[str]:
        return self.other_values().ask(connections[using or router.db_for_read(self.model)])

    def other_values(self) -> OtherValues:
        """Return what finds values of the status column that are not declared."""
        return OtherValues(self.model._meta.db_table, self.names.status, tuple(self.graph.states))

    def as_of(self, when: datetime.datetime) -> models.QuerySet[M]:
        rows: models.QuerySet[M] = self._rows.annotate(**{f"{self.names.status}_as_of": self.status_as_of(when)})
        return rows

    def stuck(self, state: str, older_than: datetime.timedelta | float) -> models.QuerySet[M]:
        age = older_than if isinstance(older_than, datetime.timedelta) else datetime.timedelta(seconds=older_than)
        if age < datetime.timedelta(0):
            raise ValueError(f"{self.bound}: older_than must not be negative, got {older_than!r}.")
        changed_at = self.names.changed_at
        entered = {f"{changed_at}__lt": StatementClock() - age}
        return self._rows.filter(**{self.names.status: self._declared(state)}, **entered).order_by(changed_at, "pk")

    def durations(
        self, since: datetime.datetime | None, until: datetime.datetime | None, using: str | None
    ) -> Durations:
        window = Window(
            since=None if since is None else read_instant(since, "since"),
            until=None if until is None else read_instant(until, "until"),
            first_id=None if since is None else uuid7_floor(max(since.timestamp() - ID_SLACK.total_seconds(), 0)),
        )
        connection = connections[using or router.db_for_read(self.bound.transition_model)]
        stays = dialect_for(connection).durations(connection, self.bound.table, window)
        return _sorted_durations(self.graph, stays)

    def status_as_of(self, when: datetime.datetime) -> models.Expression:
        of_row = all_rows(self.bound.transition_model).filter(instance=models.OuterRef(self.model._meta.pk.attname))
        records = records_of_rows(self.bound, of_row)
        earlier = records.filter(**at_or_before("transitioned_at", read_instant(when, "when")))
        return NullIf(
            Coalesce(
                models.Subquery(earlier.order_by("-sequence").values("to_status")[:1]),
                models.Subquery(records.order_by("sequence").values("from_status")[:1]),
                models.F(self.names.status),
                output_field=models.CharField(),
            ),
            models.Value(""),  # the first record of a row whose start was recorded leads away from nothing
            output_field=models.CharField(),
        )

    @property
    def _rows(self) -> models.QuerySet[M]:
        return self.model._default_manager.all()

    def _declared(self, state: str) -> str:
        self.bound.judge.require_state(state)
        return plain(state)


def records_since(
    records: models.QuerySet[Any], since: datetime.datetime, by: str = "transitioned_at"
) -> models.QuerySet[Any]:
    """Return the records of moves from an instant on. Their key finds them, where ids that are made later are larger.

    :param by: the field that says when, of records of another kind.
    """
    if sorts_ids_by_time(connections[records.db]):
        records = records.filter(pk__gte=uuid7_floor((since - ID_SLACK).timestamp()))
    return records.filter(**{f"{by}__gte": since})


def _sorted_durations(graph: StateGraph, stays: Iterable[Stay]) -> Durations:
    """Return the answer in the order of the declaration, and what is not declared after it, in alphabetical order."""
    states: dict[str, Duration] = {}
    edges: dict[tuple[str, str], Duration] = {}
    for stay in stays:
        found = Duration(
            stay.count, datetime.timedelta(microseconds=stay.median), datetime.timedelta(microseconds=stay.p95)
        )
        if stay.target is None:
            states[stay.source] = found
        else:
            edges[stay.source, stay.target] = found
    declared = [(source, target) for source, targets in graph.edges.items() for target in targets]
    return Durations(
        {
            state: states[state]
            for state in [*graph.states, *sorted(states.keys() - graph.states.keys())]
            if state in states
        },
        {edge: edges[edge] for edge in [*declared, *sorted(edges.keys() - set(declared))] if edge in edges},
    )
