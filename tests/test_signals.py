"""The four signals: when each is sent, and what a receiver that raises does."""

from __future__ import annotations

import pytest
from django.db import transaction

from lab.models import Car, Stamped, Vehicle
from statemachine_fields import InvalidStateTransition, StateMachineError
from statemachine_fields.signals import post_transition, pre_transition, transition_committed, transition_rejected

pytestmark = pytest.mark.django_db


@pytest.fixture
def row() -> Stamped:
    return Stamped.objects.create()


@pytest.fixture
def connect(connect):
    return lambda signal, receiver, sender=Stamped: connect(signal, receiver, sender)


def test_before_and_after_tell_the_whole_story(row, connect):
    told = []
    connect(pre_transition, lambda **kwargs: told.append(("pre", kwargs)))
    connect(post_transition, lambda **kwargs: told.append(("post", kwargs)))
    record = row.states.transition_to("DONE", metadata={"a": 1})
    assert [when for when, _ in told] == ["pre", "post"]
    for _when, kwargs in told:
        assert kwargs["machine"] is Stamped.states
        assert kwargs["instance"] is row
        assert (kwargs["from_status"], kwargs["to_status"]) == ("NEW", "DONE")
        assert (kwargs["metadata"], kwargs["using"]) == ({"a": 1}, "default")
    assert told[1][1]["transition"] is record


def test_before_nothing_is_written_and_after_everything_is(row, connect):
    seen = []

    def look(instance, **kwargs):
        seen.append((instance.status, Stamped.objects.get().status, instance.states.history.count()))

    connect(pre_transition, look)
    connect(post_transition, look)
    row.states.transition_to("DONE")
    assert seen == [("NEW", "NEW", 0), ("DONE", "DONE", 1)]


def test_before_is_told_of_where_the_row_really_is_and_once(row, connect):
    stale = Stamped.objects.get()
    row.states.transition_to("DONE")
    told = []
    connect(pre_transition, lambda **kwargs: told.append((kwargs["from_status"], kwargs["instance"].status)))
    stale.states.transition_to("NEW")
    assert told == [("DONE", "DONE")]


@pytest.mark.parametrize("signal", [pre_transition, post_transition])
def test_a_receiver_that_raises_undoes_the_move_and_leaves_the_transaction_usable(row, connect, signal):
    def refuse(**kwargs):
        raise RuntimeError("no")

    connect(signal, refuse)
    with transaction.atomic():
        with pytest.raises(RuntimeError):
            row.states.transition_to("DONE")
        assert (row.status, Stamped.objects.get().status, row.states.history.count()) == ("NEW", "NEW", 0)


def test_committed_is_told_after_the_commit_only(row, connect, django_capture_on_commit_callbacks):
    told = []
    connect(transition_committed, lambda **kwargs: told.append(kwargs["transition"]))
    with django_capture_on_commit_callbacks(execute=True):
        record = row.states.transition_to("DONE")
        assert told == []
    assert told == [record]


@pytest.mark.django_db(transaction=True)
def test_committed_is_told_at_once_without_a_transaction_and_never_of_what_was_rolled_back(connect):
    row = Stamped.objects.create()
    told = []
    connect(transition_committed, lambda **kwargs: told.append(kwargs["to_status"]))
    row.states.transition_to("DONE")
    with pytest.raises(KeyError), transaction.atomic():
        row.states.transition_to("NEW")
        raise KeyError
    assert told == ["DONE"]


@pytest.mark.django_db(transaction=True)
def test_a_receiver_of_committed_cannot_undo_what_is_committed(connect, caplog):
    def broken(**kwargs):
        raise RuntimeError("too late")

    row = Stamped.objects.create()
    connect(transition_committed, broken)
    row.states.transition_to("DONE")
    assert (row.status, Stamped.objects.get().status) == ("DONE", "DONE")
    assert "broken" in caplog.text


def test_rejected_is_told_with_the_error(row, connect):
    told = []
    connect(transition_rejected, lambda **kwargs: told.append(kwargs))
    with pytest.raises(InvalidStateTransition) as caught:
        row.states.transition_to("NEW", metadata={"by": "x"})
    assert [kwargs["error"] for kwargs in told] == [caught.value]
    assert (told[0]["from_status"], told[0]["to_status"], told[0]["metadata"]) == ("NEW", "NEW", {"by": "x"})


def test_a_receiver_of_rejected_cannot_hide_the_error(row, connect):
    def broken(**kwargs):
        raise RuntimeError

    connect(transition_rejected, broken)
    with pytest.raises(StateMachineError):
        row.states.transition_to("NEW")


def test_a_receiver_may_move_other_rows(row, connect):
    other = Stamped.objects.create()

    def follow(instance, to_status, **kwargs):
        if instance.pk == row.pk:
            other.states.transition_to(to_status)

    connect(post_transition, follow)
    row.states.transition_to("DONE")
    assert Stamped.objects.get(pk=other.pk).status == "DONE"


def test_the_sender_is_the_model_that_has_the_columns(connect):
    told = []
    connect(post_transition, lambda sender, instance, **kwargs: told.append((sender, type(instance))), sender=Vehicle)
    Car.objects.create().states.transition_to("MOVING")
    assert told == [(Vehicle, Car)]


def test_models_without_receivers_are_not_slowed_by_those_of_others(row, connect, django_assert_num_queries):
    from django.db import connection

    connect(post_transition, lambda **kwargs: None, sender=Vehicle)
    with django_assert_num_queries(1 if connection.vendor == "postgresql" else 2):
        row.states.transition_to("DONE")
