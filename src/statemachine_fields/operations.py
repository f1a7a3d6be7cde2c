"""Migration operations that you write into your migrations by hand.

The migrations that Django writes for a machine import nothing of this library. One with such an operation does.
"""

from __future__ import annotations

import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.apps.registry import Apps
from django.core.exceptions import FieldDoesNotExist
from django.db import models, router
from django.db.migrations.operations import DeleteModel
from django.db.migrations.operations.base import Operation, OperationCategory

from statemachine_fields.db.columns import Names
from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.db.live_keys import lookups
from statemachine_fields.exceptions import StateMachineError
from statemachine_fields.machine.rename import Renamer
from statemachine_fields.schedule.policy import Seconds, plain, seconds_of

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState

__all__ = ["RenameState", "SetFillfactor"]

BATCH_SIZE = 1000
WAIT = datetime.timedelta(minutes=10)
WORKER_APP = "statemachine_fields.worker"

#: What PostgreSQL takes, in percent.
LEAST_FILLED, MOST_FILLED = 10, 100


class RenameState(Operation):
    """Rename a state in rows, in their records, and in the statistics of workers. Reversible.

    In a migration with `atomic = False`, in batches, each one transaction; one that was cut off goes on where it was. In
    another, in the transaction of the migration. Rows that a worker or a transaction holds are left until it lets go of
    them. Nothing but the names is written.

    :param model_name: the model whose machine it is.
    :param old: the value that rows and records have.
    :param new: the value that they get. It is refused if it is in use.
    :param field: the name of the status column.
    :param machine: what the machine is called on the model, as in the statistics of workers.
    :param target_in_use: that rows or records may have the new value already, as when deployed code enters it.
    :param batch_size: how many rows to rename at once.
    :param wait: how long to wait for rows that are held, since the last of them was let go, before it is an error.
    """

    category = OperationCategory.PYTHON
    reduces_to_sql = False
    atomic = False

    def __init__(
        self,
        model_name: str,
        old: str,
        new: str,
        *,
        field: str = "status",
        machine: str = "states",
        target_in_use: bool = False,
        batch_size: int = BATCH_SIZE,
        wait: Seconds = WAIT,
        elidable: bool = False,
    ) -> None:
        for name, value in (("old", old), ("new", new)):
            if not isinstance(value, str) or not value:
                raise ValueError(f"{name} must be the value of a state, got {value!r}.")
        if plain(old) == plain(new):
            raise ValueError(
                f"old and new are both {plain(old)!r}. Name the value that rows have, and the one they get."
            )
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}.")
        self.model_name = model_name
        self.old = plain(old)
        self.new = plain(new)
        self.field = field
        self.machine = machine
        self.target_in_use = target_in_use
        self.batch_size = batch_size
        self.wait = seconds_of(wait, "wait") or 0.0
        self.elidable = elidable  # type: ignore[misc]  # as operations of Django's own do

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        options = {
            "field": (self.field, "status"),
            "machine": (self.machine, "states"),
            "target_in_use": (self.target_in_use, False),
            "batch_size": (self.batch_size, BATCH_SIZE),
            "wait": (self.wait, WAIT.total_seconds()),
            "elidable": (self.elidable, False),
        }
        given = {name: value for name, (value, default) in options.items() if value != default}
        return type(self).__name__, [self.model_name, self.old, self.new], given

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change nothing: states do not live in migrations."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._rename(app_label, schema_editor, from_state, self.old, self.new)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._rename(app_label, schema_editor, from_state, self.new, self.old)

    def describe(self) -> str:
        return f"Rename state {self.old} to {self.new} in {self.field} of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"rename_{self.old}_to_{self.new}".lower()

    def _rename(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState, old: str, new: str
    ) -> None:
        state.clear_delayed_apps_cache()
        model, audit = self._find_models(state.apps.get_model(app_label, self.model_name))
        using = schema_editor.connection.alias
        if not router.allow_migrate_model(using, model):
            return
        self._refuse_long(
            new, model._meta.get_field(self.field), *map(audit._meta.get_field, ("from_status", "to_status"))
        )
        self._refuse_named(model, old)
        renamer = Renamer(
            model,
            audit,
            Names(self.field),
            old,
            new,
            tries=self._find_tries(model),
            using=using,
            batch_size=self.batch_size,
            wait=self.wait,
        )
        mark = Mark(schema_editor, model._meta.db_table, self.field, old, new)
        if renamer.is_used(old):
            if not (self.target_in_use or mark.is_set()):
                if renamer.is_used(new):
                    raise self._target_in_use(renamer)
                if not schema_editor.connection.in_atomic_block:
                    mark.set()
            renamer.run()
        if apps.is_installed(WORKER_APP):
            from statemachine_fields.worker.statistics import rename_statistics

            rename_statistics(f"{model._meta.label}.{self.machine}", old, new, using)
        mark.clear()

    def _find_tries(self, model: type[models.Model]) -> type[models.Model] | None:
        """Return the model of the machine's tries, if it keeps them."""
        try:
            relation: Any = model._meta.get_field(Names(self.field).tries_accessor)
        except FieldDoesNotExist:
            return None
        found: type[models.Model] = relation.related_model
        return found

    def _find_models(self, named: type[models.Model]) -> tuple[type[models.Model], type[models.Model]]:
        """Return the model that has the column, which for a multi-table child is its parent, and its audit model."""
        names = Names(self.field)
        try:
            model = named._meta.get_field(self.field).model
        except FieldDoesNotExist as error:
            raise StateMachineError(
                f"RenameState: at this point of the migrations {named._meta.label} has no field {self.field!r}. Name the "
                "status column of the machine with field=."
            ) from error
        for relation in model._meta.related_objects:
            if relation.get_accessor_name() == names.reverse_accessor:
                return model, relation.related_model  # by its relation: a model and its audit model are renamed singly
        raise StateMachineError(
            f"RenameState: at this point of the migrations nothing records the moves of {model._meta.label}.{self.field}. "
            "Put the operation behind the migration that creates the audit table."
        )

    def _refuse_long(self, new: str, *fields: Any) -> None:
        for field in fields:
            if field.max_length is not None and len(new) > field.max_length:
                raise StateMachineError(
                    f"RenameState: {new!r} has {len(new)} characters, and {field.model._meta.label}.{field.name} takes "
                    f"{field.max_length}. Raise max_length in a migration before this one."
                )

    def _refuse_named(self, model: type[models.Model], old: str) -> None:
        """Refuse to rename what a constraint names: rows would be live for it while they have the new value."""
        for constraint in model._meta.constraints:
            named = lookups(getattr(constraint, "condition", None))
            if any(name == f"{self.field}__in" and old in values for name, values in named):
                raise StateMachineError(
                    f"RenameState: the constraint {constraint.name!r} of {model._meta.label} names the state {old!r}. Put the "
                    "operation between the RemoveConstraint and the AddConstraint that makemigrations writes for the renamed "
                    "state. Nothing was renamed."
                )

    def _target_in_use(self, renamer: Renamer) -> StateMachineError:
        return StateMachineError(
            f"{renamer}: rows or records have {renamer.new!r} already, and would not be told from those that get it. Nothing "
            "was renamed. If the two mean the same, as when deployed code enters the new state already, say "
            "target_in_use=True. If they do not, choose another name, or move the rows, which keeps their history: see "
            "bulk_transition()."
        )


