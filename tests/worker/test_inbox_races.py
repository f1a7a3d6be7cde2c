"""I7, with real connections: workers, senders and people at the same rows. At rest, nobody sleeps beside an event that the row waits for;
each event is untaken or taken by one move; numbers are in the order of commits."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest
from django.db import DEFAULT_DB_ALIAS, connection, connections, transaction

from lab.models import Petition
from statemachine_fields import ConcurrentTransition, Delivery, InvalidStateTransition
from statemachine_fields.machine.verify_events import event_findings
from statemachine_fields.testing import drain
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.outcome_events import Events
from tests.patience import PATIENCE, eventually
from tests.together import together
from tests.worker.rows import claim_one, columns_of, lane_of, only_postgresql

pytestmark = [pytest.mark.django_db(transaction=True), only_postgresql]

#: The machine leads in a circle, so that a row never ends and never rests for long.
ROUND = {"needs": 2, "to": "HEARD"}


def petition(status="OPEN", **script):
    row = Petition.objects.create(script=script)
    row.states.force_transition_to(status, reason="for the test")
    return row


class Worker:
    """Claims, runs and commits in the calling thread, a few rows at a time."""

    def __init__(self, name):
        self.lane = lane_of(Petition)
        self.claimer = Claimer(name, 60)
        executor = HandlerExecutor(max_crashes=5)
        self.committer = Committer(executor, Events())
        self.executor = executor

    def turn(self):
        leases = self.claimer.claim(self.lane, random.randint(1, 5))
        outcomes = [self.executor.run(lease) for lease in leases]
        time.sleep(random.choice((0, 0, 0.001)))
        while outcomes:
            outcomes = self.committer.commit(outcomes)
        return len(leases)


def test_storm():
    keys = [petition(**ROUND).pk for _ in range(8)]
    stop = threading.Event()
    answers = Counter()

    def work(name):
        def run():
            worker = Worker(name)
            while not stop.is_set():
                worker.turn()

        return run

    def send(number):
        def run():
            chance = random.Random(number)
            for count in range(150):
                row = Petition(pk=chance.choice(keys))
                row._state.adding = False
                name, dedup_key = chance.choice(("letter", "letter", "call")), f"{number}-{count}"
                if chance.random() < 0.3:
                    with transaction.atomic():
                        answers[row.states.deliver(name, dedup_key=dedup_key)] += 1
                        time.sleep(0.001)
                elif chance.random() < 0.3:
                    entries = [{"key": key, "name": name, "dedup_key": dedup_key} for key in chance.sample(keys, 3)]
                    answers.update(Petition.states.bulk_deliver(entries))
                else:
                    answers[row.states.deliver(name, dedup_key=dedup_key)] += 1
                    answers[row.states.deliver(name, dedup_key=dedup_key)] += 1

        return run

    def meddle():
        """Move rows by hand, in and out of states that wait."""
        while not stop.is_set():
            row = Petition.objects.get(pk=random.choice(keys))
            with suppress(InvalidStateTransition, ConcurrentTransition):
                row.states.transition_to({"OPEN": "DRAFT", "DRAFT": "OPEN", "HEARD": "OPEN"}[row.status])
            time.sleep(0.002)

    def watch(senders):
        def run():
            for _ in range(600):
                if all(each.is_set() for each in senders):
                    break
                time.sleep(0.1)
            stop.set()

        return run

    done = [threading.Event() for _ in range(3)]

    def ending(program, event):
        def run():
            try:
                program()
            finally:
                event.set()

        return run

    senders = [ending(send(number), event) for number, event in enumerate(done)]
    results = together(work("one"), work("two"), work("three"), *senders, meddle, watch(done))
    assert [result for result in results if result is not None] == []
    connections.close_all()
    worker = Worker("last")
    while worker.turn():
        pass

    assert [*event_findings(Petition.states._meta, DEFAULT_DB_ALIAS)] == []
    assert not Petition.states.due().exists()
    assert not Petition.states.parked().exists()
    events = Petition.states.event_model.objects
    new = answers[Delivery.WOKEN] + answers[Delivery.KEPT]
    assert (events.count(), answers[Delivery.DUPLICATE] > 0) == (new, True)
    for row in Petition.objects.all():
        times = [event.delivered_at for event in row.states.events]
        assert times == sorted(times)  # the clock is read under the row's lock
        # What moves say that they were handed is what they took, each once.
        said = Counter(number for each in row.states.history for number in each.metadata.get("read", ()))
        assert max(said.values(), default=1) == 1
        by_handler = {number: each.sequence for each in row.states.history for number in each.metadata.get("read", ())}
        assert dict(row.states.events.filter(number__in=by_handler).values_list("number", "taken_by")) == by_handler
        waits = {"OPEN": ("letter", "call"), "HEARD": ("letter",), "DRAFT": ()}[row.status]
        untaken = row.states.events.filter(taken_by=None, name__in=waits).count()
        assert untaken < (2 if row.status == "OPEN" else 1), (row.status, untaken)


def test_events_for_the_same_rows_from_several_senders_do_not_block_each_other():
    keys = [petition("HEARD").pk for _ in range(10)]

    def send(order):
        def run():
            for _ in range(40):
                Petition.states.bulk_deliver([{"key": key, "name": "call"} for key in order])

        return run

    assert together(send(keys), send(keys[::-1]), send(keys[5:] + keys[:5])) == [None] * 3
    numbers = [[event.number for event in row.states.events] for row in Petition.objects.all()]
    assert numbers == [[*range(1, 121)]] * 10


class TestSlowSenders:
    """A sender that has written and not committed, at each step of a worker."""

    def sending(self, row, name="letter"):
        """Let somebody deliver an event and keep the transaction open; return what commits it."""
        has_sent, may_commit = threading.Event(), threading.Event()

        def run():
            with transaction.atomic():
                Petition.objects.get(pk=row.pk).states.deliver(name)
                has_sent.set()
                assert may_commit.wait(PATIENCE)
            connections.close_all()

        thread = threading.Thread(target=run)
        thread.start()
        assert has_sent.wait(PATIENCE)

        def commit():
            may_commit.set()
            thread.join(PATIENCE)

        return commit

    def test_is_waited_for_by_who_moves_the_row_by_hand(self):
        row = petition("DRAFT")
        commit = self.sending(row)
        mover = threading.Timer(0.2, commit)
        mover.start()
        Petition.objects.get(pk=row.pk).states.transition_to("OPEN")  # waits for the row, and then compares
        mover.join()

        assert Petition.states.due().filter(pk=row.pk).exists()

    @pytest.mark.parametrize("needs", [1, 2])
    def test_between_the_answer_and_its_commit(self, needs):
        row = petition(needs=needs)
        row.states.deliver("letter")
        lane = lane_of(Petition)
        executor = HandlerExecutor(max_crashes=5)
        committer = Committer(executor, Events())
        outcome = executor.run(claim_one(lane))
        commit = self.sending(row)
        again = committer.commit([outcome])
        assert again == [outcome]  # the row is locked, so it is skipped
        commit()
        assert committer.commit(again) == []

        assert Petition.states.due().filter(pk=row.pk).exists()
        drain(Petition)
        assert columns_of(row).status == ("OPEN" if needs == 1 else "HEARD")

    def test_two_with_one_key(self):
        row = petition("HEARD")
        results = together(
            *[lambda: Petition.objects.get(pk=row.pk).states.deliver("call", dedup_key="x") for _ in range(4)]
        )
        assert sorted(results) == [Delivery.DUPLICATE] * 3 + [Delivery.KEPT]
        assert columns_of(row).sequence == 1
        assert Petition.objects.get().status_inbox == 1


#: Which lock a statement waits for, once it has begun, and how somebody finds out that it does.
GATE = 4711
WAITS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"


@pytest.fixture
def halted():
    """Let statements of this connection that write petitions halt when they have begun, before they lock a row."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
        cursor.execute(
            "CREATE FUNCTION halt() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF pg_backend_pid() = {pid} THEN PERFORM pg_advisory_xact_lock_shared({GATE}); END IF;"
            " RETURN NULL; END $$"
        )
        cursor.execute("CREATE TRIGGER halt BEFORE UPDATE ON lab_petition FOR EACH STATEMENT EXECUTE FUNCTION halt()")
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION halt CASCADE")


@pytest.mark.parametrize(("needs", "status"), [(2, "OPEN"), (1, "HEARD")], ids=["that sleeps", "that moves"])
def test_what_comes_when_the_statement_of_a_worker_has_begun_wakes_a_row(request, needs, status):
    """It sees the database as it was then, and the row as it is when it is locked."""
    row = petition(needs=needs)
    row.states.deliver("letter")
    executor = HandlerExecutor(max_crashes=5)
    outcome = executor.run(claim_one(lane_of(Petition)))
    request.getfixturevalue("halted")
    is_closed = threading.Event()

    def send():
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_lock(%s)", [GATE])
                is_closed.set()

                def is_halted():
                    cursor.execute(WAITS, [GATE])
                    return cursor.fetchone()[0]

                eventually(is_halted, "the statement has begun")
                Petition.objects.get(pk=row.pk).states.deliver("letter")
        finally:
            connections.close_all()  # which opens the gate

    assert Petition.states.due().count() == 0
    sender = threading.Thread(target=send)
    sender.start()
    assert is_closed.wait(PATIENCE)
    assert Committer(executor, Events()).commit([outcome]) == []
    sender.join(PATIENCE)
    assert columns_of(row).status == status
    assert Petition.states.due().filter(pk=row.pk).exists()
