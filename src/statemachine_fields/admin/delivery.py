"""Delivering an event to one row by hand: the form, what is refused, and what is said afterwards."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models, router, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from statemachine_fields.admin.base import MachineAdmin
from statemachine_fields.admin.display import badge
from statemachine_fields.exceptions import EventRefused, RowMissing
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.context import read_json
from statemachine_fields.machine.delivery import Delivery
from statemachine_fields.machine.events import DEDUP_LENGTH

#: What is said of a delivery, and how loudly.
ANSWERS = {
    Delivery.WOKEN: (
        gettext_lazy("“%(row)s” has got the event %(name)s, which it waits for, and is due now."),
        messages.SUCCESS,
    ),
    Delivery.KEPT: (
        gettext_lazy("“%(row)s” has got the event %(name)s, which is kept until it is waited for."),
        messages.SUCCESS,
    ),
    Delivery.DUPLICATE: (
        gettext_lazy("“%(row)s” has got an event with that key before. Nothing was delivered."),
        messages.WARNING,
    ),
}


class PayloadField(forms.CharField):
    """JSON, as it is typed. What is refused is shown again to the letter, whatever it is."""

    widget = forms.Textarea(attrs={"rows": 1, "spellcheck": "false", "class": "vLargeTextField", "placeholder": "JSON"})

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            payload = json.loads(text)
            read_json(payload, "payload")
        except json.JSONDecodeError as error:
            place = {"line": error.lineno, "column": error.colno}
            raise ValidationError(
                _(
                    "This is not valid JSON: look at line %(line)d, column %(column)d. A text has double quotation marks."
                )
                % place
            ) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise ValidationError(
                _("This cannot be kept: it holds NaN, Infinity or a NUL character, or is too large or too deep.")
            ) from error
        return payload


class DeliverForm(forms.Form):
    """Which event, with what, and by which key it is known if it comes again."""

    name = forms.ChoiceField(label=pgettext_lazy("event", "Event"))
    payload = PayloadField(
        label=pgettext_lazy("event", "Payload"),
        required=False,
        help_text=gettext_lazy("What the event says, as JSON. Empty for nothing."),
    )
    dedup_key = forms.CharField(
        label=pgettext_lazy("event", "Key"),
        required=False,
        max_length=DEDUP_LENGTH,
        help_text=gettext_lazy("An event with the same key is delivered once. Empty for none."),
        widget=forms.TextInput(
            attrs={
                "autocomplete": "off",
                "class": "vTextField",
                "placeholder": pgettext_lazy("event", "optional"),
            }
        ),
    )

    def __init__(self, bound: Binding[Any], state: str, data: Any = None) -> None:
        super().__init__(data, auto_id=f"smf-{bound.accessor}-%s")  # the row's own form may have a name, too
        self.fields["name"].choices = name_choices(bound, state)  # type: ignore[attr-defined]


def name_choices(bound: Binding[Any], state: str) -> list[Any]:
    """Return the names of events that the machine knows; those that a state waits for before the others."""
    awaited = bound.awaited_names.get(state, frozenset())
    now = [(name, name) for name in bound.event_names if name in awaited]
    later = [(name, name) for name in bound.event_names if name not in awaited]
    if not now or not later:
        return now or later
    return [(pgettext("event", "It waits for"), now), (pgettext("event", "Kept until it does"), later)]


class DeliveryPages(MachineAdmin):
    """Lets people deliver events: with the form on the page of a row, which is shown by itself if something in it is refused."""

    def get_urls(self) -> list[URLPattern]:
        return [self.row_path("deliver", self.deliver_view), *super().get_urls()]

    def deliver_view(self, request: HttpRequest, object_id: str, accessor: str) -> HttpResponse:
        """Deliver an event to one row by POST; otherwise, show the form for it."""
        bound, obj = self.machine_or_404(accessor), self.row_or_404(request, object_id)
        if bound.event_model is None:
            raise Http404(f"{bound} has no events.")
        may_see = self.has_view_or_change_permission(request, obj)
        if not (may_see and self.has_deliver_permission(request, bound.face, obj)):
            raise PermissionDenied
        state = getattr(obj, bound.names.status)
        form = DeliverForm(bound, state, request.POST if request.method == "POST" else None)
        if form.is_valid():
            self._deliver(request, bound, obj, form.cleaned_data)
            return HttpResponseRedirect(self.back_to_row(request, obj))
        context = {
            "title": _("Deliver an event"),
            "subtitle": str(obj),
            "object": obj,
            "badge": badge(bound, state, self.tones(bound)),
            **self.form_context(form),
            "action": self.row_url("deliver", obj, bound.accessor),
            "back_url": self.back_to_row(request, obj),
        }
        return self.render_page(request, "deliver.html", context)

    def _deliver(self, request: HttpRequest, bound: Binding[Any], obj: models.Model, event: dict[str, Any]) -> None:
        """Deliver it and log it, both or neither, and say what became of it."""
        names = {"row": obj, "name": event["name"]}
        states = getattr(obj, bound.accessor)
        try:
            with transaction.atomic(using=router.db_for_write(type(obj), instance=obj)):
                delivery = states.deliver(event["name"], event["payload"], dedup_key=event["dedup_key"] or None)
                if delivery is not Delivery.DUPLICATE:
                    self.log_change(request, obj, _("Delivered the event %(name)s.") % names)
        except EventRefused as error:
            ended = {**names, "state": bound.label_of(error.status or "")}
            text = _("“%(row)s” has ended in %(state)s, and takes no event any more. Nothing was delivered.")
            self.message_user(request, text % ended, messages.ERROR)
        except RowMissing:
            text = _("“%(row)s” has been deleted meanwhile. Nothing was delivered.")
            self.message_user(request, text % names, messages.ERROR)
        else:
            answer, level = ANSWERS[delivery]
            self.message_user(request, answer % names, level)
