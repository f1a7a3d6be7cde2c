"""What is measured. Each contender gives a function, and the table it moves orders in.

A fresh process runs one contender and nothing else, so no contender can warm up, or slow down, another.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: OPTIONS with which psycopg prepares whatever goes over Django's connection.
PREPARED = '{"server_side_binding": true, "prepare_threshold": 0}'

#: PREPARE of the contender "ours, not prepared".
NOT_PREPARED = "false"


@dataclass(frozen=True)
class Contender:
    """One way to do the work: its name in the report, the model it moves, and where its audit rows go."""

    name: str
    model: str
    audit_table: str
    #: Returns what does the work, once Django is set up.
    build: Callable[[], Callable[[Any], Any]]
    #: Whether it is given keys rather than instances.
    takes_keys: bool = False
    #: Whether it is given lists of new instances, as many as the keys say.
    takes_new: bool = False
    prepare: str = '"auto"'
    #: OPTIONS of its database, as JSON.
    options: str = "{}"
    #: Whether it runs the library of an earlier commit, if there is one to compare with.
    is_before: bool = False
    #: What its table is called, if it has no model, and what a new row has as its status.
    own_table: str = ""
    new: str = "NEW"

    @property
    def table(self) -> str:
        return self.own_table or f"orders_{self.model.lower()}"


# The statement that ours sends, with the same columns, the same casts and the same result.
MOVE_BY_HAND = """
    WITH moved AS (
        UPDATE orders_plainorder
           SET status = %s, status_sequence = status_sequence + 1, status_changed_at = clock_timestamp()
         WHERE id = %s AND status = %s
        RETURNING id, status_sequence, status_changed_at)
    INSERT INTO orders_plaintransition
           (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT %s::uuid, %s, %s, %s::jsonb, id, status_sequence, status_changed_at FROM moved
    RETURNING sequence, (extract(epoch FROM transitioned_at) * 1000000)::bigint"""

# The ids count up, as time-ordered ids do: random ones would touch a page of the index for each row.
MOVE_MANY_BY_HAND = """
    WITH moved AS (
        UPDATE orders_plainorder
           SET status = 'DONE', status_sequence = status_sequence + 1, status_changed_at = clock_timestamp()
         WHERE id > %s AND status = 'NEW'
        RETURNING id, status_sequence, status_changed_at)
    INSERT INTO orders_plaintransition
           (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT (%s || lpad(to_hex(row_number() OVER ()), 8, '0'))::uuid,
           'NEW', 'DONE', '{}', id, status_sequence, status_changed_at FROM moved"""


def ours() -> Callable[[Any], Any]:
    def move(order: Any) -> None:
        order.states.transition_to("DONE")

    return move


def fsm_log() -> Callable[[Any], Any]:
    def move(order: Any) -> None:
        order.finish()
        order.save()

    return move


def tracked() -> Callable[[Any], Any]:
    def move(order: Any) -> None:
        order.status = "DONE"
        order.save(update_fields=["status"])

    return move


def by_hand() -> Callable[[Any], Any]:
    from django.db import connection
    from psycopg.types.numeric import Int8

    def move(key: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute(MOVE_BY_HAND, ("DONE", Int8(key), "NEW", time_ordered_id(), "NEW", "DONE", "{}"))
            if cursor.fetchone() is None:
                raise LookupError(key)

    return move


def by_driver() -> Callable[[Any], Any]:
    import psycopg
    from django.db import connection
    from psycopg.types.numeric import Int8

    connection.ensure_connection()
    driver = connection.connection
    driver.prepare_threshold = 2**31  # psycopg prepares on demand only where a threshold is set
    cursor = psycopg.Cursor(driver)

    def move(key: int) -> None:
        cursor.execute(MOVE_BY_HAND, ("DONE", Int8(key), "NEW", time_ordered_id(), "NEW", "DONE", "{}"), prepare=True)
        if cursor.fetchone() is None:
            raise LookupError(key)

    return move


def floor() -> Callable[[Any], Any]:
    from django.db import transaction
    from django.utils import timezone
    from orders.models import PlainOrder, PlainTransition

    def move(order: Any) -> None:
        now, sequence = timezone.now(), order.status_sequence + 1
        with transaction.atomic():
            rows = PlainOrder.objects.filter(pk=order.pk, status=order.status)
            if not rows.update(status="DONE", status_sequence=sequence, status_changed_at=now):
                raise LookupError(order.pk)
            PlainTransition.objects.create(
                id=time_ordered_id(),
                instance=order,
                from_status=order.status,
                to_status="DONE",
                transitioned_at=now,
                sequence=sequence,
            )
        order.status, order.status_sequence, order.status_changed_at = "DONE", sequence, now

    return move


def ours_in_bulk() -> Callable[[Any], Any]:
    from orders.models import MachineOrder

    def move_above(key: int) -> None:
        MachineOrder.states.bulk_transition(MachineOrder.objects.filter(pk__gt=key, status="NEW"), "DONE")

    return move_above


def tracked_in_bulk() -> Callable[[Any], Any]:
    from orders.models import TrackedOrder

    def move_above(key: int) -> None:
        TrackedOrder.objects.filter(pk__gt=key, status="NEW").update(status="DONE")

    return move_above


def by_hand_in_bulk() -> Callable[[Any], Any]:
    from django.db import connection

    def move_above(key: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute(MOVE_MANY_BY_HAND, (key, time_ordered_id().hex[:24]))

    return move_above


def loading(model_name: str) -> Callable[[], Callable[[Any], Any]]:
    def build() -> Callable[[Any], Any]:
        from django.apps import apps

        model = apps.get_model("orders", model_name)

        def load(times: int) -> None:
            for _ in range(times):
                for order in model.objects.all():
                    _status = order.status

        return load

    return build


def creating(model_name: str) -> Callable[[], Callable[[Any], Any]]:
    def build() -> Callable[[Any], Any]:
        from django.apps import apps

        return apps.get_model("orders", model_name).objects.bulk_create

    return build


#: How many orders one transaction inserts.
TOGETHER = 10


def enqueueing(model_name: str, *, starts: bool = False) -> Callable[[], Callable[[Any], Any]]:
    """Insert some orders one by one, in one transaction, so that what is compared is no commit."""

    def build() -> Callable[[Any], Any]:
        from django.apps import apps
        from django.db import transaction

        model: Any = apps.get_model("orders", model_name)

        def insert(number: int) -> None:
            with transaction.atomic():
                for customer in customers(number):
                    if starts:
                        model.states.get_or_start(customer=customer)
                    else:
                        model.objects.create(customer=customer)

        return insert

    return build


def procrastinate_lock() -> Callable[[Any], Any]:
    """Over Django's connection, as its app for Django has it."""
    from django.db import transaction
    from procrastinate.contrib.django import app

    @app.task(name="order")
    def order(customer: str) -> None:
        """Nobody runs it."""

    def insert(number: int) -> None:
        with transaction.atomic():
            for customer in customers(number):
                order.configure(queueing_lock=customer).defer(customer=customer)

    return insert


def dbos_deduplication() -> Callable[[Any], Any]:
    import dbos_peer
    import sqlalchemy

    client, engine = dbos_peer.client(), sqlalchemy.create_engine(dbos_peer.url())

    def insert(number: int) -> None:
        with engine.begin() as connection:
            for customer in customers(number):
                options = {"workflow_name": "order", "queue_name": dbos_peer.QUEUE, "deduplication_id": customer}
                client.enqueue_in_transaction(connection, options, customer)

    return insert


def customers(number: int) -> list[str]:
    return [f"Customer {number * TOGETHER + each}" for each in range(TOGETHER)]


def time_ordered_id() -> uuid.UUID:
    milliseconds = time.time_ns() // 1_000_000
    return uuid.UUID(int=milliseconds << 80 | 7 << 76 | 2 << 62 | random.getrandbits(62))


MACHINE, PLAIN = ("MachineOrder", "orders_machineorderstatetransition"), ("PlainOrder", "orders_plaintransition")
FSM, TRACKED = ("FsmOrder", "django_fsm_log_statelog"), ("TrackedOrder", "orders_trackedorderevent")
TIMED = ("TimedOrder", "orders_timedorderstatetransition")

#: The first of each benchmark is ours, and every ratio is ours over another.
TRANSITION = (
    Contender("ours", *MACHINE, ours),
    Contender("before", *MACHINE, ours, is_before=True),
    Contender("ours, not prepared", *MACHINE, ours, prepare=NOT_PREPARED),
    Contender("django-fsm-2 + django-fsm-log", *FSM, fsm_log),
    Contender("django-pghistory", *TRACKED, tracked),
    Contender("same statement by hand", *PLAIN, by_hand, takes_keys=True, options=PREPARED),
    Contender("same statement, driver alone", *PLAIN, by_driver, takes_keys=True),
    Contender("Django: update + create", *PLAIN, floor),
)
BULK = (
    Contender("ours", *MACHINE, ours_in_bulk, takes_keys=True),
    Contender("before", *MACHINE, ours_in_bulk, takes_keys=True, is_before=True),
    Contender("django-pghistory", *TRACKED, tracked_in_bulk, takes_keys=True),
    Contender("one statement by hand", *PLAIN, by_hand_in_bulk, takes_keys=True),
)
LOAD = (
    Contender("ours", *MACHINE, loading("MachineOrder"), takes_keys=True),
    Contender("before", *MACHINE, loading("MachineOrder"), takes_keys=True, is_before=True),
    Contender("plain CharField", *PLAIN, loading("PlainOrder"), takes_keys=True),
)
CREATE = (
    Contender("ours", *TIMED, creating("TimedOrder"), takes_new=True),
    Contender("before", *TIMED, creating("TimedOrder"), takes_new=True, is_before=True),
    Contender("plain model", "PlainTimedOrder", "orders_plaintransition", creating("PlainTimedOrder"), takes_new=True),
)
KEYED = ("KeyedOrder", "orders_keyedorderstatetransition")
KEYS = (
    Contender("ours", *KEYED, enqueueing("KeyedOrder"), takes_keys=True),
    Contender("ours, without a key", *MACHINE, enqueueing("MachineOrder"), takes_keys=True),
    Contender("plain model", *PLAIN, enqueueing("PlainOrder"), takes_keys=True),
    Contender("ours, get_or_start()", *KEYED, enqueueing("KeyedOrder", starts=True), takes_keys=True),
    Contender(
        "procrastinate, queueing_lock",
        "",
        "procrastinate_events",
        procrastinate_lock,
        takes_keys=True,
        own_table="procrastinate_jobs",
        new="todo",
    ),
    Contender(
        "DBOS, deduplication_id",
        "",
        "dbos.notifications",
        dbos_deduplication,
        takes_keys=True,
        own_table="dbos.workflow_status",
        new="ENQUEUED",
    ),
)
GROWTH = (Contender("ours", *MACHINE, ours),)

#: By benchmark and name, for the processes of the cells.
ALL = {
    benchmark: {contender.name: contender for contender in contenders}
    for benchmark, contenders in {
        "transition": TRANSITION,
        "bulk": BULK,
        "create": CREATE,
        "keys": KEYS,
        "load": LOAD,
        "growth": GROWTH,
    }.items()
}

#: What the report names with its version.
PACKAGES = ("Django", "psycopg", "django-fsm-2", "django-fsm-log", "django-pghistory", "procrastinate", "dbos")
