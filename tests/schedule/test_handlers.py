"""Which method serves a state of a class, without a database: marks, inheritance, and every kind of wrong declaration."""

from __future__ import annotations

import functools

import pytest
from django.db import models
from django.test.utils import isolate_apps

from lab.models import ByHand, ByOtherWorker, ByWorker, Chore, Payment, Ping
from statemachine_fields import State, StateMachine, handler
from statemachine_fields.schedule.handlers import Handler
from statemachine_fields.worker import HandlerContext


class Choices(models.TextChoices):
    A = "A", "Aa"
    B = "B", "Bb"


def machine(*, timed: bool = False, **options) -> StateMachine:
    first = State("A", retry_after=60) if timed else State("A")
    return StateMachine([first, State("B"), State("C")], "A", {"A": ["B", "C"], "B": ["C"]}, **options)


def handlers(bound) -> dict[str, Handler]:
    return {state: clock.handler for state, clock in bound.schedules.items() if clock.handler is not None}


def methods(bound) -> dict[str, str]:
    return {state: its.name for state, its in handlers(bound).items()}


@pytest.fixture(autouse=True)
def _isolated():
    with isolate_apps("lab"):
        yield


class Meta:
    app_label = "lab"


class TestMarks:
    def test_a_method_serves_its_state(self):
        assert methods(Chore.states._meta) == {"NEW": "start", "DOING": "finish"}
        assert methods(ByWorker.states._meta) == {"FIRST": "go_on"}

    def test_the_method_stays_a_method(self):
        assert ByWorker().go_on() == "LAST"

    def test_a_method_may_serve_several_states(self):
        class Order(models.Model):
            Meta = Meta
            states = machine()

            @states.handler("A", "B")
            def go_on(self):
                return "C"

        assert methods(Order.states._meta) == {"A": "go_on", "B": "go_on"}

    def test_decorators_may_be_stacked(self):
        class Order(models.Model):
            Meta = Meta
            states = machine()

            @states.handler("A", atomic=True)
            @states.handler("B")
            def go_on(self):
                return "C"

        assert {state: its.atomic for state, its in handlers(Order.states._meta).items()} == {"A": True, "B": False}

    def test_enum_members_stand_for_their_values(self):
        class Order(models.Model):
            Meta = Meta
            states = StateMachine(Choices, Choices.A, {Choices.A: [Choices.B]})

            @states.handler(Choices.A)
            def go_on(self):
                return Choices.B

        assert [type(state) for state in handlers(Order.states._meta)] == [str]

    def test_how_to_call_it_is_seen(self):
        assert handlers(Payment.states._meta)["OPEN"] == Handler("book", atomic=True)
        assert handlers(Ping.states._meta)["SENT"] == Handler("await_answer", is_async=True, wants_context=True)

    def test_a_handler_makes_the_machine_timed(self):
        class Plain(models.Model):
            Meta = Meta
            states = machine()

        class Timed(models.Model):
            Meta = Meta
            states = machine()

            @states.handler("A")
            def go_on(self):
                return "B"

        assert (Plain.states._meta.is_timed, Timed.states._meta.is_timed) == (False, True)
        assert Plain.states._meta.schedules == {}

    def test_decorated_methods_are_handlers_in_either_order(self):
        def loud(method):
            @functools.wraps(method)
            def wrapper(self, *args):
                return method(self, *args)

            return wrapper

        class Order(models.Model):
            Meta = Meta
            states = machine()

            @states.handler("A")
            @loud
            def outside(self, ctx):
                return "B"

            @loud
            @states.handler("B")
            def inside(self):
                return "C"

        assert methods(Order.states._meta) == {"A": "outside", "B": "inside"}
        assert [its.wants_context for its in handlers(Order.states._meta).values()] == [True, False]


class TestArguments:
    def described(self, method) -> Handler:
        class Order(models.Model):
            Meta = Meta
            states = machine()
            go_on = handler("A")(method)

        return handlers(Order.states._meta)["A"]

    @pytest.mark.parametrize(
        ("method", "wants"),
        [
            (lambda self: None, False),
            (lambda self, ctx: None, True),
            (lambda self, anything, /: None, True),
            (lambda self, *args: None, True),
            (lambda self, ctx=None: None, True),
            (lambda self, context=None: None, True),
            (lambda self, force=False: None, False),
            (lambda self, ctx, force=False: None, True),
            (lambda self, *, ctx=None: None, False),
            (lambda self, **kwargs: None, False),
        ],
    )
    def test_the_context_is_for_those_who_take_it(self, method, wants):
        assert self.described(method).wants_context is wants

    @pytest.mark.parametrize(
        "method",
        [lambda: None, lambda self, ctx, more: None, lambda self, *, ctx: None, lambda self, ctx, *, more: None],
    )
    def test_others_are_refused(self, method):
        with pytest.raises(
            TypeError, match=r"^lab.Order.go_on\(\) has the wrong arguments. .*: def go_on\(self, ctx\)"
        ):
            self.described(method)

    def test_annotations_play_no_part(self):
        def go_on(self, ctx: HandlerContext) -> str:
            return "B"

        assert self.described(go_on).wants_context


