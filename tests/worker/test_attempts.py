"""Tries that did not move their row are kept: each once, with the write that ends it, and gone with the row."""

from __future__ import annotations

import datetime

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, models
from django.test.utils import CaptureQueriesContext, isolate_apps

from lab.models import AtomicEffort, BigEffort, Effort, EffortProxy, Kit, SavedEffort
from statemachine_fields import State, StateMachine, StateMachineError
from statemachine_fields.checks import check_bound
from statemachine_fields.db.claims import Left
from statemachine_fields.machine.attempts import StateAttempt
from statemachine_fields.testing import drain
from statemachine_fields.worker import Move, Park, Retry, TryAgainLater
from statemachine_fields.worker.attempts import LONGEST_TRACEBACK, traceback_of
from statemachine_fields.worker.lease import lanes_of
from statemachine_fields.worker.outcomes import Released
from statemachine_fields.worker.writing import ConnectionLost
from tests.worker.rows import claim, claim_one, columns_of, let_lease_run_out, not_mariadb, only_postgresql

pytestmark = [pytest.mark.django_db, not_mariadb]
really = pytest.mark.django_db(transaction=True)

ALL = pytest.mark.parametrize("model", [Effort, SavedEffort, AtomicEffort])


def lane_of(model):
    (lane,) = lanes_of([model.states._meta])
    return lane


def answering(monkeypatch, *answers, model=Effort):
    """Let the handler give these answers, one after the other, or raise them; the last again and again."""
    left = list(answers)

    def go_on(self, ctx):
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(model, "go_on", go_on)


def run(executor, committer, model=Effort, owner="me:1"):
    outcomes = [executor.run(lease) for lease in claim(lane_of(model), owner=owner)]
    assert committer.commit(outcomes) == []


def kept(row, *names):
    return list(row.states.attempts.order_by("number").values_list(*names))


class TestKept:
    @ALL
    def test_is_each_try_that_did_not_move_the_row(self, model, monkeypatch):
        row = model.objects.create()
        answering(monkeypatch, None, Retry(error="busy"), Park("Call them."), model=model)
        for _ in range(3):
            drain(model)
        assert kept(row, "number", "state", "sequence", "outcome", "error") == [
            (1, "NEW", 0, "waited", ""),
            (2, "NEW", 0, "failed", "busy"),
            (3, "NEW", 0, "parked", "Call them."),
        ]

    def test_has_all_that_is_known_of_it(self, executor, committer, monkeypatch):
        row = Effort.objects.create(status="NEXT")
        answering(monkeypatch, ValueError("no luck"))
        run(executor, committer)
        (attempt,) = row.states.attempts
        assert (attempt.instance, attempt.number, attempt.sequence, attempt.state) == (row, 1, 0, "NEXT")
        assert (attempt.worker, attempt.outcome, attempt.error) == ("me:1", "failed", "ValueError: no luck")
        assert attempt.claimed_at == columns_of(row).claimed_at
        assert attempt.claimed_at <= attempt.started_at + datetime.timedelta(milliseconds=50)
        assert attempt.started_at <= attempt.ended_at
        assert 0 <= attempt.seconds < 5
        assert attempt.traceback.startswith("Traceback (most recent call last):")
        assert "in go_on" in attempt.traceback
        assert attempt.traceback.endswith("ValueError: no luck")

    @ALL
    def test_counts_on_from_try_to_try(self, model, executor, committer, monkeypatch):
        row = model.objects.create()
        answering(monkeypatch, TryAgainLater(after=0), Retry(after=0), TryAgainLater(after=0), "DONE", model=model)
        drain_all(model)
        assert kept(row, "number", "outcome") == [(1, "waited"), (2, "failed"), (3, "waited")]

    @ALL
    def test_is_a_failure_that_the_policy_answers_with_a_move(self, model, monkeypatch):
        """The try did not move the row: the policy did, and the error is what people look for."""
        row = model.objects.create()
        answering(monkeypatch, ValueError("no luck"), model=model)
        drain(model)
        row.refresh_from_db()
        assert row.status == "FAILED"
        assert kept(row, "number", "sequence", "state", "outcome", "error") == [
            (number, 0, "NEW", "failed", "ValueError: no luck") for number in (1, 2, 3)
        ]
        assert all("ValueError: no luck" in text for (text,) in kept(row, "traceback"))

    def test_goes_with_an_update(self, executor, committer, monkeypatch):
        row = Effort.objects.create()
        answering(monkeypatch, Retry(error="busy", update={"note": "tried"}))
        run(executor, committer)
        row.refresh_from_db()
        assert (row.note, kept(row, "outcome", "error")) == ("tried", [("failed", "busy")])

    def test_is_of_one_machine_and_not_of_the_other(self, monkeypatch):
        row = Effort.objects.create()
        answering(monkeypatch, None)
        drain(Effort)
        assert row.states.attempts.count() == 1
        assert row.payment.attempts.count() == 1
        assert row.payment.attempts.model.__name__ == "EffortPaymentStateAttempt"

    def test_a_time_limit_that_was_broken_is_a_failure(self, executor, committer):
        row = Effort.objects.create()
        lease = claim_one(lane_of(Effort))
        executor.begin(lease)
        committer.commit([executor.time_is_up(lease)])
        assert kept(row, "outcome", "started_at")[0][0] == "failed"
        assert row.states.attempts.get().seconds is not None

    def test_a_row_that_could_not_be_loaded_is_parked(self, executor, committer):
        row = Effort.objects.create()
        lease = claim_one(lane_of(Effort))
        lease.load_error = ValueError("what is that?")
        committer.commit([executor.run(lease)])
        assert kept(row, "outcome", "started_at") == [("parked", None)]

    def test_is_gone_with_the_row(self, executor, committer, monkeypatch):
        row = Effort.objects.create()
        answering(monkeypatch, None)
        run(executor, committer)
        row.delete()
        assert not Effort.states.attempt_model.objects.exists()


