"""Texts and parameters of statements on PostgreSQL: its words for effects, and values for many rows as arrays."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from statemachine_fields.db.columns import Table
from statemachine_fields.db.effects import Terms

# clock_timestamp() is read when the row is written, after whatever the statement waited for. LEAST() leaves out what is NULL.
TERMS = Terms(
    now="clock_timestamp()",
    later="clock_timestamp() + make_interval(secs => {seconds})",
    no_later="LEAST(clock_timestamp() + make_interval(secs => {seconds}), {entered} + make_interval(secs => {horizon}))",
)

#: Types whose text is the same in an array.
PLAIN = (int, float, uuid.UUID)

#: What arrays are made of.
TYPES = {
    "status": "text",
    "sequence": "bigint",
    "lease_token": "bigint",
    "lease_owner": "text",
    "lease_expires_at": "float8",
    "next_at": "float8",
    "horizon": "float8",
    "failures": "int",
    "error": "text",
    "record": "uuid",
    "metadata": "text",
}


def key_type(table: Table, connection: Any) -> str:
    """Return the type of a key without its length, to which a cast would cut in silence."""
    return str(table.key_field.rel_db_type(connection)).split("(", maxsplit=1)[0]


def prepared_keys(table: Table, keys: Sequence[Any], connection: Any) -> Any:
    prepare = table.key_field.get_db_prep_value
    return array_of([prepare(key, connection) for key in keys])


def named_places(keys: Sequence[Any], rows: Sequence[Sequence[Any]]) -> set[Any]:
    """Return the keys whose places an answer names."""
    return {keys[place - 1] for (place,) in rows}


def array_of(values: Sequence[Any]) -> Any:
    """Return values as an array, written out: psycopg's way costs ten times as much Python, which the handlers need."""
    texts: dict[Any, str] = {}
    for value in set(values):
        if value is None:
            texts[value] = "NULL"
        elif isinstance(value, str):
            texts[value] = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        elif isinstance(value, PLAIN):
            texts[value] = str(value)
        else:  # a key of a type we know nothing of
            return [*values]
    return "{" + ",".join([texts[value] for value in values]) + "}"
