"""The values that `save()` writes into a machine's columns, in place of what the instance holds.

Those that are SQL compile themselves and have no `resolve_expression`. With it, Django 6 would add the column to
RETURNING and assign what comes back, which is one more write to an attribute whose writes we watch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Field
from django.db.models.expressions import DatabaseDefault
from django.db.models.sql.compiler import SQLCompiler, SQLInsertCompiler

Compiled = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class MachineValue:
    """A value that the machine itself writes. The column lets nothing else through."""

    value: Any


@dataclass(frozen=True, slots=True)
class Increment:
    """`SET status_sequence = status_sequence + 1`."""

    column: str
    by: int = 1

    def as_sql(self, compiler: SQLCompiler, connection: Any) -> Compiled:
        return f"{connection.ops.quote_name(self.column)} {'-' if self.by < 0 else '+'} {abs(self.by)}", ()


@dataclass(frozen=True, slots=True)
class Unchanged:
    """`SET status = status`: a save of the whole row leaves the column as the database has it."""

    field: Field[Any, Any]

    def as_sql(self, compiler: SQLCompiler, connection: Any) -> Compiled:
        return connection.ops.quote_name(self.field.column), ()


@dataclass(frozen=True, slots=True)
class CopiedValue(Unchanged):
    """What a raw save has for the column. An UPDATE keeps what the database has if a counter of the row is ahead.

    The comparison is part of the UPDATE, so that no move can come in between. It holds whether a counter is compared
    before it is written or, as MariaDB does it, after: what is written into it is the larger of the two.
    """

    value: Any
    #: Columns that only ever grow, and how far each had come when the copy was made.
    counters: tuple[tuple[str, int], ...]

    def as_sql(self, compiler: SQLCompiler, connection: Any) -> Compiled:
        inserts = isinstance(compiler, SQLInsertCompiler)
        sql, params = self._compile_value(compiler, connection, inserts)
        if inserts:
            return sql, params
        quote = connection.ops.quote_name
        ahead = " OR ".join([f"{quote(column)} > %s" for column, _count in self.counters])
        counts = [count for _column, count in self.counters]
        return f"CASE WHEN {ahead} THEN {quote(self.field.column)} ELSE {sql} END", (*counts, *params)

    def _compile_value(self, compiler: SQLCompiler, connection: Any, inserts: bool) -> Compiled:
        value = self.value
        if not hasattr(value, "as_sql"):
            return "%s", (self.field.get_db_prep_save(MachineValue(value), connection),)
        if isinstance(value, DatabaseDefault) and not inserts:  # no CASE can have the word DEFAULT in it
            value = value.get_source_expressions()[0]
        sql, params = compiler.compile(value)
        return sql, tuple(params)


@dataclass(frozen=True, slots=True)
class PendingStatus:
    """Write a status that is recorded already, if the record still stands, is this row's, and is its latest.

    A savepoint that was rolled back takes the record and the counter with it, a later move raises the counter, and an
    instance that was given another key saves another row: in each case the column keeps what the database has. Writing it
    twice is the same as writing it once.
    """

    field: Field[Any, Any]
    sequence_column: str
    status: str
    sequence: int
    record_pk: Field[Any, Any]
    record_id: object

    def as_sql(self, compiler: SQLCompiler, connection: Any) -> Compiled:
        quote = connection.ops.quote_name
        column, owner = quote(self.field.column), self.field.model._meta
        record, key = quote(self.record_pk.model._meta.db_table), f"{quote(owner.db_table)}.{quote(owner.pk.column)}"
        sql = (
            f"CASE WHEN {quote(self.sequence_column)} = %s AND EXISTS(SELECT 1 FROM {record} WHERE "
            f"{record}.{quote(self.record_pk.column)} = %s AND {record}.{quote('instance_id')} = {key}) "
            f"THEN %s ELSE {column} END"
        )
        record_id = self.record_pk.get_db_prep_value(self.record_id, connection)
        return sql, (self.sequence, record_id, self.status)


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """`SET status_cancels = CASE WHEN status_cancels = 0 AND status IN (...) THEN status_sequence + 1 ELSE status_cancels END`: which
    move leaves one of some states, the first of them that nobody has seen to."""

    column: str
    status_column: str
    sequence_column: str
    states: Sequence[str]

    def as_sql(self, compiler: SQLCompiler, connection: Any) -> Compiled:
        names = (self.column, self.status_column, self.sequence_column)
        column, status, sequence = map(connection.ops.quote_name, names)
        leaves = f"{column} = 0 AND {status} IN ({', '.join(['%s'] * len(self.states))})"
        return f"CASE WHEN {leaves} THEN {sequence} + 1 ELSE {column} END", tuple(self.states)