def drain_all(model):
    """Let time pass until nothing is due."""
    drain(model, at=datetime.timedelta(hours=1))


class TestNotKept:
    def test_is_a_try_that_moved_the_row(self, executor, committer, monkeypatch):
        row = Effort.objects.create()
        answering(monkeypatch, "DONE")
        run(executor, committer)
        assert kept(row) == []

    def test_is_a_row_that_was_given_back(self, executor, committer):
        row = Effort.objects.create()
        for is_begun in (False, True):
            lease = claim_one(lane_of(Effort))
            if is_begun:
                executor.begin(lease)
            committer.commit([Released(lease)])
        claim_one(lane_of(Effort))
        assert Effort.objects.get().states.release()
        assert kept(row) == []

    def test_is_one_that_came_too_late(self, executor, committer, monkeypatch):
        row = Effort.objects.create()
        answering(monkeypatch, ValueError())
        outcome = executor.run(claim_one(lane_of(Effort)))
        row.states.transition_to("NEXT")
        committer.commit([outcome])
        assert kept(row) == []

    def test_is_a_time_out_of_a_row_without_a_handler(self, executor, committer):
        row = Effort.objects.create()
        lease = claim_one(lane_of(Effort))
        executor.fires_timeouts = True
        waited = executor._wait(lease, None)  # its handler was never run
        committer.commit([waited])
        assert kept(row) == []


class TestCrash:
    @pytest.mark.parametrize(
        ("left", "words"),
        [(Left("dead:1"), "which died."), (Left(), "which stopped extending its lease.")],
        ids=["died", "vanished"],
    )
    def test_is_kept_with_who_held_the_row(self, left, words):
        row = Effort.objects.create()
        claim_one(lane_of(Effort), owner="dead:1")
        let_lease_run_out(row)
        assert lane_of(Effort).recover(left).rows == 1
        (attempt,) = row.states.attempts
        assert (attempt.number, attempt.state, attempt.worker, attempt.outcome) == (1, "NEW", "dead:1", "crashed")
        assert attempt.error == columns_of(row).error == f"Recovered from dead:1, {words}"
        assert (attempt.started_at, attempt.traceback) == (None, "")
        assert attempt.claimed_at <= attempt.ended_at

    def test_is_kept_once(self):
        row = Effort.objects.create()
        claim_one(lane_of(Effort), owner="dead:1")
        let_lease_run_out(row)
        for left in (Left("dead:1"), Left(), Left("dead:1")):
            lane_of(Effort).recover(left)
        assert kept(row, "number") == [(1,)]

    def test_is_none_if_what_was_claimed_unheard_is_given_back(self):
        row = Effort.objects.create()
        claim_one(lane_of(Effort), owner="me:1")
        assert lane_of(Effort).recover(Left("me:1", is_crash=False)).rows == 1
        assert kept(row) == []

    def test_of_many_rows_is_one_for_each(self):
        rows = [Effort.objects.create() for _ in range(5)]
        taken = {lease.key for lease in claim(lane_of(Effort), 3, owner="dead:1")}
        lane_of(Effort).recover(Left("dead:1"))
        assert {row.pk for row in rows if row.states.attempts.exists()} == taken

    def test_is_followed_by_the_next_try(self, executor, committer, monkeypatch):
        row = Effort.objects.create()
        claim_one(lane_of(Effort), owner="dead:1")
        lane_of(Effort).recover(Left("dead:1"))
        answering(monkeypatch, None)
        (lease,) = claim(lane_of(Effort), suspects=True)
        committer.commit([executor.run(lease)])
        assert kept(row, "number", "outcome") == [(1, "crashed"), (2, "waited")]


