"""Processes that come and go: they share no connection with anybody, and leave nothing behind."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

from lab.models import Chore
from tests.faults.harness import check_invariants, create_chores, wait_until_all
from tests.patience import eventually


def sockets(pid: int) -> set[str]:
    """Return the sockets that a process has open, by a name that is the same in every process that shares one."""
    found = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(file.readlink())
        except FileNotFoundError:  # closed since
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def resident_kilobytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1))


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_no_connection_is_shared(start_worker):
    """#30: a socket that two processes use would mix up what the database answers to each."""
    worker = start_worker("--processes", "3", "--threads", "2")
    chores = create_chores(60, status="DOING", script=lambda _: {"DOING": {"sleep": 0.1}, "marks": True})
    eventually(lambda: Chore.objects.filter(status="DONE").count() > 12, "all are at work")
    children = worker.children()
    assert len(children) == 3
    by_process = {pid: sockets(pid) for pid in [worker.pid, *children]}
    assert all(len(by_process[pid]) >= 3 for pid in children), "claimer, committer, heartbeat"
    assert by_process[worker.pid] == set(), "the supervisor has no connection"
    for one, other in combinations(by_process.values(), 2):
        assert not one & other
    worker.kill(children[0])
    wait_until_all("DONE")
    fresh = eventually(lambda: set(worker.children()) - set(children), "another in its place").pop()
    others = [sockets(pid) for pid in worker.children() if pid != fresh]
    assert all(not sockets(fresh) & theirs for theirs in others)
    assert worker.terminate() == 0
    check_invariants(moves=len(chores), terminal=True, released=True)


def test_processes_that_are_replaced_after_so_many_rows_lose_nothing(start_worker):
    """#30: 20 processes, one after another. I1, I2, I3, I8; and the supervisor has no more in hand than before."""
    worker = start_worker("--max-rows", "40", settings={"BATCH_SIZE": 20})
    create_chores(40)
    wait_until_all("DONE")
    files, memory = open_files(worker.pid), resident_kilobytes(worker.pid)
    rounds = 1
    while worker.log().count("is being replaced") < 20:
        create_chores(200)
        rounds += 1
        wait_until_all("DONE")
    assert open_files(worker.pid) <= files + 3, "a process more may be about to start"
    assert resident_kilobytes(worker.pid) < memory * 1.2
    assert worker.terminate() == 0
    assert "died" not in worker.log()
    assert not Chore.objects.filter(status_crashes__gt=0).exists()
    check_invariants(moves=2 * Chore.objects.count(), terminal=True, released=True)
    assert not Path(f"/proc/{worker.pid}").exists() or worker.members() == []
