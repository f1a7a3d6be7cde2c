"""Every system check and its id: 001–099 the machine, here; 101–199 the worker, in `worker.checks`. Each number is used
once, for ever. They are registered as soon as the package is imported, so that a project which has not installed the app is
told of it; what they need is loaded when they run.

What can be seen in a declaration alone raises `ValueError` there. These need the rest of the project: the columns and
models around a machine, or they are smells that someone may want to silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from inspect import getattr_static
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig, apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, models, router, transaction

from statemachine_fields.db.fields import owns_column
from statemachine_fields.machine.fields import StatusField
from statemachine_fields.machine.guards import guards_never_asked
from statemachine_fields.machine.registry import all_machines, attributes_of
from statemachine_fields.schedule.columns import features_of

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.machine.descriptor import StateMachine
    from statemachine_fields.machine.live_keys import LiveKey


@checks.register(checks.Tags.models)
def check_machines(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check every machine of the project, or of the apps given."""
    from statemachine_fields.worker.checks import handlers_never_called, worker_not_installed

    found: list[checks.CheckMessage] = []
    machines = timed = 0
    for model in _models(app_configs):
        for name, attribute in attributes_of(model).items():
            machines += 1
            if attribute.bound is None:
                found += check_unbound(model, name, attribute.machine)
            elif attribute.bound.model is model:
                found += check_bound(attribute.bound)
                timed += attribute.bound.is_timed
        found += vanished_machines(model)
        found += handlers_never_called(model)
    if machines and not apps.is_installed("statemachine_fields"):
        found.append(app_not_installed())
    if timed and not apps.is_installed("statemachine_fields.worker"):
        found.append(worker_not_installed())
    return [*found, *wrong_settings()]


