"""System checks: what each says, and that a healthy project is silent."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from django import forms
from django.core import checks
from django.db import connection, connections, models
from django.db.models.functions import Upper
from django.test.utils import override_settings

from statemachine_fields import StateMachine, Transition
from statemachine_fields import checks as our_checks
from statemachine_fields.machine.registry import attributes_of
from tests.declared import lab_model


def machine(edges: dict[str, list[Any]] | None = None, **options) -> StateMachine:
    edges = {"A": ["B"]} if edges is None else edges
    named = [getattr(target, "to", target) for targets in edges.values() for target in targets]
    states = dict.fromkeys(["A", *edges, *named])
    return StateMachine([(state, state.title()) for state in states], "A", edges, **options)


class UploadForm(forms.Form):
    scan = forms.FileField()


def problems(model: type[models.Model]) -> list[checks.CheckMessage]:
    """Return what our checks say of one model."""
    found: list[checks.CheckMessage] = []
    for name, attribute in attributes_of(model).items():
        if attribute.bound is None:
            found += our_checks.check_unbound(model, name, attribute.machine)
        else:
            found += our_checks.check_bound(attribute.bound)
    return found


#: What models of the lab are there to show.
DELIBERATE = {
    ("statemachine_fields.W122", "lab.Expedition"),
    ("statemachine_fields.W001", "lab.Lot"),
    ("statemachine_fields.W102", "lab.ByOtherWorker"),
    ("statemachine_fields.W102", "lab.ByWorker"),
}
#: What of these MariaDB cannot do.
KEYED = {
    ("statemachine_fields.E008", f"lab.{name}")
    for name in ("Carriage", "Order", "PlacedOrder", "Quote", "Reservation", "Shipment", "Twice")
}


def test_the_projects_own_models_are_clean_but_for_what_is_there_on_purpose():
    found = {(problem.id, problem.obj._meta.label) for problem in our_checks.check_machines(None)}
    expected = DELIBERATE | (set() if connection.features.supports_partial_indexes else KEYED)
    assert {each for each in found if each[0] != "statemachine_fields.W107"} == expected


class TestLiveKeys:
    """Wrong fields of `unique_while_live`, and databases that cannot hold it."""

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("numbr", "the model has no such field"),
            ("owner_id", "it is called 'owner' there"),
            ("status", "it is a column of the machine"),
            ("tags", "it is no column"),
            ("id", "it is the primary key, which is unique in any case"),
            ("shout", "the database computes it"),
            ("seen_at", "it changes whenever the row is saved"),
        ],
    )
    @pytest.mark.usefixtures("isolated")
    def test_a_field_that_cannot_be_part_of_a_key(self, name, why):
        model = lab_model(
            states=machine({"A": ["B"]}, unique_while_live=["number", name]),
            number=models.CharField(max_length=9),
            owner=models.ForeignKey("lab.Kept", models.CASCADE, related_name="+"),
            tags=models.ManyToManyField("lab.Kept", related_name="+"),
            shout=models.GeneratedField(
                expression=Upper("number"), output_field=models.CharField(max_length=9), db_persist=True
            ),
            seen_at=models.DateTimeField(auto_now=True),
        )
        (error,) = [each for each in problems(model) if each.id == "statemachine_fields.E007"]
        assert error.msg == (f"unique_while_live of 'states' names {name!r}, which cannot be part of a key: {why}.")
        assert error.hint
        assert (model.states._meta.key, model._meta.constraints) == (None, [])

    @pytest.mark.usefixtures("isolated")
    def test_a_field_of_another_table(self):
        parent = lab_model(name="Parent", number=models.IntegerField())
        child = lab_model(parent, name="Child", states=machine({"A": ["B"]}, unique_while_live=["number"]))
        (error,) = [each for each in problems(child) if each.id == "statemachine_fields.E007"]
        assert "it is in the table of lab.Parent, and the status is not" in error.msg

    @pytest.mark.usefixtures("isolated")
    def test_a_database_that_cannot_hold_a_key(self, monkeypatch):
        model = lab_model(states=machine({"A": ["B"]}, unique_while_live=["number"]), number=models.IntegerField())
        monkeypatch.setattr(type(connection.features), "supports_partial_indexes", False)
        errors = [each for each in problems(model) if each.id == "statemachine_fields.E008"]
        assert len(errors) == len(list(connections))
        assert errors[0].msg == (
            "unique_while_live of 'states' is not held by the database 'default', which has no unique constraints for some of "
            "the rows."
        )
        assert errors[0].hint


def test_checks_are_registered_with_django():
    assert our_checks.check_machines in checks.registry.registry.get_checks()


def test_an_app_that_is_not_installed():
    installed = ["django.contrib.contenttypes", "django.contrib.auth", "reference"]
    with override_settings(INSTALLED_APPS=installed):
        assert our_checks.check_machines(None) == [
            checks.Error(
                "Models have state machines, but 'statemachine_fields' is not in INSTALLED_APPS.",
                hint="Add it: the commands, the admin's templates and its style come with the app.",
                id="statemachine_fields.E001",
            )
        ]


def test_wrong_settings_are_told_before_the_first_move():
    with override_settings(STATEMACHINE_FIELDS={"PREPAR": True}):
        (error,) = our_checks.wrong_settings()
    assert (error.id, error.msg) == (
        "statemachine_fields.E004",
        "STATEMACHINE_FIELDS has no key 'PREPAR'. Did you mean 'PREPARE'?",
    )
    with override_settings(STATEMACHINE_FIELDS={"PREPARE": "always"}):
        (error,) = our_checks.wrong_settings()
        assert error in our_checks.check_machines(None)
    assert error.msg == "STATEMACHINE_FIELDS['PREPARE'] must be True, False or 'auto', got 'always'."


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("shop.forms.Nothing", 'Module "shop.forms" does not define a "Nothing" attribute/class'),
        ("nowhere.Form", "No module named 'nowhere'"),
        ("shop.forms.forms", "is not a form class."),
        (dict, "<class 'dict'> is not a form class."),
        (UploadForm, "UploadForm.scan is a file, and only a field of the row can keep one."),
        ("lab.forms.SealForm", "SealForm is a form of lab.Dossier, not of lab.Order."),
    ],
)
@pytest.mark.usefixtures("isolated")
def test_forms_that_cannot_be_used(form, said):
    (error,) = problems(lab_model(states=machine({"A": [Transition("B", form=form)]})))
    assert error.id == "statemachine_fields.E005"
    assert error.msg.startswith("The form of the transition from 'A' to 'B' in 'states' cannot be used: ")
    assert said in error.msg


@pytest.mark.usefixtures("isolated")
class TestColumnTaken:
    def expected(self, model: type[models.Model], column: str) -> checks.Error:
        return checks.Error(
            f"The machine 'states' needs the column {column!r}, which the model or another machine declares.",
            hint=f"Remove {column!r} from the model: the machine adds it. Or give the machine another `field=`.",
            obj=model,
            id="statemachine_fields.E002",
        )

    def test_by_a_field_declared_before(self):
        order = lab_model(status=models.CharField(max_length=10), states=machine())
        assert problems(order) == [self.expected(order, "status")]
        with pytest.raises(AttributeError, match="run `manage.py check`"):
            order().states  # noqa: B018

    def test_by_a_field_declared_after(self):
        order = lab_model(states=machine(), status_sequence=models.IntegerField())
        assert problems(order) == [self.expected(order, "status_sequence")]

    def test_by_a_property(self):
        order = lab_model(states=machine(), status=property(lambda self: "mine"))
        assert self.expected(order, "status") in problems(order)
        assert order().status == "mine"

    @pytest.mark.parametrize("status", [models.CharField(max_length=10), None], ids=["replaced", "dropped"])
    def test_by_what_stands_in_for_an_inherited_field(self, status):
        base = lab_model(name="Base", meta={"abstract": True}, states=machine())
        order = lab_model(base, status=status)
        assert problems(order) == [self.expected(order, "status")]

    def test_by_a_field_with_the_name_of_a_column_of_the_clock(self):
        states = machine()
        plain = lab_model(status_error=models.TextField(), states=machine())
        handled = {"states": states, "go_on": states.handler("A")(lambda self: "B")}
        timed = lab_model(name="Timed", status_error=models.TextField(), **handled)
        assert problems(plain) == []
        assert problems(timed) == [self.expected(timed, "status_error")]

    def test_by_another_machine(self):
        order = lab_model(states=machine(), flow=machine())
        assert [problem.msg for problem in problems(order)] == [
            f"The machine 'flow' needs the column {column!r}, which the model or another machine declares."
            for column in ("status", "status_sequence", "status_changed_at")
        ]
        assert order().states.current == "A"

    def test_by_the_same_machine_under_another_name(self):
        shared = machine()
        order = lab_model(states=shared, flow=shared)
        assert [problem.id for problem in problems(order)] == ["statemachine_fields.E002"]


@pytest.mark.usefixtures("isolated")
class TestAuditNameTaken:
    def expected(self, model: type[models.Model]) -> checks.Error:
        return checks.Error(
            "The audit model of 'states' is called OrderStateTransition, and so is another model of the app.",
            hint="Rename the other model, or give the machine another `field=`, which its audit model is named after.",
            obj=model,
            id="statemachine_fields.E003",
        )

    def test_by_a_model_declared_before(self):
        lab_model(name="OrderStateTransition")
        order = lab_model(states=machine())
        assert problems(order) == [self.expected(order)]
        with pytest.raises(AttributeError, match="the name 'OrderStateTransition' is taken by another model"):
            order.states.transition_model  # noqa: B018
        row = order.from_db("default", ["id", "status"], [1, "A"])
        with pytest.raises(AttributeError, match="the name 'OrderStateTransition' is taken by another model"):
            row.states.transition_to("B")

    def test_by_a_model_declared_after(self):
        order = lab_model(states=machine())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # Django's own, about the same
            lab_model(name="OrderStateTransition")
        assert problems(order) == [self.expected(order)]

    def test_by_another_machine_of_the_model(self):
        order = lab_model(states=machine(), other=machine(field="state"))
        assert [problem.id for problem in problems(order)] == ["statemachine_fields.E003"]


@pytest.mark.usefixtures("isolated")
class TestSmells:
    @pytest.mark.parametrize(
        ("edges", "expected"),
        [
            pytest.param(
                {"A": ["B"], "C": ["B"]},
                ["W001 No moves lead from 'A' to 'C' in 'states'."],
                id="an unreachable state",
            ),
            pytest.param(
                {"A": ["B", "END"], "B": ["C"], "C": ["B"]},
                ["W002 Rows never get out of 'B', 'C' in 'states', which have moves."],
                id="a trap state",
            ),
            pytest.param(
                {"A": ["paid", "PAID"]},
                [
                    "W003 The states 'paid', 'PAID' of 'states' differ only in case.",
                    "W004 The states 'paid', 'PAID' of 'states' have the same label.",
                ],
                id="states that differ only in case and have the same label",
            ),
        ],
    )
    def test_each(self, edges, expected):
        found = problems(lab_model(states=machine(edges)))
        assert [f"{problem.id} {problem.msg}" for problem in found] == [
            f"statemachine_fields.{each}" for each in expected
        ]

    def test_each_has_a_hint(self):
        order = lab_model(states=machine({"A": ["A"], "c": ["C"]}))
        found = problems(order)
        assert len(found) == 4
        assert all(problem.hint and problem.obj is order for problem in found)


@pytest.mark.usefixtures("isolated")
class TestVanishedMachines:
    """Two bases that give their machines the same name: the model can have one of them only."""

    def bases(self) -> tuple[Any, Any]:
        paid = lab_model(name="Paid", meta={"abstract": True}, states=machine())
        return paid, lab_model(name="Sent", meta={"abstract": True}, states=machine(field="phase"))

    def test_is_told_with_the_ways_out(self):
        paid, sent = self.bases()
        order = lab_model(paid, sent)
        assert list(our_checks.vanished_machines(order)) == [
            checks.Error(
                f"The machine 'states' of {sent.__qualname__} is lost: another base, or the model, has 'states' too. Its columns "
                "are there, 'phase' among them, and nothing moves the rows.",
                hint="Give one of the machines another name, so that the model has both. To leave this one out, set its columns "
                "to None on the model: phase, phase_sequence, phase_changed_at.",
                obj=order,
                id="statemachine_fields.E006",
            )
        ]
        config: Any = SimpleNamespace(get_models=lambda **options: [order])
        assert [problem.id for problem in our_checks.check_machines([config])] == ["statemachine_fields.E006"]

    def test_both_under_names_of_their_own_are_in_order(self):
        paid, _sent = self.bases()
        order = lab_model(paid, lab_model(name="Shipped", meta={"abstract": True}, flow=machine(field="phase")))
        assert not list(our_checks.vanished_machines(order))
        assert {order.states._meta.field.name, order.flow._meta.field.name} == {"status", "phase"}

    def test_one_that_is_left_out_on_purpose_is_in_order(self):
        paid, sent = self.bases()
        order = lab_model(paid, sent, **dict.fromkeys(("phase", "phase_sequence", "phase_changed_at")))
        assert not list(our_checks.vanished_machines(order))

    def test_a_copy_of_the_columns_in_a_history_table_is_in_order(self):
        fields = lab_model(states=machine())._meta.local_fields
        history = lab_model(
            name="HistoricalOrder", **{each.name: copy.copy(each) for each in fields if each.name != "id"}
        )
        assert history._meta.get_field("status").bound is None
        assert not list(our_checks.vanished_machines(history))

    def test_one_that_the_model_hides(self):
        paid, _sent = self.bases()
        (error,) = our_checks.vanished_machines(lab_model(paid, states=None))
        assert error.id == "statemachine_fields.E006"
