"""The filter by state, with how many rows there are in each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Count, Q
from django.utils.translation import gettext as _

from statemachine_fields.admin.counts import count_states, shown

if TYPE_CHECKING:
    from django.contrib.admin.filters import _ListFilterChoices
    from django.db import models
    from django.http import HttpRequest

COUNT_LIMIT = 10_000


class StateFilter(admin.ChoicesFieldListFilter):
    """Offer the declared states, each with its number of rows, which is counted up to a limit, and others that there are
    rows in.

    What other filters leave of them is what Django's own "Show counts" is for.
    """

    def __init__(
        self,
        field: Any,
        request: HttpRequest,
        params: dict[str, Any],
        model: type[models.Model],
        model_admin: admin.ModelAdmin[Any],
        field_path: str,
    ) -> None:
        super().__init__(field, request, params, model, model_admin, field_path)
        self.request = request
        self.model_admin = model_admin

    @cached_property
    def limit(self) -> int:
        return getattr(self.model_admin, "count_limit", COUNT_LIMIT)

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many rows there are in each state; nothing for the state of another model's row. Asked for when shown."""
        field: Any = self.field
        if field.bound is None or self.field_path != field.name:
            return {}
        return count_states(self.model_admin, self.request, field.bound, self.limit)

    @cached_property
    def undeclared(self) -> list[str]:
        """States that rows are in although they are not declared."""
        declared = {value for value, _label in self.field.flatchoices}
        return [state for state in self.counts if state not in declared]

    def get_facet_counts(self, pk_attname: str, filtered_qs: models.QuerySet[Any]) -> dict[str, Any]:
        ours = {
            f"undeclared{place}__c": Count(pk_attname, filter=Q(**{self.field_path: state}))
            for place, state in enumerate(self.undeclared)
        }
        return {**super().get_facet_counts(pk_attname, filtered_qs), **ours}

    def get_facet_queryset(self, changelist: ChangeList) -> dict[str, int]:
        self.facets: dict[str, int] = super().get_facet_queryset(changelist)
        return self.facets

    def choices(self, changelist: ChangeList) -> Iterator[_ListFilterChoices]:
        yield from self._declared_choices(changelist)
        lookup: Any = self.lookup_kwarg
        for place, state in enumerate(self.undeclared):
            limited = shown(self.counts[state], self.limit)
            number = self.facets[f"undeclared{place}__c"] if changelist.add_facets else limited
            name = _("%(state)s, not declared") % {"state": state}
            yield {
                "selected": state in (self.lookup_val or ()),
                "query_string": changelist.get_query_string({lookup: state}, [self.lookup_kwarg_isnull]),
                "display": f"{name} ({number})",
            }

    def _declared_choices(self, changelist: ChangeList) -> Iterator[_ListFilterChoices]:
        states = ["", *(value for value, _label in self.field.flatchoices)]  # the first choice is all of them
        for state, choice in zip(states, super().choices(changelist), strict=True):
            if not changelist.add_facets and state in self.counts:
                choice["display"] = f"{choice['display']} ({shown(self.counts[state], self.limit)})"
            yield choice
