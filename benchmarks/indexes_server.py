"""The server of the index benchmark: a database for each set of indexes, with the same rows in the same places."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import database as databases

from tests import database_url, postgres

TABLE = "indexed_parcel"

#: Room for the tables of all sets, so that nobody pays for another's pages. Nobody vacuums behind our back: it
#: would meet one set's cells and not another's.
OPTIONS = {
    "shared_buffers": "2GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1d",
    "autovacuum": "off",
}

STATUS = "CREATE INDEX {table}_by_status ON {table} (status)"
DUE = "CREATE INDEX {table}_by_due ON {table} (status, status_next_at) WHERE status_next_at IS NOT NULL"
FULL = "CREATE INDEX {table}_by_status_and_due ON {table} (status, status_next_at)"
CRASHED = "CREATE INDEX {table}_by_crashes ON {table} (status_crashes, status_next_at) WHERE status_crashes > 0"
ROOM = "ALTER TABLE {table} SET (fillfactor = 45)"


@dataclass(frozen=True)
class IndexSet:
    """What one of the databases has besides the primary key."""

    alias: str
    name: str
    sql: tuple[str, ...]


SETS = (
    IndexSet("two", "plain + partial", (STATUS, DUE, CRASHED)),
    IndexSet("one", "full", (FULL, CRASHED)),
    IndexSet("partial", "partial alone", (DUE, CRASHED)),
    IndexSet("roomy", "full, fillfactor 45", (ROOM, FULL, CRASHED)),
)

# Of a thousand rows so many are done, and of these one has failed; so many are due later, and the rest is due now. These are
# the last ones, as in a queue, or are spread over the table, as in a calendar. Of those due later, a few are parked.
FILL = """
    INSERT INTO {table} (id, address, status, status_sequence, status_changed_at, status_next_at, status_lease_owner,
                         status_lease_token, status_failures, status_crashes, status_error)
    SELECT key, '12 Long Street, 34567 Some Town', kind, 0, statement_timestamp(),
           CASE WHEN kind = 'PENDING' THEN statement_timestamp() - interval '1 hour' + key * interval '1 us'
                WHEN kind = 'CHECKED' AND NOT is_parked
                THEN statement_timestamp() + interval '1 day' + (key * 7919 %% 1000003) * interval '1 s' END,
           '', 0, 0, 0, CASE WHEN kind = 'CHECKED' AND is_parked THEN 'No such street.' ELSE '' END
      FROM (SELECT key, key %% 2000 = 7 AS is_parked,
                   CASE WHEN place < %(done)s THEN CASE WHEN key %% 1000 = %(failed)s THEN 'FAILED' ELSE 'DONE' END
                        WHEN place < %(later)s THEN 'CHECKED' ELSE 'PENDING' END AS kind
              FROM (SELECT key, CASE WHEN %(is_queue)s THEN (key - 1) * 1000 / %(rows)s ELSE key * 7919 %% 1000 END AS place
                      FROM generate_series(1, %(rows)s::bigint) AS key) AS placed) AS kinds"""

#: Of a thousand keys the one that has failed if it is done, as it is in a calendar, too.
FAILED = 10


@dataclass(frozen=True)
class Mix:
    """What the rows of a table are, in thousandths."""

    title: str
    done: int
    later: int
    #: The state that most rows are in.
    crowd: str
    is_queue: bool


MIXES = {
    "terminal": Mix("95 % of the rows have no time, and those that are due are the newest", 950, 960, "DONE", True),
    "later": Mix("70 % of the rows are due later, and those that are due are spread", 260, 960, "CHECKED", False),
    "columns": Mix("85 % of the rows have no time, and those that are due are the newest", 850, 860, "DONE", True),
}


class Server:
    """The benchmark's own PostgreSQL."""

    def __init__(self) -> None:
        postgres.OPTIONS.update(databases.OPTIONS | OPTIONS)
        self.url = postgres.boot()
        os.environ |= {
            "BENCHMARK_DATABASE": self.url,
            "BENCHMARK_COPIES": " ".join(each.alias for each in SETS),
            "DJANGO_SETTINGS_MODULE": "indexes_settings",
        }
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", run_syncdb=True, verbosity=0)
        self.version = self.ask("default", "SHOW server_version")

    def run(self, alias: str, sql: str, params: Any = None) -> None:
        from django.db import connections

        with connections[alias].cursor() as cursor:
            cursor.execute(sql, params)

    def ask(self, alias: str, sql: str) -> Any:
        from django.db import connections

        with connections[alias].cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchone()[0]

    def fill(self, table: str, rows: int, mix: Mix) -> None:
        self._drop_indexes(table)
        self.run("default", f"TRUNCATE {table} CASCADE")
        values = {"rows": rows, "done": mix.done, "later": mix.later, "failed": FAILED, "is_queue": mix.is_queue}
        self.run("default", FILL.format(table=table), values)
        self.run("default", f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {rows})")
        self.run("default", f"VACUUM ANALYZE {table}")

    def prepare(self, rows: int, mix: Mix) -> None:
        """Make a database for each set of indexes, with the same rows in the same places."""
        from django.db import connections

        self.fill(TABLE, rows, mix)
        for each in SETS:
            connections[each.alias].close()
        place = database_url.parse(self.url)
        for each in SETS:
            connections["default"].close()
            self._maintain(f"DROP DATABASE IF EXISTS {each.alias}")
            self._maintain(f"CREATE DATABASE {each.alias} TEMPLATE {place['NAME']} STRATEGY file_copy")
            for statement in each.sql:
                self.run(each.alias, statement.format(table=TABLE))
            if ROOM in each.sql:
                self.run(each.alias, f"VACUUM FULL {TABLE}")
            self.run(each.alias, f"VACUUM ANALYZE {TABLE}")
        self.run("default", "CHECKPOINT")

    def _maintain(self, sql: str) -> None:
        import psycopg

        place = database_url.parse(self.url)
        with psycopg.connect(host=place["HOST"], user=place["USER"], dbname="template1", autocommit=True) as connection:
            connection.execute(sql)

    def _drop_indexes(self, table: str) -> None:
        """Drop the indexes that the library makes itself: each set has its own."""
        names = self.ask(
            "default",
            "SELECT string_agg(indexrelid::regclass::text, ', ') FROM pg_index "
            f"WHERE indrelid = '{table}'::regclass AND NOT indisprimary",
        )
        if names:
            self.run("default", f"DROP INDEX {names}")

    def sizes(self, alias: str) -> dict[str, int]:
        key = f"SELECT pg_relation_size(indexrelid) FROM pg_index WHERE indrelid = '{TABLE}'::regclass AND indisprimary"
        return {
            "indexes": self.ask(alias, f"SELECT pg_indexes_size('{TABLE}')"),
            "key": self.ask(alias, key),
            "table": self.ask(alias, f"SELECT pg_relation_size('{TABLE}')"),
        }