class TestMoves:
    @ALL
    def test_say_which_try_they_were(self, model, monkeypatch):
        row = model.objects.create()
        answering(monkeypatch, Retry(after=0), "DONE", model=model)
        drain(model)
        told = row.states.history.get().metadata["try"]
        assert (told["number"], told["worker"]) == (2, "drain()")
        assert 0 <= told["seconds"] < 5

    @ALL
    def test_keep_what_the_handler_says(self, model, monkeypatch):
        row = model.objects.create()
        answering(monkeypatch, Move("DONE", metadata={"why": 'a "b"', "n": [1]}), model=model)
        drain(model)
        told = row.states.history.get().metadata
        assert (told["why"], told["n"], sorted(told)) == ('a "b"', [1], ["n", "try", "why"])

    def test_of_a_handler_that_uses_the_name_itself_are_left_alone(self, executor, committer, monkeypatch):
        row = Effort.objects.create()
        answering(monkeypatch, Move("DONE", metadata={"try": "mine"}))
        run(executor, committer)
        assert row.states.history.get().metadata == {"try": "mine"}

    def test_of_people_say_nothing_of_it(self):
        row = Effort.objects.create()
        assert row.states.transition_to("DONE").metadata == {}

    def test_of_a_machine_that_keeps_no_tries_say_nothing_of_it(self, executor, committer):
        row = Kit.objects.create()
        run(executor, committer, Kit)
        assert row.states.history.get().metadata == {}

    def test_by_the_policy_say_it_too(self, executor, committer, monkeypatch):
        row = Effort.objects.create()
        answering(monkeypatch, ValueError("no luck"))
        drain(Effort)
        told = row.states.history.get().metadata
        assert (told["try"]["number"], told["error"], told["attempts"]) == (3, "ValueError: no luck", 3)


@only_postgresql
@really
class TestStatements:
    @pytest.mark.parametrize("answer", [None, Retry(error="busy"), "DONE", Retry(update={"note": "x"})])
    def test_a_group_is_one(self, answer, executor, committer, monkeypatch):
        Effort.objects.bulk_create(Effort() for _ in range(20))
        answering(monkeypatch, answer)
        outcomes = [executor.run(lease) for lease in claim(lane_of(Effort), 20)]
        with CaptureQueriesContext(connection) as seen:
            committer.commit(outcomes)
        assert len(seen) == 1
        assert Effort.states.attempt_model.objects.count() == (0 if answer == "DONE" else 20)

    def test_a_group_that_failed_for_good_is_one(self, executor, committer, monkeypatch):
        Effort.objects.bulk_create(Effort() for _ in range(20))
        answering(monkeypatch, ValueError())
        leases = claim(lane_of(Effort), 20)
        for lease in leases:
            lease.failures = 2
        outcomes = [executor.run(lease) for lease in leases]
        with CaptureQueriesContext(connection) as seen:
            committer.commit(outcomes)
        assert len(seen) == 1
        assert Effort.states.attempt_model.objects.filter(outcome="failed").count() == 20

    def test_taking_rows_back_is_one(self):
        Effort.objects.bulk_create(Effort() for _ in range(5))
        claim(lane_of(Effort), 5, owner="dead:1")
        with CaptureQueriesContext(connection) as seen:
            lane_of(Effort).recover(Left("dead:1"))
        assert len(seen) == 1


@only_postgresql
@really
class TestLostAnswer:
    @pytest.mark.parametrize("written", [True, False], ids=["heard", "not heard"])
    def test_keeps_the_try_once(self, written, executor, committer, events, break_after, monkeypatch):
        row = Effort.objects.create()
        answering(monkeypatch, ValueError("no luck"))
        outcome = executor.run(claim_one(lane_of(Effort)))
        break_after("stay", written=written)
        with pytest.raises(ConnectionLost):
            committer.commit([outcome])
        connection.close()
        assert committer.commit([outcome]) == []
        assert kept(row, "number", "outcome") == [(1, "failed")]
        assert (events.total["failed"], events.total["dropped"]) == (1, 0)


