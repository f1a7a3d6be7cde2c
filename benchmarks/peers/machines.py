"""Machines and histories: what happens to an order and its record. Run by run.py, with a database at hand."""

from __future__ import annotations

import re
from contextlib import suppress
from html import unescape
from typing import Any

import django_fsm
from cells import NO, NONE, YES, cell
from compared import models
from django.apps import apps
from django.contrib.auth.models import User
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.urls import reverse
from django_fsm_log.models import StateLog
from simple_history.signals import pre_create_historical_record
from simple_history.utils import bulk_update_with_history
from viewflow.fsm import TransitionNotAllowed

from statemachine_fields.exceptions import StateMachineError
from statemachine_fields.signals import post_transition

TABLE = "machines"
OURS, FSM, VIEWFLOW, SIMPLE, PG = "this library", "django-fsm-2", "viewflow.fsm", "simple-history", "pghistory"

RECORD = "A record for each move"
ATOMIC = "Move and record are one transaction"
UNDECLARED = "Assigning and saving an undeclared move is refused"
STALE = "Saving an old instance leaves the state alone"
REASON = "A refusal says why"
MANY = "Many rows in one call, each recorded"
RAW = "A move by raw SQL is recorded"
FIELDS = "Other fields are recorded"
STAYS = "Tells how long rows stay in a state"
BUTTONS = "Admin: a button for each move"
WHY = "Admin: says why a move is not possible"
STORY = "Admin: the moves of a row"
GRAPH = "Admin: the graph of the states"
ACTION = "Admin: moves many rows"


class Stop(Exception):
    """Something that goes wrong at the worst moment."""


def records(model: Any, order: Any) -> int:
    """Return how many records there are of an order's moves. The record of its creation is none."""
    if model is models.OurOrder:
        return order.states.history.count()
    if model is models.FsmOrder:
        return StateLog.objects.for_(order).count()
    if model is models.HistoricOrder:
        return order.history.filter(history_type="~").count()
    return model.pgh_event_model.objects.filter(pgh_obj=order, pgh_label="update").count()


def moved(order: Any) -> bool:
    return type(order).objects.get(pk=order.pk).status == "PAID"


def pay(order: Any) -> None:
    """Move an order as the documentation of its library has it."""
    match order:
        case models.OurOrder():
            order.states.transition_to("PAID")
        case models.FsmOrder() | models.ProtectedFsmOrder() | models.ConcurrentFsmOrder():
            order.pay()
            order.save()
        case models.ViewflowOrder():
            models.ViewflowFlow(order).pay()
        case _:
            order.status = "PAID"
            order.save()


# A record for each move


def _is_recorded(model: Any) -> str:
    order = model.objects.create()
    pay(order)
    assert moved(order)
    return YES if records(model, order) == 1 else NO


@cell(TABLE, RECORD, OURS)
def _() -> str:
    return _is_recorded(models.OurOrder)


@cell(TABLE, RECORD, FSM)
def _() -> str:
    return _is_recorded(models.FsmOrder)


@cell(TABLE, RECORD, VIEWFLOW)
def _() -> str:
    """It has models of its own only for processes and tasks, and a machine writes none of them."""
    pay(models.ViewflowOrder.objects.create())
    return NO if not [m for m in apps.get_app_config("viewflow_base").get_models() if m.objects.exists()] else YES


@cell(TABLE, RECORD, SIMPLE)
def _() -> str:
    order = models.HistoricOrder.objects.create()
    order.address = "elsewhere"
    order.save()  # no move
    return "for each save" if records(models.HistoricOrder, order) == 1 else _is_recorded(models.HistoricOrder)


@cell(TABLE, RECORD, PG)
def _() -> str:
    order = models.PgOrder.objects.create()
    order.address = "elsewhere"
    order.save()  # no move
    return "for each change" if records(models.PgOrder, order) == 1 else _is_recorded(models.PgOrder)


# Move and record are one transaction


