"""Every interleaving of what senders, workers and people do to one row that waits for events, searched.

A step is one statement. A sender's transaction holds the row's lock from its statement to its commit; workers skip a row that is locked,
people wait. Leases may run out at any time, and whoever held one goes on and does not know. A worker may find that the time of the row
is up, when it has looked into the inbox and when its handler has said not yet. Each guard is left out once, and the search then finds a
way to strand the row, to have an event handled twice, taken by a move that did not handle it, or met by a time-out that moves the row, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest


@dataclass(frozen=True)
class Guards:
    """What the statements do. All of it is needed."""

    sleep_compares: bool = True
    move_compares: bool = True
    people_compare: bool = True
    token: bool = True
    sender_locks: bool = True
    #: A time-out takes nothing. What it leaves untaken, and what has come since, make the row due where it leads to, if that is
    #: waited for there.
    time_out_takes_nothing: bool = True
    time_out_leaves_word: bool = True
    time_out_compares: bool = True
    #: Whether what is untaken is asked in a sub-select of the statement that lets the row sleep, which sees the database as of when
    #: the statement began, in place of a comparison, which sees the row as of when it got the lock.
    asks_instead: bool = False


@dataclass(frozen=True)
class Worker:
    phase: str = "idle"
    token: int = 0
    status: str = ""
    #: How many moves the row had made.
    sequence: int = 0
    inbox: int = 0
    handed: frozenset[int] = frozenset()
    #: What its statement saw when it began, if it waits for a lock.
    snapshot: frozenset[int] = frozenset()


@dataclass(frozen=True)
class World:
    status: str = "NEW"
    inbox: int = 0
    due: bool = True
    sequence: int = 0
    leased: bool = False
    token: int = 0
    locked_by: int | None = None
    events: frozenset[int] = frozenset()
    #: By how many moves each was handled that were committed.
    handled: tuple[int, ...] = ()
    #: What time-outs took, and from where a worker moved the row: how many moves it had made before, and what brought it about.
    taken_unhandled: frozenset[int] = frozenset()
    moved: frozenset[tuple[int, str]] = frozenset()
    senders: tuple[str, ...] = ("new", "new")
    workers: tuple[Worker, ...] = (Worker(), Worker())
    expiries: int = 1
    person: str = "new"
    #: How often somebody may make the row due although nothing has happened: its time-out, or `run_at()`.
    pokes: int = 1
    #: How often the time of the row is up, and to which state that leads.
    time_outs: int = 1
    timeout_to: str = "LAST"

    @property
    def untaken(self) -> frozenset[int]:
        return self.events.difference(self.handled, self.taken_unhandled)


#: The states in which the row waits for events. In ENDED it takes none any more.
WAITING = ("OPEN", "LAST")


def put(items, place, item):
    return (*items[:place], item, *items[place + 1 :])


def sender_steps(world, guards):
    for place, phase in enumerate(world.senders):
        if guards.sender_locks:
            if phase == "new" and world.locked_by is None:
                yield replace(world, senders=put(world.senders, place, "open"), locked_by=place)
            if phase == "open" and world.status == "ENDED":
                yield replace(world, senders=put(world.senders, place, "refused"), locked_by=None)
            elif phase == "open":
                number = world.inbox + 1
                yield replace(
                    world,
                    senders=put(world.senders, place, "done"),
                    locked_by=None,
                    inbox=number,
                    events=world.events | {number},
                    due=world.due or (world.status in WAITING and not world.leased),
                )
        elif phase == "new":  # looks whether the row waits, writes it only then, and commits later
            hit = world.status in WAITING and not world.leased
            yield replace(world, senders=put(world.senders, place, "hit" if hit else "miss"), due=world.due or hit)
        elif phase in ("hit", "miss"):
            events = world.events | {len(world.events) + 1}
            yield replace(world, senders=put(world.senders, place, "done"), events=events)


def worker_steps(world, guards):
    for place, worker in enumerate(world.workers):

        def at(changed, place=place):
            return put(world.workers, place, changed)

        if worker.phase == "idle" and world.due and not world.leased and world.locked_by is None:
            token = world.token + 1
            claimed = Worker("claimed", token, world.status, world.sequence, world.inbox)
            yield replace(world, leased=True, token=token, workers=at(claimed))
        elif worker.phase == "claimed":
            handed = world.untaken if worker.status in WAITING else frozenset()
            yield replace(world, workers=at(replace(worker, phase="ran", handed=handed)))
        elif worker.phase in ("ran", "late"):
            if worker.phase == "ran" and worker.status == "OPEN" and world.time_outs:
                yield replace(world, workers=at(replace(worker, phase="late")), time_outs=world.time_outs - 1)
            # The statement begins, and may have to wait for a lock.
            phase = "timing out" if worker.phase == "late" else "writing"
            yield replace(world, workers=at(replace(worker, phase=phase, snapshot=world.untaken)))
        elif worker.phase in ("writing", "timing out") and world.locked_by is None:
            yield written(world, worker, guards, at(Worker()))


def written(world, worker, guards, workers):
    if (guards.token and worker.token != world.token) or worker.status != world.status:
        return replace(world, workers=workers)
    seen = max([worker.inbox, *worker.handed])
    unseen = world.inbox > seen
    if guards.asks_instead:
        unseen = bool(worker.snapshot - worker.handed)
    ended = replace(world, leased=False, token=world.token + 1, workers=workers)
    if worker.status == "NEW":
        return replace(ended, status="OPEN", sequence=world.sequence + 1, due=guards.move_compares and world.inbox > 0)
    if worker.phase == "timing out":
        return timed_out(world, worker, guards, replace(ended, sequence=world.sequence + 1), unseen)
    if worker.handed:  # it moves, to the same state once more, and takes what it was handed
        handled = tuple(sorted((*world.handled, *worker.handed)))
        moved = world.moved | {(worker.sequence, "event")}
        due = guards.move_compares and unseen
        return replace(ended, sequence=world.sequence + 1, due=due, handled=handled, moved=moved)
    return replace(ended, due=guards.sleep_compares and unseen)


def timed_out(world, worker, guards, ended, unseen):
    is_awaited = world.timeout_to in WAITING
    left = worker.handed if guards.time_out_takes_nothing else frozenset()
    return replace(
        ended,
        status=world.timeout_to,
        due=is_awaited and ((guards.time_out_compares and unseen) or (guards.time_out_leaves_word and bool(left))),
        taken_unhandled=world.taken_unhandled | (worker.handed - left),
        moved=world.moved | {(worker.sequence, "time-out")},
    )


def other_steps(world, guards):
    if world.leased and world.expiries and world.locked_by is None:
        yield replace(world, leased=False, token=world.token + 1, due=True, expiries=world.expiries - 1)
    if world.person == "new" and world.status == "NEW" and world.locked_by is None:
        yield replace(
            world,
            person="done",
            status="OPEN",
            sequence=world.sequence + 1,
            leased=False,
            token=world.token + 1,
            due=guards.people_compare and world.inbox > 0,
        )


def pokes(world):
    if world.pokes and world.status in WAITING and not (world.due or world.leased) and world.locked_by is None:
        yield replace(world, due=True, pokes=world.pokes - 1)


def search(guards, **given):
    """Return how many worlds there are, and what is wrong with some, or with those in which nothing can happen any more."""
    start = World(**given)
    seen, todo, wrong = {start}, [start], set()
    while todo:
        world = todo.pop()
        following = [each for steps in (sender_steps, worker_steps, other_steps) for each in steps(world, guards)]
        if len({*world.handled}) < len(world.handled):
            wrong.add("handled twice")
        if world.taken_unhandled:
            wrong.add("taken and not handled")
        if len({before for before, _why in world.moved}) < len(world.moved):
            wrong.add("moved by a time-out and by an event")
        if not following and world.untaken and world.status in WAITING:  # that somebody may poke it is no excuse
            wrong.add("asleep beside an event")
        for each in (*following, *pokes(world)):
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return len(seen), wrong


@pytest.mark.parametrize("given", [{"time_outs": 0}, {}, {"timeout_to": "ENDED"}], ids=str)
def test_no_order_of_steps_strands_a_row_or_handles_an_event_twice(given):
    worlds, wrong = search(Guards(), **given)

    assert wrong == set()
    assert worlds > 10_000


@pytest.mark.parametrize(
    ("guards", "expected"),
    [
        (Guards(sleep_compares=False), "asleep beside an event"),
        (Guards(move_compares=False), "asleep beside an event"),
        (Guards(people_compare=False), "asleep beside an event"),
        (Guards(sender_locks=False), "asleep beside an event"),
        (Guards(asks_instead=True), "asleep beside an event"),
        (Guards(token=False), "handled twice"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_each_guard_is_needed(guards, expected):
    assert expected in search(guards, time_outs=0)[1]


@pytest.mark.parametrize(
    ("guards", "expected"),
    [
        (Guards(token=False), "moved by a time-out and by an event"),
        (Guards(time_out_takes_nothing=False), "taken and not handled"),
        (Guards(time_out_leaves_word=False), "asleep beside an event"),
        (Guards(time_out_compares=False), "asleep beside an event"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_each_guard_is_needed_where_time_is_up(guards, expected):
    wrong = search(guards)[1]
    assert expected in wrong
    assert expected not in search(guards, time_outs=0)[1]
