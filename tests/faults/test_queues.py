"""Real workers and rows that say their queue and priority: the order in which handlers run, whom a full queue holds up, who is woken,
and what becomes of rows of many levels when workers die."""

from __future__ import annotations

import time

import pytest

from lab.models import Bale, Footprint
from statemachine_fields.schedule import wakeups
from tests.faults.harness import (
    BRIEF,
    EXTENDED,
    NEVER,
    check_invariants,
    eventually_in,
    execute,
    is_gate_held,
    locking,
    wait_until_all,
)
from tests.patience import eventually

LABELS = ["lab.Bale"]
#: One handler at a time, so that the order in which they run is that of the rows.
ONE = ("--processes", "1", "--threads", "1")
#: How long a handler of a slow row takes.
SLOW = 0.3
#: Rows that wait behind others of their process are not given back, after which less urgent ones may have been claimed.
UNHURRIED = {"inflight.KEPT_WAITING": NEVER, "inflight.STALLED": NEVER}
#: However often a row is left behind, it is not given up.
OFTEN = EXTENDED | {"MAX_CRASHES": 1000}


@pytest.fixture
def start(start_worker):
    """A function that starts a worker of these rows."""
    return lambda *arguments, **options: start_worker(*arguments, labels=LABELS, **options)


def create(*values, status="DOING", script=""):
    """Create rows, each due a moment after the one before it, and return their keys."""
    rows = [Bale(status=status, **{"script": script, **each}) for each in values]
    keys = [row.pk for row in Bale.objects.bulk_create(rows)]
    execute(
        "UPDATE lab_bale SET status_next_at = now() - interval '1 hour' + id * interval '1 ms' WHERE id = ANY(%s)", keys
    )
    return keys


def ran(*keys):
    """Return the keys of rows in the order in which their handlers were called; of these only, if some are given."""
    calls = [int(key) for key in Footprint.objects.order_by("pk").values_list("key", flat=True)]
    return [key for key in calls if not keys or key in keys]


def in_order(keys):
    """Return keys of rows in the order in which they are to be run."""
    rows = {row.pk: row for row in Bale.objects.filter(pk__in=keys)}
    return sorted(keys, key=lambda key: (-rows[key].priority, key))


class TestOrder:
    def test_one_worker_runs_rows_exactly_by_priority_and_time(self, start, chance):
        keys = create(
            *[{"priority": chance.randint(-3, 3), "queue": chance.choice(["", "a", "b"])} for _ in range(200)]
        )
        start(*ONE, constants=UNHURRIED)
        wait_until_all("DONE", model=Bale)
        assert ran() == in_order(keys)

    def test_also_of_several_queues_by_name(self, start, chance):
        keys = create(
            *[{"priority": chance.randint(-3, 3), "queue": chance.choice(["a", "b", "c"])} for _ in range(200)]
        )
        others = create({"queue": "d", "priority": 9}, {"queue": ""})
        start(*ONE, "--queue", "c", "--queue", "a", "--queue", "b", constants=UNHURRIED)
        eventually_in("DONE", Bale, keys)
        assert ran() == in_order(keys)
        assert {*Bale.objects.filter(pk__in=others).values_list("status", flat=True)} == {"DOING"}

    def test_workers_side_by_side_leave_no_urgent_row_for_last(self, start, chance):
        """Each claim takes the most urgent rows that nobody has: what is left when the last of them begins is less urgent."""
        keys = create(*[{"priority": place % 4, "queue": chance.choice(["a", "b"])} for place in range(400)])
        for _ in range(3):
            start("--processes", "1", "--threads", "1", "--queue", "a", "--queue", "b")
        wait_until_all("DONE", model=Bale)
        # By the claims: what one worker has claimed may be run long after what another has, if the machine is busy.
        claimed = dict(Bale.objects.values_list("pk", "status_claimed_at"))
        places = {key: place for place, key in enumerate(sorted(keys, key=lambda key: claimed[key]))}
        means = [sum(places[key] for key in keys[level::4]) / 100 for level in range(4)]
        assert means == sorted(means, reverse=True)
        assert len({*ran()}) == len(ran()) == 400

    def test_a_row_of_a_known_priority_is_next(self, start):
        create({"priority": 9, "script": "slow"}, *[{}] * 12, script="slow")
        # What is known stays known while one row of it waits for a later time.
        Bale.objects.create(priority=9, status="DOING")
        execute("UPDATE lab_bale SET status_next_at = now() + interval '1 day' WHERE script = ''")
        start(*ONE)
        eventually(lambda: len(ran()) >= 3, "it is busy")
        (urgent,) = create({"priority": 9})
        before = len(ran())
        eventually(lambda: urgent in ran(), "it is run")
        assert ran().index(urgent) <= before + 1

    def test_a_row_of_a_new_priority_does_not_wait_for_all_that_were_there_before(self, start):
        """How soon it is next is up to the database, which has to be asked: a second, where it answers at once."""
        others = create(*[{}] * 60, script="slow")
        start(*ONE)
        eventually(lambda: len(ran()) >= 2, "it is busy")
        for priority in (9, -4, 100):
            (new,) = create({"priority": priority})
            before = len(ran())
            if priority < 0:
                continue
            eventually(lambda: new in ran(), "it is run")  # noqa: B023
            assert ran().index(new) < before + len(others) // 3

    def test_a_priority_that_changes_while_rows_wait_counts(self, start):
        keys = create(*[{"priority": 5}] * 40, {"priority": 0}, script="slow")  # more than run until it is found out
        start(*ONE)
        eventually(lambda: len(ran()) >= 2, "it is busy")
        Bale.objects.filter(pk=keys[-1]).update(priority=7)
        eventually(lambda: keys[-1] in ran(), "it is run")
        assert ran().index(keys[-1]) < len(keys) - 1


