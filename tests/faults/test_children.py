"""Rows that wait for children, and workers that come to harm: no parent is stranded, none moves twice, no child is made twice."""

from __future__ import annotations

import time

import pytest
from django.db import transaction
from django.db.models import Count

from lab.models import Expedition, Leg, Petition
from tests.faults.harness import BRIEF, NEVER, backends, check_invariants, execute, is_long, locking, wait_until_all
from tests.faults.injections import injected
from tests.patience import eventually

LABELS = ["lab.Expedition", "lab.Leg"]
#: What is found was looked for. A worker begins anywhere within a floor.
NO_FLOOR = {"looking.FLOOR_SECONDS": 1000 * NEVER}


@pytest.fixture
def start_family(start_worker):
    return lambda *arguments, **options: start_worker(
        *arguments, **{"labels": LABELS, "constants": NO_FLOOR, **options}
    )


def plan(number, legs, *, to="WALKING", outcome="ARRIVED", using="default"):
    plans = [{"to": to, "legs": [{"outcome": outcome}] * legs} for _ in range(number)]
    return Expedition.objects.using(using).bulk_create([Expedition(plan=each) for each in plans])


def legs_by_expedition():
    return set(Leg.objects.values("expedition").annotate(number=Count("pk")).values_list("number", flat=True))


def asleep():
    return Expedition.objects.filter(status="WALKING", status_next_at=None, status_lease_expires_at=None)


def test_joins_need_no_floor(start_family):
    """I7: many joins by several processes, each decided by its last child, none found by the sweep alone."""
    number = 400 if is_long() else 100
    plan(number, 5)
    workers = [start_family("--processes", "2") for _ in range(2)]
    wait_until_all("HOME", model=Expedition)
    for worker in workers:
        assert worker.terminate() == 0
    assert legs_by_expedition() == {5}
    check_invariants(Expedition, moves=2 * number, terminal=True, released=True, tokens=False)
    check_invariants(Leg, moves=5 * number, terminal=True, released=True, tokens=False)


def test_children_that_end_together_in_many_places(start_family):
    """I7: the last children of a parent end in several processes at the same moment, and by hand as well."""
    worker = start_family("--processes", "2")
    rows = plan(60, 4, outcome="")
    eventually(lambda: Leg.objects.count() == 240 and asleep().count() == 60, "all sleep")
    for number, row in enumerate(rows):
        legs = list(row.legs.all())
        legs[0].states.transition_to("ARRIVED")
        Leg.objects.filter(pk__in=[leg.pk for leg in legs[1:3]]).update(outcome="ARRIVED")
        for leg in legs[1:3]:
            leg.states.run_at()
        if number % 2:
            with transaction.atomic():
                legs[3].states.transition_to("ARRIVED")
        else:
            legs[3].delete()
    wait_until_all("HOME", model=Expedition)
    assert worker.terminate() == 0
    check_invariants(Expedition, moves=120, terminal=True, released=True, tokens=False)


def test_a_worker_of_a_second_database_sees_to_all_that_waits_there(start_family, other_database):
    """Where rows of the first have the same keys."""
    place = {"labels": [*LABELS, "lab.Petition"], "environment": injected(other=other_database)}
    worker = start_family("--database", "other", "--processes", "2", **place)
    untouched = plan(4, 0)
    home = plan(20, 3, using="other")
    (left,) = plan(1, 3, outcome="", using="other")
    petition = Petition.objects.using("other").create(status="OPEN", script={"needs": 2})
    assert {row.pk for row in untouched} <= {row.pk for row in home}
    eventually(lambda: left.legs.count() == 3, "it has set out")
    Expedition.objects.using("other").get(pk=left.pk).states.transition_to("LATE")
    for _ in range(2):
        petition.states.deliver("letter")
    eventually(lambda: Expedition.objects.using("other").filter(status="HOME").count() == 20, "all are home")
    eventually(lambda: left.legs.filter(status="CALLED_OFF").count() == 3, "its legs are called off")
    eventually(lambda: petition.states.history.filter(to_status="HEARD").exists(), "the letters are read")
    assert worker.terminate() == 0
    assert [event.taken_by for event in petition.states.events] == [1, 1]
    assert Expedition.objects.filter(status="PLANNED", status_lease_token=0).count() == 4
    assert not Leg.objects.exists()


