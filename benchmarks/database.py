"""The server that the benchmarks start for themselves, and what its tables hold before and after a cell."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import dbos_peer
import psycopg
from contenders import Contender

from tests import database_url, postgres

HERE = Path(__file__).resolve().parent

#: As a small production server has it: every commit reaches the disk. Checkpoints wait until the cell is over.
OPTIONS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
}

FILL = """
    INSERT INTO {table} (id, customer, total, note, status, status_sequence, status_changed_at)
    SELECT key, 'Customer ' || key, key %% 1000, repeat('x', 40), 'NEW', %s, clock_timestamp()
      FROM generate_series(1, %s) AS key"""

# As many transitions of each order as its counter says, with ids in the order of time.
FILL_HISTORY = """
    INSERT INTO {audit} (id, from_status, to_status, metadata, instance_id, sequence, transitioned_at)
    SELECT (lpad(to_hex((1700000000000 + number * {orders} + key)::bigint), 12, '0') || '70008000000000000000')::uuid,
           'NEW', 'DONE', '{{}}', key, number, clock_timestamp()
      FROM generate_series(1, {each}) AS number, generate_series(1, {orders}) AS key"""


def _stat(pid: int) -> list[str]:
    """Return what Linux tells of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class Database:
    """A database with the tables of all contenders, and the code that runs on it: this checkout's, or an earlier one's."""

    settings = "settings"

    def __init__(self, url: str, checkout: Path = HERE.parent) -> None:
        self.url = url
        self.checkout = checkout
        place = database_url.parse(url)
        self._connection = psycopg.connect(
            host=place["HOST"], user=place["USER"], dbname=place["NAME"], autocommit=True
        )

    @property
    def environment(self) -> dict[str, str]:
        """What every process has whose work is done here. The benchmarks are this checkout's, whoever's the library is."""
        path = [str(self.checkout / "src"), str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")]
        return {
            "BENCHMARK_DATABASE": self.url,
            "DJANGO_SETTINGS_MODULE": self.settings,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
        }

    def ask(self, sql: str, *params: Any) -> Any:
        """Return the first column of the first row."""
        row = self._connection.execute(sql, params or None).fetchone()
        return None if row is None else row[0]

    def run(self, sql: str, *params: Any) -> None:
        self._connection.execute(sql, params or None)

    def cpu_seconds(self) -> float:
        """Return the processor time of the server with all its processes, those that have ended among them. On Linux."""
        backend = self.ask("SELECT pg_backend_pid()")
        server = int(_stat(backend)[1])
        ticks = sum(map(int, _stat(server)[11:15]))
        for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):
                ticks += sum(map(int, _stat(int(child))[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def migrate(self) -> None:
        """Create all tables and triggers, as the code of the checkout has them."""
        self.manage("migrate", "--run-syncdb")
        self.manage("pgtrigger", "install")

    def manage(self, command: str, *arguments: str) -> None:
        """Run a command of Django's in a process of its own."""
        line = [sys.executable, "-m", "django", command, "--verbosity", "0", "--skip-checks", *arguments]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **self.environment})

    def beside(self, name: str, checkout: Path) -> Self:
        """Return an empty database with the tables that the code of another commit makes."""
        self.run(f"CREATE DATABASE {name}")
        made = type(self)(self._url_of(name), checkout)
        made.migrate()
        return made

    def copy(self, name: str) -> Self:
        """Return a new database with what this one holds."""
        self.run(f"CREATE DATABASE {name} TEMPLATE {database_url.parse(self.url)['NAME']}")
        return type(self)(self._url_of(name), self.checkout)

    def _url_of(self, name: str) -> str:
        return database_url.build({**database_url.parse(self.url), "NAME": name})

    def fill(self, contender: Contender, orders: int, sequence: int = 0) -> None:
        """Start again: so many new orders, and nothing in the audit table."""
        self.run(f"TRUNCATE {contender.table}, {contender.audit_table} CASCADE")
        self.run(FILL.format(table=contender.table), sequence, orders)
        self.settle(contender)

    def fill_history(self, contender: Contender, orders: int, each: int) -> None:
        self.run("SET session_replication_role = replica")  # a million checks of the foreign key would take minutes
        self.run(FILL_HISTORY.format(audit=contender.audit_table, orders=orders, each=each))
        self.run("SET session_replication_role = origin")
        self.settle(contender)

    def settle(self, contender: Contender) -> None:
        """Leave no work behind that a cell would pay for."""
        self.run(f"VACUUM ANALYZE {contender.table}, {contender.audit_table}")
        self.run("CHECKPOINT")

    def empty(self, contender: Contender) -> None:
        """Start again, with no order."""
        self.run(f"TRUNCATE {contender.table}, {contender.audit_table} CASCADE")
        self.settle(contender)

    def verify_due(self, contender: Contender, orders: int) -> None:
        """Raise unless exactly so many orders are there, each of them due."""
        due = f"SELECT count(*) FROM {contender.table} WHERE status = 'NEW' AND status_next_at <= clock_timestamp()"
        if (found := self.ask(due)) != orders:
            raise AssertionError(f"{contender.name}: {found} orders are due, not {orders}.")

    def verify_new(self, contender: Contender, orders: int) -> None:
        """Raise unless exactly so many orders are there, each of them new."""
        new = f"SELECT count(*) FROM {contender.table} WHERE status = '{contender.new}'"
        if (found := self.ask(new)) != orders:
            raise AssertionError(f"{contender.name}: {found} orders are new, not {orders}.")

    def verify(self, contender: Contender, moved: int, records: int) -> None:
        """Raise unless exactly so many orders have moved and so many audit rows are there."""
        found = (
            self.ask(f"SELECT count(*) FROM {contender.table} WHERE status = 'DONE'"),
            self.ask(f"SELECT count(*) FROM {contender.audit_table}"),
        )
        if found != (moved, records):
            raise AssertionError(
                f"{contender.name}: {found[0]} orders moved and {found[1]} audit rows written, not {moved} and {records}."
            )


def start() -> Database:
    """Start a server that ends with this process, and create the tables."""
    postgres.OPTIONS.update(OPTIONS)
    database = Database(postgres.boot())
    database.migrate()
    os.environ |= {"BENCHMARK_DATABASE": database.url}
    dbos_peer.install()
    return database
