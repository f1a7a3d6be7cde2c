"""Migrations: plain Django fields only, nothing to do after the first run, and rows that were there before."""

from __future__ import annotations

import re

import pytest
from django.db import connection, models
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.state import ModelState, ProjectState
from django.test.utils import isolate_apps

from tests.declared import lab_model
from tests.scratch import ScratchProject

BEFORE = """
    from django.db import models

    class Order(models.Model):
        customer = models.CharField(max_length=50)
"""
AFTER = """
    from django.db import models
    from statemachine_fields import StateMachine

    class Order(models.Model):
        customer = models.CharField(max_length=50)
        states = StateMachine(
            states=[("PENDING", "Pending"), ("PAID", "Paid")],
            initial="PENDING",
            transitions={"PENDING": ["PAID"]},
        )
"""
RELABELLED = """
    from django.db import models
    from django.utils.translation import gettext_lazy as _
    from statemachine_fields import State, StateMachine

    class Order(models.Model):
        customer = models.CharField(max_length=50)
        states = StateMachine(
            states=[State("LOST", _("Lost")), ("PAID", "Paid in full"), ("PENDING", "Waiting for money")],
            initial="PENDING",
            transitions={"PENDING": ["PAID", "LOST"], "PAID": ["PENDING"]},
        )
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A shop with one order, whose model becomes a machine."""
    project = ScratchProject(tmp_path_factory.mktemp("project"))
    project.write("shop/models.py", BEFORE)
    project.write("shop/migrations/__init__.py", "")
    project.manage("makemigrations")
    project.manage("migrate", "-v0")
    project.manage("shell", "-v0", "-c", "from shop.models import Order; Order.objects.create(customer='Ada')")
    project.write("shop/models.py", AFTER)
    project.operations = re.findall(r"[+~-] .*", project.manage("makemigrations", "--name", "machine"))
    project.manage("migrate", "-v0")
    return project


class TestAddingAMachine:
    def test_makes_the_operations_of_the_reference_page_and_those_of_our_columns(self, project):
        operations = [re.sub(r"shop_order_status_\w+", "<name>", operation) for operation in project.operations]
        assert sorted(operations) == [
            "+ Add field instance to orderstatetransition",
            "+ Add field status to order",  # on the page
            "+ Add field status_changed_at to order",
            "+ Add field status_sequence to order",
            "+ Create index <name> on field(s) status of model order",
            "+ Create model OrderStateTransition",  # on the page
            "~ Alter unique_together for orderstatetransition (1 constraint(s))",
        ]

    def test_imports_nothing_of_ours(self, project):
        text = project.read("shop/migrations/*_machine.py")
        assert "statemachine_fields" not in text
        assert "choices" not in text
        assert re.findall(r"^(?:from|import) .*", text, re.MULTILINE) == [
            "import django.core.serializers.json",
            "import django.db.models.deletion",
            "import django.db.models.functions.datetime",
            "from django.db import migrations, models",
        ]

    def test_gives_rows_that_were_there_the_initial_state(self, project):
        code = (
            "from shop.models import Order\no = Order.objects.get()\n"
            "print(o.status, o.status_sequence, o.status_changed_at is not None)\n"
            "print(o.states.transition_to('PAID'), o.states.history.count())\n"
        )
        assert project.manage("shell", "-v0", "-c", code).splitlines()[-2:] == ["PENDING 0 True", "PENDING → PAID 1"]

    def test_is_done_once(self, project):
        assert project.manage("makemigrations", "--check", "--dry-run") == "No changes detected\n"

    def test_can_be_undone(self, project):
        project.manage("migrate", "-v0", "shop", "0001")
        project.manage("migrate", "-v0", "shop")

    def test_new_states_labels_and_their_order_make_no_migration(self, project):
        project.write("shop/models.py", RELABELLED)
        assert project.manage("makemigrations", "--check", "--dry-run") == "No changes detected\n"
        project.write("shop/models.py", AFTER)


