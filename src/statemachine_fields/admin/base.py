"""What the parts of `StateMachineAdminMixin` share: the machines, their colours, and addresses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from django.contrib import admin
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.forms import BaseForm, Media
from django.http import Http404, HttpRequest
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _

from statemachine_fields.drawing.tones import tones_of
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.bound import BoundMachine
from statemachine_fields.machine.descriptor import machines_of
from statemachine_fields.machine.forms import arguments_of

if TYPE_CHECKING:
    ModelAdmin: TypeAlias = admin.ModelAdmin[Any]
else:
    ModelAdmin = object


class MachineAdmin(ModelAdmin):
    """The machines of a model, for its admin class."""

    #: The colour of each state, by its value, where another than the one it gets by itself is wanted.
    state_colors: Mapping[str, str] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        if admin.ModelAdmin in order and order.index(admin.ModelAdmin) < order.index(MachineAdmin):
            raise ImproperlyConfigured(
                f"{cls.__name__} has StateMachineAdminMixin after ModelAdmin, which never calls it. Name the mixin before "
                "every class that is a ModelAdmin."
            )

    def __init__(self, model: type[models.Model], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        if not self.machines:
            raise ImproperlyConfigured(
                f"{type(self).__name__} has StateMachineAdminMixin, but {model._meta.label} has no state machine. "
                "Declare a StateMachine on the model, or leave the mixin out."
            )
        unknown = [
            state for state in self.state_colors if not any(state in its.graph for its in self.machines.values())
        ]
        if unknown:
            raise ImproperlyConfigured(
                f"{type(self).__name__}.state_colors names {', '.join(map(repr, unknown))}, which no machine of "
                f"{model._meta.label} declares."
            )
        try:
            self._tones  # noqa: B018 - complains now, and not when somebody opens a page
        except ValueError as error:
            raise ImproperlyConfigured(f"{type(self).__name__}.state_colors: {error}") from error

    @cached_property
    def machines(self) -> dict[str, Binding[Any]]:
        """The machines of the model by accessor, in the order of their columns."""
        found = machines_of(self.model)
        order = [field.name for field in self.model._meta.get_fields()]
        return dict(sorted(found.items(), key=lambda item: order.index(item[1].names.status)))

    def name_of(self, bound: Binding[Any]) -> str:
        """Return what people call a machine: the name of its status column."""
        return str(bound.field.verbose_name)

    def title_of(self, bound: Binding[Any]) -> str:
        return f"{capfirst(str(self.opts.verbose_name))}: {capfirst(self.name_of(bound))}"

    def get_state_colors(self, machine: BoundMachine[Any]) -> Mapping[str, str]:
        """Return the colours chosen for the states of one machine. Override it if two machines share names of states."""
        return {state: color for state, color in self.state_colors.items() if state in machine._meta.graph}

    @cached_property
    def _tones(self) -> dict[str, dict[str, str]]:
        return {
            accessor: tones_of(bound.graph, self.get_state_colors(bound.face))
            for accessor, bound in self.machines.items()
        }

    def tones(self, bound: Binding[Any]) -> dict[str, str]:
        """Return the colour of each state."""
        return self._tones[bound.accessor]

    def get_transition_arguments(
        self, request: HttpRequest, obj: models.Model | None, machine: BoundMachine[Any], to: str, form: BaseForm
    ) -> dict[str, Any]:
        """Return arguments for `transition_to()`: what was said in the form. Override it to add some.

        :param obj: the row, or None if many rows are about to move, where `update` cannot be given.
        :param form: what was filled in, and is valid.
        """
        return dict(arguments_of(machine._meta, form))

    @property
    def media(self) -> Media:
        styles = [f"statemachine_fields/{name}.css" for name in ("graph", "admin", "themes")]
        return super().media + Media(css={"all": styles}, js=["statemachine_fields/admin.js"])

    # Addresses

    def page_url(self, page: str, *args: Any) -> str:
        """Return the address of one of the model's pages."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, args=args, current_app=self.admin_site.name)

    def row_url(self, page: str, instance: models.Model, *args: Any) -> str:
        return self.page_url(page, quote(instance.pk), *args)

    def back_to_row(self, request: HttpRequest, instance: models.Model) -> str:
        """Return the address of the row's own page, from which the list is found again as it was."""
        filters: dict[str, Any] = {"preserved_filters": self.get_preserved_filters(request), "opts": self.opts}
        return str(add_preserved_filters(filters, self.row_url("change", instance)))

    def machine_or_404(self, accessor: str) -> Binding[Any]:
        if accessor not in self.machines:
            raise Http404(f"{self.opts.label} has no state machine {accessor!r}.")
        return self.machines[accessor]

    def row_or_404(self, request: HttpRequest, object_id: str) -> Any:
        """Return a row that the user's list has, too."""
        instance = self.get_object(request, unquote(object_id))
        if instance is None:
            raise Http404(f"There is no {self.opts.verbose_name} with the key {object_id!r}.")
        return instance

    def render_page(
        self, request: HttpRequest, template: str, context: dict[str, Any], status: int = 200
    ) -> TemplateResponse:
        """Return one of our pages, in the frame of the site."""
        request.current_app = self.admin_site.name
        shared = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "trail": self._trail(context),
            "media": self.media,
            "preserved_filters": self.get_preserved_filters(request),
        }
        return TemplateResponse(request, f"admin/statemachine_fields/{template}", {**shared, **context}, status=status)

    def _trail(self, context: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the way from the site to one of our pages: addresses and what they are called."""
        site, app = self.admin_site.name, self.opts.app_config
        trail = [
            (reverse("admin:index", current_app=site), _("Home")),
            (reverse("admin:app_list", args=[self.opts.app_label], current_app=site), str(app.verbose_name)),
            (self.page_url("changelist"), capfirst(str(self.opts.verbose_name_plural))),
        ]
        if "object" in context:
            name = context.get("row_name") or str(context["object"])
            trail.append((context["back_url"], Truncator(name).words(18)))
        return trail