class TestInheritance:
    @pytest.fixture
    def base(self):
        class Base(models.Model):
            states = machine()

            class Meta:
                abstract = True
                app_label = "lab"

            @states.handler("A", atomic=True)
            def go_on(self):
                return "B"

        return Base

    def test_children_of_an_abstract_base_have_its_handlers(self, base):
        class One(base):
            pass

        class Two(base):
            pass

        assert methods(One.states._meta) == methods(Two.states._meta) == {"A": "go_on"}

    def test_a_method_is_overridden_by_its_name(self, base):
        class One(base):
            def go_on(self, ctx):
                return "C"

        assert handlers(One.states._meta)["A"] == Handler("go_on", atomic=True, wants_context=True)
        assert One().go_on(None) == "C"

    def test_a_state_is_given_to_another_method(self, base):
        class One(base):
            @handler("A")
            def other(self):
                return "C"

        assert handlers(One.states._meta)["A"] == Handler("other")

    def test_the_state_of_an_overridden_method_can_be_named_again(self, base):
        class One(base):
            @handler("A", atomic=False)
            def go_on(self):
                return "C"

        assert handlers(One.states._meta)["A"] == Handler("go_on", atomic=False)

    def test_a_handler_is_dropped_with_none(self, base):
        class One(base):
            go_on = None

        assert not One.states._meta.is_timed
        assert [field.name for field in One._meta.local_fields][-1] == "status_changed_at"

    def test_an_override_must_be_a_method(self, base):
        with pytest.raises(TypeError, match=r"^lab.One.go_on\(\) overrides a handler, so it must be a method, got"):

            class One(base):
                go_on = property(lambda self: "C")

    def test_an_atomic_handler_cannot_be_overridden_with_an_async_one(self, base):
        with pytest.raises(TypeError, match="overrides an atomic handler with an async one"):

            class One(base):
                async def go_on(self):
                    return "C"

    def test_a_child_may_be_the_first_to_have_one(self):
        assert not ByHand.states._meta.is_timed
        assert ByWorker.states._meta.is_timed
        assert ByWorker.states._meta.machine is ByOtherWorker.states._meta.machine
        assert ByWorker.states._meta.schedules["FIRST"].handler == ByOtherWorker.states._meta.schedules["FIRST"].handler

    def test_mixins_may_bring_one(self, base):
        class Going:
            @handler("B")
            def finish(self):
                return "C"

        class One(Going, base):
            pass

        assert methods(One.states._meta) == {"A": "go_on", "B": "finish"}

    def test_the_most_derived_wins_in_a_diamond(self, base):
        class Left(base):
            class Meta(base.Meta):
                abstract = True

            @handler("A")
            def left(self):
                return "B"

        class Right(base):
            class Meta(base.Meta):
                abstract = True

            @handler("A")
            def right(self):
                return "B"

        class Both(Left, Right):
            pass

        assert methods(Both.states._meta) == {"A": "left"}

    def test_proxies_and_multi_table_children_share(self, base):
        class Parent(base):
            pass

        class Proxy(Parent):
            class Meta(base.Meta):
                abstract = False
                proxy = True

        class Child(Parent):
            pass

        assert Proxy.states is Child.states is Parent.states

    def test_a_machine_of_a_childs_own_is_none_of_the_parents_business(self):
        class Going:
            @handler("A")
            def go_on(self):
                return "B"

        class Parent(Going, models.Model):
            Meta = Meta
            states = machine()

        class Child(Parent):
            Meta = Meta
            own = machine(field="own_status")

            @handler("B", machine="own")
            def finish(self):
                return "C"

        assert methods(Parent.states._meta) == {"A": "go_on"}
        assert methods(Child.own._meta) == {"B": "finish"}

    def test_a_machine_that_is_declared_anew_starts_without_handlers(self, base):
        class One(base):
            states = machine(timed=True)

        assert methods(One.states._meta) == {}


