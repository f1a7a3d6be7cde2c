"""Guards, permissions, and the reasons they give."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Permission
from django.db import transaction
from django.utils import translation
from django.utils.functional import SimpleLazyObject, cached_property

from lab.models import Document, Memo, Stamped
from statemachine_fields import (
    Blocker,
    InvalidStateTransition,
    StateMachine,
    Transition,
    TransitionBlocked,
    transition_context,
)
from statemachine_fields.checks import check_bound
from tests.declared import lab_model

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada(django_user_model):
    return django_user_model.objects.create_user("ada")


@pytest.fixture
def bob(django_user_model):
    return django_user_model.objects.create_user("bob")


class TestBlockers:
    def test_there_are_none_when_the_row_may_move(self):
        assert Document(words=3).states.blockers("REVIEW") == []

    def test_a_guard_gives_its_reason(self):
        assert Document().states.blockers("REVIEW") == [Blocker("has_text", "There is no text.")]

    def test_a_guard_without_a_reason_is_named(self):
        document = Document(status="REVIEW", words=3, approved=False)
        assert document.states.blockers("PUBLISHED") == [
            Blocker("is_approved", "A condition of this move is not met: is approved.")
        ]

    def test_a_guard_may_give_a_blocker_of_its_own(self):
        (blocker,) = Document(words=9999).states.blockers("WITHDRAWN")
        assert (blocker.code, str(blocker), blocker.params) == ("frozen", "The document is frozen.", {"words": 9999})

    def test_all_reasons_are_given(self):
        document = Document(status="REVIEW", approved=False)
        assert [blocker.code for blocker in document.states.blockers("PUBLISHED")] == ["has_text", "is_approved"]

    def test_the_graph_comes_first(self):
        (blocker,) = Document().states.blockers("PUBLISHED")
        assert (blocker.code, blocker.message) == ("no_transition", "There is no move from Draft to Published.")
        assert [blocker.code for blocker in Document().states.blockers("NONSENSE")] == ["no_transition"]

    def test_guards_of_other_moves_are_not_asked(self):
        assert Document().states.blockers("WITHDRAWN") == []

    def test_a_subclass_overrides_a_guard_like_any_method(self):
        assert Memo().states.blockers("REVIEW") == []

    def test_can_transition_to_is_no_blockers(self):
        assert Document(words=3).states.can_transition_to("REVIEW") is True
        assert Document().states.can_transition_to("REVIEW") is False

    def test_get_valid_transitions_speaks_of_the_graph(self):
        assert Document().states.get_valid_transitions() == ["REVIEW", "WITHDRAWN"]


class TestPermissions:
    def test_count_only_for_a_user(self):
        assert Document(words=3, author="bob").states.blockers("REVIEW") == []

    def test_by_a_function_of_row_and_user(self, ada, bob):
        document = Document(words=3)
        assert document.states.can_transition_to("REVIEW", user=ada) is True
        (blocker,) = document.states.blockers("REVIEW", user=bob)
        assert (blocker.code, blocker.params) == ("permission", {"permission": "is_author"})

    def test_by_name(self, ada):
        document = Document(status="REVIEW", words=3)
        assert document.states.can_transition_to("PUBLISHED", user=ada) is False
        ada.user_permissions.add(Permission.objects.get(codename="view_document"))
        assert document.states.can_transition_to("PUBLISHED", user=type(ada).objects.get(pk=ada.pk)) is True

    @pytest.mark.parametrize("is_stale", [False, True])
    def test_a_function_that_raises_leaves_the_callers_transaction_usable(self, bob, monkeypatch, is_stale):
        def consult(row: Stamped, user: Any) -> bool:
            raise LookupError("the directory does not answer")

        details = {("DONE", "NEW"): Transition("NEW", permission=consult)}
        monkeypatch.setattr(
            Stamped.states._meta, "graph", dataclasses.replace(Stamped.states._meta.graph, details=details)
        )
        Stamped.objects.create(status="DONE")
        stale = Stamped.objects.get()
        if is_stale:  # so that there is a second look
            vars(stale)["status"] = "FAILED"
        with transaction.atomic():
            with pytest.raises(LookupError):
                stale.states.transition_to("NEW", user=bob)
            stale.name = "saved all the same"
            stale.save()
        assert Stamped.objects.values_list("status", "name").get() == ("DONE", "saved all the same")

    def test_moves_without_one_are_free(self, bob):
        assert Document().states.can_transition_to("WITHDRAWN", user=bob) is True

    def test_an_anonymous_user_is_judged_and_leaves_no_trace(self):
        document = Document.objects.create(words=3)
        with pytest.raises(TransitionBlocked):
            document.states.transition_to("REVIEW", user=AnonymousUser())
        lazy = SimpleLazyObject(AnonymousUser)
        with transition_context(actor=lazy):
            assert document.states.transition_to("WITHDRAWN", user=lazy).metadata == {}

    def test_transition_to_enforces_them_and_records_the_user(self, ada, bob):
        document = Document.objects.create(words=3)
        with pytest.raises(TransitionBlocked) as caught:
            document.states.transition_to("REVIEW", user=bob)
        assert [blocker.code for blocker in caught.value.blockers] == ["permission"]
        record = document.states.transition_to("REVIEW", user=ada)
        assert record.metadata == {"actor": {"model": "auth.User", "pk": ada.pk, "text": "ada"}}


class TestTransitionBlocked:
    def test_is_an_invalid_transition_with_reasons(self):
        document = Document.objects.create()
        with pytest.raises(InvalidStateTransition) as caught:
            document.states.transition_to("REVIEW")
        assert isinstance(caught.value, TransitionBlocked)
        assert str(caught.value) == (
            f"lab.Document pk={document.pk} cannot move from 'DRAFT' to 'REVIEW' now: There is no text."
        )
        assert caught.value.allowed == ["REVIEW", "WITHDRAWN"]
        assert pickle.loads(pickle.dumps(caught.value)).blockers == caught.value.blockers  # noqa: S301
        assert document.states.history.count() == 0

    def test_leaves_a_callers_transaction_usable(self):
        document = Document.objects.create()
        with transaction.atomic():
            with pytest.raises(TransitionBlocked):
                document.states.transition_to("REVIEW")
            document.states.transition_to("WITHDRAWN")
        assert document.status == "WITHDRAWN"

    def test_is_judged_again_where_the_row_really_is(self):
        document = Document.objects.create(words=3)
        stale = Document.objects.get()
        document.states.transition_to("REVIEW")
        stale.approved = False
        with pytest.raises(TransitionBlocked) as caught:
            stale.states.transition_to("PUBLISHED")
        assert caught.value.from_status == "REVIEW"
        assert stale.status == "DRAFT"


class TestForcing:
    def test_goes_outside_the_graph_and_past_guards_and_says_so(self):
        document = Document.objects.create(status="WITHDRAWN")
        record = document.states.force_transition_to("PUBLISHED", reason="court order", metadata={"case": 12})
        assert (record.from_status, record.to_status) == ("WITHDRAWN", "PUBLISHED")
        assert record.metadata == {"case": 12, "forced": True, "reason": "court order"}
        assert Document.objects.get().status == "PUBLISHED"

    @pytest.mark.parametrize("reason", ["", "  ", None])
    def test_needs_a_reason(self, reason):
        with pytest.raises(ValueError, match="needs a reason"):
            Document.objects.create().states.force_transition_to("PUBLISHED", reason=reason)

    def test_still_needs_a_declared_state(self):
        with pytest.raises(InvalidStateTransition):
            Document.objects.create().states.force_transition_to("NONSENSE", reason="x")


class TestDeclaring:
    def test_a_guard_of_an_unknown_state_is_refused(self):
        machine = StateMachine([("A", "A")], "A", {})
        with pytest.raises(ValueError, match="Guarded state 'B' not in states. Declared: A."):
            machine.guard(to="B")

    def test_a_guard_without_its_brackets_is_told_how_to_write_it(self):
        machine = StateMachine([("A", "A")], "A", {})
        for wrong in (lambda self: True, "A"):
            with pytest.raises(TypeError, match=r"Write @states\.guard\(\) for every move"):
                machine.guard(wrong)

    @pytest.mark.usefixtures("isolated")
    def test_a_guard_that_answers_something_else_is_told(self):
        states = two_ways()
        odd = lab_model(states=states, strange=states.guard()(lambda self: 3))
        with pytest.raises(TypeError, match=r"strange\(\) returned 3. It must return True or None"):
            odd().states.blockers("B")

    def test_labels_of_moves_are_kept(self):
        assert str(Document.states._meta.graph.transition("DRAFT", "REVIEW").label) == "Submit"
        assert Document.states._meta.graph.transition("DRAFT", "WITHDRAWN") == Transition("WITHDRAWN")

    def test_a_transition_object_is_checked_like_a_state(self):
        with pytest.raises(ValueError, match="X") as caught:
            StateMachine([("A", "A")], "A", {"A": [Transition("X")]})
        assert str(caught.value) == "Transition target 'X' not in states"

    def test_messages_are_translatable(self):
        with translation.override("de"):
            assert Document().states.blockers("PUBLISHED")[0].code == "no_transition"


ABSTRACT = {"abstract": True}


def careless(function):
    """A decorator that forgets what it wraps."""

    def wrapper(self):
        return function(self)

    return wrapper


def refuse():
    """Return a guard that refuses, as one would stand in the body of a model."""

    def closed(self):
        return False

    closed.__qualname__ = "Order.closed"
    return closed


def two_ways() -> StateMachine:
    return StateMachine([("A", "A"), ("B", "B"), ("C", "C")], "A", {"A": ["B", "C"], "B": ["C"]})


@pytest.mark.usefixtures("isolated")
class TestGuardsAddUp:
    def model(self, *bases, **body):
        """Return a class that is made of these, with the machine `states` unless a base has one."""
        self.made = getattr(self, "made", 0) + 1
        return lab_model(*bases, name=f"Made{self.made}", **body)

    def reasons(self, model, to):
        return [blocker.code for blocker in model(status="A").states.blockers(to)]

    def test_when_they_are_stacked(self):
        states = two_ways()
        closed = states.guard(to="B")(states.guard(to="C")(refuse()))
        model = self.model(states=states, closed=closed)
        assert (self.reasons(model, "B"), self.reasons(model, "C")) == (["closed"], ["closed"])

    def test_when_one_of_them_is_for_every_move(self):
        states = two_ways()
        closed = states.guard(to="B")(states.guard()(refuse()))
        assert self.reasons(self.model(states=states, closed=closed), "C") == ["closed"]

    @pytest.mark.parametrize(
        "wrap",
        [property, functools.cached_property, cached_property, staticmethod, functools.partialmethod],
    )
    @pytest.mark.parametrize("above", [True, False])
    def test_under_and_above_other_decorators(self, wrap, above):
        states = two_ways()

        def closed(*row):
            return "It is closed."

        guard = states.guard(to="B")
        decorated = wrap(guard(closed)) if above else guard(wrap(closed))
        if wrap is cached_property or wrap is functools.cached_property:
            decorated.__set_name__(None, "closed")
        model = self.model(states=states, closed=decorated)
        assert self.reasons(model, "B") == ["closed"]

    def test_of_one_function_with_different_arguments(self):
        states = two_ways()

        def refuse(self, what):
            return f"There is no {what}."

        model = self.model(
            states=states,
            refuse=refuse,
            has_text=states.guard(to="B")(functools.partialmethod(refuse, "text")),
            has_title=states.guard(to="C")(functools.partialmethod(refuse, "title")),
        )
        assert (self.reasons(model, "B"), self.reasons(model, "C")) == (["has_text"], ["has_title"])

    def test_when_a_subclass_declares_the_machine_again(self):
        first, second = two_ways(), two_ways()
        base = self.model(states=first, closed=first.guard(to=["B"])(refuse()), meta=ABSTRACT)
        child = self.model(base, states=second, late=second.guard(to="B")(refuse()))
        assert sorted(self.reasons(child, "B")) == ["closed", "late"]

    def test_of_two_abstract_bases(self):
        states = two_ways()
        machine = self.model(states=states, meta=ABSTRACT)
        other = self.model(closed=states.guard()(refuse()), meta=ABSTRACT)
        child = self.model(other, machine, late=states.guard()(refuse()))
        assert sorted(self.reasons(child, "B")) == ["closed", "late"]

    def test_a_method_of_the_same_name_overrides(self):
        states = two_ways()
        base = self.model(states=states, closed=states.guard()(refuse()), meta=ABSTRACT)
        assert self.reasons(self.model(base, closed=lambda self: "mine"), "B") == ["closed"]
        assert self.reasons(self.model(base, closed=states.guard(to="C")(lambda self: "mine")), "B") == []

    def test_none_drops_it(self):
        states = two_ways()
        base = self.model(states=states, closed=states.guard()(refuse()), meta=ABSTRACT)
        made = self.model(base, closed=None)
        assert self.reasons(made, "B") == []
        assert made.states._meta.guards == {}

    def test_none_drops_it_in_a_proxy(self):
        draft = self.model(Document, has_text=None, meta={"proxy": True})
        assert Document().states.blockers("REVIEW") != []
        assert draft().states.blockers("REVIEW") == []

    def test_anything_else_is_no_guard(self):
        with pytest.raises(TypeError, match="A guard is a method or a property of the model, got 3"):
            two_ways().guard()(3)


@pytest.mark.usefixtures("isolated")
class TestAGuardThatIsNeverAsked:
    def said(self, model):
        return [problem.msg for problem in check_bound(model.states._meta) if problem.id == "statemachine_fields.W005"]

    @pytest.mark.parametrize(
        ("wrap", "to", "because"),
        [
            pytest.param(
                careless, None, "the class does not have it as it was decorated", id="because a decorator hides it"
            ),
            pytest.param(lambda guard: guard, "A", "no transition leads to 'A'", id="because no move leads there"),
        ],
    )
    def test_is_a_check(self, wrap, to, because):
        states = two_ways()
        (message,) = self.said(lab_model(states=states, closed=wrap(states.guard(to=to)(refuse()))))
        assert message.endswith(f"Order.closed() of 'states' is never asked: {because}.")

    @pytest.mark.parametrize("is_proxy", [True, False])
    def test_because_only_a_child_has_it_is_a_check(self, is_proxy):
        states = two_ways()
        parent = lab_model(name="Parent", states=states)
        child = lab_model(parent, name="Child", meta={"proxy": is_proxy}, closed=states.guard()(refuse()))
        assert len(self.said(parent)) == 1
        assert child().states.blockers("B") == []

    def test_because_the_machine_in_its_place_has_no_such_state_is_a_check(self):
        states = two_ways()
        base = lab_model(name="Base", meta=ABSTRACT, states=states, closed=states.guard(to="C")(refuse()))
        smaller = lab_model(base, states=StateMachine([("A", "A"), ("B", "B")], "A", {"A": ["B"]}))
        assert len(self.said(smaller)) == 1
        assert smaller.states._meta.guards == {}

    def test_is_not_one_that_a_sister_class_has(self):
        states = two_ways()
        base = lab_model(name="Base", meta=ABSTRACT, states=states)
        one, two = lab_model(base, name="One", closed=states.guard()(refuse())), lab_model(base, name="Two")
        assert self.said(one) == self.said(two) == []
        assert (one().states.can_transition_to("B"), two().states.can_transition_to("B")) == (False, True)
