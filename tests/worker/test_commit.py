"""Outcomes are written together, each on its own responsibility."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.db.models.signals import post_delete, post_save
from django.test.utils import CaptureQueriesContext

from lab.models import Chore, Lot, Noted, Pin, Ticking
from statemachine_fields.signals import (
    handler_failed,
    outcome_dropped,
    post_transition,
    pre_transition,
    row_parked,
    rows_deleted,
    transition_committed,
)
from statemachine_fields.worker import Move
from statemachine_fields.worker.atomic import LeftOpen, RolledBack, TrackedTransaction
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.lease import lanes_of
from statemachine_fields.worker.outcomes import Deleted, Failed, Parked, Released, Transitioned, Waited
from statemachine_fields.worker.writing import ConnectionLost
from tests.worker.rows import (
    about,
    claim,
    claim_one,
    columns_of,
    elsewhere,
    in_seconds,
    lane_of,
    let_lease_run_out,
    locked,
    must_not_wait,
    not_mariadb,
    only_postgresql,
    seconds_until,
    set_clock,
)

pytestmark = [pytest.mark.django_db, not_mariadb]
really = pytest.mark.django_db(transaction=True)


def outcome_of(lease, kind, **facts):
    """Return an outcome of each kind, such as a handler would bring about."""
    usual = {
        Transitioned: {"to_status": "SOLD"},
        Waited: {"delay": 60.0},
        Failed: {"delay": 60.0, "failures": 1, "error": "no luck"},
        Parked: {"failures": 1, "error": "no luck at all"},
    }.get(kind, {})
    return kind(lease, **{**usual, **facts})


def run(executor, lane, limit=10):
    """Claim and run, and return the outcomes by key."""
    return [executor.run(lease) for lease in sorted(claim(lane, limit), key=lambda lease: lease.key)]


class Elsewhere:
    """A router that sends every write to another database."""

    def db_for_write(self, model, **hints):
        return "default"


def statements():
    return CaptureQueriesContext(connection)


@only_postgresql
@really
class TestStatements:
    def test_a_claim_is_one(self, lots):
        Lot.objects.bulk_create(Lot(status=status) for status in ("OPEN", "BID", "URGENT") * 10)
        with statements() as seen:
            assert len(claim(lots, 50)) == 30
        assert len(seen) == 1

    @pytest.mark.parametrize("number", [1, 30])
    @pytest.mark.parametrize("kind", [Transitioned, Waited, Failed, Parked, Released])
    def test_a_commit_is_one_for_any_number_of_rows(self, kind, number, lots, committer, events):
        Lot.objects.bulk_create(Lot() for _ in range(number))
        outcomes = [outcome_of(lease, kind) for lease in claim(lots, 50)]
        with statements() as seen:
            assert committer.commit(outcomes) == []
        assert len(seen) == 1
        assert events.total[kind.kind] == number

    def test_a_commit_is_one_for_all_that_stay_in_their_state(self, lots, committer):
        Lot.objects.bulk_create(Lot() for _ in range(9))
        kinds = [Waited, Failed, Parked] * 3
        outcomes = [outcome_of(lease, kind) for lease, kind in zip(claim(lots), kinds, strict=True)]
        with statements() as seen:
            committer.commit(outcomes)
        assert len(seen) == 1

    def test_a_commit_is_one_for_each_lane_and_way(self, lots, committer):
        Lot.objects.bulk_create(Lot() for _ in range(6))
        Chore.objects.bulk_create(Chore() for _ in range(6))
        outcomes = [
            outcome_of(lease, kind, **({"to_status": "DOING"} if kind is Transitioned and lane is not lots else {}))
            for lane in (lots, lane_of(Chore))
            for lease, kind in zip(claim(lane), [Transitioned, Waited] * 3, strict=True)
        ]
        with statements() as seen:
            committer.commit(outcomes)
        assert len(seen) == 4


class TestWritten:
    def test_is_what_the_handlers_said(self, executor, committer, events):
        scripts = {"moves": "DOING", "waits": None, "fails": "raise", "asks": "retry"}
        for name, step in scripts.items():
            Chore.objects.create(name=name, script={"NEW": step})
        assert committer.commit(run(executor, lane_of(Chore))) == []
        rows = {row.name: columns_of(row) for row in Chore.objects.all()}
        assert {name: (row.status, row.failures, row.error) for name, row in rows.items()} == {
            "moves": ("DOING", 0, ""),
            "waits": ("NEW", 0, ""),
            "fails": ("NEW", 1, "ValueError: no luck with fails"),
            "asks": ("NEW", 1, "asked for it"),
        }
        assert all(row.lease_expires_at is None and row.lease_owner == "" for row in rows.values())
        assert events.total == {"moved": 1, "waited": 1, "failed": 2}

    def test_waits_no_longer_than_the_time_out(self, committer):
        chore = Chore.objects.create(status="DOING")
        set_clock(chore, changed_at=in_seconds(-3 * 24 * 60 * 60 + 30))
        lease = claim_one(lane_of(Chore))
        committer.commit([outcome_of(lease, Waited, delay=3600.0)])
        assert seconds_until(columns_of(chore).next_at) == about(30)

    def test_parking_forgets_the_time_out(self, committer, heard):
        parked = heard(row_parked, sender=Chore)
        chore = Chore.objects.create(status="DOING")
        committer.commit([outcome_of(claim_one(lane_of(Chore)), Parked)])
        assert columns_of(chore).next_at is None
        assert list(Chore.states.parked()) == [chore]
        assert [(told["instance"], told["error"]) for told in parked] == [(chore, "no luck at all")]

    def test_moves_refresh_what_every_save_refreshes(self, lots, executor, committer):
        lot = Lot.objects.create()
        Lot.objects.update(touched_at=in_seconds(-1000))
        committer.commit(run(executor, lots))
        lot.refresh_from_db()
        assert seconds_until(lot.touched_at) == about(0)

    def test_failures_are_told(self, executor, committer, heard, caplog):
        failed = heard(handler_failed, sender=Chore)
        chore = Chore.objects.create(script={"NEW": "raise"}, name="this")
        committer.commit(run(executor, lane_of(Chore)))
        (told,) = failed
        assert (told["instance"], told["failures"]) == (chore, 1)
        assert (told["error"], repr(told["exception"])) == (
            "ValueError: no luck with this",
            "ValueError('no luck with this')",
        )
        assert "lab.Chore pk=" in caplog.text
        assert "failed in state 'NEW', attempt 1; next try in 6" in caplog.text

    def test_counts_can_be_taken_once(self, executor, committer, events):
        Chore.objects.create()
        (outcome,) = run(executor, lane_of(Chore))
        committer.commit([outcome])
        taken = events.take_counts()
        assert taken == {("lab.Chore.states", "NEW", "moved"): (1, outcome.lease.seconds)}
        assert outcome.lease.seconds > 0
        assert events.take_counts() == {}
        events.put_back(taken)
        assert events.take_counts() == taken


class TestReleased:
    @pytest.mark.parametrize(("started_at", "attempts"), [(None, 0), (1.0, 1)])
    def test_a_row_counts_as_tried_if_its_handler_has_begun(self, started_at, attempts, lots, committer):
        lot = Lot.objects.create()
        lease = claim_one(lots)
        lease.started_at = started_at
        assert committer.commit([outcome_of(lease, Released)]) == []
        assert (columns_of(lot).attempts, columns_of(lot).lease_owner) == (attempts, "")

    def test_rows_of_both_kinds_are_written_together(self, lots, committer, events):
        rows = [Lot.objects.create() for _ in range(4)]
        leases = sorted(claim(lots), key=lambda lease: lease.key)
        for lease in leases[:2]:
            lease.started_at = 1.0
        assert committer.commit([outcome_of(lease, Released) for lease in leases]) == []
        assert [columns_of(row).attempts for row in rows] == [1, 1, 0, 0]
        assert events.total["released"] == 4


class TestBadRow:
    """Lots of no amount cannot be sold, and lots of much less cannot even be void: the database refuses."""

    def sell(self, executor, committer, amounts, status="OPEN"):
        rows = [Lot.objects.create(amount=amount, status=status) for amount in amounts]
        assert committer.commit(run(executor, lane_of(Lot))) == []
        return rows

    @pytest.mark.parametrize("atomic", [False, True], ids=["alone", "in a transaction"])
    @really
    def test_harms_no_neighbour(self, atomic, executor, committer, events):
        with transaction.atomic() if atomic else nullcontext():
            rows = self.sell(executor, committer, [1, 0, 1])
        assert [columns_of(row).status for row in rows] == ["SOLD", "OPEN", "SOLD"]
        assert [row.states.history.count() for row in rows] == [1, 0, 1]
        bad = columns_of(rows[1])
        assert (bad.failures, bad.lease_expires_at) == (1, None)
        assert seconds_until(bad.next_at) == about(60)
        assert bad.error.startswith("The move to 'SOLD' could not be written. IntegrityError: ")
        assert "lab_lot_sold" in bad.error
        assert (events.total["moved"], events.total["failed"]) == (2, 1)

    def test_goes_where_failures_go_once_its_tries_are_used_up(self, executor, committer, events):
        good, bad = self.sell(executor, committer, [1, 0], "URGENT")
        assert [columns_of(row).status for row in (good, bad)] == ["SOLD", "VOID"]
        metadata = bad.states.history.get().metadata
        assert (metadata["attempts"], metadata["error"][:37]) == (1, "The move to 'SOLD' could not be writt")
        assert (events.total["moved"], events.total["failed"]) == (2, 0)

    def test_that_can_go_nowhere_is_parked(self, executor, committer):
        good, bad = self.sell(executor, committer, [1, -10], "URGENT")
        assert columns_of(good).status == "SOLD"
        row = columns_of(bad)
        assert (row.status, row.next_at, row.failures, row.lease_expires_at) == ("URGENT", None, 1, None)
        first, second = row.error.split("\nThe move to 'VOID' could not be written. ")
        assert ("lab_lot_sold" in first, "lab_lot_void" in second) == (True, True)

    def test_that_cannot_even_be_parked_is_reported_keeps_its_lease_and_is_tried_again(
        self, committer, lots, monkeypatch, caplog
    ):
        rows = [Lot.objects.create() for _ in range(2)]
        leases = sorted(claim(lots), key=lambda lease: lease.key)
        real = type(lots).stay

        def stay(lane, given):
            if rows[0].pk in given["key"]:
                raise DatabaseError("a trigger")
            return real(lane, given)

        monkeypatch.setattr(type(lots), "stay", stay)
        (again,) = committer.commit([outcome_of(lease, Waited) for lease in leases])
        assert (type(again), again.lease) == (Waited, leases[0]), "the outcome was not what is wrong"
        assert columns_of(rows[0]).lease_token == leases[0].token
        assert columns_of(rows[1]).lease_expires_at is None
        assert f"lab.Lot pk={rows[0].pk}: its not yet in state 'OPEN' cannot be written now" in caplog.text
        assert "DatabaseError: a trigger" in caplog.text
        monkeypatch.setattr(type(lots), "stay", real)
        assert committer.commit([again]) == []
        assert (columns_of(rows[0]).lease_expires_at, columns_of(rows[0]).error) == (None, "")

    def test_of_an_update_harms_no_neighbour(self, executor, committer, monkeypatch):
        monkeypatch.setattr(Lot, "sell", lambda lot: Move("SOLD", update={"amount": lot.amount - 1}))
        rows = self.sell(executor, committer, [2, 1, 3])
        assert [columns_of(row).status for row in rows] == ["SOLD", "OPEN", "SOLD"]
        assert list(Lot.objects.order_by("pk").values_list("amount", flat=True)) == [1, 1, 2]
        assert [row.states.history.count() for row in rows] == [1, 0, 1]


class TestPatchedLater:
    """Methods of a class are patched while a worker runs, as monitoring tools do."""

    def test_a_save_is_called_from_then_on(self, lots, committer, monkeypatch):
        first, second = (Lot.objects.create() for _ in range(2))
        leases = {lease.key: lease for lease in claim(lots)}
        committer.commit([outcome_of(leases[first.pk], Transitioned)])
        saved, real = [], Lot.save

        def save(self, *args, **kwargs):
            saved.append(self.pk)
            return real(self, *args, **kwargs)

        monkeypatch.setattr(Lot, "save", save)
        committer.commit([outcome_of(leases[second.pk], Transitioned)])
        assert saved == [second.pk]

    def test_an_init_is_called_from_then_on(self, lots, monkeypatch):
        _first, second = (Lot.objects.create() for _ in range(2))
        claim(lots, 1)
        made, real = [], Lot.__init__

        def init(self, *args, **kwargs):
            real(self, *args, **kwargs)
            made.append(self.pk)

        monkeypatch.setattr(Lot, "__init__", init)
        claim(lots, 1)
        assert made == [second.pk]

    def test_a_from_db_is_called_from_then_on(self, lots, monkeypatch):
        _first, second = (Lot.objects.create() for _ in range(2))
        claim(lots, 1)
        loaded, real = [], Lot.from_db.__func__

        def from_db(cls, *args):
            loaded.append(real(cls, *args))
            return loaded[-1]

        monkeypatch.setattr(Lot, "from_db", classmethod(from_db))
        assert [lease.instance for lease in claim(lots, 1)] == loaded == [second]

    def test_a_setattr_is_called_from_then_on(self, lots, monkeypatch):
        _first, second = (Lot.objects.create() for _ in range(2))
        claim(lots, 1)
        seen = {}

        def assign(self, name, value):
            object.__setattr__(self, name, value)
            seen[name] = value

        monkeypatch.setattr(Lot, "__setattr__", assign, raising=False)
        (lease,) = claim(lots, 1)
        assert (lease.instance.pk, seen["id"], seen["status"]) == (second.pk, second.pk, second.status)


@only_postgresql
@really
class TestLockedRow:
    @pytest.mark.parametrize("kind", [Transitioned, Waited, Failed, Parked, Released, Deleted])
    def test_is_not_waited_for_and_tried_again(self, kind, lots, committer, events):
        rows = [Lot.objects.create() for _ in range(3)]
        outcomes = [outcome_of(lease, kind) for lease in sorted(claim(lots), key=lambda lease: lease.key)]
        must_not_wait()
        with locked(rows[1]):
            assert committer.commit(outcomes) == [outcomes[1]]
            assert (events.total[kind.kind], events.total["dropped"]) == (2, 0)
        assert committer.commit([outcomes[1]]) == []
        assert (events.total[kind.kind], events.total["dropped"]) == (3, 0)

    def test_is_not_waited_for_where_rows_are_written_one_by_one(self, lots, committer, events):
        rows = [Lot.objects.create() for _ in range(3)]
        leases = sorted(claim(lots), key=lambda lease: lease.key)
        outcomes = [outcome_of(lease, Transitioned, update={"amount": 7}) for lease in leases]
        must_not_wait()
        with locked(rows[1]):
            assert committer.commit(outcomes) == [outcomes[1]]
        assert [columns_of(row).status for row in rows] == ["SOLD", "OPEN", "SOLD"]
        assert committer.commit([outcomes[1]]) == []
        assert list(Lot.objects.values_list("status", "amount")) == [("SOLD", 7)] * 3

    @pytest.mark.parametrize("code", ["40001", "40P01", "55P03"])
    def test_a_conflict_is_tried_again_too(self, code, lots, committer, events, monkeypatch):
        lot = Lot.objects.create()
        outcome = outcome_of(claim_one(lots), Transitioned)

        def give_up(*args):
            error = OperationalError("a conflict")
            error.__cause__ = psycopg.errors.lookup(code)()
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(type(lots), "enter", give_up)
            assert committer.commit([outcome]) == [outcome]
        assert committer.commit([outcome]) == []
        assert (columns_of(lot).status, events.total["failed"]) == ("SOLD", 0)


class TestStale:
    @pytest.mark.parametrize("update", [None, {"amount": 7}], ids=["together", "singly"])
    @pytest.mark.parametrize("kind", [Transitioned, Waited, Failed, Parked, Released, Deleted])
    def test_outcome_is_dropped_logged_and_told(self, kind, update, lots, committer, events, heard, caplog):
        dropped = heard(outcome_dropped, sender=Lot)
        rows = [Lot.objects.create() for _ in range(2)]
        stale, fresh = (
            outcome_of(each, kind, **({"update": update} if kind is Transitioned else {}))
            for each in sorted(claim(lots), key=lambda each: each.key)
        )
        rows[0].states.transition_to("BID")
        before = columns_of(rows[0])
        assert committer.commit([stale, fresh]) == []
        assert columns_of(rows[0]) == before
        assert rows[0].states.history.count() == 1
        assert (events.total["dropped"], events.total[kind.kind]) == (1, 1)
        words = str(stale)
        assert [(told["instance"], told["outcome"], told["using"]) for told in dropped] == [(rows[0], words, "default")]
        (record,) = [record for record in caplog.records if "dropped" in record.getMessage()]
        assert (record.levelno, record.name) == (logging.WARNING, "statemachine_fields.worker")
        assert f"lab.Lot pk={rows[0].pk}: its {words} in state 'OPEN' came too late" in record.getMessage()

    def test_outcome_of_a_row_that_is_gone_is_dropped(self, lots, committer, events):
        Lot.objects.create()
        outcome = outcome_of(claim_one(lots), Transitioned, update={"amount": 7})
        outcome.lease.seconds = 1.5
        Lot.objects.all().delete()
        assert committer.commit([outcome]) == []
        assert events.take_counts() == {("lab.Lot.states", "OPEN", "dropped"): (1, 1.5)}

    def test_outcome_does_not_disturb_whoever_took_over(self, lots, executor, committer, events):
        lot = Lot.objects.create()
        (late,) = run(executor, lots)
        let_lease_run_out(lot)
        (lease,) = claim(lots, suspects=True, owner="other:2")
        committer.commit([late])
        assert (columns_of(lot).lease_owner, columns_of(lot).status) == ("other:2", "OPEN")
        committer.commit([executor.run(lease)])
        assert (lot.states.history.count(), events.total["dropped"]) == (1, 1)


class TestRowByRow:
    """Where somebody would notice the difference, each row is moved as transition_to() moves it."""

    @pytest.fixture
    def ticking(self):
        """Rows whose time is up, of a model with a save() of its own."""
        rows = [Ticking.objects.create() for _ in range(3)]
        for row in rows:
            set_clock(row, next_at=in_seconds(-1))
        Ticking.saved.clear()
        return rows

    def time_out(self, events):
        executor = HandlerExecutor(max_crashes=5, fires_timeouts=True)
        assert Committer(executor, events).commit(run(executor, lane_of(Ticking))) == []

    def test_a_save_of_the_model_s_own_is_called(self, ticking, events):
        self.time_out(events)
        assert Ticking.saved == [["status"]] * 3
        written = [columns_of(row) for row in ticking]
        assert [(row.status, row.lease_owner, row.lease_expires_at) for row in written] == [("STALE", "", None)] * 3
        assert [seconds_until(row.next_at) for row in written] == [about(24 * 60 * 60)] * 3
        assert ticking[0].states.history.get().metadata == {"timeout_after": 60.0}

    def test_a_save_that_fails_for_one_harms_no_neighbour(self, ticking, events, monkeypatch):
        real = Ticking.save

        def save(self, *args, **kwargs):
            real(self, *args, **kwargs)
            if self.pk == ticking[1].pk:
                raise ValueError("not this one")

        monkeypatch.setattr(Ticking, "save", save)
        self.time_out(events)
        assert [columns_of(row).status for row in ticking] == ["STALE", "FRESH", "STALE"]
        assert [row.states.history.count() for row in ticking] == [1, 0, 1]
        assert [record.sequence for row in ticking for record in row.states.history] == [1, 1]
        assert "not this one" in columns_of(ticking[1]).error

    def test_receivers_of_save_are_told(self, executor, committer, heard):
        chores = [Chore.objects.create() for _ in range(2)]
        saved = heard(post_save, sender=Chore)
        committer.commit(run(executor, lane_of(Chore)))
        assert [(told["instance"], set(told["update_fields"])) for told in saved] == [
            (chore, {"status"}) for chore in chores
        ]

    @pytest.mark.parametrize("signal", [pre_transition, post_transition])
    def test_receivers_of_moves_are_told_and_may_veto(self, signal, executor, committer, connect, events):
        chores, told = [Chore.objects.create() for _ in range(3)], []

        def veto(instance, from_status, to_status, **kwargs):
            if instance.pk == chores[1].pk:
                raise PermissionError("not that one")
            told.append((instance.pk, from_status, to_status))

        connect(signal, veto, Chore)
        assert committer.commit(run(executor, lane_of(Chore))) == []
        assert [columns_of(chore).status for chore in chores] == ["DOING", "NEW", "DOING"]
        assert [chore.states.history.count() for chore in chores] == [1, 0, 1]
        row = columns_of(chores[1])
        assert (row.failures, row.error) == (
            1,
            "The move to 'DOING' could not be written. PermissionError: not that one",
        )
        assert set(told) == {(chore.pk, "NEW", "DOING") for chore in (chores[0], chores[2])}
        assert (events.total["moved"], events.total["failed"]) == (2, 1)

    @really
    def test_receivers_of_commits_are_told_once_for_each_move_that_stands(self, executor, committer, heard, connect):
        chores = [Chore.objects.create() for _ in range(3)]

        def veto(instance, **kwargs):
            if instance.pk == chores[1].pk:
                raise PermissionError("not that one")

        connect(post_transition, veto, Chore)
        committed = heard(transition_committed, sender=Chore)
        committer.commit(run(executor, lane_of(Chore)))
        assert [told["instance"].pk for told in committed] == [chores[0].pk, chores[2].pk]
        assert [told["transition"].pk for told in committed] == [
            chores[0].states.history.get().pk,
            chores[2].states.history.get().pk,
        ]

    def test_fields_of_the_audit_table_are_filled(self, executor, committer):
        noted = Noted.objects.create()
        committer.commit(run(executor, lane_of(Noted)))
        assert noted.states.history.get().reason == "none given"

    def test_a_guard_is_asked_again_when_the_move_is_written(self, executor, committer, monkeypatch):
        """It may have been true when the handler answered and false when its outcome is written."""
        noted = Noted.objects.create()
        outcomes = run(executor, lane_of(Noted))
        monkeypatch.setattr(Noted, "is_unlocked", lambda self: False)
        committer.commit(outcomes)
        row = columns_of(noted)
        assert (row.status, row.failures) == ("NEW", 1)
        assert "TransitionBlocked" in row.error

    def test_other_fields_are_written_with_the_move(self, executor, committer):
        chore = Chore.objects.create(script={"NEW": "update"}, name="before")
        outcomes = run(executor, lane_of(Chore))
        Chore.objects.update(name="changed meanwhile")
        committer.commit(outcomes)
        chore.refresh_from_db()
        assert (chore.status, chore.note, chore.name) == ("DOING", "written", "changed meanwhile")
        assert chore.states.history.get().metadata == {"attempt": 1}
        assert chore.status_lease_expires_at is None

    def test_a_handler_that_makes_its_instance_another_row_moves_its_own(self, executor, committer, monkeypatch):
        """A copy is made in Django by taking the key from an instance and saving it."""

        def copy(self, ctx):
            self.pk, self._state.adding = None, True
            self.save()
            return Move("DOING", update={"note": "written"})

        chore = Chore.objects.create()
        monkeypatch.setattr(Chore, "start", copy)
        committer.commit(run(executor, lane_of(Chore)))
        assert list(Chore.objects.order_by("pk").values_list("status", "note")) == [("DOING", "written"), ("NEW", "")]
        assert columns_of(chore).status == "DOING"

    @pytest.mark.django_db(transaction=True, databases=["default", "other"])
    def test_rows_are_moved_where_they_were_claimed_whatever_the_router_says(self, executor, committer, settings):
        (lane,) = lanes_of([Chore.states._meta], using="other")
        chore = Chore.objects.using("other").create(script={"NEW": "update"})
        outcomes = run(executor, lane)
        settings.DATABASE_ROUTERS = [Elsewhere()]
        committer.commit(outcomes)
        chore.refresh_from_db(using="other")
        assert (chore.status, chore.note) == ("DOING", "written")
        assert Chore.states.transition_model.objects.using("other").count() == 1

    def test_a_delay_of_the_handler_s_choice_holds(self, executor, committer, monkeypatch):
        chore = Chore.objects.create()
        monkeypatch.setattr(Chore, "start", lambda self, ctx: Move("DOING", update={"note": "x"}, after=500))
        committer.commit(run(executor, lane_of(Chore)))
        assert seconds_until(columns_of(chore).next_at) == about(500)


class TestDeletion:
    @pytest.fixture
    def old(self):
        def make(number):
            rows = [Lot.objects.create(status="SOLD") for _ in range(number)]
            for row in rows:
                set_clock(row, changed_at=in_seconds(-2 * 24 * 60 * 60), next_at=in_seconds(-60))
            return rows

        return make

    def test_goes_through_the_orm(self, old, lots, executor, committer, events, heard):
        gone, told = heard(post_delete, sender=Lot), heard(rows_deleted, sender=Lot)
        rows = old(3)
        assert committer.commit(run(executor, lots)) == []
        assert not Lot.objects.exists()
        keys = [row.pk for row in rows]
        assert sorted(deleted["state"] for deleted in told) == ["SOLD"] * 3
        assert sorted(key for deleted in told for key in deleted["keys"]) == keys
        assert (len(gone), events.total["deleted"]) == (3, 3)

    def test_takes_the_history_along(self, lots, executor, committer):
        lot = Lot.objects.create()
        lot.states.transition_to("SOLD")
        set_clock(lot, changed_at=in_seconds(-2 * 24 * 60 * 60), next_at=in_seconds(-60))
        committer.commit(run(executor, lots))
        assert not Lot.states.transition_model.objects.exists()

    def test_of_a_protected_row_fails_and_harms_no_neighbour(self, old, lots, executor, committer, events):
        rows = old(3)
        Pin.objects.create(lot=rows[1])
        assert committer.commit(run(executor, lots)) == []
        assert list(Lot.objects.all()) == [rows[1]]
        row = columns_of(rows[1])
        assert (row.next_at, row.lease_expires_at) == (None, None)
        assert row.error.startswith("The deletion could not be written. ProtectedError: ")
        assert (events.total["deleted"], events.total["parked"]) == (2, 1)

    def test_is_made_in_parts(self, old, lots, executor, committer, monkeypatch, events):
        monkeypatch.setattr(Deleted, "write", replace(Deleted.write, most=2))
        old(5)
        with CaptureQueriesContext(connection) as queries:
            committer.commit(run(executor, lots))
        assert (Lot.objects.count(), events.total["deleted"]) == (0, 5)
        assert sum('DELETE FROM "lab_lot" ' in query["sql"] for query in queries) == 3

    def test_leaves_rows_that_somebody_moved_on(self, old, lots, executor, committer, events):
        rows = old(2)
        outcomes = run(executor, lots)
        rows[0].states.force_transition_to("OPEN", reason="sold by mistake")
        committer.commit(outcomes)
        assert list(Lot.objects.all()) == [rows[0]]
        assert (events.total["deleted"], events.total["dropped"]) == (1, 1)


@only_postgresql
class TestLostAnswer:
    """The connection breaks after a statement was sent. Nobody knows whether it was heard."""

    def commit_over(self, committer, outcomes):
        with pytest.raises(ConnectionLost):
            committer.commit(outcomes)
        connection.close()
        return committer.commit([outcome for outcome in outcomes if not outcome.is_reported])

    # Savepoints of a test's own transaction would undo what was written before the break.
    @really
    @pytest.mark.parametrize("written", [True, False], ids=["heard", "not heard"])
    def test_of_moves_counts_them_once_and_drops_none(self, written, lots, committer, events, break_after):
        rows = [Lot.objects.create() for _ in range(3)]
        outcomes = [outcome_of(lease, Transitioned) for lease in claim(lots)]
        break_after("enter", written=written)
        assert self.commit_over(committer, outcomes) == []
        assert [columns_of(row).status for row in rows] == ["SOLD"] * 3
        assert [row.states.history.count() for row in rows] == [1, 1, 1]
        assert (events.total["moved"], events.total["dropped"], events.total["failed"]) == (3, 0, 0)

    @really
    @pytest.mark.parametrize("written", [True, False], ids=["heard", "not heard"])
    @pytest.mark.parametrize(("kind", "verb"), [(Waited, "stay"), (Failed, "stay"), (Released, "unclaim")])
    def test_of_others_drops_none(self, kind, verb, written, lots, committer, events, break_after):
        lot = Lot.objects.create()
        outcome = outcome_of(claim_one(lots), kind)
        break_after(verb, written=written)
        assert self.commit_over(committer, [outcome]) == []
        row = columns_of(lot)
        assert (row.lease_expires_at, row.failures) == (None, int(kind is Failed))
        assert (events.total[kind.kind], events.total["dropped"]) == (1, 0)

    @really
    def test_that_was_only_an_error_of_a_connection_that_works_is_none(self, lots, committer, monkeypatch):
        """Such as a cursor that code of the project has closed: sending it again would meet the same."""
        lot = Lot.objects.create()

        def fail(*args):
            raise OperationalError("the cursor is closed") from psycopg.InterfaceError("the cursor is closed")

        connection.ensure_connection()
        outcome = outcome_of(claim_one(lots), Transitioned)
        with monkeypatch.context() as patch:
            patch.setattr(type(lots), "enter", fail)
            assert committer.commit([outcome]) == []
        assert columns_of(lot).failures == 1

    @really
    def test_to_the_question_who_is_held_changes_nothing(self, lots, committer, events, break_after):
        rows = [Lot.objects.create() for _ in range(2)]
        outcomes = [outcome_of(lease, Transitioned) for lease in sorted(claim(lots), key=lambda lease: lease.key)]
        rows[0].states.transition_to("BID")
        break_after("held", written=False)
        assert self.commit_over(committer, outcomes) == []
        assert (events.total["moved"], events.total["dropped"]) == (1, 1)

    @really
    def test_of_a_move_that_came_too_late_drops_it(self, lots, committer, events, break_after):
        lot = Lot.objects.create()
        outcome = outcome_of(claim_one(lots), Transitioned)
        lot.states.transition_to("BID")
        break_after("enter", written=True)
        assert self.commit_over(committer, [outcome]) == []
        assert (events.total["moved"], events.total["dropped"]) == (0, 1)

    @really
    def test_leaves_what_was_told_before_alone(self, lots, committer, events, break_after):
        for _ in range(2):
            Lot.objects.create()
        moved, waited = claim(lots)
        outcomes = [outcome_of(moved, Transitioned), outcome_of(waited, Waited)]
        break_after("stay", written=False)
        with pytest.raises(ConnectionLost):
            committer.commit(outcomes)
        assert [outcome.is_reported for outcome in outcomes] == [True, False]

    @really
    def test_after_a_refusal_does_not_repeat_what_was_refused(self, lots, executor, committer, events, break_after):
        """The second group breaks after a row of the first was refused and failed: the refused one is done with."""
        Lot.objects.create(amount=0)
        Lot.objects.create(status="BID")
        refused, released = sorted(claim(lots), key=lambda lease: lease.key)
        outcomes = [executor.run(refused), outcome_of(released, Released)]
        break_after("unclaim", written=False)
        assert self.commit_over(committer, outcomes) == []
        assert (events.total["failed"], events.total["released"], events.total["dropped"]) == (1, 1, 0)


@really
class TestTrackedTransaction:
    @pytest.mark.parametrize(
        ("act", "error", "is_committed"),
        [
            (lambda: transaction.on_commit(lambda: 1 / 0), ZeroDivisionError, True),
            (lambda: 1 / 0, ZeroDivisionError, False),
            (lambda: transaction.set_rollback(True), RolledBack, False),
        ],
        ids=["an error after the commit", "an error before it", "marked, and not undone in silence"],
    )
    def test_knows_whether_it_was_committed_whatever_is_raised(self, act, error, is_committed):
        block = TrackedTransaction("default")
        with pytest.raises(error), block:
            Lot.objects.create()
            act()
        assert (block.is_committed, Lot.objects.count()) == (is_committed, is_committed)

    def test_does_not_take_its_end_for_that_of_another_within(self):
        def program():
            block = TrackedTransaction("default")
            with pytest.raises(LeftOpen), block:
                transaction.atomic().__enter__()
                Lot.objects.create()
            return block.is_committed, connection.in_atomic_block

        assert elsewhere(program) == (False, False)
        assert Lot.objects.count() == 0

    def test_that_was_committed_is_reported_as_written_whatever_a_receiver_raises(
        self, executor, committer, events, connect, caplog
    ):
        def later(**kwargs):
            transaction.on_commit(lambda: 1 / 0)

        chore = Chore.objects.create()
        connect(post_transition, later, Chore)
        assert committer.commit(run(executor, lane_of(Chore))) == []
        assert (columns_of(chore).status, events.total["moved"], events.total["failed"]) == ("DOING", 1, 0)
        assert "is committed, and what was to run after that raised" in caplog.text

    def test_that_a_receiver_marked_for_rollback_is_a_failure(self, executor, committer, events, connect):
        def spoil(**kwargs):
            transaction.set_rollback(True)

        chore = Chore.objects.create()
        connect(post_transition, spoil, Chore)
        assert committer.commit(run(executor, lane_of(Chore))) == []
        row = columns_of(chore)
        assert (row.status, row.failures, events.total["moved"]) == ("NEW", 1, 0)


class TestMovedByItsHandler:
    def test_is_left_alone_and_counted(self, executor, committer, events):
        chore = Chore.objects.create(script={"NEW": "itself"})
        assert committer.commit(run(executor, lane_of(Chore))) == []
        row = columns_of(chore)
        assert (row.status, row.lease_expires_at, chore.states.history.count()) == ("DOING", None, 1)
        assert (events.total["moved"], events.total["dropped"]) == (1, 0)

    @pytest.mark.parametrize("caught", [True, False])
    def test_in_a_transaction_that_was_undone_is_not_moved(self, caught, executor, committer, events, monkeypatch):
        """The instance is ahead of the row then, as Django's are; the database knows better."""

        def start(self, ctx):
            try:
                with transaction.atomic():
                    self.states.transition_to("DOING")
                    raise ValueError("on second thought")
            except ValueError:
                if not caught:
                    raise

        monkeypatch.setattr(Chore, "start", start)
        chore = Chore.objects.create()
        assert committer.commit(run(executor, lane_of(Chore))) == []
        row = columns_of(chore)
        assert (row.status, row.lease_expires_at, row.crashes) == ("NEW", None, 0)
        assert seconds_until(row.next_at) == pytest.approx(63, abs=8)
        assert (row.failures, row.error) == ((0, "") if caught else (1, "ValueError: on second thought"))
        assert events.total["waited" if caught else "failed"] == 1

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            (
                ValueError("too late"),
                "its handler moved it from 'NEW' and then raised. The move stands. ValueError: too late",
            ),
            ("DONE", "The handler moved the row itself and returned 'DONE' as well."),
        ],
        ids=["and then failed", "and named another state"],
    )
    def test_keeps_the_move(self, answer, said, executor, committer, monkeypatch, caplog):
        def start(self, ctx):
            self.states.transition_to("DOING")
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(Chore, "start", start)
        chore = Chore.objects.create()
        committer.commit(run(executor, lane_of(Chore)))
        assert (columns_of(chore).status, columns_of(chore).failures) == ("DOING", 0)
        assert said in caplog.text