class TestSeveralMachines:
    def test_the_one_that_has_the_state_is_meant(self):
        class Order(models.Model):
            Meta = Meta
            states = machine()
            payment = StateMachine([("OPEN", ""), ("PAID", "")], "OPEN", {"OPEN": ["PAID"]}, field="payment_status")

            @handler("OPEN")
            def pay(self):
                return "PAID"

        assert (Order.states._meta.is_timed, Order.payment._meta.is_timed) == (False, True)

    @pytest.mark.parametrize("named", ["states", "other"])
    def test_the_one_that_is_named_is_meant(self, named):
        class Order(models.Model):
            Meta = Meta
            states = machine()
            other = machine(field="other_status")

            @handler("A", machine=named)
            def go_on(self):
                return "B"

        timed = {name: getattr(Order, name)._meta.is_timed for name in ("states", "other")}
        assert timed == {"states": named == "states", "other": named == "other"}

    def test_each_may_have_its_own(self):
        class Order(models.Model):
            Meta = Meta
            states = machine()
            other = machine(field="other_status")

            @states.handler("A")
            def one(self):
                return "B"

            @other.handler("A")
            def two(self):
                return "B"

        assert (methods(Order.states._meta), methods(Order.other._meta)) == ({"A": "one"}, {"A": "two"})

    def test_which_one_is_meant_must_be_clear(self):
        with pytest.raises(
            ValueError, match=r"handles 'A', which states and other declare. Say which: @handler\('A', mac"
        ):

            class Order(models.Model):
                Meta = Meta
                states = machine()
                other = machine(field="other_status")

                @handler("A")
                def go_on(self):
                    return "B"

    def test_one_that_is_not_there_cannot_be_named(self):
        with pytest.raises(ValueError, match=r"^lab.Order.go_on\(\): there is no machine 'flow' on the model.$"):

            class Order(models.Model):
                Meta = Meta
                states = machine()

                @handler("A", machine="flow")
                def go_on(self):
                    return "B"

    def test_a_state_of_another_than_the_named_one_is_refused(self):
        with pytest.raises(ValueError, match="handles 'OPEN', which no machine declares"):

            class Order(models.Model):
                Meta = Meta
                states = machine()
                payment = StateMachine([("OPEN", ""), ("PAID", "")], "OPEN", {}, field="payment_status")

                @handler("OPEN", machine="states")
                def go_on(self):
                    return "B"


class TestWrongDeclarations:
    def test_state_that_is_not_declared(self):
        with pytest.raises(ValueError, match=r"^Handled state 'D' not in states. Declared: A, B, C.$"):
            machine().handler("D")

    @pytest.mark.parametrize("timed", [False, True])
    def test_state_that_is_not_declared_by_what_is_inherited(self, timed):
        class Base(models.Model):
            states = StateMachine(
                [State("FIRST", retry_after=60 if timed else None), State("LAST")], "FIRST", {"FIRST": ["LAST"]}
            )

            class Meta:
                abstract = True
                app_label = "lab"

        with pytest.raises(ValueError, match=r"handles 'FRIST', which no machine declares. Did you mean 'FIRST'\?"):

            class One(Base):
                @handler("FRIST")
                def go_on(self):
                    return "LAST"

    @pytest.mark.parametrize("states", [(), (5,), (["A", "B"],), (None,)])
    def test_states_are_named_one_by_one(self, states):
        for decorator in (handler, machine().handler):
            with pytest.raises(TypeError, match="^Name the states that the method handles"):
                decorator(*states)

    def test_the_decorator_needs_its_parentheses(self):
        with pytest.raises(TypeError, match="^Name the states that the method handles"):

            @handler
            def go_on(self):
                return None

    @pytest.mark.parametrize("thing", [property(lambda self: None), staticmethod(print), classmethod(print), 5, print])
    def test_only_methods_can_be_handlers(self, thing):
        with pytest.raises(TypeError, match="^A handler is a method of the model, got .* above all others.$"):
            handler("A")(thing)

    def test_async_and_atomic_do_not_go_together(self):
        async def go_on(self):
            return None

        with pytest.raises(TypeError, match=r"^The handler go_on\(\) is async and atomic. Django has no"):
            handler("A", atomic=True)(go_on)

    def test_two_handlers_for_a_state(self):
        with pytest.raises(
            ValueError, match=r"^lab.Order: one\(\) and two\(\) both handle 'A'. A state has one handler"
        ):

            class Order(models.Model):
                Meta = Meta
                states = machine()

                @states.handler("A")
                def one(self):
                    return "B"

                @handler("A")
                def two(self):
                    return "B"
