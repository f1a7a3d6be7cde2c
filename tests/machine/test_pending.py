"""A status that is recorded first and left to a `save()`: no record stands for a move that was not made."""

from __future__ import annotations

import logging

import pytest
from django.db import IntegrityError, models, transaction
from django.db.models import F, Value
from django.db.models.functions import Concat
from django.db.models.signals import post_save, pre_save
from django.test.utils import isolate_apps

from lab.models import Audited, Document, Kept, Stamped
from statemachine_fields import ConcurrentTransition, RowMissing, StateMachineError
from statemachine_fields.signals import pre_transition

pytestmark = pytest.mark.django_db


def story(row):
    """Return where the row is, and what its history says, the oldest first."""
    model = type(row)._meta.concrete_model
    stored = model._base_manager.values_list("status", flat=True).get(pk=row.pk)
    records = row.states.history.order_by("sequence")
    return stored, list(records.values_list("from_status", "to_status"))


@pytest.fixture
def receivers(connect):
    return lambda signal, receiver, sender=Audited: connect(signal, receiver, sender)


def swallowing(model, harm):
    """Return a proxy whose `save()` saves in a block of its own, does harm there, and hides what came of it."""
    with isolate_apps("lab"):

        class Swallowing(model):
            class Meta:
                app_label = "lab"
                proxy = True

            def save(self, *args, **kwargs):
                try:
                    with transaction.atomic():
                        models.Model.save(self, *args, **kwargs)
                        harm(self)
                except IntegrityError:
                    pass

        return Swallowing


def break_a_constraint(row):
    Stamped.objects.create(pk=Stamped.objects.create().pk)


class TestARecordWithoutAMove:
    def test_is_not_left_by_a_save_that_swallows_the_error_of_a_block_of_its_own(self):
        row = Stamped.objects.create(name="a")
        row.__class__ = swallowing(Stamped, break_a_constraint)
        with pytest.raises(StateMachineError, match=r"save\(\) returned, but the row did not get to 'DONE'"):
            row.states.transition_to("DONE")
        assert story(row) == ("NEW", [])
        assert (row.status, row.status_sequence) == ("NEW", 0)

    def test_is_not_left_by_a_receiver_of_pre_save_that_moves_the_row_elsewhere(self, receivers):
        def elsewhere(instance, **kwargs):
            pre_save.disconnect(elsewhere, sender=Audited)
            Audited.objects.get(pk=instance.pk).states.transition_to("FAILED")

        row = Audited.objects.create()
        receivers(pre_save, elsewhere)
        with pytest.raises(StateMachineError, match="a receiver of pre_save moved the row"):
            row.states.transition_to("DONE")
        assert story(row) == ("NEW", [])

    def test_is_not_left_by_a_save_in_another_transaction_block_that_is_rolled_back_on_purpose(self):
        def roll_back(row):
            transaction.set_rollback(True)

        row = Stamped.objects.create()
        row.__class__ = swallowing(Stamped, roll_back)
        with pytest.raises(StateMachineError, match="did not get to 'DONE'"):
            row.states.transition_to("DONE")
        assert story(row) == ("NEW", [])

    @isolate_apps("lab")
    def test_is_not_left_by_a_save_that_swallows_an_error_of_the_database(self):
        class Careless(Stamped):
            class Meta:
                app_label = "lab"
                proxy = True

            def save(self, *args, **kwargs):
                try:
                    super().save(*args, **kwargs)
                    break_a_constraint(self)
                except IntegrityError:
                    pass

        row = Stamped.objects.create()
        row.__class__ = Careless
        with pytest.raises(StateMachineError, match="swallowed an error of the database"):
            row.states.transition_to("DONE")
        assert story(row) == ("NEW", [])
        assert row.status == "NEW"

    @isolate_apps("lab")
    def test_is_not_left_by_a_save_that_moves_the_row_before_it_saves_it(self):
        class Hasty(Audited):
            class Meta:
                app_label = "lab"
                proxy = True

            def save(self, *args, **kwargs):
                if self.status == "DONE":
                    Audited.objects.get(pk=self.pk).states.transition_to("FAILED")
                super().save(*args, **kwargs)

        row = Audited.objects.create()
        row.__class__ = Hasty
        with pytest.raises(StateMachineError, match="did not get to 'DONE'"):
            row.states.transition_to("DONE")
        assert story(row) == ("NEW", [])

    def test_is_not_left_in_bulk(self):
        row = Stamped.objects.create()
        proxy = swallowing(Stamped, break_a_constraint)
        with pytest.raises(StateMachineError, match="did not get to 'DONE'"):
            proxy.states.bulk_transition(proxy.objects.filter(pk=row.pk), "DONE")
        assert story(row) == ("NEW", [])

    def test_leaves_the_transaction_around_it_usable(self):
        row = Stamped.objects.create()
        row.__class__ = swallowing(Stamped, break_a_constraint)
        with transaction.atomic():
            with pytest.raises(StateMachineError):
                row.states.transition_to("DONE")
            assert Stamped.objects.filter(pk=row.pk, status="NEW").exists()

    def test_is_not_what_a_receiver_leaves_that_moves_the_row_on(self, receivers):
        def back(instance, **kwargs):
            if instance.status == "DONE":
                Audited.objects.get(pk=instance.pk).states.transition_to("NEW")

        row = Audited.objects.create()
        receivers(post_save, back)
        row.states.transition_to("DONE")
        assert story(row) == ("NEW", [("NEW", "DONE"), ("DONE", "NEW")])

    def test_is_not_what_a_receiver_leaves_that_moves_the_same_instance_on(self, receivers):
        def back(instance, **kwargs):
            if instance.status == "DONE":
                instance.states.transition_to("NEW")

        row = Audited.objects.create()
        receivers(post_save, back)
        row.states.transition_to("DONE")
        assert story(row) == ("NEW", [("NEW", "DONE"), ("DONE", "NEW")])
        assert (row.status, row.status_sequence) == ("NEW", 2)

    def test_is_not_what_a_receiver_leaves_that_deletes_the_row(self, receivers):
        def drop(instance, **kwargs):
            instance.delete()

        row = Kept.objects.create()
        pk = row.pk
        receivers(post_save, drop, Kept)
        target = Kept.states.transitions[row.status][0]
        record = row.states.transition_to(target)
        assert record.to_status == target
        assert not Kept.objects.filter(pk=pk).exists()


