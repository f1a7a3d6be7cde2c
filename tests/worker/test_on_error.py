"""`@states.on_error`: what may decide on an exception of a handler, and what becomes of its answer."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, models, transaction
from django.test.utils import isolate_apps

from lab.models import AsyncJudged, Judged
from statemachine_fields import State, StateMachine, handler, on_error
from statemachine_fields.checks import check_bound
from statemachine_fields.testing import drain
from statemachine_fields.worker import HandlerContext, Move, Park, Retry, TryAgainLater
from statemachine_fields.worker.connections import Trouble
from statemachine_fields.worker.outcomes import Failed, ParkedByHandler, Transitioned, Waited
from tests.worker.rows import columns_of, lane_of, lease_on, not_mariadb


class Broken(Exception):
    pass


def deciding(monkeypatch, answer, model=Judged, method="decide"):
    """Let what decides give an answer, or raise it, and return what it was asked."""
    asked = []

    def decide(self, ctx, error):
        asked.append((self, ctx, error))
        if isinstance(answer, BaseException):
            raise answer
        return answer(self) if callable(answer) else answer

    async def adecide(self, ctx, error):
        await asyncio.sleep(0)
        return decide(self, ctx, error)

    is_async = asyncio.iscoroutinefunction(getattr(model, method))
    monkeypatch.setattr(model, method, adecide if is_async else decide)
    return asked


def raising(monkeypatch, error, model=Judged):
    def go_on(self):
        if isinstance(error, BaseException):
            raise error
        return error

    async def ago_on(self):
        await asyncio.sleep(0)
        return go_on(self)

    monkeypatch.setattr(model, "go_on", ago_on if model is AsyncJudged else go_on)


def run(executor, model=Judged, status="NEW", **facts):
    lease = lease_on(lane_of(model), status=status, **facts)
    return async_to_sync(executor.arun)(lease) if model is AsyncJudged else executor.run(lease)


BOTH = pytest.mark.parametrize("model", [Judged, AsyncJudged])


class TestAsked:
    @BOTH
    def test_with_the_row_the_context_and_the_error(self, model, executor, monkeypatch):
        error = Broken("no luck")
        raising(monkeypatch, error, model)
        asked = deciding(monkeypatch, None, model)
        outcome = run(executor, model)
        ((row, ctx, seen),) = asked
        assert (row.pk, type(ctx), seen) == (1, HandlerContext, error)
        assert ctx.attempt == 1
        assert outcome.exception is error

    @BOTH
    def test_the_one_of_a_state_goes_before_the_one_of_all(self, model, executor, monkeypatch):
        raising(monkeypatch, Broken(), model)
        of_all, of_next = deciding(monkeypatch, "DONE", model), deciding(monkeypatch, "FAILED", model, "decide_on_next")
        assert [run(executor, model, state).to_status for state in ("NEW", "NEXT")] == ["DONE", "FAILED"]
        assert (len(of_all), len(of_next)) == (1, 1)

    @BOTH
    @pytest.mark.parametrize("answer", ["NOWHERE", 5, Move("NEW")])
    def test_of_an_answer_that_is_none_too(self, model, answer, executor, monkeypatch):
        raising(monkeypatch, answer, model)
        asked = deciding(monkeypatch, Park("See to it."), model)
        assert type(run(executor, model)) is ParkedByHandler
        assert len(asked) == 1

    @BOTH
    def test_of_what_is_no_exception_too(self, model, executor, monkeypatch):
        raising(monkeypatch, SystemExit(3), model)
        asked = deciding(monkeypatch, "DONE", model)
        assert run(executor, model).to_status == "DONE"
        assert len(asked) == 1


class TestNotAsked:
    @BOTH
    @pytest.mark.parametrize("error", [TryAgainLater(after=5), None, "DONE", Retry(error=Broken()), Park("it")])
    def test_about_what_is_no_exception_of_the_handler(self, model, error, executor, monkeypatch):
        raising(monkeypatch, error, model)
        asked = deciding(monkeypatch, "FAILED", model)
        run(executor, model)
        assert asked == []

    @BOTH
    def test_about_a_database_that_is_away(self, model, executor, monkeypatch):
        import psycopg

        error = OperationalError("gone")
        error.__cause__ = psycopg.OperationalError("gone")
        executor.diagnose = lambda alias: Trouble.AWAY
        raising(monkeypatch, error, model)
        asked = deciding(monkeypatch, "FAILED", model)
        assert type(run(executor, model)) is Waited
        assert asked == []

    def test_about_a_handler_that_was_stopped(self, executor, monkeypatch):
        asked = deciding(monkeypatch, "FAILED")
        lease = lease_on(lane_of(Judged), started_at=0.0)
        assert type(executor.time_is_up(lease)) is Failed
        assert asked == []

    def test_about_a_row_that_could_not_be_loaded(self, executor, monkeypatch):
        asked = deciding(monkeypatch, "FAILED")
        run(executor, load_error=ValueError("what is that?"))
        assert asked == []


class TestAnswer:
    @BOTH
    def test_of_none_leaves_it_to_the_policy(self, model, executor, monkeypatch):
        raising(monkeypatch, Broken("no luck"), model)
        deciding(monkeypatch, None, model)
        outcome = run(executor, model)
        assert (type(outcome), outcome.failures, outcome.delay) == (Failed, 1, 60.0)
        assert outcome.error == "Broken: no luck"

    @BOTH
    def test_of_none_at_the_last_try_is_what_the_policy_wants(self, model, executor, monkeypatch):
        raising(monkeypatch, Broken("no luck"), model)
        deciding(monkeypatch, None, model)
        outcome = run(executor, model, failures=2)
        assert (outcome.to_status, outcome.is_by_policy) == ("FAILED", True)

    @BOTH
    def test_may_be_a_state_and_is_no_failure_then(self, model, executor, monkeypatch):
        raising(monkeypatch, Broken(), model)
        deciding(monkeypatch, "DONE", model)
        outcome = run(executor, model)
        assert (type(outcome), outcome.to_status, outcome.error, outcome.exception) == (Transitioned, "DONE", "", None)

    @BOTH
    def test_may_be_a_move_with_all_that_it_can_say(self, model, executor, monkeypatch):
        raising(monkeypatch, Broken(), model)
        deciding(monkeypatch, Move("DONE", update={"note": "x"}, metadata={"why": "y"}), model)
        outcome = run(executor, model)
        assert (outcome.update, outcome.written_metadata) == ({"note": "x"}, '{"why": "y"}')

    @BOTH
    def test_of_a_retry_without_an_error_keeps_that_of_the_handler(self, model, executor, monkeypatch):
        error = Broken("no luck")
        raising(monkeypatch, error, model)
        deciding(monkeypatch, Retry(after=7), model)
        outcome = run(executor, model)
        assert (type(outcome), outcome.delay, outcome.error) == (Failed, 7.0, "Broken: no luck")
        assert outcome.exception is error

    @BOTH
    def test_of_a_retry_with_an_error_has_that(self, model, executor, monkeypatch):
        raising(monkeypatch, Broken("no luck"), model)
        deciding(monkeypatch, Retry(error="busy"), model)
        assert run(executor, model).error == "busy"

    @BOTH
    def test_that_is_no_answer_is_a_failure_with_both_errors(self, model, executor, monkeypatch):
        raising(monkeypatch, Broken("no luck"), model)
        deciding(monkeypatch, "NOWHERE", model)
        outcome = run(executor, model)
        assert type(outcome) is Failed
        assert outcome.error.startswith("Broken: no luck\ndecide(), which decides on errors, raised UnknownState: ")

    @pytest.mark.django_db
    @not_mariadb
    def test_may_be_a_move_of_its_own(self, monkeypatch):
        row = Judged.objects.create()
        raising(monkeypatch, Broken())
        deciding(monkeypatch, lambda self: self.states.transition_to("DONE") and None)
        tally = drain(Judged)
        assert (tally.moved, tally.failed, columns_of(row).status) == (1, 0, "DONE")


class TestRaising:
    @BOTH
    def test_is_a_failure_with_both_errors(self, model, executor, monkeypatch):
        first, second = Broken("no luck"), ValueError("nor here")
        raising(monkeypatch, first, model)
        deciding(monkeypatch, second, model)
        outcome = run(executor, model)
        assert (type(outcome), outcome.failures) == (Failed, 1)
        assert outcome.error == "Broken: no luck\ndecide(), which decides on errors, raised ValueError: nor here"
        assert outcome.exception is second
        assert second.__context__ is first

    @BOTH
    def test_the_same_error_again_leaves_it_to_the_policy(self, model, executor, monkeypatch):
        error = Broken("no luck")
        raising(monkeypatch, error, model)
        deciding(monkeypatch, error, model)
        outcome = run(executor, model)
        assert (outcome.error, outcome.exception) == ("Broken: no luck", error)

    @BOTH
    def test_not_yet_is_no_failure(self, model, executor, monkeypatch):
        raising(monkeypatch, Broken(), model)
        deciding(monkeypatch, TryAgainLater(after=9), model)
        outcome = run(executor, model)
        assert (type(outcome), outcome.delay, outcome.failures) == (Waited, 9.0, 0)


@pytest.mark.django_db(transaction=True)
@not_mariadb
class TestTransactions:
    @BOTH
    def test_a_decision_is_written_like_a_handlers(self, model, monkeypatch):
        row = model.objects.create()
        raising(monkeypatch, Broken(), model)
        deciding(monkeypatch, Move("DONE", update={"note": "given up"}), model)
        drain(model)
        row.refresh_from_db()
        assert (row.status, row.note) == ("DONE", "given up")

    def test_an_atomic_handler_is_undone_before_it_is_asked(self, monkeypatch):
        from lab.models import AtomicEffort

        row = AtomicEffort.objects.create()
        seen = []

        def go_on(self, ctx):
            AtomicEffort.objects.filter(pk=self.pk).update(note="undone")
            raise Broken

        def decide(self, ctx, error):
            seen.append((AtomicEffort.objects.get().note, transaction.get_connection().in_atomic_block))
            return "DONE"

        monkeypatch.setattr(AtomicEffort, "go_on", go_on)
        monkeypatch.setattr(AtomicEffort, "decide", decide, raising=False)
        schedule = AtomicEffort.states._meta.schedules["NEW"]
        judged = Judged.states._meta.schedules["NEW"].on_error
        object.__setattr__(schedule, "on_error", judged)
        try:
            drain(AtomicEffort)
        finally:
            object.__setattr__(schedule, "on_error", None)
        assert (seen, columns_of(row).status) == ([("", False)], "DONE")


class TestDeclaration:
    def machine(self):
        return StateMachine(
            states=[State("A"), State("B"), State("C")], initial="A", transitions={"A": ["B", "C"], "B": ["C"]}
        )

    def test_an_unknown_state_is_refused_where_it_is_written(self):
        with pytest.raises(ValueError, match="Handled state 'X' not in states"):
            self.machine().on_error("X")

    @pytest.mark.parametrize("wrong", [5, property(lambda self: None), staticmethod(lambda: None)])
    def test_it_is_a_method(self, wrong):
        with pytest.raises(TypeError, match="method of the model"):
            self.machine().on_error(wrong)

    @isolate_apps("lab")
    def test_it_takes_three_arguments(self):
        with pytest.raises(TypeError, match="def decide\\(self, ctx, error\\)"):

            class Wrong(models.Model):
                states = self.machine()

                @states.handler("A")
                def go(self): ...

                @states.on_error
                def decide(self, error): ...

                class Meta:
                    app_label = "lab"

    @isolate_apps("lab")
    def test_there_is_one_for_a_state(self):
        with pytest.raises(ValueError, match="one\\(\\) and two\\(\\) both decide on errors of 'A'"):

            class Wrong(models.Model):
                states = self.machine()

                @states.handler("A")
                def go(self): ...

                @states.on_error("A")
                def one(self, ctx, error): ...

                @states.on_error("A", "B")
                def two(self, ctx, error): ...

                class Meta:
                    app_label = "lab"

    @isolate_apps("lab")
    def test_a_subclass_overrides_it_by_name_or_drops_it_or_adds_one(self):
        class Base(models.Model):
            states = self.machine()

            @states.handler("A", "B")
            def go(self): ...

            @states.on_error
            def decide(self, ctx, error): ...

            class Meta:
                app_label = "lab"
                abstract = True

        class Overriding(Base):
            async def decide(self, ctx, error): ...

        class Dropping(Base):
            decide = None

        class Adding(Base):
            @on_error("B", machine="states")
            def of_b(self, ctx, error): ...

        class Replacing(Base):
            @on_error
            def another(self, ctx, error): ...

        def names(model):
            found = [schedule.on_error for schedule in model.states._meta.schedules.values()]
            return [each and each.name for each in found]

        assert names(Overriding) == ["decide", "decide", None]
        assert Overriding.states._meta.schedules["A"].on_error.is_async
        assert names(Dropping) == [None, None, None]
        assert names(Adding) == ["decide", "of_b", None]
        assert names(Replacing) == ["another", "another", None]

    @isolate_apps("lab")
    def test_one_that_is_never_asked_is_told_of(self):
        class Base(models.Model):
            states = self.machine()

            @states.on_error
            def decide(self, ctx, error): ...

            @states.on_error("B")
            def of_b(self, ctx, error): ...

            class Meta:
                app_label = "lab"
                abstract = True

        class Untimed(Base):
            pass

        class Timed(Base):
            @handler("A")
            def go(self): ...

        def told(model):
            return [each.msg for each in check_bound(model.states._meta) if each.id.endswith("W120")]

        assert not Untimed.states._meta.is_timed
        assert [text.split()[0] for text in told(Untimed)] == ["decide()", "of_b()"]
        assert told(Timed) == ["of_b() decides on errors of 'B' of 'states' and is never asked: there is no handler."]
