"""History that outlives its row, and a key that is used again: the new row begins after it, and begins visibly."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from django.core import serializers
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from lab.models import Guest, Kept, Stamped
from statemachine_fields import InvalidStateTransition
from statemachine_fields.admin.row_page import StoryReader
from statemachine_fields.machine.verify import Verifier
from statemachine_fields.testing import assert_history, drain

pytestmark = pytest.mark.django_db

KEY = 41


def before(model: Any = Kept, *states: str) -> datetime.datetime:
    """Leave the history of a row behind that is gone, and return a time before it was deleted."""
    row = model.objects.create(pk=KEY)
    for state in states or ("DONE", "NEW", "DONE"):
        row.states.force_transition_to(state, reason="to be kept")
    at: datetime.datetime = row.status_changed_at - datetime.timedelta(milliseconds=1)
    row.delete()
    return at


def records(model: Any = Kept) -> list[tuple[int, str, str]]:
    """Return all records of the key, as number, from and to."""
    kept = model.states.transition_model.objects.filter(instance_id=KEY).order_by("sequence")
    return list(kept.values_list("sequence", "from_status", "to_status"))


def findings(model: Any = Kept) -> list[str]:
    return [finding.code for finding in Verifier(model.states._meta).findings()]


OLD = [(1, "NEW", "DONE"), (2, "DONE", "NEW"), (3, "NEW", "DONE")]
BOUNDARY = (4, "", "NEW")


class TestARowThatIsCreated:
    def test_begins_with_a_record_after_those_that_were_kept(self):
        before()
        row = Kept.objects.create(pk=KEY)
        assert records() == [*OLD, BOUNDARY]
        assert (row.status_sequence, Kept.objects.get().status_sequence) == (4, 4)
        assert row.status_changed_at == row.states.history.get().transitioned_at
        assert findings() == []

    def test_in_another_state(self):
        before()
        Kept.objects.create(pk=KEY, status="DONE")
        assert records()[-1] == (4, "", "DONE")

    def test_moves_on_from_there(self):
        before()
        row = Kept.objects.create(pk=KEY)
        row.states.transition_to("DONE", expected=4)
        assert records() == [*OLD, BOUNDARY, (5, "NEW", "DONE")]
        assert findings() == []

    def test_again_and_again(self):
        for _ in range(3):
            before(Kept, "DONE")
        assert records() == [(1, "NEW", "DONE"), (2, "", "NEW"), (3, "NEW", "DONE"), (4, "", "NEW"), (5, "NEW", "DONE")]
        assert findings() == []

    def test_needs_no_first_record_if_nothing_was_kept(self):
        row = Kept.objects.create(pk=KEY)
        assert (row.status_sequence, records()) == (0, [])

    def test_where_every_first_state_is_recorded(self, monkeypatch):
        monkeypatch.setattr(Kept.states._meta.machine, "record_initial", True)
        before()
        row = Kept.objects.create(pk=KEY)
        assert records() == [(1, "", "NEW"), (2, "NEW", "DONE"), (3, "DONE", "NEW"), (4, "NEW", "DONE"), (5, "", "NEW")]
        assert row.status_sequence == 5
        assert findings() == []

    def test_with_a_transaction_that_is_undone(self):
        before()
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            Kept.objects.create(pk=KEY)
            raise ZeroDivisionError
        assert records() == OLD

    def test_with_a_key_that_the_database_made(self, django_assert_num_queries):
        with django_assert_num_queries(1):
            row = Kept.objects.create()
        kept = Kept.states._meta.build_record(
            instance_id=row.pk, sequence=3, from_status="NEW", to_status="DONE", transitioned_at=timezone.now()
        )
        Kept.states.transition_model.objects.bulk_create([kept])  # as if its sequence had been reset
        assert row.states.transition_to("DONE").sequence == 5

    def test_costs_machines_of_the_other_kinds_nothing(self, django_assert_num_queries):
        row = Stamped()
        with django_assert_num_queries(1):
            row.save()
        with CaptureQueriesContext(connection) as queries:
            row.states.transition_to("DONE")
        assert not [query for query in queries if "MAX(" in query["sql"]]


class TestARowThatNobodySawBeingMade:
    """As `bulk_create()` makes it, or SQL: its counter is 0, and whoever moves it first finds out what was kept."""

    @pytest.fixture
    def row(self) -> Kept:
        before()
        Kept.objects.bulk_create([Kept(pk=KEY)])
        return Kept.objects.get()

    def test_has_no_history_yet(self, row):
        assert list(row.states.history) == []
        assert row.states.status_at(timezone.now()) == "NEW"
        assert findings() == []

    def test_moved_alone(self, row):
        transition = row.states.transition_to("DONE")
        assert (transition.sequence, row.status_sequence) == (5, 5)
        assert records() == [*OLD, BOUNDARY, (5, "NEW", "DONE")]
        assert findings() == []

    def test_moved_from_where_it_was_seen(self, row):
        row.states.transition_to("DONE", expected=0)
        assert records() == [*OLD, BOUNDARY, (5, "NEW", "DONE")]

    def test_has_not_begun_if_its_first_move_is_refused(self, row):
        with pytest.raises(InvalidStateTransition):
            row.states.transition_to("NEW")
        assert records() == OLD
        assert (row.status_sequence, Kept.objects.get().status_sequence) == (0, 0)
        row.states.transition_to("DONE", expected=0)
        assert records() == [*OLD, BOUNDARY, (5, "NEW", "DONE")]

    def test_moved_with_save_false(self, row):
        with transaction.atomic():
            row.states.transition_to("DONE", save=False)
            row.save()
        assert records() == [*OLD, BOUNDARY, (5, "NEW", "DONE")]
        assert findings() == []

    @pytest.mark.parametrize(
        ("write", "new"),
        [
            (lambda rows: Kept.states.bulk_transition(rows, "DONE").moved, [(5, "NEW", "DONE")]),
            (Kept.states.record_initial, []),
        ],
        ids=["moved with others", "recorded first"],
    )
    def test_written_with_others(self, write, new, row):
        Kept.objects.bulk_create([Kept(pk=KEY + 1)])
        assert write(Kept.objects.all()) == 2
        assert records() == [*OLD, BOUNDARY, *new]
        assert [each.sequence for each in Kept.objects.get(pk=KEY + 1).states.history] == [1]
        assert findings() == []

    def test_moved_by_a_worker(self):
        before(Guest, "LEFT")
        Guest.objects.bulk_create([Guest(pk=KEY)])
        drain(Guest, timeouts=True)
        assert [number for number, _source, _target in records(Guest)] == list(range(1, 1 + len(records(Guest))))
        assert records(Guest)[1] == (2, "", Guest.states.initial)
        assert len(records(Guest)) > 2
        assert findings(Guest) == []


class TestARowThatIsBroughtBack:
    """By a raw save, from a copy that was made before it was deleted."""

    def bring_back(self, moves_before: int, model: Any = Kept) -> Any:
        row = model.objects.create(pk=KEY)
        versions = [serializers.serialize("json", [row])]
        for state in ("DONE", "NEW", "DONE"):
            row.states.transition_to(state)
            versions.append(serializers.serialize("json", [row]))
        row.delete()
        (loaded,) = serializers.deserialize("json", versions[moves_before])
        loaded.save()
        return loaded.object

    @pytest.mark.parametrize(("moves_before", "status"), [(0, "NEW"), (1, "DONE"), (2, "NEW")])
    def test_begins_again_after_moves_that_its_copy_does_not_know(self, moves_before, status, caplog):
        row = self.bring_back(moves_before)
        assert records() == [*OLD, (4, "", status)]
        stored = Kept.objects.get()
        assert (row.status, row.status_sequence, row.status_changed_at) == (status, 4, stored.status_changed_at)
        assert (
            f"as of transition {moves_before} of 'status', and the history that was kept of it goes up to 3"
            in caplog.text
        )
        assert findings() == []
        assert row.states.transition_to({"NEW": "DONE", "DONE": "NEW"}[status]).sequence == 5
        assert findings() == []

    def test_goes_on_if_its_copy_is_of_the_last_move(self, caplog):
        row = self.bring_back(3)
        assert (records(), row.status_sequence, caplog.text) == (OLD, 3, "")
        row.states.transition_to("NEW")
        assert records() == [*OLD, (4, "DONE", "NEW")]
        assert findings() == []

    def test_from_a_fixture_with_its_records(self):
        row = Kept.objects.create(pk=KEY)
        row.states.transition_to("DONE")
        fixture = serializers.serialize("json", [row, *Kept.states.transition_model.objects.all()])
        row.states.transition_to("NEW")
        row.delete()
        for loaded in serializers.deserialize("json", fixture):
            loaded.save()
        assert records() == [*OLD[:2], (3, "", "DONE")]
        assert findings() == []


class TestWhatKnowsWhereTheNewRowBegins:
    @pytest.fixture
    def ago(self) -> datetime.datetime:
        ago = before()
        Kept.objects.create(pk=KEY).states.transition_to("DONE")
        return ago

    def test_history(self, ago):
        row = Kept.objects.get()
        assert [each.sequence for each in row.states.history] == [5, 4]
        assert_history(row, "NEW", "DONE")

    def test_history_of_a_row_that_is_held_by_somebody_and_gone(self, ago):
        row = Kept.objects.get()
        Kept.objects.all().delete()
        assert [each.sequence for each in row.states.history] == [5, 4]

    def test_where_it_was(self, ago):
        row = Kept.objects.get()
        assert row.states.status_at(ago) is None
        assert Kept.states.as_of(ago).get().status_as_of is None
        assert row.states.status_at(timezone.now()) == "DONE"

    def test_how_long_rows_stay(self, ago):
        assert set(Kept.states.durations().edges) == {("DONE", "NEW"), ("NEW", "DONE")}
        assert sum(each.count for each in Kept.states.durations().states.values()) == 3

    def test_its_story_in_the_admin(self, ago):
        row = Kept.objects.get()
        for state in ("NEW", "DONE", "NEW"):
            row.states.transition_to(state)
        reader = StoryReader(Kept.states._meta, row, {}, 2)
        newest = reader.read()
        assert (newest.total, [entry.number for entry in newest.entries]) == (5, [8, 7])
        oldest = reader.read(int(newest.oldest.removeprefix("?before=")))
        assert [entry.number for entry in oldest.entries] == [5, 4]
        assert oldest.older == ""

    def test_damage_beside_it(self, ago):
        Kept.states.transition_model.objects.filter(sequence=4).delete()
        assert findings() == ["records-missing"]
