"""Rows that fail, kill and cannot be read: each is stopped after a few tries, and its neighbours flow. I5."""

from __future__ import annotations

import time

import pytest
from django.db import connection
from django.db.models import Max

from lab.models import Chore, Vase
from statemachine_fields.db.claims import Left
from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.machine.verify import Verifier
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.lease import lanes_of
from tests.faults.harness import check_invariants, create_chores, execute, runs, wait_for_run
from tests.faults.injections import injected
from tests.patience import eventually


def wait_until_done(keys):
    rows = Chore.objects.filter(pk__in=keys)
    eventually(lambda: not rows.exclude(status="DONE").exists(), "the neighbours are done")


def test_a_handler_that_always_raises_backs_off_and_ends_in_the_state_for_errors(start_worker):
    """#16. I2, I5, I6: each wait is longer, the third failure is the last, and the record says what was wrong."""
    worker = start_worker()
    (chore,) = create_chores(1, script=lambda _: {"NEW": ["raise", "raise", "leave"], "marks": True})
    for failures, wait in ((1, 60), (2, 120)):
        row = eventually(lambda n=failures: Chore.objects.filter(status_failures=n).first(), f"failure {failures}")
        assert row.status_error == "ValueError: no luck with 0"
        since, until = runs(chore)[-1].at, execute("SELECT now()")[0][0]
        assert (row.status_next_at - since).total_seconds() >= wait * 0.9, "by the database's clock"
        assert (row.status_next_at - until).total_seconds() <= wait * 1.1, "with a little chance"
        execute("UPDATE lab_chore SET status_next_at = now()")
    eventually(lambda: Chore.objects.get().status == "FAILED", "the row is given up")
    (record,) = Chore.states.transition_model.objects.all()
    assert record.metadata == {"error": "SystemExit: The handler called sys.exit(3).", "attempts": 3}
    assert "died" not in worker.log()
    assert [run.attempt for run in runs(chore)] == [1, 2, 3]
    worker.terminate()
    check_invariants(moves=1, terminal=True, released=True)


def test_rows_that_kill_their_worker_are_given_up_and_their_neighbours_finish(start_worker):
    """#17, os._exit and a segmentation fault. I1, I2, I5: nobody else is parked, moved to an error or near to it."""
    crashes: list[int] = []
    worker = start_worker(settings={"MAX_CRASHES": 3}, constants={"supervisor.LONGEST_WAIT_OF_ROWS": 0.2})
    exits, faults = create_chores(2, status="DOING", script=lambda place: {"DOING": ["exit", "segfault"][place]})
    slow = create_chores(4, status="DOING", script=lambda _: {"DOING": {"sleep": 0.5}})
    quick = create_chores(200, status="DOING")
    (doomed,) = create_chores(1, script=lambda _: {"NEW": "exit"})
    others = Chore.objects.exclude(pk__in=[exits, faults, doomed])

    def all_are_given_up():
        crashes.append(others.aggregate(most=Max("status_crashes"))["most"] or 0)
        return Chore.states.parked().count() == 2 and Chore.objects.get(pk=doomed).status == "FAILED"

    eventually(all_are_given_up, "the poison is out of the way")
    wait_until_done([*slow, *quick])
    assert max(crashes) < 3
    assert set(Chore.states.parked().values_list("pk", flat=True)) == {exits, faults}
    for row in Chore.states.parked():
        assert row.status_error.startswith("Given up: 3 workers died while they ran this row, or vanished. Recovered")
    (record,) = Chore.states.transition_model.objects.filter(to_status="FAILED")
    assert (record.instance_id, record.metadata["crashes"]) == (doomed, 3)
    assert worker.log().count("died of exit code 13") + worker.log().count("died of signal SIGSEGV") <= 9
    assert worker.terminate() == 0
    check_invariants(moves=205, released=True)


@pytest.mark.parametrize("end", ["is taken back", "runs out"])
def test_a_row_that_was_left_again_goes_behind_the_others_that_were_left(database, end):
    """#17: whoever died of it before does not have to die of it again, to be run at all. I3, I5."""
    create_chores(3, status="DOING")
    (lane,) = lanes_of([Chore.states._meta])

    def leave(owner):
        if end == "runs out":
            execute("UPDATE lab_chore SET status_lease_expires_at = now() WHERE status_lease_owner = %s", owner)
        else:
            dialect_for(connection).recover(connection, Chore.states._meta.table, ["DOING"], Left(owner))

    assert len(Claimer("first", 60).claim(lane, 3)) == 3
    leave("first")
    (poison,) = Claimer("second", 60).claim(lane, 1, suspects=True)
    leave("second")
    found = [Claimer("third", 60).claim(lane, 1, suspects=True)[0] for _ in range(3)]
    assert found[2].key == poison.key
    assert [lease.crashes for lease in found] == [1, 1, 2]