@cell(TABLE, ATOMIC, OURS)
def _() -> str:
    order = models.OurOrder.objects.create()

    def stop(**kwargs: Any) -> None:
        raise Stop

    post_transition.connect(stop, sender=models.OurOrder)
    try:
        pay(order)
    except Stop:
        pass
    finally:
        post_transition.disconnect(stop, sender=models.OurOrder)
    return YES if (moved(order), records(models.OurOrder, order)) == (False, 0) else NO


@cell(TABLE, ATOMIC, FSM)
def _() -> str:
    """The method writes the record, `save()` writes the row. What ends the process in between leaves the one alone."""
    order = models.FsmOrder.objects.create()
    order.pay()
    alone = (moved(order), records(models.FsmOrder, order)) == (False, 1)
    wrapped = models.FsmOrder.objects.create()
    try:
        with transaction.atomic():
            wrapped.pay()
            raise Stop
    except Stop:
        pass
    can_be = (moved(wrapped), records(models.FsmOrder, wrapped)) == (False, 0)
    return "if you make it one" if alone and can_be else YES


@cell(TABLE, ATOMIC, VIEWFLOW)
def _() -> str:
    return NONE  # there is no record


@cell(TABLE, ATOMIC, SIMPLE)
def _() -> str:
    order = models.HistoricOrder.objects.create()

    def stop(**kwargs: Any) -> None:
        raise Stop

    pre_create_historical_record.connect(stop)
    try:
        pay(order)
    except Stop:
        pass
    finally:
        pre_create_historical_record.disconnect(stop)
    alone = (moved(order), records(models.HistoricOrder, order)) == (True, 0)
    return "if you make it one" if alone else YES


@cell(TABLE, ATOMIC, PG)
def _() -> str:
    """Let the record be impossible: then the move is, too."""
    order = models.PgOrder.objects.create()
    table = models.PgOrder.pgh_event_model._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT never CHECK (status <> 'PAID') NOT VALID")
    try:
        pay(order)
    except DatabaseError:
        pass
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT never")
    return YES if (moved(order), records(models.PgOrder, order)) == (False, 0) else NO


# Assigning and saving an undeclared move is refused


def _ships(model: Any) -> bool:
    """Say whether an order that is not paid can be shipped by assigning the state."""
    order = model.objects.create()
    try:
        order.status = "SHIPPED"
        order.save()
    except (StateMachineError, AttributeError, DatabaseError, TransitionNotAllowed):
        pass
    return model.objects.get(pk=order.pk).status == "SHIPPED"


@cell(TABLE, UNDECLARED, OURS)
def _() -> str:
    return NO if _ships(models.OurOrder) else YES


@cell(TABLE, UNDECLARED, FSM)
def _() -> str:
    return "with `protected=True`" if _ships(models.FsmOrder) and not _ships(models.ProtectedFsmOrder) else YES


@cell(TABLE, UNDECLARED, VIEWFLOW)
def _() -> str:
    return NO if _ships(models.ViewflowOrder) else YES


@cell(TABLE, UNDECLARED, SIMPLE)
def _() -> str:
    return NO if _ships(models.HistoricOrder) else YES


@cell(TABLE, UNDECLARED, PG)
def _() -> str:
    return "with `pgtrigger.FSM`" if _ships(models.PgOrder) and not _ships(models.PgGuardedOrder) else YES


# Saving an old instance leaves the state alone


def _survives(model: Any) -> bool:
    """Say whether a move is still there after somebody saved what they had loaded before it."""
    order = model.objects.create()
    old = model.objects.get(pk=order.pk)
    pay(order)
    old.address = "elsewhere"
    with suppress(django_fsm.ConcurrentTransition, DatabaseError):
        old.save()
    return moved(order)


@cell(TABLE, STALE, OURS)
def _() -> str:
    return YES if _survives(models.OurOrder) else NO


@cell(TABLE, STALE, FSM)
def _() -> str:
    return "with a mixin" if not _survives(models.FsmOrder) and _survives(models.ConcurrentFsmOrder) else YES


@cell(TABLE, STALE, VIEWFLOW)
def _() -> str:
    return YES if _survives(models.ViewflowOrder) else NO


@cell(TABLE, STALE, SIMPLE)
def _() -> str:
    return YES if _survives(models.HistoricOrder) else NO


