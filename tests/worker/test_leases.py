"""One suite for every database that leases rows: what each verb writes, and whom it does not listen to."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from lab.models import Chore, Coupon, Crate, Lot, Sensor
from statemachine_fields.db.claims import Left, Wanted
from statemachine_fields.db.postgresql_claims import LOCKS, due_text, due_values
from statemachine_fields.db.tallies import AT_ONCE, Tally, add_up
from statemachine_fields.machine.ids import uuid7
from statemachine_fields.worker.models import RunStatistics
from tests.together import together
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


def of_one(verb):
    """Return a verb of lanes for a single lease."""
    return lambda lane, lease, *rest: getattr(lane, verb)([lease.key], [lease.token], *rest)


held, release, unclaim = (of_one(verb) for verb in ("held", "release", "unclaim"))


def beat(lane, lease, seconds=60):
    return of_one("beat")(lane, lease, seconds)


def leased(lease, status=None):
    return {"key": lease.key, "was_lease_token": lease.token, "was_status": status or lease.status}


def in_columns(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}


def staying(lease, delay=60.0, horizon=None, failures=0, error="", status=None):
    facts = {"failures": failures, "error": error, "next_at": delay, "horizon": horizon}
    return {**leased(lease, status), **facts}


def stay(lane, lease, **facts):
    return lane.stay(in_columns([staying(lease, **facts)]))


def moving(lease, to_status, delay=None, metadata="{}", status=None):
    facts = {"status": to_status, "next_at": delay, "record": uuid7(), "metadata": metadata}
    return {**leased(lease, status), **facts}


def move(lane, lease, to_status="SOLD", updates=(), **facts):
    return lane.enter(in_columns([moving(lease, to_status, **facts)]), {"updates": list(updates)})


def lock(lane, lease):
    with transaction.atomic():
        return lane.lock(lease.key, lease.token)


def test_rows_that_are_due_at_the_same_instant_are_all_looked_at(lots):
    """A row that was claimed comes last among them, however many they are."""
    rows = Lot.objects.bulk_create([Lot() for _ in range(300)])
    with connection.cursor() as cursor:
        cursor.execute("UPDATE lab_lot SET status_next_at = '2020-01-01'")
    taken = claim(lots, 3, owner="dead:1")
    assert len(rows) == 300
    assert recover(lots, "dead:1") == len(taken) == 3


def recover(lane, owner, states=None):
    return lane.dialect.recover(lane.connection, lane.bound.table, states or lane.states, Left(owner)).rows


@pytest.fixture
def lot():
    return Lot.objects.create()


class TestClaim:
    def test_takes_what_is_due_and_nothing_else(self, lots):
        due, later, parked = (Lot.objects.create() for _ in range(3))
        set_clock(later, next_at=in_seconds(60))
        set_clock(parked, next_at=None, error="no idea")
        assert [lease.key for lease in claim(lots)] == [due.pk]
        assert claim(lots) == []

    def test_says_on_the_row_who_has_it_and_until_when(self, lots, lot):
        before = columns_of(lot)
        lease = claim_one(lots, owner="host:7:ab")
        after = columns_of(lot)
        assert (after.lease_owner, after.lease_token, after.crashes) == ("host:7:ab", lease.token, 0)
        assert seconds_until(after.lease_expires_at) == about(60)
        assert (after.next_at, after.changed_at, after.status) == (before.next_at, before.changed_at, "OPEN")

    def test_returns_the_row_and_how_long_it_has_been_in_its_state(self, lots, lot):
        set_clock(lot, changed_at=in_seconds(-100), failures=2)
        wanted = Wanted(lots.states, lots.priorities, 1, "me", 60, 0, lots.fields)
        (claimed,) = lots.claim(wanted)
        assert claimed.age == about(100)
        values = dict(zip([field.attname for field in lots.fields], claimed.values, strict=True))
        assert (values["id"], values["status"], values["status_failures"]) == (lot.pk, "OPEN", 2)
        assert (values["status_lease_owner"], values["status_lease_token"]) == ("me", 1)

    def test_takes_the_states_that_are_wanted(self, lots):
        """A state without a clock, and one that nobody declares any more, are left alone even if they have a time."""
        for status in ("VOID", "GONE_FROM_THE_CODE"):
            set_clock(Lot.objects.create(), status=status, next_at=in_seconds(-60))
        assert claim(lots) == []

    def test_takes_the_most_urgent_first(self, lots):
        waiting, urgent = Lot.objects.create(), Lot.objects.create(status="URGENT")
        set_clock(waiting, next_at=in_seconds(-900))
        set_clock(urgent, next_at=in_seconds(-1))
        assert [claim_one(lots).key for _ in range(2)] == [urgent.pk, waiting.pk]

    def test_takes_what_has_waited_longest_first_over_states_of_equal_urgency(self, lots):
        rows = [Lot.objects.create(status=status) for status in ("OPEN", "BID", "OPEN", "BID")]
        for row, age in zip(rows, (10, 40, 30, 20), strict=True):
            set_clock(row, next_at=in_seconds(-age))
        assert [claim_one(lots).key for _ in rows] == [rows[i].pk for i in (1, 2, 3, 0)]

    def test_takes_no_more_than_asked_for(self, lots):
        Lot.objects.bulk_create(Lot(status=status) for status in ("OPEN", "BID", "URGENT") * 3)
        taken = Counter(lease.status for lease in claim(lots, 5))
        assert (taken["URGENT"], taken.total()) == (3, 5)
        assert len(claim(lots, 5)) == 4

    def test_leaves_what_somebody_holds(self, lots, lot):
        claim_one(lots)
        assert claim(lots) == claim(lots, suspects=True) == []

    def test_takes_over_what_was_left_behind_and_counts_a_crash(self, lots, lot):
        set_clock(lot, failures=2)
        first = claim_one(lots, owner="dead:1")
        let_lease_run_out(lot)
        (second,) = claim(lots, suspects=True, owner="alive:2")
        row = columns_of(lot)
        assert second.token > first.token
        assert (row.lease_owner, row.crashes, row.failures) == ("alive:2", 1, 2)
        assert row.error == second.error == "Recovered from dead:1, which stopped extending its lease."
        let_lease_run_out(lot)
        assert claim(lots, suspects=True)[0].crashes == 2

    def test_asks_for_suspects_or_for_the_others(self, lots):
        fresh, left_open, given_back = (Lot.objects.create() for _ in range(3))
        set_clock(left_open, lease_owner="dead:1", lease_expires_at=in_seconds(-1), lease_token=1)
        set_clock(given_back, crashes=1, error="Recovered from dead:1")
        assert {lease.key for lease in claim(lots)} == {fresh.pk}
        suspects = {lease.key: lease.crashes for lease in claim(lots, suspects=True)}
        assert suspects == {left_open.pk: 1, given_back.pk: 1}
        assert columns_of(given_back).error == "Recovered from dead:1"

    def test_raises_the_token_every_time(self, lots, lot):
        tokens = []
        for _ in range(3):
            lease = claim_one(lots)
            tokens.append(lease.token)
            release(lots, lease)
        assert tokens == sorted(set(tokens))

    @pytest.mark.django_db(transaction=True)
    def test_never_gives_a_row_to_two(self, lots):
        Lot.objects.bulk_create(Lot() for _ in range(60))
        claims = []

        def take():
            while leases := claim(lots, 3):
                claims.extend(lease.key for lease in leases)

        assert together(*[lambda: elsewhere(take)] * 4) == [None] * 4
        assert sorted(claims) == sorted(Lot.objects.values_list("pk", flat=True))

    @only_postgresql
    @pytest.mark.parametrize("crashes", [0, 1, 2])
    def test_reads_no_more_of_what_is_due_than_it_takes(self, lots, crashes):
        """Of a table that nobody has analyzed the planner knows nothing, and must not guess wrong."""
        names = "status, amount, touched_at, status_changed_at, status_next_at"
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO lab_lot ({names}) SELECT 'OPEN', 1, now(), now(), now() - place * interval '1 s'"
                " FROM generate_series(1, 100000) AS place"
            )
            wanted = Wanted(lots.states, lots.priorities, 10, "me", 60, crashes, lots.fields)
            due = due_text(lots.bound.table, wanted, connection, LOCKS)
            values = due_values(lots.bound.table, wanted, connection)
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {due}", values)
            ((plan,),) = cursor.fetchall()
        assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 500

    @only_postgresql
    @pytest.mark.django_db(transaction=True)
    def test_passes_by_what_another_is_about_to_take(self, lots):
        rows = [Lot.objects.create() for _ in range(4)]
        with transaction.atomic():
            ours = {lease.key for lease in claim(lots, 2)}
            theirs = {lease.key for lease in elsewhere(lambda: claim(lots, 2))}
        assert ours | theirs == {row.pk for row in rows}

    @only_postgresql
    @pytest.mark.django_db(transaction=True)
    def test_does_not_wait_for_a_row_that_is_locked(self, lots):
        rows = [Lot.objects.create() for _ in range(2)]
        must_not_wait()
        with locked(rows[0]):
            assert [lease.key for lease in claim(lots)] == [rows[1].pk]


class TestTimesSetByHand:
    @pytest.mark.parametrize("end", ["stay", "move", "transition_to()", "bulk_transition()"])
    def test_are_forgotten_with_the_next_outcome(self, end, lots):
        lot = Lot.objects.create(status_next_at=in_seconds(-5))
        lease = claim_one(lots)
        assert columns_of(lot).next_at_pinned
        ENDS[end](lot, lease)
        assert not columns_of(lot).next_at_pinned

    @pytest.mark.parametrize("end", ["release", "unclaim", "recover", "release() of the row"])
    def test_are_kept_by_what_sets_no_other(self, end, lots):
        when = in_seconds(-5)
        lot = Lot.objects.create(status_next_at=when)
        ENDS[end](lot, claim_one(lots))
        assert (columns_of(lot).next_at_pinned, columns_of(lot).next_at) == (True, when)


class TestAttempts:
    """How often a row was tried in its life, and when the last time."""

    def test_are_counted_when_the_row_is_claimed(self, lots, lot):
        assert (columns_of(lot).attempts, columns_of(lot).claimed_at) == (0, None)
        (claimed,) = lots.claim(Wanted(lots.states, lots.priorities, 1, "me", 60, 0, lots.fields))
        values = dict(zip([field.attname for field in lots.fields], claimed.values, strict=True))
        assert values["status_attempts"] == columns_of(lot).attempts == 1
        assert seconds_until(columns_of(lot).claimed_at) == about(0)

    def test_are_on_the_row_that_a_handler_gets(self, lots, lot):
        row = claim_one(lots).instance
        assert (row.status_attempts, row.status_claimed_at) == (1, columns_of(lot).claimed_at)

    @pytest.mark.parametrize("end", ["release", "stay", "move", "recover", "transition_to()", "release() of the row"])
    def test_stay_as_they_are_when_the_lease_ends(self, end, lots, lot):
        lease = claim_one(lots)
        claimed_at = columns_of(lot).claimed_at
        ENDS[end](lot, lease)
        assert (columns_of(lot).attempts, columns_of(lot).claimed_at) == (1, claimed_at)

    def test_grow_over_all_states(self, lots, lot):
        move(lots, claim_one(lots), "BID", delay=0)
        stay(lots, claim_one(lots), delay=0)
        before = columns_of(lot).claimed_at
        claim_one(lots)
        assert columns_of(lot).attempts == 3
        assert columns_of(lot).claimed_at > before

    def test_are_not_those_claims_whose_handler_has_not_begun(self, lots, lot):
        release(lots, claim_one(lots))
        lease = claim_one(lots)
        assert unclaim(lots, lease) == {lot.pk}
        after = columns_of(lot)
        assert (after.attempts, after.lease_owner, after.lease_expires_at) == (1, "", None)
        assert after.lease_token == lease.token + 1

    def test_are_not_claims_whose_answer_was_lost(self, lots, lot):
        claim_one(lots)
        assert lots.recover(Left("me:1", is_crash=False)).rows == 1
        assert (columns_of(lot).attempts, columns_of(lot).crashes) == (0, 0)

    def test_are_those_that_a_worker_died_in(self, lots, lot):
        claim_one(lots)
        let_lease_run_out(lot)
        claim(lots, suspects=True)
        assert (columns_of(lot).attempts, columns_of(lot).crashes) == (2, 1)


VERBS = {
    "beat": beat,
    "held": held,
    "release": release,
    "unclaim": unclaim,
    "stay": stay,
    "move": move,
    "lock": lock,
}


def claimed_by_another(lot, lease):
    let_lease_run_out(lot)
    (other,) = claim(lease.lane, suspects=True, owner="other:2")
    assert other.token > lease.token


ENDS = {
    "release": lambda lot, lease: release(lease.lane, lease),
    "unclaim": lambda lot, lease: unclaim(lease.lane, lease),
    "stay": lambda lot, lease: stay(lease.lane, lease),
    "move": lambda lot, lease: move(lease.lane, lease, "BID", delay=0),
    "recover": lambda lot, lease: recover(lease.lane, "me:1"),
    "a claim by another": claimed_by_another,
    "transition_to()": lambda lot, lease: Lot.objects.get().states.transition_to("BID"),
    "a way there and back": lambda lot, lease: there_and_back(lot),
    "release() of the row": lambda lot, lease: Lot.objects.get().states.release(),
    "bulk_transition()": lambda lot, lease: Lot.states.bulk_transition(Lot.objects.all(), "BID"),
    "deletion": lambda lot, lease: Lot.objects.all().delete(),
}


def there_and_back(lot):
    lot.states.transition_to("BID")
    lot.states.force_transition_to("OPEN", reason="so that only the token tells")


class TestToken:
    """Who holds the current token is heard. Nobody else is, whatever became of the row meanwhile."""

    @pytest.mark.parametrize(
        "is_over", [False, True], ids=["while the lease lasts", "after it, if nobody took the row"]
    )
    @pytest.mark.parametrize("verb", VERBS)
    def test_is_heard(self, verb, is_over, lots, lot):
        lease = claim_one(lots)
        if is_over:
            let_lease_run_out(lot)
        assert VERBS[verb](lots, lease) in ({lot.pk}, True)

    @pytest.mark.parametrize("end", ENDS)
    @pytest.mark.parametrize("verb", VERBS)
    def test_is_not_heard_after_the_lease_has_ended(self, verb, end, lots, lot):
        lease = claim_one(lots)
        ENDS[end](lot, lease)
        rows, records = list(Lot.objects.values()), list(Lot.states.transition_model.objects.values())
        assert not VERBS[verb](lots, lease)
        assert (list(Lot.objects.values()), list(Lot.states.transition_model.objects.values())) == (rows, records)

    @pytest.mark.parametrize("end", ["release", "stay", "move", "recover", "transition_to()", "release() of the row"])
    def test_ends_with_no_lease_on_the_row(self, end, lots, lot):
        lease = claim_one(lots)
        ENDS[end](lot, lease)
        row = columns_of(lot)
        assert (row.lease_owner, row.lease_expires_at) == ("", None)
        assert row.lease_token > lease.token

    @pytest.mark.parametrize("verb", ["beat", "held", "release"])
    def test_of_each_row_counts_for_that_row(self, verb, lots):
        rows = [Lot.objects.create() for _ in range(3)]
        leases = {lease.key: lease for lease in claim(lots)}
        rows[1].states.release()
        rows[1].refresh_from_db()
        rows[1].states.release()
        keys, tokens = [row.pk for row in rows], [leases[row.pk].token for row in rows]
        extra = (60,) if verb == "beat" else ()
        answer = getattr(lots, verb)(keys, tokens, *extra)
        assert answer == {rows[0].pk, rows[2].pk}


class TestBeat:
    def test_extends_the_lease_by_the_database_clock(self, lots, lot):
        lease = claim_one(lots)
        assert beat(lots, lease, 600) == {lot.pk}
        row = columns_of(lot)
        assert seconds_until(row.lease_expires_at) == about(600)
        assert (row.lease_token, row.lease_owner) == (lease.token, "me:1")


class TestRelease:
    def test_gives_the_row_back_as_it_was(self, lots, lot):
        set_clock(lot, failures=2, error="before")
        before = columns_of(lot)
        release(lots, claim_one(lots))
        after = columns_of(lot)
        assert (after.next_at, after.failures, after.crashes, after.error) == (before.next_at, 2, 0, "before")
        assert claim_one(lots).key == lot.pk

    def test_forgives_no_crash(self, lots, lot):
        set_clock(lot, crashes=2)
        (lease,) = claim(lots, suspects=True)
        release(lots, lease)
        assert columns_of(lot).crashes == 2


class TestSettle:
    @pytest.mark.parametrize(
        ("delay", "horizon", "due"),
        [
            (30, None, 30),
            (0, None, 0),
            (None, 100, 60),
            (30, 100, 30),
            (300, 100, 60),
            (None, None, None),
        ],
    )
    def test_says_when_the_row_is_due_again(self, delay, horizon, due, lots, lot):
        """The delay counts from now, the horizon from when the row entered its state: 40 seconds ago."""
        set_clock(lot, changed_at=in_seconds(-40))
        assert stay(lots, claim_one(lots), delay=delay, horizon=horizon) == {lot.pk}
        assert seconds_until(columns_of(lot).next_at) == (None if due is None else about(due))

    def test_makes_a_row_due_whose_time_is_over(self, lots, lot):
        set_clock(lot, changed_at=in_seconds(-400))
        stay(lots, claim_one(lots), delay=300, horizon=100)
        assert claim_one(lots).key == lot.pk

    def test_writes_how_the_try_went_and_forgives_crashes(self, lots, lot):
        set_clock(lot, crashes=3, failures=1, error="before")
        (lease,) = claim(lots, suspects=True)
        stay(lots, lease, failures=2, error="no, ‘%s’")
        row = columns_of(lot)
        assert (row.failures, row.error, row.crashes, row.status, row.sequence) == (2, "no, ‘%s’", 0, "OPEN", 0)

    def test_writes_each_row_its_own(self, lots):
        rows = [Lot.objects.create() for _ in range(3)]
        leases = {lease.key: lease for lease in claim(lots)}
        said = [
            staying(leases[row.pk], delay=delay, horizon=horizon, failures=number, error=f"error {number}")
            for number, (row, delay, horizon) in enumerate(
                zip(rows, (10, None, 500), (None, None, 200), strict=True), start=1
            )
        ]
        assert lots.stay(in_columns(said)) == {row.pk for row in rows}
        written = [columns_of(row) for row in rows]
        assert [(row.failures, row.error) for row in written] == [(1, "error 1"), (2, "error 2"), (3, "error 3")]
        assert [seconds_until(row.next_at) for row in written] == [about(10), None, about(200)]

    def test_leaves_a_row_that_is_in_another_state(self, lots, lot):
        lease = claim_one(lots)
        assert stay(lots, lease, status="BID") == set()
        assert columns_of(lot).lease_token == lease.token


class TestMove:
    def test_writes_row_and_record(self, lots, lot):
        set_clock(lot, changed_at=in_seconds(-500), failures=2, crashes=1, error="before")
        (lease,) = claim(lots, suspects=True)
        assert move(lots, lease, "BID", delay=30, metadata='{"by": "hand"}') == {lot.pk}
        row = columns_of(lot)
        assert (row.status, row.sequence, row.failures, row.crashes, row.error) == ("BID", 1, 0, 0, "")
        assert seconds_until(row.next_at) == about(30)
        assert seconds_until(row.changed_at) == about(0)
        (record,) = lot.states.history
        assert (record.from_status, record.to_status, record.sequence) == ("OPEN", "BID", 1)
        assert (record.metadata, record.transitioned_at) == ({"by": "hand"}, row.changed_at)

    def test_keeps_the_id_that_was_chosen_for_the_record(self, lots, lot):
        said = moving(claim_one(lots), "SOLD")
        lots.enter(in_columns([said]))
        assert lot.states.history.get().pk == said["record"]

    def test_takes_the_row_off_the_clock_without_a_delay(self, lots, lot):
        move(lots, claim_one(lots), "SOLD", delay=None)
        assert columns_of(lot).next_at is None

    def test_counts_on_from_the_last_record(self, lots, lot):
        lot.states.transition_to("BID")
        move(lots, claim_one(lots))
        assert [record.sequence for record in lot.states.history] == [2, 1]

    def test_writes_each_row_its_own(self, lots):
        rows = [Lot.objects.create() for _ in range(3)]
        leases = {lease.key: lease for lease in claim(lots)}
        rows[2].states.transition_to("BID")
        said = [
            moving(leases[row.pk], to, delay, metadata=f'{{"n": {row.pk}}}')
            for row, to, delay in zip(rows, ("BID", "VOID", "SOLD"), (10, None, None), strict=True)
        ]
        assert lots.enter(in_columns(said)) == {rows[0].pk, rows[1].pk}
        assert [columns_of(row).status for row in rows] == ["BID", "VOID", "BID"]
        assert [row.states.history.count() for row in rows] == [1, 1, 1]
        assert rows[0].states.history.get().metadata == {"n": rows[0].pk}

    def test_sets_other_columns_too(self, lots, lot):
        assert move(lots, claim_one(lots), updates=[("amount", 7)]) == {lot.pk}
        lot.refresh_from_db()
        assert (lot.status, lot.amount) == ("SOLD", 7)

    def test_leaves_a_row_that_is_in_another_state(self, lots, lot):
        lease = claim_one(lots)
        assert move(lots, lease, "SOLD", status="BID") == set()
        assert (columns_of(lot).status, columns_of(lot).lease_token) == ("OPEN", lease.token)
        assert not lot.states.history.exists()


@only_postgresql
@pytest.mark.django_db(transaction=True)
class TestLocks:
    @pytest.mark.parametrize("verb", ["beat", "release", "unclaim", "stay", "move", "lock"])
    def test_of_others_are_passed_by_and_their_rows_are_still_held(self, verb, lots, lot):
        lease = claim_one(lots)
        must_not_wait()
        with locked(lot):
            assert not VERBS[verb](lots, lease)
            assert held(lots, lease) == {lot.pk}
        assert VERBS[verb](lots, lease)

    @pytest.mark.parametrize("verb", ["beat", "release", "stay", "move"])
    def test_of_others_do_not_hold_up_the_neighbours(self, verb, lots):
        rows = [Lot.objects.create() for _ in range(3)]
        leases = sorted(claim(lots), key=lambda lease: lease.key)
        must_not_wait()
        keys, tokens = [lease.key for lease in leases], [lease.token for lease in leases]
        with locked(rows[1]):
            answer = {
                "beat": lambda: lots.beat(keys, tokens, 60),
                "release": lambda: lots.release(keys, tokens),
                "stay": lambda: lots.stay(in_columns([staying(lease) for lease in leases])),
                "move": lambda: lots.enter(in_columns([moving(lease, "SOLD") for lease in leases])),
            }[verb]()
        assert answer == {rows[0].pk, rows[2].pk}

    def test_of_ours_keep_the_row_until_the_transaction_ends(self, lots, lot):
        lease = claim_one(lots)
        with transaction.atomic():
            assert lots.lock(lease.key, lease.token)
            assert elsewhere(lambda: release(lots, lease)) == set()
            assert elsewhere(lambda: held(lots, lease)) == {lot.pk}
        assert elsewhere(lambda: release(lots, lease)) == {lot.pk}

    def test_of_ours_let_foreign_keys_pass(self, lots, lot):
        lease = claim_one(lots)
        with transaction.atomic():
            assert lots.lock(lease.key, lease.token)
            assert elsewhere(lot.pin_set.create).lot_id == lot.pk

    def test_of_a_dead_worker_s_rows_are_left_to_run_out(self, lots):
        rows = [Lot.objects.create() for _ in range(2)]
        claim(lots, owner="dead:1")
        must_not_wait()
        with locked(rows[0]):
            assert recover(lots, "dead:1") == 1
        assert [columns_of(row).crashes for row in rows] == [0, 1]


class TestRecover:
    def test_takes_back_what_the_dead_held(self, lots):
        dead, alive, free = (Lot.objects.create() for _ in range(3))
        set_clock(alive, next_at=in_seconds(60))
        set_clock(free, next_at=in_seconds(60))
        lease = claim_one(lots, owner="dead:1")
        set_clock(alive, next_at=in_seconds(-1))
        claim_one(lots, owner="alive:2")
        assert recover(lots, "dead:1") == 1
        row = columns_of(dead)
        assert (row.lease_owner, row.lease_expires_at, row.crashes) == ("", None, 1)
        assert row.lease_token > lease.token
        assert row.error == "Recovered from dead:1, which died."
        assert (columns_of(alive).lease_owner, columns_of(alive).crashes) == ("alive:2", 0)
        assert columns_of(free).crashes == 0
        assert [each.key for each in claim(lots, suspects=True)] == [dead.pk]

    def test_finds_nothing_the_second_time(self, lots, lot):
        claim(lots, owner="dead:1")
        assert [recover(lots, "dead:1") for _ in range(2)] == [1, 0]

    def test_takes_back_all_however_many_they_are(self, lots):
        Lot.objects.bulk_create(Lot() for _ in range(200))
        assert len(claim(lots, 150, owner="dead:1")) == 150
        assert recover(lots, "dead:1") == 150

    @only_postgresql
    def test_looks_no_further_than_where_the_held_ones_end(self, lots):
        Lot.objects.bulk_create(Lot() for _ in range(200))
        claim(lots, 2, owner="alive:2")
        with CaptureQueriesContext(connection) as seen:
            assert recover(lots, "dead:1") == 0
        assert len(seen) == 1

    def test_keeps_to_the_states_named(self, lots, lot):
        claim(lots, owner="dead:1")
        assert recover(lots, "dead:1", ["BID", "URGENT"]) == 0
        assert recover(lots, "dead:1", ["BID", "OPEN"]) == 1


KEYS = [
    pytest.param(Chore, {"pk": 2**40}, "DOING", id="bigint"),
    pytest.param(Crate, {"pk": uuid.UUID(int=7)}, "DONE", id="uuid"),
    pytest.param(Coupon, {"pk": "ABC-1234"}, "DONE", id="varchar"),
    pytest.param(Sensor, {"name": "in two tables"}, "DONE", id="a parent's"),
]


@pytest.mark.parametrize(("model", "values", "target"), KEYS)
class TestKeys:
    def test_of_every_kind_are_understood(self, model, values, target):
        row, lane = model.objects.create(**values), lane_of(model)
        lease = claim_one(lane)
        assert (lease.key, lease.instance) == (row.pk, row)
        assert type(lease.key) is type(row.pk)
        assert beat(lane, lease) == held(lane, lease) == {row.pk}
        assert lock(lane, lease)
        assert release(lane, lease) == {row.pk}
        assert stay(lane, claim_one(lane), delay=0) == {row.pk}
        assert move(lane, claim_one(lane), target) == {row.pk}
        assert columns_of(row).status == target
        assert row.states.history.get().instance_id == row.pk

    def test_that_are_gone_are_not_found(self, model, values, target):
        model.objects.create(**values)
        lane = lane_of(model)
        lease = claim_one(lane)
        model.objects.all().delete()
        assert beat(lane, lease) == held(lane, lease) == release(lane, lease) == set()
        assert stay(lane, lease) == move(lane, lease, target) == set()
        assert not lock(lane, lease)


def test_a_text_key_is_not_cut_to_the_length_of_its_column():
    """A cast to varchar(8) would, and the lease of one row would then answer for another."""
    Coupon.objects.create(pk="ABC-1234")
    lane = lane_of(Coupon)
    lease = claim_one(lane)
    lease.key = "ABC-12345"
    assert beat(lane, lease) == held(lane, lease) == release(lane, lease) == set()


class TestAddUp:
    PERIOD = timezone.now().replace(minute=0, second=0, microsecond=0)

    def add(self, *tallies):
        add_up(connection, RunStatistics._meta.db_table, self.PERIOD, tallies)

    def test_sums_by_machine_state_and_period(self):
        self.add(Tally("a.A", "NEW", "moved", 2, 0.5), Tally("a.A", "OLD", "failed", 1))
        self.add(
            Tally("a.A", "NEW", "moved", 3, 0.25), Tally("a.A", "NEW", "waited", 1), Tally("b.B", "NEW", "moved", 1)
        )
        found = {(row.machine, row.state): row for row in RunStatistics.objects.filter(period=self.PERIOD).by_hour()}
        assert set(found) == {("a.A", "NEW"), ("a.A", "OLD"), ("b.B", "NEW")}
        row = found["a.A", "NEW"]
        assert (row.counts, row.seconds) == ({"moved": 5, "waited": 1}, 0.75)
        assert found["a.A", "OLD"].counts == {"failed": 1}

    def test_writes_all_with_one_statement_unless_they_are_very_many(self):
        some = [Tally("a.A", f"S{number}", "moved", number) for number in range(1, AT_ONCE + 2)]
        self.add()
        with CaptureQueriesContext(connection) as few:
            self.add(*some[:AT_ONCE])
        with CaptureQueriesContext(connection) as many:
            self.add(*some)
        assert [sum("INSERT" in query["sql"] for query in queries) for queries in (few, many)] == [1, 2]
        found = dict(RunStatistics.objects.values_list("state", "count"))
        assert found == {tally.state: tally.number * (2 if tally in some[:AT_ONCE] else 1) for tally in some}

    @pytest.mark.django_db(transaction=True)
    def test_loses_nothing_however_many_write_at_once(self):
        def write():
            for number in range(10):
                tallies = [Tally("a.A", state, kind, 1) for state in ("NEW", "OLD") for kind in ("failed", "moved")]
                self.add(*(tallies if number % 2 else tallies[::-1]))

        assert together(*[lambda: elsewhere(write)] * 4) == [None] * 4
        found = sorted(RunStatistics.objects.values_list("state", "kind", "count"))
        assert found == [(state, kind, 40) for state in ("NEW", "OLD") for kind in ("failed", "moved")]