def test_a_storm_of_kills_strands_no_parent(start_family, chance):
    """#4 with children: kill -9 of any process. What was missed is found at the floor; no child is made twice. I2, I3, I7, I8."""
    number = 60
    plan(number, 6)
    options = {"constants": {"looking.FLOOR_SECONDS": 2.0}, "settings": BRIEF | {"MAX_CRASHES": 1000}}
    workers = [start_family("--processes", "2", **options) for _ in range(2)]
    eventually(Leg.objects.exists, "children are made")
    began = time.monotonic()
    while time.monotonic() - began < (30 if is_long() else 5):
        time.sleep(chance.uniform(0.1, 0.5))
        place = chance.randrange(len(workers))
        worker = workers[place]
        pid = chance.choice(sorted(worker.members()))
        worker.kill(pid)
        if pid == worker.pid:
            workers[place] = start_family("--processes", "2", **options)
    wait_until_all("HOME", model=Expedition)
    for worker in workers:
        worker.ask_to_stop()
    for worker in workers:
        worker.wait()
    assert legs_by_expedition() == {6}
    check_invariants(Expedition, moves=2 * number, terminal=True, released=True, tokens=False)
    check_invariants(Leg, moves=6 * number, terminal=True, released=True, tokens=False)


def test_a_lost_answer_makes_no_child_twice(start_family):
    """The connection breaks when Spawn is committed, or before: the record tells which."""
    worker = start_family()
    eventually(lambda: backends("claimer"), "a worker")
    rows = plan(30, 10)
    for _ in range(20):
        for pid in backends("writer"):
            execute("SELECT pg_terminate_backend(%s)", pid)
        time.sleep(0.02)
    wait_until_all("HOME", model=Expedition)
    assert worker.terminate() == 0
    assert legs_by_expedition() == {10}
    check_invariants(Expedition, moves=2 * len(rows), terminal=True, released=True, tokens=False)


def test_a_parent_that_is_locked_for_a_while_is_found_soon_after(start_family):
    worker = start_family()
    (row,) = plan(1, 2, outcome="")
    eventually(lambda: asleep().exists() and row.legs.count() == 2, "it sleeps")
    with locking("SELECT 1 FROM lab_expedition WHERE id = %s FOR UPDATE", row.pk):
        row.legs.update(outcome="ARRIVED")
        for leg in row.legs.all():
            leg.states.run_at()
        eventually(lambda: not row.legs.filter(status="OPEN").exists(), "its legs end")
        time.sleep(0.3)
        assert asleep().exists()
    wait_until_all("HOME", model=Expedition)
    assert worker.terminate() == 0


def test_sleeping_parents_cost_nothing_in_between(start_family):
    worker = start_family()
    plan(20, 1, outcome="")
    eventually(lambda: asleep().count() == 20, "all sleep")
    before = list(asleep().order_by("pk").values_list("pk", "status_lease_token", "status_attempts"))
    time.sleep(2)
    assert list(asleep().order_by("pk").values_list("pk", "status_lease_token", "status_attempts")) == before
    assert worker.terminate() == 0


def test_children_are_cancelled_soon_after_their_parent_was_moved_by_hand(start_family):
    worker = start_family()
    (row,) = plan(1, 3, outcome="")
    eventually(lambda: asleep().exists() and row.legs.count() == 3, "it sleeps")
    Expedition.objects.get(pk=row.pk).states.transition_to("LATE")
    eventually(lambda: row.legs.filter(status="CALLED_OFF").count() == 3, "its legs are called off")
    eventually(lambda: not Expedition.objects.filter(status_cancels__gt=0).exists(), "the mark is gone")
    assert worker.terminate() == 0
    check_invariants(Leg, moves=3, terminal=True, released=True, tokens=False)
