"""Which method serves a state of a class, without a database: marks, inheritance, and every kind of wrong declaration."""

from __future__ import annotations

import functools

import pytest
from django.db import models

from lab.models import ByHand, ByOtherWorker, ByWorker, Chore, Payment, Ping
from statemachine_fields import State, StateMachine, handler
from statemachine_fields.schedule.handlers import Handler
from statemachine_fields.worker import HandlerContext
from tests.declared import lab_model

pytestmark = pytest.mark.usefixtures("isolated")

ABSTRACT = {"abstract": True}


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


def to(state):
    """Return a method that leads there."""
    return lambda self: state


class TestMarks:
    def test_a_method_serves_its_state(self):
        assert methods(Chore.states._meta) == {"NEW": "start", "DOING": "finish"}
        assert methods(ByWorker.states._meta) == {"FIRST": "go_on"}

    def test_the_method_stays_a_method(self):
        assert ByWorker().go_on() == "LAST"

    def test_a_method_may_serve_several_states(self):
        states = machine()
        order = lab_model(states=states, go_on=states.handler("A", "B")(to("C")))
        assert methods(order.states._meta) == {"A": "go_on", "B": "go_on"}

    def test_decorators_may_be_stacked(self):
        states = machine()
        order = lab_model(states=states, go_on=states.handler("A", atomic=True)(states.handler("B")(to("C"))))
        assert {state: its.atomic for state, its in handlers(order.states._meta).items()} == {"A": True, "B": False}

    def test_enum_members_stand_for_their_values(self):
        states = StateMachine(Choices, Choices.A, {Choices.A: [Choices.B]})
        order = lab_model(states=states, go_on=states.handler(Choices.A)(to(Choices.B)))
        assert [type(state) for state in handlers(order.states._meta)] == [str]

    def test_how_to_call_it_is_seen(self):
        assert handlers(Payment.states._meta)["OPEN"] == Handler("book", atomic=True)
        assert handlers(Ping.states._meta)["SENT"] == Handler("await_answer", is_async=True, wants_context=True)

    def test_a_handler_makes_the_machine_timed(self):
        states = machine()
        plain = lab_model(name="Plain", states=machine())
        timed = lab_model(name="Timed", states=states, go_on=states.handler("A")(to("B")))
        assert (plain.states._meta.is_timed, timed.states._meta.is_timed) == (False, True)
        assert plain.states._meta.schedules == {}

    def test_decorated_methods_are_handlers_in_either_order(self):
        def loud(method):
            @functools.wraps(method)
            def wrapper(self, *args):
                return method(self, *args)

            return wrapper

        states = machine()
        outside = states.handler("A")(loud(lambda self, ctx: "B"))
        order = lab_model(states=states, outside=outside, inside=loud(states.handler("B")(to("C"))))
        assert methods(order.states._meta) == {"A": "outside", "B": "inside"}
        assert [its.wants_context for its in handlers(order.states._meta).values()] == [True, False]


class TestArguments:
    def described(self, method) -> Handler:
        return handlers(lab_model(states=machine(), go_on=handler("A")(method)).states._meta)["A"]

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
        states = machine()
        return lab_model(name="Base", meta=ABSTRACT, states=states, go_on=states.handler("A", atomic=True)(to("B")))

    def test_children_of_an_abstract_base_have_its_handlers(self, base):
        one, two = lab_model(base, name="One"), lab_model(base, name="Two")
        assert methods(one.states._meta) == methods(two.states._meta) == {"A": "go_on"}

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ({"go_on": lambda self, ctx: "C"}, Handler("go_on", atomic=True, wants_context=True)),
            ({"other": handler("A")(to("C"))}, Handler("other")),
            ({"go_on": handler("A", atomic=False)(to("C"))}, Handler("go_on", atomic=False)),
        ],
        ids=["overridden by its name", "given to another method", "overridden and named again"],
    )
    def test_the_handler_of_a_state_is_that_of_the_child(self, body, expected, base):
        one = lab_model(base, name="One", **body)
        assert handlers(one.states._meta)["A"] == expected
        assert getattr(one(), expected.name)(*[None] * expected.wants_context) == "C"

    def test_a_handler_is_dropped_with_none(self, base):
        one = lab_model(base, name="One", go_on=None)
        assert not one.states._meta.is_timed
        assert [field.name for field in one._meta.local_fields][-1] == "status_changed_at"

    def test_an_override_must_be_a_method(self, base):
        with pytest.raises(TypeError, match=r"^lab.One.go_on\(\) overrides a handler, so it must be a method, got"):
            lab_model(base, name="One", go_on=property(to("C")))

    def test_an_atomic_handler_cannot_be_overridden_with_an_async_one(self, base):
        async def go_on(self):
            return "C"

        with pytest.raises(TypeError, match="overrides an atomic handler with an async one"):
            lab_model(base, name="One", go_on=go_on)

    def test_a_child_may_be_the_first_to_have_one(self):
        assert not ByHand.states._meta.is_timed
        assert ByWorker.states._meta.is_timed
        assert ByWorker.states._meta.machine is ByOtherWorker.states._meta.machine
        assert ByWorker.states._meta.schedules["FIRST"].handler == ByOtherWorker.states._meta.schedules["FIRST"].handler

    def test_mixins_may_bring_one(self, base):
        going = type("Going", (), {"finish": handler("B")(to("C"))})
        assert methods(lab_model(going, base).states._meta) == {"A": "go_on", "B": "finish"}

    def test_the_most_derived_wins_in_a_diamond(self, base):
        left = lab_model(base, name="Left", meta=ABSTRACT, left=handler("A")(to("B")))
        right = lab_model(base, name="Right", meta=ABSTRACT, right=handler("A")(to("B")))
        assert methods(lab_model(left, right).states._meta) == {"A": "left"}

    def test_proxies_and_multi_table_children_share(self, base):
        parent = lab_model(base, name="Parent")
        proxy, child = lab_model(parent, name="Proxy", meta={"proxy": True}), lab_model(parent, name="Child")
        assert proxy.states is child.states is parent.states

    def test_a_machine_of_a_childs_own_is_none_of_the_parents_business(self):
        going = type("Going", (), {"go_on": handler("A")(to("B"))})
        parent = lab_model(going, models.Model, name="Parent", states=machine())
        finish = handler("B", machine="own")(to("C"))
        child = lab_model(parent, name="Child", own=machine(field="own_status"), finish=finish)
        assert methods(parent.states._meta) == {"A": "go_on"}
        assert methods(child.own._meta) == {"B": "finish"}

    def test_a_machine_that_is_declared_anew_starts_without_handlers(self, base):
        assert methods(lab_model(base, states=machine(timed=True)).states._meta) == {}


