"""System checks: what each says, and that a healthy project is silent."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from django import forms
from django.core import checks
from django.db import models
from django.test.utils import isolate_apps, override_settings

from statemachine_fields import StateMachine, Transition
from statemachine_fields import checks as our_checks
from statemachine_fields.machine.registry import attributes_of


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
    ("statemachine_fields.W001", "lab.Lot"),
    ("statemachine_fields.W102", "lab.ByOtherWorker"),
    ("statemachine_fields.W102", "lab.ByWorker"),
}


def test_the_projects_own_models_are_clean_but_for_what_is_there_on_purpose():
    found = {(problem.id, problem.obj._meta.label) for problem in our_checks.check_machines(None)}
    assert {each for each in found if each[0] != "statemachine_fields.W107"} == DELIBERATE


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
@isolate_apps("lab")
def test_forms_that_cannot_be_used(form, said):
    class Order(models.Model):
        states = machine({"A": [Transition("B", form=form)]})

        class Meta:
            app_label = "lab"

    (error,) = problems(Order)
    assert error.id == "statemachine_fields.E005"
    assert error.msg.startswith("The form of the transition from 'A' to 'B' in 'states' cannot be used: ")
    assert said in error.msg


class TestColumnTaken:
    def expected(self, model: type[models.Model], column: str) -> checks.Error:
        return checks.Error(
            f"The machine 'states' needs the column {column!r}, which the model or another machine declares.",
            hint=f"Remove {column!r} from the model: the machine adds it. Or give the machine another `field=`.",
            obj=model,
            id="statemachine_fields.E002",
        )

    @isolate_apps("lab")
    def test_by_a_field_declared_before(self):
        class Order(models.Model):
            status = models.CharField(max_length=10)
            states = machine()

            class Meta:
                app_label = "lab"

        assert problems(Order) == [self.expected(Order, "status")]
        with pytest.raises(AttributeError, match="run `manage.py check`"):
            Order().states  # noqa: B018

    @isolate_apps("lab")
    def test_by_a_field_declared_after(self):
        class Order(models.Model):
            states = machine()
            status_sequence = models.IntegerField()

            class Meta:
                app_label = "lab"

        assert problems(Order) == [self.expected(Order, "status_sequence")]

    @isolate_apps("lab")
    def test_by_a_property(self):
        class Order(models.Model):
            states = machine()

            @property
            def status(self) -> str:
                return "mine"

            class Meta:
                app_label = "lab"

        assert self.expected(Order, "status") in problems(Order)
        assert Order().status == "mine"

    @isolate_apps("lab")
    def test_by_a_field_that_replaces_an_inherited_one(self):
        class Base(models.Model):
            states = machine()

            class Meta:
                abstract = True
                app_label = "lab"

        class Order(Base):
            status = models.CharField(max_length=10)

            class Meta:
                app_label = "lab"

        class Dropped(Base):
            status = None

            class Meta:
                app_label = "lab"

        assert problems(Order) == [self.expected(Order, "status")]
        assert problems(Dropped) == [self.expected(Dropped, "status")]

    @isolate_apps("lab")
    def test_by_a_field_with_the_name_of_a_column_of_the_clock(self):
        class Order(models.Model):
            status_error = models.TextField()
            states = machine()

            class Meta:
                app_label = "lab"

        class Timed(models.Model):
            status_error = models.TextField()
            states = machine()

            class Meta:
                app_label = "lab"

            @states.handler("A")
            def go_on(self):
                return "B"

        assert problems(Order) == []
        assert problems(Timed) == [self.expected(Timed, "status_error")]

    @isolate_apps("lab")
    def test_by_another_machine(self):
        class Order(models.Model):
            states = machine()
            flow = machine()

            class Meta:
                app_label = "lab"

        assert [problem.msg for problem in problems(Order)] == [
            f"The machine 'flow' needs the column {column!r}, which the model or another machine declares."
            for column in ("status", "status_sequence", "status_changed_at")
        ]
        assert Order().states.current == "A"

    @isolate_apps("lab")
    def test_by_the_same_machine_under_another_name(self):
        shared = machine()

        class Order(models.Model):
            states = shared
            flow = shared

            class Meta:
                app_label = "lab"

        assert [problem.id for problem in problems(Order)] == ["statemachine_fields.E002"]


class TestAuditNameTaken:
    def expected(self, model: type[models.Model]) -> checks.Error:
        return checks.Error(
            "The audit model of 'states' is called OrderStateTransition, and so is another model of the app.",
            hint="Rename the other model, or give the machine another `field=`, which its audit model is named after.",
            obj=model,
            id="statemachine_fields.E003",
        )

    @isolate_apps("lab")
    def test_by_a_model_declared_before(self):
        class OrderStateTransition(models.Model):
            class Meta:
                app_label = "lab"

        class Order(models.Model):
            states = machine()

            class Meta:
                app_label = "lab"

        assert problems(Order) == [self.expected(Order)]
        with pytest.raises(AttributeError, match="the name 'OrderStateTransition' is taken by another model"):
            Order.states.transition_model  # noqa: B018

    @isolate_apps("lab")
    def test_by_a_model_declared_after(self):
        class Order(models.Model):
            states = machine()

            class Meta:
                app_label = "lab"

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # Django's own, about the same

            class OrderStateTransition(models.Model):
                class Meta:
                    app_label = "lab"

        assert problems(Order) == [self.expected(Order)]

    @isolate_apps("lab")
    def test_by_another_machine_of_the_model(self):
        class Order(models.Model):
            states = machine()
            other = machine(field="state")

            class Meta:
                app_label = "lab"

        assert [problem.id for problem in problems(Order)] == ["statemachine_fields.E003"]


class TestSmells:
    def messages(self, **edges: list[str]) -> list[str]:
        with isolate_apps("lab"):

            class Order(models.Model):
                states = machine(edges)

                class Meta:
                    app_label = "lab"

            return [f"{problem.id} {problem.msg}" for problem in problems(Order)]

    def test_an_unreachable_state(self):
        assert self.messages(A=["B"], C=["B"]) == [
            "statemachine_fields.W001 No moves lead from 'A' to 'C' in 'states'."
        ]

    def test_a_trap_state(self):
        assert self.messages(A=["B", "END"], B=["C"], C=["B"]) == [
            "statemachine_fields.W002 Rows never get out of 'B', 'C' in 'states', which have moves."
        ]

    def test_states_that_differ_only_in_case(self):
        assert self.messages(A=["paid", "PAID"])[0] == (
            "statemachine_fields.W003 The states 'paid', 'PAID' of 'states' differ only in case."
        )

    def test_states_with_the_same_label(self):
        assert self.messages(A=["paid", "PAID"])[1] == (
            "statemachine_fields.W004 The states 'paid', 'PAID' of 'states' have the same label."
        )

    def test_each_has_a_hint(self):
        with isolate_apps("lab"):

            class Order(models.Model):
                states = machine({"A": ["A"], "c": ["C"]})

                class Meta:
                    app_label = "lab"

            found = problems(Order)
        assert len(found) == 4
        assert all(problem.hint and problem.obj is Order for problem in found)


class TestVanishedMachines:
    """Two bases that give their machines the same name: the model can have one of them only."""

    def bases(self) -> tuple[type[models.Model], type[models.Model]]:
        class Paid(models.Model):
            states = machine()

            class Meta:
                abstract = True

        class Sent(models.Model):
            states = machine(field="phase")

            class Meta:
                abstract = True

        return Paid, Sent

    @isolate_apps("lab")
    def test_is_told_with_the_ways_out(self):
        paid, sent = self.bases()
        order: Any = type("Order", (paid, sent), {"__module__": "lab.models"})
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

    @isolate_apps("lab")
    def test_both_under_names_of_their_own_are_in_order(self):
        paid, _sent = self.bases()

        class Shipped(models.Model):
            flow = machine(field="phase")

            class Meta:
                abstract = True

        order: Any = type("Order", (paid, Shipped), {"__module__": "lab.models"})
        assert not list(our_checks.vanished_machines(order))
        assert {order.states._meta.field.name, order.flow._meta.field.name} == {"status", "phase"}

    @isolate_apps("lab")
    def test_one_that_is_left_out_on_purpose_is_in_order(self):
        paid, sent = self.bases()
        without = dict.fromkeys(("phase", "phase_sequence", "phase_changed_at"))
        order = type("Order", (paid, sent), {"__module__": "lab.models", **without})
        assert not list(our_checks.vanished_machines(order))

    @isolate_apps("lab")
    def test_a_copy_of_the_columns_in_a_history_table_is_in_order(self):
        class Order(models.Model):
            states = machine()

            class Meta:
                app_label = "lab"

        copied = {field.name: copy.copy(field) for field in Order._meta.local_fields if field.name != "id"}
        history: Any = type("HistoricalOrder", (models.Model,), {"__module__": "lab.models", **copied})
        assert history._meta.get_field("status").bound is None
        assert not list(our_checks.vanished_machines(history))

    @isolate_apps("lab")
    def test_one_that_the_model_hides(self):
        paid, _sent = self.bases()
        order = type("Order", (paid,), {"__module__": "lab.models", "states": None})
        (error,) = our_checks.vanished_machines(order)
        assert error.id == "statemachine_fields.E006"
