"""The system checks of timed machines: what each says, and of whom."""

from __future__ import annotations

import functools

import pytest
from django.core import checks
from django.db import connection, models
from django.db.models.signals import post_save
from django.test.utils import override_settings

from lab.models import ByWorker, Chore, Ticking
from statemachine_fields import State, StateMachine, handler
from statemachine_fields import checks as our_checks
from statemachine_fields.db.dialect import dialect_for, is_served
from statemachine_fields.signals import post_transition
from statemachine_fields.worker import checks as worker_checks
from tests.declared import lab_model

pytestmark = pytest.mark.usefixtures("isolated")

PROXY = {"proxy": True}
EDGES = {"A": ["B"], "B": ["C"]}


def machine(*states: State, **options) -> StateMachine:
    """Return a machine A → B → C; states that are not given have nothing to say."""
    given = {state.value: state for state in states}
    rest = [State(value) for value in "ABC" if value not in given]
    return StateMachine([*states, *rest], "A", EDGES, **options)


def told(model):
    """Return what is said of a model, by number, and assert that each has a hint and names the model."""
    found = [*worker_checks.check_timed(model.states._meta), *worker_checks.handlers_never_called(model)]
    assert all(problem.hint and problem.obj is model for problem in found)
    said = [f"{problem.id.partition('.')[2]} {problem.msg}" for problem in found]
    return [each for each in said if not each.startswith("W107")]  # which is about the database of the suite


def own_save(self, *args, **kwargs):
    models.Model.save(self, *args, **kwargs)


@pytest.mark.parametrize(
    ("states", "body", "expected"),
    [
        pytest.param([], {"save": own_save}, [], id="a machine that is not timed is not looked at"),
        pytest.param(
            [State("A", external=True), State("B", external=True), State("C", retry_after=60)],
            {"archive": handler("C")(lambda self: None)},
            ["E101 archive() handles 'C' of 'states', which is terminal, so it could move its rows nowhere."],
            id="handler of a terminal state",
        ),
        pytest.param(
            [State("A", max_attempts=3), State("B", retry_after=0)],
            {"go_on": handler("A", "B")(lambda self: None)},
            ["W102 Rows in 'A' of 'states' are tried again every 60 s, because the state does not say otherwise."],
            id="retry_after that nobody has thought of",
        ),
        pytest.param(
            [State("A", external=True), State("B", timeout_after=60, timeout_to="C", time_limit=5)],
            {},
            ["W103 'B' of 'states' has no handler, so time_limit means nothing."],
            id="an option that only a handler heeds",
        ),
        pytest.param(
            [State("A", external=True), State("B", timeout_after=60, timeout_to="C", retry_after=60, backoff=2)],
            {},
            ["W103 'B' of 'states' has no handler, so retry_after and backoff mean nothing."],
            id="options that only a handler heeds",
        ),
    ],
)
def test_what_is_told_of_a_declaration(states, body, expected):
    assert told(lab_model(states=machine(*states), **body)) == expected


def test_tries_of_a_machine_that_has_none():
    assert told(lab_model(states=machine(record_attempts=True))) == [
        "W109 'states' has record_attempts, but no state with a handler or a clock, so there are no tries to keep."
    ]
    timed = machine(State("A", timeout_after=60, timeout_to="B"), State("B", external=True), record_attempts=True)
    assert told(lab_model(name="Timed", states=timed)) == []


def test_handler_of_an_external_state():
    states = machine(State("A", external=True), State("B", external=True))
    order = lab_model(states=states, ask=states.handler("B")(lambda self: "C"))
    assert told(order)[0] == "E102 ask() handles 'B' of 'states', which is external: someone else moves its rows."


@pytest.mark.parametrize(
    ("state", "is_told"),
    [
        (State("B"), True),
        (State("B", error_to="C"), True),
        (State("B", external=True), False),
        (State("B", timeout_after=60, timeout_to="C"), False),
        (State("B", delete_after=60), False),
    ],
)
def test_state_that_nothing_moves(state, is_told):
    order = lab_model(states=machine(State("A", timeout_after=60, timeout_to="B"), state))
    assert told(order) == (["W101 No worker ever looks at rows in 'B' of 'states'."] if is_told else [])


class TestRowByRow:
    def reasons(self, model=Chore):
        return [each.msg for each in worker_checks.committed_row_by_row(model.states._meta)]

    def expected(self, words):
        return [f"Workers write the moves of 'states' row by row, because of {words}."]

    def test_not_without_a_reason(self):
        assert self.reasons() == []

    def test_because_of_an_own_save(self):
        assert self.reasons(Ticking) == self.expected("its own save()")

    def test_because_of_receivers(self, connect):
        def receiver(**kwargs):
            pass

        for signal in (post_save, post_transition):
            connect(signal, receiver, Chore)
        name = f"{__name__}.TestRowByRow.test_because_of_receivers.<locals>.receiver"
        both = f"receivers of pre_save or post_save ({name}) and receivers of signals of transitions ({name})"
        assert self.reasons() == self.expected(both)

    def test_each_receiver_is_named_by_where_it_is_found(self, connect):
        class Ears:
            def hear(self, **kwargs):
                pass

            def __call__(self, **kwargs):
                pass

        async def later(**kwargs):
            pass

        ears = Ears()
        heard = [ears.hear, ears, functools.partial(ears.hear), later]
        own = f"{__name__}.TestRowByRow.test_each_receiver_is_named_by_where_it_is_found.<locals>"
        names = [f"{own}.Ears.hear", f"{own}.Ears", f"{own}.later"]
        for each in heard:
            connect(post_transition, each, Chore)
        assert self.reasons() == self.expected(f"receivers of signals of transitions ({', '.join(names)})")

    def test_only_who_checks_for_deployment_is_told(self):
        messages = our_checks.check_row_by_row(None)
        assert "lab.Ticking" in {message.obj._meta.label for message in messages if message.id.endswith("W104")}
        assert our_checks.check_row_by_row not in checks.registry.registry.get_checks()
        assert our_checks.check_row_by_row in checks.registry.registry.get_checks(include_deployment_checks=True)
        assert not [each for each in our_checks.check_machines(None) if each.id.endswith("W104")]

    def test_not_where_there_is_no_audit_model(self):
        lab_model(name="OrderStateTransition")
        assert self.reasons(lab_model(states=machine(State("A", delete_after=1)), save=own_save)) == []


