"""Questions about all rows of a machine: who is where, who was where, who is stuck, how long it takes."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from asgiref.sync import sync_to_async
from django.db import connections, models, router
from django.db.models.functions import Coalesce, Now, NullIf
from django.utils import timezone

from statemachine_fields.db.clock import DatabaseClock
from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.db.durations import Stay, Window
from statemachine_fields.db.values import OtherValues
from statemachine_fields.machine.graph import StateGraph, plain
from statemachine_fields.machine.ids import uuid7_floor
from statemachine_fields.machine.kept import records_of_rows
from statemachine_fields.machine.rows import all_rows

if TYPE_CHECKING:
    from statemachine_fields.db.columns import Names
    from statemachine_fields.db.dialect import Table
    from statemachine_fields.machine.audit import StateTransition
    from statemachine_fields.machine.bound import BoundMachine
    from statemachine_fields.machine.judge import Judge

M = TypeVar("M", bound=models.Model)

MICROSECOND = datetime.timedelta(microseconds=1)

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
    """What a machine can be asked of many rows at once. Every answer is computed in the database."""

    if TYPE_CHECKING:
        model: type[M]
        graph: StateGraph
        names: Names
        table: Table
        judge: Judge

        @property
        def transition_model(self) -> type[StateTransition[M]]: ...

    def in_state(self, *states: str) -> models.QuerySet[M]:
        """Return the rows that are in one of the states.

        :raises UnknownState: one of them is not declared. `ValueError` if none is named.
        """
        if not states:
            raise ValueError(f"{self}: in_state() needs at least one state. Use the model's manager for all rows.")
        if not all(isinstance(state, str) for state in states):
            raise TypeError(f"{self}: in_state() takes states one by one, as in_state('A', 'B'), got {states!r}.")
        return self._rows.filter(**{f"{self.names.status}__in": [self._declared(state) for state in states]})

    def undeclared_states(self, *, using: str | None = None) -> list[str]:
        """Return the states that rows are in although the machine does not declare them, sorted; at most 100.

        No move leads out of such a state, and no worker takes its rows: they came there past the machine, or before the
        state was removed from the code. Declare it again, or move them on with `force_transition_to()`. The index on the
        status column answers, however large the table is.

        :param using: the database, if not the one that the router chooses.
        """
        return self.other_values().ask(connections[using or router.db_for_read(self.model)])

    async def aundeclared_states(self, *, using: str | None = None) -> list[str]:
        """As `undeclared_states()`, without blocking the event loop."""
        return await sync_to_async(self.undeclared_states)(using=using)

    def other_values(self) -> OtherValues:
        """Return what finds values of the status column that are not declared."""
        return OtherValues(self.model._meta.db_table, self.names.status, tuple(self.graph.states))

    def as_of(self, when: datetime.datetime) -> models.QuerySet[M]:
        """Return all rows with the status they had at an instant, as `status_as_of` (`<status field>_as_of`).

        It is what the last transition at or before the instant led to; where there was none yet, what the row's first
        transition led away from; where the row has no transitions, its current status. None is for rows that were
        not there yet, which only `record_initial` knows. Rows that were deleted since are missing.

        :raises ValueError: the instant is naive although the project uses time zones, or the reverse.
        """
        rows: models.QuerySet[M] = self._rows.annotate(**{f"{self.names.status}_as_of": self.status_as_of(when)})
        return rows

    def stuck(self, state: str, older_than: datetime.timedelta | float) -> models.QuerySet[M]:
        """Return the rows that entered the state longer ago than a `timedelta` or seconds, the oldest first.

        The database's clock decides, when the query runs.

        :raises UnknownState: the state is not declared.
        :raises ValueError: the age is negative.
        """
        age = older_than if isinstance(older_than, datetime.timedelta) else datetime.timedelta(seconds=older_than)
        if age < datetime.timedelta(0):
            raise ValueError(f"{self}: older_than must not be negative, got {older_than!r}.")
        changed_at = self.names.changed_at
        entered = {f"{changed_at}__lt": StatementClock() - age}
        return self._rows.filter(**{self.names.status: self._declared(state)}, **entered).order_by(changed_at, "pk")

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
        window = Window(
            since=None if since is None else read_instant(since, "since"),
            until=None if until is None else read_instant(until, "until"),
            first_id=None if since is None else uuid7_floor(max(since.timestamp() - ID_SLACK.total_seconds(), 0)),
        )
        connection = connections[using or router.db_for_read(self.transition_model)]
        stays = dialect_for(connection).durations(connection, self.table, window)
        return _sorted_durations(self.graph, stays)

    async def adurations(
        self,
        since: datetime.datetime | None = None,
        until: datetime.datetime | None = None,
        *,
        using: str | None = None,
    ) -> Durations:
        """As `durations()`, without blocking the event loop."""
        return await sync_to_async(self.durations)(since, until, using=using)

    def status_as_of(self, when: datetime.datetime) -> models.Expression:
        """Return the expression behind `as_of()`, for querysets of the model that has the machine's columns."""
        of_row = all_rows(self.transition_model).filter(instance=models.OuterRef(self.model._meta.pk.attname))
        records = records_of_rows(cast("BoundMachine[Any]", self), of_row)
        earlier = records.filter(**_at_or_before(read_instant(when, "when")))
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
        self.judge.require_state(state)
        return plain(state)


class StatementClock(Now):
    """The database's clock for comparisons: one time for the whole statement, so that an index is searched by it."""

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # Django's is the session's local time, and the columns are in UTC.
        return DatabaseClock().as_mysql(compiler, connection, **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # Django's is UTC, and the columns may be in local time.
        return DatabaseClock().as_sqlite(compiler, connection, **context)


def read_instant(when: datetime.datetime, name: str) -> datetime.datetime:
    """Return a datetime if it is aware where the project's are, and naive where they are, or raise ValueError."""
    if not isinstance(when, datetime.datetime):
        raise TypeError(f"{name} must be a datetime, got {when!r}.")
    aware = timezone.is_aware(timezone.now())
    if timezone.is_aware(when) == aware:
        return when
    if aware:
        raise ValueError(
            f"{name} must be an aware datetime, because USE_TZ is True, got {when!r}. "
            "Use django.utils.timezone.make_aware(), which takes it for a time in the current time zone."
        )
    raise ValueError(
        f"{name} must be a naive datetime, because USE_TZ is False, got {when!r}. "
        "Use django.utils.timezone.make_naive()."
    )


def _at_or_before(when: datetime.datetime) -> dict[str, Any]:
    # SQLite compares texts. Its clock writes '12:00:00.000000', Django writes a whole second as '12:00:00', which is less.
    if when.microsecond == 0:
        return {"transitioned_at__lt": when + MICROSECOND}
    return {"transitioned_at__lte": when}


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
