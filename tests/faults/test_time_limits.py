"""Handlers that never end: each is stopped for real, its row is retried, and its neighbours do not suffer."""

from __future__ import annotations

from lab.models import Call, Chore, Run, Transfer
from statemachine_fields.machine.verify import Verifier
from tests.faults.harness import EXTENDED, check_invariants, create_chores, execute, runs, wait_for_run, wait_until_all
from tests.faults.injections import injected
from tests.patience import eventually

STOPPED = "Stopped: the handler ran longer than its time limit of"


def make_due(table):
    execute(f"UPDATE {table} SET status_next_at = now() WHERE status_next_at IS NOT NULL")


def failed(model, *keys):
    """Wait until rows have failed once, and return them."""
    rows = model.objects.filter(pk__in=keys, status_failures=1, status_lease_expires_at=None).order_by("pk")
    eventually(lambda: rows.count() == len(keys), f"{model.__name__} {keys} failed")
    return list(rows)


def are_all(model, status, keys):
    return not model.objects.filter(pk__in=keys).exclude(status=status).exists()


def test_handlers_past_their_limit_are_stopped_and_retried(start_worker):
    """#15: a loop, a sleep, a socket. I1, I2, I5: failures, no crash; a slow neighbour ends; there is room for more."""
    worker = start_worker()
    (slow,) = create_chores(1, status="DOING", script=lambda _: {"DOING": {"sleep": 3}, "marks": True})
    wait_for_run(slow)
    hung = create_chores(3, script=lambda place: {"NEW": [["loop", "sleep", "socket"][place], "DOING"], "marks": True})
    for row in failed(Chore, *hung):
        assert row.status_error == f"{STOPPED} 2 s."
        assert (row.status, row.status_crashes) == ("NEW", 0)
    assert Chore.states.due().count() == 0, "they wait for their turn"
    more = create_chores(3)  # served by another process, while the old one waits for the slow row
    eventually(lambda: are_all(Chore, "DONE", more), "there is room for more")
    make_due("lab_chore")
    wait_until_all("DONE")
    assert len(runs(slow)) == 1, "the neighbour was not disturbed"
    for chore in hung:
        first, second = runs(chore, "NEW")
        assert first.pid != second.pid
    assert worker.terminate() == 0
    assert "died" not in worker.log()
    check_invariants(moves=1 + 6 + 6, terminal=True, released=True)


def test_a_neighbour_that_is_too_slow_for_a_stop_is_given_back_without_a_crash(start_worker):
    """#15: the worker has to end before the neighbour does. I1, I5: it is run again, and no crash is counted."""
    worker = start_worker("--threads", "2", settings={"STOP_SECONDS": 0.5})
    (slow,) = create_chores(1, status="DOING", script=lambda _: {"DOING": {"sleep": 60}, "marks": True})
    wait_for_run(slow)
    (hung,) = create_chores(1, script=lambda _: {"NEW": "sleep"})
    failed(Chore, hung)
    Chore.objects.filter(pk=slow).update(script={"marks": True})
    assert worker.terminate() == 0
    assert "The worker stopped before the handler was done." in worker.log()
    other = start_worker()
    wait_for_run(slow, 2)
    eventually(lambda: are_all(Chore, "DONE", [slow]), "the neighbour is done")
    other.terminate()
    assert "Recovered from" not in other.log()
    check_invariants(moves=1, released=True)


def test_what_a_stopped_handler_says_later_is_not_heard(start_worker):
    """#15: the answer comes while its process is about to end. I1, I2: the row failed, and that stands."""
    worker = start_worker("--threads", "2")
    # A neighbour keeps the process from ending before the late answer is there.
    (keeper,) = create_chores(1, status="DOING", script=lambda _: {"DOING": "wait", "marks": True})
    wait_for_run(keeper)
    (late,) = create_chores(1, script=lambda _: {"NEW": "wait"})
    (row,) = failed(Chore, late)
    assert row.status == "NEW"
    Chore.objects.filter(pk=late).update(script={})
    execute("SELECT pg_sleep(0.5)")  # for the late answer
    Chore.objects.filter(pk=keeper).update(script={})
    eventually(lambda: are_all(Chore, "DONE", [keeper]), "the neighbour is done")
    assert worker.terminate() == 0
    again = Chore.objects.get(pk=late)
    assert (again.status, again.status_failures, again.status_lease_token) == ("NEW", 1, row.status_lease_token)


