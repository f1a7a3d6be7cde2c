"""The clock of a row of a timed machine: what it says, and what people may do with it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import models
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from statemachine_fields.admin.wording import in_words, time_tag
from statemachine_fields.exceptions import RowLeased, RowMissing, StateMachineError
from statemachine_fields.machine.bound import BoundMachine

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise


@dataclass(frozen=True, slots=True)
class Verb:
    """Something to do with the clock of a row: what it is called, before and after, and what to say if it did nothing."""

    name: str
    label: _StrPromise
    help: _StrPromise
    done: _StrPromise
    too_late: _StrPromise
    run: Callable[[Any], bool]


def _run_now(states: Any) -> bool:
    states.run_at()
    return True


VERBS = {
    verb.name: verb
    for verb in (
        Verb(
            "run_now",
            pgettext_lazy("state machine", "Run now"),
            gettext_lazy("Make the row due at once."),
            gettext_lazy("“%(row)s” is due now."),
            gettext_lazy("“%(row)s” was not made due."),
            _run_now,
        ),
        Verb(
            "release",
            pgettext_lazy("state machine", "Release"),
            gettext_lazy("Take the row away from the worker that runs it. What that worker says of it is dropped."),
            gettext_lazy("“%(row)s” was taken away from its worker, and is due now."),
            gettext_lazy("“%(row)s” was left alone: that worker does not run it any more."),
            lambda states: states.release(),
        ),
        Verb(
            "resume",
            pgettext_lazy("state machine", "Resume"),
            gettext_lazy("Put the parked row back on the clock, with all its tries before it."),
            gettext_lazy("“%(row)s” was resumed, and is due now."),
            gettext_lazy("“%(row)s” was left alone: it is not parked any more."),
            lambda states: states.resume(),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What the clock of a row says."""

    summary: str
    facts: tuple[tuple[str, str], ...]
    error: str
    #: What makes sense now.
    verbs: tuple[Verb, ...]
    token: int


def read_clock(bound: BoundMachine[Any], instance: models.Model) -> Reading:
    """Read the columns of the instance. No query."""
    clock = _Columns(bound, instance)
    runs = clock.status in bound.states_that_run()
    facts: list[tuple[str, str]] = []
    if clock.is_leased:
        verbs = ["release"]
        facts.append((pgettext("state machine", "Worker"), clock.lease_owner))
        facts.append((pgettext("state machine", "Lease ends"), _moment(clock.lease_expires_at)))
    elif clock.is_parked:
        verbs = ["resume"] if runs else []
    else:
        verbs = ["run_now"] if runs else []
    if clock.next_at is not None:
        facts.insert(0, (pgettext("state machine", "Next run"), time_tag(clock.next_at)))
    if clock.is_parked:
        facts.append((pgettext("state machine", "Failed attempts"), str(clock.failures)))
    elif clock.failures or clock.crashes or clock.is_leased:
        facts.append((pgettext("state machine", "Attempt"), str(clock.failures + 1)))
    if clock.crashes:
        facts.append((_("Workers that died of it"), str(clock.crashes)))
    return Reading(
        summary=clock.summary(),
        facts=tuple(facts),
        error=clock.error,
        verbs=tuple(VERBS[name] for name in verbs),
        token=clock.lease_token,
    )


def clock_line(bound: BoundMachine[Any], instance: models.Model) -> str | None:
    """Return what the clock says in a few words, for a column of the list; nothing if nothing is due."""
    clock = _Columns(bound, instance)
    if clock.next_at is None and not clock.is_leased and not clock.is_parked:
        return None
    return format_html('<span title="{}">{}</span>', clock.error, clock.summary()) if clock.error else clock.summary()


class _Columns:
    """The columns of the clock, without their prefix."""

    def __init__(self, bound: BoundMachine[Any], instance: models.Model) -> None:
        names = bound.names
        self.status: str = getattr(instance, names.status)
        self.next_at: dt.datetime | None = getattr(instance, names.next_at)
        self.lease_owner: str = getattr(instance, names.lease_owner)
        self.lease_expires_at: dt.datetime | None = getattr(instance, names.lease_expires_at)
        self.lease_token: int = getattr(instance, names.lease_token)
        self.failures: int = getattr(instance, names.failures)
        self.crashes: int = getattr(instance, names.crashes)
        self.error: str = getattr(instance, names.error)

    @property
    def is_leased(self) -> bool:
        return self.lease_expires_at is not None

    @property
    def is_parked(self) -> bool:
        return self.next_at is None and not self.is_leased and bool(self.error)

    def summary(self) -> str:
        if self.lease_expires_at is not None:
            return (
                pgettext("state machine", "running")
                if self.lease_expires_at > timezone.now()
                else _("left by its worker")
            )
        if self.is_parked:
            return pgettext("state machine", "parked")
        if self.next_at is None:
            return _("nothing is due")
        wait = self.next_at - timezone.now()
        return (
            _("in %(time)s") % {"time": in_words(wait)} if wait > dt.timedelta(0) else pgettext("state machine", "due")
        )


def _moment(time: dt.datetime | None) -> str:
    if time is None:
        return ""
    wait = time - timezone.now()
    if wait > dt.timedelta(0):
        words = _("in %(time)s") % {"time": in_words(wait)}
    else:
        words = _("%(time)s ago") % {"time": in_words(-wait)}
    return time_tag(time, words)


def why_left(error: StateMachineError) -> str:
    """Say in plain words why a clock was left alone."""
    if isinstance(error, RowLeased):
        return _("A worker is running it.")
    if isinstance(error, RowMissing):
        return _("It has been deleted.")
    return _("Nothing is ever due in its state.")