class TestExpressions:
    """What the database computes is applied once, whatever saves the row how often."""

    longer = {"author": Concat(F("author"), Value("!"))}

    @pytest.fixture
    def document(self):
        return Document.objects.create(words=5, author="ada")

    def long_way(self, receivers, receiver=lambda **kwargs: None):
        receivers(post_save, receiver, Document)

    def test_are_on_the_instance_as_what_they_came_to(self, document, receivers):
        self.long_way(receivers)
        document.states.transition_to("REVIEW", update=self.longer)
        assert document.author == "ada!"
        document.save()
        assert Document.objects.get(pk=document.pk).author == "ada!"

    def test_count_once_if_a_receiver_saves_again(self, document, receivers):
        saved = []

        def again(instance, **kwargs):
            if not saved:
                saved.append(instance.author)
                instance.save()

        self.long_way(receivers, again)
        document.states.transition_to("REVIEW", update={**self.longer, "words": 7})
        assert saved == ["ada!"]
        assert Document.objects.values_list("words", "author").get(pk=document.pk) == (7, "ada!")

    def test_count_once_with_a_save_of_the_callers(self, document):
        with transaction.atomic():
            document.states.transition_to("REVIEW", update=self.longer, save=False)
            document.save()
            document.save()
        assert (document.author, Document.objects.get(pk=document.pk).author) == ("ada!", "ada!")

    @pytest.mark.parametrize("is_long", [False, True])
    def test_count_once_if_the_row_is_saved_before_the_move(self, document, receivers, is_long):
        seen = []

        def save(instance, **kwargs):
            seen.append(instance.author)
            instance.save()

        receivers(pre_transition, save, Document)
        if is_long:
            self.long_way(receivers)
        document.states.transition_to("REVIEW", update=self.longer)
        assert seen == ["ada"]
        assert (document.author, Document.objects.get(pk=document.pk).author) == ("ada!", "ada!")

    def test_guards_are_asked_about_what_the_row_holds(self, document):
        document.states.transition_to("REVIEW", update={"words": F("words") - 5})  # needs words, and had them
        assert (document.words, Document.objects.get(pk=document.pk).words) == (0, 0)

    def test_do_not_hide_what_else_is_changed_from_those_who_watch(self, document, receivers, monkeypatch):
        """As libraries do that compare with what was loaded last."""

        def refuse(*args, **kwargs):
            raise AssertionError("the row was loaded again")

        self.long_way(receivers)
        monkeypatch.setattr(Document, "refresh_from_db", refuse)
        document.states.transition_to("REVIEW", update=self.longer)
        assert document.author == "ada!"

    def test_stay_deferred_until_they_are_computed(self, document):
        document = Document.objects.defer("author").get(pk=document.pk)
        document.states.transition_to("REVIEW", update=self.longer)
        assert vars(document)["author"] == "ada!"

    def test_are_gone_from_the_instance_if_the_move_is_refused(self, document, receivers):
        self.long_way(receivers)
        with pytest.raises(StateMachineError):
            document.states.transition_to("REVIEW", update={**self.longer, "words": 0})
        assert (document.author, document.words) == ("ada", 5)
        assert Document.objects.get(pk=document.pk).author == "ada"