class TestHandlersNeverCalled:
    @pytest.fixture
    def order(self):
        states = machine(State("A", retry_after=60), State("B", external=True))
        return lab_model(states=states, go_on=states.handler("A")(lambda self: "B"))

    def expected(self, name):
        return [
            f"W105 {name}() is never called for 'states': workers run rows as instances of lab.Order, which has the "
            "machine's columns."
        ]

    def told(self, model):
        found = list(worker_checks.handlers_never_called(model))
        assert all(problem.hint and problem.obj is model for problem in found)
        return [f"{problem.id.partition('.')[2]} {problem.msg}" for problem in found]

    def test_one_that_a_proxy_overrides(self, order):
        rush = lab_model(order, name="Rush", meta=PROXY, go_on=lambda self: None)
        assert self.told(rush) == self.expected("go_on")
        assert self.told(order) == []

    def test_one_that_a_child_declares(self, order):
        gift = lab_model(order, name="Gift", wrap=handler("B")(lambda self: "C"))
        assert self.told(gift) == self.expected("wrap")

    def test_one_of_a_plain_mixin_of_a_proxy(self, order):
        class Wrapping:
            @handler("B")
            def wrap(self):
                return "C"

        assert self.told(lab_model(Wrapping, order, name="Rush", meta=PROXY)) == self.expected("wrap")

    def test_not_one_for_a_machine_of_the_childs_own(self, order):
        wrapping = StateMachine([("PLAIN", ""), ("TIED", "")], "PLAIN", {"PLAIN": ["TIED"]}, field="wrapping_status")
        gift = lab_model(order, name="Gift", wrapping=wrapping, tie=handler("PLAIN")(lambda self: "TIED"))
        assert self.told(gift) == []
        assert gift.wrapping._meta.schedules["PLAIN"].handler.name == "tie"

    def test_not_what_a_child_of_an_abstract_base_overrides(self):
        assert self.told(ByWorker) == []

    def test_other_methods_of_a_proxy_are_nobodys_business(self, order):
        assert self.told(lab_model(order, name="Rush", meta=PROXY, hurry=lambda self: None)) == []


def test_worker_that_is_not_installed():
    installed = ["django.contrib.contenttypes", "django.contrib.auth", "statemachine_fields", "lab"]
    with override_settings(INSTALLED_APPS=installed):
        found = our_checks.check_machines(None)
    assert worker_checks.worker_not_installed() in found


def test_worker_is_not_missed_where_no_machine_is_timed():
    with override_settings(
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "statemachine_fields"]
    ):
        assert our_checks.check_machines(None) == []


NO_WORKER = (
    "W107 There is no worker yet for the database 'default', so nothing runs the handlers and time-outs of 'states'."
)
ONE_PROCESS = "W108 The database 'default' has rows of timed machines, and one worker process at a time can run them."


class TestDatabases:
    @pytest.mark.parametrize(
        ("shared", "row_locks", "plain", "deploy"),
        [
            pytest.param(True, True, [], [], id="one that several processes share"),
            pytest.param(False, False, [], [ONE_PROCESS], id="one for a single process is told before deploying"),
            pytest.param(False, True, [NO_WORKER], [], id="one without a worker is told always"),
        ],
    )
    def test_each_kind(self, shared, row_locks, plain, deploy, monkeypatch):
        monkeypatch.setattr(type(dialect_for(connection)), "is_shared", shared)
        monkeypatch.setattr(connection.features, "has_select_for_update", row_locks)
        assert self.found() == (plain, deploy)

    def test_the_one_at_hand(self):
        assert is_served(connection) == (connection.vendor in ("postgresql", "sqlite"))
        assert dialect_for(connection).is_shared == (connection.vendor == "postgresql")

    def test_only_those_who_deploy_are_told_of_a_single_process(self):
        assert our_checks.check_one_process not in checks.registry.registry.get_checks()
        assert our_checks.check_one_process in checks.registry.registry.get_checks(include_deployment_checks=True)

    def found(self):
        plain = list(worker_checks.no_worker_for_the_database(Chore.states._meta))
        deploy = list(worker_checks.one_process_only([Chore.states._meta, Ticking.states]))
        assert all(problem.hint for problem in (*plain, *deploy))
        return tuple([f"{each.id.partition('.')[2]} {each.msg}" for each in part] for part in (plain, deploy))
