"""The schedule of a row of a timed machine: what it says, and what people may do with it, for one row and for many."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.db import models, router, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext, pgettext_lazy

from statemachine_fields.admin.base import Action, MachineAdmin, read_number
from statemachine_fields.admin.display import day, grouped, in_words, one_line, time_tag
from statemachine_fields.admin.waiting import awaited_words, waits_for
from statemachine_fields.exceptions import RowLeased, RowMissing, StateMachineError
from statemachine_fields.machine.binding import Binding
from statemachine_fields.schedule.upcoming import Upcoming, UpcomingKind, deadline_of, foresee

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

    from statemachine_fields.schedule.policy import Schedule

DAY = dt.timedelta(days=1)
#: A row that is due for longer than this waits for a worker, and is said to.
LATE = dt.timedelta(seconds=10)
#: How long what a row waits for may be in a line of a list.
LONGEST_WAIT = 60


@dataclass(frozen=True, slots=True)
class ScheduleCommand:
    """Something to do with the schedule of a row: what it is called, before and after, and what to say if it did nothing,
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
    policy: Schedule | None = bound.schedules.get(states.current)
    if policy is not None and policy.runs and not policy.acts:
        return False
    states.run_at()
    return True


NOTHING_TO_DO = gettext_lazy("There was nothing to do.")

