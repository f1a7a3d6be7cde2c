"""Tries that are kept, by real workers that die."""

from __future__ import annotations

from lab.models import Effort
from statemachine_fields.machine.verify import Verifier
from tests.patience import eventually


def test_a_worker_killed_while_a_try_runs_leaves_one_crash(start_worker):
    worker = start_worker(labels=["lab.Effort.states"])
    row = Effort.objects.create(note="sleep")
    eventually(lambda: Effort.objects.get().note == "asleep", "the handler runs")
    holder = Effort.objects.get().status_lease_owner
    worker.kill(int(holder.split(":")[1]))
    eventually(lambda: Effort.objects.get().status == "DONE", "the row is run again")
    assert worker.terminate() == 0
    (attempt,) = row.states.attempts
    assert (attempt.number, attempt.outcome, attempt.worker, attempt.state) == (1, "crashed", holder, "NEW")
    assert attempt.error == f"Recovered from {holder}, which died."
    told = row.states.history.get().metadata["try"]
    assert (told["number"], told["worker"] != holder) == (2, True)
    assert list(Verifier(Effort.states._meta).findings()) == []
