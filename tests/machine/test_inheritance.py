"""One bound machine for each concrete class: abstract bases, multi-table children, proxies, and what is refused."""

from __future__ import annotations

import pytest
from django.core.exceptions import FieldError
from django.db import models
from django.test.utils import isolate_apps

from lab.models import Bolt, Car, Door, Gate, Lamp, RacingCar, Vehicle
from lab.models.inheritance import Switched
from statemachine_fields import StateMachine
from tests.declared import lab_model

pytestmark = pytest.mark.django_db

TWO = {"states": [("A", "A"), ("B", "B")], "initial": "A", "transitions": {"A": ["B"]}}


class TestAbstractBase:
    def test_every_subclass_has_its_own_machine_and_table(self):
        assert Lamp.states is not Bolt.states
        assert Lamp.states.transition_model._meta.db_table == "lab_lampstatetransition"
        assert Bolt.states.transition_model._meta.db_table == "lab_boltstatetransition"

    def test_rows_of_siblings_do_not_meet(self):
        lamp, bolt = Lamp.objects.create(), Bolt.objects.create()
        lamp.states.transition_to("ON")
        assert (lamp.states.history.count(), bolt.states.history.count()) == (1, 0)
        assert Bolt.states.transition_model.objects.count() == 0

    def test_the_audit_model_lands_beside_the_subclass(self):
        from lab import models as lab_models
        from lab.models import inheritance

        assert lab_models.BoltStateTransition is inheritance.BoltStateTransition is Bolt.states.transition_model

    def test_a_subclass_may_replace_the_machine(self):
        door = Door.objects.create()
        assert door.status == "SHUT"
        door.states.transition_to("OPEN")
        assert Door.states.states == [("SHUT", "Shut"), ("OPEN", "Open")]
        assert Lamp.states.initial == "OFF"

    def test_a_subclass_may_replace_it_by_one_on_another_column(self):
        assert [field.name for field in Gate._meta.fields] == [
            "id",
            "name",
            "position",
            "position_sequence",
            "position_changed_at",
        ]
        gate = Gate.objects.create()
        gate.states.transition_to("UP")
        assert gate.position == "UP"

    def test_the_base_itself_has_no_machine_to_ask(self):
        with pytest.raises(AttributeError, match="Switched has no bound state machine: it is abstract"):
            Switched.states  # noqa: B018

    def test_every_subclass_has_its_index_whatever_its_meta_says(self):
        for model in (Lamp, Bolt, Door):
            assert ["status"] in [index.fields for index in model._meta.indexes], model
        assert Switched._meta.indexes[0].fields == ["name", "status"]

    @isolate_apps("lab")
    def test_one_declaration_may_serve_several_models(self):
        shared = StateMachine(**TWO)

        one, two = lab_model(name="One", states=shared), lab_model(name="Two", flow=shared)
        assert (str(one.states), str(two.flow)) == ("lab.One.states", "lab.Two.flow")
        assert one.states.transition_model is not two.flow.transition_model


class TestMultiTableChild:
    def test_shares_the_parents_machine(self):
        assert Car.states is Vehicle.states
        assert Car.states.model is Vehicle
        assert Car.states.transition_model._meta.get_field("instance").related_model is Vehicle

    def test_may_have_one_of_its_own_besides(self):
        car = Car.objects.create()
        car.fuel.transition_to("EMPTY")
        car.states.transition_to("MOVING")
        assert (car.fuel_state, car.status) == ("EMPTY", "MOVING")
        assert Car.fuel.transition_model._meta.get_field("instance").related_model is Car
        assert not hasattr(Vehicle, "fuel")

    def test_may_not_redeclare_the_parents_column(self):
        with pytest.raises(FieldError) as caught, isolate_apps("lab"):
            lab_model(Vehicle, name="Truck", cargo=StateMachine(**TWO))
        assert str(caught.value).endswith(
            "Truck.cargo: the column 'status' comes from lab.Vehicle, whose table it is in, and is shared. "
            "Use the inherited machine, or declare another with another name and another `field=`."
        )

    def test_may_not_hide_the_parents_machine(self):
        with pytest.raises(FieldError, match=r"the machine 'states' comes from lab\.Vehicle"), isolate_apps("lab"):
            lab_model(Vehicle, name="Bus", states=StateMachine(**TWO, field="route"))


class TestProxy:
    def test_shares_everything(self):
        assert RacingCar.states is Vehicle.states
        assert RacingCar.fuel is Car.fuel

    def test_moves_the_same_row(self):
        Car.objects.create()
        racing = RacingCar.objects.get()
        record = racing.states.transition_to("MOVING")
        assert record.instance == racing
        assert Car.objects.get().states.history.get() == record

    def test_cannot_declare_one(self):
        with pytest.raises(FieldError, match="a proxy model has no table to add columns to"), isolate_apps("lab"):
            lab_model(Lamp, name="Fast", meta={"proxy": True}, speeds=StateMachine(**TWO, field="speed"))


class TestRefusals:
    def test_a_machine_on_a_plain_mixin(self):
        """Python 3.11 wraps what `__set_name__` raises in a RuntimeError; later versions do not."""
        with pytest.raises((TypeError, RuntimeError)) as caught:

            class Mixin:
                states = StateMachine(**TWO)

        error = caught.value if isinstance(caught.value, TypeError) else caught.value.__cause__
        assert isinstance(error, TypeError)
        assert "a StateMachine belongs on a model or an abstract model; on a plain mixin it could add no column" in str(
            error
        )

    @isolate_apps("lab")
    def test_a_composite_primary_key(self):
        with pytest.raises(TypeError, match="composite primary key, and Django has no foreign key to such a model"):

            class Seat(models.Model):
                pk = models.CompositePrimaryKey("row", "number")
                row = models.IntegerField()
                number = models.IntegerField()
                states = StateMachine(**TWO)

                class Meta:
                    app_label = "lab"

    @isolate_apps("lab")
    def test_a_transition_base_that_is_a_table(self):
        with pytest.raises(ValueError, match="transition_base must be an abstract model, got"):
            StateMachine(**TWO, transition_base=lab_model())
