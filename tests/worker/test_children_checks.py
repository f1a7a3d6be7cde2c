"""The system checks of states that wait for children."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.contenttypes.fields import GenericRelation
from django.core import checks
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Lower
from django.test.utils import override_settings

from lab.models import Expedition, Leg
from statemachine_fields import Children, State, StateMachine
from statemachine_fields.worker.children_checks import check_children
from tests.declared import lab_model

pytestmark = pytest.mark.usefixtures("isolated")

CHILD: dict[str, Any] = {"states": [("OPEN", "Open"), ("DONE", "Done"), ("LOST", "Lost")], "initial": "OPEN"}


def child_machine(**options: Any) -> StateMachine:
    return StateMachine(**CHILD, transitions={"OPEN": ["DONE", "LOST"]}, **options)


def parent(*relation: str, body: dict[str, Any] | None = None, **options: Any) -> Any:
    until = Children(*(relation or ("parcels",)), **{"then": "B", **options})
    states = StateMachine([State("A", until=until), State("B")], "A", {"A": ["B"]})
    return lab_model(name="Order", states=states, **(body or {}))


def child(
    to: Any = "lab.Order",
    key: Any = models.ForeignKey,
    *,
    index: bool = True,
    meta: dict[str, Any] | None = None,
    **body: Any,
) -> Any:
    indexes = [models.Index(fields=["order", "status"], name="by_order")] if index else []
    field = key(to, models.CASCADE, related_name="parcels")
    options = {"indexes": indexes} if meta is None else meta
    return lab_model(name="Parcel", meta=options, order=field, **({"states": child_machine()} | body))


def told(model: Any) -> list[str]:
    found = list(check_children(model.states._meta))
    assert all(problem.hint and isinstance(problem, checks.CheckMessage) for problem in found)
    return [f"{(problem.id or '').partition('.')[2]} {problem.msg}" for problem in found]


def test_nothing_where_nothing_is_wrong() -> None:
    order = parent(failed=["LOST"], cancel_to="LOST")
    child()
    assert told(order) == []


def test_a_one_to_one_key_will_do() -> None:
    order = parent()
    child(key=models.OneToOneField)
    assert told(order) == []


def test_a_relation_that_is_not_there() -> None:
    order = parent("packets")
    child()
    (problem,) = check_children(order.states._meta)
    assert problem.msg == "What 'A' of 'states' waits for cannot be: lab.Order has no relation 'packets'."
    assert problem.hint == "Name the related_name of a child's foreign key to lab.Order: parcels."


def test_a_many_to_many_relation() -> None:
    order = parent("others")
    lab_model(name="Other", orders=models.ManyToManyField("lab.Order", related_name="others"), states=child_machine())
    assert told(order) == [
        "E121 What 'A' of 'states' waits for cannot be: 'others' of lab.Order is not the other side of a foreign key."
    ]


def test_a_field_of_its_own_and_a_generic_relation() -> None:
    order = parent("things", body={"things": GenericRelation("lab.Parcel")})
    assert "is not the other side of a foreign key" in told(order)[0]


def test_children_without_a_machine() -> None:
    order = parent()
    lab_model(name="Parcel", order=models.ForeignKey("lab.Order", models.CASCADE, related_name="parcels"))
    assert "has no state machine" in told(order)[0]


def test_children_with_several_machines() -> None:
    order = parent()
    child(look=child_machine(field="phase"))
    assert "has several machines: states, look" in told(order)[0]


def test_a_machine_that_is_not_there() -> None:
    order = parent(machine="look")
    child()
    assert "has no machine 'look'" in told(order)[0]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"failed": ["GONE"]}, "failed names 'GONE', which lab.Parcel.states does not declare."),
        ({"failed": ["OPEN"]}, "failed names 'OPEN', which is not terminal in lab.Parcel.states"),
        ({"cancel_to": "GONE"}, "cancel_to names 'GONE', which lab.Parcel.states does not declare."),
    ],
)
def test_states_that_the_children_do_not_have(options: dict[str, Any], what: str) -> None:
    order = parent(**options)
    child()
    assert what in told(order)[0]


def test_an_index_is_asked_for() -> None:
    order = parent()
    child(index=False)
    assert told(order) == [
        "W121 lab.Parcel has no index on 'order' and 'status', by which rows of lab.Order in 'A' find out whether their "
        "children have ended."
    ]


def index(*expressions: Any, **options: Any) -> dict[str, Any]:
    return {"indexes": [models.Index(*expressions, name="an_index", **options)]}


def unique(*expressions: Any, **options: Any) -> dict[str, Any]:
    return {"constraints": [models.UniqueConstraint(*expressions, name="a_constraint", **options)]}


OURS = ["order", "status"]


@pytest.mark.parametrize(
    ("meta", "is_enough"),
    [
        (index(fields=[*OURS, "id"]), True),
        (index(fields=["order_id", "-status"]), True),
        (index(F("order"), F("status")), True),
        (index("order_id", F("status").desc(), Lower("status")), True),
        (index(F("order"), Lower("status")), False),
        (index(F("order"), Lower("status"), F("status")), False),
        (index(F("status"), F("order")), False),
        (index(F("order")), False),
        (index(fields=["odrer", "status"]), False),  # which is for Django to tell
        (index(F("pk"), F("status")), False),
        (unique(fields=[*OURS, "id"]), True),
        (unique(F("order"), F("status"), F("id")), True),
        ({"unique_together": [("order_id", "status", "id")]}, True),
        (index(fields=OURS, condition=Q(status="OPEN")), False),
        (index(fields=OURS, condition=~Q(order__isnull=False)), False),
        (index(fields=OURS, condition=Q(order__isnull=False)), True),
        (unique(fields=OURS, condition=Q(status="OPEN")), False),
        (unique(F("order"), F("status"), condition=Q(status="OPEN")), False),
    ],
)
def test_any_index_will_do_that_begins_so_and_has_all_children(meta: dict[str, Any], is_enough: bool) -> None:
    order = parent()
    child(meta=meta)
    assert [each.partition(" ")[0] for each in told(order)] == ([] if is_enough else ["W121"])


def test_children_that_cannot_be_cancelled() -> None:
    found = [problem for problem in check_children(Expedition.states._meta) if problem.id == "statemachine_fields.W122"]
    assert [problem.msg for problem in found][:1] == [
        "cancel_to of 'WALKING' in 'states' is 'CALLED_OFF', and no move of lab.Leg.states leads there from 'HELD'. Children in "
        "such a state go on when their parent has left."
    ]


def test_another_database() -> None:
    class Router:
        def db_for_write(self, model: Any, **hints: Any) -> str | None:
            return "archive" if model is Leg else None

    with override_settings(DATABASE_ROUTERS=[Router()]):
        found = {problem.id for problem in check_children(Expedition.states._meta)}
    assert "statemachine_fields.E122" in found
