"""The clock of a row of a timed machine: what it says, and what people may do with it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import models
from django.utils import timezone
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from statemachine_fields.admin.wording import as_text, day, in_words, time_tag
from statemachine_fields.exceptions import RowLeased, RowMissing, StateMachineError
from statemachine_fields.machine.binding import Binding
from statemachine_fields.schedule.upcoming import Upcoming, UpcomingKind, deadline_of, foresee

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

    from statemachine_fields.schedule.policy import Schedule

DAY = dt.timedelta(days=1)
#: A row that is due for longer than this waits for a worker, and is said to.
LATE = dt.timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Verb:
    """Something to do with the clock of a row: what it is called, before and after, and what to say if it did nothing,
    to one row and of many."""

    name: str
    label: _StrPromise
    help: _StrPromise
    done: _StrPromise
    too_late: _StrPromise
    nothing: _StrPromise
    run: Callable[[Binding[Any], Any], bool]


def _run_now(bound: Binding[Any], states: Any) -> bool:
    """Make a row due whose state has a handler. One that only waits for its time-out or deletion would wait on."""
    clock: Schedule | None = bound.schedules.get(states.current)
    if clock is not None and clock.runs and clock.handler is None:
        return False
    states.run_at()
    return True


NOTHING_TO_DO = gettext_lazy("There was nothing to do.")


VERBS = {
    verb.name: verb
    for verb in (
        Verb(
            "run_now",
            pgettext_lazy("state machine", "Run now"),
            gettext_lazy("Make the row due at once."),
            gettext_lazy("“%(row)s” is due now."),
            gettext_lazy("“%(row)s” was left alone: its state has no handler to run."),
            gettext_lazy("There is no handler to run in its state."),
            _run_now,
        ),
        Verb(
            "release",
            pgettext_lazy("state machine", "Release"),
            gettext_lazy("Take the row away from the worker that runs it. What that worker says of it is dropped."),
            gettext_lazy("“%(row)s” was taken away from its worker, and is due now."),
            gettext_lazy("“%(row)s” was left alone: that worker does not run it any more."),
            NOTHING_TO_DO,
            lambda _bound, states: states.release(),
        ),
        Verb(
            "resume",
            pgettext_lazy("state machine", "Resume"),
            gettext_lazy("Put the parked row back on the clock, with all its tries before it."),
            gettext_lazy("“%(row)s” was resumed, and is due now."),
            gettext_lazy("“%(row)s” was left alone: it is not parked any more."),
            NOTHING_TO_DO,
            lambda _bound, states: states.resume(),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What the clock of a row says."""

    summary: str
    facts: tuple[tuple[str, str], ...]
    #: What is wrong with the clock itself, and what to do.
    advice: str
    error: str
    #: What makes sense now.
    verbs: tuple[Verb, ...]
    token: int


def read_clock(bound: Binding[Any], instance: models.Model) -> Reading:
    """Read the columns of the instance. No query."""
    clock = _Columns(bound, instance)
    return Reading(
        summary=clock.summary(),
        facts=tuple(clock.facts()),
        advice=clock.advice(),
        error=clock.error,
        verbs=tuple(VERBS[name] for name in clock.verbs()),
        token=clock.lease_token,
    )


def clock_line(bound: Binding[Any], instance: models.Model) -> str | None:
    """Return what the clock says in a few words, for a column of the list; nothing if nothing is due."""
    clock = _Columns(bound, instance)
    if clock.next_at is None and not clock.is_leased and not clock.is_parked:
        return None
    if clock.policy is None and not clock.is_leased:
        return format_html('<span title="{}">{}</span>', clock.summary(), pgettext("state machine", "Never"))
    line = clock.summary(longest_error=30)
    return format_html('<span title="{}">{}</span>', clock.error, line) if clock.error else line