class SetFillfactor(Operation):
    """Leave room in the pages of a model's table, so that a row that is written anew stays in its page. Reversible.

    On PostgreSQL it is one `ALTER TABLE`, which reads and writes of others need not wait for. It is about pages that are filled
    from now on: those that are full stay so until `VACUUM FULL` or `CLUSTER` writes the table anew. On other databases it
    does nothing.

    :param model_name: the model whose table it is; of a multi-table child, its own.
    :param percent: how far new rows fill a page, from 10 to 100, which is PostgreSQL's default.
    :param before: what reversing it sets; without, what is PostgreSQL's default.
    """

    category = OperationCategory.ALTERATION

    def __init__(self, model_name: str, percent: int, *, before: int | None = None, elidable: bool = False) -> None:
        _refuse_percentage(percent, "percent")
        if before is not None:
            _refuse_percentage(before, "before")
        self.model_name = model_name
        self.percent = percent
        self.before = before
        self.elidable = elidable  # type: ignore[misc]  # as operations of Django's own do

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        options = {"before": (self.before, None), "elidable": (self.elidable, False)}
        given = {name: value for name, (value, default) in options.items() if value != default}
        return type(self).__name__, [self.model_name, self.percent], given

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change nothing: how full pages are does not live in the state of the project."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._alter(app_label, schema_editor, to_state, self.percent)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._alter(app_label, schema_editor, to_state, self.before)

    def _alter(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState, percent: int | None
    ) -> None:
        model: Any = state.apps.get_model(app_label, self.model_name)
        model = model._meta.concrete_model  # a proxy's table is another's
        connection: Any = schema_editor.connection
        if not self.allow_migrate_model(connection.alias, model):
            return
        table = schema_editor.quote_name(model._meta.db_table)
        if (sql := dialect_for(connection).fillfactor_sql(table, percent)) is not None:
            schema_editor.execute(sql, params=None)

    def references_model(self, name: str, app_label: str) -> bool:
        return name.lower() == self.model_name.lower()

    def reduce(self, operation: Operation, app_label: str) -> Any:
        """Let squashing keep the last of several for a model, and none for a model that is deleted."""
        if isinstance(operation, SetFillfactor) and operation.references_model(self.model_name, app_label):
            elidable = self.elidable and operation.elidable
            return [SetFillfactor(operation.model_name, operation.percent, before=self.before, elidable=elidable)]
        if isinstance(operation, DeleteModel) and operation.references_model(self.model_name, app_label):
            return [operation]
        return super().reduce(operation, app_label) or not operation.references_model(self.model_name, app_label)

    def describe(self) -> str:
        return f"Fill pages of {self.model_name} to {self.percent} %"

    @property
    def migration_name_fragment(self) -> str:
        return f"{self.model_name.lower()}_fillfactor_{self.percent}"