def test_rows_that_come_while_others_kill_the_worker_are_served(start_worker):
    """#17: a poisoned worker still works. I3, I5: what is due waits for seconds, not until the poison is gone."""
    worker = start_worker(settings={"MAX_CRASHES": 1000})

    def deaths():
        return worker.log().count("died of exit code 13")

    create_chores(2, status="DOING", script=lambda _: {"DOING": "exit"})
    eventually(lambda: deaths() >= 4, "the worker dies again and again")
    before, began = deaths(), time.monotonic()
    late = create_chores(50, status="DOING")
    wait_until_done(late)
    assert deaths() - before < 5 + (time.monotonic() - began), "and not as fast as it can"


def test_a_handler_without_memory_has_failed(start_worker):
    """#17, out of memory as far as Python notices; if not, the kernel kills, which is the crash above. I2, I5."""
    worker = start_worker(environment=injected(memory=1_500_000_000))
    (hoarder,) = create_chores(1, status="DOING", script=lambda _: {"DOING": "hoard", "marks": True})
    others = create_chores(50)
    wait_for_run(hoarder)
    wait_until_done(others)
    row = eventually(lambda: Chore.objects.filter(pk=hoarder, status_failures__gte=1).first(), "it failed")
    assert row.status_error == "MemoryError"
    worker.terminate()
    check_invariants(moves=100, released=True)


def test_rows_that_cannot_be_loaded_are_parked_and_their_neighbours_done(start_worker):
    """#18: a field of the project's own that raises, and a time that the driver cannot read. I2, I5."""
    vases = Vase.objects.bulk_create([Vase() for _ in range(100)])
    broken, future, *_ = [vase.pk for vase in vases]
    execute("UPDATE lab_vase SET text = 'broken' WHERE id = %s", broken)
    execute("UPDATE lab_vase SET fired_at = '12000-01-01' WHERE id = %s", future)
    worker = start_worker(labels=["lab.Vase"])
    healthy = Vase.objects.defer("text", "fired_at").exclude(pk__in=[broken, future])
    eventually(lambda: not healthy.exclude(status="DONE").exists(), "the neighbours are done")
    parked = Vase.states.parked().defer("text", "fired_at")
    eventually(lambda: parked.count() == 2, "both are parked")
    errors = {row.pk: row.status_error for row in parked}
    assert errors[broken] == "The row could not be loaded: ValueError: the text is broken"
    assert errors[future].startswith("The row could not be loaded: DataError: timestamp too large (after year 10K)")
    assert "died" not in worker.log()
    assert worker.terminate() == 0
    assert not Vase.states.leased().exists()
    assert not list(Verifier(Vase.states._meta).findings())


def test_a_row_in_a_state_that_the_code_does_not_know_is_left_alone(start_worker):
    """#18, #25: a newer release has moved it on, or somebody wrote it by hand. I2, I5: not a column of it changes."""
    unknown, *others = create_chores(20)
    execute("UPDATE lab_chore SET status = 'PACKED' WHERE id = %s", unknown)
    before = Chore.objects.values().get(pk=unknown)
    assert before["status_next_at"] is not None
    worker = start_worker()
    wait_until_done(others)
    assert worker.terminate() == 0
    assert Chore.objects.values().get(pk=unknown) == before
    Chore.objects.filter(pk=unknown).delete()
    check_invariants(moves=38, terminal=True, released=True)


def test_a_row_that_a_newer_release_moves_on_meanwhile_is_left_alone(start_worker):
    """#25: the old release holds the row while the new one moves it to a state of its own. I1, I2: no crash, no move."""
    old = start_worker(pause={"handler.after": 1})
    create_chores(1, status="DOING")
    old.paused_at("handler.after")
    execute("UPDATE lab_chore SET status = 'PACKED', status_lease_token = status_lease_token + 1")
    before = Chore.objects.values().get()
    old.go("handler.after")
    old.wait_for_log("came too late and was dropped")
    assert old.terminate() == 0
    assert Chore.objects.values().get() == before
    assert before["status_crashes"] == 0


@pytest.mark.parametrize("when", ["waiting", "running"])
def test_a_row_that_is_deleted_while_it_is_held_stays_deleted(start_worker, when):
    """#18, #31: the outcome is dropped, and nothing comes back. I2, I4: no row, no record."""
    point = {"waiting": "claim.after", "running": "handler.after"}[when]
    worker = start_worker("--threads", "1", pause={point: 1})  # so that it is the first row that is held
    first, *others = create_chores(5, script=lambda _: {"marks": True})
    worker.paused_at(point)
    Chore.objects.filter(pk=first).delete()
    worker.go(point)
    wait_until_done(others)
    assert worker.terminate() == 0
    assert not Chore.objects.filter(pk=first).exists()
    assert not Chore.states.transition_model.objects.filter(instance_id=first).exists()
    check_invariants(moves=8, terminal=True, released=True)
