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


class Run:
    """All ways to write an event, in turn, again and again."""

    def __init__(self, events: int, repetitions: int) -> None:
        from mailbox.models import Order

        self.events, self.repetitions = events, repetitions
        self.orders = Order.objects.order_by("pk")
        Order.objects.bulk_create([Order(number=str(number)) for number in range(ROWS)])
        self.meter = Meter("default", "mailbox_order")
        self.number = 0
        self.costs: dict[str, list[Cost]] = {}
        self.ways: dict[str, Callable[[], Iterator[int]]] = {
            "plain INSERT": self.insert,
            "deliver(), kept": self.kept,
            "deliver(), woken": self.woken,
            "deliver(), a duplicate": self.duplicates,
            "bulk_deliver() of 100": self.bulk,
        }

    def run(self) -> str:
        for repetition in range(self.repetitions + 1):
            names = list(self.ways)
            for position in rotated(names, repetition):
                name = names[position]
                self.prepare()
                cost = self.meter.measure(self.ways[name]())
                if repetition:  # the first prepares statements
                    self.costs.setdefault(name, []).append(cost)
            say(f"  repetition {repetition} of {self.repetitions} done, load average {load_average()}")
        return self.table()

    def prepare(self) -> None:
        """Empty the inboxes, and let the first half of the rows wait."""
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE mailbox_orderstateevent")
            cursor.execute(
                "UPDATE mailbox_order SET status_inbox = 0, status_next_at = NULL, "
                "status = CASE WHEN id %% 2 = 0 THEN 'PENDING' ELSE 'NEW' END",
                [],
            )
            cursor.execute("VACUUM ANALYZE mailbox_order")
            cursor.execute("VACUUM ANALYZE mailbox_orderstateevent")
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
            ratio = median(one / other for one, other in zip(cpu, plain, strict=True))
            verdict = ("met" if ratio <= GOAL else "**missed**") if name != "plain INSERT" else ""
            goal = f"≤ {GOAL:g}" if verdict else ""
            lines.append(
                f"| {name} | {spread(cpu, ',.1f')} | {ratio:.2f} | {goal} | {verdict} | {spread(wal, ',.0f')} |"
            )
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
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        version = cursor.fetchone()[0]
    sections = {
        "events": f"{environment(version, ('Django', 'psycopg'))}\n\n{Run(options.events, options.repetitions).run()}"
    }
    write(HERE / "results-events.md", sections, ("events",), "events.py")


if __name__ == "__main__":
    main()
