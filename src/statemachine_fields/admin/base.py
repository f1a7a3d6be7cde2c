"""What the parts of `StateMachineAdminMixin` share: the machines, who may move their rows, actions, addresses and pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import AdminForm
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import quote, unquote
from django.contrib.auth import get_permission_codename
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import models
from django.forms import BaseForm, Media
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import lazy
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _

from statemachine_fields.admin.display import count_states, counted, draw_graph, grouped, undeclared_line
from statemachine_fields.drawing.svg import Marks
from statemachine_fields.drawing.tones import tones_of
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.bound import BoundMachine
from statemachine_fields.machine.forms import arguments_of
from statemachine_fields.machine.registry import machines_of

if TYPE_CHECKING:
    ModelAdmin: TypeAlias = admin.ModelAdmin[Any]
else:
    ModelAdmin = object

T = TypeVar("T")
Action: TypeAlias = Callable[[Any, HttpRequest, models.QuerySet[Any]], HttpResponse | None]

COUNT_LIMIT = 10_000
TEMPLATES = "admin/statemachine_fields"


class MachineAdmin(ModelAdmin):
    """The machines of a model, for its admin class."""

    #: The colour of each state, by its value, where another than the one it gets by itself is wanted.
    state_colors: Mapping[str, str] = {}
    #: Up to how many rows of each state are counted.
    count_limit = COUNT_LIMIT
    #: How many rows one action changes at most, so that no request lasts for minutes.
    bulk_limit = 10_000

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
        if self.actions is not None:  # which is how a model admin says that it wants none
            ours = [action for bound in self.machines.values() for action in self.machine_actions(bound)]
            self.actions = [*self.actions, *ours]

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

    @property
    def media(self) -> Media:
        styles = [f"statemachine_fields/{name}.css" for name in ("graph", "admin", "themes")]
        return super().media + Media(css={"all": styles}, js=["statemachine_fields/admin.js"])

    def counted_graph(
        self,
        request: HttpRequest,
        bound: Binding[Any],
        link: Callable[[str], str],
        *,
        current: str | None = None,
        weights: Mapping[tuple[str, str], int] | None = None,
        lines: Mapping[str, Sequence[str]] | None = None,
        says: Mapping[tuple[str, str], str] | None = None,
        flat: bool = False,
    ) -> SafeString:
        """Return the graph with how many rows are in each state, declared or not.

        :param link: returns the address of the rows of a state.
        :param lines: more to say in the boxes of states, and `says` beside moves.
        """
        counts = count_states(self, request, bound, self.count_limit)
        marks = Marks(
            current=current,
            notes={state: counted(number, self.count_limit) for state, number in counts.items()},
            links={state: link(state) for state in counts},
            weights=weights or {},
            lines=lines or {},
            says=says or {},
            tones=self.tones(bound),
        )
        return draw_graph(bound.graph, marks, self.title_of(bound), flat=flat) + undeclared_line(bound, marks)

    # Who may move rows, and what is said then

    def has_move_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Say whether the user may move rows at all. Which moves, permissions on the transitions say."""
        return self.has_change_permission(request, obj)

    def has_deliver_permission(
        self, request: HttpRequest, machine: BoundMachine[Any], obj: models.Model | None = None
    ) -> bool:
        """Say whether the user may deliver events to rows that they may see: who has the `add` permission of the event model."""
        opts = machine.event_model._meta
        user: Any = request.user
        return bool(user.has_perm(f"{opts.app_label}.{get_permission_codename('add', opts)}"))

    def asks_for_each_row(self) -> bool:
        """Say whether that may depend on the row."""
        own = type(self)
        return (
            own.has_move_permission is not MachineAdmin.has_move_permission
            or own.has_change_permission is not admin.ModelAdmin.has_change_permission
        )

    def get_transition_arguments(
        self, request: HttpRequest, obj: models.Model | None, machine: BoundMachine[Any], to: str, form: BaseForm
    ) -> dict[str, Any]:
        """Return arguments for `transition_to()`: what was said in the form. Override it to add some.

        :param obj: the row, or None if many rows are about to move, where `update` cannot be given.
        :param form: what was filled in, and is valid.
        """
        return dict(arguments_of(machine._meta, form))

    def machine_actions(self, bound: Binding[Any]) -> list[Action]:
        """Return the actions of the list for one machine. Each part that has some adds its own."""
        return []

    def machine_action(self, bound: Binding[Any], name: str, text: Callable[[], str], run: Action) -> Action:
        """Return an action for those who may move rows. With several machines, it says which it is about."""

        def describe() -> str:  # when it is shown, in the language of the reader
            prefix = f"{capfirst(self.name_of(bound))}: " if len(self.machines) > 1 else ""
            return f"{prefix}{text()}".replace("%", "%%")  # Django formats it once more

        run.__name__ = f"{bound.accessor}_{name}"
        described: Action = admin.action(permissions=["move"], description=lazy(describe, str)())(run)
        return described

    def say_reasons(self, request: HttpRequest, text: str, reasons: Counter[str]) -> None:
        """Say for how many rows nothing was done and why, in one message: each reason with its number, if there are
        several."""
        lines = reason_lines(reasons)
        why = " ".join(lines) if len(lines) > 1 else next(iter(reasons))
        self.message_user(request, text % {"number": grouped(reasons.total()), "why": why}, messages.WARNING)

    # Addresses

    def records_url(self, request: HttpRequest, model: type[models.Model] | None, key: Any) -> str:
        """Return where all records of one kind are listed that a row has, for those who may see them there."""
        if model is None or not self.admin_site.is_registered(model):
            return ""
        if not self.admin_site.get_model_admin(model).has_view_permission(request):
            return ""
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
        return f"{reverse(name, current_app=self.admin_site.name)}?{urlencode({'q': key})}"

    def page_url(self, page: str, *args: Any) -> str:
        """Return the address of one of the model's pages."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, args=args, current_app=self.admin_site.name)

    def row_path(self, page: str, view: Callable[..., HttpResponse]) -> URLPattern:
        """Return where a page of one row and one of its machines is found."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_{page}"
        return path(f"<path:object_id>/{page}/<str:accessor>/", self.admin_site.admin_view(view), name=name)

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

    def row_to_move(self, request: HttpRequest, object_id: str, accessor: str) -> tuple[Binding[Any], Any]:
        bound, obj = self.machine_or_404(accessor), self.row_or_404(request, object_id)
        if not self.has_move_permission(request, obj):
            raise PermissionDenied
        return bound, obj

    # Pages

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
        return TemplateResponse(request, f"{TEMPLATES}/{template}", {**shared, **context}, status=status)

    def form_context(self, form: Any) -> dict[str, Any]:
        """Return what a page of ours shows a form with, in the way of the admin's own."""
        fields = AdminForm(form, [(None, {"fields": list(form.fields)})], {}, model_admin=self)
        return {"form": form, "adminform": fields, "media": self.media + form.media}

    def refuse_method(self, request: HttpRequest, obj: models.Model) -> HttpResponse:
        """Say that an address does nothing by itself: a link, a crawler or a reload must not move anything."""
        context = {"title": _("Nothing was done"), "object": obj, "back_url": self.back_to_row(request, obj)}
        response = self.render_page(request, "refused.html", context, status=405)
        response["Allow"] = "POST"
        return response

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


def show_in(response: HttpResponse, template: str, context: dict[str, Any]) -> None:
    """Let one of our templates extend the one that a response is about to show.

    Which one that is has been decided by then, by the class, by another package or by the project, in whichever way they
    do it. What is rendered already stays as it is.
    """
    if isinstance(response, SimpleTemplateResponse) and not response.is_rendered:
        shown = response.resolve_template(response.template_name)
        response.context_data = {**(response.context_data or {}), **context, "machine_parent_template": shown}
        response.template_name = f"{TEMPLATES}/{template}"


def reason_lines(reasons: Counter[str]) -> list[str]:
    """Return each reason with its number, the most frequent first."""
    return [f"{grouped(number)} × {why}" for why, number in reasons.most_common()]


def read_number(text: str, default: T, *, digits: int = 9) -> int | T:
    """Return a number that a request says. Nonsense is the default."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else default
