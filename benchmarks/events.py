"""Measure what it costs the server to deliver an event, beside a plain INSERT of the same row.

    python benchmarks/events.py [--repetitions 8] [--events 3000]

What is measured, and how to read the result, is in README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for the server helpers of the tests

import database as databases  # noqa: E402
import dbos_peer  # noqa: E402
from indexes_meter import Cost, Meter  # noqa: E402
from report import environment, load_average, spread, write  # noqa: E402
from session import rotated, say  # noqa: E402

from tests import postgres  # noqa: E402

#: At most so many times the server CPU of the INSERT.
GOAL = 2.0
ROWS = 2000
#: How many events are delivered between two readings of the processor time.
STEP = 100

INSERT = """INSERT INTO mailbox_orderstateevent (id, instance_id, number, name, payload, dedup_key, delivered_at)
    VALUES (%s::uuid, %s, %s, %s, %s::jsonb, %s, clock_timestamp())"""

#: What gets its messages in place of a row: it is enqueued, and nobody runs it.
WORKFLOW: Any = {"workflow_name": "order", "queue_name": dbos_peer.QUEUE}


def is_peer(name: str) -> bool:
    return name.startswith("DBOS")


class Run:
    """All ways to write an event, in turn, again and again."""

    def __init__(self, events: int, repetitions: int) -> None:
        from mailbox.models import Order

        self.events, self.repetitions = events, repetitions
        self.orders = Order.objects.order_by("pk")
        Order.objects.bulk_create([Order(number=str(number)) for number in range(ROWS)])
        self.client = dbos_peer.client()
        self.workflows = [self.client.enqueue(WORKFLOW).get_workflow_id() for _ in range(ROWS // 2)]
        ours = Meter("default", "mailbox_order")
        theirs = Meter("default", "mailbox_order", dbos_peer.backend())
        self.costs: dict[str, list[Cost]] = {}
        self.ways: dict[str, Callable[[], Iterator[int]]] = {
            "plain INSERT": self.insert,
            "deliver(), kept": self.kept,
            "deliver(), woken": self.woken,
            "deliver(), a duplicate": self.duplicates,
            "bulk_deliver() of 100": self.bulk,
            "DBOS, send()": self.sent,
            "DBOS, send(), a duplicate": self.sent_again,
            "DBOS, send_bulk() of 100": self.sent_in_bulk,
        }
        self.meters = {name: theirs if is_peer(name) else ours for name in self.ways}

    def run(self) -> str:
        for repetition in range(self.repetitions + 1):
            names = list(self.ways)
            for position in rotated(names, repetition):
                name = names[position]
                self.prepare()
                cost = self.meters[name].measure(self.ways[name]())
                if repetition:  # the first prepares statements
                    self.costs.setdefault(name, []).append(cost)
            say(f"  repetition {repetition} of {self.repetitions} done, load average {load_average()}")
        return self.table()

    def prepare(self) -> None:
        """Empty the inboxes, and let the first half of the rows wait."""
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE mailbox_orderstateevent, dbos.notifications")
            cursor.execute(
                "UPDATE mailbox_order SET status_inbox = 0, status_next_at = NULL, "
                "status = CASE WHEN id %% 2 = 0 THEN 'PENDING' ELSE 'NEW' END",
                [],
            )
            cursor.execute("VACUUM ANALYZE mailbox_order, mailbox_orderstateevent, dbos.notifications")
            cursor.execute("CHECKPOINT")
        self.keys = {
            status: list(self.orders.filter(status=status).values_list("pk", flat=True))
            for status in ("PENDING", "NEW")
        }

    def insert(self) -> Iterator[int]:
        from django.db import connection

        from statemachine_fields.db import prepared
        from statemachine_fields.machine.ids import uuid7

        def send(place: int, key: int) -> None:
            values = (uuid7(), key, place + 1, "paid", '{"amount": 5}', f"evt-{place}")
            prepared.run(connection, INSERT + " RETURNING 1", values)

        return self.steps("NEW", send)

    def kept(self) -> Iterator[int]:
        return self.steps("NEW", self.deliver)

    def woken(self) -> Iterator[int]:
        return self.steps("PENDING", self.deliver)

    def duplicates(self) -> Iterator[int]:
        for key in self.keys["NEW"]:
            self.row(key).states.deliver("paid", dedup_key="evt")
        return self.steps(
            "NEW", lambda _place, key: self.row(key).states.deliver("paid", {"amount": 5}, dedup_key="evt")
        )

    def bulk(self) -> Iterator[int]:
        from mailbox.models import Order

        for start in range(0, self.events, STEP):
            keys = [self.keys["NEW"][place % len(self.keys["NEW"])] for place in range(start, start + STEP)]
            payload = {"amount": 5}
            Order.states.bulk_deliver(
                {"key": key, "name": "paid", "payload": payload, "dedup_key": f"evt-{start + place}"}
                for place, key in enumerate(keys)
            )
            yield STEP

    def sent(self) -> Iterator[int]:
        return self.sends(lambda place: f"evt-{place}")

    def sent_again(self) -> Iterator[int]:
        for workflow in self.workflows:
            self.client.send(workflow, None, "paid", "evt")
        return self.sends(lambda _place: "evt")

    def sends(self, key_of: Callable[[int], str]) -> Iterator[int]:
        for start in range(0, self.events, STEP):
            for place in range(start, start + STEP):
                self.client.send(self.workflow(place), {"amount": 5}, "paid", key_of(place))
            yield STEP

    def sent_in_bulk(self) -> Iterator[int]:
        from dbos import SendMessage

        for start in range(0, self.events, STEP):
            self.client.send_bulk(
                [
                    SendMessage(self.workflow(place), {"amount": 5}, "paid", f"evt-{place}")
                    for place in range(start, start + STEP)
                ]
            )
            yield STEP

    def workflow(self, place: int) -> str:
        return self.workflows[place % len(self.workflows)]

    def deliver(self, place: int, key: int) -> None:
        self.row(key).states.deliver("paid", {"amount": 5}, dedup_key=f"evt-{place}")

    def row(self, key: int) -> Any:
        from mailbox.models import Order

        row = Order(pk=key)
        row._state.adding, row._state.db = False, "default"
        return row

    def steps(self, status: str, send: Callable[[int, int], Any]) -> Iterator[int]:
        keys = self.keys[status]
        for start in range(0, self.events, STEP):
            for place in range(start, start + STEP):
                send(place, keys[place % len(keys)])
            yield STEP

    def table(self) -> str:
        plain = [cost.cpu for cost in self.costs["plain INSERT"]]
        lines = [
            f"### An event for one of {ROWS:,} rows, {self.events:,} a repetition, {self.repetitions} repetitions",
            "",
            "| | server CPU, µs | in proportion | goal | | WAL, bytes |",
            "|-|-|-|-|-|-|",
        ]
        for name in self.ways:
            costs = self.costs[name]
            cpu, wal = [cost.cpu for cost in costs], [cost.wal for cost in costs]
            ratios = [one / other for one, other in zip(cpu, plain, strict=True)]
            goal, verdict, shown = "", "", "" if name == "plain INSERT" else spread(ratios, ".2f")
            if shown and not is_peer(name):
                goal, verdict = f"≤ {GOAL:g}", "met" if median(ratios) <= GOAL else "**missed**"
            lines.append(f"| {name} | {spread(cpu, ',.1f')} | {shown} | {goal} | {verdict} | {spread(wal, ',.0f')} |")
        return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--events", type=int, default=3000)
    options = parser.parse_args()
    postgres.OPTIONS.update(databases.OPTIONS | {"autovacuum": "off"})
    os.environ |= {"BENCHMARK_DATABASE": postgres.boot(), "DJANGO_SETTINGS_MODULE": "events_settings"}
    import django
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)
    dbos_peer.install()
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        version = cursor.fetchone()[0]
    before = load_average()
    table = Run(options.events, options.repetitions).run()
    load = f"Load average {before} before and {load_average()} after."
    sections = {"events": f"{environment(version, ('Django', 'psycopg', 'dbos'))} {load}\n\n{table}"}
    say(sections["events"])
    write(HERE / "results-events.md", sections, ("events",), "events.py")


if __name__ == "__main__":
    main()