class TwoInOne:
    """A descriptor that fills two fields, as one for an amount with its currency does."""

    def __get__(self, instance, owner):
        return self if instance is None else vars(instance)["words"]

    def __set__(self, instance, value):
        words, author = value if isinstance(value, tuple) else (value, vars(instance).get("author", "ada"))
        vars(instance).update(words=words, author=author)


class TestFieldsThatFillOthers:
    @pytest.fixture
    def document(self, monkeypatch):
        document = Document.objects.create(words=5)
        monkeypatch.setattr(Document, "words", TwoInOne())
        return document

    def test_are_written_together(self, document):
        document.states.transition_to("REVIEW", update={"words": (7, "bob")})
        assert Document.objects.values_list("words", "author").get(pk=document.pk) == (7, "bob")
        assert (document.words, document.author) == (7, "bob")

    def test_are_put_back_together_if_the_move_is_refused(self, document):
        with pytest.raises(StateMachineError):
            document.states.transition_to("REVIEW", update={"words": (0, "bob")})
        assert (document.words, document.author) == (5, "ada")

    def test_are_written_together_by_a_save(self, document, receivers):
        receivers(post_save, lambda **kwargs: None, Document)
        document.states.transition_to("REVIEW", update={"words": (7, "bob")})
        assert Document.objects.values_list("words", "author").get(pk=document.pk) == (7, "bob")


class TestSaveFalse:
    @pytest.fixture
    def complaints(self, caplog, django_capture_on_commit_callbacks):
        def of(work):
            with (
                caplog.at_level(logging.ERROR, "statemachine_fields"),
                django_capture_on_commit_callbacks(execute=True),
            ):
                work()
            return caplog.messages

        return of

    def test_whose_save_is_undone_by_a_savepoint_is_logged(self, complaints):
        row = Stamped.objects.create()

        def work():
            row.states.transition_to("DONE", save=False)
            try:
                with transaction.atomic():
                    row.save()
                    break_a_constraint(row)
            except IntegrityError:
                pass

        (message,) = complaints(work)
        assert f"lab.Stamped pk={row.pk}: the move to 'DONE' was recorded with save=False and never saved" in message

    def test_whose_row_another_instance_moves_before_the_save_is_logged(self, complaints):
        row = Stamped.objects.create()

        def work():
            row.states.transition_to("DONE", save=False)
            Stamped.objects.get(pk=row.pk).states.transition_to("FAILED")
            row.save()

        assert len(complaints(work)) == 1
        assert story(row)[0] == "FAILED"

    @pytest.mark.parametrize("then", [lambda row: row.states.transition_to("NEW"), lambda row: row.delete()])
    def test_that_is_saved_and_moves_on_or_is_deleted_is_not_logged(self, then, complaints):
        row = Stamped.objects.create()

        def work():
            row.states.transition_to("DONE", save=False)
            row.save()
            then(row)

        assert complaints(work) == []

    def test_is_not_written_to_another_row(self, complaints):
        row, other = Stamped.objects.create(), Stamped.objects.create()
        other.states.transition_to("DONE")
        other.states.transition_to("NEW")
        key = row.pk

        def work():
            row.states.transition_to("DONE", save=False)
            row.pk = other.pk
            row.save()

        assert len(complaints(work)) == 1
        assert set(Stamped.objects.values_list("pk", "status")) == {(key, "NEW"), (other.pk, "NEW")}

    def test_is_not_written_to_another_row_with_the_same_count(self, complaints):
        row, other = Stamped.objects.create(), Stamped.objects.create()
        other.states.transition_to("FAILED")

        def work():
            row.states.transition_to("DONE", save=False)
            row.pk = other.pk
            row.save()

        complaints(work)
        assert Stamped.objects.get(pk=other.pk).status == "FAILED"


class TestAReceiverOfPreTransition:
    def test_that_moves_the_row_is_told_where_the_row_is(self, receivers):
        def elsewhere(instance, to_status, **kwargs):
            if to_status == "DONE":
                Audited.objects.get(pk=instance.pk).states.transition_to("FAILED")

        row = Audited.objects.create()
        receivers(pre_transition, elsewhere)
        with pytest.raises(ConcurrentTransition) as caught:
            row.states.transition_to("DONE")
        assert (caught.value.status, caught.value.sequence) == ("FAILED", 1)
        assert "it was moved while this move was being made, and is in 'FAILED' at sequence 1" in str(caught.value)

    def test_that_deletes_the_row_is_told_that_it_is_gone(self, receivers):
        def drop(instance, **kwargs):
            Audited.objects.filter(pk=instance.pk).delete()

        row = Audited.objects.create()
        receivers(pre_transition, drop)
        with pytest.raises(RowMissing):
            row.states.transition_to("DONE")