class TestSeveralMachines:
    @pytest.fixture
    def two(self):
        return {"states": machine(), "other": machine(field="other_status")}

    @pytest.fixture
    def payment(self):
        return StateMachine([("OPEN", ""), ("PAID", "")], "OPEN", {"OPEN": ["PAID"]}, field="payment_status")

    def test_the_one_that_has_the_state_is_meant(self, payment):
        order = lab_model(states=machine(), payment=payment, pay=handler("OPEN")(to("PAID")))
        assert (order.states._meta.is_timed, order.payment._meta.is_timed) == (False, True)

    @pytest.mark.parametrize("named", ["states", "other"])
    def test_the_one_that_is_named_is_meant(self, named, two):
        order = lab_model(**two, go_on=handler("A", machine=named)(to("B")))
        timed = {name: getattr(order, name)._meta.is_timed for name in ("states", "other")}
        assert timed == {"states": named == "states", "other": named == "other"}

    def test_each_may_have_its_own(self, two):
        both = {"one": two["states"].handler("A")(to("B")), "two": two["other"].handler("A")(to("B"))}
        order = lab_model(**two, **both)
        assert (methods(order.states._meta), methods(order.other._meta)) == ({"A": "one"}, {"A": "two"})

    def test_which_one_is_meant_must_be_clear(self, two):
        words = r"handles 'A', which states and other declare. Say which: @handler\('A', mac"
        with pytest.raises(ValueError, match=words):
            lab_model(**two, go_on=handler("A")(to("B")))

    def test_one_that_is_not_there_cannot_be_named(self):
        with pytest.raises(ValueError, match=r"^lab.Order.go_on\(\): there is no machine 'flow' on the model.$"):
            lab_model(states=machine(), go_on=handler("A", machine="flow")(to("B")))

    def test_a_state_of_another_than_the_named_one_is_refused(self, payment):
        with pytest.raises(ValueError, match="handles 'OPEN', which no machine declares"):
            lab_model(states=machine(), payment=payment, go_on=handler("OPEN", machine="states")(to("B")))


class TestWrongDeclarations:
    def test_state_that_is_not_declared(self):
        with pytest.raises(ValueError, match=r"^Handled state 'D' not in states. Declared: A, B, C.$"):
            machine().handler("D")

    @pytest.mark.parametrize("timed", [False, True])
    def test_state_that_is_not_declared_by_what_is_inherited(self, timed):
        first = State("FIRST", retry_after=60 if timed else None)
        states = StateMachine([first, State("LAST")], "FIRST", {"FIRST": ["LAST"]})
        base = lab_model(name="Base", meta=ABSTRACT, states=states)
        with pytest.raises(ValueError, match=r"handles 'FRIST', which no machine declares. Did you mean 'FIRST'\?"):
            lab_model(base, go_on=handler("FRIST")(to("LAST")))

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
        states = machine()
        both = {"one": states.handler("A")(to("B")), "two": handler("A")(to("B"))}
        words = r"^lab.Order: one\(\) and two\(\) both handle 'A'. A state has one handler"
        with pytest.raises(ValueError, match=words):
            lab_model(states=states, **both)
