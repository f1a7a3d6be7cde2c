"""Ours: the only module of the index benchmark that knows how the library claims and moves."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from django.db import models

from statemachine_fields.db.counting import count_each_and_find
from statemachine_fields.machine.ids import uuid7_many
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.lease import lanes_of

#: What further columns make of our statements: what stands in them, and what is to stand behind it. A claim names an
#: owner; what ends a try empties it.
CLAIMS = (re.compile(r'"status_lease_owner" = %s'), ', "more_at" = clock_timestamp(), "more_tries" = "more_tries" + 1')
ENDS = (re.compile(r"""(?:t\.)?"status_lease_owner" = ''"""), ', "more_mark" = false')

FURTHER = {
    "indexed_parcel": (),
    "indexed_triedparcel": (CLAIMS,),
    "indexed_markedparcel": (ENDS,),
    "indexed_fullparcel": (CLAIMS, ENDS),
}


class Worker:
    """What a worker does to the rows of one table in one database, one statement for each call."""

    def __init__(self, model: type[models.Model], using: str) -> None:
        (lane,) = lanes_of([model.states._meta], using=using)  # type: ignore[attr-defined]
        self.model: Any = model
        self.using = using
        self.lane = lane
        self.lanes = {state: replace(lane, schedules={state: found}) for state, found in lane.schedules.items()}
        self.claimer = Claimer("benchmark", 600)

    def claim(self, state: str, limit: int) -> list[Any]:
        return self.claimer.claim(self.lanes[state], limit)

    def move(self, leases: Sequence[Any], state: str, delay: float | None) -> int:
        many = len(leases)
        entered = {"status": [state] * many, "next_at": [delay] * many}
        recorded = {"record": uuid7_many(many), "metadata": ["{}"] * many}
        return len(self.lane.enter({**compared(leases), **entered, **recorded}))

    def settle(self, leases: Sequence[Any], delay: float) -> int:
        many = len(leases)
        stays = {"failures": [0] * many, "error": [""] * many, "next_at": [delay] * many, "horizon": [None] * many}
        return len(self.lane.stay({**compared(leases), **stays}))

    def beat(self, leases: Sequence[Any]) -> int:
        return len(self.lane.beat([lease.key for lease in leases], [lease.token for lease in leases], 600))

    def release(self, leases: Sequence[Any]) -> int:
        return len(self.lane.release([lease.key for lease in leases], [lease.token for lease in leases]))


def compared(leases: Sequence[Any]) -> dict[str, list[Any]]:
    """Return what must still hold of each row."""
    return {
        "key": [lease.key for lease in leases],
        "was_lease_token": [lease.token for lease in leases],
        "was_status": [lease.status for lease in leases],
    }


def count_states(model: Any, using: str, limit: int = 10_000) -> None:
    """Count the rows of each state up to a limit, and look for undeclared ones, as the filter of the admin does."""
    rows, bound = model.objects.using(using).order_by(), model.states._meta
    count_each_and_find(
        {state: rows.filter(status=state) for state in bound.graph.states}, limit, bound.questions.other_values()
    )


def with_further_columns(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    """Let our statements write the columns that the table has besides ours."""
    return execute(_rewritten(sql), params, many, context)


@cache
def _rewritten(sql: str) -> str:
    for table, changes in FURTHER.items():
        if f'"{table}"' in sql:
            for found, addition in changes:
                sql = found.sub(lambda match, more=addition: match.group() + more, sql)  # type: ignore[misc]
    return sql
