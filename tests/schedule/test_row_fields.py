"""Fields of the model's own by which rows are claimed: what they must be, and which indexes come with them."""

from __future__ import annotations

import pytest
from django.core import checks
from django.db import models
from django.test.utils import isolate_apps

from lab.models import Dispatch, Sorted, Urgent, Wish
from statemachine_fields import State, StateMachine
from statemachine_fields.checks import check_bound


def machine(*states, **options):
    states = states or (State("NEW", retry_after=60), State("DONE"))
    return StateMachine(states=[*states], initial="NEW", transitions={"NEW": ["DONE"]}, **options)


def declare(field=None, bases=(models.Model,), **options):
    """Declare a model that has a field called `own`, after its machine."""
    body = {"__module__": __name__, "states": machine(**options), "Meta": type("Meta", (), {"app_label": "lab"})}
    return type("Declared", bases, body | ({} if field is None else {"own": field}))


def indexes(model):
    return {tuple(index.fields): index for index in model._meta.indexes}


class TestDeclaration:
    @pytest.mark.parametrize("option", ["queue_field", "priority_field"])
    @pytest.mark.parametrize("name", ["", "two words", 5, "a__b.c"])
    def test_what_is_no_name_is_refused(self, option, name):
        with pytest.raises(ValueError, match=f"{option} must be the name of a field"):
            machine(**{option: name})

    @pytest.mark.parametrize("name", ["status", "status_next_at"])
    def test_a_column_of_the_machine_is_refused(self, name):
        with pytest.raises(ValueError, match="is a column of the machine"):
            machine(queue_field=name)

    def test_a_priority_of_a_state_beside_that_of_rows_is_refused(self):
        with pytest.raises(ValueError, match="the priority of 'NEW' would mean nothing"):
            machine(State("NEW", priority=3, retry_after=60), State("DONE"), priority_field="own")

    @isolate_apps("lab")
    def test_an_unknown_field_is_refused_with_a_guess(self):
        with pytest.raises(ValueError, match="queue_field='owm' is no field of the model. Did you mean 'own'"):
            declare(models.CharField(max_length=5), queue_field="owm")

    @isolate_apps("lab")
    @pytest.mark.parametrize(
        ("option", "field"),
        [
            ("queue_field", models.IntegerField()),
            ("queue_field", models.ForeignKey("lab.Dispatch", models.CASCADE)),
            ("priority_field", models.CharField(max_length=5)),
            ("priority_field", models.BooleanField()),
            ("priority_field", models.FloatField()),
        ],
    )
    def test_a_field_of_another_kind_is_refused(self, option, field):
        with pytest.raises(ValueError, match=f"{option}='own' must be an? "):
            declare(field, **{option: "own"})

    @isolate_apps("lab")
    def test_a_field_in_the_table_of_a_parent_is_refused(self):
        class Parent(models.Model):
            own = models.IntegerField()

            class Meta:
                app_label = "lab"

        with pytest.raises(ValueError, match="is in the table of lab.Parent"):
            declare(bases=(Parent,), priority_field="own")

    @isolate_apps("lab")
    def test_a_machine_that_is_not_timed_is_told_of_by_a_check(self):
        model = declare(models.IntegerField(), priority_field="own")
        assert not [each for each in check_bound(model.states._meta) if each.id == "statemachine_fields.E111"]
        model = declare_untimed()
        (found,) = [each for each in check_bound(model.states._meta) if each.id == "statemachine_fields.E111"]
        assert isinstance(found, checks.Error)
        assert "priority_field" in found.msg
        assert "remove priority_field" in found.hint


def declare_untimed():
    class Untimed(models.Model):
        own = models.IntegerField()
        states = StateMachine(
            states=[("NEW", "New"), ("DONE", "Done")],
            initial="NEW",
            transitions={"NEW": ["DONE"]},
            priority_field="own",
        )

        class Meta:
            app_label = "lab"

    return Untimed


class TestIndexes:
    def test_one_for_each_way_to_serve_them_beside_those_of_every_timed_machine(self):
        assert {*indexes(Dispatch)} == {
            ("status", "status_next_at"),
            ("status_crashes", "status_next_at"),
            ("status", "-priority", "status_next_at"),
            ("status", "queue", "-priority", "status_next_at"),
        }
        assert ("status", "-priority", "status_next_at") in indexes(Urgent)
        assert ("status", "queue", "status_next_at") in indexes(Sorted)
        assert len(indexes(Urgent)) == len(indexes(Sorted)) == 3

    def test_they_have_only_rows_that_wait(self):
        own = indexes(Dispatch)["status", "queue", "-priority", "status_next_at"]
        assert own.condition == models.Q(status_next_at__isnull=False)

    def test_fields_that_may_be_null_are_indexed_as_what_that_counts_as(self):
        own = [index for index in Wish._meta.indexes if index.expressions]
        assert len(own) == 2
        assert "Coalesce" in repr(own[1].expressions)

    @isolate_apps("lab")
    def test_fields_may_be_declared_after_the_machine(self):
        model = declare(models.IntegerField(), priority_field="own")
        assert ("status", "-own", "status_next_at") in indexes(model)
        assert all(index.name for index in model._meta.indexes)