@checks.register(checks.Tags.database)
def check_rows(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Check the rows of every machine, in the databases given: those of `check --database`, and of `migrate`."""
    machines = list(all_machines(_models(app_configs)))
    return [each for alias in databases or () for bound in machines for each in undeclared_states(bound, alias)]


# Many small projects run well on SQLite with the one worker process that it takes, so only those who ask how they would
# fare in production are told.
@checks.register(checks.Tags.models, deploy=True)
def check_one_process(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that the databases of timed machines let several worker processes share the work."""
    from statemachine_fields.worker.checks import one_process_only

    return list(one_process_only(_timed_machines(app_configs)))


# Signals are there to be used, and moves that are written one by one are as correct. How fast they are matters in
# production.
@checks.register(checks.Tags.models, deploy=True)
def check_row_by_row(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that workers can write the moves of many rows together."""
    from statemachine_fields.worker.checks import committed_row_by_row

    return [each for bound in _timed_machines(app_configs) for each in committed_row_by_row(bound)]


def _models(app_configs: Sequence[AppConfig] | None) -> Iterator[type[models.Model]]:
    for config in app_configs or apps.get_app_configs():
        yield from config.get_models(include_auto_created=True)


def _timed_machines(app_configs: Sequence[AppConfig] | None) -> list[Binding[Any]]:
    return [bound for bound in all_machines(_models(app_configs)) if bound.is_timed]


def undeclared_states(bound: Binding[Any], alias: str) -> Iterator[checks.Warning]:
    if not router.allow_migrate_model(alias, bound.model):
        return
    try:
        with transaction.atomic(using=alias):  # which an error ends, and not the transaction around
            states = bound.face.undeclared_states(using=alias)
    except DatabaseError:  # `migrate` has not made the table or the column yet
        return
    if states:
        yield checks.Warning(
            f"Rows of {bound.accessor!r} are in {_listed(states)} in the database {alias!r}, which the machine does not "
            "declare.",
            hint="No move leads out of such a state, and no worker takes its rows. Declare it again, or move them on with "
            "force_transition_to().",
            obj=bound.model,
            id="statemachine_fields.W006",
        )


def check_bound(bound: Binding[Any]) -> Iterator[checks.CheckMessage]:
    """Check one machine on the model that has its columns."""
    from statemachine_fields.worker.checks import check_timed

    yield from audit_name_taken(bound)
    yield from unreachable_states(bound)
    yield from trap_states(bound)
    yield from same_but_for_case(bound)
    yield from same_label(bound)
    yield from wrong_forms(bound)
    yield from guards_in_vain(bound)
    if bound.machine.live_key is not None:
        yield from wrong_key(bound, bound.machine.live_key)
        yield from key_not_held(bound)
    yield from check_timed(bound)


def app_not_installed() -> checks.Error:
    return checks.Error(
        "Models have state machines, but 'statemachine_fields' is not in INSTALLED_APPS.",
        hint="Add it: the commands, the admin's templates and its style come with the app.",
        id="statemachine_fields.E001",
    )


def wrong_settings() -> Iterator[checks.Error]:
    from statemachine_fields.conf import settings

    try:
        settings()
    except ImproperlyConfigured as error:
        yield checks.Error(
            str(error),
            hint="Correct STATEMACHINE_FIELDS in the settings. It would raise at the first move otherwise.",
            id="statemachine_fields.E004",
        )


def check_unbound(model: type[models.Model], name: str, machine: StateMachine) -> Iterator[checks.Error]:
    """Say which of a machine's columns the model has put something else in place of."""
    there = {field.name for field in model._meta.local_fields} | set(vars(model))
    columns = machine.names.of(features_of(machine, model, name))
    taken = [column for column in columns if column in there and not owns_column(machine, model, column)]
    for column in taken or [machine.names.status]:
        yield checks.Error(
            f"The machine {name!r} needs the column {column!r}, which the model or another machine declares.",
            hint=f"Remove {column!r} from the model: the machine adds it. Or give the machine another `field=`.",
            obj=model,
            id="statemachine_fields.E002",
        )


def vanished_machines(model: type[models.Model]) -> Iterator[checks.Error]:
    """Say which machines of abstract bases the model has columns of, and something else under the name of."""
    for field in model._meta.local_fields:
        if not isinstance(field, StatusField) or field.machine is None or field.bound is not None:
            continue
        name, machine = field.accessor, field.machine
        if getattr_static(model, name, None) is machine:
            continue  # it could not be bound, as check_unbound() says
        origin = next((base.__qualname__ for base in model.__mro__ if vars(base).get(name) is machine), None)
        if origin is None:
            continue  # a copy of the column, as history tables of other libraries have
        yield checks.Error(
            f"The machine {name!r} of {origin} is lost: another base, or the model, has {name!r} too. Its columns are there, "
            f"{field.name!r} among them, and nothing moves the rows.",
            hint="Give one of the machines another name, so that the model has both. To leave this one out, set its columns to "
            f"None on the model: {', '.join(machine.names.columns)}.",
            obj=model,
            id="statemachine_fields.E006",
        )


def audit_name_taken(bound: Binding[Any]) -> Iterator[checks.Error]:
    meta = bound.model._meta
    ours: list[tuple[str, str, Any]] = [
        ("audit model", bound.names.audit_model(bound.model.__name__), bound.audit_model)
    ]
    if "inbox" in bound.features:
        ours.append(("model for events", bound.names.event_model(bound.model.__name__), bound.event_model))
    if bound.machine.record_attempts and bound.is_timed:
        ours.append(("model for tries", bound.names.attempt_model(bound.model.__name__), bound.tries_model))
    for what, name, model in ours:
        if meta.apps.all_models[meta.app_label].get(name.lower()) is not model:
            yield checks.Error(
                f"The {what} of {bound.accessor!r} is called {name}, and so is another model of the app.",
                hint=f"Rename the other model, or give the machine another `field=`, which its {what} is named after.",
                obj=bound.model,
                id="statemachine_fields.E003",
            )


def unreachable_states(bound: Binding[Any]) -> Iterator[checks.Warning]:
    if states := bound.graph.unreachable_states():
        yield checks.Warning(
            f"No moves lead from {bound.graph.initial!r} to {_listed(states)} in {bound.accessor!r}.",
            hint="Add the missing transition. If rows are created in that state, silence this check.",
            obj=bound.model,
            id="statemachine_fields.W001",
        )


def trap_states(bound: Binding[Any]) -> Iterator[checks.Warning]:
    if states := bound.graph.trap_states():
        yield checks.Warning(
            f"Rows never get out of {_listed(states)} in {bound.accessor!r}, which have moves.",
            hint="Add a transition that leads on, or remove those that lead in a circle to make the state terminal.",
            obj=bound.model,
            id="statemachine_fields.W002",
        )


def same_but_for_case(bound: Binding[Any]) -> Iterator[checks.Warning]:
    if states := _sharing(bound.graph.states, key=str.casefold):
        yield checks.Warning(
            f"The states {_listed(states)} of {bound.accessor!r} differ only in case.",
            hint="Rename one: MariaDB and MySQL compare without regard to case and take them for one state.",
            obj=bound.model,
            id="statemachine_fields.W003",
        )


def same_label(bound: Binding[Any]) -> Iterator[checks.Warning]:
    labels = {state.value: str(state.label) for state in bound.graph.states.values()}
    if states := _sharing(labels, key=labels.__getitem__):
        yield checks.Warning(
            f"The states {_listed(states)} of {bound.accessor!r} have the same label.",
            hint="Give each its own label, or people cannot tell them apart.",
            obj=bound.model,
            id="statemachine_fields.W004",
        )


def guards_in_vain(bound: Binding[Any]) -> Iterator[checks.Warning]:
    for guard, why in guards_never_asked(bound):
        yield checks.Warning(
            f"The guard {guard}() of {bound.accessor!r} is never asked: {why}.",
            hint="Put @states.guard() above other decorators, in the class that has the machine's columns or a base of it, and "
            "name states that rows can move to. Or remove the guard.",
            obj=bound.model,
            id="statemachine_fields.W005",
        )


def wrong_forms(bound: Binding[Any]) -> Iterator[checks.Error]:
    from statemachine_fields.machine.forms import what_is_wrong

    for (source, target), transition in bound.graph.details.items():
        if wrong := what_is_wrong(bound, transition):
            yield checks.Error(
                f"The form of the transition from {source!r} to {target!r} in {bound.accessor!r} cannot be used: {wrong}",
                hint="Name a class that derives from django.forms.Form, or from ModelForm for this model, or its dotted path.",
                obj=bound.model,
                id="statemachine_fields.E005",
            )


def wrong_key(bound: Binding[Any], key: LiveKey) -> Iterator[checks.Error]:
    from statemachine_fields.machine.live_keys import wrong_fields

    for name, why in wrong_fields(bound.model, key, bound.columns).items():
        yield checks.Error(
            f"unique_while_live of {bound.accessor!r} names {name!r}, which cannot be part of a key: {why}.",
            hint="Name fields that the model itself declares, in the table that has the status. Nothing is unique until then.",
            obj=bound.model,
            id="statemachine_fields.E007",
        )


def key_not_held(bound: Binding[Any]) -> Iterator[checks.Error]:
    for alias in connections:
        connection = connections[alias]
        if router.allow_migrate_model(alias, bound.model) and not connection.features.supports_partial_indexes:
            yield checks.Error(
                f"unique_while_live of {bound.accessor!r} is not held by the database {alias!r}, which has no unique constraints "
                "for some of the rows.",
                hint="Move the model to PostgreSQL or SQLite, or remove unique_while_live: nothing would keep two live rows from "
                "having the same key.",
                obj=bound.model,
                id="statemachine_fields.E008",
            )


def _sharing(states: Iterable[str], key: Any) -> list[str]:
    """Return the states whose key another one has too."""
    keys = [key(state) for state in states]
    return [state for state, its in zip(states, keys, strict=True) if keys.count(its) > 1]


def _listed(states: Iterable[str]) -> str:
    return ", ".join(repr(state) for state in states)