@cell(TABLE, STALE, PG)
def _() -> str:
    back = "if the way back is undeclared, with `pgtrigger.FSM`"
    return back if not _survives(models.PgOrder) and _survives(models.PgGuardedOrder) else YES


# A refusal says why


def _refusal(order: Any) -> str:
    try:
        pay(order)
    except (StateMachineError, TransitionNotAllowed, django_fsm.TransitionNotAllowed) as error:
        return str(error)
    raise AssertionError("It was not refused.")


@cell(TABLE, REASON, OURS)
def _() -> str:
    order = models.OurOrder.objects.create(address="")
    said = [blocker.message for blocker in order.states.blockers("PAID")]
    return "yes, all reasons" if models.REASON in _refusal(order) and said == [models.REASON] else NO


@cell(TABLE, REASON, FSM)
def _() -> str:
    """It can be asked whether, and it raises; neither names the condition."""
    order = models.FsmOrder.objects.create(address="")
    assert django_fsm.can_proceed(order.pay) is False
    return NO if "has_address" not in _refusal(order) else YES


@cell(TABLE, REASON, VIEWFLOW)
def _() -> str:
    return "yes, the first" if models.REASON in _refusal(models.ViewflowOrder(address="")) else NO


@cell(TABLE, REASON, SIMPLE, PG)
def _() -> str:
    return NONE  # nothing is refused for a reason


# Many rows in one call, each recorded


@cell(TABLE, MANY, OURS)
def _() -> str:
    orders = models.OurOrder.objects.bulk_create(models.OurOrder() for _ in range(3))
    models.OurOrder.states.bulk_transition(models.OurOrder.objects.filter(pk__in=[o.pk for o in orders]), "PAID")
    return YES if all(moved(o) and records(models.OurOrder, o) == 1 for o in orders) else NO


@cell(TABLE, MANY, FSM, VIEWFLOW)
def _() -> str:
    """What Django has moves rows past them."""
    order = models.FsmOrder.objects.create()
    models.FsmOrder.objects.filter(pk=order.pk).update(status="PAID")
    return NO if moved(order) and not records(models.FsmOrder, order) else YES


@cell(TABLE, MANY, SIMPLE)
def _() -> str:
    orders = [models.HistoricOrder.objects.create() for _ in range(3)]
    models.HistoricOrder.objects.filter(pk=orders[0].pk).update(status="PAID")
    by_update = records(models.HistoricOrder, orders[0])
    for order in orders[1:]:
        order.status = "PAID"
    bulk_update_with_history(orders[1:], models.HistoricOrder, ["status"])
    by_function = all(records(models.HistoricOrder, order) == 1 for order in orders[1:])
    return "by functions of its own" if by_function and not by_update else YES


@cell(TABLE, MANY, PG)
def _() -> str:
    orders = [models.PgOrder.objects.create() for _ in range(3)]
    models.PgOrder.objects.filter(pk__in=[o.pk for o in orders]).update(status="PAID")
    return "**yes, by `update()`**" if all(records(models.PgOrder, o) == 1 for o in orders) else NO


# A move by raw SQL is recorded


def _sees_sql(model: Any) -> str:
    order = model.objects.create()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {model._meta.db_table} SET status = 'PAID' WHERE id = %s", [order.pk])
    return "**yes**" if records(model, order) else NO


@cell(TABLE, RAW, OURS)
def _() -> str:
    return _sees_sql(models.OurOrder)


@cell(TABLE, RAW, FSM)
def _() -> str:
    return _sees_sql(models.FsmOrder)


@cell(TABLE, RAW, VIEWFLOW)
def _() -> str:
    return NONE


@cell(TABLE, RAW, SIMPLE)
def _() -> str:
    return _sees_sql(models.HistoricOrder)


@cell(TABLE, RAW, PG)
def _() -> str:
    return _sees_sql(models.PgOrder)


# Other fields are recorded


def _records_fields(model: Any) -> str:
    order = model.objects.create()
    order.address = "elsewhere"
    order.save()
    return "**yes**" if records(model, order) else NO