class _Columns:
    """The columns of the clock, without their prefix, and what they mean by the policy of the row's state."""

    def __init__(self, bound: Binding[Any], instance: models.Model) -> None:
        names = bound.names
        self.bound = bound
        self.status: str = getattr(instance, names.status)
        self.entered_at: dt.datetime = getattr(instance, names.changed_at)
        self.next_at: dt.datetime | None = getattr(instance, names.next_at)
        self.lease_owner: str = getattr(instance, names.lease_owner)
        self.lease_expires_at: dt.datetime | None = getattr(instance, names.lease_expires_at)
        self.lease_token: int = getattr(instance, names.lease_token)
        self.failures: int = getattr(instance, names.failures)
        self.crashes: int = getattr(instance, names.crashes)
        self.error: str = getattr(instance, names.error)
        #: None for a state that is not declared, whose rows no worker takes.
        self.policy: Schedule | None = bound.schedules.get(self.status)
        self.upcoming = self._foresee()

    def _foresee(self) -> Upcoming | None:
        if self.policy is None or self.is_leased:
            return None
        return foresee(
            self.policy,
            entered_at=self.entered_at,
            next_at=self.next_at,
            failures=self.failures,
            now=timezone.now(),
        )

    @property
    def is_leased(self) -> bool:
        return self.lease_expires_at is not None

    @property
    def is_parked(self) -> bool:
        return self.next_at is None and not self.is_leased and bool(self.error)

    def summary(self, longest_error: int = 80) -> str:
        if self.lease_expires_at is not None:
            if self.lease_expires_at <= timezone.now():
                return _("Left by its worker")
            return _("Held by %(worker)s") % {"worker": self.lease_owner}
        if self.policy is None:
            return _("Never: no worker takes rows of a state that is not declared")
        if self.is_parked:
            return _("Parked: %(why)s") % {"why": Truncator(" ".join(as_text(self.error).split())).chars(longest_error)}
        if self.upcoming is None:
            return _("Nothing is due")
        return time_tag(self.upcoming.at, in_future(self.bound, self.upcoming))

    def facts(self) -> Iterator[tuple[str, str]]:
        if self.is_leased:
            yield pgettext("state machine", "Worker"), self.lease_owner
            yield pgettext("state machine", "Lease ends"), _moment(self.lease_expires_at)
        if self.is_parked:
            yield pgettext("state machine", "Failed attempts"), str(self.failures)
        elif self.is_leased or (self.crashes and not self.failures):
            yield pgettext("state machine", "Attempt"), self._attempt()
        if self.crashes:
            yield _("Workers that died of it"), str(self.crashes)
        yield from self._ahead()

    def _attempt(self) -> str:
        most = self.policy.max_attempts if self.policy is not None else None
        if most is None:
            return str(self.failures + 1)
        return _("%(attempt)d of %(most)d") % {"attempt": self.failures + 1, "most": most}

    def _ahead(self) -> Iterator[tuple[str, str]]:
        """Say what comes after what comes next."""
        upcoming, policy = self.upcoming, self.policy
        if policy is None or self.is_parked:
            return
        if upcoming is not None and upcoming.kind is UpcomingKind.TIME_OUT and upcoming.runs:
            yield pgettext("state machine", "Before that"), _("one more try, which may move it elsewhere")
        if upcoming is not None and upcoming.is_last_attempt:
            parked = _("it is parked")
            yield _("If that fails"), self.bound.label_of(upcoming.to_state) if upcoming.to_state else parked
        later = deadline_of(policy, self.entered_at)
        is_earlier = upcoming is not None and upcoming.kind in (UpcomingKind.RUN, UpcomingKind.RETRY)
        if later is not None and (is_earlier or self.is_leased):
            yield _("At the latest"), time_tag(later.at, in_future(self.bound, later))

    def advice(self) -> str:
        if self.policy is None or self.is_leased or self.is_parked or self.next_at is not None or not self.policy.runs:
            return ""
        return _(
            "It has no time, though something is to happen in its state. `manage.py statemachine_reschedule` gives all such "
            "rows theirs."
        )

    def verbs(self) -> list[str]:
        if self.is_leased:
            return ["release"]
        if self.policy is None or not self.policy.runs:
            return []
        if self.is_parked:
            return ["resume"]
        return ["run_now"] if self.policy.handler is not None else []


def in_future(bound: Binding[Any], upcoming: Upcoming) -> str:
    """Say what will happen, when, and where to. What is overdue happens as soon as a worker takes the row."""
    wait = upcoming.at - timezone.now()
    facts: dict[str, Any] = {"time": in_words(abs(wait)), "attempt": upcoming.attempt, "most": upcoming.of}
    if upcoming.to_state is not None:
        facts["state"] = bound.label_of(upcoming.to_state)
    if wait > DAY and upcoming.kind is UpcomingKind.DELETE:
        return _("Deleted on %(date)s") % {"date": day(upcoming.at)}
    return _words(upcoming, is_due=wait <= dt.timedelta(0), is_late=wait < -LATE) % facts


def _words(upcoming: Upcoming, *, is_due: bool, is_late: bool) -> str:
    match upcoming.kind:
        case UpcomingKind.DELETE:
            return _("Deleted as soon as a worker takes it") if is_due else _("Deleted in %(time)s")
        case UpcomingKind.TIME_OUT:
            return _("Times out now → %(state)s") if is_due else _("Times out in %(time)s → %(state)s")
        case UpcomingKind.RETRY if upcoming.of is not None:
            if is_due:
                return _("Due to be tried again, %(attempt)d of %(most)d")
            return _("Tried again in %(time)s, %(attempt)d of %(most)d")
        case UpcomingKind.RETRY:
            if is_due:
                return _("Due to be tried again, attempt %(attempt)d")
            return _("Tried again in %(time)s, attempt %(attempt)d")
    if is_late:
        return _("Due for %(time)s")
    return pgettext("state machine", "Due now") if is_due else _("Runs in %(time)s")


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
