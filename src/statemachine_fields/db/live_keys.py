"""Keys that are unique among the rows that are live: the constraint, and the SQL that meets it.

The states in which a row has given its key up are written into the text of each statement. Were they parameters, a plan that
is made for all values could neither use the index nor infer it from `ON CONFLICT`: it goes well some times, and then it fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, models
from django.db.models.sql import InsertQuery


class LiveConstraint(models.UniqueConstraint):
    """A conditional `UniqueConstraint`, which is what migrations see of it.

    What it adds is for forms. No form has the status among its fields, and Django leaves out a constraint whose condition is about a
    field that the form does not have, so that a duplicate would be an error page.
    """

    def deconstruct(self) -> Any:
        _path, *rest = super().deconstruct()
        return "django.db.models.UniqueConstraint", *rest

    def validate(self, model: Any, instance: Any, exclude: Any = None, using: str = DEFAULT_DB_ALIAS) -> None:
        compared = {name.partition("__")[0] for name, _value in lookups(self.condition)}
        asked = {name for name in exclude or () if name not in compared}
        try:
            super().validate(model, instance, exclude=asked, using=using)
        except ValidationError as error:
            # In Django's own words, which it has in every language, and under the field if there is one.
            raise instance.unique_error_message(model, self.fields) from error


def lookups(condition: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a condition compares, and with what."""
    for child in getattr(condition, "children", ()):
        if isinstance(child, tuple):
            yield child
        else:
            yield from lookups(child)


class _Name(models.Index):
    suffix = "key"


def live_constraint(
    model: type[models.Model], fields: Sequence[str], status: str, freeing: Sequence[str]
) -> LiveConstraint:
    """Return the constraint on rows that have not given their key up, with a name that follows from table and columns.

    Its condition names the states that give a key up, sorted: so neither a new live state nor another order makes a migration.
    """
    name = _Name(fields=[status, *fields])
    name.set_name_with_model(model)
    return LiveConstraint(
        fields=list(fields), name=name.name, condition=~models.Q(**{f"{status}__in": sorted(freeing)})
    )


def add_constraint(model: type[models.Model], constraint: models.UniqueConstraint) -> None:
    """Add a constraint to a class. The migration autodetector looks at the list only if it was given in `Meta`, as
    `original_attrs` tells it."""
    model._meta.constraints = [*model._meta.constraints, constraint]
    model._meta.original_attrs["constraints"] = model._meta.constraints


class IsOtherThan(models.Expression):
    """Whether a column has none of some values, which are part of the text: `NOT (status IN ('DONE'))`, as the index has it."""

    conditional: Any = True  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    output_field: Any = models.BooleanField()

    def __init__(self, column: str, values: Sequence[str]) -> None:
        super().__init__()
        self.column: Any = models.F(column)
        self.values = sorted(values)

    def get_source_expressions(self) -> list[Any]:
        return [self.column]

    def set_source_expressions(self, exprs: Sequence[Any]) -> None:
        (self.column,) = exprs

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        sql, params = compiler.compile(self.column)
        return f"NOT ({sql} IN ({', '.join(quoted(value, connection) for value in self.values)}))", tuple(params)


def quoted(value: str, connection: Any) -> str:
    """Return a text as it is written into a statement that also has parameters."""
    written: str = connection.schema_editor().quote_value(value)
    return written.replace("%", "%%")


class InsertUnlessTaken:
    """A manager whose INSERT leaves the row out if its key is taken.

    Django has `ON CONFLICT DO NOTHING` for all constraints of a table at once. That hides violations of others, and PostgreSQL
    refuses it where one of them is deferrable.
    """

    def __init__(self, manager: Any, clause: str) -> None:
        self._manager = manager
        self._clause = clause

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def _insert(
        self, objs: list[Any], fields: Any, returning_fields: Any = None, raw: bool = False, using: str | None = None
    ) -> list[Any] | None:
        """Insert a row, as Django does, and return what the database has computed; None if it was left out."""
        model = self._manager.model
        returned = list(returning_fields or [model._meta.pk])
        query = InsertQuery(model)
        query.insert_values(fields, objs, raw=raw)
        compiler: Any = query.get_compiler(using=using)
        compiler.returning_fields = returned
        ((sql, params),) = compiler.as_sql()
        insert, returning, columns = sql.rpartition(" RETURNING ")
        with compiler.connection.cursor() as cursor:
            cursor.execute(f"{insert} {self._clause}{returning}{columns}", params)
            row = cursor.fetchone()
        if row is None:
            return None
        converters = compiler.get_converters([field.get_col(model._meta.db_table) for field in returned])
        return list(compiler.apply_converters([row], converters)) if converters else [row]


def is_violation(error: BaseException, model: type[models.Model], constraint: models.UniqueConstraint) -> bool:
    """Say whether an error of Django's is about this constraint. PostgreSQL names it; SQLite names its columns."""
    cause = error.__cause__
    named = getattr(getattr(cause, "diag", None), "constraint_name", None)
    if named is not None:
        return bool(named == constraint.name)
    fields: list[Any] = [model._meta.get_field(name) for name in constraint.fields]
    columns = ", ".join(f"{model._meta.db_table}.{field.column}" for field in fields)
    return str(cause) == f"UNIQUE constraint failed: {columns}"