COMMANDS = {
    command.name: command
    for command in (
        ScheduleCommand(
            "run_now",
            pgettext_lazy("state machine", "Run now"),
            gettext_lazy("Make the row due at once."),
            gettext_lazy("“%(row)s” is due now."),
            gettext_lazy("“%(row)s” was left alone: its state has no handler to run."),
            gettext_lazy("There is no handler to run in its state."),
            _run_now,
        ),
        ScheduleCommand(
            "release",
            pgettext_lazy("state machine", "Release"),
            gettext_lazy("Take the row away from the worker that runs it. What that worker says of it is dropped."),
            gettext_lazy("“%(row)s” was taken away from its worker, and is due now."),
            gettext_lazy("“%(row)s” was left alone: that worker does not run it any more."),
            NOTHING_TO_DO,
            lambda _bound, states: states.release(),
        ),
        ScheduleCommand(
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
#: What "Run now" is to a row that waits for something: only if that has happened, there is something to run.
LOOK_NOW = replace(
    COMMANDS["run_now"],
    label=pgettext_lazy("state machine", "Look now"),
    help=gettext_lazy("Let a worker look at once whether that has happened."),
)


class ScheduleReading:
    """What the schedule of a row says: its columns, without their prefix, and what they mean by the policy of the row's state.
    No query."""

    def __init__(self, bound: Binding[Any], instance: models.Model) -> None:
        names = bound.names
        self.bound = bound
        self.instance = instance
        self.status: str = getattr(instance, names.status)
        self.entered_at: dt.datetime = getattr(instance, names.changed_at)
        self.next_at: dt.datetime | None = getattr(instance, names.next_at)
        self.next_at_pinned: bool = getattr(instance, names.next_at_pinned)
        self.lease_owner: str = getattr(instance, names.lease_owner)
        self.lease_expires_at: dt.datetime | None = getattr(instance, names.lease_expires_at)
        self.lease_token: int = getattr(instance, names.lease_token)
        self.claimed_at: dt.datetime | None = getattr(instance, names.claimed_at)
        self.attempts: int = getattr(instance, names.attempts)
        self.failures: int = getattr(instance, names.failures)
        self.crashes: int = getattr(instance, names.crashes)
        self.error: str = getattr(instance, names.error)
        #: None for a state that is not declared, whose rows no worker takes.
        self.policy: Schedule | None = bound.schedules.get(self.status)
        self.upcoming = self._foresee()

    def _foresee(self) -> Upcoming | None:
        if self.policy is None or self.is_leased:
            return None
        entered_at, next_at, failures = self.entered_at, self.next_at, self.failures
        return foresee(self.policy, entered_at=entered_at, next_at=next_at, failures=failures, now=timezone.now())

    @property
    def is_leased(self) -> bool:
        return self.lease_expires_at is not None

    @property
    def is_parked(self) -> bool:
        return self.next_at is None and not self.is_leased and bool(self.error)

    @property
    def is_waiting(self) -> bool:
        """Whether it sleeps until something happens, and nothing went wrong. A worker may look by itself meanwhile."""
        if self.policy is None or self.policy.until is None or self.is_leased or self.is_parked:
            return False
        is_tried_again = bool(self.failures or self.crashes)
        return not is_tried_again and (self.upcoming is None or self.upcoming.at > timezone.now())

    def summary(self, longest_error: int = 80, *, brief: bool = False) -> str:
        """Say in a few words what is next.

        :param brief: for a line of a list.
        """
        if self.lease_expires_at is not None:
            if self.lease_expires_at <= timezone.now():
                return _("Left by its worker")
            return _("Held by %(worker)s") % {"worker": self.lease_owner}
        if self.policy is None:
            return _("Never: no worker takes rows of a state that is not declared")
        if self.is_parked:
            return _("Parked: %(why)s") % {"why": one_line(self.error, longest_error)}
        if self.is_waiting and self.policy.until is not None:
            return waits_for(self.bound, self.status, self.policy.until, brief=brief)
        if self.upcoming is None:
            return _("Nothing is due")
        return time_tag(self.upcoming.at, in_future(self.bound, self.upcoming))

    def facts(self) -> Iterator[tuple[str, str]]:
        yield from self._rank()
        if self.policy is not None and self.policy.until is not None and not self.is_waiting:
            yield _("What it waits for"), awaited_words(self.bound, self.status, self.policy.until)
        if self.is_leased:
            yield pgettext("state machine", "Worker"), self.lease_owner
            yield pgettext("state machine", "Lease ends"), _moment(self.lease_expires_at)
        elif self.next_at_pinned:
            yield _("When it is due"), _("was set by hand")
        if self.is_parked:
            yield pgettext("state machine", "Failed attempts"), str(self.failures)
        elif self.is_leased or (self.crashes and not self.failures):
            yield pgettext("state machine", "Attempt"), self._attempt()
        if self.crashes:
            yield _("Workers that died of it"), str(self.crashes)
        if self.attempts:
            yield _("Tries in its life"), str(self.attempts)
            yield pgettext("state machine", "Last tried"), _moment(self.claimed_at)
        yield from self._ahead()

    def _rank(self) -> Iterator[tuple[str, str]]:
        """Say in which queue the row is and how urgent, where rows say that themselves."""
        queue, priority = self.bound.queue_field, self.bound.priority_field
        if self.policy is None or not self.policy.runs:
            return
        if queue is not None:
            yield pgettext("state machine", "Queue"), getattr(self.instance, queue.attname) or self.policy.queue
        if priority is not None:
            yield pgettext("state machine", "Priority"), str(getattr(self.instance, priority.attname) or 0)

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
        if upcoming is not None and upcoming.is_last_attempt and not self.is_waiting:
            parked = _("it is parked")
            yield _("If that fails"), self.bound.label_of(upcoming.to_state) if upcoming.to_state else parked
        is_earlier = upcoming is not None and upcoming.kind in (UpcomingKind.RUN, UpcomingKind.RETRY)
        if upcoming is not None and is_earlier and self.is_waiting:
            yield _("A worker looks again"), _moment(upcoming.at)
        if (is_earlier or self.is_leased or self.is_waiting) and (at_the_latest := self.at_the_latest()):
            yield _("At the latest"), at_the_latest

    def at_the_latest(self) -> str:
        """Say what happens to the row whatever its handler does, and when, if anything."""
        later = deadline_of(self.policy, self.entered_at) if self.policy is not None else None
        return "" if later is None else time_tag(later.at, in_future(self.bound, later))

    def advice(self) -> str:
        """Say what is wrong with the schedule itself, and what to do."""
        if self.policy is None or self.is_leased or self.is_parked or self.next_at is not None or not self.policy.runs:
            return ""
        if self.policy.may_sleep:
            return ""
        return _(
            "It has no time, though something is to happen in its state. `manage.py statemachine_reschedule` gives all such "
            "rows theirs."
        )

    def commands(self) -> list[ScheduleCommand]:
        """Return what makes sense now."""
        if self.is_leased:
            return [COMMANDS["release"]]
        if self.policy is None or not self.policy.runs:
            return []
        if self.is_parked:
            return [COMMANDS["resume"]]
        if self.is_waiting:
            return [LOOK_NOW]
        return [COMMANDS["run_now"]] if self.policy.acts else []


def schedule_line(bound: Binding[Any], instance: models.Model) -> str | None:
    """Return what the schedule says in a few words, for a column of the list; nothing if nothing is due."""
    reading = ScheduleReading(bound, instance)
    if reading.is_waiting:
        line, words = one_line(reading.summary(brief=True), LONGEST_WAIT), reading.summary()
        return format_html('<span title="{}">{}</span>', words, line)
    if reading.next_at is None and not reading.is_leased and not reading.is_parked:
        return None
    if reading.policy is None and not reading.is_leased:
        return format_html('<span title="{}">{}</span>', reading.summary(), pgettext("state machine", "Never"))
    line = reading.summary(longest_error=30)
    return format_html('<span title="{}">{}</span>', reading.error, line) if reading.error else line


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
    words = _("in %(time)s") if wait > dt.timedelta(0) else _("%(time)s ago")
    return time_tag(time, words % {"time": in_words(abs(wait))})


def why_left(error: StateMachineError) -> str:
    """Say in plain words why a row was left alone."""
    if isinstance(error, RowLeased):
        return _("A worker is running it.")
    if isinstance(error, RowMissing):
        return _("It has been deleted.")
    return _("Nothing is ever due in its state.")


class Schedules(MachineAdmin):
    """Lets people run, release and resume rows of timed machines: one from its page, and many from the list."""

    def get_urls(self) -> list[URLPattern]:
        return [self.row_path("clock", self.schedule_view), *super().get_urls()]

    def schedule_view(self, request: HttpRequest, object_id: str, accessor: str) -> HttpResponse:
        """Run, release or resume one row. By POST only."""
        bound, obj = self.row_to_move(request, object_id, accessor)
        if request.method != "POST":
            return self.refuse_method(request, obj)
        back = HttpResponseRedirect(self.back_to_row(request, obj))
        command = COMMANDS.get(request.POST.get("verb", ""))
        if command is None or not bound.is_timed:
            self.message_user(request, _("There is nothing of that name to do with a row."), messages.ERROR)
            return back
        # What the person saw, and decided about.
        setattr(obj, bound.names.lease_token, read_number(request.POST.get("token", ""), -1, digits=18))
        try:
            done = self._command(request, bound, command, obj)
        except StateMachineError as error:
            names = {"row": obj, "why": why_left(error)}
            self.message_user(request, _("“%(row)s” was left alone: %(why)s") % names, messages.ERROR)
            return back
        text = command.done if done else command.too_late
        self.message_user(request, text % {"row": obj}, messages.SUCCESS if done else messages.WARNING)
        return back

    def _command(self, request: HttpRequest, bound: Binding[Any], command: ScheduleCommand, row: Any) -> bool:
        """Do it and log it, both or neither. Say whether there was something to do."""
        with transaction.atomic(using=router.db_for_write(type(row), instance=row)):
            done = command.run(bound, getattr(row, bound.accessor))
            if done:
                self.log_change(request, row, str(command.label))
        return done

    def machine_actions(self, bound: Binding[Any]) -> list[Action]:
        ours = [self._scheduler(bound, command) for command in COMMANDS.values()] if bound.is_timed else []
        return [*ours, *super().machine_actions(bound)]

    def _scheduler(self, bound: Binding[Any], command: ScheduleCommand) -> Action:
        def run(_admin: Any, request: HttpRequest, queryset: models.QuerySet[Any]) -> None:
            self._command_many(request, bound, command, queryset)

        return self.machine_action(bound, command.name, lambda: str(command.label), run)

    def _command_many(
        self, request: HttpRequest, bound: Binding[Any], command: ScheduleCommand, queryset: models.QuerySet[Any]
    ) -> None:
        done, left = 0, Counter[str]()
        rows = list(queryset.order_by("pk")[: self.bulk_limit + 1])
        if len(rows) > self.bulk_limit:
            text = _("You have selected more than %(limit)s rows, which is too much at once. Nothing was done.")
            self.message_user(request, text % {"limit": grouped(self.bulk_limit)}, messages.ERROR)
            return
        for row in rows:
            if not self.has_move_permission(request, row):
                left[_("You do not have the permission for it.")] += 1
                continue
            try:
                if self._command(request, bound, command, row):
                    done += 1
                else:
                    left[str(command.nothing)] += 1
            except StateMachineError as error:
                left[why_left(error)] += 1
        if done:
            text = ngettext("%(verb)s: %(number)s row.", "%(verb)s: %(number)s rows.", done)
            self.message_user(request, text % {"verb": command.label, "number": grouped(done)}, messages.SUCCESS)
        if left:
            text = ngettext(
                "%(number)s row was left alone: %(why)s", "%(number)s rows were left alone: %(why)s", left.total()
            )
            self.say_reasons(request, text, left)
