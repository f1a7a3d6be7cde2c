"""The system checks of timed machines: 101–199. What they say of a machine is true whether or not a worker is installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.core import checks
from django.db import connections, models, router

from statemachine_fields.db.dialect import dialect_for, is_served
from statemachine_fields.machine.binding import Binding
from statemachine_fields.machine.listeners import reasons_for_each_row
from statemachine_fields.machine.registry import machines_of
from statemachine_fields.schedule.handlers import unheard_handlers
from statemachine_fields.schedule.policy import RETRY_AFTER


def check_timed(bound: Binding[Any]) -> Iterator[checks.CheckMessage]:
    """Check one machine, if it is timed, on the model that has its columns."""
    yield from on_error_without_a_handler(bound)
    if not bound.is_timed:
        yield from row_fields_in_vain(bound)
        yield from no_tries_to_keep(bound)
        return
    yield from handlers_that_could_do_nothing(bound)
    yield from states_that_nothing_moves(bound)
    yield from retry_after_not_given(bound)
    yield from options_without_a_handler(bound)
    yield from no_worker_for_the_database(bound)
    if bound.joined_states:
        from statemachine_fields.worker.children_checks import check_children

        yield from check_children(bound)


def row_fields_in_vain(bound: Binding[Any]) -> Iterator[checks.Error]:
    fields = bound.machine.row_fields
    if given := [name for name in ("queue_field", "priority_field") if getattr(fields, name) is not None]:
        yield checks.Error(
            f"{bound.accessor!r} has {' and '.join(given)}, but no state with a handler or a clock, so no worker serves its rows.",
            hint=f"Give a state a handler, a time-out or a deletion, or remove {' and '.join(given)}.",
            obj=bound.model,
            id="statemachine_fields.E111",
        )


def no_tries_to_keep(bound: Binding[Any]) -> Iterator[checks.Warning]:
    if bound.machine.record_attempts:
        yield checks.Warning(
            f"{bound.accessor!r} has record_attempts, but no state with a handler or a clock, so there are no tries to keep.",
            hint="Give a state a handler, a time-out or a deletion, or remove record_attempts.",
            obj=bound.model,
            id="statemachine_fields.W109",
        )


def handlers_that_could_do_nothing(bound: Binding[Any]) -> Iterator[checks.Error]:
    for schedule in bound.schedules.values():
        if (handler := schedule.handler) is None:
            continue
        if bound.graph.is_terminal(schedule.state):
            yield checks.Error(
                f"{handler.name}() handles {schedule.state!r} of {bound.accessor!r}, which is terminal, so it could "
                "move its rows nowhere.",
                hint="Remove the handler, or add the transition that it is there to make. To tidy up after a row is "
                "done, use `delete_after`.",
                obj=bound.model,
                id="statemachine_fields.E101",
            )
        if bound.graph.states[schedule.state].external:
            yield checks.Error(
                f"{handler.name}() handles {schedule.state!r} of {bound.accessor!r}, which is external: someone else "
                "moves its rows.",
                hint="Remove the handler, or `external=True`.",
                obj=bound.model,
                id="statemachine_fields.E102",
            )


def states_that_nothing_moves(bound: Binding[Any]) -> Iterator[checks.Warning]:
    states = bound.graph.states
    stuck = [
        schedule.state
        for schedule in bound.schedules.values()
        if not (schedule.runs or states[schedule.state].external or bound.graph.is_terminal(schedule.state))
    ]
    if stuck:
        yield checks.Warning(
            f"No worker ever looks at rows in {_listed(stuck)} of {bound.accessor!r}.",
            hint="Give the state a handler or a `timeout_after`. If people or other programs move its rows, say so "
            "with `external=True`.",
            obj=bound.model,
            id="statemachine_fields.W101",
        )


def retry_after_not_given(bound: Binding[Any]) -> Iterator[checks.Warning]:
    states = bound.graph.states
    silent = [
        schedule.state
        for schedule in bound.schedules.values()
        if schedule.handler is not None and schedule.until is None and states[schedule.state].retry_after is None
    ]
    if silent:
        yield checks.Warning(
            f"Rows in {_listed(silent)} of {bound.accessor!r} are tried again every {RETRY_AFTER:g} s, because the state "
            "does not say otherwise.",
            hint="Say how long to wait between two tries with `retry_after`.",
            obj=bound.model,
            id="statemachine_fields.W102",
        )


def options_without_a_handler(bound: Binding[Any]) -> Iterator[checks.Warning]:
    for schedule in bound.schedules.values():
        options = bound.graph.states[schedule.state].for_handlers()
        if schedule.until is not None:  # which moves its rows by itself, and may fail to
            options = [option for option in options if option == "time_limit"]
        if options and schedule.handler is None:
            yield checks.Warning(
                f"{schedule.state!r} of {bound.accessor!r} has no handler, so {' and '.join(options)} "
                f"{'means' if len(options) == 1 else 'mean'} nothing.",
                hint="Write the handler, or remove the options.",
                obj=bound.model,
                id="statemachine_fields.W103",
            )


def on_error_without_a_handler(bound: Binding[Any]) -> Iterator[checks.Warning]:
    handled = {schedule.state for schedule in bound.schedules.values() if schedule.handler is not None}
    for state, method in bound.deciding.items():
        if state in handled or (state is None and handled):
            continue
        what = "a state" if state is None else repr(state)
        yield checks.Warning(
            f"{method.name}() decides on errors of {what} of {bound.accessor!r} and is never asked: there is no handler.",
            hint="Write the handler, or remove the method.",
            obj=bound.model,
            id="statemachine_fields.W120",
        )


def committed_row_by_row(bound: Binding[Any]) -> Iterator[checks.Warning]:
    """Say why workers cannot move the rows together. What is connected to a signal later cannot be seen."""
    reasons = [] if bound.audit_model is None else list(reasons_for_each_row(bound))
    if reasons:
        yield checks.Warning(
            f"Workers write the moves of {bound.accessor!r} row by row, because of {' and '.join(reasons)}.",
            hint="It is as correct, and slower. Silence this check if it is fast enough.",
            obj=bound.model,
            id="statemachine_fields.W104",
        )


def handlers_never_called(model: type[models.Model]) -> Iterator[checks.Warning]:
    """Check what a proxy or a multi-table child adds to a machine that it shares."""
    for bound, methods in unheard_handlers(model, machines_of(model).values()).items():
        for name in methods:
            yield checks.Warning(
                f"{name}() is never called for {bound.accessor!r}: workers run rows as instances of "
                f"{bound.model._meta.label}, which has the machine's columns.",
                hint=f"Move the handler to {bound.model._meta.label}, and let it look at the row to tell the kinds apart.",
                obj=model,
                id="statemachine_fields.W105",
            )


def worker_not_installed() -> checks.Warning:
    return checks.Warning(
        "Models have timed state machines, but 'statemachine_fields.worker' is not in INSTALLED_APPS.",
        hint="Add it: the command that moves their rows comes with the app. If workers run from another project, silence "
        "this check.",
        id="statemachine_fields.W106",
    )


def no_worker_for_the_database(bound: Binding[Any]) -> Iterator[checks.Warning]:
    alias = router.db_for_write(bound.model)
    if not is_served(connections[alias]):
        yield checks.Warning(
            f"There is no worker yet for the database {alias!r}, so nothing runs the handlers and time-outs of "
            f"{bound.accessor!r}.",
            hint="Keep the model on PostgreSQL, or on SQLite. Moves by transition_to() work on any database.",
            obj=bound.model,
            id="statemachine_fields.W107",
        )


def one_process_only(machines: Iterable[Binding[Any]]) -> Iterator[checks.Warning]:
    aliases = dict.fromkeys(router.db_for_write(machine.model) for machine in machines)
    for alias in aliases:
        connection = connections[alias]
        if is_served(connection) and not dialect_for(connection).is_shared:
            yield checks.Warning(
                f"The database {alias!r} has rows of timed machines, and one worker process at a time can run them.",
                hint="Run a single worker process, or move the models to PostgreSQL, where many share the work.",
                id="statemachine_fields.W108",
            )


def _listed(states: Iterable[str]) -> str:
    return ", ".join(repr(state) for state in states)