class TestQueues:
    def test_one_that_is_full_holds_up_no_other(self, start):
        full = create(*[{"queue": "full", "priority": 9}] * 12, script="hang")
        others = create(*[{"queue": "free"}] * 40, *[{"queue": ""}] * 10)
        worker = start(
            "--processes", "1", "--threads", "2", "--queue", "full=1", "--queue", "free", "--queue", "default"
        )  # fmt: skip
        eventually_in("DONE", Bale, others)
        assert not Bale.objects.filter(pk__in=full, status="DONE").exists()
        Bale.objects.update(script="")
        worker.kill(worker.children()[0])
        eventually_in("DONE", Bale, full)
        check_invariants(Bale, terminal=True)

    def test_no_more_rows_of_it_run_at_once_than_its_limit(self, start):
        create(*[{"queue": "two"}] * 12, script="slow")
        began_at = time.monotonic()
        start("--processes", "1", "--threads", "6", "--queue", "two=2")
        wait_until_all("DONE", model=Bale)
        assert time.monotonic() - began_at > 12 / 2 * SLOW

    def test_a_row_that_changes_its_queue_is_run_by_who_serves_that(self, start):
        start(*ONE, "--queue", "a")
        (key,) = create({"queue": "b"})
        start(*ONE, "--queue", "c").wait_for_log("Serving")
        assert not ran()
        for queue in ("none", "c"):
            Bale.objects.filter(pk=key).update(queue=queue)
        eventually_in("DONE", Bale, [key])

    def test_a_row_that_a_person_has_locked_holds_up_no_other(self, start):
        locked, *others = create({"priority": 9}, {"priority": 5}, {"priority": 0})
        with locking("SELECT 1 FROM lab_bale WHERE id = %s FOR UPDATE", locked):
            start(*ONE, "--queue", "default", "--queue", "a")
            eventually_in("DONE", Bale, others)
        eventually_in("DONE", Bale, [locked])


