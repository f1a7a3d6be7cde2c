"""Empty the databases after a test that commits, in a small part of the time that Django's flush takes.

Django empties every table, of which a test has filled a few, and then writes the rows anew that `migrate` makes. Here only tables
that have rows are emptied, and those of `migrate` are left as they are, unless a test has changed them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.apps import apps
from django.core.management.color import no_style
from django.db import connections
from django.test import TransactionTestCase

#: What `migrate` writes after all migrations.
WRITTEN_BY_MIGRATE = ("auth.Permission", "contenttypes.ContentType")

#: An emptied table has no page. To ask each for a row would take longer than to empty those that have some.
TABLES_WITH_PAGES = """
    SELECT relname FROM pg_class
     WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace AND pg_relation_size(oid) > 0"""

flush: Callable[[Any], None] = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]

#: What `migrate` has written, by database. It is known when Django has emptied it once.
written: dict[str, list[Any]] = {}


def install() -> None:
    """Let tests that commit be cleaned up after in this way."""
    TransactionTestCase._fixture_teardown = empty_databases  # type: ignore[attr-defined]


def empty_databases(case: Any) -> None:
    aliases = case._databases_names(include_mirrors=False)
    if any(rows_of_migrate(alias) != written.get(alias) for alias in aliases):
        flush(case)
        written.update({alias: rows_of_migrate(alias) for alias in aliases})
        return
    kept = {apps.get_model(label)._meta.db_table for label in WRITTEN_BY_MIGRATE}
    for connection in [connections[alias] for alias in aliases]:
        if tables := [name for name in tables_with_rows(connection) if name not in kept]:
            statements = connection.ops.sql_flush(no_style(), tables, allow_cascade=connection.vendor == "postgresql")
            connection.ops.execute_sql_flush(statements)


def rows_of_migrate(alias: str) -> list[Any]:
    models = [apps.get_model(label) for label in WRITTEN_BY_MIGRATE]
    return [list(model._base_manager.using(alias).order_by("pk").values_list()) for model in models]


def tables_with_rows(connection: Any) -> list[str]:
    """Return the tables of models that have rows."""
    of_models = {*connection.introspection.django_table_names(only_existing=connection.vendor != "postgresql")}
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(TABLES_WITH_PAGES)
            return [name for (name,) in cursor.fetchall() if name in of_models]
        found = []
        for name in sorted(of_models):
            cursor.execute(f"SELECT 1 FROM {connection.ops.quote_name(name)} LIMIT 1")
            found += [name] if cursor.fetchone() else []
        return found
