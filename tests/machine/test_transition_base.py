"""What the `Meta` of a `transition_base` says of the audit table, as an abstract base's says of its children's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import IntegrityError, connection, models, transaction
from django.db.migrations.state import ModelState
from django.test.utils import isolate_apps

from statemachine_fields import StateMachine
from tests.declared import lab_model

FLOW: dict[str, Any] = {
    "states": [("NEW", "New"), ("DONE", "Done")],
    "initial": "NEW",
    "transitions": {"NEW": ["DONE"]},
}


def make(**options: Any) -> type[models.Model]:
    """Return a model whose records have a base with a reason and these options."""
    meta = type("Meta", (), {"abstract": True, **options})
    base = type(
        "Reason",
        (models.Model,),
        {"__module__": __name__, "reason": models.CharField(max_length=9, default="none"), "Meta": meta},
    )
    body = {
        "__module__": __name__,
        "states": StateMachine(**FLOW, transition_base=base),
        "Meta": type("Meta", (), {"app_label": "lab", "db_table": "lab_based"}),
    }
    return type("Based", (models.Model,), body)


@isolate_apps("lab")
def test_indexes_and_constraints_are_named_as_django_names_those_of_abstract_bases():
    audit = make(
        indexes=[
            models.Index(fields=["to_status", "transitioned_at"], name="%(app_label)s_%(class)s_to"),
            models.Index(fields=["reason"]),
        ],
        constraints=[models.CheckConstraint(condition=~models.Q(reason=""), name="%(app_label)s_%(class)s_why")],
    ).states.transition_model
    assert audit._meta.indexes[0].name == "lab_basedstatetransition_to"
    assert audit._meta.indexes[1].name.startswith("lab_basedst_reason_")
    assert [constraint.name for constraint in audit._meta.constraints] == ["lab_basedstatetransition_why"]


@isolate_apps("lab")
def test_migrations_hold_them():
    audit = make(
        indexes=[models.Index(fields=["reason"], name="why")], db_table_comment="moves"
    ).states.transition_model
    options = ModelState.from_model(audit).options
    assert [index.name for index in options["indexes"]] == ["why"]
    assert options["db_table_comment"] == "moves"
    assert options["unique_together"] == {("instance", "sequence")}


@isolate_apps("lab")
def test_what_it_says_holds_and_the_rest_is_as_without_it():
    said = make(
        ordering=["reason"],
        permissions=[("audit", "Can audit")],
        verbose_name="move",
        get_latest_by="sequence",
        unique_together=("instance", "reason"),
        app_label="elsewhere",
    ).states.transition_model._meta
    assert (said.ordering, said.permissions, said.verbose_name) == (["reason"], [("audit", "Can audit")], "move")
    assert said.get_latest_by == "sequence"
    assert set(said.unique_together) == {("instance", "sequence"), ("instance", "reason")}
    assert (said.app_label, said.default_permissions, said.abstract) == ("lab", ("view",), False)


@isolate_apps("lab")
def test_nothing_said():
    plain = make().states.transition_model._meta
    assert (plain.ordering, plain.default_permissions, plain.abstract) == (["-id"], ("view",), False)


@isolate_apps("lab")
@pytest.mark.parametrize(
    ("option", "value"),
    [("order_with_respect_to", "instance"), ("swappable", "X"), ("managed", False)],
)
def test_what_an_audit_table_cannot_be(option, value):
    with pytest.raises(ValueError, match=f"transition_base must not set {option} in its Meta: "):
        make(**{option: value})


@contextmanager
def tables_of(model: Any) -> Iterator[Any]:
    made = [model, model.states.transition_model]
    with connection.schema_editor() as editor:
        for each in made:
            editor.create_model(each)
    try:
        yield model
    finally:
        with connection.schema_editor() as editor:
            for each in reversed(made):
                editor.delete_model(each)


@pytest.fixture
def based(transactional_db) -> Iterator[Any]:
    with isolate_apps("lab"):
        model = make(
            indexes=[models.Index(fields=["to_status", "transitioned_at"], name="%(class)s_to")],
            constraints=[models.CheckConstraint(condition=~models.Q(reason=""), name="%(class)s_why")],
        )
        with tables_of(model):
            yield model


def test_the_database_has_them(based):
    audit = based.states.transition_model
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, audit._meta.db_table)
    assert {"basedstatetransition_to", "basedstatetransition_why"} <= set(found)
    row = based.objects.create()
    with pytest.raises(IntegrityError), transaction.atomic():
        row.states.transition_to("DONE", record={"reason": ""})
    assert (row.status, based.objects.get().status) == ("NEW", "NEW")
    row.states.transition_to("DONE", record={"reason": "paid"})


@isolate_apps("lab")
def test_a_base_without_fields_that_refuses_assignments_hears_of_none(transactional_db):
    def refuse(record: Any, name: str, value: object) -> None:
        if name != "_state" and not record._state.adding:
            raise TypeError("A record is not changed.")
        models.Model.__setattr__(record, name, value)

    meta = type("Meta", (), {"abstract": True})
    base = type("Frozen", (models.Model,), {"__module__": __name__, "__setattr__": refuse, "Meta": meta})
    with tables_of(lab_model(name="Frozen", states=StateMachine(**FLOW, transition_base=base))) as model:
        row = model.objects.create()
        record = row.states.transition_to("DONE")
        assert (record.to_status, record.instance, model.objects.get().status) == ("DONE", row, "DONE")
        with pytest.raises(TypeError, match="not changed"):
            record.to_status = "NEW"