def test_atomic_handlers_past_their_limit_are_undone(start_worker):
    """#15 in transactions that have their rows locked, in Python and in the server. I1, I2, I8: failures, no crash."""
    worker = start_worker(labels=["lab.Transfer"])
    rows = Transfer.objects.bulk_create([Transfer(wait=3600), Transfer(wait=-3600), Transfer(wait=0)])
    *hung, quick = [row.pk for row in rows]
    for row in failed(Transfer, *hung):
        assert row.status_error == f"{STOPPED} 1 s."
    assert not Run.objects.filter(chore__in=hung).exists(), "what they wrote is undone"
    eventually(lambda: are_all(Transfer, "SENT", [quick]), "the neighbour is done")
    Transfer.objects.update(wait=0)
    make_due("lab_transfer")
    eventually(lambda: are_all(Transfer, "SENT", hung), "the second try")
    assert Run.objects.filter(chore__in=hung).count() == 2
    assert worker.terminate() == 0
    assert "Recovered from" not in worker.log()
    assert not list(Verifier(Transfer.states._meta).findings())


def test_an_atomic_handler_that_the_server_stops_has_failed(start_worker):
    """A statement_timeout, which would come again and again. I5: it is a failure like any other, and waits its turn."""
    database = {"OPTIONS": {"options": "-c statement_timeout=300"}}
    worker = start_worker(labels=["lab.Transfer"], environment=injected(database=database))
    (row,) = failed(Transfer, Transfer.objects.create(wait=-3600).pk)
    assert "statement timeout" in row.status_error
    assert Transfer.states.due().count() == 0
    assert worker.terminate() == 0


def test_atomic_handlers_that_run_on_at_the_stop_are_undone(start_worker):
    """#24 with handlers that have their rows locked for longer than the stop waits. I8: no lease is left."""
    worker = start_worker(labels=["lab.Transfer"], settings={"STOP_SECONDS": 0.3})
    Transfer.objects.bulk_create([Transfer(wait=3600), Transfer(wait=-3600)])
    eventually(lambda: Transfer.states.leased().count() == 2, "the rows are held")
    assert worker.terminate() == 0
    for row in Transfer.objects.all():
        assert (row.status, row.status_lease_owner, row.status_failures, row.status_crashes) == ("OPEN", "", 0, 0)


def test_coroutines_past_their_limit_are_stopped_and_retried(start_worker):
    """#15 on the event loop. I1, I2, I3, I5: cancelled if they let themselves be, else their process is replaced."""
    worker = start_worker(labels=["lab.Call"])
    manners = ["endless", "stubborn", "elsewhere", "cancelled", "slow"]
    *bad, cancelled, slow = [call.pk for call in Call.objects.bulk_create([Call(manners=each) for each in manners])]
    for row in failed(Call, *bad):
        assert row.status_error == f"{STOPPED} 1 s."
    (row,) = failed(Call, cancelled)
    assert row.status_error == "CancelledError: The handler was cancelled by other code."
    worker.wait_for_log("cannot be cancelled")
    others = [slow, *[call.pk for call in Call.objects.bulk_create([Call() for _ in range(20)])]]
    eventually(lambda: are_all(Call, "ANSWERED", others), "the others are done")
    assert not Call.objects.filter(pk__in=others, status_failures__gt=0).exists()
    Call.objects.update(manners="")
    make_due("lab_call")
    eventually(lambda: are_all(Call, "ANSWERED", [*bad, cancelled]), "the second try")
    assert worker.terminate() == 0
    assert not Call.states.leased().exists()
    assert "died" not in worker.log()
    assert not list(Verifier(Call.states._meta).findings())


def test_a_coroutine_that_blocks_the_loop_is_stopped_with_its_process(start_worker):
    """#15: nothing on the loop can run, not even a cancellation. I2, I5: rows that never began are not blamed."""
    worker = start_worker("--threads", "2", labels=["lab.Call"], settings={"STOP_SECONDS": 0.5})
    bad, *others = [
        call.pk for call in Call.objects.bulk_create([Call(manners="blocking"), *[Call() for _ in range(20)]])
    ]
    (row,) = failed(Call, bad)
    assert row.status_error == f"{STOPPED} 1 s."
    eventually(lambda: are_all(Call, "ANSWERED", others), "the others are done")
    assert worker.terminate() == 0
    assert not Call.objects.filter(status_crashes__gt=0).exists()
    assert Call.objects.get(status_failures__gt=0).pk == bad


def test_a_handler_that_holds_the_interpreter_is_killed_by_the_supervisor(start_worker):
    """#15: no thread of the process can run, not even the one that looks at the clock. I1, I3, I5: a crash."""
    worker = start_worker("--threads", "2", settings=EXTENDED, constants={"supervisor.SILENCE": 3.0})
    held, neighbour = create_chores(
        2, status="DOING", script=lambda place: {"DOING": "DONE" if place else "hold", "marks": True}
    )
    worker.wait_for_log("and is killed")
    eventually(lambda: Chore.objects.get(pk=held).status_crashes == 1, "a crash is counted")
    Chore.objects.filter(pk=held).update(script={"marks": True})
    wait_until_all("DONE")
    assert len({run.pid for run in runs(held)}) >= 2
    assert runs(neighbour)
    worker.terminate()
    check_invariants(moves=2, terminal=True, released=True)