def _refuse_percentage(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not LEAST_FILLED <= value <= MOST_FILLED:
        raise ValueError(f"{name} must be an integer from {LEAST_FILLED} to {MOST_FILLED}, got {value!r}.")


class Mark:
    """A note in the database that a rename has begun and found its target unused.

    A run that was cut off leaves rows and records with the new value. The next one could not tell them from those of a
    target that is in use: the code that is deployed may be of any later time, and what is in rows and records is the same.
    So the first one leaves a note, in a table that is there only as long.
    """

    def __init__(self, schema_editor: BaseDatabaseSchemaEditor, table: str, column: str, old: str, new: str) -> None:
        self.schema_editor = schema_editor
        self.connection: Any = schema_editor.connection
        self.facts = {"table": table, "column": column, "old": old, "new": new}

    def is_set(self) -> bool:
        return self._has_table() and self._notes.filter(**self.facts).exists()

    def set(self) -> None:
        if not self._has_table():
            self.schema_editor.create_model(_note_model())
        self._notes.create(**self.facts)

    def clear(self) -> None:
        if self._has_table():
            self._notes.filter(**self.facts).delete()
            if not self._notes.exists():
                self.schema_editor.delete_model(_note_model())

    def _has_table(self) -> bool:
        with self.connection.cursor() as cursor:
            return _note_model()._meta.db_table in self.connection.introspection.table_names(cursor)

    @property
    def _notes(self) -> models.QuerySet[Any]:
        return models.QuerySet(_note_model(), using=self.connection.alias)


@cache
def _note_model() -> type[models.Model]:
    class RenameUnderWay(models.Model):
        table = models.CharField(max_length=200)
        column = models.CharField(max_length=200)
        old = models.CharField(max_length=200)
        new = models.CharField(max_length=200)

        class Meta:
            apps = Apps()  # no migration, and no other model, knows of it
            app_label = "statemachine_fields"
            db_table = "statemachine_fields_rename_under_way"

        def __str__(self) -> str:
            return f"{self.table}.{self.column}: {self.old} → {self.new}"

    return RenameUnderWay
