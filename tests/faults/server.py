"""A PostgreSQL that tests can stop and start again. What was committed survives, also a crash."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from django.core.management import call_command
from django.db import connections

from tests import database_url, postgres
from tests.patience import PATIENCE
from tests.server import Server

#: Runs a server whenever the file `up` is there, for the keeper, which takes a server that ends for the end of it all.
AGAIN_AND_AGAIN = """
    trap 'kill -QUIT "$pid" && wait "$pid"; exit 1' QUIT
    while :; do
        if [ -e "$0/up" ]; then "$@" & pid=$!; wait "$pid"; else sleep 0.02; fi
    done"""

#: `synchronous_commit`: with it off, a crash may lose what was committed. Nothing here crashes the machine, so that no
#: write has to reach the disk. `max_connections`: fifty processes have up to five each.
OPTIONS = {
    **postgres.OPTIONS,
    "max_connections": "400",
    "synchronous_commit": "on",
    "deadlock_timeout": "100ms",
    "logging_collector": "on",
    "log_filename": "postgres.log",
    "log_min_messages": "warning",
}

#: The ways to stop, as `pg_ctl` calls them.
MODES = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

TEMPLATE = "migrated"

#: The tables that tests of faults use. Each test has a copy of them, and with all of the project's that takes a second.
USED = (
    "^(django_|statemachine_worker_|lab_(chore|run|payment|booking|noted|lot|pin|ping|vase|transfer|call|effort"
    "|(async|atomic|heard|saved)?stunt|locker|stint"
    "|mark|relay|barrel|voucher|shard|vessel|tanker|wagon|sleeper|loan|letter"
    "|(atomic|swift|hasty)?petition|reading"
    "|bale|shipment|keg|container|deposit|entry|errand|folder|guest|postcard|luggage|footprint|paper|receipt|sack"
    "|expedition|leg|caravan|caravancrossing|sled|depot)(state|$))"
)


class PostgreSQL:
    """One server, with a migrated database to copy from."""

    @staticmethod
    def programs() -> Path | None:
        """Return where there is a PostgreSQL to start."""
        return next((found for found in postgres.program_directories() if (found / "initdb").exists()), None)

    def __init__(self, programs: Path) -> None:
        self._server = Server("faults")
        self.installed = programs = postgres.reachable(programs, self._server)
        self.directory = self._server.directory
        self.data = self.directory / "data"
        self.databases = 0
        (self.directory / "up").touch()
        settings = [f"--{name}={value}" for name, value in OPTIONS.items()]
        server: list[str | Path] = [programs / "postgres", "-D", self.data, "-k", self.directory, *settings]
        self._server.start(
            setup=[programs / "initdb", "-D", self.data, *postgres.INITDB_OPTIONS],
            server=["/bin/sh", "-c", AGAIN_AND_AGAIN, self.directory, *server],
            ready=lambda: postgres.is_ready(self.data),
        )
        self.execute(f"CREATE DATABASE {TEMPLATE}")
        with as_default(self.url(TEMPLATE)):
            call_command("migrate", verbosity=0)
            _drop_what_is_not_used()

    def url(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self.directory}"

    @contextmanager
    def database(self, alias: str = "default") -> Iterator[str]:
        """Make a database with all tables, use it under an alias, and yield its URL."""
        self.databases += 1
        name = f"faults_{self.databases}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        try:
            with used_as(alias, self.url(name)):
                yield self.url(name)
        finally:
            if not self.is_up():
                self.start()
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def is_up(self) -> bool:
        return (self.directory / "up").exists()

    def stop(self, mode: str) -> None:
        """Stop in good order and rather soon, or as in a crash; return when it is gone."""
        connections["default"].close()
        lock = self.data / "postmaster.pid"
        pid = int(lock.read_text().split()[0])
        (self.directory / "up").unlink()
        os.kill(pid, MODES[mode])
        deadline = time.monotonic() + PATIENCE
        while _is_alive(pid):
            assert time.monotonic() < deadline, f"PostgreSQL did not stop within {PATIENCE:g} s"
            time.sleep(0.01)
        lock.unlink(missing_ok=True)

    def start(self) -> None:
        (self.directory / "up").touch()
        deadline = time.monotonic() + PATIENCE
        while not postgres.is_ready(self.data):
            assert time.monotonic() < deadline, f"PostgreSQL did not start within {PATIENCE:g} s:\n{self.log()[-2000:]}"
            time.sleep(0.01)

    def restart(self, mode: str) -> None:
        self.stop(mode)
        self.start()

    def log(self) -> str:
        return (self.data / "log" / "postgres.log").read_text(errors="replace")

    def end(self) -> None:
        self._server.stop()

    def execute(self, statement: str) -> None:
        """Run a statement in a database that no test uses."""
        with as_default(self.url("postgres")), connections["default"].cursor() as cursor:
            cursor.execute(statement)


class Standby:
    """A copy of a server that follows it, until it is promoted and takes its place."""

    def __init__(self, primary: PostgreSQL) -> None:
        self._primary = primary
        self._server = Server("standby")
        self.directory = self._server.directory
        self.data = self.directory / "data"
        copy: list[str | Path] = ["-D", self.data, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        place = f"host={primary.directory} user=postgres application_name=standby"
        settings = [f"--{name}={value}" for name, value in OPTIONS.items()]
        self._server.start(
            setup=[primary.installed / "pg_basebackup", "-d", place, *copy],
            server=[primary.installed / "postgres", "-D", self.data, "-k", self.directory, *settings],
            ready=lambda: postgres.is_ready(self.data),
        )

    def url(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self.directory}"

    @contextmanager
    def is_synchronous(self) -> Iterator[None]:
        """Let what is committed on the primary wait until it is here, too."""
        self._primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        self._primary.execute("SELECT pg_reload_conf()")
        try:
            self._wait_until("EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
            yield
        finally:  # in the file: if the primary is down it must not wait for us when it is up again
            settings = self._primary.data / "postgresql.auto.conf"
            lines = settings.read_text().splitlines(keepends=True)
            settings.write_text("".join(line for line in lines if not line.startswith("synchronous_standby_names")))

    def cut_off(self) -> None:
        """Have all that the primary has, and then follow no more: what it commits from now on is not here."""
        self._wait_until("pg_current_wal_flush_lsn() <= (SELECT min(replay_lsn) FROM pg_stat_replication)")
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")
        self._wait_until("NOT EXISTS (SELECT FROM pg_stat_replication)")

    def promote(self) -> None:
        """Become the primary; return when it is."""
        self.execute("SELECT pg_promote()")

    def execute(self, statement: str) -> None:
        with as_default(self.url("postgres")), connections["default"].cursor() as cursor:
            cursor.execute(statement)

    def end(self) -> None:
        self._server.stop()

    def _wait_until(self, condition: str) -> None:
        """Wait for what the primary says of us."""
        deadline = time.monotonic() + PATIENCE
        with as_default(self._primary.url("postgres")), connections["default"].cursor() as cursor:
            while True:
                cursor.execute(f"SELECT {condition}")
                if cursor.fetchone() == (True,):
                    return
                assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {condition}"
                time.sleep(0.02)


def _drop_what_is_not_used() -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename !~ %s", [USED])
        tables = ", ".join(f'"{name}"' for (name,) in cursor.fetchall())
        cursor.execute(f"DROP TABLE {tables} CASCADE")
        cursor.execute("VACUUM FULL")


def as_default(url: str) -> AbstractContextManager[None]:
    return used_as("default", url)


@contextmanager
def used_as(alias: str, url: str) -> Iterator[None]:
    """Let an alias be another database for a while, in every thread that has not used it yet."""
    settings, connection = connections.settings[alias], connections[alias]
    connections.settings[alias] = {**settings, **database_url.parse(url)}
    connections[alias] = connections.create_connection(alias)
    try:
        yield
    finally:
        connections[alias].close()
        connections.settings[alias] = settings
        connections[alias] = connection


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:  # it went just now, or the system has no /proc
        return not Path("/proc/self").exists()
