"""How many rows are in each state, without counting a large table: up to a limit, in one query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.utils.formats import number_format

from statemachine_fields.db.kinds import count_each
from statemachine_fields.machine.bound import BoundMachine

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin
    from django.http import HttpRequest

#: Where the counts of a request are kept, as several parts of a page show them.
CACHE = "_statemachine_counts"


def count_states(
    model_admin: ModelAdmin[Any], request: HttpRequest, bound: BoundMachine[Any], limit: int
) -> dict[str, int]:
    """Return how many rows that the user may see are in each declared state; `limit` and one for more than `limit`."""
    cache: dict[str, dict[str, int]] = vars(request).setdefault(CACHE, {})
    if str(bound) not in cache:
        rows = model_admin.get_queryset(request).order_by()
        status = bound.names.status
        cache[str(bound)] = count_each({state: rows.filter(**{status: state}) for state in bound.graph.states}, limit)
    return cache[str(bound)]


def shown(count: int, limit: int) -> str:
    """Return a count as it is written: `1,204`, or `10,000+`."""
    text = number_format(min(count, limit), force_grouping=True)
    return f"{text}+" if count > limit else text