def test_a_model_that_moves_into_a_package_makes_no_migration(tmp_path):
    project = ScratchProject(tmp_path)
    project.write("shop/models.py", AFTER)
    project.write("shop/migrations/__init__.py", "")
    project.manage("makemigrations")
    (tmp_path / "shop/models.py").unlink()
    project.write("shop/models/__init__.py", "from shop.models.order import Order")
    project.write("shop/models/order.py", AFTER)
    project.write(
        "shop/admin.py",
        """
        from django.contrib import admin
        from shop.models import OrderStateTransition

        admin.site.register(OrderStateTransition)
        """,
    )
    assert project.manage("makemigrations", "--check", "--dry-run") == "No changes detected\n"
    assert project.manage("check") == "System check identified no issues (0 silenced).\n"


def test_an_app_that_forgot_to_install_ours_is_told(tmp_path):
    project = ScratchProject(tmp_path)
    project.write("shop/models.py", AFTER)
    project.write("settings.py", project.read("settings.py").replace('    "statemachine_fields",\n', ""))
    output = project.manage("check", check=False)
    assert "(statemachine_fields.E001) Models have state machines, but 'statemachine_fields' is not in" in output
    assert "HINT: Add it: the commands, the admin's templates" in output


@pytest.mark.django_db
def test_historical_models_have_the_columns_and_no_machine():
    state = MigrationExecutor(connection).loader.project_state()
    order = state.apps.get_model("shop", "Order")
    audit = state.apps.get_model("shop", "OrderStateTransition")
    row = order.objects.create(customer="Ada", total=1)
    assert row.status == "PENDING"
    assert not hasattr(order, "states")
    row.status = "PAID"
    row.save()
    assert order.objects.get().status == "PAID"
    assert audit._meta.get_field("instance").related_model is order
    assert type(order._meta.get_field("status")).__module__ == "django.db.models.fields"


def test_a_changed_initial_state_is_a_migration_because_the_database_fills_it_in():

    from statemachine_fields import StateMachine

    def state_of(initial: str) -> ProjectState:
        with isolate_apps("lab"):
            order = lab_model(states=StateMachine([("A", "A"), ("B", "B")], initial, {"A": ["B"], "B": ["A"]}))
            state = ProjectState()
            state.add_model(ModelState.from_model(order))
            return state

    changes = MigrationAutodetector(state_of("A"), state_of("B"))._detect_changes()
    assert [operation.describe() for operation in changes["lab"][0].operations] == ["Alter field status on order"]


class TestLiveKeys:
    """What of a machine with `unique_while_live` makes a migration."""

    EDGES = {"A": ["B", "X"], "B": ["X", "Y"]}

    def changes(self, edges=EDGES, **options):
        def state_of(edges, unique_while_live=("number",), states="ABCXYZ"):
            from statemachine_fields import StateMachine

            named = {*edges, *(target for targets in edges.values() for target in targets)}
            with isolate_apps("lab"):
                order = lab_model(
                    number=models.IntegerField(),
                    other=models.IntegerField(),
                    states=StateMachine(
                        [(state, state) for state in states if state in named],
                        "A",
                        edges,
                        unique_while_live=unique_while_live,
                    ),
                )
                state = ProjectState()
                state.add_model(ModelState.from_model(order))
                return state

        changes = MigrationAutodetector(state_of(self.EDGES), state_of(edges, **options))._detect_changes()
        return [type(operation).__name__ for each in changes.get("lab", ()) for operation in each.operations]

    def test_a_new_live_state_does_not(self):
        assert self.changes({**self.EDGES, "A": ["B", "C", "X"], "C": ["X"]}) == []

    def test_another_order_does_not(self):
        assert self.changes(states="ZYXCBA") == []

    def test_a_new_terminal_state_does(self):
        assert self.changes({**self.EDGES, "A": ["B", "X", "Z"]}) == ["RemoveConstraint", "AddConstraint"]

    def test_a_state_that_is_terminal_no_more_does(self):
        assert self.changes({**self.EDGES, "Y": ["X"]}) == ["RemoveConstraint", "AddConstraint"]

    def test_a_terminal_state_that_keeps_the_key_does(self):
        from statemachine_fields import LiveKey

        key = LiveKey("number", also=["Y"])
        assert self.changes(unique_while_live=key) == ["RemoveConstraint", "AddConstraint"]

    def test_other_fields_do(self):
        assert self.changes(unique_while_live=["other"]) == ["RemoveConstraint", "AddConstraint"]

    def test_constraints_that_the_model_has_stay(self):
        from lab.models import Shipment

        assert [each.name for each in Shipment._meta.constraints] == ["lab_note", "lab_shipmen_status_ce21ef_key"]
