"""A database with the tables of all who serve jobs, and the server that it is on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import database as databases
import drain_peers

from tests import postgres


class JobsDatabase(databases.Database):
    """A database with the tables of all workers."""

    settings = "drain_settings"

    @classmethod
    def start(cls, options: Mapping[str, str]) -> Self:
        """Start a server that ends with this process, and create the tables.

        :param options: of the server, besides those that all benchmarks have.
        """
        postgres.OPTIONS.update(databases.OPTIONS | dict(options))
        made = cls(postgres.boot())
        made.migrate()
        os.environ |= {"BENCHMARK_DATABASE": made.url}
        drain_peers.install()
        return made

    def migrate(self) -> None:
        self.manage("migrate", "--run-syncdb")

    def query(self, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, params).fetchall()

    def truncate(self, tables: Sequence[str]) -> None:
        self.run(f"TRUNCATE {', '.join(tables)} CASCADE")

    def rest(self, tables: Sequence[str]) -> None:
        """Leave no work behind that a cell would pay for."""
        self.run(f"VACUUM ANALYZE {', '.join(tables)}")
        self.run("CHECKPOINT")