class TestDeaths:
    def hold(self, start, *arguments, queues=("", "a", "b"), **settings):
        """Start a worker whose process runs rows of many levels that never end, and return it with their keys."""
        keys = create(
            *[{"priority": place - 3, "queue": queues[place % len(queues)]} for place in range(6)], script="hang"
        )
        worker = start("--processes", "1", "--threads", "6", *arguments, settings=settings)
        eventually(lambda: len(ran()) >= 6, f"all run:\n{worker.log()}")
        Bale.objects.update(script="")
        return worker, keys

    @pytest.mark.parametrize(
        "arguments", [(), ("--queue", "default", "--queue", "a", "--queue", "b=6")], ids=["all", "some"]
    )
    def test_what_a_killed_process_held_is_run_again_at_once_in_all_levels(self, start, arguments):
        worker, keys = self.hold(start, *arguments, LEASE_SECONDS=NEVER)
        create(*[{"priority": place % 9 - 4, "queue": "a"} for place in range(60)])
        (pid,) = worker.children()
        worker.kill(pid)
        eventually_in("DONE", Bale, keys)
        wait_until_all("DONE", model=Bale)
        assert worker.terminate() == 0
        check_invariants(Bale, terminal=True, released=True)

    def test_what_a_host_held_that_vanished_is_run_by_another_after_the_lease(self, start):
        lost, keys = self.hold(start, **BRIEF)
        other = start("--queue", "default", "--queue", "a", "--queue", "b")
        other.wait_for_log("Serving")
        lost.kill_all()
        eventually_in("DONE", Bale, keys)
        assert {*Bale.objects.filter(pk__in=keys).values_list("status_crashes", flat=True)} == {0}
        assert other.terminate() == 0
        check_invariants(Bale, terminal=True, released=True)

    def test_also_if_they_have_changed_their_queue_and_priority_meanwhile(self, start):
        lost, keys = self.hold(start, queues=("a",), **BRIEF)
        create(*[{"queue": "b", "priority": 50}] * 40)
        Bale.objects.filter(pk__in=keys).update(queue="b", priority=50)
        lost.kill_all()
        other = start("--queue", "b")
        eventually_in("DONE", Bale, keys)
        assert other.terminate() == 0
        check_invariants(Bale, terminal=True, released=True)

    def test_kills_all_the_time_lose_no_row_of_any_level(self, start, chance):
        keys = create(
            *[{"priority": chance.randint(-5, 5), "queue": chance.choice(["", "a", "b", "c"])} for _ in range(600)],
            status="NEW",
        )
        queues = ("--queue", "default=1", "--queue", "a", "--queue", "b", "--queue", "c=2")
        workers = [start("--processes", "2", settings=OFTEN), start("--processes", "1", *queues, settings=OFTEN)]
        until = time.monotonic() + 6
        while time.monotonic() < until:
            time.sleep(chance.uniform(0.1, 0.5))
            worker = chance.choice(workers)
            if children := worker.children():
                worker.kill(chance.choice(children))
            Bale.objects.filter(pk__in=chance.sample(keys, 5)).update(priority=chance.randint(-5, 5))
        wait_until_all("DONE", model=Bale)
        for worker in workers:
            worker.terminate()
        check_invariants(Bale, moves=2 * len(keys), terminal=True, released=True)


class TestWakeUps:
    """A poll is so far away that whoever runs a row was told of it."""

    @pytest.fixture(autouse=True)
    def forgotten(self, monkeypatch):
        monkeypatch.setattr(wakeups, "_quiet_until", {})

    @pytest.fixture
    def start_idle(self, start):
        def start_idle(*arguments):
            worker = start(*arguments, settings={"POLL_SECONDS": NEVER, "LEASE_SECONDS": NEVER})
            eventually(is_gate_held, f"it waits:\n{worker.log()}")
            return worker

        return start_idle

    @pytest.mark.parametrize(
        ("arguments", "queue"),
        [
            ((), ""),
            ((), "never heard of"),
            (("--queue", "a"), "a"),
            (("--queue", "a=2", "--queue", "b"), "b"),
            (("--queue", "default"), ""),
        ],
    )
    def test_a_row_of_a_queue_that_is_served_is_run_at_once(self, start_idle, arguments, queue):
        start_idle(*arguments)
        for priority in (0, 7, -2):
            wakeups._quiet_until.clear()
            row = Bale.objects.create(queue=queue, priority=priority)
            eventually_in("DONE", Bale, [row.pk])

    def test_a_row_of_another_queue_wakes_nobody(self, start_idle):
        start_idle("--queue", "a")
        row = Bale.objects.create(queue="b")
        bound = Bale.states._meta
        told_that_nobody_waits = {gate for _alias, gate in wakeups._quiet_until}
        assert told_that_nobody_waits == wakeups.gates_before(bound, "NEW", "b")
        assert not ran()
        row.delete()

    def test_nor_does_one_of_another_queue_keep_it_awake(self, start_idle):
        """Rows that are due and not ours are no reason to look again and again."""
        create({"queue": "b", "priority": 9}, {"queue": ""})
        start_idle("--queue", "a")
        row = Bale.objects.create(queue="a")
        eventually_in("DONE", Bale, [row.pk])
        eventually(is_gate_held, "it waits again")
