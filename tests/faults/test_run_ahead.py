"""Rows that run ahead, and workers that come to harm between two steps: no step is lost, none is recorded twice."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter

import pytest

from lab.models import Mark, Relay
from lab.models.ahead import STEPS
from tests.faults.harness import (
    BRIEF,
    EXTENDED,
    backends,
    check_invariants,
    execute,
    marks_of,
    seed,
    told,
    wait_until_all,
)
from tests.patience import eventually

MARKED = {"marks": True}


def create(number, **script):
    return [row.pk for row in Relay.objects.bulk_create([Relay(script=MARKED | script) for _ in range(number)])]


def states_of(key):
    """Return the states whose handlers were called for a row, in order."""
    return list(Mark.objects.filter(label="lab.Relay", key=str(key)).order_by("pk").values_list("state", flat=True))


def check_all_went_their_way(number, **options):
    check_invariants(Relay, moves=5 * number, terminal=True, released=True, **options)


@pytest.fixture
def start_relay(start_worker):
    return lambda *arguments, **options: start_worker(*arguments, labels=["lab.Relay"], **options)


def test_a_process_killed_between_two_steps_leaves_the_row_in_the_later_state(start_relay):
    """kill -9 when the move is written and the next handler has not begun. I1, I2: nothing is done again."""
    worker = start_relay(pause={"advance.after": 1})
    (key,) = create(1)
    pid = worker.paused_at("advance.after")
    row = Relay.objects.get()
    assert (row.status, row.status_lease_token, row.status_sequence) == ("TWO", 2, 1)
    assert row.status_lease_expires_at is not None
    worker.kill(pid)
    wait_until_all("END", model=Relay)
    assert worker.terminate() == 0
    assert "Took back 1 rows of lab.Relay.states" in worker.log()
    assert states_of(key) == [*STEPS]
    check_all_went_their_way(1)


def test_a_process_killed_in_a_later_step_runs_only_that_again(start_relay):
    """kill -9 in the middle of the third handler: one crash, counted in that state. I1, I2, I3."""
    worker = start_relay()
    (key,) = create(1, THREE={"sleep": 3600})
    mark = eventually(lambda: Mark.objects.filter(state="THREE").first(), "the third step")
    Relay.objects.update(script=MARKED)
    worker.kill(mark.pid)
    wait_until_all("END", model=Relay)
    assert worker.terminate() == 0
    assert states_of(key) == ["ONE", "TWO", "THREE", "THREE", "FOUR", "FIVE"]
    assert told(Relay, "recovered") == 1
    check_all_went_their_way(1)


def test_a_host_that_vanishes_between_two_steps_is_replaced_after_the_lease(start_relay):
    lost = start_relay(pause={"advance.after": 1}, settings=BRIEF)
    (key,) = create(1)
    lost.paused_at("advance.after")
    lost.kill_all()
    other = start_relay()
    wait_until_all("END", model=Relay)
    assert other.terminate() == 0
    assert states_of(key) == [*STEPS]
    check_all_went_their_way(1)


@pytest.mark.parametrize("lose", [{"advance": 4}, {"advance": 2, "adopt": 2}, {"move": 1}], ids=str)
def test_an_answer_that_is_lost_is_found_out(start_relay, lose):
    """The move is written and the connection breaks. I1, I2: each step once, told once, and the row goes on."""
    worker = start_relay(lose=lose)
    (key,) = create(1)
    wait_until_all("END", model=Relay)
    assert worker.terminate() == 0
    assert states_of(key) == [*STEPS]
    assert "has no database and tries again" in worker.log()
    assert "came too late" not in worker.log()
    assert (told(Relay), told(Relay, "dropped"), told(Relay, "recovered")) == (5, 0, 0)
    check_all_went_their_way(1)


def test_answers_lost_for_groups_of_rows_are_found_out(start_relay):
    worker = start_relay(lose={"advance": 3})
    keys = create(200)
    wait_until_all("END", model=Relay)
    assert worker.terminate() == 0
    assert all(states_of(key) == [*STEPS] for key in keys)
    assert (told(Relay), told(Relay, "dropped"), told(Relay, "recovered")) == (1000, 0, 0)
    check_all_went_their_way(200)


def test_a_stop_while_an_answer_is_lost_leaves_no_lease(start_relay):
    """I8: the row is in the later state, free, and no crash is counted."""
    worker = start_relay(pause={"advance.after": 1}, lose={"advance": 1})
    create(1)
    worker.paused_at("advance.after")
    worker.kill(number=15)
    worker.wait_for_log("The worker stops")
    worker.go("advance.after")
    assert worker.wait() == 0
    row = Relay.objects.get()
    assert (row.status, row.status_sequence, row.status_crashes, row.status_error) == ("TWO", 1, 0, "")
    assert (told(Relay), told(Relay, "dropped")) == (1, 0)
    check_invariants(Relay, moves=1, released=True)


def test_a_stop_between_two_steps_leaves_no_lease(start_relay):
    """I8, among many rows that go on at that moment."""
    worker = start_relay("--threads", "2")
    create(300)
    eventually(lambda: marks_of(Relay).count() > 100, "it is in the middle of it")
    assert worker.terminate() == 0
    check_invariants(Relay, released=True)
    assert not Relay.objects.filter(status_crashes__gt=0).exists()
    other = start_relay("--once")
    assert other.wait() == 0
    assert Counter(marks_of(Relay).values_list("state", flat=True)) == dict.fromkeys(STEPS, 300)
    check_all_went_their_way(300)


def test_a_person_who_moves_a_row_between_two_steps_wins(start_relay):
    """The next step is stale, and the row stays where it was put."""
    worker = start_relay(pause={"advance.after": 1})
    create(1)
    worker.paused_at("advance.after")
    Relay.objects.get().states.transition_to("FAILED")
    worker.go("advance.after")
    worker.wait_for_log("came too late")
    assert worker.terminate() == 0
    assert Relay.objects.get().status == "FAILED"
    check_invariants(Relay, moves=2, terminal=True, released=True)


def test_a_late_worker_is_not_heard_after_another_took_the_row(start_relay):
    """A worker that hung between two steps past its lease. I1: what it still sends is refused."""
    late = start_relay(pause={"advance.after": 1}, settings=BRIEF, off=["beat"])
    (key,) = create(1)
    late.paused_at("advance.after")
    late.kill_all(signal.SIGSTOP)  # it would look for rows whose lease has run out, too
    other = start_relay()
    wait_until_all("END", model=Relay)
    before = Relay.objects.values().get()
    others = {mark.pid for mark in marks_of(Relay).filter(key=str(key)).exclude(state="ONE")}
    assert others <= {*other.children()}
    late.go("advance.after")
    late.kill_all(signal.SIGCONT)
    assert late.terminate() == 0
    assert other.terminate() == 0
    assert Relay.objects.values().get() == before
    check_all_went_their_way(1)


def test_two_workers_and_connections_that_are_cut_all_the_time(start_relay):
    """Committers, claimers and heartbeats lose their connections again and again. I1, I2, I3, I8."""
    chosen, number = random.Random(seed()), 400
    workers = [start_relay(settings=EXTENDED | {"MAX_CRASHES": 50}) for _ in range(2)]
    create(number)
    eventually(lambda: marks_of(Relay).exists(), "the first step")
    for _ in range(25):
        pids = [pid for role in ("committer", "claimer", "heartbeat") for pid in backends(role)]
        if pids:
            execute("SELECT pg_terminate_backend(%s)", chosen.choice(pids))
        time.sleep(0.05)
    wait_until_all("END", model=Relay)
    assert [worker.terminate() for worker in workers] == [0, 0]
    check_all_went_their_way(number)
    assert told(Relay) == 5 * number


def test_two_workers_and_processes_that_are_killed(start_relay):
    """I1, I2, I3: every chain is whole, and no token ran twice."""
    chosen, number = random.Random(seed()), 300
    workers = [start_relay("--processes", "2", settings=EXTENDED | {"MAX_CRASHES": 50}) for _ in range(2)]
    create(number)
    eventually(lambda: marks_of(Relay).exists(), "the first step")
    for _ in range(6):
        worker = chosen.choice(workers)
        if children := worker.children():
            worker.kill(chosen.choice(children))
        time.sleep(0.2)
    wait_until_all("END", model=Relay)
    assert [worker.terminate() for worker in workers] == [0, 0]
    check_all_went_their_way(number)


def test_a_restart_of_the_server_in_the_middle(server, start_relay):
    worker = start_relay(settings=EXTENDED | {"MAX_CRASHES": 50})
    create(300)
    eventually(lambda: marks_of(Relay).count() > 50, "it is in the middle of it")
    server.restart("fast")
    wait_until_all("END", model=Relay)
    assert worker.terminate() == 0
    check_all_went_their_way(300)
