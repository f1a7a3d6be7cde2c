"""How many rows are in each state, declared or not, without counting a large table: up to a limit, in one query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.utils.formats import number_format

from statemachine_fields.db.counting import count_each, count_each_and_find
from statemachine_fields.machine.binding import Binding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.contrib.admin import ModelAdmin
    from django.db import models
    from django.http import HttpRequest

#: Where the counts of a request are kept, as several parts of a page show them.
CACHE = "_statemachine_counts"


def count_states(model_admin: ModelAdmin[Any], request: HttpRequest, bound: Binding[Any], limit: int) -> dict[str, int]:
    """Return how many rows that the user may see are in each state; `limit` and one for more than `limit`.

    First the declared states, and after them others that there are such rows in. One query, and one more if there are.
    """
    cache: dict[str, dict[str, int]] = vars(request).setdefault(CACHE, {})
    if str(bound) not in cache:
        rows = model_admin.get_queryset(request).order_by()
        counts, others = count_each_and_find(
            _by_state(bound, rows, bound.graph.states), limit, bound.questions.other_values()
        )
        if others:
            undeclared = count_each(_by_state(bound, rows, others), limit)
            counts |= {state: number for state, number in undeclared.items() if number}
        cache[str(bound)] = counts
    return cache[str(bound)]


def _by_state(
    bound: Binding[Any], rows: models.QuerySet[Any], states: Iterable[str]
) -> dict[str, models.QuerySet[Any]]:
    return {state: rows.filter(**{bound.names.status: state}) for state in states}


def shown(count: int, limit: int) -> str:
    """Return a count as it is written: `1,204`, or `10,000+`."""
    text = number_format(min(count, limit), force_grouping=True)
    return f"{text}+" if count > limit else text
