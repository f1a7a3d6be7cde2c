"""What `update=` of an outcome writes: with the group if it can, by itself if it must, and never at a neighbour's expense."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.signals import post_save
from django.test.utils import CaptureQueriesContext

from lab.models import Bin, Kit
from statemachine_fields.signals import row_parked
from statemachine_fields.testing import drain
from statemachine_fields.worker import Move, Park, Retry
from tests.worker.rows import claim, columns_of, lane_of, not_mariadb, only_postgresql

pytestmark = [pytest.mark.django_db, not_mariadb]
really = pytest.mark.django_db(transaction=True)

AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC)
VALUES = {
    "name": 'a"b\\ {,}',
    "words": "NULL",
    "number": -7,
    "small": 3,
    "big": 2**40,
    "ratio": 0.1,
    "price": Decimal("12.34"),
    "is_good": False,
    "day": datetime.date(2026, 1, 2),
    "at": AT,
    "hour": datetime.time(4, 5, 6),
    "took": datetime.timedelta(days=3, seconds=4, microseconds=5),
    "data": {"a": [1, None, "ü"], "b": {"c": True}},
    "uid": uuid.UUID(int=5),
}


@pytest.fixture
def kits():
    return lane_of(Kit)


@pytest.fixture
def answers(monkeypatch):
    """Let the handler answer for each row by its name, or the same for all."""
    given = {}
    monkeypatch.setattr(Kit, "go_on", lambda self, ctx: given.get(self.name, given.get("*")))
    return given


def run(executor, lane, limit=100):
    return [executor.run(lease) for lease in sorted(claim(lane, limit), key=lambda lease: lease.key)]


def create(*names):
    return [Kit.objects.create(name=name) for name in names]


class TestTogether:
    @only_postgresql
    @really
    @pytest.mark.parametrize(
        "answer", [lambda update: Move("DONE", update=update), lambda update: Retry(update=update)]
    )
    def test_a_hundred_rows_are_one_statement(self, answer, kits, answers, executor, committer, monkeypatch):
        rows = Kit.objects.bulk_create(Kit(name=f"n{number}") for number in range(100))
        monkeypatch.setattr(Kit, "go_on", lambda self, ctx: answer({"number": self.pk, "words": self.name}))
        outcomes = run(executor, kits)
        with CaptureQueriesContext(connection) as seen:
            assert committer.commit(outcomes) == []
        assert len(seen) == 1
        found = Kit.objects.values_list("pk", "number", "words")
        assert sorted(found) == sorted((row.pk, row.pk, row.name) for row in rows)

    @only_postgresql
    @really
    def test_it_is_a_statement_for_each_set_of_fields_in_whatever_order(self, kits, answers, executor, committer):
        create("a", "b", "c", "d")
        answers["a"] = Move("DONE", update={"number": 1, "words": "x"})
        answers["b"] = Move("DONE", update={"words": "y", "number": 2})
        answers["c"] = Move("DONE", update={"words": "z"})
        answers["d"] = "DONE"
        outcomes = run(executor, kits)
        with CaptureQueriesContext(connection) as seen:
            committer.commit(outcomes)
        assert len(seen) == 3
        found = Kit.objects.order_by("name").values_list("status", "number", "words")
        assert list(found) == [("DONE", 1, "x"), ("DONE", 2, "y"), ("DONE", 0, "z"), ("DONE", 0, "")]

    @pytest.mark.parametrize(
        "answer", [lambda update: Move("DONE", update=update), lambda update: Retry(update=update)]
    )
    def test_every_kind_of_field_is_written_as_save_would(self, answer, kits, answers, executor, committer):
        first, second = create("a", "b")
        box = Bin.objects.create(name="left")
        answers["a"] = answer({**VALUES, "bin": box})
        answers["b"] = answer(
            {name: None for name in VALUES if name not in ("name", "words", "number")} | {"bin": None}
        )
        outcomes = run(executor, kits)
        assert all(outcome.group is not None for outcome in outcomes)
        assert committer.commit(outcomes) == []
        first.refresh_from_db()
        assert {name: getattr(first, name) for name in VALUES} == VALUES
        assert first.bin == box
        second.refresh_from_db()
        assert {getattr(second, name) for name in VALUES if name not in ("name", "words", "number")} == {None}

    def test_nulls_and_values_meet_in_one_group(self, kits, answers, executor, committer):
        rows = create("a", "b", "c")
        for name, at in (("a", AT), ("b", None), ("c", AT)):
            data = {"at": name} if at else None
            answers[name] = Move("DONE", update={"at": at, "price": at and Decimal("1.5"), "data": data})
        committer.commit(run(executor, kits))
        found = [Kit.objects.get(pk=row.pk) for row in rows]
        assert [row.at for row in found] == [AT, None, AT]
        assert [row.price for row in found] == [Decimal("1.50"), None, Decimal("1.50")]
        assert [row.data for row in found] == [{"at": "a"}, None, {"at": "c"}]

    @pytest.mark.parametrize(
        "answer", [lambda update: Move("DONE", update=update), lambda update: Retry(update=update)]
    )
    def test_auto_now_fields_are_refreshed(self, answer, kits, answers, executor, committer):
        (row,) = create("a")
        answers["*"] = answer({"number": 3})
        committer.commit(run(executor, kits))
        assert Kit.objects.get(pk=row.pk).touched_at > row.touched_at


class TestByItself:
    """What the database computes, and what has a way of its own to be written."""

    @pytest.mark.parametrize(
        "update", [{"number": F("number") + 5}, {"raw": b"\x00\x01"}, {"touched_at": AT}, {"number": 5, "raw": b"x"}]
    )
    @pytest.mark.parametrize(
        "answer", [lambda update: Move("DONE", update=update), lambda update: Retry(update=update)]
    )
    def test_is_written_all_the_same(self, answer, update, kits, answers, executor, committer):
        (row,) = create("a")
        answers["*"] = answer(update)
        outcomes = run(executor, kits)
        if connection.vendor == "postgresql" or "raw" not in update:
            assert [outcome.group for outcome in outcomes] == [None]
        assert committer.commit(outcomes) == []
        found = Kit.objects.get(pk=row.pk)
        assert found.number == (5 if "number" in update else 0)
        assert found.raw is None or bytes(found.raw) == update["raw"]
        assert found.touched_at > row.touched_at

    def test_a_model_that_somebody_hears_of_is_saved(self, kits, answers, executor, committer):
        (row,) = create("a")
        heard = []

        def hear(instance, update_fields, **facts):
            heard.append((instance.number, sorted(update_fields)))

        answers["*"] = Retry(update={"number": 5})
        outcomes = run(executor, kits)
        post_save.connect(hear, sender=Kit)
        try:
            assert committer.commit(outcomes) == []
        finally:
            post_save.disconnect(hear, sender=Kit)
        assert heard == [(5, ["number", "touched_at"])]
        assert (columns_of(row).failures, Kit.objects.get().number) == (1, 5)

    def test_a_related_row_that_was_not_saved_is_a_failure(self, kits, answers, executor, committer):
        (row,) = create("a")
        answers["*"] = Move("DONE", update={"bin": Bin(name=None)})
        committer.commit(run(executor, kits))
        assert columns_of(row).status == "NEW"
        assert "The move to 'DONE' could not be written. ValueError" in columns_of(row).error

    def test_a_field_that_there_is_not_is_a_failure_of_the_handler(self, kits, answers, executor, committer):
        rows = create("a", "b")
        answers["a"], answers["b"] = Move("DONE", update={"nmae": 1}), Retry(update={"status": "DONE"})
        committer.commit(run(executor, kits))
        errors = [columns_of(row).error for row in rows]
        assert [error.split(",")[0] for error in errors] == [
            "TypeError: update= names 'nmae'",
            "TypeError: update= names 'status'",
        ]


class TestOneBadRow:
    @only_postgresql
    @pytest.mark.parametrize("bad", ["too long for it", "a\x00b", "\ud800"])
    @pytest.mark.parametrize(
        "answer", [lambda update: Move("DONE", update=update), lambda update: Retry(update=update)]
    )
    def test_fails_without_its_update_and_harms_no_neighbour(self, answer, bad, kits, answers, executor, committer):
        rows = create(*"abcde")
        for row in rows:
            answers[row.name] = answer({"name": bad if row.name == "c" else row.name.upper(), "number": 1})
        assert committer.commit(run(executor, kits)) == []
        found = list(Kit.objects.order_by("pk").values_list("name", "number"))
        assert found == [("A", 1), ("B", 1), ("c", 0), ("D", 1), ("E", 1)]
        row = columns_of(rows[2])
        assert (row.status, row.failures, row.lease_owner) == ("NEW", 1, "")
        assert "could not be written" in row.error

    @only_postgresql
    def test_that_was_the_last_try_is_moved_without_the_update(self, answers):
        (row,) = create("a")
        answers["*"] = Retry(update={"name": "too long for it"})
        assert drain(Kit).tries == 3
        assert (columns_of(row).status, Kit.objects.get().name) == ("FAILED", "a")

    def test_numbers_out_of_range_are_refused_alone(self, kits, answers, executor, committer):
        rows = create("a", "b")
        answers["a"], answers["b"] = Move("DONE", update={"small": -1}), Move("DONE", update={"small": 1})
        committer.commit(run(executor, kits))
        assert [columns_of(row).status for row in rows] == ["NEW", "DONE"]


class TestRetry:
    def test_the_update_goes_with_what_becomes_of_the_try(self, answers):
        (row,) = create("a")
        seen = []

        def count_up(self, ctx):
            seen.append(self.number)
            return Retry(after=0, error="again", update={"number": self.number + 1})

        Kit.go_on, real = count_up, Kit.go_on
        try:
            drain(Kit)
        finally:
            Kit.go_on = real
        row.refresh_from_db()
        assert (row.status, row.number, seen) == ("FAILED", 3, [0, 1, 2])

    def test_a_row_that_is_parked_has_its_update(self, kits, answers, executor, committer):
        row = Kit.objects.create(status="NEXT")
        for number in (1, 2):
            answers["*"] = answers[""] = Retry(after=0, error="again", update={"number": number})
            committer.commit(run(executor, kits))
        assert (columns_of(row).next_at, Kit.objects.get().number) == (None, 2)
        assert columns_of(row).error == "again"

    @only_postgresql
    def test_an_outcome_that_came_too_late_writes_nothing(self, kits, answers, executor, committer, events):
        (row,) = create("a")
        answers["*"] = Retry(update={"number": 5})
        outcomes = run(executor, kits)
        held = Kit.objects.get()
        assert held.states.release()
        committer.commit(outcomes)
        assert (Kit.objects.get().number, columns_of(row).failures, events.total["dropped"]) == (0, 0, 1)


class TestPark:
    @pytest.mark.parametrize("reason", ["Call them.", ValueError("no address")])
    def test_takes_the_row_out_of_the_clock_with_the_reason(self, reason, kits, answers, executor, committer, caplog):
        (row,) = create("a")
        told = []

        def hear(instance, error, **facts):
            told.append((instance.pk, error))

        answers["*"] = Park(reason)
        row_parked.connect(hear, sender=Kit)
        try:
            committer.commit(run(executor, kits))
        finally:
            row_parked.disconnect(hear, sender=Kit)
        found, text = columns_of(row), "ValueError: no address" if isinstance(reason, ValueError) else reason
        assert (found.status, found.next_at, found.failures, found.error) == ("NEW", None, 0, text)
        assert told == [(row.pk, text)]
        assert "was parked by its handler in state 'NEW' until somebody calls resume()" in caplog.text
        assert list(Kit.states.parked()) == [row]

    def test_resume_brings_it_back(self, kits, answers, executor, committer):
        (row,) = create("a")
        answers["*"] = Park("Call them.")
        committer.commit(run(executor, kits))
        assert row.states.resume()
        answers["*"] = "DONE"
        committer.commit(run(executor, kits))
        assert columns_of(row).status == "DONE"

    def test_keeps_the_failures_that_were_counted(self, kits, answers, executor, committer):
        (row,) = create("a")
        answers["*"] = Retry(after=0)
        committer.commit(run(executor, kits))
        answers["*"] = Park("Call them.")
        committer.commit(run(executor, kits))
        assert columns_of(row).failures == 1

    @pytest.mark.parametrize(("reason", "error"), [("", ValueError), ("  ", ValueError), (None, TypeError)])
    def test_needs_a_reason(self, reason, error):
        with pytest.raises(error):
            Park(reason)

    @pytest.mark.parametrize("answer", [Retry, lambda update: Move("DONE", update=update)])
    @pytest.mark.parametrize("update", ["name", ["name"], 3, {"name"}])
    def test_update_is_a_dictionary(self, answer, update):
        with pytest.raises(TypeError, match="update must be a dictionary"):
            answer(update=update)

    def test_is_counted_by_drain(self, answers):
        create("a")
        answers["*"] = Park("Call them.")
        tally = drain(Kit)
        assert (tally.parked, tally.errors) == (1, ["Call them."])
