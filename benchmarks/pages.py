"""Measure the admin's pages on a table of a million rows, against those of a plain ModelAdmin.

    python benchmarks/pages.py [--repetitions 9] [--requests 10] [--quick]

What is measured, and how to read the result, is in README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent), str(HERE.parent / "testproject")]

import database as databases  # noqa: E402
from report import environment, load_average, spread, write  # noqa: E402
from session import rotated, say  # noqa: E402

from tests import postgres  # noqa: E402

PACKAGES = ("Django", "psycopg")

#: The row with the long story.
LONG = 1

# Of a hundred rows ninety are delivered; the others are on their way. Every row has moved as often as its state says.
FILL = """
    INSERT INTO shop_order (id, customer, total, created_at, status, status_sequence, status_changed_at,
                            status_next_at, status_lease_owner, status_lease_token, status_failures, status_crashes, status_error)
    SELECT key, 'Customer ' || key, key %% 500, statement_timestamp(),
           CASE WHEN key %% 100 < 90 THEN 'DELIVERED' ELSE (ARRAY['PENDING', 'PAID', 'PACKED', 'SHIPPED'])[key %% 4 + 1] END,
           1, statement_timestamp() - (key %% 90) * interval '1 day', NULL, '', 0, 0, 0, ''
      FROM generate_series(1, %s) AS key"""

# A record of each row, spread over ninety days, with ids in the order of time; and the long story of one.
RECORDS = """
    INSERT INTO shop_orderstatetransition (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7000' ||
               overlay(left(md5(key || '-' || number), 16) placing '8' from 1 for 1))::uuid,
           (ARRAY['PENDING', 'PAID', 'PACKED', 'SHIPPED'])[number], (ARRAY['PAID', 'PACKED', 'SHIPPED', 'DELIVERED'])[number],
           '{{"actor": "Ada"}}', key, {sequence}, at
      FROM (SELECT key, number,
                   statement_timestamp() - {age} AS at
              FROM generate_series({first}, %s) AS key, generate_series(1, {moves}) AS number) AS made"""


@dataclass
class Page:
    """One page, of ours or of a plain ModelAdmin, and how long it took in each repetition."""

    name: str
    path: str
    #: Which page it is compared with; none if it is one that others are compared with.
    with_page: str = ""
    milliseconds: list[float] = field(default_factory=list)
    queries: int = 0


def pages(long: int) -> list[Page]:
    middle = long // 2
    return [
        Page("list, plain ModelAdmin", "/plain/shop/order/"),
        Page("list", "/ours/shop/order/", "list, plain ModelAdmin"),
        Page("list of one state, plain ModelAdmin", "/plain/shop/order/?status__exact=PAID"),
        Page("list of one state", "/ours/shop/order/?status__exact=PAID", "list of one state, plain ModelAdmin"),
        Page("a row, plain ModelAdmin", "/plain/shop/order/77/change/"),
        Page("a row", "/ours/shop/order/77/change/", "a row, plain ModelAdmin"),
        Page(f"a row with {long:,} moves", f"/ours/shop/order/{LONG}/change/", "a row"),
        Page("story of a row with 1 move", "/ours/shop/order/77/story/states/"),
        Page(
            f"story of a row with {long:,} moves",
            f"/ours/shop/order/{LONG}/story/states/",
            "story of a row with 1 move",
        ),
        Page(
            "the middle of that story",
            f"/ours/shop/order/{LONG}/story/states/?before={middle}",
            "story of a row with 1 move",
        ),
        Page("machine, 24 hours", "/ours/shop/order/_machine/states/?days=1"),
        Page("machine, 7 days", "/ours/shop/order/_machine/states/?days=7", "machine, 24 hours"),
        Page("machine, 30 days", "/ours/shop/order/_machine/states/?days=30", "machine, 24 hours"),
        Page("machine, 90 days", "/ours/shop/order/_machine/states/?days=90", "machine, 24 hours"),
    ]


def start() -> databases.Database:
    """Start a server that ends with this process, and create the tables of the shop."""
    import django
    from django.core.management import call_command

    postgres.OPTIONS.update(databases.OPTIONS)
    url = postgres.boot()
    os.environ |= {"BENCHMARK_DATABASE": url, "DJANGO_SETTINGS_MODULE": "pages_settings"}
    django.setup()
    call_command("migrate", verbosity=0)
    return databases.Database(url)


def fill(database: databases.Database, rows: int, long: int) -> None:
    database.run("SET session_replication_role = replica")  # a million checks of the foreign key would take minutes
    database.run(FILL, rows)
    spread_out = "(key %% 90) * interval '1 day' - (number - 4) * interval '1 hour'"
    moves = RECORDS.format(first=LONG + 1, sequence="number", moves=4, age=f"({spread_out})")
    database.run(moves, rows // 4)
    one = "(%s - key) * interval '1 minute'" % long  # noqa: UP031 - the percent signs of the statement stay
    text = RECORDS.format(first=1, sequence="key", moves=1, age=one).replace(" key, key, at", f" {LONG}, key, at")
    database.run(text, long)
    database.run(f"UPDATE shop_order SET status_sequence = {long} WHERE id = {LONG}")
    database.run("SET session_replication_role = origin")
    database.run("VACUUM ANALYZE")
    database.run("CHECKPOINT")


def measure(found: Sequence[Page], repetitions: int, requests: int) -> None:
    """Ask for every page so often, page after page, each repetition beginning with another."""
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    client = Client(HTTP_HOST="localhost")
    client.force_login(get_user_model().objects.create_superuser("admin"))
    for page in found:
        with CaptureQueriesContext(connection) as captured:
            response = client.get(page.path)
        if response.status_code != 200:
            raise SystemExit(f"{page.path} answered {response.status_code}.")
        page.queries = len(captured)
    for repetition in range(repetitions):
        for position in rotated(found, repetition):
            page, taken = found[position], []
            for _ in range(requests):
                began = time.perf_counter()
                client.get(page.path)
                taken.append((time.perf_counter() - began) * 1000)
            page.milliseconds.append(median(taken))
        say(f"  repetition {repetition + 1} of {repetitions} done, load average {load_average()}")


def table(found: Sequence[Page]) -> str:
    named = {page.name: page for page in found}
    rows = ["| page | time, in proportion | to | ms | queries |", "|-|-|-|-|-|"]
    for page in found:
        ratio = ""
        if page.with_page:
            base = named[page.with_page].milliseconds
            ratio = f"**{spread([a / b for a, b in zip(page.milliseconds, base, strict=True)], '.2f', '**')}"
        times = spread(page.milliseconds, ".1f")
        rows.append(f"| {page.name} | {ratio} | {page.with_page} | {times} | {page.queries} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the admin's pages on a large table.")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--requests", type=int, default=10, help="how often a page is asked for in a repetition")
    parser.add_argument("--quick", action="store_true", help="try it out: a small table, nothing kept")
    options = parser.parse_args()
    rows, long = (20_000, 2_000) if options.quick else (1_000_000, 100_000)
    database = start()
    say(f"Filling {rows:,} rows …")
    fill(database, rows, long)
    before = load_average()
    found = pages(long)
    measure(found, 2 if options.quick else options.repetitions, options.requests)
    records: Any = database.ask("SELECT count(*) FROM shop_orderstatetransition")
    facts = (
        f"{environment(database.ask('SHOW server_version'), PACKAGES)} {len(found[0].milliseconds)} repetitions of "
        f"{options.requests} requests. {rows:,} rows, {records:,} records over 90 days. Load average {before} before and "
        f"{load_average()} after."
    )
    section = f"{facts}\n\n{table(found)}"
    say(f"\n{section}\n")
    if not options.quick:
        write(HERE / "results-pages.md", {"pages": section}, ("pages",), "pages.py")


if __name__ == "__main__":
    main()
