"""Texts and parameters of statements on PostgreSQL: its words for effects, and the types of arrays."""

from __future__ import annotations

from typing import Any

from django.db import models

from statemachine_fields.db.columns import Table
from statemachine_fields.db.effects import Terms

# clock_timestamp() is read when the row is written, after whatever the statement waited for. LEAST() leaves out what is NULL.
TERMS = Terms(
    now="clock_timestamp()",
    later="clock_timestamp() + make_interval(secs => {seconds})",
    no_later="LEAST(clock_timestamp() + make_interval(secs => {seconds}), {entered} + make_interval(secs => {horizon}))",
    unseen="CASE WHEN {inbox} > {seen}::bigint THEN 0::float8 ELSE {seconds}::float8 END",
)

#: What arrays are made of.
TYPES = {
    "status": "text",
    "sequence": "bigint",
    "lease_token": "bigint",
    "lease_owner": "text",
    "lease_expires_at": "float8",
    "next_at": "float8",
    "horizon": "float8",
    "seen": "bigint",
    "failures": "int",
    "error": "text",
    "record": "uuid",
    "metadata": "text",
    "started": "float8",
    "ended": "float8",
    "outcome": "text",
    "traceback": "text",
}

#: Types of columns whose values can be given for many rows at once, each as an element of an array.
ARRAYS = {
    "bigint",
    "boolean",
    "date",
    "double precision",
    "integer",
    "interval",
    "jsonb",
    "numeric",
    "smallint",
    "text",
    "time",
    "timestamp with time zone",
    "uuid",
    "varchar",
}


def array_type(field: models.Field[Any, Any], connection: Any) -> str | None:
    """Return the type of a field's values in an array: without a length, to which a cast would cut in silence. None if there may
    be more to such a value than an element can say."""
    kind = str(field.db_type(connection)).split("(", maxsplit=1)[0]
    return kind if kind in ARRAYS else None


def names_of(table: Table, connection: Any) -> dict[str, str]:
    """Return all names of a table for texts, and the type of its key: without a length, to which a cast would cut in silence."""
    key_type = str(table.key_field.rel_db_type(connection)).split("(", maxsplit=1)[0]
    return {**table.quoted(connection), "type": key_type}
