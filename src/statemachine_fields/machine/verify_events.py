"""Find rows whose events do not fit: their numbers, the moves that took them, and rows that sleep beside one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.db.models import Count, Exists, F, Max, Min, OuterRef, Q, QuerySet

from statemachine_fields.db.rows import all_rows
from statemachine_fields.machine.findings import Finding
from statemachine_fields.schedule.asleep import is_stranded

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding


def event_findings(bound: Binding[Any], using: str, batch_size: int = 2000) -> Iterator[Finding]:
    """Yield what is wrong with the events of a machine; nothing if it has none.

    Page by page in the order of keys. Each page is a statement, which sees a row and its events at one moment, so that nothing
    is locked.
    """
    if "inbox" not in bound.features:
        return
    names, relation, machine = bound.names, bound.names.event_accessor, str(bound)
    rows: QuerySet[Any] = all_rows(bound.model, using)
    counted = rows.annotate(
        statemachine_count=Count(relation),
        statemachine_first=Min(f"{relation}__number"),
        statemachine_last=Max(f"{relation}__number"),
    )
    inbox = F(names.inbox)
    fits = Q(statemachine_count=inbox, statemachine_first=1, statemachine_last=inbox)
    is_empty = Q(statemachine_count=0, **{names.inbox: 0})
    facts = (names.inbox, "statemachine_count", "statemachine_last")
    for key, count, found, last in pages(counted.exclude(fits | is_empty), batch_size, *facts):
        what = f"The row has counted {count} events, and there are {found}, the last of them number {last or 0}."
        yield Finding(machine, key, "event-numbers", what)
    records = all_rows(bound.transition_model, using).filter(
        instance_id=OuterRef("instance_id"), sequence=OuterRef("taken_by")
    )
    unrecorded = all_rows(bound.require_events(), using).filter(~Exists(records), taken_by__isnull=False)
    for _id, key, number, taken_by in pages(unrecorded, batch_size, "instance_id", "number", "taken_by"):
        what = f"Event {number} was taken by move {taken_by}, of which there is no record."
        yield Finding(machine, key, "event-taker-missing", what)
    for key, status in pages(rows.filter(is_stranded(bound)), batch_size, names.status):
        yield Finding(
            machine, key, "event-unseen", f"The row sleeps in {status!r} beside an event that it waits for there."
        )


def pages(rows: QuerySet[Any], batch_size: int, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the key of each row and some columns of it, page by page."""
    page: list[tuple[Any, ...]] = list(rows.order_by("pk").values_list("pk", *columns)[:batch_size])
    while page:
        yield from page
        if len(page) < batch_size:
            return
        page = list(rows.filter(pk__gt=page[-1][0]).order_by("pk").values_list("pk", *columns)[:batch_size])