class TestCounterThatWasSetBack:
    def test_holds_up_no_row(self, executor, committer, monkeypatch):
        row = Effort.objects.create()
        answering(monkeypatch, TryAgainLater(after=0))
        run(executor, committer)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE lab_effort SET status_attempts = 0")
        run(executor, committer)
        assert kept(row, "number") == [(1,)]
        assert columns_of(row).lease_owner == ""


class TestModel:
    def test_is_named_and_found_like_the_audit_model(self):
        import lab.models
        import lab.models.tried

        model = Effort.states.attempt_model
        assert model.__name__ == "EffortStateAttempt"
        assert issubclass(model, StateAttempt)
        assert lab.models.EffortStateAttempt is lab.models.tried.EffortStateAttempt is model
        assert Effort.payment.attempt_model.__name__ == "EffortPaymentStateAttempt"
        assert SavedEffort.states.attempt_model.__name__ == "SavedEffortStateAttempt"

    def test_is_shared_by_proxies_and_children(self, executor, committer, monkeypatch):
        child = BigEffort.objects.create()
        answering(monkeypatch, None)
        run(executor, committer)
        assert BigEffort.states.attempt_model is EffortProxy.states.attempt_model is Effort.states.attempt_model
        assert child.states.attempts.count() == 1
        assert EffortProxy.objects.get().states.attempts.count() == 1
        assert child.status_tries.count() == 1

    def test_is_written_by_workers_alone(self):
        with pytest.raises(StateMachineError, match="written by workers alone"):
            Effort.states.attempt_model(number=1).save()
        with pytest.raises(ValidationError):
            Effort.states.attempt_model(number=1).clean()

    def test_there_is_none_unless_it_is_declared(self):
        assert Kit.states._meta.table.tries is None
        with pytest.raises(AttributeError, match="keeps no tries"):
            _ = Kit.states.attempt_model
        with pytest.raises(AttributeError, match="keeps no tries"):
            _ = Kit(pk=1).states.attempts

    def test_a_row_that_was_never_saved_has_none(self):
        assert list(Effort().states.attempts) == []

    @pytest.mark.parametrize("wrong", [None, 1, "yes"])
    def test_it_is_declared_with_true_or_false(self, wrong):
        with pytest.raises(ValueError, match="record_attempts must be True or False"):
            StateMachine(states=[State("A")], initial="A", transitions={}, record_attempts=wrong)

    @isolate_apps("lab")
    def test_a_machine_that_is_not_timed_has_none(self):
        class Untimed(models.Model):
            states = StateMachine(states=[State("A")], initial="A", transitions={}, record_attempts=True)

            class Meta:
                app_label = "lab"

        with pytest.raises(AttributeError, match="have no handler"):
            _ = Untimed.states.attempt_model

    @isolate_apps("lab")
    def test_a_name_that_is_taken_is_told_of(self):
        class OrderStateAttempt(models.Model):
            class Meta:
                app_label = "lab"

        class Order(models.Model):
            states = StateMachine(
                states=[State("A", timeout_after=5, timeout_to="B"), State("B")],
                initial="A",
                transitions={"A": ["B"]},
                record_attempts=True,
            )

            class Meta:
                app_label = "lab"

        told = [each.msg for each in check_bound(Order.states._meta) if each.id.endswith("E003")]
        assert told == [
            "The model for tries of 'states' is called OrderStateAttempt, and so is another model of the app."
        ]


class TestTraceback:
    def test_keeps_its_end(self):
        try:
            raise ValueError("x" * LONGEST_TRACEBACK + "end")
        except ValueError as error:
            text = traceback_of(error)
        assert len(text) == LONGEST_TRACEBACK
        assert text.startswith("…")
        assert text.endswith("end")

    def test_of_an_error_that_cannot_be_told_is_none(self):
        class Mute(Exception):
            def __str__(self):
                raise RuntimeError

        for error in (None, ValueError("never raised")):
            assert traceback_of(error) == ""
        with pytest.raises(Mute) as raised:
            raise Mute
        assert "Mute" in traceback_of(raised.value)

    def test_has_nothing_that_no_database_stores(self):
        try:
            raise ValueError("a\x00b\ud800")
        except ValueError as error:
            text = traceback_of(error)
        assert "\x00" not in text
        text.encode()
