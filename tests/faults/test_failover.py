"""A primary that goes for good, and a standby that takes its place: workers find it by themselves."""

from __future__ import annotations

from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from lab.models import Chore, Run
from tests.faults.harness import EXTENDED, MARKED, check_invariants, create_chores, wait_until_all
from tests.faults.injections import injected
from tests.faults.server import Standby, as_default
from tests.patience import eventually

ROWS = 300


@pytest.fixture
def standby(server, database):
    """A standby that has the test's database."""
    standby = Standby(server)
    yield standby
    standby.end()


@pytest.fixture
def start_with_two_hosts(server, standby, start_worker):
    """A function that starts a worker which knows both servers, and wants the one that can be written to."""
    hosts = f"{server.directory},{standby.directory}"
    place = {"HOST": hosts, "OPTIONS": {"target_session_attrs": "read-write"}}

    def start(*arguments, **options):
        return start_worker(*arguments, environment=injected(database=place), settings=EXTENDED, **options)

    return start


@pytest.fixture
def fail_over(server, standby, database):
    """A function that ends the primary as in a crash and promotes the standby, which is `default` from then on."""
    with ExitStack() as stack:

        def fail_over():
            server.stop("immediate")
            standby.promote()
            stack.enter_context(as_default(standby.url(urlsplit(database).path[1:])))

        yield fail_over


def test_workers_follow_to_a_synchronous_standby_and_nothing_is_lost(standby, start_with_two_hosts, fail_over, chance):
    """Two workers under load. I1, I2, I3, I8: all that was committed is there, each move is made once, nobody is to
    blame, and the workers need no help."""
    create_chores(
        ROWS, script=lambda _: {"NEW": {"sleep": chance.uniform(0, 0.04)}, "DOING": {"sleep": 0.02}, **MARKED}
    )
    records = Chore.states.transition_model.objects
    with standby.is_synchronous():
        workers = [start_with_two_hosts() for _ in range(2)]
        eventually(lambda: records.count() >= ROWS // 3, "work is under way")
        before, ran = set(records.values_list("pk", flat=True)), set(Run.objects.values_list("pk", flat=True))
        fail_over()
    assert before <= set(records.values_list("pk", flat=True))
    assert ran <= set(Run.objects.values_list("pk", flat=True))
    assert Chore.objects.exclude(status="DONE").exists(), "there is work left to be done"
    wait_until_all("DONE")
    for worker in workers:
        assert worker.terminate() == 0
        assert " died of " not in worker.log()
    assert not Chore.objects.filter(status_failures__gt=0).exists()
    check_invariants(moves=2 * ROWS, terminal=True, released=True)


def test_what_an_asynchronous_standby_has_missed_is_done_again(standby, start_with_two_hosts, fail_over):
    """The standby lags behind when it takes over. Moves that were made are gone, with their records and tokens, so that
    handlers run again and tokens are given out a second time. What is there is whole: I2, I3, I8, and not I1."""
    create_chores(ROWS, script=lambda _: {"NEW": {"sleep": 0.02}, "DOING": {"sleep": 0.02}, **MARKED})
    standby.cut_off()
    records = Chore.states.transition_model.objects
    workers = [start_with_two_hosts() for _ in range(2)]
    eventually(lambda: records.count() >= ROWS // 3, "work is under way")
    before, ran = set(records.values_list("pk", flat=True)), claims()
    fail_over()
    assert not before & set(records.values_list("pk", flat=True)), "these moves were made, and are gone"
    wait_until_all("DONE")
    for worker in workers:
        assert worker.terminate() == 0
        assert " died of " not in worker.log()
    assert ran & claims(), "the same token for the same row, and another call of the handler"
    assert not Chore.objects.filter(status_failures__gt=0).exists()
    check_invariants(moves=2 * ROWS, terminal=True, released=True, tokens=False)


def claims():
    return set(Run.objects.values_list("chore", "token"))