@cell(TABLE, FIELDS, OURS)
def _() -> str:
    return _records_fields(models.OurOrder)


@cell(TABLE, FIELDS, FSM)
def _() -> str:
    return _records_fields(models.FsmOrder)


@cell(TABLE, FIELDS, VIEWFLOW)
def _() -> str:
    return NONE


@cell(TABLE, FIELDS, SIMPLE)
def _() -> str:
    return _records_fields(models.HistoricOrder)


@cell(TABLE, FIELDS, PG)
def _() -> str:
    return _records_fields(models.PgOrder)


# Tells how long rows stay in a state


@cell(TABLE, STAYS, OURS)
def _() -> str:
    order = models.OurOrder.objects.create()
    pay(order)
    order.states.transition_to("SHIPPED")
    return YES if models.OurOrder.states.durations().states["PAID"].count else NO


@cell(TABLE, STAYS, FSM, VIEWFLOW, SIMPLE, PG)
def _() -> str:
    """None of what they give a record or its queryset has to do with it."""
    managers = [StateLog.objects, models.HistoricOrder.history, models.PgOrder.pgh_event_model.objects]
    words = ("duration", "stay", "elapsed", "time_in", "how_long")
    return YES if [n for m in managers for n in dir(m) if any(word in n for word in words)] else NO


# The admin


def visitor() -> Client:
    """Return a browser of somebody who may do everything."""
    user, _created = User.objects.get_or_create(username="grace", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(user)
    return client


def page(model: Any, name: str, **columns: Any) -> str:
    """Return a page of the admin of an order, or of the list of orders if the name says so."""
    order = model.objects.create(**columns)
    if not columns:
        pay(order)
    arguments, query = ([], {"id__exact": order.pk}) if name == "changelist" else ([order.pk], {})
    answer = visitor().get(reverse(f"admin:compared_{model._meta.model_name}_{name}", args=arguments), query)
    assert answer.status_code == 200, f"{model._meta.model_name}_{name}: {answer.status_code}"
    content = answer.content.decode().split('id="content"')[-1]
    # In the select of the field any state can be chosen, and says nothing of moves.
    return re.sub(r'<select name="status".*?</select>', "", content, flags=re.DOTALL)


MODELS = {
    OURS: models.OurOrder,
    FSM: models.FsmOrder,
    VIEWFLOW: models.ViewflowOrder,
    SIMPLE: models.HistoricOrder,
    PG: models.PgOrder,
}


def ask_admin(row: str, question: Any) -> None:
    """Ask all admins the same question."""
    for column, model in MODELS.items():
        cell(TABLE, row, column)(lambda model=model: question(model))


def _has_buttons(model: Any) -> str:
    shown = page(model, "change", address="here")
    return YES if re.search(r"<(?:button|input|a)\b[^>]*\b(?:PAID|pay)\b[^>]*>", shown) else NO


def _says_why(model: Any) -> str:
    return YES if models.REASON in page(model, "change", address="") else NO


def _shows_moves(model: Any) -> str:
    """Look for the state that the order has left, beside the one it has entered, where a person would look."""
    for name in ("change", "history"):
        shown = page(model, name)
        for link in re.findall(r'href="([^"]*)" class="events?-admin"', shown):
            shown += visitor().get(unescape(link)).content.decode()
        if "PENDING" in shown.upper() and "PAID" in shown.upper():
            return YES
    return NO


def _shows_graph(model: Any) -> str:
    """The one order on the list is paid, so that only a graph has another state."""
    shown = page(model, "changelist").upper()
    assert "PAID" in shown
    return YES if "PENDING" in shown else NO


def _moves_many(model: Any) -> str:
    found = re.search(r'<select name="action".*?</select>', page(model, "changelist"), re.DOTALL)
    return YES if found and re.search(r"paid|pay|move", found[0], re.IGNORECASE) else NO


ask_admin(BUTTONS, _has_buttons)
ask_admin(WHY, _says_why)
ask_admin(STORY, _shows_moves)
ask_admin(GRAPH, _shows_graph)
ask_admin(ACTION, _moves_many)
