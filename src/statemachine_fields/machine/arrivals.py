"""Whether rows have reached states that somebody waits for: one look at many of them.

A look reads where the rows are, and the records of those alone that have moved since. So a state that a row has only passed
through is not missed, and a row that stays where it is costs next to nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django.db import connections, models
from django.db.models import Q

from statemachine_fields.db.batches import LARGEST_KEY_LIST
from statemachine_fields.db.rows import all_rows
from statemachine_fields.exceptions import RowMissing, StateMachineError, either
from statemachine_fields.machine.initial_records import records_of_rows

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

T = TypeVar("T")

#: Of how many rows that have moved one statement reads records, and how many of them.
MOST_MOVED = 200
MOST_RECORDS = 1000


class Arrival(NamedTuple):
    """That a row has reached one of the states: the record of it, as values by attribute."""

    values: dict[str, Any]
    #: Whether there is such a record. Else it is what `record_initial` would have written.
    is_recorded: bool = True


class Waiter:
    """One wait for one row, and what is known of the row so far."""

    __slots__ = ("bound", "future", "key", "label", "pk", "seen", "sequence", "states", "status")

    def __init__(
        self, bound: Binding[Any], pk: Any, label: str, states: Sequence[str], seen: int | None, using: str
    ) -> None:
        self.bound = bound
        self.pk = pk
        #: What tells rows apart: of some keys, Python has more than one form.
        self.key = key_as_written(bound, pk, using)
        self.label = label
        self.states = tuple(dict.fromkeys(states))
        #: The number of the last move that is known to lead elsewhere; None for the last that there is at the first look.
        self.seen = seen
        #: Where the row was at the last look.
        self.sequence, self.status = 0, ""
        self.future: Future[Arrival] = Future()

    def arrived(self, arrival: Arrival) -> None:
        with suppress(InvalidStateError):  # nobody waits for it any more
            self.future.set_result(arrival)

    def failed(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def awaits(self, values: dict[str, Any]) -> bool:
        """Say whether a record of the row is one that is waited for."""
        return self.seen is not None and values["sequence"] > self.seen and values["to_status"] in self.states


def key_as_written(bound: Binding[Any], key: Any, using: str) -> Any:
    """Return a key in the form in which the database gets it, which all forms of it have in common."""
    return bound.model._meta.pk.get_db_prep_value(key, connections[using])


def look(bound: Binding[Any], waiters: Sequence[Waiter], using: str) -> None:
    """Look at the rows of one machine, and answer those waiters for whom there is an answer."""
    _look_at_rows(bound, waiters, using)
    moved: list[Waiter] = []
    for waiter in waiters:
        if waiter.future.done():
            continue
        if waiter.seen is None or waiter.sequence < waiter.seen:  # as if what the instance knows of was rolled back
            waiter.seen = waiter.sequence
        if waiter.sequence > waiter.seen:
            moved.append(waiter)
        elif waiter.status in waiter.states:
            waiter.arrived(_arrival_before(waiter, using))
        else:
            _give_up_if_ended(waiter)
    for some in _cut(moved, MOST_MOVED):
        _look_at_records(bound, some, using)


def _look_at_rows(bound: Binding[Any], waiters: Sequence[Waiter], using: str) -> None:
    """Let each waiter know where its row is, or that it is gone."""
    columns = ("pk", bound.names.sequence, bound.names.status)
    rows = all_rows(bound.model, using)
    keys = list({waiter.key: waiter.pk for waiter in waiters}.values())
    found: dict[Any, tuple[Any, ...]] = {}
    for some in _cut(keys, LARGEST_KEY_LIST):
        for row in rows.filter(pk__in=some).values_list(*columns):
            found[key_as_written(bound, row[0], using)] = row
    for waiter in waiters:
        place = found.get(waiter.key)
        if place is None:  # it is gone, or equal to another only for the database, as text in another case may be
            place = rows.filter(pk=waiter.pk).values_list(*columns).first()
            if place is None:
                waiter.failed(RowMissing(waiter.label, saved=True))
                continue
            waiter.pk, waiter.key = place[0], key_as_written(bound, place[0], using)
        waiter.sequence, waiter.status = place[1:]


def _look_at_records(bound: Binding[Any], waiters: Sequence[Waiter], using: str) -> None:
    """Answer those whose rows have been in one of the states since, and let the others know that theirs have not."""
    waiting = list(waiters)
    while waiting:
        # Each record found is one that somebody waits for, so after an answer that is cut off there are fewer who wait.
        alike: defaultdict[tuple[int | None, tuple[str, ...]], list[Any]] = defaultdict(list)
        for waiter in waiting:
            alike[waiter.seen, waiter.states].append(waiter.pk)
        which = Q(
            *[
                Q(instance_id__in=keys, sequence__gt=seen, to_status__in=states)
                for (seen, states), keys in alike.items()
            ],
            _connector=Q.OR,
        )
        records = _records(bound, which, using).order_by("instance_id", "sequence")[:MOST_RECORDS]
        found: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
        for values in records:
            found[key_as_written(bound, values["instance_id"], using)].append(values)
        left = []
        for waiter in waiting:
            first = next((values for values in found[waiter.key] if waiter.awaits(values)), None)
            if first is None:
                left.append(waiter)
            else:
                waiter.arrived(Arrival(first))
        if len(records) < MOST_RECORDS or len(left) == len(waiting):
            for waiter in left:
                waiter.seen = waiter.sequence
                if waiter.status in waiter.states:  # its record is gone
                    waiter.arrived(_arrival_before(waiter, using))
                else:
                    _give_up_if_ended(waiter)
            return
        waiting = left


def _arrival_before(waiter: Waiter, using: str) -> Arrival:
    """Return the record that led to where the row is."""
    bound, names = waiter.bound, waiter.bound.names
    newest = _records(bound, Q(instance_id=waiter.pk), using).order_by("-sequence").first()
    if newest is not None and newest["to_status"] == waiter.status:
        return Arrival(newest)
    changed_at = all_rows(bound.model, using).filter(pk=waiter.pk).values_list(names.changed_at, flat=True).first()
    values = {
        "instance_id": waiter.pk,
        "from_status": "",
        "to_status": waiter.status,
        "transitioned_at": changed_at,
        "sequence": waiter.sequence,
    }
    return Arrival(values, is_recorded=False)


def _records(bound: Binding[Any], which: Q, using: str) -> models.QuerySet[Any, dict[str, Any]]:
    audit = bound.transition_model
    columns = [field.attname for field in audit._meta.concrete_fields]
    return records_of_rows(bound, all_rows(audit, using).filter(which)).values(*columns)


def _give_up_if_ended(waiter: Waiter) -> None:
    graph = waiter.bound.graph
    if waiter.status in graph and graph.is_terminal(waiter.status):
        waiter.failed(
            StateMachineError(
                f"{waiter.label} has ended in {waiter.status!r}, out of which no move leads, so it will never get to "
                f"{either(waiter.states)}. Wait for {waiter.status!r} as well, if a row may end there."
            )
        )


def _cut(given: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(given), size):
        yield given[start : start + size]
